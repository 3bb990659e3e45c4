"""Items of a queue by id, read from its segments a stretch at a time.

    read_after(37)     the segments that hold ids above 37, the marks inside them, and from there
                       as many items as asked for; nothing is kept

Segments that overlap, or whose ids do not ascend, are read together and sorted: what one id has
been given to twice is delivered twice (see journeyman.folds.kestrel).

A closed segment that has an index was not read when the queue was opened, so damage inside it is
met here: it is told once, and reading goes on at the next mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from journeyman.disk import Disk
from journeyman.errors import FormatError, IncompleteEntry
from journeyman.folds.kestrel import Reader
from journeyman.formats.kestrel import MAX_DATA_BYTES, WRITER, ItemPut
from journeyman.logs.kestrel_index import Segment

__all__ = ["Damaged", "ItemReader"]

STRETCH_BYTES = 256 * 1024
_MAX_ENTRY_BYTES = MAX_DATA_BYTES + 64

Damaged = Callable[[str, int, str], object]  # path, offset, reason


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
            if segment.first_id > read_through:
                items += segment.items
                data_bytes += segment.data_bytes
                continue
            if segment.last_id <= reader.head:
                continue
            for item in self._items(segment, reader.head):
                if not reader.is_past(item.item_id):
                    items += 1
                    data_bytes += len(item.data)
        return items, data_bytes

    def _all(self, segments: Sequence[Segment], after: int) -> Iterator[ItemPut]:
        for segment in segments:
            yield from self._items(segment, after)

    def _items(self, segment: Segment, after: int) -> Iterator[ItemPut]:
        offset = segment.mark_before(after + 1)[1]
        end = self._end_of(segment)
        length = STRETCH_BYTES
        while offset < end:
            data = self._disk.read_at(segment.path, offset, min(length, end - offset))
            if not data:
                return
            items, taken, fault = _decode(data, offset)
            yield from (item for item in items if item.item_id > after)
            is_cut = isinstance(fault, IncompleteEntry) and offset + len(data) < end
            if is_cut and (taken or length < _MAX_ENTRY_BYTES):
                length = STRETCH_BYTES if taken else _MAX_ENTRY_BYTES
                offset += taken
                continue
            if fault is None and not taken:
                return  # zeros: the end of what was written
            offset += taken
            if fault is not None:
                self._tell(segment.path, offset, fault.reason)
                behind = segment.mark_behind(offset)
                if behind is None:
                    return
                offset = behind

    def _tell(self, path: str, offset: int, reason: str) -> None:
        if (path, offset) not in self._told:
            self._told.add((path, offset))
            self._damaged(path, offset, reason)


def _decode(data: bytes, offset: int) -> tuple[list[ItemPut], int, FormatError | None]:
    """The items of a stretch, how many bytes were taken, and what stopped it."""
    items: list[ItemPut] = []
    at = 0
    try:
        while at < len(data) and (entry := WRITER.decode(data, at)) is not None:
            if isinstance(entry.record, ItemPut):
                items.append(entry.record)
            at = entry.end
    except FormatError as error:
        return items, at, error.moved(offset)
    return items, at, None


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
        chosen.append(item)
        size += len(item.data)
        if len(chosen) >= max_items or size >= max_bytes:
            break
    return chosen
