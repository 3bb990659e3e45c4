"""Which logs the paths of a read stand for, and the files of each in reading order.

    paths, globs --expand--> files and directories --group--> Log(files in order)

    ztick      a log is an active file and what compaction put beside it:
               <path>.compressed, <path>.to_compress, <path>
    workq      a log is a directory of 000000001.log ...
    kestrel    a log is one queue of a directory: <queue>.<number> ..., then <queue>.read.<reader>
    keyspace   a log is a directory of part-00000.jmkv ..., or one file of another name

A directory gives the files in it, and those in its ``name=value`` directories, as in Spark's file
sources; ``recursiveFileLookup`` goes into every directory instead and then makes no columns of
their names. Hidden names (``.`` or ``_`` first), locks, temporary and retired files are no part of
a log. A file that is named itself is read whatever its name; of a ztick log the active file stands
for all files of the log, and each other file for itself alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from urllib.parse import unquote

from journeyman.errors import LogError, UsageError
from journeyman.formats.kestrel import READER_MAGIC
from journeyman.logs.publication import is_journal
from journeyman.logs.segments import (
    QUARANTINE,
    ZtickNames,
    kestrel_number,
    kestrel_reader,
    workq_sequence,
)
from journeyman.spark.source.filesystem import (
    Filesystem,
    FoundFile,
    absolute,
    expand,
    filesystem_of,
    glob_pattern,
    has_glob,
    read_range,
)
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.schemas import KESTREL, KEYSPACE, WORKQ, ZTICK

_KEYSPACE_PART = re.compile(r"part-[0-9]+\.jmkv", re.ASCII)
_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_NOT_IN_NAMES = re.compile(r"[.`]")
_ZTICK_NOT_LOGS = (".lock", ".tmp")
_RUN_HISTORY = ".runs"  # a directory that the server keeps beside a ztick log
_ZTICK_DEFAULT = "logfile"


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a log, as it was when it was found.

    ``segment`` is its place in reading order, from 0. ``is_last`` says that the log goes on to be
    written here, so that a torn end is not damage. ``reader`` is for checkpoints of kestrel.
    """

    path: str
    size: int
    modified_ns: int | None
    identity: int | None
    segment: int
    is_last: bool
    queue: str | None = None
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Log:
    """One log: its name (the column ``_log``), its files in order, what its path says of it."""

    name: str
    files: tuple[LogFile, ...]
    partitions: tuple[tuple[str, str | None], ...] = ()


def find_logs(options: SourceOptions) -> list[Log]:
    """The logs that the options stand for, by name. Raises UsageError when there are none."""
    found: dict[str, FoundFile] = {}
    for path in options.paths:
        found |= {each.path: each for each in _files_at(options, absolute(path))}
    logs = _group(options, [each for each in found.values() if _is_wanted(options, each)])
    if not logs and not options.ignore_missing_files:
        shown = ", ".join(options.paths)
        raise UsageError(f"no {options.dialect} log at {shown}: give a file, directory or glob")
    return logs


def partition_columns(logs: Iterable[Log]) -> list[str]:
    """The names that ``name=value`` parts of the paths give, in the order they appear."""
    return list(dict.fromkeys(name for log in logs for name, _ in log.partitions))


# -- paths -> files ------------------------------------------------------------------------------


def _files_at(options: SourceOptions, path: str) -> Iterator[FoundFile]:
    filesystem = filesystem_of(path)
    is_glob = has_glob(path)
    nothing = True
    for found in expand(path):
        nothing = False
        if found.is_dir and is_glob and _stands_apart(found.name):
            continue
        if found.is_dir:
            yield from _files_in(options, filesystem, found.path)
        elif not is_glob or _belongs(options, found.name):
            yield found
            if options.dialect == ZTICK:
                yield from _ztick_companions(filesystem, found.path)
    if nothing and options.dialect == ZTICK and not is_glob:
        # Between a compaction and the next write the original has no active file.
        companions = list(_ztick_companions(filesystem, path))
        nothing = not companions
        yield from companions
    if nothing and not options.ignore_missing_files:
        raise UsageError(f"{path} does not exist")


def _files_in(
    options: SourceOptions, filesystem: Filesystem, directory: str
) -> Iterator[FoundFile]:
    listed = filesystem.list_dir(directory)
    _check_published(options, directory, listed)
    files = [each for each in listed if not each.is_dir and _belongs(options, each.name)]
    if options.dialect == ZTICK:
        files = _default_ztick(files) or files
    yield from files
    for each in listed:
        if each.is_dir and _is_entered(options, each.name):
            yield from _files_in(options, filesystem, each.path)


def _check_published(options: SourceOptions, directory: str, listed: Iterable[FoundFile]) -> None:
    """A directory in the middle of a change holds files of two logs: neither can be read."""
    if options.dialect != ZTICK and any(is_journal(each.name) for each in listed):
        raise LogError(
            directory,
            "a change of its files was cut short; open the log with the server, or repeat the "
            "write, to carry it through",
        )


