"""Where damaged bytes go, so that no repair destroys any.

    <dir>/<file>                              the log
    <dir>/quarantine/<file>.<begin>-<end>     what stood there in the file as it was found
    <dir>/quarantine/<file>.<begin>-<end>.2   the same place, another time, other bytes

A quarantine file is durable, name and all, before these functions return; only then may the
original be cut. Putting the same bytes aside twice (a crash came between) keeps one copy. Nothing
here is ever read again by a log; it is for people.
"""

from __future__ import annotations

import posixpath
from contextlib import suppress
from itertools import count

from journeyman.disk import Disk
from journeyman.formats.framing import Buffer
from journeyman.logs.segments import QUARANTINE, TEMPORARY_MARK

CHUNK_BYTES = 1024 * 1024  # how much of a file is in memory at once while it is copied

_UNFINISHED = TEMPORARY_MARK + "writing"


def copy_aside(disk: Disk, path: str, data: Buffer, begin: int, end: int) -> str:
    """Copy ``data[begin:end]`` of the file at ``path``; the path of the copy."""
    target, taken = _choose(disk, path, data, begin, end)
    if taken:
        _sync_file(disk, target)  # it may stem from a process that died before it synced
    else:
        _write(disk, target, data, begin, end)
    disk.sync_dir(posixpath.dirname(target))
    return target


def move_aside(disk: Disk, path: str, data: Buffer) -> str:
    """Move the whole file there, ``data`` being its content; its new path."""
    target, taken = _choose(disk, path, data, 0, len(data))
    _sync_file(disk, target if taken else path)
    if not taken:
        disk.rename(path, target)
    disk.sync_dir(posixpath.dirname(target))
    if taken:
        disk.remove(path)
    disk.sync_dir(posixpath.dirname(path) or ".")
    return target


def _choose(disk: Disk, path: str, data: Buffer, begin: int, end: int) -> tuple[str, bool]:
    """The first name that is free, or taken (True) by these very bytes."""
    directory = posixpath.join(posixpath.dirname(path), QUARANTINE)
    disk.make_dirs(directory)
    name = posixpath.join(directory, f"{posixpath.basename(path)}.{begin}-{end}")
    target = name
    for number in count(2):
        if not disk.exists(target):
            return target, False
        if _holds(disk, target, data, begin, end):
            break
        target = f"{name}.{number}"
    return target, True


def _holds(disk: Disk, path: str, data: Buffer, begin: int, end: int) -> bool:
    if disk.size(path) != end - begin:
        return False
    return all(
        disk.read_at(path, at - begin, CHUNK_BYTES) == bytes(data[at : min(at + CHUNK_BYTES, end)])
        for at in range(begin, end, CHUNK_BYTES)
    )


def _write(disk: Disk, target: str, data: Buffer, begin: int, end: int) -> None:
    """Under another name first: a name without the mark always holds all of its bytes."""
    unfinished = target + _UNFINISHED
    file = disk.open_append(unfinished)
    try:
        file.truncate(0)
        for at in range(begin, end, CHUNK_BYTES):
            file.write(bytes(data[at : min(at + CHUNK_BYTES, end)]))
        file.sync()
        file.close()
    except OSError:
        with suppress(OSError):  # the first error is the one to tell
            file.close()
            disk.remove(unfinished)
        raise
    disk.rename(unfinished, target)


def _sync_file(disk: Disk, path: str) -> None:
    file = disk.open_append(path)
    try:
        file.sync()
    finally:
        file.close()
