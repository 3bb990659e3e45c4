"""The names of the files that make up a log, their order, and the name of the next one.

    ztick     <path>                      the active file
              <path>.to_compress          the file being compacted
              <path>.compressed           the result of the last compaction
              <path>.compressed.tmp       a result not yet finished
              <path>.lock
    workq     <dir>/000000001.log ...     nine digits, counted up; gaps are fine
              <dir>/read.lock append.lock
    ledger    <dir>/000000001.ledger ...  the same way
              <dir>/ledger.lock
    kestrel   <dir>/<queue>.<number>      usually milliseconds; compared as a number, not as text
              <dir>/<queue>.read.<reader> one checkpoint per reader; the default reader's name is ""
              <dir>/<queue>.lock
              archive~<segment>           a retired segment
    all       <dir>/quarantine/           damaged bytes, see journeyman.logs.recovery
              anything with ``~``         temporary or retired; never a segment or a checkpoint

Names are pure functions over name lists; only the plans look at a Disk. A SegmentPlan says
which file the tail of a log opens first, when to leave it, and where to continue.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from journeyman.clock import Clock
from journeyman.disk import Disk, ReadingDisk
from journeyman.errors import LogError, UsageError
from journeyman.units import NS_PER_MS

QUARANTINE = "quarantine"
TEMPORARY_MARK = "~~"
ARCHIVE_PREFIX = "archive~"
LOCK_SUFFIX = ".lock"
READ_LOCK = "read.lock"
LEDGER_LOCK = "ledger.lock"
COMPACTED_SUFFIX = ".compressed"
APPEND_LOCK = "append.lock"
MAX_SEQUENCE = 999_999_999  # a tenth digit would hide the file from readers
MAX_NAME_BYTES = 200  # a limit for queues and readers: file names end at 255 on common file systems

WORKQ_SUFFIX = ".log"
LEDGER_SUFFIX = ".ledger"
_NUMBERED_NAME = re.compile(r"([0-9]{9})(\.log|\.ledger)", re.ASCII)
_QUEUE_NAME = re.compile(rf"[A-Za-z0-9:_-]{{1,{MAX_NAME_BYTES}}}", re.ASCII)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """Where a record stands: ``offset`` bytes into the segment at ``path``.

    ``block`` is where the seal of its block stands; None if it is not sealed.
    """

    path: str
    offset: int
    block: int | None = field(default=None, compare=False)


class SegmentPlan(Protocol):
    """How a log is laid out over files, as far as appending to it needs to know."""

    @property
    def where(self) -> str:
        """Return what the log is called in errors: its path or directory."""
        ...

    @property
    def header(self) -> bytes:
        """Return what a new segment begins with."""
        ...

    def first_path(self) -> str:
        """The file to go on with; it need not exist yet."""
        ...

    @property
    def segment_bytes(self) -> float:
        """While a segment is no larger than this there is no need to ask ``must_rotate``."""
        ...

    def must_rotate(self, size: int, incoming: int) -> bool:
        """Return whether a record of ``incoming`` bytes belongs in the next segment.

        ``size`` is that of the active segment, header included.
        """
        ...

    def next_path(self, current: str) -> str:
        """The segment after ``current``; it does not exist yet."""
        ...


def names_in(disk: ReadingDisk, directory: str) -> list[str]:
    """Names in a directory; none when it does not exist."""
    return disk.list_dir(directory) if disk.is_dir(directory) else []


# --- ztick ---


@dataclass(frozen=True, slots=True)
class ZtickNames:
    """The files of one ztick log, all beside the active one."""

    active: str

    @property
    def to_compress(self) -> str:
        return self.active + ".to_compress"

    @property
    def compressed(self) -> str:
        return self.active + COMPACTED_SUFFIX

    @property
    def compressed_tmp(self) -> str:
        return self.active + ".compressed.tmp"

    @property
    def lock(self) -> str:
        return self.active + ".lock"

    @property
    def directory(self) -> str:
        return posixpath.dirname(self.active) or "."

    @property
    def load_order(self) -> tuple[str, str, str]:
        """The files that may hold records, in the order they are read."""
        return self.compressed, self.to_compress, self.active


def ztick_files(disk: ReadingDisk, active: str) -> list[str]:
    """The files of a ztick log that exist, in load order."""
    return [path for path in ZtickNames(active).load_order if disk.exists(path)]


@dataclass(frozen=True, slots=True)
class ZtickPlan:
    """One file, no header, no rotation; compaction switches files by ``Appender.rotate_to``."""

    path: str
    header: bytes = b""
    segment_bytes: float = math.inf

    @property
    def where(self) -> str:
        return self.path

    def first_path(self) -> str:
        return self.path

    def must_rotate(self, size: int, incoming: int) -> bool:  # noqa: ARG002 - never, at any size
        return False

    def next_path(self, current: str) -> str:
        raise LogError(current, "a ztick log has only one active file")


# --- workq, ledger ---


def workq_sequence(name: str) -> int | None:
    """The number of a segment; None for any other file."""
    return _sequence(name, WORKQ_SUFFIX)


def ledger_sequence(name: str) -> int | None:
    return _sequence(name, LEDGER_SUFFIX)


def workq_segments(names: Iterable[str]) -> list[str]:
    """Segment names in order of their sequence."""
    return sorted(name for name in names if workq_sequence(name) is not None)


def ledger_segments(names: Iterable[str]) -> list[str]:
    return sorted(name for name in names if ledger_sequence(name) is not None)


def workq_files(disk: ReadingDisk, directory: str) -> list[str]:
    """The segments of a workq log, in order; none when there is no such directory."""
    return [posixpath.join(directory, n) for n in workq_segments(names_in(disk, directory))]


def ledger_files(disk: ReadingDisk, directory: str) -> list[str]:
    return [posixpath.join(directory, n) for n in ledger_segments(names_in(disk, directory))]


def is_numbered(name: str) -> bool:
    """Return whether it is the name of a segment of a workq log or a ledger."""
    return _NUMBERED_NAME.fullmatch(name) is not None


def _sequence(name: str, suffix: str) -> int | None:
    match = _NUMBERED_NAME.fullmatch(name)
    return int(match[1]) if match and match[2] == suffix else None


def numbered_name(sequence: int, suffix: str = WORKQ_SUFFIX) -> str:
    if not 0 <= sequence <= MAX_SEQUENCE:
        raise UsageError(f"segment sequence must be 0..{MAX_SEQUENCE}, not {sequence}")
    return f"{sequence:09d}{suffix}"


@dataclass(frozen=True, slots=True)
class NumberedPlan:
    """Numbered segments. One is left once it has reached ``segment_bytes``: its least size."""

    disk: Disk
    directory: str
    header: bytes
    segment_bytes: int
    suffix: str = WORKQ_SUFFIX

    @property
    def where(self) -> str:
        return self.directory

    def first_path(self) -> str:
        names = names_in(self.disk, self.directory)
        existing = sorted(name for name in names if _sequence(name, self.suffix) is not None)
        name = existing[-1] if existing else numbered_name(1, self.suffix)
        return posixpath.join(self.directory, name)

    def must_rotate(self, size: int, incoming: int) -> bool:  # noqa: ARG002 - only the size counts
        return size >= max(self.segment_bytes, len(self.header) + 1)

    def next_path(self, current: str) -> str:
        sequence = _sequence(posixpath.basename(current), self.suffix)
        if sequence is None:
            raise LogError(current, "not a segment name")
        if sequence == MAX_SEQUENCE:
            raise LogError(current, "no segment number is left")
        return posixpath.join(self.directory, numbered_name(sequence + 1, self.suffix))


# --- kestrel ---


def _check_name(what: str, name: str, forbidden: str) -> None:
    if found := sorted(set(forbidden) & set(name)):
        raise UsageError(f"{what} name {name!r} holds {', '.join(map(repr, found))}")
    if len(name.encode("utf-8", "surrogateescape")) > MAX_NAME_BYTES:
        raise UsageError(f"{what} name is longer than {MAX_NAME_BYTES} bytes")


def check_queue_name(queue: str) -> None:
    """Raises UsageError for a name whose files could be confused with other files."""
    if not queue:
        raise UsageError("queue name is empty")
    _check_name("queue", queue, "~./\0")


def check_reader_name(reader: str) -> None:
    """Check a name as for queues, but a reader may have dots, and the default reader's name is
    empty."""
    _check_name("reader", reader, "~/\0")


def kestrel_segment_name(queue: str, number: int) -> str:
    check_queue_name(queue)
    return f"{queue}.{number}"


def kestrel_reader_name(queue: str, reader: str) -> str:
    check_queue_name(queue)
    check_reader_name(reader)
    return f"{queue}.read.{reader}"


def kestrel_archive_name(segment: str) -> str:
    return ARCHIVE_PREFIX + segment


def kestrel_lock_name(queue: str) -> str:
    check_queue_name(queue)
    return queue + LOCK_SUFFIX


def is_queue_name(text: str) -> bool:
    """Return whether the original would take it for the name of a queue."""
    return _QUEUE_NAME.fullmatch(text) is not None


def kestrel_number(queue: str, name: str) -> int | None:
    """The number of a segment of this queue; None for any other file."""
    prefix = queue + "."
    if name.startswith(prefix) and _DIGITS.fullmatch(name, len(prefix)):
        return int(name[len(prefix) :])
    return None


def kestrel_segments(queue: str, names: Iterable[str]) -> list[str]:
    """Segment names of a queue in order of their number."""
    numbered = ((kestrel_number(queue, name), name) for name in names)
    return [name for _, name in sorted((n, name) for n, name in numbered if n is not None)]


def kestrel_reader(queue: str, name: str) -> str | None:
    """The reader whose checkpoint this is; None for any other file."""
    prefix = f"{queue}.read."
    return name[len(prefix) :] if name.startswith(prefix) and "~" not in name else None


def kestrel_readers(queue: str, names: Iterable[str]) -> dict[str, str]:
    """Reader name -> file name, for every checkpoint of a queue."""
    found = ((kestrel_reader(queue, name), name) for name in names)
    return {reader: name for reader, name in sorted(found, key=_by_name) if reader is not None}


def _by_name(pair: tuple[str | None, str]) -> str:
    return pair[1]


def kestrel_temporaries(queue: str, names: Iterable[str]) -> list[str]:
    """Unfinished files of this queue, left by a crash. Those of other queues are left alone."""
    return sorted(n for n in names if n.startswith(queue + ".") and TEMPORARY_MARK in n)


def is_kestrel_name(name: str) -> bool:
    """Return whether a file of this name is a segment or a checkpoint, of whatever queue."""
    queue = name.partition(".")[0]
    if not queue or "~" in queue:
        return False
    return kestrel_number(queue, name) is not None or kestrel_reader(queue, name) is not None


def kestrel_queues(names: Iterable[str]) -> list[str]:
    """Queues that have a segment or a checkpoint among these names."""
    return sorted({name.partition(".")[0] for name in names if is_kestrel_name(name)})


@dataclass(frozen=True, slots=True)
class KestrelPlan:
    """A segment is left when the next record would take it past ``segment_bytes``.

    Exactly full is not past, and an empty segment takes one record of any size: it would fit
    the next segment no better.
    """

    disk: Disk
    clock: Clock
    directory: str
    queue: str
    header: bytes
    segment_bytes: int

    @property
    def where(self) -> str:
        return posixpath.join(self.directory, self.queue)

    def first_path(self) -> str:
        existing = kestrel_segments(self.queue, names_in(self.disk, self.directory))
        return posixpath.join(self.directory, existing[-1]) if existing else self._fresh_path(0)

    def must_rotate(self, size: int, incoming: int) -> bool:
        return size > len(self.header) and size + incoming > self.segment_bytes

    def next_path(self, current: str) -> str:
        number = kestrel_number(self.queue, posixpath.basename(current))
        if number is None:
            raise LogError(current, "not a segment name")
        return self._fresh_path(number)

    def _fresh_path(self, above: int) -> str:
        """Named by the clock, but above every number in use: a clock may step back."""
        for name in names_in(self.disk, self.directory):
            above = max(above, kestrel_number(self.queue, name) or 0)
        number = max(above + 1, self.clock.now_ns() // NS_PER_MS)
        return posixpath.join(self.directory, kestrel_segment_name(self.queue, number))
