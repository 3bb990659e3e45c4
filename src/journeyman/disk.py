"""The only place that opens, appends, syncs and renames data files.

What survives a crash, as promised by POSIX and no more:

    AppendFile.sync       the bytes of this file, up to here
    Disk.sync_dir         the entries of this directory: names made, renamed or removed in it

so a new file is there for good only after *both*, and a rename only after the directory's sync.
journeyman.testing.SimulatedDisk keeps exactly these promises and breaks every other one.

What is made here can be read by its owner alone: files are 0600, directories 0700. Existing ones
keep their mode, and a file that replaces another takes over that one's.

``RealDisk.keep_in_reserve`` sets file descriptors aside, so that logs can still be rotated,
compacted and checkpointed when connections and programs have taken all others.

Paths are plain strings. Errors are OSError, as the operating system words them; a lock that is
taken is LogLocked.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Protocol, TypeVar

from journeyman.errors import LogLocked

T = TypeVar("T")

FILE_MODE = 0o600  # logs hold commands, payloads and credentials
DIRECTORY_MODE = 0o700

_LOCK_POLL_S = 0.01
_reserve_lock = threading.Lock()


def is_full(error: OSError) -> bool:
    """Whether an error says that there is no room (disk or quota)."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def is_out_of_files(error: OSError) -> bool:
    """Whether an error says that no file can be opened now: too many are open."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


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


class Lock(Protocol):
    """A lock that is held until released (or until the process ends)."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system, as far as logs need one."""

    def open_append(self, path: str) -> AppendFile:
        """Open for appending; made if missing (then its directory entry awaits sync_dir)."""
        ...

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

    def lock(self, path: str, *, shared: bool = False, timeout_s: float = 0.0) -> Lock:
        """An advisory lock on a file, made if missing. LogLocked when not had within the time.

        The holder may remove the file before it lets go: a lock that is had is always one on the
        file that has this name.
        """
        ...


class RealAppendFile:
    def __init__(self, path: str, fd: int) -> None:
        self._path = path
        self._fd = fd

    @property
    def path(self) -> str:
        return self._path

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        return self._fd

    def size(self) -> int:
        return os.fstat(self._open_fd()).st_size

    def write(self, data: bytes) -> None:
        fd = self._open_fd()
        left = memoryview(data)
        while left:
            left = left[os.write(fd, left) :]

    def sync(self) -> None:
        os.fdatasync(self._open_fd())

    def truncate(self, size: int) -> None:
        os.ftruncate(self._open_fd(), size)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ReadFile:
    """A file open for reading. It stays the same file when its name is renamed or removed."""

    def __init__(self, path: str) -> None:
        self._fd = open_regular(path, os.O_RDONLY)

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer at the end of the file."""
        return os.pread(self._fd, length, offset)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def still_at(self, path: str) -> bool:
        """Whether ``path`` names this very file."""
        return _has_name(self._fd, path)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _FileLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)  # closing drops the flock
            self._fd = -1


class OpenFile(Protocol):
    """A file open for reading, which stays the same file whatever becomes of its name."""

    def read_at(self, offset: int, length: int) -> bytes: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class FollowedDisk(Disk, Protocol):
    """A disk whose files can be followed while they are written; logs do not need that."""

    def open_read(self, path: str) -> OpenFile: ...


class RealDisk:
    """The machine's file system."""

    def __init__(self) -> None:
        self._reserve: list[int] = []  # descriptors that are given up when there are no others
        self._reserved = 0  # how many there shall be

    def keep_in_reserve(self, descriptors: int) -> None:
        """Set so many descriptors aside for the files opened here; fewer if there are no more."""
        with _reserve_lock:
            self._reserved = descriptors
        self._fill_reserve()

    def append_descriptor(self, path: str) -> int:
        return self._open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)

    def open_append(self, path: str) -> AppendFile:
        return RealAppendFile(path, self.append_descriptor(path))

    def open_read(self, path: str) -> ReadFile:
        return ReadFile(path)

    def read_bytes(self, path: str) -> bytes:
        with self._open_read(path) as file:
            return file.read()

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        with self._open_read(path) as file:
            file.seek(offset)
            return file.read(length)

    def view(self, path: str) -> memoryview:
        with self._open_read(path) as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            # A mapping has a descriptor of its own.
            return memoryview(
                self._try(lambda: mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            )

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list_dir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(os.path.abspath(path))
        self.make_dirs(parent)
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):  # else another process was faster, which is as good
                raise
        self.sync_dir(parent)

    def rename(self, source: str, target: str) -> None:
        # A log that others may read stays readable for them when it is compacted.
        with suppress(FileNotFoundError):
            os.chmod(source, stat.S_IMODE(os.stat(target).st_mode))
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.remove(path)

    def sync_dir(self, path: str) -> None:
        fd = self._open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str, *, shared: bool = False, timeout_s: float = 0.0) -> Lock:
        how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
        deadline = time.monotonic() + timeout_s
        while True:
            fd = self._open(path, os.O_CREAT | os.O_RDWR)
            try:
                fcntl.flock(fd, how)
                if _has_name(fd, path):
                    return _FileLock(fd)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(fd)
                    raise LogLocked(path, "another process is using this log") from None
                time.sleep(_LOCK_POLL_S)
            except OSError:
                os.close(fd)
                raise
            os.close(fd)

    # -- descriptors --

    def _open_read(self, path: str) -> BinaryIO:
        fd = self._open(path, os.O_RDONLY)
        try:
            return os.fdopen(fd, "rb")
        except IsADirectoryError as error:  # it names the descriptor, which says nothing to anyone
            os.close(fd)
            raise IsADirectoryError(error.errno, error.strerror, path) from None

    def _open(self, path: str, flags: int) -> int:
        fd = self._try(lambda: open_regular(path, flags))
        if len(self._reserve) < self._reserved:
            self._fill_reserve()
        return fd

    def _try(self, call: Callable[[], T]) -> T:
        """Make a call that needs a descriptor; if there is none, with one of the reserve."""
        try:
            return call()
        except OSError as error:
            if not is_out_of_files(error):
                raise
            first = error
        with _reserve_lock:
            while self._reserve:  # one after another: another process may be faster
                os.close(self._reserve.pop())
                try:
                    return call()
                except OSError as error:
                    if not is_out_of_files(error):
                        raise
        raise first

    def _fill_reserve(self) -> None:
        with _reserve_lock, suppress(OSError):
            while len(self._reserve) < self._reserved:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def open_regular(path: str, flags: int) -> int:
    """A descriptor of a file or a directory. OSError for all else: to open a pipe would wait for
    its other end, and to read one for ever."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file; move it away", path)


def _has_name(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
