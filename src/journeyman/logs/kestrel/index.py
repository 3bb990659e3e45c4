"""What is known of segments without reading them, in memory and in small files.

    <dir>/<queue>.<number>            the segment
    <dir>/.index/<queue>.<number>     its index, once the segment is closed; JSON

    marks     (id, offset, items and bytes before it)  about every 64 KiB; in a sealed segment only
              where a block begins, so that a reader can prove what it reads from there
    edges     first and last id, items, bytes, size of the file
    proof     a checksum over the first and the last bytes of the segment

An index is derived from its segment. One that is missing, damaged or does not match is created
again by reading the segment, so it may be deleted at any time. It is in a separate directory
because the original takes every file beside the segments for a queue, and in a hidden one because
readers of directories would look for queues in any other.

A segment whose ids do not ascend (no server writes one, files may have been put together by hand)
has only the first mark: it is always read from its beginning.
"""

from __future__ import annotations

import json
import posixpath
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import google_crc32c

from journeyman.disk import Disk
from journeyman.folds.kestrel import FoldedQueue, Reader
from journeyman.formats.framing import Entry
from journeyman.formats.kestrel import WRITER, ItemPut, Record
from journeyman.logs.publication import put_in_place, write_whole
from journeyman.logs.segments import Position

INDEX_DIRECTORY = ".index"
MARK_BYTES = 64 * 1024
PROOF_BYTES = 4096
_VERSION = 1
_TEMPORARY = ".new"

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
    indexed: bool = field(default=False, compare=False)  # there is a file that says all this
    sealed_to: int | None = field(default=None, compare=False)  # where the last seal found ends

    def note(self, item: ItemPut, offset: int, *, may_mark: bool = True) -> None:
        """An item stands at ``offset``; ``may_mark``: and what is read may begin with it."""
        if not self.items:
            self.first_id = item.item_id
            self.marks.append((item.item_id, offset, 0, 0))
        elif item.item_id <= self.last_id:
            self.ascending = False
            del self.marks[1:]
        elif may_mark and self.ascending and offset - self.marks[-1][1] >= MARK_BYTES:
            self.marks.append((item.item_id, offset, self.items, self.data_bytes))
        self.first_id = min(self.first_id, item.item_id)
        self.last_id = max(self.last_id, item.item_id)
        self.items += 1
        self.data_bytes += len(item.data)

    def note_run(
        self,
        offset: int,
        items: Sequence[ItemPut],
        sizes: Sequence[int],
        block: int | None = None,
    ) -> None:
        """Items follow one another from ``offset`` on, with ascending ids.

        ``block``: where the sealed block begins that they are part of.
        """
        odd = not self.items or not self.ascending or items[0].item_id <= self.last_id
        if odd or block is not None:
            for item, size in zip(items, sizes, strict=True):
                self.note(item, offset, may_mark=block in (None, offset))
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

    def note_entry(self, entry: Entry[Record]) -> None:
        if isinstance(entry.record, ItemPut):
            may_mark = self.sealed_to in (None, entry.offset)
            self.note(entry.record, entry.offset, may_mark=may_mark)

    def note_seal(self, entry: Entry[Record]) -> None:
        self.sealed_to = entry.end

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
        """Items were stored one behind the other; ``sizes`` are those of their entries."""
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


def load_index(disk: Disk, path: str) -> Segment | None:
    """What the index says of this segment; None if there is none that can be trusted."""
    where = _index_path(path)
    if not disk.exists(where):
        return None
    try:
        known = json.loads(disk.read_bytes(where))
        if known["version"] != _VERSION or known["proof"] != _proof(disk, path):
            return None
        marks = [(int(i), int(at), int(n), int(size)) for i, at, n, size in known["marks"]]
        segment = Segment(
            path,
            int(known["first_id"]),
            int(known["last_id"]),
            int(known["items"]),
            int(known["data_bytes"]),
            bool(known["ascending"]),
            marks,
            indexed=True,
        )
    except (ValueError, KeyError, TypeError):
        return None
    return segment if segment.items > 0 and marks else None


def save_index(disk: Disk, segment: Segment) -> None:
    """Write the index of a segment that is closed."""
    where = _index_path(segment.path)
    known = {
        "version": _VERSION,
        "proof": _proof(disk, segment.path),
        "first_id": segment.first_id,
        "last_id": segment.last_id,
        "items": segment.items,
        "data_bytes": segment.data_bytes,
        "ascending": segment.ascending,
        "marks": segment.marks,
    }
    disk.make_dirs(posixpath.dirname(where))
    write_whole(disk, where + _TEMPORARY, [json.dumps(known).encode()])
    put_in_place(disk, where + _TEMPORARY, where)
    segment.indexed = True


def remove_index(disk: Disk, path: str) -> None:
    """The segment was removed. An index that comes back after a crash does no harm."""
    where = _index_path(path)
    if disk.exists(where):
        disk.remove(where)


def _index_path(path: str) -> str:
    directory, name = posixpath.split(path)
    return posixpath.join(directory, INDEX_DIRECTORY, name)


def _proof(disk: Disk, path: str) -> list[Any]:
    size = disk.size(path)
    head = disk.read_at(path, 0, PROOF_BYTES)
    tail = disk.read_at(path, max(0, size - PROOF_BYTES), PROOF_BYTES)
    return [size, google_crc32c.value(head), google_crc32c.value(tail)]
