"""The segments of a kestrel queue: what is known of each, items by id, and when a segment may go.

    <dir>/<queue>.<number>            the segment
    <dir>/.index/<queue>.<number>     its index, once the segment is closed: see logs/indexes.py

    marks     (id, offset, items and bytes before it)  about every 64 KiB; in a sealed segment only
              where a block begins, so that a reader can prove what it reads from there
    edges     first and last id, items, bytes

A segment without an index that matches is read at the start. A segment whose ids do not ascend (no
server writes one, files may have been put together by hand) has only the first mark: it is always
read from its beginning. The order of segments is that of the first ids inside. File numbers follow
it, unless files were renamed.

    ids         1..2       3..4       5..6       7
    segment     jobs.10    jobs.20    jobs.30    jobs.40 (active)
    heads                     a: 4       b: 6
    may go      yes        yes        no: a still needs 5

A segment goes once every reader has passed it and a later segment holds an item; the rule is
FoldedQueue.retired. So the newest items always stay, and with them the knowledge of which ids were
used. It is deleted, or moved to an archive as ``archive~<name>``. Without any reader nothing goes,
since one may come later. The positions of readers come from their checkpoints on disk, not from
memory, which is ahead. So the files alone prove at any moment that no reader needs a removed
segment.

``ItemReader`` reads items by id, a stretch at a time: of the segments that hold ids above the one
given, from the marks inside them, as many items as asked for; nothing is kept. Segments that
overlap, or whose ids do not ascend, are read together and sorted: what has one id twice is
delivered twice (journeyman.folds.kestrel). A closed segment with an index was not read when the
queue was opened, so damage inside it is found here: it is reported once, and reading continues at
the next block whose seal matches, or at the next mark. A segment that is removed while it is read
holds nothing that a reader needs.
"""

from __future__ import annotations

import errno
import posixpath
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from journeyman.disk import Disk
from journeyman.errors import FormatError, IncompleteEntry, InvalidData, LogError
from journeyman.folds.kestrel import FoldedQueue, Reader
from journeyman.formats.framing import Entry, iter_entries
from journeyman.formats.kestrel import SEALS, WRITER, ItemPut, Record
from journeyman.formats.seals import MAX_BLOCK_BYTES, block_at, is_marked, next_seal, seal_at
from journeyman.logs.indexes import IndexDraft, load_index, remove_index, save_index
from journeyman.logs.publication import remove_durably, write_whole
from journeyman.logs.recovery import CHUNK_BYTES, FileReport, recover_entries
from journeyman.logs.segments import TEMPORARY_MARK, Position, kestrel_archive_name
from journeyman.units import NS_PER_MS

MARK_BYTES = 64 * 1024
_FOREVER_MS = 2**63

Mark = tuple[int, int, int, int]  # id, offset, items before it, bytes of data before it


