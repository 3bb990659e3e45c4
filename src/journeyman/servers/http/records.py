"""Records of the logs, read for people: those of one job, and the last ones.

    of_key    the bytes of the key are searched for in the files, and what stands around them is
              decoded: a gigabyte is read in a second or two, and no index is kept
    last      the end of the newest file, from the first place on where a record begins

Files are read, not mapped, and in pieces: a log may be cut or cleaned while it is read. All of
this runs in threads; nothing is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from journeyman.disk import Disk
from journeyman.errors import FormatError
from journeyman.formats import workq, ztick
from journeyman.formats.framing import Codec, Entry
from journeyman.formats.seals import is_marked
from journeyman.logs.segments import ledger_files, workq_files, ztick_files

PIECE_BYTES = 4 * 1024 * 1024
LAST_BYTES = 128 * 1024
LOOK_BACK_BYTES = 32  # a record begins at most so far before its key
MOST_RECORDS = 500  # records of one key
MOST_BYTES = 16 * 1024 * 1024  # bytes of these records; results may be a megabyte each
SHOWN_BYTES = 4 * 1024  # shown of one record
_ENTRY_BYTES = 2 * 1024 * 1024  # more than any record of the two logs takes
_MOST_RECORD_BYTES = 4 * 1024  # enough for most of them
_WORKQ_BEFORE_ID = tuple(15 + size + 1 for size in (1, 2, 3, 4))  # time, size, type
_ZTICK_BEFORE_ID = 4 + 1  # length, type
_NOTE_BYTES = 64 * 1024  # more than a record of the ledger takes that names a worker and its jobs
_WORKER = re.compile(rb'"kind": ?"attempts-begun", ?"worker": ?"([^"\\]{0,255})"')


@dataclass(frozen=True, slots=True)
class PlacedRecord:
    """A record, where it stands, and its first SHOWN_BYTES."""

    file: str
    entry: Entry[Any]
    data: bytes


def of_work_job(disk: Disk, directory: str, job_id: bytes) -> list[PlacedRecord]:
    """All records of a job that the log still has, oldest first."""
    found: list[PlacedRecord] = []
    for path in workq_files(disk, directory):
        for data, base, at in _places(disk, path, job_id):
            for before in _WORKQ_BEFORE_ID:
                entry = _entry_at(workq.CODEC, data, at - before)
                if entry is not None and entry.record.job_id == job_id:
                    found.append(_placed(path, entry, data, base))
                    break
            if len(found) >= MOST_RECORDS or _size_of(found) >= MOST_BYTES:
                return found
    return found


def workers_of_job(disk: Disk, directory: str, job: str) -> dict[int, str]:
    """Who ran which attempt of a job of the work queue, as far as this ledger says.

    The ledger names many jobs in one record: the worker stands before them.
    """
    found: dict[int, str] = {}
    needle = re.compile(rb'"%b": ?(\d{1,9})' % re.escape(job.encode()))
    for path in ledger_files(disk, directory):
        file = disk.open_read(path)
        try:
            base, before = 0, b""
            while data := file.read_at(base, PIECE_BYTES):
                both = before + data
                for match in needle.finditer(both):
                    workers = _WORKER.findall(
                        both, max(0, match.start() - _NOTE_BYTES), match.start()
                    )
                    if workers:
                        found[int(match[1])] = workers[-1].decode(errors="replace")
                base, before = base + len(data), both[-_NOTE_BYTES:]
        finally:
            file.close()
    return found


def _size_of(records: list[PlacedRecord]) -> int:
    return sum(each.entry.length for each in records)


def of_scheduled_job(disk: Disk, path: str, identifier: str) -> list[PlacedRecord]:
    name = identifier.encode()
    needle = len(name).to_bytes(2) + name
    found: list[PlacedRecord] = []
    for file in ztick_files(disk, path):
        for data, base, at in _places(disk, file, needle):
            entry = _entry_at(ztick.CODEC, data, at - _ZTICK_BEFORE_ID)
            is_job = entry is not None and isinstance(entry.record, ztick.JobSet | ztick.JobRemoved)
            if entry is not None and is_job and entry.record.identifier == identifier:
                found.append(_placed(file, entry, data, base))
            if len(found) >= MOST_RECORDS:
                return found
    return found


def last_records(
    disk: Disk, codec: Codec[Any], path: str, limit: int, end: int | None = None
) -> list[PlacedRecord]:
    """The last records of a file, or of its first ``end`` bytes, newest first."""
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return []
    try:
        size = file.size() if end is None else min(end, file.size())
        base = max(0, size - LAST_BYTES)
        data = file.read_at(base, min(LAST_BYTES, size))
    finally:
        file.close()
    found: list[PlacedRecord] = []
    try:
        offset: int | None = codec.check_header(data) if base == 0 else codec.resync(data, 0)
        while offset is not None and (entry := codec.decode(data, offset)) is not None:
            if not _is_seal(codec, data, entry.offset):
                found.append(_placed(path, entry, data, base))
            offset = entry.end
    except FormatError:
        pass  # the batch that is being written
    return found[: -limit - 1 : -1]


def first_time_ns(disk: Disk, path: str) -> int | None:
    """When the first record of a segment of the work queue was logged; None without a whole one."""
    data = disk.read_at(path, 0, _ENTRY_BYTES)
    try:
        entry = workq.CODEC.decode(data, workq.CODEC.check_header(data))
    except FormatError:
        return None
    return None if entry is None else entry.record.logged.unix_ns


def records_at(
    disk: Disk, codec: Codec[Any], places: Iterable[tuple[str, int]]
) -> list[PlacedRecord]:
    """The records at these places: files and offsets."""
    found = []
    for path, offset in places:
        data = disk.read_at(path, offset, _MOST_RECORD_BYTES)
        entry = _entry_at(codec, data, 0)
        if entry is None:
            data = disk.read_at(path, offset, _ENTRY_BYTES)
            entry = _entry_at(codec, data, 0)
        if entry is not None:
            found.append(_placed(path, entry, data, offset))
    return found


def _places(disk: Disk, path: str, needle: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Pieces of the file that hold the needle, where each begins, and where in it the needle is.

    A piece goes on far enough after the needle for the whole record to be in it.
    """
    try:
        file = disk.open_read(path)
    except FileNotFoundError:
        return
    try:
        base, overlap = 0, 2 * LOOK_BACK_BYTES + len(needle)
        while data := file.read_at(base, PIECE_BYTES):
            is_last = len(data) < PIECE_BYTES
            end = len(data) if is_last else PIECE_BYTES - overlap + LOOK_BACK_BYTES
            at = data.find(needle, LOOK_BACK_BYTES if base else 0, end + len(needle))
            if at >= 0:
                data += file.read_at(base + len(data), _ENTRY_BYTES)
            while 0 <= at < end:
                yield data, base, at
                at = data.find(needle, at + 1, end + len(needle))
            if is_last:
                return
            base += PIECE_BYTES - overlap
    finally:
        file.close()


def _entry_at(codec: Codec[Any], data: bytes, offset: int) -> Entry[Any] | None:
    if offset < 0:
        return None
    try:
        return codec.decode(data, offset)
    except FormatError:
        return None


def _placed(path: str, entry: Entry[Any], data: bytes, base: int) -> PlacedRecord:
    placed = Entry(base + entry.offset, entry.length, entry.record)
    return PlacedRecord(
        path, placed, data[entry.offset : min(entry.end, entry.offset + SHOWN_BYTES)]
    )


def _is_seal(codec: Codec[Any], data: bytes, offset: int) -> bool:
    return codec.seals is not None and is_marked(codec.seals, data, offset)
