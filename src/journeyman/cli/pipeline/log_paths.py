"""Which logs the paths of a pipeline command mean, by dialect, and how much there is to read.

    a local file or directory    looked at, as the other commands do; a directory with no log of
                                 its own stands for all logs below it, of any dialect; so does
                                 the data directory of a server
    a local glob                 each of what it matches
    anything else (s3://...)     not looked at: --dialect must say what it is

With --dialect nothing is looked at: the source takes the paths as they are, with all it knows of
globs, ``host=*`` directories and file systems.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence

import click

from journeyman.cli.errors import sentence, warn
from journeyman.disk import Disk, RealDisk
from journeyman.errors import UsageError
from journeyman.logs.catalog import LEDGER, ZTICK, Log
from journeyman.logs.detection import LogFinder

SMALL_BYTES = 64 * 1024 * 1024
TINY_BYTES = 8 * 1024 * 1024
_NOT_LOGS = ("_", ".")  # as in Spark, names that begin so are not data
_QUARANTINE = "quarantine"

pipeline_dialect_option = click.option(
    "--dialect",
    type=click.Choice(["ztick", "workq", "kestrel", "keyspace"]),
    help="What kind of logs they are, instead of detecting it.",
)


lake_option = click.option(
    "--lake", metavar="DIR", help="Read this lake instead of logs; see `pipeline ingest`."
)


def logs_or_lake(
    paths: Sequence[str], dialect: str | None, lake: str | None, *, ledger: bool = False
) -> dict[str, list[str]]:
    """The paths to read, by dialect; none if a lake is to be read. Raises UsageError."""
    if bool(paths) == (lake is not None):
        raise UsageError("give LOGS, or a lake with --lake: one of the two")
    return {} if lake is not None else logs_by_dialect(paths, dialect, ledger=ledger)


def logs_by_dialect(
    paths: Sequence[str],
    dialect: str | None = None,
    *,
    ledger: bool = False,
    unreadable: list[str] | None = None,
) -> dict[str, list[str]]:
    """The paths to read, by dialect. Raises UsageError when there is no log at one of them.

    A ledger says more about the logs beside it; only ``ledger`` wants it for itself. What cannot
    be looked at goes to ``unreadable``, if that is given and anything else was found.
    """
    if dialect is not None:
        return {dialect: list(paths)}
    found: dict[str, list[str]] = {}
    disk = RealDisk()
    errors: list[OSError] = []
    for path in paths:
        for log in _logs_at(disk, path, None if unreadable is None else errors):
            if log.dialect == LEDGER and not ledger:
                continue
            places = found.setdefault(log.dialect, [])
            places += [place for place in _places(log) if place not in places]
    if errors and not found:
        raise errors[0]
    if unreadable is not None:
        unreadable += [f"left out: {sentence(error)}" for error in errors]
    if not found:
        raise UsageError(f"only a ledger at {', '.join(paths)}: `journeyman dump` shows it")
    return found


def is_small(paths: Iterable[str], most_bytes: int = SMALL_BYTES) -> bool:
    """Whether so little is to be read that starting up takes most of the time."""
    total = 0
    for path in paths:
        for file in _local_files(path):
            total += os.path.getsize(file)
            if total > most_bytes:
                return False
    return total > 0


def _logs_at(disk: Disk, path: str, errors: list[OSError] | None = None) -> Iterator[Log]:
    """``errors`` takes what cannot be looked at; without it, that is raised."""
    if "://" in path:
        raise UsageError(f"{path} is not a local path: say what it holds with --dialect")
    finder = LogFinder(disk, warn, errors)
    nothing, known = True, len(errors or ())
    for each in _expanded(path):
        logs = []
        with finder.noting():
            logs = list(_below(disk, finder, each)) if disk.is_dir(each) else finder.find([each])
        nothing = nothing and not logs
        yield from logs
    if nothing and len(errors or ()) == known:
        raise UsageError(f"no log of any dialect at {path}: give a log, or a directory of logs")


def _expanded(path: str) -> list[str]:
    from journeyman.logs.catalog import expand, has_glob
    from journeyman.spark.files import absolute, filesystem_of

    if not has_glob(path) or os.path.exists(path):
        return [path]
    return [found.path for found in expand(filesystem_of(path), absolute(path))]


def _below(disk: Disk, finder: LogFinder, path: str) -> Iterator[Log]:
    """The logs of a directory, or, if it has none itself, those of the directories in it."""
    logs = finder.find_all(path)
    yield from logs
    if logs:
        return
    for name in disk.list_dir(path):
        inner = posixpath.join(path, name)
        if disk.is_dir(inner) and not name.startswith(_NOT_LOGS) and name != _QUARANTINE:
            with finder.noting():
                yield from list(_below(disk, finder, inner))


def _places(log: Log) -> list[str]:
    """What the source is given: a ztick file, a directory, or single files of one."""
    if log.dialect == ZTICK or log.whole:
        return [log.where]
    return [file.path for file in log.files]


def _local_files(path: str) -> Iterator[str]:
    if os.path.isfile(path):
        yield path
    for directory, _, names in os.walk(path):
        yield from (os.path.join(directory, name) for name in names)
