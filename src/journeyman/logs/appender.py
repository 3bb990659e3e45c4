"""Appending to a log: the records of a batch in one write and one sync.

    append(records) --> gathered --one write--> file --one fdatasync--> where each record stands

    segment 1            segment 2 (active)
    [header][records...] [header][kept records][written, not kept][gathered in memory]
                                               ^ kept              ^ size            ^ end

When ``append`` returns, the records are as durable as the SyncPolicy promises:

    always   after fdatasync    nothing is lost when power fails
    os       after the write    lost at worst: what the operating system has not written back yet

For something between the two, call ``sync`` from time to time. Under either policy a
segment is synced before the next one is begun, and at close: a crash only ever takes from the end.

    state      append, open, sync, rotate_to
    running    work
    poisoned   raise LogPoisoned     for good: a sync failed
    closed     raise LogClosed

What can go wrong, and what then is true:

    LogFull      no room: the append was taken back whole, also where it ran over the end of a
                 segment; the log goes on by itself as soon as a later append finds room
    LogError     another write error: taken back just the same
    LogPoisoned  a sync, or taking back, failed: what is on disk is unknown until recovery looks

A failed sync is final because asking again would mean nothing: the kernel may have dropped the data
and marked them clean. A record is never acknowledged and lost, and never refused and kept.

A sealed log (``sealing``) has a seal before every block of records, written together with it.
Before the first one an opening seal is made durable, and ``close`` writes the closing one.

Appender is what others use, safe from any thread. LogTail holds the active file: the only hands
that write, sync, rotate and cut. Sealer knows which seal has to be written next.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import NoReturn

from journeyman.clock import Clock
from journeyman.disk import AppendFile, Disk, NotWritten, is_full, is_out_of_files
from journeyman.errors import JourneymanError, LogClosed, LogError, LogFull, LogPoisoned
from journeyman.formats.seals import CUT_BYTES, stamp_of
from journeyman.logs.sealer import Sealer, in_blocks
from journeyman.logs.sealing import Sealing, last_seal
from journeyman.logs.segments import Position, SegmentPlan


class SyncPolicy(Enum):
    """How durable an append is when it returns."""

    ALWAYS = "always"
    OS = "os"

    def __str__(self) -> str:
        return str(self.value)


class Appender:
    """The writing end of one log. One Appender per log; its opener holds the lock."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        plan: SegmentPlan,
        *,
        sync: SyncPolicy = SyncPolicy.ALWAYS,
        sealing: Sealing | None = None,
    ) -> None:
        """``sealing``: for formats without a checksum. No file is touched before it is needed."""
        self._where = plan.where
        self._always = sync is SyncPolicy.ALWAYS
        self._tail = LogTail(disk, clock, plan, sync_headers=self._always, sealing=sealing)
        self._lock = threading.RLock()
        self._closed = False
        self.poisoned: LogPoisoned | None = None  # why nothing more can be written

    def append(
        self,
        records: Sequence[bytes],
        *,
        sync: bool | None = None,
        then: Callable[[], None] | None = None,
    ) -> list[Position]:
        """Write records that stand together, in this order; where each of them stands.

        If it fails, none of them is in the log. (A crash before it returns may leave the first
        few: only what was acknowledged is promised.) ``sync``: instead of the policy. ``then``
        is called when they are written and synced; if it fails, they are taken back as well.
        """
        if not all(records):
            raise ValueError("an empty record cannot be distinguished from none")
        with self._lock:
            self._refuse_if_over()
            if not records:
                return []
            tail, positions = self._tail, []
            try:
                tail.open()
                tail.begin_batch()
                for record in records:
                    if tail.must_rotate(len(record)):
                        tail.flush(closing=True)
                        tail.sync()
                        tail.rotate()
                    positions.append(tail.add(record))
                tail.flush()
                if self._always if sync is None else sync:
                    tail.sync()
                if then is not None:
                    then()
                tail.keep()
            except SyncFailed as error:
                self._give_up(error)
            except (OSError, JourneymanError) as error:
                self._take_back(error)
            except BaseException as error:
                # Cut off in the middle of a write: how far it got is unknown.
                self._poison(LogPoisoned(self._where, f"an append was broken off by {error!r}"))
                raise
            return positions

    def in_blocks(self, records: Sequence[bytes]) -> list[list[bytes]]:
        """Records together that make up about a block each, in their order.

        Each list may be appended as if it were one record, by the thread that asks.
        """
        if len(records) == 1:
            return [list(records)]
        with self._lock:
            offset, seal_bytes = self._tail.next_place()
        return in_blocks(records, offset, seal_bytes)

    def try_lock(self) -> bool:
        """Keep other threads out until ``unlock``; False: one is in, and may be waiting for the
        disk. For a thread that must not wait for another's writes."""
        return self._lock.acquire(blocking=False)

    def unlock(self) -> None:
        self._lock.release()

    def is_busy(self) -> bool:
        """Return whether another thread is in now."""
        if not self.try_lock():
            return True
        self.unlock()
        return False

    def open(self, path: str | None = None) -> None:
        """Open the active segment now rather than at the first append; at ``path`` if known.

        Under ``always`` this syncs it, so that what recovery read there is durable as well.
        """
        with self._lock:
            self._refuse_if_over()
            try:
                self._tail.open(path)
            except SyncFailed as error:
                self._give_up(error)
            except OSError as error:
                raise self._worded(error) from error

    def sync(self) -> None:
        """Make durable what was written, whatever the policy. LogPoisoned: it never will be; any
        other LogError: it is not yet, and the next sync may succeed."""
        with self._lock:
            self._refuse_if_over()
            try:
                self._tail.sync()
            except SyncFailed as error:
                self._give_up(error)
            except NotWritten as error:
                reason = error.strerror or str(error)
                raise LogError(self._where, f"not synced yet: {reason}") from error

    def end(self) -> Position | None:
        """Where the log ends between two appends; None before its active file was opened."""
        with self._lock:
            return self._tail.end if self._tail.is_open else None

    def observe(self, see: Callable[[Position, int], None]) -> None:
        """Call ``see`` between two appends, with where the log ends and the number of its file.

        The number counts the files that were opened; before the first one nothing is called.
        """
        with self._lock:
            if self._tail.is_open:
                see(self._tail.end, self._tail.files)

    @property
    def has_begun(self) -> bool:
        """Return whether an append has nothing to sync but what it writes."""
        with self._lock:
            return self._tail.has_begun

    def rotate_to(self, prepare: Callable[[], str]) -> str:
        """Between two appends: sync and close the active file, call ``prepare``, go on elsewhere.

        ``prepare`` runs under the lock; it moves files as it likes and returns the path to go on
        with, whose directory is synced afterwards. What it raises is raised, and the log goes on.
        """
        with self._lock:
            self._refuse_if_over()
            try:
                return self._tail.switch(prepare)
            except SyncFailed as error:
                self._give_up(error)

    def close(self) -> None:
        """Sync and close. Closing twice, or after poison, does nothing more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self.poisoned is None:
                try:
                    self._tail.close()
                except SyncFailed as error:
                    self._give_up(error)
                except NotWritten as error:  # nothing will try again
                    self._give_up(SyncFailed(self._where, "sync", error))

    def _refuse_if_over(self) -> None:
        if self.poisoned is not None:
            raise LogPoisoned(self.poisoned.path, self.poisoned.reason)
        if self._closed:
            raise LogClosed(self._where, "the log is closed")

    def _take_back(self, error: OSError | JourneymanError) -> NoReturn:
        try:
            if self._tail.is_open:
                self._tail.undo()
        except SyncFailed as failure:
            self._give_up(failure)
        raise self._worded(error) from error

    def _worded(self, error: OSError | JourneymanError) -> JourneymanError:
        if isinstance(error, JourneymanError):
            return error
        if is_full(error):
            return LogFull(self._where, "the disk is full; the append was undone")
        return LogError(
            self._where, f"write failed, the append was undone: {error.strerror or error}"
        )

    def _give_up(self, error: SyncFailed) -> NoReturn:
        self._poison(LogPoisoned(error.path, str(error)))
        assert self.poisoned is not None
        raise self.poisoned from error

    def _poison(self, poison: LogPoisoned) -> None:
        self.poisoned = poison
        self._tail.abandon()


class SyncFailed(Exception):
    """A sync (or a cut that had to succeed) failed: what is on disk is unknown from here on."""

    def __init__(self, path: str, doing: str, error: OSError) -> None:
        super().__init__(f"{doing} failed: {error.strerror or error}")
        self.path = path


class LogTail:
    """The active segment of one log. Not thread-safe: the appender holds its lock.

    ``add`` gathers records, ``flush`` writes them in one write, ``sync`` makes them durable,
    ``keep`` declares that they stay. Until then ``undo`` takes them back, also out of segments left
    meanwhile, and what it took back stays away: the cut is synced. A segment's header and its
    directory entry are durable before a record in it is (``always``).
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        plan: SegmentPlan,
        *,
        sync_headers: bool,
        sealing: Sealing | None = None,
    ) -> None:
        """``sync_headers``: a new segment's header is durable before records follow."""
        self._disk = disk
        self._clock = clock
        self._sealing = sealing
        self._sealer: Sealer | None = None  # the sealer of the active file
        self._plan = plan
        self._sync_headers = sync_headers
        self._file: AppendFile | None = None
        self.files = 0  # how many were opened
        self._size = 0  # bytes in the active file
        self._has_records = False  # something but its header and an opening seal is in it
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        # Where the part begins that undo takes back: one place in each segment it touches.
        self._kept: list[Position] = []
        self.unsynced = False  # something was written since the last sync

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def has_begun(self) -> bool:
        """Return whether records may follow at once: see ``begin_batch``."""
        return self.is_open and (self._sealer is None or self._sealer.has_begun)

    @property
    def end(self) -> Position:
        """Where the next record goes, provided it does not rotate."""
        return Position(self._active().path, self._size + self._gathered_bytes)

    def next_place(self) -> tuple[int, int]:
        """Where the first record of the next batch will stand, and the size of a seal."""
        if self._sealer is None or not self.is_open:
            return 1, 0
        seals = 1 if self._sealer.is_open else 2
        return self.end.offset + seals * self._sealer.seal_bytes, self._sealer.seal_bytes

    def open(self, path: str | None = None) -> None:
        """Open the segment to go on with; made with its header if it is missing or empty.

        ``path``: what the plan would find, if that is known already.
        """
        if self._file is None:
            self._file = self._begin(path or self._plan.first_path())
            self._kept = [self.end]

    def must_rotate(self, incoming: int) -> bool:
        size = self._size + self._gathered_bytes
        coming = incoming if self._sealer is None else incoming + self._sealer.reserve(incoming)
        if size + coming < self._plan.segment_bytes:  # nearly always
            return False
        if self._sealer is not None and not self._has_records:
            size = len(self._plan.header)
        return self._plan.must_rotate(size, coming)

    def begin_batch(self) -> None:
        """Records follow: what has to stand before the first one is written and synced."""
        first = b"" if self._sealer is None else self._sealer.first(self._size)
        if self._sealer is None or not first:
            return
        file = self._active()
        self.unsynced = True
        file.write(first)
        self._sync(file)
        self.unsynced = False
        self._size += len(first)
        self._sealer.switched()
        if self._kept:
            self._kept[-1] = self.end

    def add(self, record: bytes) -> Position:
        """Gather a record for the next ``flush``."""
        path, offset = self._active().path, self._size + self._gathered_bytes
        self._has_records = True
        sealer = self._sealer
        if sealer is None or not sealer.is_open:
            self._gather(record)
            return Position(path, offset)
        if not offset % CUT_BYTES and sealer.block_begin is not None:
            # A write may be cut here, and must not be cut between two records of a block.
            self.end_block()
        if sealer.block_begin is None:
            sealer.begin_block(offset)
            self._gathered_bytes += sealer.seal_bytes
            offset += sealer.seal_bytes
        sealer.add(record)
        self._gathered_bytes += len(record)
        position = Position(path, offset, sealer.block_begin)
        if sealer.is_block_full:
            self.end_block()
        return position

    def end_block(self) -> None:
        """Let the next record begin a block of its own."""
        if self._sealer is not None:
            self._gathered += self._sealer.end_block()

    def _gather(self, data: bytes) -> None:
        self._gathered.append(data)
        self._gathered_bytes += len(data)

    def flush(self, *, closing: bool = False) -> None:
        """Write what was gathered, in one write. ``closing``: it is the last of this segment."""
        self.end_block()
        if closing and self._sealer is not None:
            self._gather(self._sealer.last(self._size + self._gathered_bytes))
            self._sealer.is_open = False
        if not self._gathered_bytes:
            return
        file = self._active()
        data = b"".join(self._gathered) if len(self._gathered) > 1 else self._gathered[0]
        self.unsynced = True
        file.write(data)
        self._size += len(data)
        self._gathered.clear()
        self._gathered_bytes = 0

    def sync(self) -> None:
        if self._file is not None and self.unsynced:
            self._sync(self._file)
            self.unsynced = False

    def keep(self) -> None:
        """Give up the way back: nothing written so far can be undone any more."""
        self._kept = [self.end]

    def rotate(self) -> None:
        """Leave the active segment, already flushed and synced, for the next one."""
        old = self._active()
        assert not self._gathered_bytes
        assert not self.unsynced
        # Should this fail, the old segment stays the active one and the next append tries again.
        self._file = self._begin(self._plan.next_path(old.path))
        old.close()
        self._kept.append(self.end)
        self.begin_batch()

    def undo(self) -> None:
        """Take back everything since ``keep``, for good. Raises SyncFailed if that fails."""
        self._gathered.clear()
        self._gathered_bytes = 0
        if self._sealer is not None:
            self._sealer.forget_block()
        for place in self._kept:
            active = self._file is not None and self._file.path == place.path
            is_synced = False
            try:
                file = self._active() if active else self._disk.open_append(place.path)
                file.truncate(place.offset)
                with suppress(NotWritten):  # the cut is done; what is older waits for a sync
                    self._sync(file)
                    is_synced = True
                if not active:
                    with suppress(NotWritten):
                        file.close()
            except OSError as error:
                raise SyncFailed(place.path, "cutting back a failed append", error) from error
            if active:
                self._size = place.offset
                self.unsynced = not is_synced
        self._kept = self._kept[-1:]

    def switch(self, prepare: Callable[[], str]) -> str:
        """Sync and close the active file, let ``prepare`` move things, go on in what it names.

        Should ``prepare`` or the new file fail, the plan's first path is opened again when next
        needed; that is right whether or not the move had happened.
        """
        self.close()
        path = prepare()
        self._file = self._begin(path)
        self._kept = [self.end]
        return path

    def close(self) -> None:
        """Sync and close the active file, sealed at its end."""
        if self._file is not None:
            size, unsynced = self._size, self.unsynced
            self._write_last_seal()
            try:
                self.sync()
            except NotWritten:
                if unsynced:
                    raise
                self._file.truncate(size)  # a full disk has no room for the last seal
            self._file.close()
            self._file = None

    def _write_last_seal(self) -> None:
        """Close the log with a seal. Without it the log is whole as well; it only looks as if the
        server had been killed."""
        last = b"" if self._sealer is None else self._sealer.last(self._size)
        if not last:
            return
        file = self._active()
        self.unsynced = True
        try:
            file.write(last)
        except OSError:
            with suppress(OSError):  # the next start cuts off the rest
                file.truncate(self._size)
            return
        self._size += len(last)

    def abandon(self) -> None:
        """Close without a sync: nothing that a sync says would be true any more."""
        if self._file is not None:
            with suppress(OSError):  # nothing left to lose: the log is already given up
                self._file.close()
            self._file = None

    def _active(self) -> AppendFile:
        assert self._file is not None, "open() comes first"
        return self._file

    def _begin(self, path: str) -> AppendFile:
        """Open a segment ready for records: header written, directory entry durable."""
        existed = self._disk.exists(path)
        file = self._disk.open_append(path)
        try:
            size = file.size() or self._write_header(file, existed)
            if size < len(self._plan.header):
                raise LogError(path, "the header is cut short; recover the log first")
            if self._sync_headers:
                self._sync(file)
            self._sync_directory(path)
        except BaseException:
            file.close()
            raise
        self.files += 1
        self._size = size
        self._has_records = size > len(self._plan.header)
        self.unsynced = not self._sync_headers
        if self._sealing is not None:
            last = last_seal(self._disk, self._sealing.format, path, size)
            self._sealer = Sealer(self._sealing, stamp_of(self._clock.now_ns(), path), last)
        return file

    def _write_header(self, file: AppendFile, existed: bool) -> int:
        """A segment whose header did not fit is removed: the originals refuse to start on it."""
        header = self._plan.header
        if header:
            try:
                file.write(header)
            except OSError as error:
                try:
                    file.truncate(0)
                    if not existed:
                        self._disk.remove(file.path)
                except OSError:
                    raise SyncFailed(file.path, "writing a segment header", error) from error
                raise
        return len(header)

    def _sync_directory(self, path: str) -> None:
        directory = posixpath.dirname(path) or "."
        try:
            self._disk.sync_dir(directory)
        except OSError as error:
            if is_out_of_files(error):
                raise  # the directory could not even be opened: nothing was asked of the disk
            raise SyncFailed(directory, "sync of the directory", error) from error

    @staticmethod
    def _sync(file: AppendFile) -> None:
        try:
            file.sync()
        except NotWritten:
            raise  # as if the write had failed: it can be taken back
        except OSError as error:
            raise SyncFailed(file.path, "sync", error) from error
