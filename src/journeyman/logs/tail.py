"""The tail of a log: the active segment, and the only code that writes, syncs, rotates and cuts.

    segment 1            segment 2 (active)
    [header][records...] [header][kept records][written, not kept][gathered in memory]
                                               ^ kept              ^ size            ^ end

``add`` gathers records, ``flush`` writes them in one write, ``sync`` makes them durable, ``keep``
declares that they stay. Until then ``undo`` takes them back, also out of segments left meanwhile.

A sealed log (``sealing``) has a seal after every block of records, written together with it; before
the first one an opening seal is made durable, and ``close`` writes the closing one.

Invariants:
- a segment is synced before the next one is begun, so a crash only loses records from the end;
- a segment's header and its directory entry are durable before a record in it is (``always``);
- what ``undo`` removed stays removed: the cut is synced.

Not thread-safe; the appender holds its commit lock. Writing may fail with OSError, which ``undo``
repairs; a failed sync is SyncFailed, which is final: the kernel may have dropped the data and
marked them clean, so a second sync would succeed without meaning anything.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import suppress

from journeyman.clock import Clock
from journeyman.disk import AppendFile, Disk, is_out_of_files
from journeyman.errors import LogError
from journeyman.formats.seals import stamp_of
from journeyman.logs.sealing import Sealer, Sealing, last_seal
from journeyman.logs.segments import Position, SegmentPlan


class SyncFailed(Exception):
    """A sync (or a cut that had to succeed) failed: what is on disk is unknown from here on."""

    def __init__(self, path: str, doing: str, error: OSError) -> None:
        super().__init__(f"{doing} failed: {error.strerror or error}")
        self.path = path


class LogTail:
    """The active segment of one log."""

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
        self._sealer: Sealer | None = None  # of the active file
        self._plan = plan
        self._sync_headers = sync_headers
        self._file: AppendFile | None = None
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
        """Whether records may follow at once: see ``begin_batch``."""
        return self.is_open and (self._sealer is None or self._sealer.has_begun)

    @property
    def end(self) -> Position:
        """Where the next record goes, provided it does not rotate."""
        return Position(self._active().path, self._size + self._gathered_bytes)

    def open(self, path: str | None = None) -> None:
        """Open the segment to go on with; made with its header if it is missing or empty.

        ``path`` is for callers that already know what the plan would find.
        """
        if self._file is None:
            self._file = self._begin(path or self._plan.first_path())
            self._kept = [self.end]

    def must_rotate(self, incoming: int) -> bool:
        if self._sealer is None:
            return self._plan.must_rotate(self._size + self._gathered_bytes, incoming)
        size = self._size + self._gathered_bytes if self._has_records else len(self._plan.header)
        return self._plan.must_rotate(size, incoming + self._sealer.reserve(incoming))

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
        self._gather(record)
        self._has_records = True
        sealer = self._sealer
        if sealer is None:
            return Position(path, offset)
        sealer.add(record, offset)
        position = Position(path, offset, sealer.block_begin)
        if sealer.is_block_full:
            self.end_block()
        return position

    def end_block(self) -> None:
        """Let the next record begin a block of its own."""
        if self._sealer is not None and (seal := self._sealer.end_block()):
            self._gather(seal)

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

    def keep(self, up_to: Position | None = None) -> None:
        """What stands before ``up_to`` (a place in the active file; all of it if None) stays."""
        self._kept = [up_to or self.end]

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
            try:
                file = self._active() if active else self._disk.open_append(place.path)
                file.truncate(place.offset)
            except OSError as error:
                raise SyncFailed(place.path, "cutting back a failed append", error) from error
            self._sync(file)
            if active:
                self._size = place.offset
                self.unsynced = False
            else:
                file.close()
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
            self._write_last_seal()
            self.sync()
            self._file.close()
            self._file = None

    def _write_last_seal(self) -> None:
        """Without it the log is whole as well; it only looks as if the server had been killed."""
        last = b"" if self._sealer is None else self._sealer.last(self._size)
        if not last:
            return
        file = self._active()
        self.unsynced = True
        try:
            file.write(last)
        except OSError:
            with suppress(OSError):  # what is left of it is cut off by the next start
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
        except OSError as error:
            raise SyncFailed(file.path, "sync", error) from error