@dataclass(slots=True)
class Segment:
    """One segment and what is known of its items; ids are 0 while it has none."""

    path: str
    first_id: int = 0
    last_id: int = 0
    items: int = 0
    data_bytes: int = 0
    ascending: bool = True
    marks: list[Mark] = field(default_factory=list, compare=False)
    first_ms: int = field(default=_FOREVER_MS, compare=False)  # the earliest time of an item
    last_ms: int = field(default=-_FOREVER_MS, compare=False)
    timeless: bool = field(default=False, compare=False)  # it has records other than items
    indexed: bool = field(default=False, compare=False)  # there is a file that says all this
    last_seal: int | None = field(default=None, compare=False)  # where the last seal found stands

    def note(self, item: ItemPut, mark: int | None) -> None:
        """The next item; ``mark``: what is read may begin there, and begins with the item."""
        if not self.items:
            self.first_id = item.item_id
            self.marks.append((item.item_id, len(WRITER.header) if mark is None else mark, 0, 0))
        elif item.item_id <= self.last_id:
            self.ascending = False
            del self.marks[1:]
        elif mark is not None and self.ascending and mark - self.marks[-1][1] >= MARK_BYTES:
            self.marks.append((item.item_id, mark, self.items, self.data_bytes))
        self.first_id = min(self.first_id, item.item_id)
        self.last_id = max(self.last_id, item.item_id)
        self.items += 1
        self.data_bytes += len(item.data)
        self._note_times([item.add_time_ms])

    def _note_times(self, times_ms: list[int]) -> None:
        self.first_ms = min(self.first_ms, *times_ms)
        self.last_ms = max(self.last_ms, *times_ms)

    def note_run(
        self,
        offset: int,
        items: Sequence[ItemPut],
        sizes: Sequence[int],
        block: int | None = None,
    ) -> None:
        """Items follow one another from ``offset`` on, with ascending ids.

        ``block``: where the seal of the block stands that they are part of.
        """
        odd = not self.items or not self.ascending or items[0].item_id <= self.last_id
        if odd or block is not None:
            for item, size in zip(items, sizes, strict=True):
                self.note(item, _mark_at(offset, block))
                offset += size
            return
        next_mark = self.marks[-1][1] + MARK_BYTES
        count, data_bytes = self.items, self.data_bytes
        for item, size in zip(items, sizes, strict=True):
            if offset >= next_mark:
                self.marks.append((item.item_id, offset, count, data_bytes))
                next_mark = offset + MARK_BYTES
            offset += size
            count += 1
            data_bytes += len(item.data)
        self.items, self.data_bytes = count, data_bytes
        self.last_id = items[-1].item_id
        self._note_times([item.add_time_ms for item in items])

    def note_entry(self, entry: Entry[Record]) -> None:
        if isinstance(entry.record, ItemPut):
            self.note(entry.record, _mark_at(entry.offset, self.last_seal))
        else:
            self.timeless = True

    def note_seal(self, entry: Entry[Record]) -> None:
        self.last_seal = entry.offset

    def mark_before(self, item_id: int) -> Mark:
        """Where to begin to read if items from this id on are wanted."""
        if not self.marks:
            return (0, len(WRITER.header), 0, 0)
        place = bisect_right(self.marks, item_id, key=lambda mark: mark[0])
        return self.marks[max(place - 1, 0)]

    def mark_behind(self, offset: int) -> int | None:
        """The next place where an item is known to begin."""
        place = bisect_right(self.marks, offset, key=lambda mark: mark[1])
        return self.marks[place][1] if place < len(self.marks) else None


def _mark_at(offset: int, seal: int | None) -> int | None:
    """Where to begin to read if the item at ``offset`` is wanted: at the seal of its block."""
    if seal is None:
        return offset
    return seal if seal + SEALS.size == offset else None


