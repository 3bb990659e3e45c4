"""The tail of a log: the active segment, and the only hands that write, sync, rotate and cut.

    segment 1            segment 2 (active)
    [header][records...] [header][kept records][written, not kept][gathered in memory]
                                               ^ kept              ^ size            ^ end

``add`` gathers records, ``flush`` writes them in one write, ``sync`` makes them durable, ``keep``
declares that they stay. Until then ``undo`` takes them back, also out of segments left meanwhile.

Invariants:
- a segment is synced before the next one is begun, so a crash only ever takes from the end;
- a segment's header and its directory entry are durable before a record in it is (``always``);
- what ``undo`` took back stays away: the cut is synced.

Not thread-safe; the appender holds its commit lock. Writing may fail with OSError, which ``undo``
heals; a failed sync is SyncFailed, which nothing heals: the kernel may have dropped the data and
marked them clean, so asking again would only get a yes that means nothing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from contextlib import suppress

from journeyman.disk import AppendFile, Disk, is_out_of_files
from journeyman.errors import LogError
from journeyman.logs.segments import Position, SegmentPlan

__all__ = ["LogTail", "SyncFailed"]


class SyncFailed(Exception):
    """A sync (or a cut that had to succeed) failed: what is on disk is unknown from here on."""

    def __init__(self, path: str, doing: str, error: OSError) -> None:
        super().__init__(f"{doing} failed: {error.strerror or error}")
        self.path = path


class LogTail:
    """The active segment of one log."""

    def __init__(self, disk: Disk, plan: SegmentPlan, *, sync_headers: bool) -> None:
        """``sync_headers``: a new segment's header is durable before records follow."""
        self._disk = disk
        self._plan = plan
        self._sync_headers = sync_headers
        self._file: AppendFile | None = None
        self._size = 0  # bytes in the active file
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        # Where the part begins that undo takes back: one place in each segment it touches.
        self._kept: list[Position] = []
        self.unsynced = False  # something was written since the last sync

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def end(self) -> Position:
        """Where the next record goes, provided it does not rotate."""
        return Position(self._active().path, self._size + self._gathered_bytes)

    def open(self, path: str | None = None) -> None:
        """Open the segment to go on with; made with its header if it is missing or empty.

        ``path`` is for whoever knows already what the plan would find.
        """
        if self._file is None:
            self._file = self._begin(path or self._plan.first_path())
            self._kept = [self.end]

    def must_rotate(self, incoming: int) -> bool:
        return self._plan.must_rotate(self._size + self._gathered_bytes, incoming)

    def add(self, record: bytes) -> Position:
        """Gather a record for the next ``flush``."""
        position = Position(self._active().path, self._size + self._gathered_bytes)
        self._gathered.append(record)
        self._gathered_bytes += len(record)
        return position

    def flush(self) -> None:
        """Write what was gathered, in one write."""
        if not self._gathered:
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
        assert not self._gathered
        assert not self.unsynced
        # Should this fail, the old segment stays the active one and the next append tries again.
        self._file = self._begin(self._plan.next_path(old.path))
        old.close()
        self._kept.append(self.end)

    def undo(self) -> None:
        """Take back everything since ``keep``, for good. Raises SyncFailed if that fails."""
        self._gathered.clear()
        self._gathered_bytes = 0
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
        """Sync and close the active file."""
        if self._file is not None:
            self.sync()
            self._file.close()
            self._file = None

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
        self.unsynced = not self._sync_headers
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
