"""Reads the log of a work queue while a server appends to it: what is new since a place.

    place     a segment, an offset in it, and the last bytes before that offset
    read()    whole records after the place, up to a batch, and the place after them

The place stays in a segment until there is a later one; only then may cleaning rewrite it. A log
that has other bytes before a place is not the one that was read: it was cut by a recovery after a
power cut, or rewritten. Then, and if the segment is gone, LogChanged is raised.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final, NamedTuple

from journeyman.disk import ReadingDisk
from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Entry
from journeyman.formats.workq import CODEC, HEADER, Record
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.logs.segments import names_in, numbered_name, workq_segments, workq_sequence
from journeyman.units import MIB

READ_BYTES: Final = 4 * MIB  # are read at once; no entry is larger
BATCH_RECORDS: Final = 5000
TAIL_BYTES: Final = 64


class LogChanged(Exception):
    """The log is not the one that was read; why."""


class TailPlace(NamedTuple):
    """Segment 0 is before the first one."""

    segment: int = 0
    offset: int = 0
    tail: bytes = b""


class NewRecords:
    """See the module. ``directory`` is that of the log."""

    def __init__(self, disk: ReadingDisk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def segments(self) -> list[int]:
        """Their numbers, in order."""
        names = workq_segments(names_in(self._disk, self._directory))
        return [number for name in names if (number := workq_sequence(name)) is not None]

    def view(self, segment: int) -> memoryview:
        return self._disk.view(self._path(segment))

    def entries(self, segment: int, view: memoryview) -> Iterator[Entry[Record]]:
        """The records of a whole segment, by the one rule for damaged logs."""
        for item in read_past_damage(CODEC, view, file=self._path(segment)):
            if not isinstance(item, Damage):
                yield item

    def read(self, place: TailPlace) -> tuple[list[Record], TailPlace]:
        """No records and the same place: there is nothing new."""
        numbers = self.segments()
        records, after = self._read(place, numbers)
        later = [number for number in numbers if number > after.segment]
        if later and after == place:  # nothing is appended to this segment any more
            if after.segment and self._disk.size(self._path(after.segment)) > after.offset:
                records, _ = self._read_past_damage(after)
            after = TailPlace(later[0])
        return records, after

    def _path(self, segment: int) -> str:
        return posixpath.join(self._directory, numbered_name(segment))

    def _read(self, place: TailPlace, numbers: list[int]) -> tuple[list[Record], TailPlace]:
        """Read the segment of the place after it."""
        if place.segment == 0:
            return [], place
        if place.segment not in numbers:
            raise LogChanged(f"segment {place.segment} of the log is gone")
        tail = place.tail
        begin = place.offset - len(tail)
        data = self._disk.read_at(self._path(place.segment), begin, len(tail) + READ_BYTES)
        if data[: len(tail)] != tail:
            raise LogChanged("the log has other records before its position")
        at = len(tail)
        if place.offset == 0:
            if len(data) < len(HEADER):
                return [], place
            if not data.startswith(HEADER):
                return self._read_past_damage(place)
            at = len(HEADER)
        records: list[Record] = []
        end = at
        try:
            while len(records) < BATCH_RECORDS and (entry := CODEC.decode(data, end)) is not None:
                records.append(entry.record)
                end = entry.end
        except IncompleteEntry:
            pass  # it is being written, or was cut short; a later segment shows which
        except FormatError:
            if not records:
                return self._read_past_damage(place)
        if end == len(tail):
            return records, place
        return records, TailPlace(place.segment, begin + end, tail_of(data, end))

    def _read_past_damage(self, place: TailPlace) -> tuple[list[Record], TailPlace]:
        """The rest of a segment with a damage in it, by the one rule for damaged logs."""
        path, records, end = self._path(place.segment), [], place.offset
        view = self._disk.view(path)
        for item in read_past_damage(CODEC, view, file=path):
            if isinstance(item, Damage):
                if item.kind == "torn" and item.end == len(view):
                    break
            elif item.offset >= place.offset:
                records.append(item.record)
            end = max(end, item.end)
        return records, TailPlace(place.segment, end, tail_of(view, end))


def tail_of(data: bytes | memoryview, end: int) -> bytes:
    """The bytes before ``end`` by which a log is recognized."""
    return bytes(data[max(0, end - TAIL_BYTES) : end])
