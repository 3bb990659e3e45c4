"""How far a stream has read, as it stands in Spark's checkpoint: every log, every file, every byte.

    {"version": 1, "stream": "5f0c...", "turn": 7, "logs": {
       "/var/lib/ztick/logfile": {"holes": 0, "partitions": {"host": "a"}, "files": [
          {"segment": 3, "path": "/var/lib/ztick/logfile.to_compress", "inode": 71,
           "end": 4096, "final": 4096, "mark": "9d5e..."},
          {"segment": 4, "path": "/var/lib/ztick/logfile", "inode": 74, "end": 512, ...}]}}}

``files`` is the chain of a log: the files that this batch has read from, the one being read, and
those that wait, in reading order. A file that was read to its end leaves the chain with the next
batch, except the newest, which is where the chain goes on.

Two offsets say exactly which bytes lie between them, whatever has happened to the files since: a
batch that is run again after a crash reads the same bytes, or fails. ``end`` is always the end of
a whole entry. ``mark`` is a fingerprint of what was read, and ``held`` says that
a hard link keeps the file (``Holds``).
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from journeyman.disk import disk_of, is_database
from journeyman.errors import UsageError
from journeyman.logs.holders import Place
from journeyman.logs.publication import HELD_DIRECTORY, forget_replacement
from journeyman.spark.source.options import DAMAGE, DAMAGE_KIND, SEGMENT_SHIFT, arrow_schema

VERSION: Final = 1
_EDGE_BYTES = 256
_MARK_BYTES = 8
_LOCK_TIMEOUT_S = 30.0
_REASON = "compacted, cleaned or removed before it was read"


@dataclass(frozen=True, slots=True)
class FilePlace:
    """One file of a log, and how far it was read."""

    segment: int  # its ordinal in the log, from 0, never used again
    path: str  # when it was first seen; compaction renames files
    end: int = 0  # bytes read
    final: int | None = None  # its size, once nothing more will be appended
    inode: int | None = None  # where the filesystem has such a thing
    held: bool = False  # a hard link keeps it
    mark: str = ""
    begin: int = 0  # bytes before it were in the log already: see ``replacement_of``
    begin_mark: str = ""

    @property
    def finished(self) -> bool:
        return self.final is not None and self.end >= self.final


@dataclass(frozen=True, slots=True)
class LogPlace:
    """One log. ``holes`` counts how often history was gone before it was read; ``lost`` says what
    it was the last time."""

    files: tuple[FilePlace, ...] = ()
    holes: int = 0
    queue: str | None = None
    partitions: Mapping[str, str | None] = field(default_factory=dict)
    lost: str = ""

    @property
    def newest(self) -> FilePlace | None:
        return self.files[-1] if self.files else None

    def still_needed(self) -> tuple[FilePlace, ...]:
        """The chain without files that were read to their end; the newest always stays."""
        return tuple(f for f in self.files if not f.finished or f is self.files[-1])


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """All logs of a stream.

    ``stream`` names it among others on the same files. ``turn`` says whose log's turn it is to be
    first when a batch is limited. ``origin`` stands in the offset behind the first batch: where
    that began. Spark asks for it anew after a crash, and "latest" would have moved on.
    """

    stream: str
    turn: int = 0
    logs: Mapping[str, LogPlace] = field(default_factory=dict)
    is_origin: bool = False
    origin: StreamOffset | None = None
    version: int = VERSION

    def without_finished(self) -> StreamOffset:
        """Return the offset without files that nothing behind it needs."""
        logs = {name: replace(p, files=p.still_needed()) for name, p in self.logs.items()}
        return replace(self, logs=logs)

    def places_in(self, directory: str) -> dict[str, Place]:
        """Up to where the logs of a directory are read, for their writer (logs/holders.py)."""
        places = {}
        for name, log in self.logs.items():
            files = log.still_needed()
            if files and posixpath.dirname(files[0].path) == directory:
                at = files[0]
                key = "" if name == directory else posixpath.basename(name)
                places[key] = Place(posixpath.basename(at.path), at.inode, at.end)
        return places

    def has_news_since(self, start: StreamOffset) -> bool:
        """Return whether anything was read, found or lost since; a finished file is no news."""
        for name, place in self.logs.items():
            known = start.logs.get(name, LogPlace())
            if place.holes != known.holes or not set(place.files) <= set(known.files):
                return True
        return False

    def to_json(self) -> dict[str, Any]:
        """Spark takes two offsets for the same if their texts are; so the order is fixed."""
        ordered = replace(self, logs=dict(sorted(self.logs.items())))
        found: dict[str, Any] = msgspec.to_builtins(ordered)
        return found

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StreamOffset:
        version = fields.get("version")
        if version != VERSION:
            raise UsageError(
                f"the checkpoint holds offsets of version {version}, this release reads {VERSION}: "
                "go on with the release that wrote it, or begin a new checkpoint"
            )
        return msgspec.convert(fields, cls)


@dataclass(frozen=True, slots=True)
class BatchStretch:
    """Bytes ``begin`` to ``file.end`` of one file, to be read by one batch."""

    log: str
    place: LogPlace
    file: FilePlace
    begin: int

    @property
    def length(self) -> int:
        return self.file.end - self.begin


def stretches(start: StreamOffset, end: StreamOffset) -> Iterator[BatchStretch]:
    """Yield the stretches between two offsets, log by log, in reading order."""
    before = end.origin or start
    for name, place in sorted(end.logs.items()):
        known = before.logs.get(name, LogPlace())
        begins = {file.segment: file.end for file in known.files}
        for file in place.files:
            begin = begins.get(file.segment, file.begin)
            if file.end > begin:
                yield BatchStretch(name, place, file, begin)


def fingerprint(file: BinaryIO, end: int) -> str:
    """Return a fingerprint of the first ``end`` bytes of a file; empty if it has fewer.

    It tells whether a file still is the file that was read: a hash of its first 256 bytes, of the
    256 in front of where reading has come to, and of that place. A log only grows, so what was read
    never changes; a file that is shorter, or whose bytes differ, was cut or replaced. Inodes alone
    do not tell: a removed file's number is soon given to the next one.
    """
    head = read_range(file, 0, min(end, _EDGE_BYTES))
    tail = read_range(file, max(0, end - _EDGE_BYTES), min(end, _EDGE_BYTES))
    if len(tail) < min(end, _EDGE_BYTES):
        return ""
    digest = hashlib.blake2b(digest_size=_MARK_BYTES)
    digest.update(end.to_bytes(8, "big") + head + tail)
    return digest.hexdigest()


def read_range(file: BinaryIO, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes; fewer only at the end of the file."""
    file.seek(offset)
    pieces = []
    while length > 0 and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def held_path(path: str, inode: int) -> str:
    """Where the link on a file is; ``path`` is any name it has had in its log."""
    return posixpath.join(posixpath.dirname(path), HELD_DIRECTORY, str(inode))


