"""Hard links on files that a stream has seen and not read to their end.

    <directory of the log>/_held/71           the same file as inode 71 of the log, by another name
    <directory of the log>/_held/71.5f0c      stream 5f0c needs it
    <directory of the log>/_held/lock         held while links are made or removed

Compaction, cleaning and retention remove files when nobody at the *log* needs them; they know
nothing of streams. A link costs no room as long as the file is in the log, and keeps its bytes
when it no longer is: what was written between two looks, and a batch that must be run again after
a crash, can still be read. Spark's sources and the logs themselves step over names with ``_``.

All streams share one link a file, and only the last one removes it. So the time at which an inode
last changed (``changed_ns``) is that of its last renaming or removal by the log, which chains goes
by.

Where links cannot be made (other file systems, no permission, ``holdFiles=false``) streams work
without, and say so when something was removed too early. What a stream that was given up leaves
behind is its markers, and the links they keep: remove ``_held`` when no stream is running.

A **fingerprint** tells whether a file still is the file that was read: a hash of its first 256
bytes, of the 256 in front of where reading has come to, and of that place. A log only grows, so
what was read never changes; a file that is shorter, or whose bytes differ, was cut or replaced.
Inodes alone do not tell: a removed file's number is soon given to the next one.

A **hole** in the history is damage of the stream: what was there cannot be shown, but that it is
missing is a row that is counted, never silence. It has the envelope of the file the hole is in
front of, and in ``_damage`` the word ``lost``.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from journeyman.disk import RealDisk
from journeyman.logs.publication import HELD_DIRECTORY, forget_replacement
from journeyman.spark.source.schemas import DAMAGE, DAMAGE_KIND, SEGMENT_SHIFT, arrow_schema
from journeyman.spark.streams.offsets import StreamOffset

_EDGE_BYTES = 256
_MARK_BYTES = 8


def fingerprint(file: BinaryIO, end: int) -> str:
    """Of the first ``end`` bytes; empty when the file does not have as many."""
    head = read_at(file, 0, min(end, _EDGE_BYTES))
    tail = read_at(file, max(0, end - _EDGE_BYTES), min(end, _EDGE_BYTES))
    if len(tail) < min(end, _EDGE_BYTES):
        return ""
    digest = hashlib.blake2b(digest_size=_MARK_BYTES)
    digest.update(end.to_bytes(8, "big") + head + tail)
    return digest.hexdigest()


def read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes; fewer only at the end of the file."""
    file.seek(offset)
    pieces = []
    while length > 0 and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


_LOCK_TIMEOUT_S = 30.0


def held_path(path: str, inode: int) -> str:
    """Where the link on a file is; ``path`` is any name it has had in its log."""
    return posixpath.join(posixpath.dirname(path), HELD_DIRECTORY, str(inode))


@dataclass(slots=True)
class Holds:
    """The links of one stream."""

    stream: str
    enabled: bool = True

    def hold(self, path: str, inode: int) -> bool:
        """Keep the file that is at ``path`` now; False if it cannot be, or is another one."""
        if not self.enabled:
            return False
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
                forget_replacement(path, inode)

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
    disk = RealDisk()
    disk.make_dirs(directory)
    lock = disk.lock(posixpath.join(directory, "lock"), timeout_s=_LOCK_TIMEOUT_S)
    try:
        yield
    finally:
        lock.release()


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


_REASON = "compacted, cleaned or removed before it was read"


class Holes(InputPartition):
    """What one task has to tell of: rows as values by column."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        super().__init__(None)
        self.rows = rows


def holes_between(start: StreamOffset, end: StreamOffset) -> list[Holes]:
    """At most one partition, for all holes that opened between two offsets."""
    before = end.origin or start
    rows: list[dict[str, object]] = []
    for name, place in sorted(end.logs.items()):
        known = before.logs.get(name)
        opened = place.holes - (known.holes if known is not None else 0)
        newest = place.files[-1]
        row: dict[str, object] = {
            **dict(place.partitions),
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