def _is_entered(options: SourceOptions, name: str) -> bool:
    return not _stands_apart(name) and (options.recursive or "=" in name)


def _stands_apart(name: str) -> bool:
    """Whether a directory holds things about logs (indexes, damaged bytes, runs) and no logs."""
    return name.startswith((".", "_")) or name == QUARANTINE or name.endswith(_RUN_HISTORY)


def _default_ztick(files: list[FoundFile]) -> list[FoundFile]:
    """Of a directory with the original's default name in it: that log alone."""
    names = ZtickNames(_ZTICK_DEFAULT)
    wanted = (names.active, names.compressed, names.to_compress)
    return [each for each in files if each.name in wanted]


def _ztick_companions(filesystem: Filesystem, active: str) -> Iterator[FoundFile]:
    names = ZtickNames(active)
    for path in (names.compressed, names.to_compress):
        if (found := filesystem.find(path)) is not None:
            yield found


def _belongs(options: SourceOptions, name: str) -> bool:
    """Whether a file of this name, found in a directory or by a glob, is part of a log."""
    if name.startswith((".", "_")) or "~" in name:
        return False
    if options.dialect == ZTICK:
        return not name.endswith(_ZTICK_NOT_LOGS) and workq_sequence(name) is None
    if options.dialect == WORKQ:
        return workq_sequence(name) is not None
    if options.dialect == KESTREL:
        queue = name.partition(".")[0]
        is_ours = kestrel_number(queue, name) is not None or kestrel_reader(queue, name) is not None
        return bool(queue) and is_ours
    return name.endswith(".jmkv")


def _is_wanted(options: SourceOptions, found: FoundFile) -> bool:
    glob, after, before = (
        options.path_glob_filter,
        options.modified_after_ns,
        options.modified_before_ns,
    )
    if glob is not None and glob_pattern(glob).fullmatch(found.name) is None:
        return False
    modified = found.modified_ns
    if modified is None:
        return True
    return (after is None or modified > after) and (before is None or modified < before)


# -- files -> logs -------------------------------------------------------------------------------


def _group(options: SourceOptions, files: Iterable[FoundFile]) -> list[Log]:
    by_log: dict[str, list[tuple[tuple[object, ...], LogFile]]] = {}
    for found in files:
        log, order, queue, reader = _PLACES[options.dialect](found)
        if options.queue in (None, queue):
            file = LogFile(
                found.path, found.size, found.modified_ns, found.identity, 0, False, queue, reader
            )
            by_log.setdefault(log, []).append((order, file))
    return [_log(options, name, by_log[name]) for name in sorted(by_log)]


def _log(
    options: SourceOptions, name: str, placed: list[tuple[tuple[object, ...], LogFile]]
) -> Log:
    files = [file for _, file in sorted(placed, key=lambda each: (each[0], each[1].path))]
    written = [file.path for file in files if file.reader is None]
    last = written[-1] if written and options.dialect != KEYSPACE else None
    numbered = tuple(
        replace(file, segment=segment, is_last=file.path == last)
        for segment, file in enumerate(files)
    )
    return Log(name, numbered, () if options.recursive else _partitions(files[0].path))


_Place = tuple[str, tuple[object, ...], str | None, str | None]


def _ztick_place(found: FoundFile) -> _Place:
    for order, suffix in enumerate((".compressed", ".to_compress")):
        if found.name.endswith(suffix) and found.name != suffix:
            return found.path.removesuffix(suffix), (order,), None, None
    return found.path, (2,), None, None


def _workq_place(found: FoundFile) -> _Place:
    sequence = workq_sequence(found.name)
    return _directory(found), (sequence is None, sequence or 0, found.name), None, None


def _kestrel_place(found: FoundFile) -> _Place:
    queue = found.name.partition(".")[0]
    reader = kestrel_reader(queue, found.name)
    number = kestrel_number(queue, found.name)
    if reader is None and number is None and read_range(found.path, 0, 4) == READER_MAGIC:
        reader = found.name  # under a foreign name only the first bytes tell what it is
    place = (reader is not None, number or 0, found.name)
    return f"{_directory(found)}/{queue}", place, queue, reader


def _keyspace_place(found: FoundFile) -> _Place:
    is_part = _KEYSPACE_PART.fullmatch(found.name) is not None
    return _directory(found) if is_part else found.path, (found.name,), None, None


_PLACES = {
    ZTICK: _ztick_place,
    WORKQ: _workq_place,
    KESTREL: _kestrel_place,
    KEYSPACE: _keyspace_place,
}


def _directory(found: FoundFile) -> str:
    return found.path.rpartition("/")[0] or "/"


def _partitions(path: str) -> tuple[tuple[str, str | None], ...]:
    """What ``name=value`` directories say, as Hive writes them.

    Spark itself cannot hand a column to Python whose name has a dot or a backtick in it.
    """
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name and value:
            column = _NOT_IN_NAMES.sub("_", unquote(name))
            found[column] = None if value == _NULL_PARTITION else unquote(value)
    return tuple(found.items())