@dataclass(slots=True)
class Holds:
    """Hard links on files that a stream has seen and not read to their end.

        <directory of the log>/_held/71         the same file as inode 71 of the log
        <directory of the log>/_held/71.5f0c    stream 5f0c needs it
        <directory of the log>/_held/lock       held while links are made or removed

    Compaction, cleaning and retention remove files when nobody at the *log* needs them; they know
    nothing of streams. A link costs no room as long as the file is in the log, and keeps its bytes
    when it no longer is: what was written between two looks, and a batch that must be run again
    after a crash, can still be read. Readers step over names with ``_``.

    All streams share one link a file, and only the last one removes it. So the time at which an
    inode last changed (``changed_ns``) is that of its last renaming or removal by the log, which
    chains.py goes by.

    Where links cannot be made (other file systems, no permission, ``holdFiles=false``) streams work
    without, and say so when something was removed too early. What a stream that was given up leaves
    behind is its markers, and the links they keep: remove ``_held`` when no stream is running.
    """

    stream: str
    enabled: bool = True

    def hold(self, path: str, inode: int) -> bool:
        """Keep the file that is at ``path`` now; False if it cannot be, or is another one."""
        if not self.enabled or is_database(path):
            return False  # a database keeps the rows of removed files for a while by itself
        link = held_path(path, inode)
        try:
            with _locked(link):
                if not os.path.exists(link):
                    os.link(path, link)
                if os.stat(link).st_ino != inode:
                    os.remove(link)  # ``path`` was another file by then
                    return False
                _touch(f"{link}.{self.stream}")
        except OSError:
            return False
        return True

    def release(self, path: str, inode: int) -> None:
        """This stream no longer needs the file."""
        link = held_path(path, inode)
        directory, name = posixpath.split(link)
        if not os.path.isdir(directory):
            return
        with _locked(link):
            with suppress(FileNotFoundError):
                os.remove(f"{link}.{self.stream}")
            if not any(other.startswith(name + ".") for other in os.listdir(directory)):
                with suppress(FileNotFoundError):
                    os.remove(link)
                forget_replacement(disk_of(path), path, inode)

    def held_in(self, directory: str) -> Iterator[int]:
        """The inodes that this stream holds in the directory of a log."""
        suffix = "." + self.stream
        with suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(posixpath.join(directory, HELD_DIRECTORY)):
                inode = name.removesuffix(suffix)
                if inode != name and inode.isdecimal():
                    yield int(inode)

    def release_all_but(self, directory: str, needed: Iterable[int]) -> None:
        """Let go of whatever else this stream holds in the directory of a log."""
        kept = set(needed)
        for inode in list(self.held_in(directory)):
            if inode not in kept:
                self.release(posixpath.join(directory, "_"), inode)


