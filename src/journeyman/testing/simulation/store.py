"""A store on a simulated disk: what an engine promises, in the plainest way.

    commit --> one record (size, checksum, changes) --write, sync--> a file; all keys are in memory
    open   --> records, up to the first that is not whole

A commit is there as a whole or not at all, and stays after its sync. The file is never cleaned. An
error of a write takes the record back, if the disk allows it; one of a sync leaves the store
unusable, for no code can tell what is on the disk.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct

from journeyman.disk import is_full
from journeyman.errors import StorageError, StorageFull
from journeyman.storage.contract import Changes, StoreReader, Turn
from journeyman.storage.memory import MemoryBackend
from journeyman.testing.simulated_disk import SimulatedDisk

_HEAD = Struct(">II")  # size, checksum


class SimulatedStore(MemoryBackend):
    """See the module."""

    name = "simulated"

    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        super().__init__()
        self._path = path
        self._doubt: StorageError | None = None
        self._file = disk.open_append(path)
        data, at = disk.read_bytes(path), 0
        while (found := _record(data, at)) is not None:
            changes, at = found
            with super().turn() as turn:
                turn.commit(changes)
        self._file.truncate(at)
        self._file.sync()
        disk.sync_dir(path.rpartition("/")[0] or "/")

    @contextmanager
    def view(self) -> Iterator[StoreReader]:
        if self._doubt is not None:
            raise self._doubt
        with super().view() as view:
            yield view

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        if self._doubt is not None:
            raise self._doubt
        with super().turn() as turn:
            yield turn
            if changes := turn.changes:  # type: ignore[attr-defined]  # a turn of the memory
                self._append(changes)

    def _append(self, changes: Changes) -> None:
        data, size = pickle.dumps(dict(changes)), self._file.size()
        try:
            self._file.write(_HEAD.pack(len(data), zlib.crc32(data)) + data)
        except OSError as error:
            try:
                self._file.truncate(size)
            except OSError:
                raise self._unusable(error) from error
            kind = StorageFull if is_full(error) else StorageError
            raise kind(self._path, str(error)) from error
        try:
            self._file.sync()
        except OSError as error:
            raise self._unusable(error) from error

    def _unusable(self, error: OSError) -> StorageError:
        self._doubt = StorageError(self._path, f"not synced: {error}")
        return self._doubt


def _record(data: bytes, at: int) -> tuple[Changes, int] | None:
    begin = at + _HEAD.size
    if len(data) < begin:
        return None
    size, checksum = _HEAD.unpack_from(data, at)
    body = data[begin : begin + size]
    if len(body) < size or not size or zlib.crc32(body) != checksum:
        return None
    return pickle.loads(body), begin + size