class SegmentCatalog:
    """All segments that hold items, oldest ids first. Not thread-safe."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        """``segments`` come in the order of their numbers."""
        numbered = [segment for segment in segments if segment.items]
        self._segments = sorted(numbered, key=lambda segment: segment.first_id)
        self.numbers_follow_ids = numbered == self._segments

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def tail(self) -> int:
        """The highest id; 0 when there is no item."""
        return max((segment.last_id for segment in self._segments), default=0)

    def edge_ids(self) -> list[int]:
        """First and last id of every segment: all that opening a queue needs of them."""
        return [edge for s in self._segments for edge in (s.first_id, s.last_id)]

    def note_run(self, begin: Position, items: Sequence[ItemPut], sizes: Sequence[int]) -> None:
        """Items were stored one after the other; ``sizes`` are those of their entries."""
        if not self._segments or self._segments[-1].path != begin.path:
            self._segments.append(Segment(begin.path))
        self._segments[-1].note_run(begin.offset, items, sizes, begin.block)

    def retired(self, readers: Mapping[str, Reader]) -> list[Segment]:
        """The segments that may go, oldest first."""
        if not readers:
            return []
        first_ids = [segment.first_id for segment in self._segments]
        return self._segments[: len(FoldedQueue(self.tail, readers).retired(first_ids))]

    def forget(self, segment: Segment) -> None:
        self._segments.remove(segment)


def load_segment(disk: Disk, path: str) -> Segment | None:
    """Return what the index says of this segment; None if there is none that can be trusted."""
    size = disk.size(path)
    index = load_index(disk, path, size)
    if index is None or index.size != size or not index.records or index.keys is None:
        return None
    try:
        marks = [
            (int(item_id), mark.offset, mark.records, int(data_bytes))
            for mark, (item_id, data_bytes) in zip(index.marks, index.own["marks"], strict=True)
        ]
        first_id, last_id = map(int, index.keys)
        data_bytes, ascending = int(index.own["data_bytes"]), bool(index.own["ascending"])
    except (ValueError, KeyError, TypeError):
        return None
    known = Segment(path, first_id, last_id, index.records, data_bytes, ascending, marks)
    known.indexed = True
    return known if marks else None


def save_segment(disk: Disk, segment: Segment) -> None:
    """Write the index of a segment that is closed."""
    draft = IndexDraft()
    draft.places = [(offset, items) for _, offset, items, _ in segment.marks]
    draft.records = segment.items
    draft.timeless = segment.timeless
    draft.note_times(segment.first_ms * NS_PER_MS, segment.last_ms * NS_PER_MS)
    draft.note_keys(segment.first_id, segment.last_id)
    own = {
        "data_bytes": segment.data_bytes,
        "ascending": segment.ascending,
        "marks": [(item_id, data_bytes) for item_id, _, _, data_bytes in segment.marks],
    }
    save_index(disk, segment.path, draft.make_index(disk.view(segment.path), own))
    segment.indexed = True


def recover_segments(
    disk: Disk, paths: list[str], *, thorough: bool = False
) -> tuple[list[Segment], list[FileReport]]:
    """Return what each segment holds, in the order given. All but the last go if they hold nothing.

    Those that have an index are not read, unless ``thorough``; the last one, which may have been
    cut off, always is.
    """
    segments: list[Segment] = []
    reports: list[FileReport] = []
    for path in paths:
        known = None if thorough or path == paths[-1] else load_segment(disk, path)
        if known is not None:
            segments.append(known)
            continue
        segment = Segment(path)
        report = recover_entries(disk, WRITER, path, segment.note_entry, on_seal=segment.note_seal)
        reports.append(report)
        if not report.gone and not report.records and path != paths[-1]:
            remove_durably(disk, path)
        elif not report.gone:
            segments.append(segment)
    return segments, reports


def retire_segment(disk: Disk, path: str, archive_directory: str | None) -> str | None:
    """Delete a segment, or move it to the archive; where it is then.

    What a crash or a failed sync left half done, the next time finishes.
    """
    target = None
    if archive_directory is not None:
        disk.make_dirs(archive_directory)
        target = posixpath.join(archive_directory, kestrel_archive_name(posixpath.basename(path)))
        if not disk.exists(target):
            _move(disk, path, target)
        elif disk.exists(path) and not _same(disk, path, target):
            raise LogError(target, "the archive holds another segment of this name")
        disk.sync_dir(archive_directory)
    if disk.exists(path):
        disk.remove(path)
    disk.sync_dir(posixpath.dirname(path) or ".")
    remove_index(disk, path)
    return target


def _move(disk: Disk, path: str, target: str) -> None:
    """Move a segment to a directory that may be on another file system; then the segment is still
    here too."""
    try:
        disk.rename(path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        temporary = f"{target}{TEMPORARY_MARK}copying"
        places = range(0, disk.size(path), CHUNK_BYTES)
        write_whole(disk, temporary, (disk.read_at(path, at, CHUNK_BYTES) for at in places))
        disk.rename(temporary, target)


def _same(disk: Disk, path: str, other: str) -> bool:
    size = disk.size(path)
    return disk.size(other) == size and all(
        disk.read_at(path, at, CHUNK_BYTES) == disk.read_at(other, at, CHUNK_BYTES)
        for at in range(0, size, CHUNK_BYTES)
    )


STRETCH_BYTES = 64 * 1024
_MAX_STRETCH_BYTES = MAX_BLOCK_BYTES
_NOT_SEALED = "no seal fits these bytes"

Damaged = Callable[[str, int, int, str], object]  # path, begin, end, reason


class ItemReader:
    """Reads for one queue. ``end_of`` says how far a segment may be read."""

    def __init__(self, disk: Disk, end_of: Callable[[Segment], int], damaged: Damaged) -> None:
        self._disk = disk
        self._end_of = end_of
        self._damaged = damaged
        self._told: set[tuple[str, int]] = set()

    def read_after(
        self, segments: Sequence[Segment], after: int, max_items: int, max_bytes: int
    ) -> list[ItemPut]:
        """Items with ids above ``after``, ascending: the first ones, at least one if there is."""
        wanted = [segment for segment in segments if segment.last_id > after]
        if not _follow_each_other(wanted):
            items = sorted(self._all(wanted, after), key=lambda item: item.item_id)
            return _first(iter(items), max_items, max_bytes)
        return _first(self._all(wanted, after), max_items, max_bytes)

    def left_for(self, segments: Sequence[Segment], reader: Reader) -> tuple[int, int]:
        """How many items, and bytes, the reader still has to be given."""
        items = data_bytes = 0
        read_through = max(reader.done, default=reader.head)
        for segment in segments:
            if segment.last_id <= reader.head:
                continue
            items += segment.items
            data_bytes += segment.data_bytes
            if segment.first_id <= read_through:
                past_items, past_bytes = self._past(segment, reader, read_through)
                items -= past_items
                data_bytes -= past_bytes
        return items, data_bytes

    def _past(self, segment: Segment, reader: Reader, read_through: int) -> tuple[int, int]:
        """Return what of a segment the reader has finished: what stands before a mark is known."""
        _, _, items, data_bytes = segment.mark_before(reader.head + 1)
        for item in self._items_from_mark(segment, reader.head):
            if item.item_id > read_through and segment.ascending:
                break
            if reader.is_past(item.item_id):
                items += 1
                data_bytes += len(item.data)
        return items, data_bytes

    def _all(self, segments: Sequence[Segment], after: int) -> Iterator[ItemPut]:
        for segment in segments:
            yield from self._items(segment, after)

    def _items(self, segment: Segment, after: int) -> Iterator[ItemPut]:
        return (i for i in self._items_from_mark(segment, after) if i.item_id > after)

    def _items_from_mark(self, segment: Segment, after: int) -> Iterator[ItemPut]:
        """Yield the items above this id, and a few before them."""
        try:
            yield from self._read(segment, segment.mark_before(after + 1)[1])
        except FileNotFoundError:
            return

    def _read(self, segment: Segment, offset: int) -> Iterator[ItemPut]:
        end = self._end_of(segment)
        length = STRETCH_BYTES
        while offset < end:
            data = self._disk.read_at(segment.path, offset, min(length, end - offset))
            if not data:
                return
            found = _decode(data, offset)
            yield from found.items
            begin, offset = offset, offset + found.taken
            is_cut = begin + len(data) < end
            if found.taken == len(data) or (found.taken and found.fault is not None and is_cut):
                length = STRETCH_BYTES  # the fault is judged with more bytes after it
                continue
            if is_cut and found.needed and length < _MAX_STRETCH_BYTES:
                length = min(max(4 * length, found.needed), _MAX_STRETCH_BYTES)
                continue
            behind = _seal_behind(data, found, begin) or segment.mark_behind(offset)
            if found.fault is None and behind is None:
                return  # zeros: the end of what was written
            reason = "zeros where items stood" if found.fault is None else found.fault.reason
            self._tell(segment.path, offset, behind or end, reason)
            offset, length = behind or end, STRETCH_BYTES

    def _tell(self, path: str, begin: int, end: int, reason: str) -> None:
        if (path, begin) not in self._told:
            self._told.add((path, begin))
            self._damaged(path, begin, end, reason)


class _Found(NamedTuple):
    """The items of a stretch, how many bytes were taken, and what stopped it."""

    items: list[ItemPut]
    taken: int
    fault: FormatError | None = None
    needed: int = 0  # bytes that may heal the fault, from the beginning of the stretch


def _decode(data: bytes, offset: int) -> _Found:
    """The entry at ``offset``. An announced block counts only if it fits."""
    items: list[ItemPut] = []
    at = 0
    try:
        while at < len(data) and data[at] != 0:
            seal = seal_at(SEALS, data, at, offset)
            if seal is None:
                entry = WRITER.decode(data, at)
                assert entry is not None
                if is_marked(SEALS, data, at):
                    return _Found(items, at, InvalidData(_NOT_SEALED, offset + at))
                if isinstance(entry.record, ItemPut):
                    items.append(entry.record)
                at = entry.end
                continue
            end = at + SEALS.size + seal.length
            block = block_at(SEALS, data, at, offset)
            if block is None:
                fault = InvalidData(_NOT_SEALED, offset + at)
                return _Found(items, at, fault, needed=end if end > len(data) else 0)
            records = (entry.record for entry in iter_entries(WRITER, data[block.begin : end]))
            items += [record for record in records if isinstance(record, ItemPut)]
            at = end
    except FormatError as error:
        needed = at + error.needed if isinstance(error, IncompleteEntry) else 0
        return _Found(items, at, error.moved(offset), needed)
    return _Found(items, at)


def _seal_behind(data: bytes, stretch: _Found, offset: int) -> int | None:
    """Where the next seal stands that fits."""
    if stretch.fault is None:
        return None
    place = next_seal(SEALS, data, stretch.taken + 1, None, offset)
    return None if place is None else offset + place


def _follow_each_other(segments: Sequence[Segment]) -> bool:
    last_id = 0
    for segment in segments:
        if not segment.ascending or segment.first_id <= last_id:
            return False
        last_id = segment.last_id
    return True


def _first(items: Iterator[ItemPut], max_items: int, max_bytes: int) -> list[ItemPut]:
    chosen: list[ItemPut] = []
    size = 0
    for item in items:
        # All items of one id come together: the next stretch begins after them.
        is_enough = len(chosen) >= max_items or size >= max_bytes
        if is_enough and item.item_id != chosen[-1].item_id:
            break
        chosen.append(item)
        size += len(item.data)
    return chosen
