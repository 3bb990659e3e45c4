"""The files of each log, in the order in which they are read: for the command line and for Spark.

    ztick      a log is an active file and what compaction put beside it:
               <path>.compressed, <path>.to_compress, <path>
    workq      a log is a directory of 000000001.log ...
    ledger     a log is a directory of 000000001.ledger ...
    kestrel    a log is one queue of a directory: <queue>.<number> ..., then <queue>.read.<reader>

    paths, globs --expand--> files and directories --group--> Log(files in order)

``find_logs`` needs the dialect. A directory gives the files in it, and those in its
``name=value`` directories, as in Spark's file sources; a recursive query goes into every directory
instead and then makes no columns of their names. Hidden names (``.`` or ``_`` first), locks,
temporary and retired files are not part of a log. A file that is named itself is read whatever its
name; of a ztick log the active file stands for all files of the log, and each other file for
itself alone. What paths mean without a given dialect: journeyman.logs.detection.

Globs are Hadoop's, as in Spark: ``*``, ``?``, ``[ab]``, ``[^a]`` and ``{a,b}``, never across a
``/``, over any place that can list its directories.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol
from urllib.parse import unquote

from journeyman.disk import is_database
from journeyman.errors import LogError, UsageError
from journeyman.formats.framing import Codec
from journeyman.logs import segments as segment_names
from journeyman.logs.publication import is_journal

_GLOB_CHARACTERS = frozenset("*?[]{}")


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file or directory as it was found. ``identity`` shows that a file was replaced, where
    known."""

    path: str
    is_dir: bool
    size: int
    modified_ns: int | None = None
    identity: int | None = None

    @property
    def name(self) -> str:
        return self.path.rstrip("/").rpartition("/")[2]


class Listing(Protocol):
    """A place whose directories can be listed."""

    def find(self, path: str) -> FoundFile | None:
        """Return what is at ``path``; None when nothing is."""
        ...

    def list_dir(self, path: str) -> list[FoundFile]:
        """Return what is in a directory, by name."""
        ...


def has_glob(path: str) -> bool:
    if is_database(path):
        return False  # a question mark begins the parameters of an address
    return not _GLOB_CHARACTERS.isdisjoint(path)


def expand(files: Listing, path: str) -> Iterator[FoundFile]:
    """Yield what an absolute path or glob stands for, in order of the names; nothing if nothing
    is.
    """
    parts = path.split("/")
    first = next((at for at, part in enumerate(parts) if has_glob(part)), None)
    if first is None:
        if (found := files.find(path)) is not None:
            yield found
        return
    yield from _matches(files, "/".join(parts[:first]) or "/", [p for p in parts[first:] if p])


def _matches(files: Listing, base: str, parts: list[str]) -> Iterator[FoundFile]:
    pattern = glob_pattern(parts[0])
    root = files.find(base)
    if root is None or not root.is_dir:
        return
    for found in files.list_dir(base):
        if pattern.fullmatch(found.name) is None:
            continue
        if len(parts) == 1:
            yield found
        elif found.is_dir:
            yield from _below(files, found, parts[1:])


def _below(files: Listing, directory: FoundFile, parts: list[str]) -> Iterator[FoundFile]:
    if has_glob(parts[0]):
        yield from _matches(files, directory.path, parts)
        return
    found = files.find(directory.path.rstrip("/") + "/" + parts[0])
    if found is None:
        return
    if len(parts) == 1:
        yield found
    elif found.is_dir:
        yield from _below(files, found, parts[1:])


