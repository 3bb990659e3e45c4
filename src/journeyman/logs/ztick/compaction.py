"""Compacting a ztick log: of every job and every rule, its last record.

    <path>.compressed    oldest    ─┐
    <path>.to_compress             ─┴─ merge ─▶  <path>.compressed.tmp ─▶ <path>.compressed
    <path>               newest, still growing; not touched

Each key keeps its last record; the result is in the order of these, as replay has it, with seals of
its own. The fold alone decides what a key is and what a removal is.

A removed key leaves nothing, not even its removal. That is right only because the merge covers
everything older than the active file.

    step                                     a crash before the next step leaves, in load order
    1 write and sync .compressed.tmp         compressed, to_compress            the tmp is litter
    2 rename it to .compressed, sync dir     compressed', to_compress           the same state twice
    3 remove .to_compress, sync dir          compressed'

After step 2 ``.to_compress`` says nothing new: it sets or removes each of its keys again. Merging
it once more gives the same file.

Two passes, so that memory holds a place for each living key and no record: the first notes where
the last records stand, the second copies their bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, TypeAlias

from journeyman import threads
from journeyman.disk import Disk, is_out_of_files
from journeyman.errors import JourneymanError, UsageError
from journeyman.folds import ztick as fold
from journeyman.formats.framing import Buffer
from journeyman.formats.seals import stamp_of
from journeyman.formats.ztick import CODEC
from journeyman.formats.ztick.codec import SEALS
from journeyman.logs.indexes import IndexDraft, remove_index, try_to_save
from journeyman.logs.publication import put_in_place, remove_durably, write_whole
from journeyman.logs.sealing import block_offsets, read_whole, sealed
from journeyman.logs.segments import ZtickNames
from journeyman.units import NS_PER_S

CompactionStatus: TypeAlias = Literal["idle", "running", "success", "failure"]

RETRY_S = 10


@dataclass(frozen=True, slots=True)
class CompactionReport:
    """What went into a compaction and what came out."""

    records_read: int
    records_kept: int
    bytes_read: int
    bytes_kept: int

    def __add__(self, other: CompactionReport) -> CompactionReport:
        """Of one compaction directly followed by another."""
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
    offsets = block_offsets(SEALS, sizes) if is_sealed else accumulate(sizes, initial=0)
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
        self.report: CompactionReport | None = None  # of the last one that did something
        self.error: Exception | None = None  # why the last one failed

    def due(self, now_ns: int) -> bool:
        """Whether it is time, and no compaction is running."""
        if not self._interval_ns or self._running.locked():
            return False
        interval_ns = self._interval_ns
        if isinstance(self.error, OSError) and is_out_of_files(self.error):
            interval_ns = min(interval_ns, RETRY_S * NS_PER_S)
        return now_ns - self._last_ns >= interval_ns

    def start(self, now_ns: int) -> bool:
        """Compact in a thread of its own if that is due; whether it was."""
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
        """Until the compaction that runs in the background, if any, has ended."""
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
