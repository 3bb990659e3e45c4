"""A disk in a PostgreSQL database: the same files, byte for byte, as rows of two tables.

    journeyman_file    names; the id of a file is never used again, so it serves as an inode
    journeyman_bytes   pieces of files: (file, at, data), of at most PIECE_BYTES

    write    gathered in memory, and seen by every reader of this disk
    sync     one call of one function in the database: the epoch is compared, all that was gathered
             for any file is appended where that file ends, and committed. One round trip; who syncs
             another file meanwhile waits for it and then has nothing left to do
    flush    the same every FLUSH_S, for what is never synced
    names    made, renamed and removed in commits of their own: ``sync_dir`` has nothing to do

Rows of removed and replaced files stay for KEPT_S, for those who still read them. Small pieces
that will not change any more are merged, so that a later start reads fewer rows.

Locks: an exclusive one needs the directory (guard.py), which a server has taken before; a command
takes it with its first lock and gives it back with its last. Shared locks keep out only others of
the same process: readers notice if names change, and find the bytes of the files they have open.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import threading
from contextlib import suppress
from functools import partial
from typing import Final

import psycopg

from journeyman import threads
from journeyman.disk.contract import AppendFile, FileStatus, Lock, NotWritten
from journeyman.disk.database import Database, Row, boot_ns, reason_of, split_address
from journeyman.disk.guard import Guard
from journeyman.disk.names import ROOT, NamedFiles, error_of
from journeyman.errors import LogLocked
from journeyman.units import MIB, NS_PER_S

PIECE_BYTES: Final = MIB
FLUSH_BYTES: Final = 8 * MIB  # gathered, and no sync came
READ_BYTES: Final = 8 * MIB  # asked for at once
IN_MEMORY_BYTES: Final = 64 * MIB  # a longer view is a file without a name
FLUSH_S: Final = 0.5
UPKEEP_S: Final = 10.0
KEPT_S: Final = 60

_FACTS: Final = """
    id, is_dir, journeyman_size(id), (1e6 * extract(epoch FROM greatest(modified, (
        SELECT b.written FROM journeyman_bytes b WHERE b.file = id ORDER BY b.at DESC LIMIT 1
    ))))::bigint FROM journeyman_file"""
_STATUS: Final = f"SELECT {_FACTS} WHERE id = %s"
_SCAN: Final = f"SELECT name, {_FACTS} WHERE parent = %s AND gone IS NULL"
_READ: Final = """
    SELECT at + greatest(%(from)s - at, 0),
        substring(data FROM greatest(%(from)s - at, 0)::integer + 1
            FOR (%(to)s - greatest(%(from)s, at))::integer)
    FROM journeyman_bytes
    WHERE file = %(file)s AND at < %(to)s AND at >= coalesce((
        SELECT max(at) FROM journeyman_bytes WHERE file = %(file)s AND at <= %(from)s), 0)
    ORDER BY at"""
_MERGE: Final = """
    WITH own AS (SELECT journeyman_fence(%(own)s)), old AS (
        DELETE FROM journeyman_bytes USING own
        WHERE file = %(file)s AND at >= %(from)s AND at < %(to)s AND at / %(piece)s IN (
            SELECT at / %(piece)s FROM journeyman_bytes
            WHERE file = %(file)s AND at >= %(from)s AND at < %(to)s
            GROUP BY 1 HAVING count(*) > 1)
        RETURNING at, data, written)
    INSERT INTO journeyman_bytes (file, at, data, written)
    SELECT %(file)s, min(at), string_agg(data, ''::bytea ORDER BY at), max(written)
    FROM old GROUP BY at / %(piece)s"""
_PURGE: Final = f"""
    WITH gone AS (
        DELETE FROM journeyman_file WHERE gone < now() - interval '{KEPT_S} s' RETURNING id)
    DELETE FROM journeyman_bytes USING gone WHERE file = gone.id"""


class _State:
    """A file that this process appends to: what is committed, and what is not yet."""

    __slots__ = ("end", "gathered", "handles", "id", "merged", "path", "sent")

    def __init__(self, file_id: int, path: str, end: int) -> None:
        self.id = file_id
        self.path = path
        self.end = end  # in the database
        self.sent = b""  # to the database, and not known to be committed
        self.gathered = bytearray()
        self.handles = 0
        self.merged = 0  # pieces before this one are as large as they get

    @property
    def size(self) -> int:
        return self.end + len(self.sent) + len(self.gathered)


class PostgresAppendFile:
    def __init__(self, disk: PostgresDisk, state: _State, path: str) -> None:
        self._disk = disk
        self._state: _State | None = state
        self._path = path

    @property
    def path(self) -> str:
        return self._path

    def _open_state(self) -> _State:
        if self._state is None:
            raise error_of(errno.EBADF, self._path)
        return self._state

    def size(self) -> int:
        return self._open_state().size

    def write(self, data: bytes) -> None:
        self._disk.gather(self._open_state(), data)

    def sync(self) -> None:
        self._disk.sync_file(self._open_state())

    def truncate(self, size: int) -> None:
        self._disk.truncate(self._open_state(), size)

    def close(self) -> None:
        state, self._state = self._state, None
        if state is not None:
            self._disk.let_go(state)


class PostgresReadFile:
    """A file open for reading; ``ESTALE`` when its rows have been removed since."""

    def __init__(self, disk: PostgresDisk, file_id: int, path: str) -> None:
        self._disk = disk
        self._id = file_id
        self._path = path

    def read_at(self, offset: int, length: int) -> bytes:
        return self._disk.read_file(self._id, self._path, offset, length)

    def size(self) -> int:
        return self._disk.status_of(self._id, self._path).size

    def still_at(self, path: str) -> bool:
        entry = self._disk.find(path)
        return entry is not None and entry[0] == self._id

    def close(self) -> None:
        """There is nothing to give back."""


class PostgresDisk(NamedFiles):
    """See the module. Safe to use from several threads."""

    def __init__(self, address: str) -> None:
        super().__init__(Database(split_address(address).address))
        self.guard: Guard | None = None  # lets this process alone write, while it is set
        self._states: dict[int, _State] = {}
        self._dirty: dict[int, _State] = {}
        self._dirty_bytes = 0
        self._mutex = threading.Lock()  # guards the states
        self._flushing = threading.Lock()
        self._unknown: OSError | None = None  # after it nothing is appended, nor cut
        self._locks = _LockTable()
        self._claims = 0  # exclusive locks that are held or waited for
        self._stopped = threading.Event()
        self._upkeep: threads.StartedThread | None = None

    # --- the directory ---

    def begin_upkeep(self) -> None:
        """Flush what is never synced, merge pieces, remove what is gone: in a thread."""
        self._upkeep = threads.start(self._keep_up, "journeyman-database", daemon=True)

    def close(self) -> None:
        """Flush, and give the directory back."""
        self._stopped.set()
        if self._upkeep is not None:
            self._upkeep.join()
        with suppress(OSError):
            self.flush()
        if self.guard is not None:
            self.guard.release()
            self.guard = None
        self.database.close()

    def _keep_up(self) -> None:
        next_ns = 0
        while not self._stopped.wait(FLUSH_S):
            with suppress(OSError):  # a sync will say what is wrong
                self.flush()
                if boot_ns() >= next_ns:
                    next_ns = boot_ns() + int(UPKEEP_S * NS_PER_S)
                    self._merge_all()
                    self.purge()

    def purge(self) -> None:
        """Remove the rows of files that have been gone for KEPT_S."""
        self.database.change(_PURGE, (), self.database.address)

    def _merge_all(self) -> None:
        with self._mutex:
            states = list(self._states.values())
        for state in states:
            self._merge(state, state.end // PIECE_BYTES)

    def _merge(self, state: _State, to: int) -> None:
        """Up to this piece, which may still grow."""
        while state.merged < to:
            upto = min(to, state.merged + 64)
            values = {
                "own": self.database.epoch,
                "file": state.id,
                "piece": PIECE_BYTES,
                "from": state.merged * PIECE_BYTES,
                "to": upto * PIECE_BYTES,
            }
            self.database.change(_MERGE, values, state.path)
            state.merged = upto

    # --- appending ---

    def open_append(self, path: str) -> AppendFile:
        self.prepare()
        above, name = self._place(path)
        ((file_id, is_dir, end),) = self._call("make", path, above, name, False)
        if is_dir:
            raise error_of(errno.EISDIR, path)
        with self._mutex:
            state = self._states.setdefault(file_id, _State(file_id, path, end))
            state.handles += 1
        return PostgresAppendFile(self, state, path)

    def gather(self, state: _State, data: bytes) -> None:
        with self._mutex:
            state.gathered += data
            self._dirty[state.id] = state
            self._dirty_bytes += len(data)
            is_much = self._dirty_bytes >= FLUSH_BYTES
        if is_much:
            self.flush()

    def sync_file(self, state: _State) -> None:
        if state.id in self._dirty:
            with self._flushing:
                if state.id in self._dirty:  # else another thread has synced it meanwhile
                    self._flush()

    def flush(self) -> None:
        if self._dirty:
            with self._flushing:
                self._flush()

    def _flush(self) -> None:
        """Append all that was gathered, in one commit. NotWritten: it is still gathered; any other
        OSError: what of it is in the database is not known, and every later flush fails too."""
        self._refuse_if_unknown()
        with self._mutex:
            batch = list(self._dirty.values())
            for state in batch:
                state.sent, state.gathered = bytes(state.gathered), bytearray()
        if not batch:
            return
        files, places, pieces = [], [], []
        for state in batch:
            for at in range(0, len(state.sent), PIECE_BYTES):
                files.append(state.id)
                places.append(state.end + at)
                pieces.append(state.sent[at : at + PIECE_BYTES])
        try:
            self._call("append", batch[0].path, files, places, pieces)
        except NotWritten:
            with self._mutex:
                for state in batch:
                    state.sent, state.gathered = b"", bytearray(state.sent) + state.gathered
            raise
        except OSError as error:
            self._unknown = error
            raise
        with self._mutex:
            for state in batch:
                state.end, state.sent = state.end + len(state.sent), b""
                if not state.gathered:
                    self._dirty.pop(state.id, None)
                    self._forget_if_unused(state)
            self._dirty_bytes = sum(len(each.gathered) for each in self._dirty.values())

    def _refuse_if_unknown(self) -> None:
        # Later bytes would stand where the missing ones belong, and a sync of them would succeed.
        if (error := self._unknown) is not None:
            raise OSError(error.errno, error.strerror, error.filename)

    def truncate(self, state: _State, size: int) -> None:
        with self._flushing:
            self._refuse_if_unknown()
            if size < state.end:
                self._call("cut", state.path, state.id, size)
            with self._mutex:
                if size < state.end:
                    state.end, state.gathered = size, bytearray()
                    state.merged = min(state.merged, size // PIECE_BYTES)
                else:
                    del state.gathered[size - state.end :]
                    state.gathered.extend(bytes(size - state.size))
                if state.gathered:
                    self._dirty[state.id] = state
                else:
                    self._dirty.pop(state.id, None)

    def let_go(self, state: _State) -> None:
        """One that appends to it has closed it. NotWritten: what was gathered is flushed later."""
        try:
            self.sync_file(state)
        finally:
            with self._mutex:
                state.handles -= 1
                is_last = state.handles == 0
        if is_last and self._upkeep is not None:
            with suppress(OSError):  # it will be read a little slower
                self._merge(state, state.end // PIECE_BYTES + 1)
        with self._mutex:
            self._forget_if_unused(state)

    def _forget_if_unused(self, state: _State) -> None:
        if state.handles == 0 and state.id not in self._dirty:
            self._states.pop(state.id, None)

    # --- reading ---

    def open_read(self, path: str) -> PostgresReadFile:
        return PostgresReadFile(self, self._file(path), path)

    def read_at(self, path: str, offset: int, length: int) -> bytes:
        return self.open_read(path).read_at(offset, length)

    def read_bytes(self, path: str) -> bytes:
        return bytes(self.view(path))

    def view(self, path: str) -> memoryview:
        """A copy, made piece by piece. A long one is in a file without a name, mapped, so that it
        takes no more memory than is free."""
        file = self.open_read(path)
        size = file.size()
        if size == 0:
            return memoryview(b"")
        room = mmap.mmap(-1, size) if size <= IN_MEMORY_BYTES else _nameless(size)
        at = 0
        while at < size:
            piece = file.read_at(at, min(READ_BYTES, size - at))
            if not piece:
                raise error_of(errno.ESTALE, path)  # it was cut while it was read
            room[at : at + len(piece)] = piece
            at += len(piece)
        return memoryview(room).toreadonly()

    def read_file(self, file_id: int, path: str, offset: int, length: int) -> bytes:
        with self._mutex:
            state = self._states.get(file_id)
            end = None if state is None else state.end
            tail = b"" if state is None else state.sent + bytes(state.gathered)
        found = bytearray()
        at, upto = offset, offset + length if end is None else min(offset + length, end)
        while at < upto:
            piece = self._read_piece(file_id, path, at, min(upto, at + READ_BYTES))
            if not piece:
                break
            found += piece
            at += len(piece)
        if end is not None and tail and offset + length > end:
            found += tail[max(0, offset - end) : offset + length - end]
        return bytes(found)

    def _read_piece(self, file_id: int, path: str, begin: int, end: int) -> bytes:
        values = {"file": file_id, "from": begin, "to": end}
        rows = self.database.ask(_READ, values, path)
        pieces, at = [], begin
        for place, data in rows:
            if data:
                if place != at:
                    raise OSError(errno.EIO, f"bytes {at} to {place} are missing", path)
                pieces.append(data)
                at += len(data)
        if at < end:
            self.status_of(file_id, path)  # is it the end, or is the file gone?
        return b"".join(pieces)

    def status_of(self, file_id: int, path: str) -> FileStatus:
        rows = self.database.ask(_STATUS, (file_id,), path)
        if not rows:
            raise error_of(errno.ESTALE, path)
        return self._status(rows[0])

    def _status(self, row: Row) -> FileStatus:
        file_id, is_dir, size, modified_us = row
        with self._mutex:
            state = self._states.get(file_id)
            size = size if state is None else state.size
        return FileStatus(file_id, size, modified_us * 1000, is_dir, not is_dir)

    def scan(self, path: str) -> dict[str, FileStatus]:
        above = self._listed_directory(path)
        rows = self.database.ask(_SCAN, (above,), path)
        found = {os.fsdecode(row[0]): self._status(row[1:]) for row in rows}
        return dict(sorted(found.items()))

    def free_bytes(self, path: str) -> int | None:  # noqa: ARG002 - the database does not say
        return None

    def share(self, path: str) -> None:
        """Who may read is a matter of the database's roles."""

    is_shared = True

    def stat(self, path: str) -> FileStatus:
        entry = self.find(path)
        if entry is None:
            raise error_of(errno.ENOENT, path)
        if entry[0] == ROOT:
            return FileStatus(ROOT, 0, 0, is_dir=True, is_regular=False)
        return self.status_of(entry[0], path)

    def size(self, path: str) -> int:
        return self.status_of(self._file(path), path).size

    # --- locks ---

    def lock(self, path: str, *, shared: bool = False, timeout_s: float = 0.0) -> Lock:
        self.prepare()
        deadline_ns = boot_ns() + int(timeout_s * NS_PER_S)
        if not shared:
            self._claim(path, timeout_s)
        try:
            while True:
                above, name = self._place(path)
                ((file_id, is_dir, _),) = self._call("make", path, above, name, False)
                if is_dir:
                    raise error_of(errno.EISDIR, path)
                left_s = max(0, deadline_ns - boot_ns()) / NS_PER_S
                if not self._locks.acquire(file_id, shared, left_s):
                    raise LogLocked(path, "another process is using this log")
                if self._entry(above, os.fsdecode(name)) == (file_id, False):
                    return _HeldLock(self, file_id, shared)
                self._locks.release(file_id, shared)
        except BaseException:
            if not shared:
                self._unclaim()
            raise

    def unlock(self, file_id: int, shared: bool) -> None:
        self._locks.release(file_id, shared)
        if not shared:
            self._unclaim()

    def _claim(self, path: str, timeout_s: float) -> None:
        """Have the directory for one more exclusive lock."""
        with self._flushing:
            if self.guard is None:
                guard = Guard(self.database)
                try:
                    is_taken = guard.take(timeout_s)
                except psycopg.Error as error:
                    raise OSError(errno.EIO, reason_of(error), path) from error
                if not is_taken:
                    guard.release()
                    raise LogLocked(path, "another process has this data directory open")
                self.guard = guard
            self._claims += 1

    def _unclaim(self) -> None:
        """A command gives the directory back with its last lock; a server keeps it."""
        with self._flushing:
            self._claims -= 1
            if self._claims == 0 and self._upkeep is None and self.guard is not None:
                self._flush()
                self.guard.release()
                self.guard = None


