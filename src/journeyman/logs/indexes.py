"""Indexes: what a closed file of a log holds, so that a reader need not walk through all of it.

    <dir>/<file>            a segment, or another file that is no longer appended to
    <dir>/.index/<file>     its index: a line of JSON, then the CRC-32C of that line

    marks     (offset, records before it, CRC of the 64 KiB before it) where an entry begins, about
              every so many bytes; in a sealed stretch only where a block begins
    ranges    how many records, first and last time, lowest and highest key
    proof     the size of what was indexed, and the CRC of its first and of its last bytes

An index is derived from its file. One that is missing, damaged or does not match is ignored and
made again, so all of them may be deleted at any time. It is a hint and no proof: a reader that
begins at a mark checks the bytes before it first. A file that was only appended to since matches
as far as the index goes; a file with damage gets no index.

    written by       when
    fan-out queues   with the checkpoints (logs/kestrel/segments.py)
    work queue       segments are read to be cleaned (logs/workq/cleaning.py)
    schedule         a compaction has ended (logs/ztick/log.py)
    ledger           the same

The directory is separate because the original kestrel takes every file beside the segments for a
queue, and hidden because readers of directories would look for logs in any other.
"""

from __future__ import annotations

import json
import posixpath
from bisect import bisect_right
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

import google_crc32c

from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.formats.framing import Buffer
from journeyman.logs.catalog import ReadsAt
from journeyman.logs.publication import put_in_place, write_whole

INDEX_DIRECTORY = ".index"
MARK_BYTES = 1024 * 1024  # from one mark to the next, at least
MIN_INDEXED_BYTES = 1024 * 1024
NEAR_BYTES = 64 * 1024  # before a mark; a reader that begins there checks them
PROOF_BYTES = 4096
_MAX_INDEX_BYTES = 256 * 1024 * 1024
_VERSION = 2
_TEMPORARY = ".new"
_INT64 = 2**63

Key = str | int


class Mark(NamedTuple):
    """An entry begins at ``offset``; ``crc`` is that of the bytes just before it."""

    offset: int
    records: int
    crc: int

    @property
    def since(self) -> int:
        """Where the bytes begin that ``crc`` is about."""
        return max(0, self.offset - NEAR_BYTES)


@dataclass(frozen=True, slots=True)
class Index:
    """A summary of the first ``size`` bytes of a file; ``own`` is for its dialect."""

    size: int
    records: int
    times_ns: tuple[int, int] | None  # None: not all records say one
    keys: tuple[Key, Key] | None
    marks: tuple[Mark, ...]
    own: Mapping[str, Any] = field(default_factory=dict)

    def mark_before(self, offset: int) -> Mark | None:
        """The last mark at or before ``offset``."""
        at = bisect_right(self.marks, offset, key=lambda mark: mark.offset)
        return self.marks[at - 1] if at else None


class IndexDraft:
    """An index while its file is read or written: what is noted of each record."""

    def __init__(self) -> None:
        self.next_mark = MARK_BYTES  # from this offset on
        self.places: list[tuple[int, int]] = []  # offset, records before it
        self.records = 0
        self.times_ns: tuple[int, int] | None = None
        self.keys: tuple[Any, Any] | None = None
        self.timeless = False  # a record says no time

    def note(self, offset: int, time_ns: int, key: Any) -> None:
        """The next record, of a file without seals."""
        if offset >= self.next_mark:
            self.mark(offset)
        self.records += 1
        times, keys = self.times_ns, self.keys
        if times is None or not times[0] <= time_ns <= times[1]:
            self.note_times(time_ns, time_ns)
        if key is not None and (keys is None or not keys[0] <= key <= keys[1]):
            self.note_keys(key, key)

    def mark(self, offset: int, records: int = 0) -> None:
        """``records`` more than were noted stand before it."""
        self.places.append((offset, self.records + records))
        self.next_mark = offset + MARK_BYTES

    def note_times(self, first_ns: int, last_ns: int) -> None:
        first, last = self.times_ns or (first_ns, last_ns)
        self.times_ns = min(first, first_ns), max(last, last_ns)

    def note_keys(self, lowest: Any, highest: Any) -> None:
        """Ids in bytes are in the order of their text."""
        low, high = self.keys or (lowest, highest)
        self.keys = min(low, lowest), max(high, highest)

    def make_index(self, content: Buffer, own: Mapping[str, Any] | None = None) -> Index:
        """The index of a file with these bytes."""
        marks = [Mark(offset, records, 0) for offset, records in self.places]
        marks = [mark._replace(crc=_crc(content[mark.since : mark.offset])) for mark in marks]
        times = None
        if self.times_ns is not None and not self.timeless:
            times = _clamped(self.times_ns[0]), _clamped(self.times_ns[1])
        keys = None if self.keys is None else (_text(self.keys[0]), _text(self.keys[1]))
        return Index(len(content), self.records, times, keys, tuple(marks), own or {})


