"""A PostgreSQL in memory, as far as disk/postgres.py needs one, and the links to it.

    Tables        what is committed, and what each statement of the disk makes of it
    Backend       a session: statements one after another, locks, the time that it was idle
    Postgres      backends, advisory locks, commits; it can be killed, be full, or be slow
    Link          between one machine and the database: latency, stalls, resets
    Connection    the client's end, in place of psycopg's

A statement takes effect in one moment, its commit, up to which its locks are held. A commit is not
interrupted: a backend that is ended in it ends afterwards. When the database is killed, a commit
that is under way has happened or not, by chance. What was sent through a stalled link arrives when
the link works again, even if its sender has given up. ``fail_over`` drops the last commits, as an
asynchronous replica may.

schema.sql is not run here. tests/integration/test_database_double.py compares each statement with a
real PostgreSQL.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import psycopg

from journeyman.disk import database, guard, names, postgres
from journeyman.units import NS_PER_S
from tests.simulation.strands import Strand, StrandLoop, current_strand, start_strand
from tests.simulation.world import Loop, World

Row: TypeAlias = tuple[Any, ...]
Change: TypeAlias = Callable[[], Callable[[], None]]  # makes a change; what it returns undoes it

FENCE, SCRIPT = 7237, 7236  # advisory locks of transactions
CONNECT_TIMEOUT_S = 2.0
UNANSWERED_S = 5.0  # then a kernel gives a connection up: tcp_user_timeout, keepalives
UNDONE = 50  # commits that a failover may drop
NS_PER_US = 1000


class _Fenced(psycopg.DatabaseError):
    sqlstate = database.FENCED


class _Gap(psycopg.DatabaseError):
    sqlstate = "JM002"


def _lost(message: str) -> psycopg.OperationalError:
    return psycopg.OperationalError(message)


class _File:
    def __init__(self, parent: int, name: bytes, is_dir: bool, now_us: int) -> None:
        self.parent = parent
        self.name = name
        self.is_dir = is_dir
        self.modified_us = now_us
        self.gone_us: int | None = None
        self.rows: list[tuple[int, bytes, int]] = []  # at, data, written


def _drop(files: dict[int, _File], file_id: int) -> None:
    files.pop(file_id, None)


class Tables:
    """The committed state. ``plan`` checks a statement and returns its rows and its change."""

    def __init__(self, now_us: Callable[[], int]) -> None:
        self.is_made = False
        self.epoch = 0
        self.server = ""
        self.is_clean = True
        self.files: dict[int, _File] = {}
        self._next_id = 1
        self._now_us = now_us
        self._read: Mapping[str, Callable[..., list[Row]]] = {
            names._FIND: self._find,
            names._LIST: self._list,
            postgres._STATUS: self._status,
            postgres._SCAN: self._scan,
            postgres._READ: self._read_bytes,
            guard._EPOCH: lambda: [(self.epoch,)],
        }
        self._write: Mapping[str, Callable[..., tuple[list[Row], Change]]] = {
            **{names._CALLS[name]: getattr(self, f"_{name}") for name in names._CALLS},
            postgres._MERGE: self._merge,
            postgres._PURGE: self._purge,
            guard._CLEAN: self._set_clean,
            guard._ADVERTISE: self._set_server,
            TAKE: self._take,
        }

    def is_change(self, statement: str) -> bool:
        return statement in self._write

    def plan(self, statement: str, values: Any) -> tuple[list[Row], Change | None]:
        if not self.is_made:
            raise psycopg.errors.UndefinedTable("there are no tables")
        named = values if isinstance(values, Mapping) else None
        arguments = () if named is not None or values is None else values
        options = {} if named is None else {f"{name}_": value for name, value in named.items()}
        if statement in self._read:
            return self._read[statement](*arguments, **options), None
        return self._write[statement](*arguments, **options)

    def needs_room(self, statement: str, values: Any) -> bool:
        """Return whether a full disk refuses this. A file that is there already needs no row."""
        if statement == _MAKE:
            _, above, name, _ = values
            return self._at(above, name) is None
        return statement == _APPEND

    # -- reading --

    def _size(self, file_id: int) -> int:
        rows = self.files[file_id].rows if file_id in self.files else []
        return rows[-1][0] + len(rows[-1][1]) if rows else 0

    def _at(self, parent: int, name: bytes) -> int | None:
        for file_id, file in self.files.items():
            if file.parent == parent and file.name == name and file.gone_us is None:
                return file_id
        return None

    def _find(self, parent: int, name: bytes) -> list[Row]:
        file_id = self._at(parent, name)
        return [] if file_id is None else [(file_id, self.files[file_id].is_dir)]

    def _below(self, parent: int) -> list[tuple[int, _File]]:
        return [(i, f) for i, f in self.files.items() if f.parent == parent and f.gone_us is None]

    def _list(self, parent: int) -> list[Row]:
        return [(file.name,) for _, file in self._below(parent)]

    def _facts(self, file_id: int) -> Row:
        file = self.files[file_id]
        written_us = file.rows[-1][2] if file.rows else 0
        return file_id, file.is_dir, self._size(file_id), max(file.modified_us, written_us)

    def _status(self, file_id: int) -> list[Row]:
        return [self._facts(file_id)] if file_id in self.files else []

    def _scan(self, parent: int) -> list[Row]:
        return [(file.name, *self._facts(file_id)) for file_id, file in self._below(parent)]

    def _read_bytes(self, *, file_: int, from_: int, to_: int) -> list[Row]:
        rows = self.files[file_].rows if file_ in self.files else []
        first = max((at for at, _, _ in rows if at <= from_), default=0)
        return [
            (at + max(from_ - at, 0), data[max(from_ - at, 0) :][: to_ - max(from_, at)])
            for at, data, _ in rows
            if first <= at < to_
        ]

    # -- changing --

    def _fence(self, own: int | None) -> None:
        if own is not None and own != self.epoch:
            raise _Fenced("another server has taken over")

    def _append(
        self, own: int | None, files: Sequence[int], places: Sequence[int], pieces: Sequence[bytes]
    ) -> tuple[list[Row], Change]:
        self._fence(own)
        now_us, ends, inserted, touched = self._now_us(), dict[int, int](), [], []
        for file_id, place, piece in zip(files, places, pieces, strict=True):
            if file_id not in self.files:
                raise _Gap(f"file {file_id} does not exist any more")
            end = ends.get(file_id, self._size(file_id))
            if end == place:
                inserted.append((file_id, (place, bytes(piece), now_us)))
                ends[file_id] = place + len(piece)
            elif any(at == place and data == piece for at, data, _ in self.files[file_id].rows):
                touched.append((file_id, place))
            else:
                raise _Gap(f"file {file_id} ends at byte {end}, not at byte {place}")

        def change() -> Callable[[], None]:
            if any(self._size(i) > row[0] for i, row in inserted[:1]):
                raise psycopg.errors.UniqueViolation("duplicate key")
            for file_id, row in inserted:
                self.files[file_id].rows.append(row)
            for file_id, place in touched:
                rows = self.files[file_id].rows
                index = bisect_left(rows, (place,))
                rows[index] = (*rows[index][:2], now_us)

            def undo() -> None:
                for file_id, row in inserted:
                    if file_id in self.files and row in self.files[file_id].rows:
                        self.files[file_id].rows.remove(row)

            return undo

        return [("",)], change

    def _cut(self, own: int | None, file_id: int, size: int) -> tuple[list[Row], Change]:
        self._fence(own)

        def change() -> Callable[[], None]:
            file = self.files.get(file_id)
            if file is None:
                return lambda: None
            before, file.modified_us = file.rows, self._now_us()
            file.rows = [(at, data[: size - at], us) for at, data, us in before if at < size]
            return lambda: setattr(file, "rows", before)

        return [("",)], change

    def _make(
        self, own: int | None, above: int, name: bytes, as_dir: bool
    ) -> tuple[list[Row], Change]:
        self._fence(own)
        known = self._at(above, name)
        file_id, self._next_id = self._next_id, self._next_id + 1  # also if it is not used
        if known is not None:
            return [(known, self.files[known].is_dir, self._size(known))], lambda: lambda: None

        def change() -> Callable[[], None]:
            self.files[file_id] = _File(above, name, as_dir, self._now_us())
            return lambda: _drop(self.files, file_id)

        return [(file_id, as_dir, 0)], change

    def _rename(
        self, own: int | None, moved: int, above: int, name: bytes
    ) -> tuple[list[Row], Change]:
        self._fence(own)

        def change() -> Callable[[], None]:
            replaced, file = self._at(above, name), self.files.get(moved)
            if replaced is not None and replaced != moved:
                self.files[replaced].gone_us = self._now_us()
            before = None if file is None else (file.parent, file.name)
            if file is not None:
                file.parent, file.name = above, name

            def undo() -> None:
                if file is not None and before is not None:
                    file.parent, file.name = before
                if replaced is not None and replaced in self.files and replaced != moved:
                    self.files[replaced].gone_us = None

            return undo

        return [("",)], change

    def _rename_to_root(self, own: int | None, moved: int) -> tuple[list[Row], Change]:
        self._fence(own)

        def change() -> Callable[[], None]:
            for _, file in self._below(moved):
                file.parent = names.ROOT
            self.files.pop(moved, None)
            return lambda: None

        return [("",)], change

    def _remove(self, own: int | None, removed: int) -> tuple[list[Row], Change]:
        self._fence(own)

        def change() -> Callable[[], None]:
            file = self.files.get(removed)
            if file is None or file.gone_us is not None:
                return lambda: None
            file.gone_us = self._now_us()
            return lambda: setattr(file, "gone_us", None)

        return [("",)], change

    def _merge(
        self, *, own_: int | None, file_: int, piece_: int, from_: int, to_: int
    ) -> tuple[list[Row], Change]:
        rows = self.files[file_].rows if file_ in self.files else []
        pieces = [at // piece_ for at, _, _ in rows if from_ <= at < to_]
        if len(set(pieces)) == len(pieces):  # nothing to merge, so the fence is not asked
            return [], lambda: lambda: None
        self._fence(own_)

        def change() -> Callable[[], None]:
            file = self.files[file_]
            before, merged = file.rows, dict[int, list[tuple[int, bytes, int]]]()
            file.rows = [row for row in before if not from_ <= row[0] < to_]
            for row in before:
                if from_ <= row[0] < to_:
                    merged.setdefault(row[0] // piece_, []).append(row)
            for rows in merged.values():
                data = b"".join(data for _, data, _ in rows)
                file.rows.append((rows[0][0], data, max(us for _, _, us in rows)))
            file.rows.sort()
            return lambda: setattr(file, "rows", before)

        return [], change

    def _purge(self) -> tuple[list[Row], Change]:
        def change() -> Callable[[], None]:
            limit_us = self._now_us() - postgres.KEPT_S * 1_000_000
            for file_id, file in list(self.files.items()):
                if file.gone_us is not None and file.gone_us < limit_us:
                    del self.files[file_id]
            return lambda: None

        return [], change

    def _set_clean(self, epoch: int) -> tuple[list[Row], Change]:
        def change() -> Callable[[], None]:
            if self.epoch == epoch:
                self.is_clean = True
            return lambda: None

        return [], change

    def _set_server(self, server: str, epoch: int) -> tuple[list[Row], Change]:
        def change() -> Callable[[], None]:
            if self.epoch == epoch:
                self.server = server
            return lambda: None

        return [], change

    def _take(self, server: str) -> tuple[list[Row], Change]:
        row = self.epoch + 1, self.is_clean, self.server

        def change() -> Callable[[], None]:
            self.epoch, self.is_clean, self.server = row[0], False, server
            return lambda: None

        return [row], change


_APPEND, _MAKE = names._CALLS["append"], names._CALLS["make"]
TAKE = "SELECT own, was_clean, last_server FROM journeyman_take(%s)"


class Postgres:
    """See the module."""

    def __init__(self, world: World, chance: random.Random, outside: Loop) -> None:
        self.world = world
        self.chance = chance
        self.outside = outside
        self.tables = Tables(lambda: world.clock.monotonic_ns() // NS_PER_US)
        self.is_full = False
        self.slow = 1.0
        self.commits = 0
        self.confirmed_ns: dict[str, int] = {}  # when a machine was last told its epoch
        self._undo: deque[Callable[[], None]] = deque(maxlen=UNDONE)
        self._process: StrandLoop | None = None
        self._pids = 0
        self.backends: dict[int, Backend] = {}
        self.start()

    def start(self) -> None:
        if self._process is None:
            self._process = StrandLoop(self.world)  # type: ignore[abstract]
            self._holders: dict[int, list[tuple[Backend, bool]]] = {FENCE: [], SCRIPT: []}
            self._lock_waits: deque[Strand] = deque()
            self.owner: Backend | None = None  # of the session lock

    def kill(self) -> None:
        """What was committed stays; what is being committed stays by chance."""
        process, self._process = self._process, None
        if process is None:
            return
        self.world.note("the database is killed")
        process.is_dead = True
        for backend in list(self.backends.values()):
            if backend.committing is not None and self.chance.random() < 0.5:
                self._apply(backend.committing)
            backend.connection.reset("the server closed the connection unexpectedly")
        self.backends.clear()
        process.die()

    def fail_over(self) -> int:
        """A replica that lacks the last commits takes the place of the database: how many."""
        self.kill()
        count = self.chance.randrange(1, UNDONE // 2)
        for _ in range(min(count, len(self._undo))):
            self._undo.pop()()
        self.start()
        return count

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def accept(self, connection: Connection) -> Backend:
        assert self._process is not None
        self._pids += 1
        backend = self.backends[self._pids] = Backend(self, self._process, self._pids, connection)
        return backend

    def forget(self, backend: Backend) -> None:
        self.backends.pop(backend.pid, None)
        if self.owner is backend:
            self.owner = None
        for holders in self._holders.values():
            holders[:] = [each for each in holders if each[0] is not backend]
        self.locks_changed()

    # -- for backends --

    def lock(self, backend: Backend, key: int, *, shared: bool) -> None:
        """Until the end of the transaction."""
        while any(not (shared and is_shared) for _, is_shared in self._holders[key]):
            strand = current_strand()
            self._lock_waits.append(strand)
            strand.pause()
            backend.check_end()
        self._holders[key].append((backend, shared))

    def unlock_all(self, backend: Backend) -> None:
        for holders in self._holders.values():
            holders[:] = [each for each in holders if each[0] is not backend]
        self.locks_changed()

    def locks_changed(self) -> None:
        while self._lock_waits:
            self._lock_waits.popleft().wake()

    def commit(self, backend: Backend, change: Change, *, needs_room: bool = False) -> None:
        if self.is_full and needs_room:
            raise psycopg.errors.DiskFull("could not extend file: No space left on device")
        backend.committing = change
        is_slow = self.chance.random() < 0.02
        takes_s = self.slow * self.chance.random() * (0.2 if is_slow else 0.002)
        end_ns = self.now_ns() + int(takes_s * NS_PER_S)
        while (left_ns := end_ns - self.now_ns()) > 0:
            current_strand().pause(left_ns / NS_PER_S)
        backend.committing = None
        self._apply(change)

    def _apply(self, change: Change) -> None:
        self._undo.append(change())
        self.commits += 1

    def now_ns(self) -> int:
        return self.world.clock.monotonic_ns()


class _Ended(Exception):
    """The backend was asked to end."""


class Backend:
    """See the module."""

    def __init__(
        self, server: Postgres, process: StrandLoop, pid: int, connection: Connection
    ) -> None:
        self.pid = pid
        self.started_ns = self.changed_ns = server.now_ns()
        self.connection = connection
        self.committing: Change | None = None
        self.is_ended = False
        self._server = server
        self._idle_s: float | None = None
        self._requests: deque[tuple[str, Any] | None] = deque()
        self._ending = False
        self._has_ended: list[Strand] = []
        self._strand = start_strand(process, self._run)

    def receive(self, request: tuple[str, Any] | None) -> None:
        """A statement, or None: the client has left."""
        self._requests.append(request)
        self._strand.wake()

    def end(self) -> None:
        """As pg_terminate_backend: soon."""
        self._ending = True
        self._strand.wake()

    def check_end(self) -> None:
        if self._ending:
            raise _Ended

    def _run(self) -> None:
        strand, server = current_strand(), self._server
        try:
            while True:
                self.changed_ns = server.now_ns()
                while not self._requests:
                    is_woken = strand.pause(self._idle_s)
                    self.check_end()
                    if not is_woken and not self._requests:
                        raise _Ended  # idle_session_timeout
                request = self._requests.popleft()
                if request is None:
                    raise _Ended
                self.changed_ns = server.now_ns()
                self.connection.answer(self._answer(*request))
                self.check_end()
        except _Ended:
            self.connection.closed_by_server()
        finally:
            if not strand.loop.is_dead:
                self.is_ended = True
                server.forget(self)
                for waiting in self._has_ended:
                    waiting.wake()

    def _answer(self, statement: str, values: Any) -> list[Row] | psycopg.Error:
        try:
            return self._execute(statement, values)
        except psycopg.Error as error:
            return error
        finally:
            self._server.unlock_all(self)

    def _execute(self, statement: str, values: Any) -> list[Row]:
        server, tables = self._server, self._server.tables
        if statement == database._SESSION:
            return []
        if statement == guard._SESSION:
            self._idle_s = guard.SESSION_S
            return []
        if statement == database.OWN_SESSION:
            return [(self.pid, self.started_ns)]
        if statement == database.END_SESSION:
            return self._end_other(*values)
        if statement.startswith(f"SELECT pg_advisory_xact_lock({SCRIPT})"):
            server.lock(self, SCRIPT, shared=False)
            server.commit(self, partial(_make_tables, tables))
            return []
        if not tables.is_made:
            raise psycopg.errors.UndefinedTable("there are no tables")
        if statement == guard._LOCK:
            if server.owner is None:
                server.owner = self
            return [(server.owner is self,)]
        if statement == guard._UNLOCK:
            server.owner = None if server.owner is self else server.owner
            return [(True,)]
        if statement == guard._SILENCE:
            owner = server.owner
            return [] if owner is None else [((server.now_ns() - owner.changed_ns) / NS_PER_S,)]
        if statement in (guard._EPOCH, TAKE):
            server.confirmed_ns[self.connection.link.name] = server.now_ns()
        if tables.is_change(statement):
            if statement not in (guard._CLEAN, guard._ADVERTISE, postgres._PURGE):
                server.lock(self, FENCE, shared=statement != TAKE)
            needs_room = tables.needs_room(statement, values)
            rows, change = tables.plan(statement, values)
            assert change is not None
            self.check_end()
            server.commit(self, change, needs_room=needs_room)
            return rows
        return tables.plan(statement, values)[0]

    def _end_other(self, pid: int | None, started_ns: int | None) -> list[Row]:
        other = self._server.backends.get(pid or 0)
        if other is None or other.started_ns != started_ns:
            return []
        other.end()
        other._has_ended.append(current_strand())
        if not other.is_ended:
            current_strand().pause(3.0)
            self.check_end()
        return [(other.is_ended,)]


def _make_tables(tables: Tables) -> Callable[[], None]:
    tables.is_made = True
    return lambda: None


class Link:
    """Between one machine and the database."""

    def __init__(self, server: Postgres, name: str, chance: random.Random) -> None:
        self.server = server
        self.name = name
        self.chance = chance
        self.connections: dict[Connection, None] = {}
        self._stalled_from_ns = self._stalled_until_ns = 0
        self._cut_until_ns = 0
        self.when_renaming: Callable[[], None] | None = None  # called once

    def stall(self, seconds: float) -> None:
        """Nothing arrives; connections stay."""
        self._stalled_from_ns = self.server.now_ns()
        self._stalled_until_ns = self._stalled_from_ns + int(seconds * NS_PER_S)

    def reset(self, seconds: float) -> None:
        """All connections are reset; for so long there are no new ones."""
        self._cut_until_ns = self.server.now_ns() + int(seconds * NS_PER_S)
        for connection in list(self.connections):
            connection.reset("connection reset by peer")
            connection.end_backend()

    def heal(self) -> None:
        self._stalled_until_ns = min(self._stalled_until_ns, self.server.now_ns())
        self._cut_until_ns = 0

    def lose_process(self, *, silent: bool) -> None:
        """The process has ended; ``silent``: its machine too, so that nobody says so. Else its
        kernel sends what is left, and that the connections are closed."""
        for connection in list(self.connections):
            if silent:
                connection.reset("the machine has no power")
                self.server.outside.call_later(UNANSWERED_S, connection.end_backend)
            else:
                connection.close()

    @property
    def is_cut(self) -> bool:
        return self.server.now_ns() < self._cut_until_ns

    def stalled_s(self) -> float:
        """How long nothing will arrive."""
        return max(0, self._stalled_until_ns - self.server.now_ns()) / NS_PER_S

    def silent_s(self) -> float:
        """How long nothing has arrived."""
        if not self.stalled_s():
            return 0.0
        return (self.server.now_ns() - self._stalled_from_ns) / NS_PER_S

    def connect(self) -> Connection:
        strand = current_strand()
        strand.pause(self.chance.random() * 0.001)
        if self.stalled_s():
            strand.pause(min(CONNECT_TIMEOUT_S, self.stalled_s()))
        if self.stalled_s():
            raise psycopg.errors.ConnectionTimeout("connection timeout expired")
        if self.is_cut or not self.server.is_running:
            raise _lost("connection failed: Connection refused")
        return Connection(self)


class Cursor:
    description: object

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self.description = rows or None

    def fetchone(self) -> Row | None:
        return self._rows[0] if self._rows else None

    def fetchall(self) -> list[Row]:
        return self._rows


class Connection:
    """The client's end."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.is_broken = False
        self._reason = "the connection is closed"
        self._answers: deque[list[Row] | psycopg.Error] = deque()
        self._reader: Strand | None = None
        self._arrives_ns = [0, 0]  # the last message, at the server, at the client
        self._is_lost = False  # nothing arrives any more
        link.connections[self] = None
        self._backend = link.server.accept(self)

    # -- as psycopg's --

    def execute(
        self, query: str, values: Any = None, *, prepare: Any = None, binary: Any = None
    ) -> Cursor:
        del prepare, binary
        if self.is_broken:
            raise _lost(self._reason)
        if query == names._CALLS["rename"] and self.link.when_renaming is not None:
            call, self.link.when_renaming = self.link.when_renaming, None
            call()
        self._send(0, partial(self._backend.receive, (query, values)))
        strand = self._reader = current_strand()
        while not self._answers and not self.is_broken:
            if self.link.silent_s() >= UNANSWERED_S:
                self.reset("connection timed out")
                break
            strand.pause(1.0 if self.link.stalled_s() else None)
        self._reader = None
        if not self._answers:
            raise _lost(self._reason)
        answer = self._answers.popleft()
        if isinstance(answer, psycopg.Error):
            raise answer
        return Cursor(answer)

    def close(self) -> None:
        if not self.is_broken:
            self.is_broken = True
            self._send(0, partial(self._backend.receive, None))
        self.link.connections.pop(self, None)

    def hang_up(self) -> None:
        """As shutdown of the socket: what was sent may still arrive."""
        if not self.is_broken:
            self._send(0, partial(self._backend.receive, None))
            self.reset("the connection was shut down")

    def fileno(self) -> int:
        return -1

    def add_notice_handler(self, _: Any) -> None:
        """There are no notices."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- between --

    def _send(self, side: int, step: Callable[[], None]) -> None:
        link = self.link
        delay_ns = int(link.chance.random() * 0.0005 * NS_PER_S)
        arrives_ns = max(link.server.now_ns() + delay_ns, self._arrives_ns[side] + 1)
        self._arrives_ns[side] = arrives_ns
        loop = link.server.outside
        loop.call_at(arrives_ns / NS_PER_S, self._arrive, side, step)

    def _arrive(self, side: int, step: Callable[[], None]) -> None:
        if stalled_s := self.link.stalled_s():
            # Messages of one direction stay in order: equal times keep the order of the calls.
            self.link.server.outside.call_later(stalled_s, self._arrive, side, step)
        elif not self._is_lost and (side == 1 or not self._backend.is_ended):
            step()

    def answer(self, answer: list[Row] | psycopg.Error) -> None:
        """From the backend."""
        self._send(1, partial(self._answered, answer))

    def _answered(self, answer: list[Row] | psycopg.Error) -> None:
        if not self.is_broken:
            self._answers.append(answer)
            self._wake()

    def closed_by_server(self) -> None:
        self._send(1, partial(self.reset, "terminating connection"))

    def end_backend(self) -> None:
        self._is_lost = True
        if not self._backend.is_ended:
            self._backend.end()

    def reset(self, reason: str) -> None:
        """The client finds it broken."""
        self.is_broken = True
        self._reason = reason
        self.link.connections.pop(self, None)
        self._wake()

    def _wake(self) -> None:
        if self._reader is not None:
            self._reader.wake()
