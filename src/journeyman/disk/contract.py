"""The promises of a disk: the file system as far as logs need one.

What survives a crash, as promised by POSIX and no more:

    AppendFile.sync       the bytes of this file, up to here
    Disk.sync_dir         the entries of this directory: names made, renamed or removed in it

so a new file is there for good only after *both*, and a rename only after the directory's sync.
tests.support.simulated_disk.SimulatedDisk keeps exactly these promises and breaks every other one.

Paths are plain strings. Errors are OSError, as the operating system words them; a lock that is
taken is LogLocked. ``NotWritten`` is an OSError of a sync that is known to have written nothing.
"""

from __future__ import annotations

import errno
from typing import NamedTuple, Protocol


def is_full(error: OSError) -> bool:
    """True if an error says that there is no room (disk or quota)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_files(error: OSError) -> bool:
    """True if an error says that no file can be opened now: too many are open."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


class NotWritten(OSError):
    """A sync that failed and has written nothing: the bytes can be cut off, and the file goes on.

    Any other failed sync leaves open what is on the disk.
    """


class FileStatus(NamedTuple):
    """The identity of a file and its present state."""

    identity: int  # the inode: another file never has the same
    size: int
    modified_ns: int
    is_dir: bool
    is_regular: bool  # neither a directory nor a link, a pipe or a device


class AppendFile(Protocol):
    """A file open for appending."""

    @property
    def path(self) -> str: ...

    def size(self) -> int:
        """Bytes in the file now."""
        ...

    def write(self, data: bytes) -> None:
        """Append all of it. On OSError a part of it may have been written: see ``truncate``."""
        ...

    def sync(self) -> None:
        """Make every byte of this file durable (fdatasync)."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def close(self) -> None: ...


class OpenFile(Protocol):
    """A file open for reading, which stays the same file whatever becomes of its name."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer at the end of the file."""
        ...

    def size(self) -> int: ...

    def still_at(self, path: str) -> bool:
        """True if ``path`` names this very file."""
        ...

    def close(self) -> None: ...


class Lock(Protocol):
    """A lock that is held until released (or until the process ends)."""

    def release(self) -> None: ...


class ReadingDisk(Protocol):
    """A file system, as far as finding and reading logs need one."""

    def read_bytes(self, path: str) -> bytes:
        """The whole file."""
        ...

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer at the end of the file."""
        ...

    def view(self, path: str) -> memoryview:
        """The whole file as a read-only buffer, mapped where that is possible.

        Do not look at it after the file was cut: a mapping past the end kills the process.
        """
        ...

    def exists(self, path: str) -> bool: ...

    def is_dir(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list_dir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...


class Disk(ReadingDisk, Protocol):
    """A file system, as far as logs need one."""

    def open_append(self, path: str) -> AppendFile:
        """Open for appending; made if missing (then its directory entry awaits sync_dir)."""
        ...

    def stat(self, path: str) -> FileStatus: ...

    def open_read(self, path: str) -> OpenFile:
        """Open for reading."""
        ...

    def make_dirs(self, path: str) -> None:
        """Make a directory and its parents, each one synced into its parent."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomic replace."""
        ...

    def remove(self, path: str) -> None: ...

    def sync_dir(self, path: str) -> None:
        """Make the entries of a directory durable."""
        ...

    def share(self, path: str) -> None:
        """Let other users of the machine read it."""
        ...

    def scan(self, path: str) -> dict[str, FileStatus]:
        """The entries of a directory, by name, sorted. One that is removed meanwhile is missing."""
        ...

    def free_bytes(self, path: str) -> int | None:
        """Room left where this path is or would be; None if that is not known."""
        ...

    @property
    def is_shared(self) -> bool:
        """True if other processes find the same files at the same paths."""
        ...

    def flush(self) -> None:
        """Let other processes see what was written here, durable or not."""
        ...

    def lock(self, path: str, *, shared: bool = False, timeout_s: float = 0.0) -> Lock:
        """An advisory lock on a file, made if missing. LogLocked when not had within the time.

        The holder may remove the file before it lets go: a lock that is had is always one on the
        file that has this name.
        """
        ...