def index_path(path: str) -> str:
    directory, name = posixpath.split(path)
    return posixpath.join(directory, INDEX_DIRECTORY, name)


def load_index(files: ReadsAt, path: str, size: int, *, indexed: str | None = None) -> Index | None:
    """Return what the index says of this file of ``size`` bytes; None if there is none that
    matches.

    ``indexed``: the path that the file had when it was indexed.
    """
    try:
        raw = files.read_at(index_path(indexed or path), 0, _MAX_INDEX_BYTES)
        line, _, check = raw.partition(b"\n")
        if check != b"%08x\n" % _crc(line):
            return None
        known = json.loads(line)
        if known["version"] != _VERSION or not 0 <= known["size"] <= size:
            return None
        if known["proof"] != _proof(files, path, known["size"]):
            return None
        return Index(
            known["size"],
            known["records"],
            None if known["times_ns"] is None else tuple(known["times_ns"]),
            None if known["keys"] is None else tuple(known["keys"]),
            tuple(Mark(*mark) for mark in known["marks"]),
            known["own"],
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def has_key(index: Index, key: str) -> bool:
    """Return whether a file may have records of this key."""
    if index.keys is None:
        return True
    lowest, highest = index.keys
    if isinstance(lowest, str):
        return lowest <= key <= str(highest)
    try:
        return lowest <= int(key) <= int(highest)
    except ValueError:
        return False


def save_index(disk: Disk, path: str, index: Index) -> None:
    """Write the index of a file that is closed."""
    where = index_path(path)
    known = {
        "version": _VERSION,
        "size": index.size,
        "proof": _proof(disk, path, index.size),
        "records": index.records,
        "times_ns": index.times_ns,
        "keys": index.keys,
        "marks": index.marks,
        "own": index.own,
    }
    line = json.dumps(known, separators=(",", ":")).encode()
    if not _stands_apart(disk, where):
        raise LogError(posixpath.dirname(where), "this is a directory of logs; remove the link")
    disk.make_dirs(posixpath.dirname(where))
    if disk.exists(where + _TEMPORARY):  # not written over: it may be a link to any file
        disk.remove(where + _TEMPORARY)
    write_whole(disk, where + _TEMPORARY, [line, b"\n%08x\n" % _crc(line)])
    put_in_place(disk, where + _TEMPORARY, where)


def is_worth_an_index(size: int) -> bool:
    """A smaller file is read as fast as its index."""
    return size >= MIN_INDEXED_BYTES


def try_to_save(disk: Disk, path: str, draft: IndexDraft) -> None:
    """Save an index if it is worth it; one that cannot be written stops no one."""
    with suppress(OSError, LogError):
        if is_worth_an_index(disk.size(path)):
            save_index(disk, path, draft.make_index(disk.view(path)))


def remove_index(disk: Disk, path: str) -> None:
    """The file was removed. An index that comes back after a crash does no harm."""
    where = index_path(path)
    with suppress(OSError):
        if disk.exists(where) and _stands_apart(disk, where):
            disk.remove(where)


def move_index(disk: Disk, path: str, target: str) -> None:
    """The file was renamed."""
    where = index_path(path)
    with suppress(OSError):
        if disk.exists(where) and _stands_apart(disk, where):
            disk.rename(where, index_path(target))


def _stands_apart(disk: Disk, where: str) -> bool:
    """No, if the directory is a link to that of the logs: an index there has its file's name."""
    return not disk.exists(posixpath.join(posixpath.dirname(where), INDEX_DIRECTORY))


def _proof(files: ReadsAt, path: str, size: int) -> list[int]:
    head = files.read_at(path, 0, min(PROOF_BYTES, size))
    begin = max(0, size - PROOF_BYTES)
    return [_crc(head), _crc(files.read_at(path, begin, size - begin))]


def _crc(data: Buffer) -> int:
    crc: int = google_crc32c.value(bytes(data))
    return crc


def _clamped(time_ns: int) -> int:
    """Return a time as columns hold it."""
    return max(-_INT64, min(_INT64 - 1, time_ns))


def _text(key: Any) -> Key:
    if isinstance(key, bytes):
        return str(UUID(bytes=key))
    known: Key = key
    return known
