"""The engine ``rocksdb``, the default: a log-structured store, by the library rocksdict.

Writes go to its own log, which is synced once a commit, and are sorted later, in the background; so
many small keys in no order cost little, and take little room (docs/adr/0008-storage-engines.md).
One process opens a store at a time.

    cache_capacity         the cache of blocks; 64 MiB if it is not set
    mode low_space         all levels compressed (zstd), half the buffers for writes
    mode high_throughput   nothing compressed on the upper levels, four times the buffers

Keys that were removed stay as marks until they are sorted away; scans step over them. Files with
many of them are sorted first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Final

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from journeyman.errors import StorageClosed, StorageError, StorageLocked
from journeyman.storage.contract import Backend, Changes, Entry, Reader, Stats, Turn
from journeyman.storage.options import EngineOptions, StorageMode

__all__ = ["RocksBackend"]

_MIB = 1024 * 1024
_CACHE_BYTES: Final = 64 * _MIB
_BUFFER_BYTES: Final = {
    None: 32 * _MIB,
    StorageMode.LOW_SPACE: 16 * _MIB,
    StorageMode.HIGH_THROUGHPUT: 128 * _MIB,
}
_FIRST_CHUNK = 16  # entries that a scan reads at once; then twice as many, and so on
_LAST_CHUNK = 64
_FILTER_BITS = 10
_LOG_FILES = 4  # of the engine's own messages
_DELETIONS = (4096, 2048, 0.5)  # so many of so many keys removed, or half of a file: sort it first


class _Rocks(Turn):
    """Reads by one iterator, which sees the moment that it was made in, whatever is written later.

    Scans may be read in turns: each goes back to where it was if another one moved the iterator.
    Nothing else holds the iterator, not even a scan that waits: as long as there is one, the
    database stays open.
    """

    def __init__(self, db: Rdict) -> None:
        self._db: Rdict | None = db
        self._written = db.latest_sequence_number()  # before the iterator, lest it be later
        self._iterator: RdictIter | None = db.iter()
        self._moves = 0
        self.changes: Changes = {}

    def release(self) -> None:
        self._iterator = self._db = None

    def _at(self) -> RdictIter:
        if self._iterator is None:
            raise StorageClosed("rocksdb", "the view or turn is over")
        return self._iterator

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([key])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if self._db is not None and keys:
            # One call, by the filters of the files; right if nothing was written since the moment.
            found = list(self._db.get(list(keys)) or ())
            if self._db.latest_sequence_number() == self._written:
                return found
        at, values = self._at(), []
        self._moves += 1
        for key in keys:
            at.seek(key)
            values.append(at.value() if at.valid() and at.key() == key else None)
        at.status()
        return values

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False, limit: int | None = None
    ) -> Iterator[Entry]:
        behind, is_beyond = (end, True) if reverse else (start, False)
        # Nothing is between a key and the same with a zero behind it; looking there may take long.
        last = end[:-1] if end.endswith(b"\0") and not reverse else None
        moves, size, left = -1, _FIRST_CHUNK, limit
        while left is None or left > 0:
            is_there = self._moves != moves  # at the next entry, not at the one before it
            if is_there:
                self._seek(behind, reverse, is_beyond)
            wanted = size if left is None else min(size, left)
            chunk = self._chunk(start, end, last, wanted, reverse, is_there)
            moves = self._moves = self._moves + 1
            yield from chunk
            if len(chunk) < wanted or chunk[-1][0] == last:
                return
            behind, is_beyond = chunk[-1][0], True
            left = None if left is None else left - len(chunk)
            size = min(2 * size, _LAST_CHUNK)

    def _seek(self, key: bytes, reverse: bool, is_beyond: bool) -> None:
        at = self._at()
        if reverse:
            at.seek_for_prev(key)
        else:
            at.seek(key)
        if is_beyond and at.valid() and at.key() == key:
            (at.prev if reverse else at.next)()

    def _chunk(
        self,
        start: bytes,
        end: bytes,
        last: bytes | None,
        size: int,
        reverse: bool,
        is_there: bool,
    ) -> list[Entry]:
        """The next entries of a range. Never steps from an invalid place: that crashes."""
        at, chunk = self._at(), []
        valid, key_of, value_of = at.valid, at.key, at.value
        step = at.prev if reverse else at.next
        for _ in range(size):
            if not is_there:
                step()
            is_there = False
            if not valid():
                at.status()
                break
            if not start <= (key := key_of()) < end:
                break
            chunk.append((key, value_of()))
            if key == last:
                break
        return chunk

    def around(self, key: bytes, start: bytes, end: bytes) -> tuple[Entry | None, Entry | None]:
        if key >= end:
            return next(self.scan(start, end, reverse=True, limit=1), None), None
        at = self._at()
        self._moves += 1
        at.seek_for_prev(key)
        before = self._entry(start, end)
        if before is None:
            at.seek(max(key + b"\0", start))
        else:
            at.next()
        return before, self._entry(start, end)

    def _entry(self, start: bytes, end: bytes) -> Entry | None:
        at = self._at()
        if not at.valid():
            at.status()  # raises if it is damage, and not the end
            return None
        key: bytes = at.key()
        return (key, at.value()) if start <= key < end else None

    def commit(self, changes: Changes) -> None:
        self.changes = changes


class RocksBackend(Backend):
    """A store in a directory."""

    name = "rocksdb"

    def __init__(self, directory: str, options: EngineOptions) -> None:
        self._place = directory
        self._lock = Lock()
        self._synced = WriteOptions()
        self._synced.sync = True
        with self._as_storage_error():
            self._db: Rdict | None = Rdict(directory, _rocks_options(options))

    @contextmanager
    def view(self) -> Iterator[Reader]:
        db = self._open()
        with self._as_storage_error():
            view = _Rocks(db)
            try:
                yield view
            finally:
                view.release()

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        with self._lock, self._as_storage_error():
            db = self._open()
            turn = _Rocks(db)
            try:
                yield turn
            finally:
                turn.release()
            if turn.changes:
                db.write(_batch(turn.changes), self._synced)

    def flush(self) -> None:
        with self._as_storage_error():
            self._open().flush_wal(sync=True)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    def stats(self) -> Stats:
        db = self._open()
        with self._as_storage_error():
            size = sum(entry.stat().st_size for entry in os.scandir(self._place))
            return Stats(self.name, size, db.property_int_value("rocksdb.estimate-num-keys"))

    def _open(self) -> Rdict:
        if self._db is None:
            raise StorageClosed(self._place, "the store was closed")
        return self._db

    @contextmanager
    def _as_storage_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if type(error) is not Exception:  # the library raises nothing more special
                raise
            if "/LOCK: " in str(error):  # the name of its lock file; a block is no lock
                reason = "another process, or this one, has the store open"
                raise StorageLocked(self._place, reason) from error
            raise StorageError(self._place, f"rocksdb: {error}") from error


def _batch(changes: Changes) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    put, delete = batch.put, batch.delete
    for key, value in changes.items():
        if value is None:
            delete(key)
        else:
            put(key, value)
    return batch


def _rocks_options(asked: EngineOptions) -> Options:
    options, blocks = Options(raw_mode=True), BlockBasedOptions()
    blocks.set_block_cache(Cache(asked.cache_capacity_bytes or _CACHE_BYTES))
    blocks.set_bloom_filter(_FILTER_BITS, False)
    options.set_block_based_table_factory(blocks)
    options.create_if_missing(True)
    options.set_write_buffer_size(_BUFFER_BYTES[asked.mode])
    options.set_keep_log_file_num(_LOG_FILES)
    options.add_compact_on_deletion_collector_factory(*_DELETIONS)
    if asked.mode is StorageMode.LOW_SPACE:
        options.set_compression_type(DBCompressionType.zstd())
    elif asked.mode is StorageMode.HIGH_THROUGHPUT:
        options.set_compression_type(DBCompressionType.none())
        options.set_bottommost_compression_type(DBCompressionType.lz4())
    else:
        options.set_compression_type(DBCompressionType.lz4())
    return options