@lru_cache(maxsize=256)
def glob_pattern(glob: str) -> re.Pattern[str]:
    """A glob over one name, as a regular expression. Raises UsageError."""
    pieces: list[str] = []
    depth, at = 0, 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "*":
            pieces.append("[^/]*")
        elif character == "?":
            pieces.append("[^/]")
        elif character == "[" and (end := glob.find("]", at + 1)) > 0:
            inside = glob[at:end].replace("\\", "\\\\")
            pieces.append(f"[^{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]")
            at = end + 1
        elif character == "{":
            pieces.append("(?:")
            depth += 1
        elif character == "}" and depth:
            pieces.append(")")
            depth -= 1
        elif character == "," and depth:
            pieces.append("|")
        else:
            pieces.append(re.escape(character))
    try:
        return re.compile("".join(pieces), re.DOTALL)
    except re.error:
        raise UsageError(f"{glob!r} is not a glob: a bracket or brace is not closed") from None


ZTICK = "ztick"
WORKQ = "workq"
KESTREL = "kestrel"
LEDGER = "ledger"
DIALECTS = (ZTICK, WORKQ, KESTREL)  # the dialects of services
SERVER_DIALECTS = (*DIALECTS, LEDGER)  # a server process writes all of these
DEFAULT_ZTICK_NAME = "logfile"  # the name that the original uses

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_NOT_IN_NAMES = re.compile(r"[.`]")
_ZTICK_NOT_LOGS = (".lock", ".tmp")
_ZTICK_COMPANIONS = (".compressed", ".to_compress")  # in reading order, before the active file
_RUN_HISTORY = ".runs"  # a directory that the server keeps beside a ztick log


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a log, as it was when it was found; ``size`` 0 where only names were listed.

    ``queue`` and ``reader`` are of kestrel: the reader is the one whose checkpoint the file is.
    ``segment`` is its place in reading order, from 0. ``is_last`` says that the log goes on to be
    written here, so that a torn end is not damage.
    """

    dialect: str
    path: str
    reader: str | None = None
    queue: str | None = None
    size: int = 0
    modified_ns: int | None = None
    identity: int | None = None
    segment: int = 0
    is_last: bool = False

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def codec(self) -> Codec[Any]:
        """Return what judges the bytes of this file. Imported when asked for: names alone need
        none.
        """
        if self.dialect == ZTICK:
            from journeyman.formats import ztick

            return ztick.CODEC
        if self.dialect == WORKQ:
            from journeyman.formats import workq

            return workq.CODEC
        if self.dialect == LEDGER:
            from journeyman.formats import ledger

            return ledger.CODEC
        from journeyman.formats import kestrel

        return kestrel.WRITER if self.reader is None else kestrel.READER


@dataclass(frozen=True, slots=True)
class Log:
    """One log: the files of it that were asked for, in the order they are read.

    ``where`` is the directory of a workq log or kestrel queue, and the active file of a ztick
    log. ``whole`` says that all of the log was asked for, with the files it may yet get, and not
    single files of it. ``queue`` is the kestrel queue. ``partitions`` is what ``name=value``
    directories on its path say.
    """

    dialect: str
    where: str
    files: tuple[LogFile, ...]
    whole: bool = False
    queue: str | None = None
    partitions: tuple[tuple[str, str | None], ...] = ()

    @property
    def name(self) -> str:
        """One word for the log among others: the column ``_log``."""
        return self.where if self.queue is None else f"{self.where}/{self.queue}"

    @property
    def title(self) -> str:
        """Return what the log is called in reports."""
        return self.where if self.queue is None else f"{self.where} (queue {self.queue})"

    @property
    def segments(self) -> tuple[LogFile, ...]:
        return tuple(file for file in self.files if file.reader is None)

    @property
    def readers(self) -> tuple[LogFile, ...]:
        return tuple(file for file in self.files if file.reader is not None)


class LogQuery(Protocol):
    """A search for logs: the options of a read, as far as they choose files."""

    @property
    def dialect(self) -> str: ...
    @property
    def paths(self) -> tuple[str, ...]: ...
    @property
    def queue(self) -> str | None: ...
    @property
    def recursive(self) -> bool: ...
    @property
    def path_glob_filter(self) -> str | None: ...
    @property
    def ignore_missing_files(self) -> bool: ...


class ReadsAt(Protocol):
    def read_at(self, path: str, offset: int, length: int) -> bytes:
        """Read at most ``length`` bytes of a file from ``offset`` on."""
        ...


class Files(Listing, ReadsAt, Protocol):
    """A place where files are, as far as finding logs needs it: a local disk, an object store."""


def find_logs(query: LogQuery, paths: Iterable[str], files_of: Callable[[str], Files]) -> list[Log]:
    """The logs at ``paths``, the absolute form of those of the query, by name.

    ``files_of`` gives the place where a path is. Raises UsageError when there is no log.
    """
    found: dict[str, tuple[FoundFile, Files]] = {}
    for path in paths:
        files = files_of(path)
        found |= {each.path: (each, files) for each in _files_at(query, files, path)}
    wanted = [
        _described(query.dialect, file, files)
        for file, files in found.values()
        if _is_wanted(query, file)
    ]
    logs = [log for log in _group(query.dialect, wanted) if query.queue in (None, log.queue)]
    if not logs and not query.ignore_missing_files:
        shown = ", ".join(query.paths)
        raise UsageError(f"no {query.dialect} log at {shown}: give a file, directory or glob")
    if query.recursive:
        return logs
    return [replace(log, partitions=_partitions(log.files[0].path)) for log in logs]


def partition_columns(logs: Iterable[Log]) -> list[str]:
    """The names that ``name=value`` parts of the paths give, in the order they appear."""
    return list(dict.fromkeys(name for log in logs for name, _ in log.partitions))


def belongs(dialect: str, name: str) -> bool:
    """Return whether a file of this name, found in a directory or by a glob, is part of a log."""
    if name.startswith((".", "_")) or "~" in name:
        return False
    if dialect == ZTICK:
        return not name.endswith(_ZTICK_NOT_LOGS) and not segment_names.is_numbered(name)
    if dialect == WORKQ:
        return segment_names.workq_sequence(name) is not None
    if dialect == LEDGER:
        return segment_names.ledger_sequence(name) is not None
    return segment_names.is_kestrel_name(name)


def _files_at(query: LogQuery, files: Files, path: str) -> Iterator[FoundFile]:
    is_glob = has_glob(path)
    nothing = True
    for found in expand(files, path):
        nothing = False
        if found.is_dir and is_glob and _stands_apart(found.name):
            continue
        if found.is_dir:
            yield from _files_in(query, files, found.path)
        elif not is_glob or belongs(query.dialect, found.name):
            yield found
            if query.dialect == ZTICK:
                yield from _ztick_companions(files, found.path)
    if nothing and query.dialect == ZTICK and not is_glob:
        # Between a compaction and the next write the original has no active file.
        companions = list(_ztick_companions(files, path))
        nothing = not companions
        yield from companions
    if nothing and not query.ignore_missing_files:
        raise UsageError(f"{path} does not exist")


def _files_in(query: LogQuery, files: Files, directory: str) -> Iterator[FoundFile]:
    listed = files.list_dir(directory)
    if query.dialect != ZTICK and any(is_journal(each.name) for each in listed):
        raise LogError(  # files of two logs: neither can be read
            directory,
            "a change of its files was cut short; open the log with the server, or repeat the "
            "write, to carry it through",
        )
    own = [each for each in listed if not each.is_dir and belongs(query.dialect, each.name)]
    if query.dialect == ZTICK:
        usual = segment_names.ZtickNames(DEFAULT_ZTICK_NAME).load_order
        own = [each for each in own if each.name in usual] or own
    yield from own
    for each in listed:
        entered = query.recursive or "=" in each.name
        if each.is_dir and entered and not _stands_apart(each.name):
            yield from _files_in(query, files, each.path)


def _stands_apart(name: str) -> bool:
    """Return whether a directory holds things about logs (indexes, damaged bytes, runs) and no
    logs.
    """
    return (
        name.startswith((".", "_"))
        or name == segment_names.QUARANTINE
        or name.endswith(_RUN_HISTORY)
    )


def _ztick_companions(files: Files, active: str) -> Iterator[FoundFile]:
    for path in segment_names.ZtickNames(active).load_order[:2]:
        if (found := files.find(path)) is not None:
            yield found


def _is_wanted(query: LogQuery, file: FoundFile) -> bool:
    glob = query.path_glob_filter
    return glob is None or glob_pattern(glob).fullmatch(file.name) is not None


def _described(dialect: str, source: FoundFile, files: Files) -> LogFile:
    file = LogFile(
        dialect,
        source.path,
        size=source.size,
        modified_ns=source.modified_ns,
        identity=source.identity,
    )
    if dialect != KESTREL:
        return file
    queue, reader = kestrel_names(source.path, files)
    return replace(file, queue=queue, reader=reader)


def kestrel_names(path: str, files: ReadsAt) -> tuple[str, str | None]:
    """The queue that a file belongs to, and the reader whose checkpoint it is."""
    from journeyman.formats.kestrel import READER_MAGIC

    name = posixpath.basename(path)
    queue = name.partition(".")[0]
    reader = segment_names.kestrel_reader(queue, name)
    if reader is None and segment_names.kestrel_number(queue, name) is None:
        # Under a foreign name only the first bytes show what kind of file it is.
        reader = name if files.read_at(path, 0, 4) == READER_MAGIC else None
    return queue, reader


def _group(dialect: str, files: Iterable[LogFile]) -> list[Log]:
    by_log: dict[tuple[str, str | None], list[LogFile]] = {}
    for file in files:
        by_log.setdefault((_where(file), file.queue), []).append(file)
    logs = [
        Log(dialect, where, _numbered(own), queue=queue) for (where, queue), own in by_log.items()
    ]
    return sorted(logs, key=lambda log: log.name)


def _where(file: LogFile) -> str:
    if file.dialect == ZTICK:
        for suffix in _ZTICK_COMPANIONS:
            if file.name.endswith(suffix) and file.name != suffix:
                return file.path.removesuffix(suffix)
        return file.path
    return file.path.rpartition("/")[0] or "/"


def _numbered(files: Iterable[LogFile]) -> tuple[LogFile, ...]:
    in_order = sorted(files, key=lambda file: (reading_order(file), file.path))
    written = [file for file in in_order if file.reader is None]
    return tuple(
        replace(file, segment=segment, is_last=file in written[-1:])
        for segment, file in enumerate(in_order)
    )


def reading_order(file: LogFile) -> tuple[bool, int, str]:
    """A key to sort the files of one log by: checkpoints of kestrel come last."""
    number: int | None = 0
    last = file.reader is not None
    if file.dialect == ZTICK:
        places = (at for at, suffix in enumerate(_ZTICK_COMPANIONS) if file.name.endswith(suffix))
        number = next(places, len(_ZTICK_COMPANIONS))
    elif file.dialect in (WORKQ, LEDGER):
        sequence = (
            segment_names.workq_sequence if file.dialect == WORKQ else segment_names.ledger_sequence
        )
        number = sequence(file.name)
        last = number is None
    elif file.dialect == KESTREL and file.reader is None:
        number = segment_names.kestrel_number(file.name.partition(".")[0], file.name)
    return last, number or 0, file.name


def _partitions(path: str) -> tuple[tuple[str, str | None], ...]:
    """Return what ``name=value`` directories say, as Hive writes them.

    Spark itself cannot hand a column to Python whose name has a dot or a backtick in it.
    """
    found: dict[str, str | None] = {}
    for part in path.split("/")[:-1]:
        name, equals, value = part.partition("=")
        if equals and name and value:
            column = _NOT_IN_NAMES.sub("_", unquote(name))
            found[column] = None if value == _NULL_PARTITION else unquote(value)
    return tuple(found.items())
