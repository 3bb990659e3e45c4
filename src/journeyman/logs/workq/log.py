"""A workq command log on disk: a directory of numbered segments.

    <dir>/000000001.log      read-only ─┐  in order of their numbers; gaps are fine
    <dir>/000000003.log      active    ─┘  the highest number: records are appended here
    <dir>/000000001.log.rw   a segment being rewritten by cleaning; litter after a crash
    <dir>/append.lock        exclusive for as long as the log is open for writing
    <dir>/read.lock          exclusive while recovering or cleaning, shared otherwise

A segment is left once it has reached its size, and never appended to again. Cleaning (see
cleaning.py) rewrites or removes read-only segments while appends continue.

The locks are those of the original, so that the two never write one log at the same time. It takes
append.lock last, after its cleaner has run for a second on files that are not its own; here it is
taken first. And read.lock stays shared for life where the original lets it go after replay: its
cleaner needs it exclusively, and so never touches a log that is open here.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from journeyman.clock import Clock
from journeyman.disk import Disk, Lock
from journeyman.errors import FormatError, LogClosed, LogLocked
from journeyman.folds.workq import is_retried, retry_of
from journeyman.formats.framing import Entry
from journeyman.formats.timed_frame import CRC_BYTES
from journeyman.formats.workq import CODEC, HEADER, HIDDEN_TAIL, Record
from journeyman.logs import segments as segment_names
from journeyman.logs.appender import Appender, SyncPolicy
from journeyman.logs.holders import Holders, ask
from journeyman.logs.publication import finish, journal_path
from journeyman.logs.recovery import RecoveryReport, recover_entries
from journeyman.logs.workq.cleaning import REWRITE_SUFFIX, Cleaner, CleanReport, read_segment

DEFAULT_SEGMENT_BYTES = 64 * 1024 * 1024
LOCK_TIMEOUT_S = 1.0
_LAST_BYTES = 4096  # the end of a log, in which its last record is looked for


class WorkqLog:
    """A workq log open for writing. Made by ``open``; appends are safe from any thread."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        locks: _Locks,
        appender: Appender,
        report: RecoveryReport,
        holders: Holders | None = None,
    ) -> None:
        self._holders = holders
        self._disk = disk
        self._directory = directory
        self._locks = locks
        self._cleaner = Cleaner(disk)
        self._cleaning = threading.Lock()
        self._closed = False
        self.appender = appender
        self.recovery = report

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        *,
        sync: SyncPolicy = SyncPolicy.ALWAYS,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        on_record: Callable[[Record], object] | None = None,
        in_bulk: Callable[[list[str]], RecoveryReport | None] | None = None,
        holders: Holders | None = None,
    ) -> WorkqLog:
        """Lock, recover and open a log; its directory is made if it is missing.

        ``holders`` say what cleaning has to leave for now. ``on_record`` is given every
        record in log order, so that a start reads the log only once. ``in_bulk`` may do so
        faster: it is given the segments in log order, and answers None if it cannot read
        all of them to their last byte; then they are recovered as usual. Raises LogLocked
        when another process has the log.
        """
        disk.make_dirs(directory)
        locks = _Locks(disk, directory)
        try:
            finish(disk, journal_path(directory))
            segments = _take_stock(disk, directory)
            report = None
            if in_bulk is not None and not _may_end_in_a_hidden_fail(disk, segments):
                report = in_bulk(segments)
            last: list[Record] = []
            if report is None:
                report = _recover(disk, segments, on_record, last)
            plan = segment_names.NumberedPlan(disk, directory, HEADER, segment_bytes)
            appender = Appender(disk, clock, plan, sync=sync)
            appender.open()
            _finish_retry(appender, last, on_record)
            locks.share_reading()
        except BaseException:
            locks.release()
            raise
        return cls(disk, directory, locks, appender, report, holders)

    def entries(self) -> Iterator[Entry[Record]]:
        """Every record in log order, as of the first one; offsets are those in its segment."""
        lock = _lock_reading(self._disk, self._directory, shared=True)
        try:
            end = self.appender.end()
            for path in segment_names.workq_files(self._disk, self._directory):
                at_end = end is not None and path == end.path
                yield from read_segment(self._disk, path, end.offset if end and at_end else None)
                if at_end:
                    break  # a segment begun since is younger than this call
        finally:
            lock.release()

    def append(self, records: Iterable[Record]) -> list[segment_names.Position]:
        """Write records that stand together; see Appender for what is true when this returns."""
        return self.appender.append([CODEC.encode(record) for record in records])

    def clean(self, as_of_ns: int, *, thorough: bool = False) -> CleanReport:
        """Drop what no longer matters from read-only segments that are due; see workq_cleaning.

        ``thorough``: from every one of them, due or not. Raises LogLocked when another process
        reads the log for longer than a second; then nothing was done.
        """
        with self._cleaning:
            if self._closed:
                raise LogClosed(self._directory, "the log is closed")
            self.appender.open()
            end = self.appender.end()
            assert end is not None  # just opened, and only close() closes it
            segments = segment_names.workq_files(self._disk, self._directory)
            read_only = segments[: segments.index(end.path)]
            free = ask(self._holders, self._directory, "", read_only)
            may_go = read_only[: free.count]
            if not may_go or (not thorough and not self._cleaner.is_due(may_go, as_of_ns)):
                return CleanReport()
            # Nothing is dropped for the sake of a record that a crash could still take back.
            self.appender.sync()
            self._locks.lock_reading()
            try:
                report = self._cleaner.clean(
                    read_only, end, as_of_ns, thorough=thorough, first=free.count
                )
            finally:
                self._locks.share_reading()
            free.dropped(report.changed)
            return report

    def close(self) -> None:
        """Sync, and let others have the log."""
        with self._cleaning:  # a cleaning under way comes to its end first
            self._closed = True
            try:
                self.appender.close()
            finally:
                self._locks.release()

    def __enter__(self) -> WorkqLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Locks:
    """append.lock, taken at once and held; read.lock, exclusive at first."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        try:
            self._appending = disk.lock(
                posixpath.join(directory, segment_names.APPEND_LOCK), timeout_s=LOCK_TIMEOUT_S
            )
        except LogLocked as error:
            raise LogLocked(directory, "another process has this log open for writing") from error
        self._reading: Lock | None = None
        try:
            self.lock_reading()
        except BaseException:
            self.release()
            raise

    def lock_reading(self) -> None:
        """Exclusively. On failure it is shared again."""
        self._let_go()
        try:
            self._reading = _lock_reading(self._disk, self._directory, shared=False)
        except (LogLocked, OSError):
            self.share_reading()
            raise

    def share_reading(self) -> None:
        """Keep foreign cleaners out. If that cannot be had now, this log works without."""
        self._let_go()
        with suppress(LogLocked, OSError):
            self._reading = _lock_reading(self._disk, self._directory, shared=True)

    def release(self) -> None:
        self._let_go()
        self._appending.release()

    def _let_go(self) -> None:
        if self._reading is not None:
            self._reading.release()
            self._reading = None


def _lock_reading(disk: Disk, directory: str, *, shared: bool) -> Lock:
    path = posixpath.join(directory, segment_names.READ_LOCK)
    try:
        return disk.lock(path, shared=shared, timeout_s=LOCK_TIMEOUT_S)
    except LogLocked as error:
        doing = "cleans" if shared else "reads"
        raise LogLocked(directory, f"another process {doing} this log") from error


def _take_stock(disk: Disk, directory: str) -> list[str]:
    """The segments in log order. What a cleaning left unfinished is removed."""
    for name in disk.list_dir(directory):
        segment, suffix, rest = name.partition(REWRITE_SUFFIX)
        if suffix and not rest and segment_names.workq_sequence(segment) is not None:
            disk.remove(posixpath.join(directory, name))
    return segment_names.workq_files(disk, directory)


def _recover(
    disk: Disk,
    segments: list[str],
    on_record: Callable[[Record], object] | None,
    last: list[Record],
) -> RecoveryReport:
    """``last`` is to hold the last record."""

    def give(entry: Entry[Record]) -> None:
        last[:] = (entry.record,)
        if on_record is not None:
            on_record(entry.record)

    return RecoveryReport(tuple(recover_entries(disk, CODEC, path, give) for path in segments))


# -- a fail whose retry a power cut has taken --


def _may_end_in_a_hidden_fail(disk: Disk, segments: list[str]) -> bool:
    """Return whether a log that is whole may end in such a fail. A log that is not is not read in
    bulk.
    """
    for path in reversed(segments):
        size = disk.size(path)
        if size > len(HEADER):
            data = disk.read_at(path, max(size - _LAST_BYTES, 0), min(size, _LAST_BYTES))
            if not data[:-CRC_BYTES].endswith(HIDDEN_TAIL):
                return False
            last = _last_record(data)
            return last is None or is_retried(last)
    return False


def _last_record(data: bytes) -> Record | None:
    """The record that ends with these bytes, proven by its CRC; None: it begins before them."""
    for begin in range(len(data)):
        with suppress(FormatError):
            entry = CODEC.decode(data, begin)
            if entry is not None and entry.end == len(data):
                return entry.record
    return None


def _finish_retry(
    appender: Appender, last: list[Record], on_record: Callable[[Record], object] | None
) -> None:
    """A hidden fail and its retry are one write, of which a power cut may leave the fail alone.

    It would be final, and the job dead, though it has another attempt: so the retry is written now.
    """
    for record in last:
        if is_retried(record):
            retry = retry_of(record, is_leased=False)
            appender.append([CODEC.encode(retry)])
            if on_record is not None:
                on_record(retry)
