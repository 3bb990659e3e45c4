"""Taking a backup of a data directory, while its server writes to it or without one.

    list the files, open them, read their sizes, list again: the same names and inodes?
        no   a log was rotated, compacted or cleaned meanwhile: once more
        yes  what is open is the state of one moment; files that are open keep their bytes

Logs only grow, so a file up to the size it had is what the log was. Sizes are read twice in a row:
if they are the same, they were so at one moment, and the backup is *exact*. A server under load may
not give us such a moment. Then the order counts, and it is the order of causes: a job that the
schedule says was executed has put its work on a queue before, so the schedule's log is looked at
before the queues; a checkpoint speaks of items, so it is looked at before them; the ledger is
written before the records that it belongs to, so it is looked at last. Either way a restored
directory is one that kill -9 could have left.

A store is a database: it is copied by its own engine (journeyman.storage.opening), after the logs
and before the ledger. Locks are left out. Everything else in the directory is part of the backup.

Of a file that grew, what is new becomes a chunk of its own; small ones at the end are joined when
they are many. That the rest is as it was is seen at the last chunk: a recovery cuts a file at its
end, so whatever it changed reaches there.
"""

from __future__ import annotations

import hashlib
import os
import resource
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from journeyman import __version__
from journeyman.backup.vault import Manifest, StoredFile, Vault, list_backups, read_manifest
from journeyman.clock import Clock
from journeyman.data_directory import LEDGER_DIRECTORY, SCHEDULE_LOG, STORE_DIRECTORY
from journeyman.disk import Disk, OpenFile, absolute, disk_of, is_out_of_files
from journeyman.errors import LogError, UsageError
from journeyman.storage.opening import copy_store
from journeyman.units import MIB

CHUNKS = "chunks"
CHUNK_BYTES = 4 * MIB
SMALL_CHUNKS = 64  # at the end of a file, until they are joined
_ATTEMPTS = 1000  # to find the files as they were at one moment
_LOOKS = 50  # to find the sizes of one moment
_LOCK = ".lock"

Identity = tuple[int, int, int]  # inode, size, time of the last change
Listing = dict[str, Identity]


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup that was taken, and how much of it is new in the vault."""

    manifest: Manifest
    new_bytes: int


@dataclass(slots=True)
class _Held:
    """A file that is open; ``size`` bytes of it are part of the backup."""

    path: str
    file: OpenFile
    identity: Identity
    size: int = 0


@dataclass(frozen=True, slots=True)
class _Cut:
    held: Sequence[_Held]
    unchanged: Sequence[StoredFile]
    exact: bool


@dataclass(slots=True)
class Memory:
    """Answers of the vault that one process keeps from backup to backup."""

    last: Manifest | None = None
    chunks: set[str] | None = None


def is_changed(directory: str, last: Manifest | None) -> bool:
    """Return whether anything is there that the last backup does not have. A store is not looked
    into.
    """
    found = _list_files(disk_of(directory), directory, lambda _: True)
    known = {} if last is None else {file.path: file.identity for file in last.files}
    return found != known


def take(
    directory: str,
    vault: Vault,
    clock: Clock,
    *,
    full: bool = False,
    memory: Memory | None = None,
) -> Taken:
    """``full``: read every file, also those that have not changed since the last backup."""
    disk = disk_of(directory)
    if not disk.is_dir(directory):
        raise UsageError(f"{directory} is not a directory: nothing to back up")
    _allow_many_files()
    memory = memory or Memory()
    memory.last = memory.last or _last(vault)
    known = {} if full or memory.last is None else {file.path: file for file in memory.last.files}
    writer = _ChunkWriter(vault, known, memory)
    with ExitStack() as closing:
        store = os.path.join(directory, STORE_DIRECTORY)
        if not disk.is_dir(store):
            cut = _cut(disk, directory, known, lambda _: True, closing)
            files, exact = writer.store_all(cut), cut.exact
        else:
            cut = _cut(disk, directory, known, _is_log, closing)
            files = writer.store_all(cut)
            staging = closing.enter_context(tempfile.TemporaryDirectory(prefix="journeyman-"))
            copy_store(store, os.path.join(staging, STORE_DIRECTORY))
            files += writer.store_all(_cut(disk, staging, {}, lambda _: True, closing))
            files += writer.store_all(_cut(disk, directory, known, _is_ledger, closing))
            exact = False
        taken_ns = clock.now_ns()
    files.sort(key=lambda file: file.path)
    source = absolute(directory)
    manifest = Manifest(taken_ns, source, __version__, exact, tuple(files))
    vault.make_durable()
    manifest.write(vault)
    memory.last = manifest
    return Taken(manifest, writer.new_bytes)


def _last(vault: Vault) -> Manifest | None:
    try:
        newest = [read_manifest(vault, name) for name in list_backups(vault)[-1:]]
    except LogError:
        return None  # damaged: every file is read
    return newest[0] if newest else None


def _allow_many_files() -> None:
    """All files of the directory may be open at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


# -- the moment --


def _is_ledger(path: str) -> bool:
    return path.startswith(f"{LEDGER_DIRECTORY}/")


def _is_log(path: str) -> bool:
    return not _is_ledger(path) and not path.startswith(f"{STORE_DIRECTORY}/")


