"""The engine ``rocksdb``, the default: a log-structured store, through the library rocksdict.

Writes go to its own log, which is synced once per commit, and are sorted later in the background,
so many small keys in random order cost little time and space (docs/adr/logs.md, 8).
Only one process can open a store at a time.

Write and sync are two calls: if the library did both in one, no other thread of the process could
run, and the server would not answer until the disk does. New views wait for the sync (the library's
snapshots would not: their iterators see later writes), so all views show only durable data.

    cache_capacity         size of the block cache; 64 MiB if not set
    mode low_space         all levels compressed (zstd), half the write buffers
    mode high_throughput   upper levels not compressed, four times the write buffers

Removed keys remain as tombstones until they are compacted; scans step over them. Files with many of
them are compacted first.

Full disk: the commit is refused with StorageFull, and reads still work. But if the sync found no
space, or the log already has the whole commit, its outcome is unknown: StorageError. The library
does not recover from every such error, so the database is opened again, at the next turn, once
there is enough free space for the contents of its log. If it is started on a full disk, it is
opened read-only, which writes nothing, until then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Condition, Lock
from typing import Final

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
)

from journeyman.clock import SystemClock
from journeyman.config import StorageMode
from journeyman.disk import Lock as FileLock
from journeyman.errors import StorageClosed, StorageError, StorageFull, StorageLocked
from journeyman.storage import contract
from journeyman.units import MIB, NS_PER_S

_CACHE_BYTES: Final = 64 * MIB
_BUFFER_BYTES: Final = {
    None: 32 * MIB,
    StorageMode.LOW_SPACE: 16 * MIB,
    StorageMode.HIGH_THROUGHPUT: 128 * MIB,
}
_FRAME_BYTES: Final = 32  # at most, around a change in the log
_TAIL_BYTES: Final = 8  # short, for the frame of a block may stand before them
_FIRST_CHUNK = 16  # entries that a scan reads at once; then twice as many, and so on
_LAST_CHUNK = 64
_FILTER_BITS = 10
_LOG_FILES = 4  # files of the engine's own messages
_NO_ROOM: Final = ("no space left", "quota exceeded", "file too large")
_ROOM_BYTES: Final = 4 * MIB  # to open again, besides what the log holds: a manifest, a new log
_COMPRESSED: Final = 4  # the log may shrink by this factor when it is compressed
_RETRY_NS: Final = NS_PER_S  # between two attempts to open again
_RARE_RETRY_NS: Final = 10_000_000_000  # if there may be too little room
_VIEWS_S: Final = 5.0  # for reads to end before that
_DELETIONS = (4096, 2048, 0.5)  # so many of so many keys removed, or half of a file: sort it first


class _Rocks(contract.Turn):
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
        self.changes: contract.Changes = {}

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
    ) -> Iterator[contract.Entry]:
        behind, is_beyond = (end, True) if reverse else (start, False)
        # Nothing is between a key and the same key plus a zero; looking there may take long.
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
    ) -> list[contract.Entry]:
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

    def _entry(self, start: bytes, end: bytes) -> contract.Entry | None:
        at = self._at()
        if not at.valid():
            at.status()  # raises if it is damage, and not the end
            return None
        key: bytes = at.key()
        return (key, at.value()) if start <= key < end else None

    def commit(self, changes: contract.Changes) -> None:
        self.changes = changes


class RocksBackend(contract.Backend):
    """A store in a directory."""

    name = "rocksdb"

    def __init__(self, directory: str, options: contract.EngineOptions) -> None:
        self._place = directory
        self._options = options
        self._clock = SystemClock()
        self._lock = Lock()  # the turn to write
        self._gate = Condition()  # views and reopening exclude each other
        self._views = 0
        self._is_reopening = self._is_closed = False
        self._full: StorageFull | None = None  # why nothing can be written now
        # The values that the refused changes were to replace.
        self._refused: dict[bytes, bytes | None] = {}
        self._retry_ns = 0
        self._alone: FileLock | None = None
        self._is_syncing = False
        self._unsynced: StorageError | None = None  # why nothing can be read or written any more
        self._db: Rdict | None = None
        with self._as_storage_error():
            self._open_as_possible()

    @contextmanager
    def view(self) -> Iterator[contract.StoreReader]:
        with self._gate, self._as_storage_error():
            self._gate.wait_for(lambda: not (self._is_reopening or self._is_syncing))
            view = _Rocks(self._open())
            self._views += 1
        try:
            with self._as_storage_error():
                yield view
        finally:
            view.release()
            with self._gate:
                self._views -= 1
                self._gate.notify_all()

    @contextmanager
    def turn(self) -> Iterator[contract.Turn]:
        with self._lock, self._as_storage_error():
            if self._full is not None:
                self._try_to_recover(self._full)
            turn = _Rocks(self._open())
            try:
                yield turn
            finally:
                turn.release()
            if turn.changes:
                self._write(turn.changes)

    def _write(self, changes: contract.Changes) -> None:
        with self._gate:
            self._is_syncing = True
        try:
            self._write_and_sync(self._open(), changes)
        finally:
            with self._gate:
                self._is_syncing = False
                self._gate.notify_all()

    def _write_and_sync(self, db: Rdict, changes: contract.Changes) -> None:
        number = db.latest_sequence_number() + 1
        try:
            db.write(_batch(changes))
        except Exception as error:
            # A failed sync says nothing about what the log holds, whatever the reason. Nor does a
            # write that left all of it there: after a kill it would count.
            if not _is_no_room(error) or _is_unsynced(error) or self._is_in_log(changes, number):
                raise
            # Closing the database still writes, which may complete it: see _take_back.
            if not self._refused:
                self._refused = dict(zip(changes, _values(db, list(changes)), strict=True))
            self._full = StorageFull(self._place, f"rocksdb: {error}")
            raise self._full from error
        try:
            db.flush_wal(sync=True)
        except Exception as error:
            # It is there for readers, and may not be there after a power cut.
            self._unsynced = StorageError(self._place, f"rocksdb: an earlier sync: {error}")
            raise

    def _is_in_log(self, changes: contract.Changes, number: int) -> bool:
        """Return whether the log ends with these changes, which begin with this sequence number."""
        logs = [name for name in os.listdir(self._place) if name.endswith(".log")]
        newest = os.path.join(self._place, max(logs, key=lambda name: int(name[:-4])))
        size = sum(len(key) + len(value or b"") + _FRAME_BYTES for key, value in changes.items())
        with open(newest, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 2 * size))
            data = file.read()
        key, value = list(changes.items())[-1]
        head = number.to_bytes(8, "little") + len(changes).to_bytes(4, "little")
        last = key if value is None else value or key + b"\0"
        return head in data and data.endswith(last[-_TAIL_BYTES:])

    def flush(self) -> None:
        with self._as_storage_error():
            db = self._open()
            if self._full is None:  # else every commit was synced before
                db.flush_wal(sync=True)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._close_database()
            if self._alone is not None:
                self._alone.release()
                self._alone = None

    def be_alone(self) -> None:
        """The library's own lock is not held while the database is open for reading only."""
        self._alone = contract.lock_directory(self._place)

    def entries_about(self) -> int:
        db = self._open()
        with self._as_storage_error():
            return db.property_int_value("rocksdb.estimate-num-keys") or 0

    def _open(self) -> Rdict:
        if self._is_closed:
            raise StorageClosed(self._place, "the store was closed")
        if self._unsynced is not None:
            raise self._unsynced
        if self._db is None:
            assert self._full is not None
            raise self._full
        return self._db

    # -- a full disk --

    def _open_as_possible(self) -> None:
        """Open the store for writing; on a full disk for reading only, if there is a
        store already."""
        options = _rocks_options(self._options)
        try:
            self._db = Rdict(self._place, options)
            self._full = None
        except Exception as error:
            if not _is_no_room(error):
                raise
            self._full = StorageFull(self._place, f"rocksdb: {error}")
            if not os.path.exists(os.path.join(self._place, "CURRENT")):
                raise self._full from error
            self._db = Rdict(self._place, options, access_type=AccessType.read_only())

    def _close_database(self) -> None:
        if self._db is not None:
            with suppress(Exception):  # on a full disk it complains, and closes all the same
                self._db.close()
            self._db = None

    def _try_to_recover(self, full: StorageFull) -> None:
        """Open again for writing, or raise why that cannot be done yet."""
        now_ns = self._clock.monotonic_ns()
        if self._is_closed or now_ns < self._retry_ns:
            raise full
        free, held = self._room()
        if free < _ROOM_BYTES + held // _COMPRESSED:
            raise full
        self._retry_ns = now_ns + (_RETRY_NS if free >= _ROOM_BYTES + held else _RARE_RETRY_NS)
        with self._gate:
            self._is_reopening = True
            try:
                if not self._gate.wait_for(lambda: self._views == 0, _VIEWS_S):
                    raise full
                self._close_database()
                self._open_as_possible()
            finally:
                self._is_reopening = False
                self._gate.notify_all()
        if self._full is not None:
            raise self._full
        self._take_back()

    def _take_back(self) -> None:
        """Undo the refused changes, which the log of the engine may hold all the same."""
        refused = self._refused
        if _values(self._open(), list(refused)) != list(refused.values()):
            self._write(refused)
        self._refused = {}

    def _room(self) -> tuple[int, int]:
        """Bytes free on the disk; bytes in the log, which opening writes to files of their own."""
        disk = os.statvfs(self._place)
        held = 0
        for entry in os.scandir(self._place):
            if entry.name.endswith(".log"):
                with suppress(OSError):  # it was removed meanwhile
                    held += entry.stat().st_size
        return disk.f_bavail * disk.f_frsize, held

    @contextmanager
    def _as_storage_error(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if type(error) is not Exception:  # the library raises nothing more special
                raise
            if "/LOCK: " in str(error):  # the name of its lock file; a block is not a lock
                reason = "another process, or this one, has the store open"
                raise StorageLocked(self._place, reason) from error
            raise StorageError(self._place, f"rocksdb: {error}") from error


def _values(db: Rdict, keys: list[bytes]) -> list[bytes | None]:
    return list(db.get([*keys]) or ())


def _is_no_room(error: Exception) -> bool:
    """Return whether the library says that there is no room on the disk, in the quota, or for a
    file.
    """
    text = str(error).lower()
    return type(error) is Exception and any(phrase in text for phrase in _NO_ROOM)


def _is_unsynced(error: Exception) -> bool:
    """Return whether the library says that it was a sync that failed, not a write."""
    text = str(error).lower()
    return "while fdatasync" in text or "while fsync" in text


def _batch(changes: contract.Changes) -> WriteBatch:
    batch = WriteBatch(raw_mode=True)
    put, delete = batch.put, batch.delete
    for key, value in changes.items():
        if value is None:
            delete(key)
        else:
            put(key, value)
    return batch


def _rocks_options(wanted: contract.EngineOptions) -> Options:
    options, blocks = Options(raw_mode=True), BlockBasedOptions()
    blocks.set_block_cache(Cache(wanted.cache_capacity_bytes or _CACHE_BYTES))
    blocks.set_bloom_filter(_FILTER_BITS, False)
    options.set_block_based_table_factory(blocks)
    options.create_if_missing(True)
    options.set_write_buffer_size(_BUFFER_BYTES[wanted.mode])
    options.set_keep_log_file_num(_LOG_FILES)
    options.add_compact_on_deletion_collector_factory(*_DELETIONS)
    if wanted.mode is StorageMode.LOW_SPACE:
        options.set_compression_type(DBCompressionType.zstd())
    elif wanted.mode is StorageMode.HIGH_THROUGHPUT:
        options.set_compression_type(DBCompressionType.none())
        options.set_bottommost_compression_type(DBCompressionType.lz4())
    else:
        options.set_compression_type(DBCompressionType.lz4())
    return options
