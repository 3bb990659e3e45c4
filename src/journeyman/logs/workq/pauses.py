"""Which queues are paused: a small file beside the segments of a workq log.

    <dir>/paused-queues          "journeyman paused queues\n", then a name a line, sorted
    <dir>/paused-queues.new      its successor, not yet finished; litter after a crash

No record of the command log can say that a queue is paused, and the original ignores files that
are not named like segments. So the names are kept here, and the file is replaced in one step: a
crash leaves the old names or the new ones.

    prepare   writes and syncs the successor; fails without a trace when there is no room
    finish    lets it take the name, for good
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from contextlib import suppress

from journeyman.disk import Disk
from journeyman.errors import LogError
from journeyman.logs.publication import put_in_place, write_whole

FILE_NAME = "paused-queues"
_SUFFIX = ".new"
_TITLE = b"journeyman paused queues"


def read(disk: Disk, directory: str) -> frozenset[str]:
    """The names; none if there is no such file. What a crash left unfinished is removed."""
    path = posixpath.join(directory, FILE_NAME)
    if disk.exists(path + _SUFFIX):
        disk.remove(path + _SUFFIX)
    return peek(disk, directory)


def peek(disk: Disk, directory: str) -> frozenset[str]:
    """The same without changing anything: another process may own the log."""
    path = posixpath.join(directory, FILE_NAME)
    if not disk.exists(path):
        return frozenset()
    title, *names = disk.read_bytes(path).split(b"\n")
    if title != _TITLE or names.pop(-1) != b"":
        raise LogError(path, "not a list of paused queues; remove it, and all queues go on")
    return frozenset(name.decode(errors="replace") for name in names)


def prepare(disk: Disk, directory: str, names: Iterable[str]) -> None:
    """LogFull or another LogError: nothing was changed."""
    path = posixpath.join(directory, FILE_NAME) + _SUFFIX
    lines = [_TITLE, *(name.encode() for name in sorted(names)), b""]
    try:
        write_whole(disk, path, [b"\n".join(lines)])
    except OSError as error:
        raise LogError(path, f"cannot be written: {error.strerror or error}") from error


def finish(disk: Disk, directory: str) -> None:
    """OSError: which of the two files a crash leaves is unknown."""
    path = posixpath.join(directory, FILE_NAME)
    put_in_place(disk, path + _SUFFIX, path)


def discard(disk: Disk, directory: str) -> None:
    """What was prepared is not wanted."""
    with suppress(OSError):
        disk.remove(posixpath.join(directory, FILE_NAME) + _SUFFIX)