def _rank(path: str) -> tuple[int, str]:
    """Return the rank of a file in the order of causes: see above."""
    if _is_ledger(path):
        return 3, path
    if path.startswith(SCHEDULE_LOG):
        return 0, path
    return 1 if ".read." in path else 2, path


def _cut(
    disk: Disk,
    directory: str,
    previous_files: Mapping[str, StoredFile],
    is_wanted: Callable[[str], bool],
    closing: ExitStack,
) -> _Cut:
    """The wanted files as they were at one moment; ``closing`` closes them."""
    for _ in range(_ATTEMPTS):
        before = _list_files(disk, directory, is_wanted)
        with ExitStack() as opened:
            unchanged = [
                previous_files[path]
                for path, identity in before.items()
                if path in previous_files and previous_files[path].identity == identity
            ]
            changed = sorted(before.keys() - {file.path for file in unchanged}, key=_rank)
            try:
                held = [_hold(disk, directory, path, before[path], opened) for path in changed]
            except FileNotFoundError:
                continue
            exact = _read_sizes(held)
            if _is_same(before, _list_files(disk, directory, is_wanted), unchanged):
                closing.push(opened.pop_all())
                return _Cut(held, unchanged, exact)
    raise LogError(
        directory, "its files keep being replaced; try again when the server is less busy"
    )


def _list_files(
    disk: Disk, directory: str, is_wanted: Callable[[str], bool], above: str = ""
) -> Listing:
    found: Listing = {}
    try:
        there = disk.scan(os.path.join(directory, above).rstrip("/"))
    except FileNotFoundError:
        return {}  # the second listing will differ
    for name, facts in there.items():
        path = f"{above}{name}"
        if facts.is_dir:
            found |= _list_files(disk, directory, is_wanted, f"{path}/")
        elif facts.is_regular and not name.endswith(_LOCK) and is_wanted(path):
            found[path] = (facts.identity, facts.size, facts.modified_ns)
    return found


def _hold(disk: Disk, directory: str, path: str, identity: Identity, opened: ExitStack) -> _Held:
    try:
        file = disk.open_read(os.path.join(directory, path))
    except OSError as error:
        if is_out_of_files(error):
            said = "has more files than this process may open; raise `ulimit -n`"
            raise LogError(directory, said) from None
        raise
    opened.callback(file.close)
    return _Held(path, file, identity)


def _read_sizes(files: Sequence[_Held]) -> bool:
    """Return whether they are the sizes of one moment."""
    for _ in range(_LOOKS):
        sizes = [each.file.size() for each in files]
        for each, size in zip(files, sizes, strict=True):
            each.size = size
        if sizes == [each.file.size() for each in files]:
            return True
    return False


def _is_same(before: Listing, after: Listing, unchanged: Sequence[StoredFile]) -> bool:
    """No file came, went or was replaced; and those that are not open did not change."""
    inodes = {path: identity[0] for path, identity in before.items()}
    return inodes == {path: identity[0] for path, identity in after.items()} and all(
        after[file.path] == file.identity for file in unchanged
    )


# -- what is copied --


class _ChunkWriter:
    def __init__(
        self, vault: Vault, previous_files: Mapping[str, StoredFile], memory: Memory
    ) -> None:
        self._vault = vault
        self._known = previous_files
        if memory.chunks is None:
            memory.chunks = set(vault.names(CHUNKS))
        self._there = memory.chunks
        self.new_bytes = 0

    def store_all(self, cut: _Cut) -> list[StoredFile]:
        return [*cut.unchanged, *(self._store(each) for each in cut.held)]

    def _store(self, source: _Held) -> StoredFile:
        names, sizes = self._beginning(source)
        for data in _chunks(source, sum(sizes)):
            names.append(self._write(data))
            sizes.append(len(data))
        inode, _, modified_ns = source.identity
        size = sum(sizes)
        return StoredFile(source.path, size, (inode, size, modified_ns), tuple(names), tuple(sizes))

    def _beginning(self, source: _Held) -> tuple[list[str], list[int]]:
        """The chunks that the last backup has of it, if it only grew since."""
        before = self._known.get(source.path)
        if before is None or not before.sizes or before.identity[0] != source.identity[0]:
            return [], []
        last_at = before.size - before.sizes[-1]
        last = b"".join(
            _chunks(_Held(source.path, source.file, source.identity, before.size), last_at)
        )
        if source.size < before.size or chunk_name(last) != before.chunks[-1]:
            return [], []
        names, sizes = list(before.chunks), list(before.sizes)
        small = sum(size < CHUNK_BYTES for size in sizes)
        if small >= SMALL_CHUNKS:
            del names[-small:], sizes[-small:]
        return names, sizes

    def _write(self, data: bytes) -> str:
        name = chunk_name(data)
        if name not in self._there:
            self._vault.write(CHUNKS, name, data)
            self._there.add(name)
            self.new_bytes += len(data)
        return name


def chunk_name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _chunks(source: _Held, offset: int) -> Iterator[bytes]:
    while offset < source.size:
        parts, wanted = [], min(CHUNK_BYTES, source.size - offset)
        while wanted and (part := source.file.read_at(offset, wanted)):
            parts.append(part)
            offset += len(part)
            wanted -= len(part)
        if parts:
            yield b"".join(parts)
        if wanted:
            return  # cut meanwhile, by a server that took an append back
