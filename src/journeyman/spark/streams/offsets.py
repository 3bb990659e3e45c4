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
a whole entry. ``mark`` is a fingerprint of what was read, see fingerprints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from journeyman.errors import UsageError

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class FilePlace:
    """One file of a log, and how far it was read."""

    segment: int  # its ordinal in the log, from 0, never used again
    path: str  # when it was first seen; compaction renames files
    end: int = 0  # bytes read
    final: int | None = None  # its size, once nothing more will be appended
    inode: int | None = None  # where the filesystem has such a thing
    held: bool = False  # a hard link keeps it, see holds
    mark: str = ""
    begin: int = 0  # what stands before it was in the log already: see logs.replaced_files
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
    partitions: tuple[tuple[str, str | None], ...] = ()
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

    def without_finished(self) -> StreamOffset:
        """Without files that nothing behind this offset needs."""
        logs = {name: replace(p, files=p.still_needed()) for name, p in self.logs.items()}
        return replace(self, logs=logs)

    def has_news_since(self, start: StreamOffset) -> bool:
        """Whether anything was read, found or lost since; that a file is finished is no news."""
        for name, place in self.logs.items():
            known = start.logs.get(name, LogPlace())
            if place.holes != known.holes or not set(place.files) <= set(known.files):
                return True
        return False

    def to_json(self) -> dict[str, Any]:
        """Spark takes two offsets for the same if their texts are; so the order is fixed."""
        logs = {name: _log_to_json(self.logs[name]) for name in sorted(self.logs)}
        found = {"version": VERSION, "stream": self.stream, "turn": self.turn, "logs": logs}
        if self.is_origin:
            found["is_origin"] = True
        if self.origin is not None:
            found["origin"] = self.origin.to_json()
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> StreamOffset:
        version = found.get("version")
        if version != VERSION:
            raise UsageError(
                f"the checkpoint holds offsets of version {version}, this release reads {VERSION}: "
                "go on with the release that wrote it, or begin a new checkpoint"
            )
        origin = found.get("origin")
        return cls(
            stream=found["stream"],
            turn=found["turn"],
            logs={name: _log_from_json(log) for name, log in found["logs"].items()},
            is_origin=found.get("is_origin", False),
            origin=cls.from_json(origin) if origin is not None else None,
        )


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
    """What lies between two offsets, log by log, in reading order."""
    before = end.origin or start
    for name, place in sorted(end.logs.items()):
        known = before.logs.get(name, LogPlace())
        begins = {file.segment: file.end for file in known.files}
        for file in place.files:
            begin = begins.get(file.segment, file.begin)
            if file.end > begin:
                yield BatchStretch(name, place, file, begin)


def _log_to_json(place: LogPlace) -> dict[str, Any]:
    lost = {"lost": place.lost} if place.lost else {}
    return lost | {
        "holes": place.holes,
        "queue": place.queue,
        "partitions": dict(place.partitions),
        "files": [_file_to_json(file) for file in place.files],
    }


def _file_to_json(file: FilePlace) -> dict[str, Any]:
    begin = {"begin": file.begin, "begin_mark": file.begin_mark} if file.begin else {}
    return begin | {
        "segment": file.segment,
        "path": file.path,
        "inode": file.inode,
        "held": file.held,
        "end": file.end,
        "final": file.final,
        "mark": file.mark,
    }


def _log_from_json(found: Mapping[str, Any]) -> LogPlace:
    return LogPlace(
        files=tuple(FilePlace(**file) for file in found["files"]),
        holes=found["holes"],
        queue=found["queue"],
        partitions=tuple(found["partitions"].items()),
        lost=found.get("lost", ""),
    )


def with_file(place: LogPlace, file: FilePlace) -> LogPlace:
    """``place`` with this file in the place of the one with its ordinal."""
    files = tuple(file if each.segment == file.segment else each for each in place.files)
    return replace(place, files=files)