def changed_ns(path: str) -> int:
    """When the inode itself last changed: renamed, linked, removed under one of its names."""
    return os.stat(path).st_ctime_ns


@contextmanager
def _locked(link: str) -> Iterator[None]:
    directory = posixpath.dirname(link)
    disk = disk_of(directory)
    disk.make_dirs(directory)
    lock = disk.lock(posixpath.join(directory, "lock"), timeout_s=_LOCK_TIMEOUT_S)
    try:
        yield
    finally:
        lock.release()


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


class Holes(InputPartition):
    """Holes in the history, as one partition: rows as values by column.

    What was there cannot be shown, but that it is missing is a row that is counted, never silence.
    It has the envelope of the file that the hole is in front of, and in ``_damage`` the word
    ``lost``.
    """

    def __init__(self, rows: list[dict[str, object]]) -> None:
        super().__init__(None)
        self.rows = rows


def holes_between(start: StreamOffset, end: StreamOffset) -> list[Holes]:
    """Return at most one partition, for all holes that opened between two offsets."""
    before = end.origin or start
    rows: list[dict[str, object]] = []
    for name, place in sorted(end.logs.items()):
        known = before.logs.get(name)
        opened = place.holes - (known.holes if known is not None else 0)
        newest = place.files[-1]
        row: dict[str, object] = {
            **place.partitions,
            "_log": name,
            "_file": newest.path,
            "_segment": newest.segment,
            "_offset": 0,
            "_length": 0,
            "_position": newest.segment << SEGMENT_SHIFT,
            "kind": DAMAGE_KIND,
            "queue": place.queue,
            DAMAGE: f"lost: {place.lost or _REASON}",
        }
        rows += [row] * opened
    return [Holes(rows)] if rows else []


def lost_rows(holes: Holes, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows themselves, with the columns that were asked for."""
    arrow = arrow_schema(schema)
    columns = [pa.array([row.get(field.name) for row in holes.rows], field.type) for field in arrow]
    yield pa.RecordBatch.from_arrays(columns, schema=arrow)


def with_file(place: LogPlace, file: FilePlace) -> LogPlace:
    """``place`` with this file in the place of the one with its ordinal."""
    files = tuple(file if each.segment == file.segment else each for each in place.files)
    return replace(place, files=files)
