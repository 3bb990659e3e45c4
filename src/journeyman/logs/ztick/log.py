"""A ztick log on disk: one active file that grows, and what compaction made of it.

    <path>               active: records are appended here
    <path>.to_compress   the former active file, while it is being compacted
    <path>.compressed    the last record of each key, of everything older
    <path>.lock          held for as long as the log is open for writing

    load order           compressed, to_compress, active: the last record of a key wins
    states               active                             before the first compaction
                         compressed, active                 at rest
                         [compressed], to_compress, active  while compacting, or after a crash then

All files are beside the active one, wherever the process was started. The original reads nothing
but <path>. ``compact_offline`` makes that one file hold everything.

Compaction never makes appends wait. Under the log's lock the active file is synced and renamed to
.to_compress, and a new one is begun; the rest is done in the background:

    step                                     a crash before the next step leaves, in load order
    1 write and sync .compressed.tmp         compressed, to_compress            the tmp is litter
    2 rename it to .compressed, sync dir     compressed', to_compress           the same state twice
    3 remove .to_compress, sync dir          compressed'

Each key keeps its last record; the result is in the order of these, as replay has it, with seals of
its own. The fold alone decides what a key is and what a removal is. A removed key leaves nothing,
not even its removal: the merge covers everything older than the active file. After step 2
``.to_compress`` says nothing new: it sets or removes each of its keys again. Merging it once more
gives the same file.

Two passes, so that memory holds a place for each living key and no record: the first notes where
the last records stand, the second copies their bytes.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

from journeyman import threads
from journeyman.clock import Clock
from journeyman.disk import Disk, Lock, is_out_of_files
from journeyman.errors import JourneymanError, LogError, LogLocked, UsageError
from journeyman.folds import ztick as fold
from journeyman.formats.framing import Buffer, Entry
from journeyman.formats.seals import stamp_of
from journeyman.formats.ztick import CODEC, Record
from journeyman.formats.ztick.codec import SEALS
from journeyman.logs.appender import Appender, SyncFailed, SyncPolicy
from journeyman.logs.holders import Holders, ask
from journeyman.logs.indexes import IndexDraft, move_index, remove_index, try_to_save
from journeyman.logs.publication import (
    file_identities,
    note_replacement,
    put_in_place,
    remove_durably,
    write_whole,
)
from journeyman.logs.recovery import RecoveryReport, recover_entries
from journeyman.logs.sealing import BlockLayout, Sealing, has_seals, read_whole, sealed
from journeyman.logs.segments import Position, ZtickNames, ZtickPlan, ztick_files
from journeyman.units import NS_PER_S

CompactionStatus: TypeAlias = Literal["idle", "running", "success", "failure"]

RETRY_S = 10


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """The records and bytes that a compaction read, and those that it kept."""

    records_read: int
    records_kept: int
    bytes_read: int
    bytes_kept: int

    def __add__(self, other: CompactionReport) -> CompactionReport:
        """Add up two compactions, the second of which read what the first one kept."""
        return CompactionReport(
            self.records_read + other.records_read,
            other.records_kept,
            self.bytes_read + other.bytes_read,
            other.bytes_kept,
        )


def merge(
    disk: Disk,
    names: ZtickNames,
    installing: AbstractContextManager[object] | None = None,
    *,
    sealed_ns: int | None = None,
) -> CompactionReport:
    """Merge ``.to_compress``, which must be there, into ``.compressed``.

    ``sealed_ns``: the moment, if the result is to be sealed.
    ``installing`` is held while files change their names, so that a reader in this process never
    finds one of them missing between two reads. Raises FormatError when a file is damaged, LogFull
    or OSError when the result cannot be written; then nothing has changed.
    """
    sources = [p for p in (names.compressed, names.to_compress) if disk.exists(p)]
    views: list[Buffer] = [disk.view(path) for path in sources]
    records_read, places = _last_records(views)
    pieces: Iterable[Buffer] = (views[which][begin:end] for which, begin, end in places.values())
    if sealed_ns is not None:
        pieces = sealed(SEALS, b"", pieces, stamp_of(sealed_ns, names.compressed))
    bytes_kept = write_whole(disk, names.compressed_tmp, pieces)
    with installing or nullcontext():
        put_in_place(disk, names.compressed_tmp, names.compressed)
        remove_durably(disk, names.to_compress)
    remove_index(disk, names.to_compress)
    try_to_save(disk, names.compressed, _draft(places, is_sealed=sealed_ns is not None))
    return CompactionReport(records_read, len(places), sum(map(len, views)), bytes_kept)


def _last_records(views: list[Buffer]) -> tuple[int, dict[fold.Key, tuple[int, int, int]]]:
    """How many records there are, and (view, begin, end) of the last one of each living key."""
    places: dict[fold.Key, tuple[int, int, int]] = {}
    count = 0
    for which, view in enumerate(views):
        for entry in read_whole(CODEC, view):
            count += 1
            key = fold.key_of(entry.record)
            # Taken out first, a key that is set again goes to the end.
            places.pop(key, None)
            if fold.apply(None, entry.record) is not None:
                places[key] = which, entry.offset, entry.end
    return count, places


def _draft(places: Mapping[fold.Key, tuple[int, int, int]], *, is_sealed: bool) -> IndexDraft:
    """The index of the records at these places, written one after another."""
    draft = IndexDraft()
    sizes = [end - begin for _, begin, end in places.values()]
    layout = BlockLayout(SEALS, 0)
    blocks = (layout.add(size)[1] for size in sizes)
    offsets: Iterator[int | None] = blocks if is_sealed else accumulate(sizes, initial=0)
    for count, offset in zip(range(len(sizes)), offsets, strict=False):
        if offset is not None and offset >= draft.next_mark:
            draft.mark(offset, count)
    draft.records, draft.timeless = len(sizes), True
    if places:
        identifiers = [identifier for _, identifier in places]
        draft.note_keys(min(identifiers), max(identifiers))
    return draft


class Compactor:
    """When to compact: every ``interval_s`` seconds, never two at once. It calls ``compact``.

        idle ──due──▶ running ──▶ success | failure     until the next one runs

    The first compaction is due one interval after the start, not at the start: nothing is gained
    by compacting what was compacted on the way down. An interval of 0 means never. One that could
    not open a file because too many are open is tried again after RETRY_S.
    """

    def __init__(
        self, compact: Callable[[], CompactionReport | None], *, interval_s: int, now_ns: int
    ) -> None:
        """``now_ns`` is monotonic time, here and below. ``compact`` answers None if idle."""
        if interval_s < 0:
            raise UsageError(f"compaction interval must not be negative: {interval_s} s")
        self._compact = compact
        self._interval_ns = interval_s * NS_PER_S
        self._last_ns = now_ns
        self._running = threading.Lock()
        self._thread: threads.StartedThread | None = None
        self.status: CompactionStatus = "idle"
        self.report: CompactionReport | None = None  # the result of the last one that did something
        self.error: Exception | None = None  # why the last one failed

    def due(self, now_ns: int) -> bool:
        """Return whether it is time, and no compaction is running."""
        if not self._interval_ns or self._running.locked():
            return False
        interval_ns = self._interval_ns
        if isinstance(self.error, OSError) and is_out_of_files(self.error):
            interval_ns = min(interval_ns, RETRY_S * NS_PER_S)
        return now_ns - self._last_ns >= interval_ns

    def start(self, now_ns: int) -> bool:
        """Compact in a thread of its own if that is due. Returns whether it was."""
        if not self.due(now_ns) or not self._begin(now_ns):
            return False
        self._thread = threads.start(self._run, "journeyman-compaction", daemon=True)
        return True

    def run(self, now_ns: int) -> bool:
        """Compact here and now, due or not; False if one is running already."""
        if not self._begin(now_ns):
            return False
        self._run()
        return True

    def wait(self) -> None:
        """Wait until the compaction that runs in the background, if any, has ended."""
        if self._thread is not None:
            self._thread.join()

    def _begin(self, now_ns: int) -> bool:
        if not self._running.acquire(blocking=False):
            return False
        self._last_ns = now_ns
        self.status = "running"
        return True

    def _run(self) -> None:
        try:
            report = self._compact()
        except (JourneymanError, OSError) as error:
            # The log is whole and goes on; the next interval tries again.
            self.error = error
            self.status = "failure"
        else:
            self.report = report or self.report
            self.error = None
            self.status = "success" if report else "idle"
        finally:
            self._running.release()


class ZtickLog:
    """A ztick log open for writing. Made by ``open``; appends are safe from any thread."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        names: ZtickNames,
        lock: Lock,
        appender: Appender,
        report: RecoveryReport,
        *,
        seal: bool,
        holders: Holders | None = None,
    ) -> None:
        self._holders = holders
        self._disk = disk
        self._clock = clock
        self._seal = seal
        self._names = names
        self._lock = lock
        self._compacting = threading.Lock()
        self._names_change = threading.Lock()  # taken before the appender's lock
        self.appender = appender
        self.recovery = report
        # Why what a crash left of a compaction could not be finished at open; the log is whole.
        self.leftover_error: Exception | None = None

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        path: str,
        *,
        sync: SyncPolicy = SyncPolicy.ALWAYS,
        seal: bool = True,
        on_record: Callable[[Record], object] | None = None,
        in_bulk: Callable[[list[str]], RecoveryReport | None] | None = None,
        holders: Holders | None = None,
    ) -> ZtickLog:
        """Lock, recover and open a log; made, with the directories above it, if it is missing.

        ``seal``: what is written is sealed, see journeyman.formats.seals.
        ``on_record`` is given every record in load order, so that a start reads the log only once.
        ``in_bulk`` may do so faster: it is given the files in load order, and answers None if it
        cannot read all of them to their last byte; then they are recovered as usual.
        ``holders`` say what compaction has to leave for now.
        A compaction that a crash cut short is finished before this returns. Raises LogLocked when
        another process has the log.
        """
        names = ZtickNames(path)
        lock = _take_lock(disk, names)
        try:
            files = _files(disk, names)
            report = in_bulk(files) if in_bulk is not None else None
            if report is None:
                report = _recover(disk, files, on_record)
            sealing = Sealing(SEALS, enabled=seal)
            appender = Appender(disk, clock, ZtickPlan(path), sync=sync, sealing=sealing)
            appender.open()
            log = cls(disk, clock, names, lock, appender, report, seal=seal, holders=holders)
            if disk.exists(names.to_compress):
                log._finish_leftover()
        except BaseException:
            lock.release()
            raise
        return log

    def entries(self) -> Iterator[Entry[Record]]:
        """Every record in load order, as of this call; offsets are those in its own file."""
        names = self._names
        with self._names_change:
            end = self.appender.end()
            views: dict[str, Buffer] = {
                path: self._disk.view(path) for path in ztick_files(self._disk, names.active)
            }
            if end is not None:
                views[end.path] = views[end.path][: end.offset]
        return (entry for view in views.values() for entry in read_whole(CODEC, view))

    def append(self, records: Iterable[Record]) -> list[Position]:
        """Write records that stand together; see Appender for what is true when this returns."""
        return self.appender.append([CODEC.encode(record) for record in records])

    def compact(self) -> CompactionReport | None:
        """Compact all that was written up to now; None if that is nothing, or if one is running.

        What a holder has not read yet stays in ``.to_compress`` until a later compaction.
        If it fails the log is whole, only larger than it could be, and the next one makes up
        for it.
        """
        if not self._compacting.acquire(blocking=False):
            return None
        try:
            self.appender.open()  # refuses if the log is closed or poisoned
            leftover = None
            if self._disk.exists(self._names.to_compress):
                leftover = self._merge()
                if leftover is None:
                    return None
            if not self._set_active_aside():
                return leftover
            report = self._merge()
            if leftover is None or report is None:
                return report or leftover
            return leftover + report
        finally:
            self._compacting.release()

    def close(self) -> None:
        """Sync, and let others have the log."""
        with self._compacting:  # a compaction under way comes to its end first
            try:
                self.appender.close()
            finally:
                self._lock.release()

    def __enter__(self) -> ZtickLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set_active_aside(self) -> bool:
        """Begin a new active file; False when the present one is empty and may stay."""
        with self._names_change:
            end = self.appender.end()
            if end is None or end.offset == 0:
                return False
            self.appender.rotate_to(self._rename_active)
            return True

    def _rename_active(self) -> str:
        names = self._names
        self._disk.rename(names.active, names.to_compress)
        try:
            # Durable before a new file takes the name.
            self._disk.sync_dir(names.directory)
        except OSError as error:
            if is_out_of_files(error):  # nothing was asked of the disk: all is as before
                self._disk.rename(names.to_compress, names.active)
                raise
            raise SyncFailed(names.directory, "sync of the directory", error) from error
        return names.active

    def _merge(self) -> CompactionReport | None:
        """None if a holder needs the file."""
        names, log = self._names, posixpath.basename(self._names.active)
        free = ask(self._holders, names.directory, log, [names.to_compress], names.active)
        if not free.count:
            return None
        stamp = self._clock.now_ns() if self._seal else None
        report = merge(self._disk, names, self._names_change, sealed_ns=stamp)
        free.dropped([names.to_compress])
        return report

    def _finish_leftover(self) -> None:
        try:
            self._merge()
        except (JourneymanError, OSError) as error:
            self.leftover_error = error


