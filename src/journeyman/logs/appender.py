"""Appending to a log: many appends, one write, one sync.

    append ---> waiting ---commit---> one write ---> one fdatasync ---> every future resolves
    append ---> (the next ones gather meanwhile)

``append`` only queues; it is safe from any thread. ``commit`` takes everything that waits and is
what makes it durable; CommitThread calls it in the background, tests and servers may call it
themselves. A future resolves when its record is as durable as the SyncPolicy promises; its
callbacks run inside the commit, so they may append but must not commit or close.

    state      append                  commit
    running    queued                  writes
    poisoned   raises LogPoisoned      raises LogPoisoned     for good: a sync failed
    closed     raises LogClosed        raises LogClosed

What can go wrong, and what is true then:

    LogBusy      too much waits already; nothing was queued
    LogFull      no room: the records of this commit that were not yet durable were undone, and
                 the log recovers by itself as soon as a later commit finds room
    LogError     another write error: undone likewise
    LogPoisoned  a sync, or an undo, failed: what is on disk is unknown until recovery looks

A record is never acknowledged and lost, and never refused and kept: an ``append_many`` that fails
is undone as a whole, also across the end of a segment.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import Enum
from typing import NoReturn

from journeyman.clock import Clock
from journeyman.disk import Disk, is_full
from journeyman.errors import LogBusy, LogClosed, LogError, LogFull, LogPoisoned, UsageError
from journeyman.logs.sealing import Sealing
from journeyman.logs.segments import Position, SegmentPlan
from journeyman.logs.tail import LogTail, SyncFailed

# ----------------------------------------
# How durable an append is at the moment it is acknowledged.
#
#     policy         acknowledged after     lost at worst when power fails
#     always         fdatasync              nothing
#     interval(ms)   write                  what was written in the last ``ms`` milliseconds
#     os             write                  what the operating system has not written back yet
#
# Under every policy a segment is synced before the next one is used, and at close. So what a crash
# takes is always from the end of the log, never from its middle.

MAX_INTERVAL_MS = 3_600_000


class SyncMode(Enum):
    """The values are the words used in settings."""

    ALWAYS = "always"
    INTERVAL = "interval"
    OS = "os"


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """One of ``always()``, ``interval(ms)``, ``os()``. ``interval_ms`` is 0 unless interval."""

    mode: SyncMode
    interval_ms: int = 0

    @classmethod
    def always(cls) -> SyncPolicy:
        return cls(SyncMode.ALWAYS)

    @classmethod
    def interval(cls, ms: int) -> SyncPolicy:
        if not 0 < ms <= MAX_INTERVAL_MS:
            raise UsageError(f"sync interval must be 1..{MAX_INTERVAL_MS} ms, not {ms}")
        return cls(SyncMode.INTERVAL, ms)

    @classmethod
    def os(cls) -> SyncPolicy:
        return cls(SyncMode.OS)

    def __str__(self) -> str:
        if self.mode is SyncMode.INTERVAL:
            return f"interval({self.interval_ms} ms)"
        return str(self.mode.value)


MAX_WAITING_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class _Unit:
    """Records that are appended together or not at all, and who waits for them."""

    records: Sequence[bytes]
    tell: Callable[[list[Position]], None]
    fail: Callable[[BaseException], None]
    size: int = 0
    positions: list[Position] = field(default_factory=list)


class Appender:
    """The writing end of one log. One Appender per log; the opener of the log holds its lock."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        plan: SegmentPlan,
        *,
        sync: SyncPolicy | None = None,
        sealing: Sealing | None = None,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        """``sync``: ``always`` by default. ``sealing``: for formats without a checksum.

        No file is touched before the first commit.
        """
        self._policy = sync or SyncPolicy.always()
        self._clock = clock
        self._where = plan.where
        self._max_waiting_bytes = max_waiting_bytes
        self._always = self._policy.mode is SyncMode.ALWAYS
        self._tail = LogTail(disk, clock, plan, sync_headers=self._always, sealing=sealing)
        self._commit_lock = threading.Lock()  # taken before _arrived, never the other way round
        self._sync_due_ns: int | None = None  # interval policy: when the oldest write must sync

        self._arrived = threading.Condition()  # guards what follows
        self._waiting: list[_Unit] = []
        self._waiting_bytes = 0  # queued or being written
        self._closed = False
        self._poison: LogPoisoned | None = None

    @property
    def poisoned(self) -> LogPoisoned | None:
        """Why nothing more can be written, or None."""
        return self._poison

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    def append(self, data: bytes) -> Future[Position]:
        """Queue one record."""
        future: Future[Position] = Future()
        future.set_running_or_notify_cancel()  # a queued record cannot be called back
        self._queue(_Unit((data,), lambda found: future.set_result(found[0]), future.set_exception))
        return future

    def append_many(self, records: Sequence[bytes]) -> Future[list[Position]]:
        """Queue records that stand together, in this order; one future for all of them.

        If it fails, none of them is in the log. (A crash before it resolves may leave the first
        few: only what was acknowledged is promised.)
        """
        future: Future[list[Position]] = Future()
        future.set_running_or_notify_cancel()
        if not records:
            future.set_result([])
            return future
        self._queue(_Unit(tuple(records), future.set_result, future.set_exception))
        return future

    def open(self, path: str | None = None) -> None:
        """Open the active segment now rather than at the first commit; at ``path`` if known.

        Under ``always`` this syncs it, so that what recovery read there is durable as well.
        """
        with self._commit_lock:
            self._refuse_if_over()
            try:
                self._tail.open(path)
            except SyncFailed as error:
                self._give_up(error)
            except OSError as error:
                raise self._worded(error) from error

    def commit(self) -> int:
        """Write all that waits, and sync if the policy says so. How many records were accepted."""
        with self._commit_lock:
            self._refuse_if_over()
            batch = self._take_waiting()
            accepted = self._commit_batch(batch) if batch else 0
            if self._sync_due_ns is not None and self._clock.monotonic_ns() >= self._sync_due_ns:
                self._sync()
            return accepted

    def sync(self) -> None:
        """Make durable what was written, whatever the policy."""
        with self._commit_lock:
            self._refuse_if_over()
            self._sync()

    def end(self) -> Position | None:
        """Where the log ends between two commits; None before its active file was opened."""
        with self._commit_lock:
            return self._tail.end if self._tail.is_open else None

    @property
    def has_begun(self) -> bool:
        """Whether a commit has nothing to sync but what it writes."""
        with self._commit_lock:
            return self._tail.has_begun

    def rotate_to(self, prepare: Callable[[], str]) -> str:
        """Between two commits: sync and close the active file, call ``prepare``, go on elsewhere.

        ``prepare`` runs under the commit lock; it moves files as it likes and returns the path to
        go on with, whose directory is synced afterwards. Records queued before and not yet
        committed go to the new file. What ``prepare`` raises is raised, and the log goes on.
        """
        with self._commit_lock:
            self._refuse_if_over()
            try:
                return self._tail.switch(prepare)
            except SyncFailed as error:
                self._give_up(error)
            finally:
                self._note_unsynced()

    def close(self) -> None:
        """Commit what waits, sync and close. Closing twice, or after poison, does nothing more."""
        with self._commit_lock:
            if self._closed:
                return
            with self._arrived:
                self._closed = True
                self._arrived.notify_all()
            if self._poison is None:
                if batch := self._take_waiting():
                    self._commit_batch(batch)
                try:
                    self._tail.close()
                except SyncFailed as error:
                    self._give_up(error)

    def wait_for_work(self) -> bool:
        """Wait until ``commit`` has something to do; False when there never will be again."""
        with self._arrived:
            while not self._waiting and not self._closed and self._poison is None:
                due = self._sync_due_ns
                left_s = None if due is None else (due - self._clock.monotonic_ns()) / 1e9
                if left_s is not None and left_s <= 0:
                    return True
                self._arrived.wait(left_s)
            return not self._closed and self._poison is None

    # --- queueing: any thread ---

    def _queue(self, unit: _Unit) -> None:
        if not all(unit.records):
            raise ValueError("an empty record cannot be told from none")
        unit.size = sum(map(len, unit.records))
        with self._arrived:
            self._refuse_if_over()
            # With nothing waiting anything is taken, or a large record could never be written.
            if self._waiting_bytes and self._waiting_bytes + unit.size > self._max_waiting_bytes:
                reason = f"{self._waiting_bytes} bytes wait to be written already"
                raise LogBusy(self._where, reason)
            self._waiting_bytes += unit.size
            self._waiting.append(unit)
            if len(self._waiting) == 1:
                self._arrived.notify_all()

    def _refuse_if_over(self) -> None:
        if self._poison is not None:
            raise LogPoisoned(self._poison.path, self._poison.reason)
        if self._closed:
            raise LogClosed(self._where, "the log is closed")

    # --- writing: under the commit lock ---

    def _take_waiting(self) -> list[_Unit]:
        with self._arrived:
            batch, self._waiting = self._waiting, []
        return batch

    def _commit_batch(self, batch: list[_Unit]) -> int:
        durable = 0  # batch[:durable] are accepted and acknowledged
        tail = self._tail
        try:
            tail.open()
            tail.begin_batch()
            for number, unit in enumerate(batch):
                if tail.must_rotate(unit.size):
                    tail.end_block()  # so that what stands before this unit can stay without it
                begin = tail.end
                for record in unit.records:
                    if tail.must_rotate(len(record)):
                        tail.flush(closing=True)
                        tail.sync()
                        if durable < number:
                            tail.keep(begin)
                            durable = self._accept(batch, durable, number)
                        tail.rotate()
                    unit.positions.append(tail.add(record))
            tail.flush()
            if self._always:
                tail.sync()
            tail.keep()
        except SyncFailed as error:
            self._give_up(error, batch[durable:])
        except (OSError, LogError) as error:
            self._take_back(batch[durable:], error)
        except BaseException as error:
            # Interrupted in the middle of a write: how far it got is unknown.
            poison = LogPoisoned(self._where, f"a commit was broken off by {error!r}")
            self._poison_all(poison, batch[durable:])
            raise
        else:
            durable = self._accept(batch, durable, len(batch))
        self._note_unsynced()
        return sum(len(unit.records) for unit in batch[:durable])

    def _accept(self, batch: list[_Unit], begin: int, end: int) -> int:
        units = batch[begin:end]
        self._release(units)
        for unit in units:
            unit.tell(unit.positions)
        return end

    def _take_back(self, units: list[_Unit], error: OSError | LogError) -> None:
        try:
            if self._tail.is_open:
                self._tail.undo()
        except SyncFailed as failure:
            self._give_up(failure, units)
        self._release(units)
        for unit in units:
            unit.fail(self._worded(error))

    def _worded(self, error: OSError | LogError) -> LogError:
        if isinstance(error, LogError):
            return error
        if is_full(error):
            return LogFull(self._where, "no room on the disk; the append was undone")
        return LogError(
            self._where, f"write failed, the append was undone: {error.strerror or error}"
        )

    def _sync(self) -> None:
        try:
            self._tail.sync()
        except SyncFailed as error:
            self._give_up(error)
        self._sync_due_ns = None

    def _note_unsynced(self) -> None:
        if self._policy.mode is not SyncMode.INTERVAL or not self._tail.unsynced:
            return
        with self._arrived:
            if self._sync_due_ns is None:
                interval_ns = self._policy.interval_ms * 1_000_000
                self._sync_due_ns = self._clock.monotonic_ns() + interval_ns
                self._arrived.notify_all()  # a waiting thread now has a time to wait for

    def _release(self, units: Sequence[_Unit]) -> None:
        with self._arrived:
            self._waiting_bytes -= sum(unit.size for unit in units)

    def _give_up(self, error: SyncFailed, units: Sequence[_Unit] = ()) -> NoReturn:
        poison = LogPoisoned(error.path, str(error))
        self._poison_all(poison, units)
        raise poison from error

    def _poison_all(self, poison: LogPoisoned, units: Sequence[_Unit]) -> None:
        with self._arrived:
            self._poison = poison
            waiting, self._waiting = self._waiting, []
            self._waiting_bytes = 0
            self._arrived.notify_all()
        self._tail.abandon()
        for unit in (*units, *waiting):
            unit.fail(LogPoisoned(poison.path, poison.reason))


class CommitThread:
    """Commits in the background whenever something waits or an interval sync is due."""

    def __init__(self, appender: Appender) -> None:
        self._appender = appender
        self._thread = threading.Thread(target=self._run, name="journeyman-commit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the appender (what waits is still written) and end the thread."""
        try:
            self._appender.close()
        finally:
            self._thread.join()

    def _run(self) -> None:
        while self._appender.wait_for_work():
            try:
                self._appender.commit()
            except (LogPoisoned, LogClosed):
                return  # all waiting futures have failed; ``Appender.poisoned`` says why
