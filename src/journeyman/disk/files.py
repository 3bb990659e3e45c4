"""The machine's file system as a disk.

What is made here can be read by its owner alone: files are 0600, directories 0700. Existing ones
keep their mode, and a file that replaces another takes over that one's.

Nothing is created through a symbolic link. Below directories that ``RealDisk.refuse_links_below``
names no link is followed at all, neither in place of a file nor of a folder: a server names its
data directory, which may itself be a link.

``RealDisk.keep_in_reserve`` sets file descriptors aside, so that logs can still be rotated,
compacted and checkpointed when connections and programs have taken all others.
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
from typing import BinaryIO, TypeVar

from journeyman.disk.contract import AppendFile, FileStatus, Lock, is_out_of_files
from journeyman.errors import LogLocked

T = TypeVar("T")

FILE_MODE = 0o600  # logs hold commands, payloads and credentials
DIRECTORY_MODE = 0o700

_LOCK_POLL_S = 0.01
_reserve_lock = threading.Lock()


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
        """True if ``path`` names this very file."""
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


class RealDisk:
    """The machine's file system."""

    def __init__(self) -> None:
        self._reserve: list[int] = []  # descriptors that are given up when there are no others
        self._reserved = 0  # how many there shall be
        self._own: tuple[str, ...] = ()  # directories below which no link is followed

    def keep_in_reserve(self, descriptors: int) -> None:
        """Set so many descriptors aside for the files opened here; fewer if there are no more."""
        with _reserve_lock:
            self._reserved = descriptors
        self._fill_reserve()

    def refuse_links_below(self, *directories: str) -> None:
        """OSError for every link below these. They and what is above them may be links."""
        self._own = tuple(os.path.abspath(directory) for directory in directories)

    def append_descriptor(self, path: str) -> int:
        return self._open(path, os.O_CREAT | os.O_RDWR | os.O_APPEND)

    def open_append(self, path: str) -> AppendFile:
        return RealAppendFile(path, self.append_descriptor(path))

    def open_read(self, path: str) -> ReadFile:
        self._check_links(path)
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

    def stat(self, path: str) -> FileStatus:
        return _status(os.stat(path))

    def list_dir(self, path: str) -> list[str]:
        self._check_links(path)
        return sorted(os.listdir(path))

    def scan(self, path: str) -> dict[str, FileStatus]:
        self._check_links(path)
        found = {}
        with os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found[entry.name] = _status(entry.stat(follow_symlinks=False))
        return dict(sorted(found.items()))

    def free_bytes(self, path: str) -> int | None:
        system = os.statvfs(path if os.path.exists(path) else os.path.dirname(path) or ".")
        return system.f_bavail * system.f_frsize

    def share(self, path: str) -> None:
        os.chmod(path, 0o755 if os.path.isdir(path) else 0o644)

    is_shared = True

    def make_dirs(self, path: str) -> None:
        self._check_links(path)
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
        self._check_links(source)
        self._check_links(os.path.dirname(target))  # a link in its place is replaced
        # A log that others may read stays readable for them when it is compacted.
        with suppress(FileNotFoundError):
            mode = os.lstat(target).st_mode
            if stat.S_ISREG(mode):
                os.chmod(source, stat.S_IMODE(mode))
        os.replace(source, target)

    def remove(self, path: str) -> None:
        self._check_links(os.path.dirname(path))
        os.remove(path)

    def sync_dir(self, path: str) -> None:
        fd = self._open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def flush(self) -> None:
        """Every process of the machine sees what was written."""

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

    # -- links --

    def _check_links(self, path: str) -> bool:
        """True if the path is below one of our own directories; OSError if a link is on the way."""
        whole, is_own = os.path.abspath(path), False
        for directory in self._own:
            if not whole.startswith(directory.rstrip("/") + "/"):
                continue
            is_own, way = True, directory
            for name in whole[len(directory) :].strip("/").split("/"):
                way = os.path.join(way, name)
                if os.path.islink(way):
                    raise _link_error(way)
        return is_own

    # -- descriptors --

    def _open_read(self, path: str) -> BinaryIO:
        fd = self._open(path, os.O_RDONLY)
        try:
            return os.fdopen(fd, "rb")
        except IsADirectoryError as error:  # it names the descriptor, which says nothing to anyone
            os.close(fd)
            raise IsADirectoryError(error.errno, error.strerror, path) from None

    def _open(self, path: str, flags: int) -> int:
        if self._check_links(path) or flags & os.O_CREAT:
            flags |= os.O_NOFOLLOW
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
    try:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _link_error(path) from None
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file; move it away", path)


def _link_error(path: str) -> OSError:
    return OSError(errno.ELOOP, "not a regular file but a symbolic link; move it away", path)


def _status(status: os.stat_result) -> FileStatus:
    mode = status.st_mode
    return FileStatus(
        status.st_ino, status.st_size, status.st_mtime_ns, stat.S_ISDIR(mode), stat.S_ISREG(mode)
    )


def _has_name(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
