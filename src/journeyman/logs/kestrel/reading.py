"""Items of a queue by id, read from its segments a stretch at a time.

    read_after(37)     the segments that hold ids above 37, the marks inside them, and from there
                       as many items as asked for; nothing is kept

Segments that overlap, or whose ids do not ascend, are read together and sorted: what one id has
been used twice is delivered twice (see journeyman.folds.kestrel).

A closed segment with an index was not read when the queue was opened, so damage inside it is found
here: it is reported once, and reading continues at the next block whose seal matches, or at the
next mark. A segment that is removed while it is read (all readers have passed it, or the queue is
erased) holds nothing that a reader needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from journeyman.disk import Disk
from journeyman.errors import FormatError, IncompleteEntry, InvalidData
from journeyman.folds.kestrel import Reader
from journeyman.formats.framing import iter_entries
from journeyman.formats.kestrel import SEALS, WRITER, ItemPut
from journeyman.formats.seals import MAX_BLOCK_BYTES, fits, next_proven, seal_after
from journeyman.logs.kestrel.segments import Segment

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
        """What of a segment the reader has finished: what stands before a mark is known."""
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
        """Those above this id, and a few before them."""
        try:
            yield from self._read(segment, segment.mark_before(after + 1)[1])
        except FileNotFoundError:
            return

    def _read(self, segment: Segment, offset: int) -> Iterator[ItemPut]:
        end = self._end_of(segment)
        stamp = self._stamp_before(segment.path, offset)
        length = STRETCH_BYTES
        while offset < end:
            data = self._disk.read_at(segment.path, offset, min(length, end - offset))
            if not data:
                return
            found = _decode(data, offset, stamp)
            yield from found.items
            begin, offset, stamp = offset, offset + found.taken, found.stamp
            is_cut = found.fault is not None and begin + len(data) < end
            if found.taken and (found.fault is None or is_cut):
                length = STRETCH_BYTES
                continue
            if is_cut and found.may_be_cut and length < _MAX_STRETCH_BYTES:
                length = min(4 * length, _MAX_STRETCH_BYTES)
                continue
            behind = _proven_behind(data, found, begin) or segment.mark_behind(offset)
            if found.fault is None and behind is None:
                return  # zeros: the end of what was written
            reason = "zeros where items stood" if found.fault is None else found.fault.reason
            self._tell(segment.path, offset, behind or end, reason)
            offset, length = behind or end, STRETCH_BYTES
            stamp = self._stamp_before(segment.path, offset) or stamp

    def _stamp_before(self, path: str, offset: int) -> int | None:
        """The stamp of the sealed stretch that goes on at ``offset``; None if none does."""
        at = max(0, offset - SEALS.size)
        seal = SEALS.parse(self._disk.read_at(path, at, offset - at), 0)
        return seal.stamp if seal is not None and seal.opens else None

    def _tell(self, path: str, begin: int, end: int, reason: str) -> None:
        if (path, begin) not in self._told:
            self._told.add((path, begin))
            self._damaged(path, begin, end, reason)


class _Found(NamedTuple):
    """The items of a stretch, how many bytes were taken, and what stopped it."""

    items: list[ItemPut]
    taken: int
    stamp: int | None
    fault: FormatError | None = None
    may_be_cut: bool = False  # more bytes may heal the fault


def _decode(data: bytes, offset: int, stamp: int | None) -> _Found:
    """What stands at ``offset``. Of sealed blocks only those count whose seals fit."""
    items: list[ItemPut] = []
    at = 0
    try:
        while at < len(data) and data[at] != 0:
            if stamp is None:
                entry = WRITER.decode(data, at)
                assert entry is not None
                if SEALS.is_like_seal(data, at):
                    stamp = _stamp_at(data, at, offset)
                elif isinstance(entry.record, ItemPut):
                    items.append(entry.record)
                at = entry.end
                continue
            found = seal_after(SEALS, data, at, stamp, offset)
            if found is None:
                return _Found(items, at, stamp, InvalidData(_NOT_SEALED, offset + at), True)
            end, seal = found
            records = (entry.record for entry in iter_entries(WRITER, data[at:end]))
            items += [record for record in records if isinstance(record, ItemPut)]
            at = end + SEALS.size
            stamp = seal.stamp if seal.opens else None
    except FormatError as error:
        is_cut = isinstance(error, IncompleteEntry)
        return _Found(items, at, stamp, error.moved(offset), is_cut)
    return _Found(items, at, stamp)


def _stamp_at(data: bytes, at: int, offset: int) -> int | None:
    """The stamp of the stretch that the seal here opens; None if it does not."""
    seal = SEALS.parse(data, at)
    opens = seal is not None and seal.opens and fits(SEALS, seal, data, at, offset)
    return seal.stamp if seal is not None and opens else None


def _proven_behind(data: bytes, found: _Found, offset: int) -> int | None:
    """Where the next block begins that a seal proves."""
    if found.stamp is None:
        return None
    proven = next_proven(SEALS, data, found.taken, found.stamp, offset)
    if proven is None or proven[1].begin <= offset + found.taken:
        return None
    return proven[1].begin


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
