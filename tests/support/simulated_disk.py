"""A disk in memory that keeps the promises of journeyman.disk.Disk and breaks every other one.

    disk = SimulatedDisk()
    disk.cut_power_at(7)               the 7th operation from now raises PowerCut, as all after it
    ... run the program ...
    after = disk.after_crash(seed)     a new disk with what the crash left
    ... recover, compare ...

Operations are what changes a disk: create write truncate sync rename remove mkdir sync_dir. They
are counted, so a test can cut the power at every single one. Reading is not an operation.

Also: a ``capacity`` in bytes (a write puts down what fits and says ENOSPC), and ``fail``, which
makes operations fail with an errno; opening a file, for reading or appending, is of the kind
``open`` there, though it is not an operation. A file sync that fails loses the unsynced data for
good, as Linux does: a later sync succeeds and means nothing.

PowerCut is a BaseException so that no ``except Exception`` outlives the power.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from journeyman.disk import AppendFile, FileStatus, Lock
from journeyman.errors import LogLocked
from tests.support.simulated_files import (
    Change,
    DirectoryNode,
    FileNode,
    LockTable,
    Node,
    Survival,
    directories_under,
    files_under,
    surviving_changes,
    surviving_directory,
)


class PowerCut(BaseException):
    """The power was cut. The disk no longer works; see ``after_crash``."""


@dataclass(slots=True)
class _Failure:
    kinds: tuple[str, ...]
    error: int
    skip: int
    times: int
    partial: int


@lru_cache(maxsize=4096)
def _parts(path: str) -> tuple[str, ...]:
    """The names on the way from the root; relative paths begin there too."""
    return tuple(name for name in posixpath.normpath("/" + path).split("/") if name)


def _os_error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class _SimulatedAppendFile:
    def __init__(self, disk: SimulatedDisk, path: str, node: FileNode) -> None:
        self._disk = disk
        self._path = path
        self._node: FileNode | None = node

    @property
    def path(self) -> str:
        return self._path

    def _open_node(self) -> FileNode:
        if self._node is None:
            raise _os_error(errno.EBADF, self._path)
        return self._node

    def size(self) -> int:
        self._disk._check_power()
        return len(self._open_node().content)

    def write(self, data: bytes) -> None:
        self._disk._write(self._path, self._open_node(), data)

    def sync(self) -> None:
        self._disk._sync(self._path, self._open_node())

    def truncate(self, size: int) -> None:
        self._disk._truncate(self._path, self._open_node(), size)

    def close(self) -> None:
        self._disk._check_power()
        self._node = None


class _SimulatedReadFile:
    def __init__(self, disk: SimulatedDisk, node: FileNode) -> None:
        self._disk = disk
        self._node = node

    def still_at(self, path: str) -> bool:
        return self._disk._find(path) is self._node

    def read_at(self, offset: int, length: int) -> bytes:
        return bytes(self._node.content[offset : offset + length])

    def size(self) -> int:
        return len(self._node.content)

    def close(self) -> None:
        """There is nothing to give back."""


class SimulatedDisk:
    """See the module. Safe to use from several threads."""

    def __init__(self, *, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.operations = 0
        self.counts: Counter[str] = Counter()  # operations by kind
        self._root = DirectoryNode()
        self._used = 0
        self.when_cut: Callable[[], None] | None = None  # called at the moment of a power cut
        self.before_sync: Callable[[], None] = lambda: None  # of a file: it may take its time
        self._powered = True
        self._cut_at: int | None = None
        self._cut_keeps = 0.0
        self._failures: list[_Failure] = []
        self._partial = 0  # what the write that fails now puts down all the same
        self._locks = LockTable()
        self._mutex = threading.RLock()
        self.last_syncs: dict[str, Any] = {}
        self.samples: dict[str, Any] = {}

    def sample(self) -> dict[str, Any]:
        """A server shows no figures of this disk."""
        return {}

    # --- trouble ---

    def cut_power_at(self, operation: int, *, torn: float = 0.0) -> None:
        """Cut the power when the ``operation``-th operation from now (from 1) is about to happen.

        ``torn``: how much of it, if it is a write, still reaches the (volatile) file, 0 to 1.
        """
        self._cut_at = self.operations + operation
        self._cut_keeps = torn

    def cut_power(self) -> None:
        """Cut it now: every call from here on raises."""
        self._powered = False
        if self.when_cut is not None:
            self.when_cut()

    def after_crash(self, survival: Survival = "lose_all_unsynced") -> SimulatedDisk:
        """A new disk with what survives a crash at this moment. This one stays as it is."""
        rng = random.Random(survival if isinstance(survival, int) else 0)
        with self._mutex:
            directories = list(directories_under(self._root))
            kept = surviving_changes(directories, survival, rng)
            after = SimulatedDisk(capacity=self.capacity)
            after._root = surviving_directory(self._root, kept, survival, rng, {})
            after._used = sum(len(node.content) for _, node in files_under(after._root))
        return after

    def fail(
        self, *kinds: str, error: int = errno.EIO, skip: int = 0, times: int = 1, partial: int = 0
    ) -> None:
        """Let operations of these kinds fail: after ``skip`` of them, the next ``times`` ones.

        ``partial``: how many bytes a failing write puts down all the same.
        """
        self._failures.append(_Failure(kinds, error, skip, times, partial))

    def fail_sync_at(self, number: int) -> None:
        """Let the ``number``-th sync from now (from 1) fail, of files and directories together."""
        self.fail("sync", "sync_dir", skip=number - 1)

    def fail_next_sync(self) -> None:
        self.fail_sync_at(1)

    def heal(self) -> None:
        """No more failures (what a failed sync lost stays lost)."""
        self._failures.clear()

    # --- what a test wants to know and set up, without operations ---

    def plant(self, path: str, data: bytes) -> None:
        """Put a durable file there, and durable directories above it."""
        directory = self._root
        *above, name = _parts(path)
        for part in above:
            child = directory.entries.get(part)
            if child is None:
                child = directory.entries[part] = directory.durable[part] = DirectoryNode()
            assert isinstance(child, DirectoryNode)
            directory = child
        old = directory.entries.get(name)
        assert not isinstance(old, DirectoryNode)
        self._unlink(old)
        directory.entries[name] = directory.durable[name] = FileNode(data)
        self._used += len(data)

    def write_at(self, path: str, offset: int, data: bytes) -> None:
        """Write inside of a file, as stores do and logs do not; not durable before its sync."""
        self._check_power()
        node = self._file(path)
        self._used -= len(node.content)
        node.write(data, offset)
        self._used += len(node.content)

    def files(self) -> dict[str, bytes]:
        """Path -> content of every file, as a reader sees it now."""
        return {path: bytes(node.content) for path, node in files_under(self._root)}

    @property
    def is_powered(self) -> bool:
        return self._powered

    @property
    def used(self) -> int:
        """Bytes in files, as counted against ``capacity``."""
        return self._used

    # --- Disk ---

    def open_append(self, path: str) -> AppendFile:
        self._check_power()
        self._fail_if_due("open", path)
        with self._mutex:
            return _SimulatedAppendFile(self, path, self._file_made_if_missing(path))

    def open_read(self, path: str) -> _SimulatedReadFile:
        self._fail_if_due("open", path)
        return _SimulatedReadFile(self, self._file(path))

    def read_bytes(self, path: str) -> bytes:
        self._fail_if_due("open", path)
        return bytes(self._file(path).content)

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        self._fail_if_due("open", path)
        return bytes(self._file(path).content[offset : offset + length])

    def view(self, path: str) -> memoryview:
        return memoryview(self.read_bytes(path))

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def is_dir(self, path: str) -> bool:
        return isinstance(self._find(path), DirectoryNode)

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def stat(self, path: str) -> FileStatus:
        """Every file is as old as the others; a name that is taken away keeps its identity."""
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(node, DirectoryNode):
            return FileStatus(id(node), 0, 0, is_dir=True, is_regular=False)
        return FileStatus(id(node), len(node.content), 0, is_dir=False, is_regular=True)

    def scan(self, path: str) -> dict[str, FileStatus]:
        return {name: self.stat(f"{path}/{name}") for name in self.list_dir(path)}

    def free_bytes(self, path: str) -> int | None:
        return None if self.capacity is None else self.capacity - self._used

    def share(self, path: str) -> None:
        """There are no users."""

    is_shared = False

    def flush(self) -> None:
        """There are no other processes."""

    def list_dir(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def make_dirs(self, path: str) -> None:
        above = ""
        for part in _parts(path):
            here = f"{above}/{part}"
            with self._mutex:
                found = self._find(here)
                if isinstance(found, FileNode):
                    raise _os_error(errno.EEXIST, here)
                if found is None:
                    self._step("mkdir", here)
                    parent = self._directory(above)
                    parent.change(Change(added=part, node=DirectoryNode()))
                    self.sync_dir(above)
            above = here

    def rename(self, source: str, target: str) -> None:
        with self._mutex:
            node = self._file(source)
            source_dir, source_name = self._place(source)
            target_dir, target_name = self._place(target)
            replaced = target_dir.entries.get(target_name)
            if isinstance(replaced, DirectoryNode):
                raise _os_error(errno.EISDIR, target)
            self._step("rename", target)
            if replaced is node:
                return  # two names of one file: POSIX does nothing
            self._unlink(replaced)
            if source_dir is target_dir:
                source_dir.change(Change(removed=source_name, added=target_name, node=node))
            else:
                came = Change(added=target_name, node=node)
                target_dir.change(came)
                source_dir.change(Change(removed=source_name, after=(target_dir, came)))

    def remove(self, path: str) -> None:
        with self._mutex:
            node = self._file(path)
            directory, name = self._place(path)
            self._step("remove", path)
            directory.change(Change(removed=name))
            self._unlink(node)

    def sync_dir(self, path: str) -> None:
        with self._mutex:
            directory = self._directory(path)
            self._step("sync_dir", path)
            directory.sync()

    def lock(self, path: str, *, shared: bool = False, timeout_s: float = 0.0) -> Lock:
        self._check_power()
        while True:
            with self._mutex:
                node = self._file_made_if_missing(path)
            lock = self._locks.acquire(node, shared, timeout_s)
            if lock is None:
                raise LogLocked(path, "another process is using this log")
            with self._mutex:
                directory, name = self._place(path)
                if directory.entries.get(name) is node:
                    return lock
            lock.release()

    # --- inside ---

    def _check_power(self) -> None:
        if not self._powered:
            raise PowerCut

    def _step(self, kind: str, path: str) -> None:
        """Count an operation about to happen; cut the power or fail if that is due."""
        self._check_power()
        self.operations += 1
        self.counts[kind] += 1
        if self._cut_at is not None and self.operations >= self._cut_at:
            self.cut_power()
            raise PowerCut(f"at {kind} {path}")
        self._fail_if_due(kind, path)

    def _fail_if_due(self, kind: str, path: str) -> None:
        for failure in self._failures:
            if kind in failure.kinds:
                if failure.skip > 0:
                    failure.skip -= 1
                elif failure.times > 0:
                    failure.times -= 1
                    self._partial = failure.partial
                    raise _os_error(failure.error, path)

    def _find(self, path: str) -> Node | None:
        self._check_power()
        node: Node | None = self._root
        for part in _parts(path):
            if not isinstance(node, DirectoryNode):
                return None
            node = node.entries.get(part)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(node, DirectoryNode):
            raise _os_error(errno.EISDIR, path)
        return node

    def _directory(self, path: str) -> DirectoryNode:
        node = self._find(path)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        if isinstance(node, FileNode):
            raise _os_error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[DirectoryNode, str]:
        *above, name = _parts(path)
        return self._directory("/".join(above)), name

    def _file_made_if_missing(self, path: str) -> FileNode:
        if self._find(path) is not None:
            return self._file(path)
        directory, name = self._place(path)
        self._step("create", path)
        node = FileNode()
        directory.change(Change(added=name, node=node))
        return node

    def _unlink(self, node: Node | None) -> None:
        if isinstance(node, FileNode) and node.linked:
            node.linked = False
            self._used -= len(node.content)

    def _write(self, path: str, node: FileNode, data: bytes) -> None:
        with self._mutex:
            data = bytes(data)
            try:
                self._step("write", path)
            except PowerCut:
                node.write(data[: int(len(data) * self._cut_keeps)])
                raise
            except OSError:
                self._put_down(node, data[: self._partial])
                raise
            if self._put_down(node, data) < len(data):
                raise _os_error(errno.ENOSPC, path)

    def _put_down(self, node: FileNode, data: bytes) -> int:
        if self.capacity is not None and node.linked:
            data = data[: max(0, self.capacity - self._used)]
        if data:
            node.write(data)
            self._used += len(data) if node.linked else 0
        return len(data)

    def _sync(self, path: str, node: FileNode) -> None:
        self.before_sync()
        with self._mutex:
            try:
                self._step("sync", path)
            except OSError:
                node.fail_sync()
                raise
            node.sync()

    def _truncate(self, path: str, node: FileNode, size: int) -> None:
        with self._mutex:
            self._step("truncate", path)
            self._used += (size - len(node.content)) if node.linked else 0
            node.truncate(size)
