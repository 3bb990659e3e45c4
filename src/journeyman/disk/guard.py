"""Who may write to a data directory in PostgreSQL: one process at a time.

    take       the lock of the directory, held by a session of its own; then the epoch is raised,
               after which the database refuses every write of earlier owners
    confirm    every CONFIRM_S a thread asks on that session whether the epoch is still its own
    lose       the epoch is another's, or nothing was confirmed for DEADLINE_S: the process ends

    seconds since the last question that was answered
    LEASE_S     3   nothing is answered any more: not a read, not a write, and the server is not
                    ready. Counted from before the question was sent
    SESSION_S   5   PostgreSQL ends the session, which frees the lock: another server takes over
    DEADLINE_S  8   the process ends

So the lease of a server ends before PostgreSQL frees its lock. Only a session that was cut off is
freed earlier. The next server then waits out the lease, unless it knows that no stale answer can be
given: the last server has stopped in order, its process has ended, all its addresses refuse
connections (it advertises them when they are open), or it was seen to have confirmed nothing for
longer than its lease.

A session that is lost is replaced as long as the epoch is the same. One that was silent for longer
than the lease is given up even if it answers again, because others may count on that.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final

import psycopg

from journeyman import threads
from journeyman.disk import database
from journeyman.units import NS_PER_S

CONFIRM_S: Final = 0.5
LEASE_S: Final = 3.0
SESSION_S: Final = 5.0
SILENT_S: Final = LEASE_S * 1.1  # by the clock of the database: no two run quite alike
STUCK_S: Final = 4.0  # a change without an answer is sent again on a new connection
RETURN_S: Final = 1.0  # for the active server to have its lock again
WATCH_S: Final = 0.1
REACH_S: Final = 0.3  # for an address to accept or refuse a connection

_LOCK: Final = "SELECT pg_try_advisory_lock(7238, journeyman_key())"
_UNLOCK: Final = "SELECT pg_advisory_unlock(7238, journeyman_key())"
_CLEAN: Final = "UPDATE journeyman_directory SET is_clean = true WHERE epoch = %s"
_ADVERTISE: Final = "UPDATE journeyman_directory SET server = %s WHERE epoch = %s"
_EPOCH: Final = "SELECT epoch FROM journeyman_directory"
_SESSION: Final = f"SET idle_session_timeout = {int(SESSION_S * 1000)}"
# How long the session that holds the lock has been silent.
_SILENCE: Final = """
    SELECT extract(epoch FROM clock_timestamp() - a.state_change)::float8
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND l.classid = 7238 AND l.objid = journeyman_key()"""


class Guard:
    """See the module. ``take`` and ``release`` are called by one thread at a time."""

    def __init__(
        self, logs: database.Database, listening: Sequence[tuple[str, int]] | None = None
    ) -> None:
        """``logs``: the database that has them. ``listening``: the addresses of a server; None for
        a command, which answers no one."""
        self._database = logs
        self._listening = listening
        self._session: database.Connection | None = None
        self._identity: tuple[Any, ...] = (None, None)  # identifies the session to the database
        self._own: int | None = None
        self._local_host = ""  # this machine's address on the way to the database
        self._lease_end_ns = 0
        self._confirmed_ns = 0
        self._stopped = threading.Event()
        self._threads: list[threads.StartedThread] = []
        self._was_silent = False  # the last owner had lost its lease before its lock was free
        self._last_server: dict[str, Any] | None = None  # the one before this one may still answer
        self._opens_ns = 0
        self._after_ns = 0  # the lock is not asked for before
        self.on_lost: Callable[[str], None] = lambda _: None
        self.lost: str | None = None  # why this process may not write any more

    # --- taking ---

    def take(self, timeout_s: float = 0.0) -> bool:
        """True if the directory is this process's now. psycopg.Error: the database does not
        answer; call it again."""
        deadline_ns = database.boot_ns() + int(timeout_s * NS_PER_S)
        while not self._try_lock():
            if database.boot_ns() >= deadline_ns:
                return False
            time.sleep(database.RETRY_S)
        assert self._session is not None
        asked_ns = database.boot_ns()
        row = self._session.execute(
            "SELECT own, was_clean, last_server FROM journeyman_take(%s)", (self._description([]),)
        ).fetchone()
        assert row is not None
        self._own, was_clean, last_server = row
        self._database.epoch = self._own
        self._local_host = _local_host(self._session)
        self._confirm_until(asked_ns)
        if not was_clean and last_server and not self._was_silent:
            self._last_server = json.loads(last_server)
        self._opens_ns = database.boot_ns() + int(LEASE_S * NS_PER_S)
        self._threads = [
            threads.start(self._confirm, "journeyman-lease", daemon=True),
            threads.start(self._watch, "journeyman-deadline", daemon=True),
        ]
        return True

    def _try_lock(self) -> bool:
        try:
            if self._session is None:
                self._begin_session()
            assert self._session is not None
            if database.boot_ns() >= self._after_ns and self._session.execute(_LOCK).fetchone() == (
                True,
            ):
                return True
            silence = self._session.execute(_SILENCE).fetchone()
        except psycopg.Error:
            self._end_session()
            # A database that comes back is first of all for the server that was active.
            self._after_ns = database.boot_ns() + int(RETURN_S * NS_PER_S)
            raise
        self._was_silent = silence is not None and silence[0] is not None and silence[0] > SILENT_S
        return False

    def _begin_session(self) -> None:
        self._session = database.connect(self._database.parameters)
        self._session.execute(_SESSION)
        self._identity = self._session.execute(database.OWN_SESSION).fetchone() or (None, None)

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @property
    def may_open(self) -> bool:
        """True if no earlier server can give a stale answer any more. Blocks for a moment."""
        if self._last_server is not None and database.boot_ns() < self._opens_ns:
            if not _has_ended(self._last_server):
                return False
            self._last_server = None
        return True

    def advertise(self) -> None:
        """The ports are open: tell the next server where. Blocks.

        Before that a refused connection says nothing: the server may be about to answer.
        """
        local = self._local_host
        reached = [(_reached_at(host, local), port) for host, port in self._listening or () if port]
        addresses = [[host, port] for host, port in reached if host]
        with suppress(OSError):  # the next server waits a little longer
            values = self._description(addresses), self._own
            self._database.change(_ADVERTISE, values, self._database.address)

    # --- having ---

    @property
    def is_valid(self) -> bool:
        """True if what this process knows is the truth now: no other one can have written."""
        return database.boot_ns() < self._lease_end_ns

    def _confirm_until(self, asked_ns: int) -> None:
        self._confirmed_ns = asked_ns
        self._lease_end_ns = asked_ns + int(LEASE_S * NS_PER_S)

    def _confirm(self) -> None:
        while not self._stopped.wait(database.RETRY_S if self._session is None else CONFIRM_S):
            asked_ns = database.boot_ns()
            try:
                if self._session is None:
                    self._take_again()
                assert self._session is not None
                if self._session.execute(_EPOCH).fetchone() != (self._own,):
                    self._lose("another server has taken over")
                    return
                if database.boot_ns() - asked_ns < LEASE_S * NS_PER_S:
                    self._confirm_until(asked_ns)
                    continue
            except psycopg.Error:
                pass
            self._end_session()

    def _take_again(self) -> None:
        """A new session with the lock, unless another process has it; that one raises the epoch."""
        earlier = self._identity
        self._begin_session()
        assert self._session is not None
        self._session.execute(database.END_SESSION, earlier)
        while self._session.execute(_LOCK).fetchone() != (True,):
            if self._stopped.wait(database.RETRY_S):
                return
            if self._session.execute(_EPOCH).fetchone() != (self._own,):
                return  # the caller finds the same

    def _watch(self) -> None:
        """Not by the thread that asks, which may wait for an answer."""
        stuck_ns, deadline_ns = int(STUCK_S * NS_PER_S), int(database.DEADLINE_S * NS_PER_S)
        hung_up_ns = 0
        while not self._stopped.wait(WATCH_S):
            now_ns = database.boot_ns()
            waits = self._database.waiting_since_ns
            silent_ns = now_ns - min(self._confirmed_ns, now_ns if waits is None else waits)
            if silent_ns >= deadline_ns:
                self._lose(f"the database did not answer for {database.DEADLINE_S:.0f} s")
                return
            if silent_ns >= stuck_ns and now_ns - hung_up_ns >= stuck_ns:
                hung_up_ns = now_ns
                self._database.hang_up()
                if not self.is_valid:
                    self._hang_up_session()

    def _lose(self, reason: str) -> None:
        self._lease_end_ns = 0
        self.lost = reason
        self.on_lost(reason)

    # --- giving back ---

    def release(self) -> None:
        """All is written: the next server need not wait."""
        self._stopped.set()
        self._lease_end_ns = 0
        # The watch has ended: a database that does not answer must not hold up the stop.
        patience = threading.Timer(LEASE_S, self._hang_up_session)
        patience.daemon = True
        patience.start()
        for thread in self._threads:
            thread.join()
        if self._session is not None and self._own is not None and self.lost is None:
            with suppress(psycopg.Error):
                self._session.execute(_CLEAN, (self._own,))
                self._session.execute(_UNLOCK)  # the end of a session takes a moment
        patience.cancel()
        self._end_session()
        self._database.epoch = None

    def _hang_up_session(self) -> None:
        if (session := self._session) is not None:
            database.hang_up(session)

    def _description(self, addresses: list[list[Any]]) -> str:
        """Who this is, for the next server. Empty: it answers no one."""
        if self._listening is None:
            return ""
        process = [os.getpid(), _started(os.getpid())]
        return json.dumps({"machine": _machine(), "process": process, "addresses": addresses})


def _has_ended(server: dict[str, Any]) -> bool:
    """True if this server is known to answer nothing."""
    if server["machine"] == _machine():
        pid, started = server["process"]
        return _started(int(pid)) != str(started)
    for host, port in server["addresses"]:
        try:
            socket.create_connection((host, port), timeout=REACH_S).close()
        except ConnectionRefusedError:
            continue
        except OSError:
            pass
        return False  # one that is not refused may still answer
    return bool(server["addresses"])


def _machine() -> str:
    """Return a text that is the same for processes that see each other: one kernel, one namespace
    of processes."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process was started; empty if there is none, or if it has ended."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _local_host(session: database.Connection) -> str:
    """This machine's address on the way to the database; empty for a local socket."""
    with suppress(OSError), socket.socket(fileno=os.dup(session.fileno())) as end:
        name = end.getsockname()
        return str(name[0]) if isinstance(name, tuple) else ""
    return ""


def _reached_at(host: str, local: str) -> str:
    """Where others reach what listens on ``host``; empty if they cannot."""
    try:
        address = ip_address(host)
    except ValueError:
        return "" if host == "localhost" else host
    if address.is_loopback:
        return ""
    if address.is_unspecified:
        return "" if not local or ip_address(local).is_loopback else local
    return host
