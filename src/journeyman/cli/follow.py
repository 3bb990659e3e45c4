"""``dump --follow``: print what a log holds, then what is appended to it, until stopped.

    look which files there are --> read each on, oldest first --> wait --> look again

- A new segment (workq, kestrel) is read after the one before it has been read to its end: a log
  syncs and leaves a segment before it begins the next, so the order of lines is that of the log.
- A file that was replaced under its name (ztick compaction, a kestrel checkpoint) is read to its
  end first, since it is still open here; then the new one is read from its beginning.
- A file that was cut shorter than what was read of it is followed from its new end.
- Of a sealed file a block is shown once its seal is there.
- Files are read, not mapped: a mapped page that a writer cuts off under us ends the process.

SIGINT and SIGTERM end it with exit code 0.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from journeyman.cli.errors import warn
from journeyman.cli.lines import line_maker
from journeyman.clock import Clock
from journeyman.disk import RealDisk
from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Codec, Entry, iter_entries
from journeyman.formats.seals import SealFormat, fits, next_proven, seal_after
from journeyman.logs.catalog import ZTICK, Log, LogFile
from journeyman.logs.detection import relist

POLL_S = 0.2
_READ_BYTES = 1024 * 1024


class _Stopped(BaseException):
    """SIGINT or SIGTERM came. Not an error, and not for anyone else to catch."""


def follow(
    disk: RealDisk, clock: Clock, logs: list[Log], emit: Callable[[str], None], *, json: bool
) -> None:
    """Print entries of these logs as they come. Returns when SIGINT or SIGTERM comes."""
    followers = [_LogFollower(disk, log, json) for log in logs]
    with _stopped_by_signals():
        while True:
            for follower in followers:
                for line in follower.new_lines():
                    emit(line)
            clock.sleep(POLL_S)


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Stopped

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except _Stopped:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _LogFollower:
    """One log: the files that are open, and those that are finished."""

    def __init__(self, disk: RealDisk, log: Log, json: bool) -> None:
        self._disk = disk
        self._log = log
        self._json = json
        self._open: dict[str, _FileFollower] = {}
        self._left: set[str] = set()

    def new_lines(self) -> Iterator[str]:
        # The list is taken before anything is read: what is on it was complete, or is the newest.
        files = relist(self._disk, self._log).files
        segments = [file for file in files if file.reader is None]
        for file in files:
            if file.path in self._left:
                continue
            yield from self._read_on(file)
            if file.reader is None and file is not segments[-1] and file.path in self._open:
                self._open.pop(file.path).close()
                self._left.add(file.path)

    def _read_on(self, file: LogFile) -> Iterator[str]:
        follower = self._open.get(file.path)
        if follower is not None:
            # Asked before reading: what was renamed away gets no more bytes after that.
            replaced = self._disk.exists(file.path) and not follower.still_there()
            yield from follower.new_lines()
            if not replaced:
                return
            follower.close()
            del self._open[file.path]
        try:
            follower = _FileFollower(self._disk, file, self._json)
        except FileNotFoundError:
            return  # between two files of one name, or cleaned away since the list was taken
        self._open[file.path] = follower
        yield from follower.new_lines()


class _FileFollower:
    """One open file: what was read of it, and how to read on."""

    def __init__(self, disk: RealDisk, file: LogFile, json: bool) -> None:
        self._file = file
        self._handle = disk.open_read(file.path)
        self._line = line_maker(file, json=json)
        self._walk = _walk_of(file)
        self._offset = 0

    def still_there(self) -> bool:
        return self._handle.still_at(self._file.path)

    def close(self) -> None:
        left = self._handle.size() - self._offset
        if left > 0 and self._file.dialect == ZTICK:
            warn(f"partial trailing frame ({left} bytes) ignored")
        elif left > 0 and self._handle.read_at(self._offset, 1) != b"\0":
            warn(f"{self._file.path}: {left} bytes at offset {self._offset} left out")
        self._handle.close()

    def new_lines(self) -> Iterator[str]:
        size = self._handle.size()
        if size < self._offset:
            warn(f"{self._file.path}: cut from {self._offset} to {size} bytes")
            self._offset = size
        want = _READ_BYTES
        while True:
            data = self._handle.read_at(self._offset, want)
            entries, used = self._walk(data, self._offset)
            self._offset += used
            for entry in entries:
                yield self._line(entry)
            if used == 0:
                if len(data) < want:
                    return
                want *= 2  # an entry, or damage, longer than what was read


# What a walk is given: bytes and their offset in the file. What it answers: the entries in them,
# and how many bytes need not be looked at again.
_Walk = Callable[[bytes, int], tuple[list[Entry[Any]], int]]


def _walk_of(file: LogFile) -> _Walk:
    plain = _frame_walk() if file.dialect == ZTICK else _entry_walk(file)
    return plain if file.codec.seals is None else _sealed_walk(file, file.codec.seals, plain)


def _sealed_walk(file: LogFile, format_: SealFormat, plain: _Walk) -> _Walk:
    """Where the file is sealed, block by block: what has no seal yet is on its way."""
    codec = file.codec
    stamp: int | None = None

    def walk(data: bytes, base: int) -> tuple[list[Entry[Any]], int]:
        nonlocal stamp
        entries: list[Entry[Any]] = []
        used = 0
        while used < len(data):
            if stamp is None:
                at = _first_seal(format_, data, used, codec.header if base + used == 0 else b"")
                some, step = plain(data[used:at], base + used)
                entries += some
                used += step
                if at == len(data) or used < at:
                    break
                seal = format_.parse(data, at)
                if seal is not None and seal.opens and fits(format_, seal, data, at, base):
                    stamp = seal.stamp
                used += format_.size
                continue
            found = seal_after(format_, data, used, stamp, base)
            if found is None:
                proven = next_proven(format_, data, used, stamp, base)
                if proven is None or proven[1].begin <= base + used:
                    break
                begin = proven[1].begin
                warn(f"{file.path}: {begin - base - used} bytes at offset {base + used} left out")
                used = begin - base
                continue
            at, seal = found
            for entry in iter_entries(codec, data[used:at]):
                offset = base + used + entry.offset
                entries.append(Entry(offset, entry.length, entry.record))
            used = at + format_.size
            stamp = seal.stamp if seal.opens else None
        return entries, used

    return walk


def _first_seal(format_: SealFormat, data: bytes, offset: int, header: bytes) -> int:
    """The first entry that is marked as a seal, by sizes alone; else the end of the data."""
    offset += len(header)
    while offset < len(data) and not format_.is_like_seal(data, offset):
        end = format_.frame_end(data, offset)
        if end is None:
            return len(data)
        offset = end
    return offset if offset + format_.size <= len(data) else len(data)


def _frame_walk() -> _Walk:
    """ztick: frames by their lengths alone; an undecodable one is warned about, as in dump."""
    from journeyman.formats.ztick import decode_payload, frames

    index = 0

    def walk(data: bytes, base: int) -> tuple[list[Entry[Any]], int]:
        nonlocal index
        entries: list[Entry[Any]] = []
        used = 0
        for offset, payload in frames(data):
            length = offset + 4 + len(payload) - used
            try:
                record = decode_payload(payload, base + offset)
                entries.append(Entry(base + offset, length, record))
            except FormatError:
                warn(f"failed to decode frame {index}: error.InvalidData")
            index += 1
            used += length
        return entries, used

    return walk


def _entry_walk(file: LogFile) -> _Walk:
    """workq and the ledger read on after damage where a checksum fits; kestrel waits before it."""
    codec = file.codec
    warned: set[int] = set()

    def walk(data: bytes, base: int) -> tuple[list[Entry[Any]], int]:
        entries: list[Entry[Any]] = []
        used = 0
        try:
            if base == 0 and data:
                used = codec.check_header(data)
            while (entry := codec.decode(data, used)) is not None:
                entries.append(Entry(base + entry.offset, entry.length, entry.record))
                used = entry.end
        except IncompleteEntry:
            pass  # the rest of it may be on its way
        except FormatError as error:
            at = base + used
            if at not in warned:
                warned.add(at)
                warn(f"{file.path}: damage at offset {at}: {error.reason}")
            if codec.has_checksum:
                used = _behind_damage(codec, data, used) or used
        return entries, used

    return walk


def _behind_damage(codec: Codec[Any], data: bytes, offset: int) -> int | None:
    skipped = codec.skip(data, offset)
    return skipped if skipped is not None else codec.resync(data, offset + 1)
