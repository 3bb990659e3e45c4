"""Where part files wait: names, and the local disk with what the sinks need beyond logs.

    <directory>/_temporary-<ms>-<hex>/part-...      part files of one write, and what is built there
    <directory>/_temporary-<ms>-<hex>.new/          a directory about to become the log

The directory is that of the log, or the one above it while the log is yet to be made: renames never
leave the file system. Hidden names are no part of any log, so readers never see them.

A write that ends, well or badly, removes its staging directory. One that was killed cannot; what
it leaves is removed by a later write to the same directory, once it is a day old: a younger one
may belong to a write that is still running.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from journeyman.disk import Disk, RealDisk

STALE_AFTER_S = 24 * 3600
_NS_PER_MS = 1_000_000
_NAME = re.compile(r"_temporary-([0-9]{1,15})-[0-9a-f]{12}(?:\.new)?")
_COPY_BYTES = 64 * 1024 * 1024
_PLAIN_COPY_BYTES = 1024 * 1024
_MODE = 0o644

Source = tuple[str, int]  # a file, and the offset from which it is copied


class SinkDisk(Disk, Protocol):
    """A disk on which directories too can be renamed and removed, and files joined."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def concatenate(self, sources: Sequence[Source], target: str) -> int:
        """Write the sources end to end into a new file, synced; its size."""
        ...


class LocalDisk(RealDisk):
    """The machine's file system. Files are joined inside the kernel, or even by reference."""

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def concatenate(self, sources: Sequence[Source], target: str) -> int:
        to = os.open(target, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, _MODE)
        try:
            for path, offset in sources:
                of = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    _copy(of, to, offset)
                finally:
                    os.close(of)
            os.fdatasync(to)
            return os.fstat(to).st_size
        finally:
            os.close(to)


def staging_name(now_ns: int) -> str:
    return f"_temporary-{now_ns // _NS_PER_MS}-{secrets.token_hex(6)}"


def remove_staging(disk: SinkDisk, staging: str) -> None:
    """Remove a staging directory with all that is in it."""
    for directory in (staging, f"{staging}.new"):
        _remove_directory(disk, directory)


def remove_stale(disk: SinkDisk, directory: str, now_ns: int) -> None:
    """Remove what writes that were killed a day ago or earlier left behind."""
    for name in disk.list_dir(directory) if disk.is_dir(directory) else ():
        match = _NAME.fullmatch(name)
        if match and now_ns // _NS_PER_MS - int(match[1]) > STALE_AFTER_S * 1000:
            _remove_directory(disk, posixpath.join(directory, name))


def _remove_directory(disk: SinkDisk, directory: str) -> None:
    if not disk.is_dir(directory):
        return
    # Another writer may be at the same work.
    with suppress(FileNotFoundError):
        for name in disk.list_dir(directory):
            with suppress(FileNotFoundError):
                disk.remove(posixpath.join(directory, name))
        disk.remove_dir(directory)


def _copy(of: int, to: int, offset: int) -> None:
    """From ``offset`` to the end, at the place where ``to`` is."""
    while copied := _copy_some(of, to, offset):
        offset += copied


def _copy_some(of: int, to: int, offset: int) -> int:
    try:
        return os.copy_file_range(of, to, _COPY_BYTES, offset_src=offset)
    except AttributeError:  # not on every system
        pass
    except OSError as error:  # and not between all file systems
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    data = os.pread(of, _PLAIN_COPY_BYTES, offset)
    left = memoryview(data)
    while left:
        left = left[os.write(to, left) :]
    return len(data)