class _LockTable:
    """The files locked in this process, each by one thread alone or by any number together."""

    def __init__(self) -> None:
        self._held: list[tuple[int, bool]] = []
        self._freed = threading.Condition()

    def acquire(self, file_id: int, shared: bool, timeout_s: float) -> bool:
        """False: it was not to be had within the time."""
        with self._freed:
            is_free = self._freed.wait_for(partial(self._is_free, file_id, shared), timeout_s)
            if is_free:
                self._held.append((file_id, shared))
            return is_free

    def release(self, file_id: int, shared: bool) -> None:
        with self._freed:
            self._held.remove((file_id, shared))
            self._freed.notify_all()

    def _is_free(self, file_id: int, shared: bool) -> bool:
        return all(held != file_id or (shared and is_shared) for held, is_shared in self._held)


class _HeldLock:
    def __init__(self, disk: PostgresDisk, file_id: int, shared: bool) -> None:
        self._disk: PostgresDisk | None = disk
        self._file_id = file_id
        self._shared = shared

    def release(self) -> None:
        disk, self._disk = self._disk, None
        if disk is not None:
            disk.unlock(self._file_id, self._shared)


def _nameless(size: int) -> mmap.mmap:
    with tempfile.TemporaryFile() as file:
        file.truncate(size)
        return mmap.mmap(file.fileno(), size)
