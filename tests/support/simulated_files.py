"""What a simulated disk remembers of files and directories, and what of it survives a crash.

    FileNode        content   what a reader sees now
                    durable   what is there after a crash at the worst moment
                    unsynced  the writes and cuts in between, in order
    DirectoryNode   the same for names: entries, durable, unsynced changes

A name points to a node, as in a real file system: a file's data and its name become durable apart
from each other. Of what is unsynced, a crash keeps anything or nothing:

    data        any of the writes; the last one torn, or torn with zeros in place of the rest, or
                any blocks of it, with zeros for the others; the length without the data (zeros)
    names       any of the changes of a directory; those of one name in their order
    rename      across directories: under the old name, the new one, or both; never under neither

Advisory locks of a simulated disk: flock on files in memory. A crash forgets them all.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias


class LockTable:
    """Who holds which file. Any number may share a file, or one alone may hold it."""

    def __init__(self) -> None:
        self._held: list[SimulatedLock] = []
        self._freed = threading.Condition()

    def acquire(self, node: FileNode, shared: bool, timeout_s: float) -> SimulatedLock | None:
        """None when it was not to be had within the time."""
        with self._freed:
            if not self._freed.wait_for(lambda: self._is_free(node, shared), timeout_s):
                return None
            lock = SimulatedLock(self, node, shared)
            self._held.append(lock)
            return lock

    def release(self, lock: SimulatedLock) -> None:
        with self._freed:
            if lock in self._held:
                self._held.remove(lock)
                self._freed.notify_all()

    def _is_free(self, node: FileNode, shared: bool) -> bool:
        return all(held.node is not node or (shared and held.shared) for held in self._held)


@dataclass(slots=True, eq=False)
class SimulatedLock:
    table: LockTable
    node: FileNode
    shared: bool

    def release(self) -> None:
        self.table.release(self)


# What of the unsynced state a crash leaves; a number seeds a random choice.
Survival: TypeAlias = Literal["lose_all_unsynced", "keep_all_unsynced"] | int

BLOCK_BYTES = 512

# (offset, data): bytes written there. (size, None): the file was cut, or stretched, to this size.
_Edit: TypeAlias = tuple[int, bytes | None]


def _apply(content: bytearray, edit: _Edit) -> None:
    at, data = edit
    if at > len(content):
        content.extend(bytes(at - len(content)))
    if data is None:
        del content[at:]
    else:
        content[at : at + len(data)] = data


class FileNode:
    """The bytes of one file."""

    __slots__ = ("content", "durable", "linked", "unsynced")

    def __init__(self, durable: bytes | bytearray = b"") -> None:
        self.durable = bytearray(durable)
        self.content = bytearray(durable)
        self.unsynced: list[_Edit] = []
        self.linked = True  # has a name; counted against the capacity

    def write(self, data: bytes, offset: int | None = None) -> None:
        """Without an offset at the end."""
        edit: _Edit = (len(self.content) if offset is None else offset, data)
        self.unsynced.append(edit)
        _apply(self.content, edit)

    def truncate(self, size: int) -> None:
        edit: _Edit = (size, None)
        self.unsynced.append(edit)
        _apply(self.content, edit)

    def sync(self) -> None:
        for edit in self.unsynced:
            _apply(self.durable, edit)
        self.unsynced.clear()

    def fail_sync(self) -> None:
        """The kernel drops what it could not write and calls it clean: no later sync writes it."""
        self.unsynced.clear()

    def surviving(self, survival: Survival, rng: random.Random) -> bytearray:
        content = bytearray(self.durable)
        if survival != "lose_all_unsynced":
            keep_all = survival == "keep_all_unsynced"
            for edit in self.unsynced if keep_all else _some_edits(self.unsynced, rng):
                _apply(content, edit)
        return content


def _some_edits(edits: list[_Edit], rng: random.Random) -> Iterable[_Edit]:
    how = rng.choice(("none", "all", "prefix", "subset", "zeros"))
    if how == "none" or not edits:
        return []
    if how == "all":
        return edits
    point = rng.randrange(len(edits))
    if how == "prefix":
        return [*edits[:point], *_torn(edits[point], rng)]
    if how == "subset":
        kept = (_torn(e, rng) if rng.random() < 0.3 else [e] for e in edits if rng.random() < 0.5)
        return [edit for torn in kept for edit in torn]
    return [*edits[:point], *((at, data and bytes(len(data))) for at, data in edits[point:])]


def _torn(edit: _Edit, rng: random.Random) -> list[_Edit]:
    """A write that got somewhere; a cut that happened or not."""
    at, data = edit
    if data is None:
        return [edit] if rng.random() < 0.5 else []
    if len(data) > BLOCK_BYTES and rng.random() < 0.3:  # blocks reach the disk in any order
        blocks = (data[i : i + BLOCK_BYTES] for i in range(0, len(data), BLOCK_BYTES))
        return [(at, b"".join(b if rng.random() < 0.5 else bytes(len(b)) for b in blocks))]
    written = data[: rng.randrange(len(data) + 1)]
    if rng.random() < 0.5:  # the length was durable, and some of the data
        written += bytes(len(data) - len(written))
    return [(at, written)]


class Change:
    """One step of a directory: a name goes, a name comes, or both at once (rename)."""

    __slots__ = ("added", "after", "node", "removed")

    def __init__(
        self,
        *,
        removed: str | None = None,
        added: str | None = None,
        node: Node | None = None,
        after: tuple[DirectoryNode, Change] | None = None,
    ) -> None:
        """``after``: the other half of a rename, which is durable before this one is."""
        self.removed = removed
        self.added = added
        self.node = node
        self.after = after

    @property
    def names(self) -> set[str | None]:
        return {self.removed, self.added} - {None}

    def apply(self, entries: dict[str, Node]) -> None:
        if self.removed is not None:
            entries.pop(self.removed, None)
        if self.added is not None:
            assert self.node is not None
            entries[self.added] = self.node


class DirectoryNode:
    """The names in one directory."""

    __slots__ = ("durable", "entries", "unsynced")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.unsynced: list[Change] = []

    def change(self, change: Change) -> None:
        change.apply(self.entries)
        self.unsynced.append(change)

    def sync(self, up_to: int | None = None) -> None:
        changes = self.unsynced[:up_to]
        del self.unsynced[:up_to]
        for change in changes:
            if change.after is not None:
                directory, other = change.after
                if other in directory.unsynced:
                    directory.sync(directory.unsynced.index(other) + 1)
            change.apply(self.durable)


Node: TypeAlias = FileNode | DirectoryNode


def surviving_changes(
    directories: list[DirectoryNode], survival: Survival, rng: random.Random
) -> set[Change]:
    """The unsynced changes of names that a crash leaves."""
    if survival == "lose_all_unsynced":
        return set()
    kept: set[Change] = set()
    for directory in directories:
        changes = directory.unsynced
        if survival == "keep_all_unsynced":
            kept.update(changes)
        elif rng.random() < 0.5:
            kept.update(changes[: rng.randrange(len(changes) + 1)])
        else:
            kept.update(change for change in changes if rng.random() < 0.5)
    while dropped := {change for change in kept if not _may_survive(change, directories, kept)}:
        kept -= dropped
    return kept


def _may_survive(change: Change, directories: list[DirectoryNode], kept: set[Change]) -> bool:
    """Whether what this change builds on survives too: the earlier changes of its names, and for a
    name that went by a rename the name that it got."""
    if change.after is not None:
        directory, other = change.after
        if other in directory.unsynced and other not in kept:
            return False
    own = next(directory.unsynced for directory in directories if change in directory.unsynced)
    earlier = own[: own.index(change)]
    return all(other in kept for other in earlier if other.names & change.names)


def directories_under(directory: DirectoryNode) -> Iterator[DirectoryNode]:
    """A directory and all below it."""
    yield directory
    for node in directory.entries.values():
        if isinstance(node, DirectoryNode):
            yield from directories_under(node)


def files_under(directory: DirectoryNode, above: str = "") -> Iterator[tuple[str, FileNode]]:
    for name, node in sorted(directory.entries.items()):
        path = f"{above}/{name}"
        if isinstance(node, DirectoryNode):
            yield from files_under(node, path)
        else:
            yield path, node


def surviving_directory(
    directory: DirectoryNode,
    kept: set[Change],
    survival: Survival,
    rng: random.Random,
    seen: dict[int, FileNode],
) -> DirectoryNode:
    entries = dict(directory.durable)
    for change in directory.unsynced:
        if change in kept:
            change.apply(entries)
    after = DirectoryNode()
    for name, node in entries.items():
        survivor: Node
        if isinstance(node, DirectoryNode):
            survivor = surviving_directory(node, kept, survival, rng, seen)
        else:
            # A file under two names stays one file.
            if id(node) not in seen:
                seen[id(node)] = FileNode(node.surviving(survival, rng))
            survivor = seen[id(node)]
        after.entries[name] = after.durable[name] = survivor
    return after
