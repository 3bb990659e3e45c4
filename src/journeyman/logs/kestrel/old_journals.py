"""Journals of kestrel 1.x and 2.x are recognized, and left as they are: nothing here reads them.

    <queue>              the newest file
    <queue>.<ms>         older ones; <queue>.<ms>.pack stands for several
    <queue>+<reader>     the copy of a fan-out reader, a queue of its own

Segments of libkestrel have names like those of older files, so the content decides. Such a file
has no header; its entries begin with a small number and, little endian:

      0 ADD                            i32 size, i32 expires (seconds), data
      1 REMOVE, 3 REMOVE_TENTATIVE     nothing more
      2 ADDX                           i32 size, i64 added ms, i64 expires ms, data
      4 5 6 9                          i32 xid
      7 ADD_XID, 8 CONTINUE            i32 xid, then as ADDX
"""

from __future__ import annotations

import posixpath
import re
import struct
from collections.abc import Iterable

from journeyman.disk import ReadingDisk
from journeyman.formats.framing import Buffer

_NAME = re.compile(r"([^.~/]+)(?:\.[0-9]{1,18}(?:\.pack)?)?", re.ASCII)
_ADD, _ADDX, _ADD_XID, _CONTINUE = 0, 2, 7, 8
_LAST_OPCODE = 9
_ENTRY_BYTES = {1: 1, 3: 1, 4: 5, 5: 5, 6: 5, 9: 5}
_SIZE_AT = {_ADD: 1, _ADDX: 1, _ADD_XID: 5, _CONTINUE: 5}
_SIZE = struct.Struct("<i")
_OLD_FIELDS = struct.Struct("<i")
_FIELDS = struct.Struct("<qq")
_MAX_ITEM_BYTES = 256 * 1024 * 1024
_EXAMINED_ENTRIES = 64
# A journal can hold the time 0 (never), and milliseconds from 1987 to 2109.
_EARLIEST_MS, _LATEST_MS = 2**39, 2**42


def is_old_journal(disk: ReadingDisk, path: str) -> bool:
    """True if this file is a journal of kestrel 1.x or 2.x."""
    head = disk.read_at(path, 0, 1)
    return head != b"" and head[0] <= _LAST_OPCODE and begins_as_old_journal(disk.view(path))


def find_old_journals(
    disk: ReadingDisk, directory: str, names: Iterable[str]
) -> dict[str, list[str]]:
    """Their files, by queue.

    A file without a byte counts as the newest of a queue where other files of the directory are
    such journals, and as an older one beside others of its queue.
    """
    files: dict[str, list[str]] = {}
    certain: set[str] = set()
    empty_newest: set[str] = set()
    for name in names:
        match = _NAME.fullmatch(name)
        path = posixpath.join(directory, name)
        if match is None or disk.is_dir(path):
            continue
        queue = match.group(1)
        if disk.size(path):
            if not is_old_journal(disk, path):
                continue
            certain.add(queue)
        elif queue == name:
            empty_newest.add(queue)
        files.setdefault(queue, []).append(name)
    if not certain:
        return {}
    return {queue: files[queue] for queue in sorted(certain | empty_newest)}


def begins_as_old_journal(data: Buffer) -> bool:
    """True if a file that begins with these bytes seems to be such a journal.

    All entries that were examined are plausible, up to a write that was cut short; or an item with
    plausible times comes before the first fault.
    """
    offset = entries = items = 0
    while offset < len(data) and entries < _EXAMINED_ENTRIES:
        opcode = data[offset]
        end = offset + _ENTRY_BYTES.get(opcode, 0)
        if end == offset:
            fields = _item_fields(data, offset)
            if fields is None:
                return items > 0
            times, end = fields
            if not all(ms == 0 or _EARLIEST_MS <= ms < _LATEST_MS for ms in times):
                return False
            items += len(times) == 2
        if end > len(data):
            return items > 0 or entries > 1
        entries += 1
        offset = end
    return offset > 0


def _item_fields(data: Buffer, offset: int) -> tuple[tuple[int, ...], int] | None:
    """The times of an item in milliseconds, none if they are cut off, and where it ends.

    None if no such item can be here.
    """
    opcode = data[offset]
    if opcode not in _SIZE_AT:
        return None
    size_at = offset + _SIZE_AT[opcode]
    fields = _OLD_FIELDS if opcode == _ADD else _FIELDS
    fields_at = size_at + _SIZE.size
    if fields_at > len(data):
        return (), fields_at
    (size,) = _SIZE.unpack_from(data, size_at)
    if not fields.size <= size <= fields.size + _MAX_ITEM_BYTES:
        return None
    if fields_at + fields.size > len(data):
        return (), fields_at + size
    times = fields.unpack_from(data, fields_at)
    return tuple(1000 * s for s in times) if opcode == _ADD else times, fields_at + size
