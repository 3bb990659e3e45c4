"""Cells on disk: small files that are appended to, and the place that they are true of.

    minutes.2026-11-18T20.cells    the minutes of an hour; kept for two days
    hours.2026-11-18.cells         the hours of a day; kept for 90 days
    place.cells                    up to where the log was counted, and the jobs that had not ended

    file     frame  frame ...
    frame    SIZE (4)  CRC-32 (4)  a block, as MessagePack in zlib

Of a minute or an hour that is there twice, the last block counts: after a kill the log is read
again from the place, and the same minutes are written again. A frame that was cut short ends its
file; the next writer cuts it off. All of this can be lost: then the log is counted from its
beginning, as far as it goes.
"""

from __future__ import annotations

import posixpath
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from struct import Struct
from typing import Final

import msgspec

from journeyman.disk import Disk
from journeyman.logs.publication import put_in_place, write_whole
from journeyman.logs.segments import names_in
from journeyman.servers.series.cells import CellBlock
from journeyman.units import DAY_S, HOUR_S, MIB

KEPT_MINUTES_S: Final = 2 * DAY_S
KEPT_HOURS_S: Final = 90 * DAY_S
MAX_MINUTE_BYTES: Final = 256 * MIB  # beyond this the oldest files go
MAX_HOUR_BYTES: Final = 256 * MIB
_HEAD: Final = Struct(">II")
_LEVEL: Final = 1
_MINUTES, _HOURS, _SUFFIX = "minutes.", "hours.", ".cells"
_PLACE: Final = "place.cells"
_TEMPORARY: Final = "place.cells~"

_decoder = msgspec.msgpack.Decoder(CellBlock)


class SeriesFiles:
    """The files of one directory; one process at a time writes them."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._checked: set[str] = set()  # files whose end is whole

    # -- blocks --

    def append_minute(self, block: CellBlock) -> None:
        self._append(_name_of_minutes(block.begin_s), block)

    def append_hour(self, block: CellBlock) -> None:
        self._append(_name_of_hours(block.begin_s), block)

    def minutes(self, from_s: int, until_s: int) -> Iterator[CellBlock]:
        """CellBlocks of minutes that begin in this time, in order."""
        first = from_s // HOUR_S * HOUR_S
        yield from self._blocks(_MINUTES, _name_of_minutes(first), from_s, until_s)

    def hours(self, from_s: int, until_s: int) -> Iterator[CellBlock]:
        yield from self._blocks(_HOURS, _name_of_hours(from_s), from_s, until_s)

    def hour_before(self, until_s: int) -> CellBlock | None:
        """The last hour that is known and begins before this time."""
        for name in reversed(self._names(_HOURS)):
            if name <= _name_of_hours(until_s):
                blocks = [block for block in self._read(name) if block.begin_s < until_s]
                if blocks:
                    return max(reversed(blocks), key=lambda block: block.begin_s)
        return None

    def first_s(self) -> int | None:
        """When the first hour that is known began."""
        for name in self._names(_HOURS):
            for block in self._read(name):
                return block.begin_s
        return None

    def last_minute_s(self) -> int:
        """The last minute that was written; -1: none."""
        for name in reversed(self._names(_MINUTES)):
            begins = [block.begin_s for block in self._read(name)]
            if begins:
                return max(begins)
        return -1

    def prune(self, now_s: int) -> None:
        """Remove what is too old, or too much."""
        self._prune(_MINUTES, _name_of_minutes(now_s - KEPT_MINUTES_S), MAX_MINUTE_BYTES)
        self._prune(_HOURS, _name_of_hours(now_s - KEPT_HOURS_S), MAX_HOUR_BYTES)

    def _prune(self, kind: str, oldest: str, most_bytes: int) -> None:
        names = self._names(kind)
        sizes = {name: self._disk.size(self._path(name)) for name in names}
        for name in names[:-1]:
            if name < oldest or sum(sizes.values()) > most_bytes:
                with suppress(FileNotFoundError):
                    self._disk.remove(self._path(name))
                self._checked.discard(name)
                del sizes[name]

    def _blocks(self, kind: str, first: str, from_s: int, until_s: int) -> Iterator[CellBlock]:
        for name in self._names(kind):
            if name < first:
                continue
            found = {block.begin_s: block for block in self._read(name)}
            for begin_s in sorted(found):
                if begin_s >= until_s:
                    return
                if begin_s >= from_s:
                    yield found[begin_s]

    def _names(self, kind: str) -> list[str]:
        names = names_in(self._disk, self._directory)
        return sorted(name for name in names if name.startswith(kind) and name.endswith(_SUFFIX))

    def _read(self, name: str) -> Iterator[CellBlock]:
        data = self._disk.read_bytes(self._path(name))
        for body, _ in _frames(data):
            with suppress(msgspec.DecodeError):  # another version wrote it
                yield _decoder.decode(body)

    def _append(self, name: str, block: CellBlock) -> None:
        self._disk.make_dirs(self._directory)
        file = self._disk.open_append(self._path(name))
        try:
            if name not in self._checked:
                data = self._disk.read_bytes(file.path)
                file.truncate(max((end for _, end in _frames(data)), default=0))
                self._checked.add(name)
            file.write(_frame(msgspec.msgpack.encode(block)))
            file.sync()
        except OSError:
            self._checked.discard(name)
            raise
        finally:
            file.close()

    # -- the place --

    def write_place(self, parts: Iterable[bytes]) -> int:
        """Replace the place; the size of its file."""
        temporary = self._path(_TEMPORARY)
        self._disk.make_dirs(self._directory)
        size = write_whole(self._disk, temporary, map(_frame, parts))
        put_in_place(self._disk, temporary, self._path(_PLACE))
        return size

    def read_place(self) -> list[bytes]:
        """The parts of the place; none if there is none."""
        try:
            data = self._disk.read_bytes(self._path(_PLACE))
        except FileNotFoundError:
            return []
        return [body for body, _ in _frames(data)]

    def _path(self, name: str) -> str:
        return posixpath.join(self._directory, name)


def _frame(body: bytes) -> bytes:
    data = zlib.compress(body, _LEVEL)
    return _HEAD.pack(len(data), zlib.crc32(data)) + data


def _frames(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The bodies of whole frames, and where each ends."""
    at = 0
    while at + _HEAD.size <= len(data):
        size, crc = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + size]
        if len(body) < size or zlib.crc32(body) != crc:
            return
        at += _HEAD.size + size
        try:
            yield zlib.decompress(body), at
        except zlib.error:
            return


def _name_of_minutes(at_s: int) -> str:
    return f"{_MINUTES}{_date(at_s):%Y-%m-%dT%H}{_SUFFIX}"


def _name_of_hours(at_s: int) -> str:
    return f"{_HOURS}{_date(at_s):%Y-%m-%d}{_SUFFIX}"


def _date(at_s: int) -> datetime:
    return datetime.fromtimestamp(max(0, at_s), UTC)
