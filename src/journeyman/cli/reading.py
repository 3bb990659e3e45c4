"""Reading the entries of a log for dump: by the one rule for damaged logs, or asked for more.

    all       the records that a server would load: journeyman.logs.damage says how reading goes on
              after damage
    salvage   also what stands alone between damages, or in a torn tail, and looks like a record
    seals     the seals of the log too, as the records that they are for other programs

Entries are made one at a time, so the size of a log does not matter. Every stretch that was passed
over is a warning on stderr; of a ztick log in the words of ``ztick dump`` where that says the same.

All files of a log, mapped at one moment: what dump and verify read.

A log may be in use. A mapped file stays readable when it is renamed, rewritten or removed, so the
only moment that matters is the one in which the files are mapped: then none of them may change
its name.

    workq     read.lock is held, shared, as readers of the original hold it; cleaning waits
    ztick     compaction takes no lock that a reader could hold: when a name changed its file
    kestrel   meanwhile, or was missing, everything is mapped again

Nothing is written: a lock that is not there is not made, and one that may not be opened is done
without.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from journeyman.cli.errors import warn
from journeyman.cli.output import Advance
from journeyman.disk import ReadFile, RealDisk
from journeyman.errors import LogError
from journeyman.formats.framing import Buffer, Entry
from journeyman.logs.catalog import KESTREL, WORKQ, ZTICK, Log, LogFile
from journeyman.logs.damage import Damage
from journeyman.logs.detection import relist
from journeyman.logs.ledger.times import FileTimes
from journeyman.logs.sealing import is_in_flight, read_file
from journeyman.logs.segments import READ_LOCK
from journeyman.units import NS_PER_MS

_TRIES = 20
_LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class MappedLog:
    """A log, and its files as they were at one moment."""

    log: Log
    views: dict[str, memoryview]  # by path

    @property
    def size(self) -> int:
        return sum(map(len, self.views.values()))


def map_log(disk: RealDisk, log: Log, *, compacted: bool = False) -> MappedLog:
    """Map the files of a log; ``compacted`` adds those that ztick's compaction put beside it."""
    with _no_cleaning(disk, log):
        for _ in range(_TRIES):
            current = relist(disk, log, compacted=compacted)
            views = _views(disk, current)
            if views is not None and relist(disk, log, compacted=compacted) == current:
                return MappedLog(current, views)
    raise LogError(log.where, "its files change all the time; try again")


def _views(disk: RealDisk, log: Log) -> dict[str, memoryview] | None:
    """None when a name changed its file while they were mapped."""
    views: dict[str, memoryview] = {}
    handles: list[tuple[str, ReadFile]] = []
    try:
        for file in log.files:
            handles.append((file.path, disk.open_read(file.path)))
            views[file.path] = disk.view(file.path)
        still = all(handle.still_at(path) for path, handle in handles)
    except FileNotFoundError:
        if not log.whole:
            raise
        still = False
    finally:
        for _, handle in handles:
            handle.close()
    return views if still else None


@contextmanager
def _no_cleaning(disk: RealDisk, log: Log) -> Iterator[None]:
    path = posixpath.join(log.where, READ_LOCK)
    if log.dialect != WORKQ or not disk.exists(path):
        yield
        return
    try:
        lock = disk.lock(path, shared=True, timeout_s=_LOCK_TIMEOUT_S)
    except OSError:  # no permission to open it, or a file system that cannot be written
        yield
        return
    try:
        yield
    finally:
        lock.release()


_ADVANCE_EVERY = 4096  # entries
_LENGTH_PREFIX_BYTES = 4


class LogReading:
    """Reads the files of one log, up to the moment asked for, and knows what was damaged."""

    def __init__(
        self,
        mapped: MappedLog,
        *,
        as_of_ns: int | None,
        salvage: bool,
        advance: Advance,
        seals: bool = False,
        times: Mapping[str, FileTimes] | None = None,
    ) -> None:
        """``times``: when records of a ztick log were written, by path, for ``as_of_ns``."""
        self._times = times or {}
        self._views = mapped.views
        self._as_of_ns = as_of_ns
        self._salvage = salvage
        self._seals = seals
        self._advance = advance
        self._done = 0
        self._told: set[tuple[str, int]] = set()
        self.damaged: set[str] = set()  # paths

    def read(self, files: Iterable[LogFile]) -> Iterator[tuple[LogFile, Entry[Any]]]:
        """The entries of these files, one file after the other."""
        for file in files:
            data = self._views[file.path]
            for number, entry in enumerate(self._entries(file, data)):
                if number % _ADVANCE_EVERY == 0:
                    self._advance(self._done + entry.offset)
                if self._as_of_ns is None or self._is_before(file, entry, self._as_of_ns):
                    yield file, entry
            self._done += len(data)

    def _is_before(self, file: LogFile, entry: Entry[Any], as_of_ns: int) -> bool:
        if file.dialect != ZTICK:
            return _recorded_ns(file, entry.record) <= as_of_ns
        times = self._times.get(file.path)
        time_ns = None if times is None else times.time_ns(entry.offset)
        return time_ns is not None and time_ns <= as_of_ns

    def _entries(self, file: LogFile, data: Buffer) -> Iterator[Entry[Any]]:
        found_all = read_file(
            file.codec, data, file=file.path, salvage=self._salvage, seals=self._seals
        )
        for frames, found in enumerate(found_all):
            if not isinstance(found, Damage):
                yield found
            elif not is_end(file, data, found):
                self.damaged.add(file.path)
                if (file.path, found.offset) in self._told:
                    continue  # the file is read once more
                self._told.add((file.path, found.offset))
                warn(_warning(file, data, found, frames))


def _warning(file: LogFile, data: Buffer, damage: Damage, frames: int) -> str:
    """What was left out; ``frames`` stand before it in its file."""
    if file.dialect == ZTICK and damage.kind == "torn" and damage.end == len(data):
        return f"partial trailing frame ({damage.length} bytes) ignored"
    prefix = bytes(data[damage.offset : damage.offset + _LENGTH_PREFIX_BYTES])
    length = int.from_bytes(prefix, "big") + _LENGTH_PREFIX_BYTES
    if file.dialect == ZTICK and damage.kind == "corrupt" and damage.length == length:
        return f"failed to decode frame {frames}: error.InvalidData"
    return (
        f"{file.path}: {damage.length} bytes at offset {damage.offset} left out: "
        f"{damage.kind}, {damage.reason}"
    )


def is_end(file: LogFile, data: Buffer, damage: Damage) -> bool:
    """Whether this is not damage but the end of a file: its end mark, or a batch on its way.

    A checkpoint is written whole, so nothing is ever on its way there.
    """
    is_on_its_way = is_in_flight(damage) and file.reader is None
    return is_on_its_way or is_end_mark(file, data, damage)


def is_end_mark(file: LogFile, data: Buffer, damage: Damage) -> bool:
    """Whether this is how a kestrel file ends: a zero byte, and then no data that counts.

    After the zero byte of a segment there may be a PUT whose first byte was to be written last.
    A checkpoint is replaced as a whole, so nothing but zeros may follow its last record.
    """
    if file.dialect != KESTREL or damage.end != len(data) or damage.offset == 0:
        return False
    begins_zero = data[damage.offset] == 0
    return damage.kind == "padding" or (file.reader is None and begins_zero)


def _recorded_ns(file: LogFile, record: Any) -> int:
    """When the record came into being. A checkpoint bears no time and counts as always there."""
    if file.dialect == KESTREL:
        return int(record.add_time_ms) * NS_PER_MS if hasattr(record, "add_time_ms") else 0
    return int(record.logged.unix_ns)