def compact_offline(
    disk: Disk, path: str, *, now_ns: int = 0, holders: Holders | None = None
) -> CompactionReport | None:
    """Write the whole log into the one file at ``path``, the only one the original reads.

    None if a holder has not read all of it: nothing was changed.

    Everything is merged into ``.compressed`` first, in the usual steps, until no other file holds
    a record; then one rename makes that the active file. Renaming over an active file that still
    held records would not do: what it removes would come back from older files, were these still
    there after a crash. A log that is sealed stays so.
    """
    names = ZtickNames(path)
    if not ztick_files(disk, path):
        raise LogError(path, "there is no log here")
    lock = _take_lock(disk, names)
    try:
        files = _files(disk, names)
        read = [file for file in files if file != names.compressed]
        free = ask(holders, names.directory, posixpath.basename(path), read, active="")
        if free.count < len(read):
            return None
        before = file_identities(disk, files)
        _recover(disk, files, None)
        is_sealed = any(has_seals(SEALS, disk.view(file)) for file in files if disk.exists(file))
        sealed_ns = now_ns if is_sealed else None
        report = CompactionReport(0, 0, 0, 0)
        if disk.exists(names.to_compress):
            report = merge(disk, names, sealed_ns=sealed_ns)
        if disk.exists(names.active) and disk.size(names.active):
            put_in_place(disk, names.active, names.to_compress)
            report += merge(disk, names, sealed_ns=sealed_ns)
        if disk.exists(names.compressed):
            note_replacement(disk, before, names.compressed, names.active)
            put_in_place(disk, names.compressed, names.active)
            move_index(disk, names.compressed, names.active)
        free.dropped(read)
    finally:
        lock.release()
    return report


def _take_lock(disk: Disk, names: ZtickNames) -> Lock:
    disk.make_dirs(names.directory)
    try:
        return disk.lock(names.lock)
    except LogLocked as error:
        raise LogLocked(names.active, "another process has this log open for writing") from error


def _files(disk: Disk, names: ZtickNames) -> list[str]:
    """The files that hold the log, in load order; what a crash left unfinished is removed."""
    if disk.exists(names.compressed_tmp):
        disk.remove(names.compressed_tmp)
    return ztick_files(disk, names.active)


def _recover(
    disk: Disk, files: list[str], on_record: Callable[[Record], object] | None
) -> RecoveryReport:
    give = None if on_record is None else lambda entry: on_record(entry.record)
    return RecoveryReport(tuple(recover_entries(disk, CODEC, path, give) for path in files))
