"""What files the logs of a stream have now, and which of them a stream already knows.

    find_logs ---> LogSeen(files) ---> chains ---> holds ---> looked at once more

A listing is not a moment: while it is taken, a log rotates and is compacted. So what a chain was
extended by is looked at again after links were made on it. If the names still stand for the same
files, they did so all the while (a linked file's inode is given to no other), and the chain holds
every file once. If not, it is all done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace

from journeyman.errors import LogError
from journeyman.logs.segments import ZtickNames
from journeyman.spark.source.filesystem import filesystem_of
from journeyman.spark.source.layout import Log, find_logs
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.schemas import ZTICK
from journeyman.spark.streams.fingerprints import fingerprint
from journeyman.spark.streams.holds import changed_ns, held_path
from journeyman.spark.streams.offsets import FilePlace


@dataclass(frozen=True, slots=True)
class FileSeen:
    """A file at a path, as of one look."""

    path: str
    size: int
    inode: int | None


@dataclass(frozen=True, slots=True)
class LogSeen:
    """One log: the files that records are appended to, in reading order."""

    name: str
    files: tuple[FileSeen, ...]
    queue: str | None = None
    partitions: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True, slots=True)
class HeldFile:
    """What a hard link knows of a file that may have left its log."""

    size: int
    changed_ns: int


def survey(options: SourceOptions) -> dict[str, LogSeen]:
    """All logs. Checkpoints of kestrel's readers are no part of a stream: they are replaced."""
    return {log.name: _seen(options.dialect, log) for log in find_logs(options)}


def looked_again(dialect: str, seen: LogSeen) -> LogSeen:
    """The same log, as it is now; for workq and kestrel without segments begun since."""
    return replace(seen, files=look(_names(dialect, seen.name, (f.path for f in seen.files))))


def identities(seen: LogSeen) -> list[tuple[str, int | None]]:
    """Which file each name stands for; sizes may grow."""
    return [(file.path, file.inode) for file in seen.files]


def look(paths: Iterable[str]) -> tuple[FileSeen, ...]:
    """What is at these paths, leaving out where nothing is."""
    found = ((path, filesystem_of(path).find(path)) for path in paths)
    return tuple(FileSeen(path, f.size, f.identity) for path, f in found if f is not None)


def _seen(dialect: str, log: Log) -> LogSeen:
    paths = (file.path for file in log.files if file.reader is None)
    queue = log.files[0].queue if log.files else None
    return LogSeen(log.name, look(_names(dialect, log.name, paths)), queue, log.partitions)


def _names(dialect: str, log: str, paths: Iterable[str]) -> Iterable[str]:
    if dialect != ZTICK:
        return paths
    names = ZtickNames(log)
    return names.compressed, names.to_compress, names.active


def is_same(file: FilePlace, seen: FileSeen) -> bool:
    """Whether this is the file that was read; raises LogError if it is, but was changed."""
    inodes_known = file.inode is not None and seen.inode is not None
    if inodes_known and file.inode != seen.inode:
        return False
    if file.end == 0:
        return inodes_known or file.path == seen.path
    if _mark(seen.path, file.end) == file.mark:
        return True
    if inodes_known:
        what = "was cut" if seen.size < file.end else "was changed or replaced"
        raise LogError(
            seen.path,
            f"{what} in front of byte {file.end}, up to which it was read; "
            "begin a new checkpoint to read it anew",
        )
    return False


def held_file(file: FilePlace) -> HeldFile | None:
    """What the link on a file says; None if there is none, or it is no longer that file."""
    if not file.held or file.inode is None:
        return None
    link = held_path(file.path, file.inode)
    found = filesystem_of(link).find(link)
    if found is None or _mark(link, file.end) != file.mark:
        return None
    return HeldFile(found.size, changed_ns(link))


def mark_of(file: FilePlace) -> str | None:
    """The mark of the first ``end`` bytes of a file, wherever compaction has put it since."""
    for name in (file.path, file.path + ".to_compress", held_path(file.path, file.inode or 0)):
        found = filesystem_of(name).find(name)
        if found is not None and found.identity == file.inode:
            return _mark(name, file.end)
    return None


def opened_path(file: FilePlace) -> str | None:
    """The name under which this very file can be opened now; None if it is gone."""
    names = [file.path, file.path + ".to_compress"]
    if file.held and file.inode is not None:
        names.insert(0, held_path(file.path, file.inode))
    for name in names:
        found = filesystem_of(name).find(name)
        if found is None or (file.inode is not None and found.identity != file.inode):
            continue
        if _mark(name, file.end) == file.mark:
            return name
    return None


def _mark(path: str, end: int) -> str:
    if end == 0:
        return ""
    try:
        with closing(filesystem_of(path).open(path)) as file:
            return fingerprint(file, end)
    except FileNotFoundError:
        return "?"  # renamed meanwhile: no mark looks like this
