"""The logs at a path, by dialect.

a file or directory    looked at, as the other commands do; a directory with no log of its own
                       stands for all logs below it, of any dialect; so does the data
                       directory of a server
a glob                 each of what it matches
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from journeyman.disk import ReadingDisk, is_database
from journeyman.errors import UsageError
from journeyman.logs.catalog import LEDGER, ZTICK, Log, expand, has_glob
from journeyman.logs.detection import LogFinder
from journeyman.spark.files import absolute, disk_at, filesystem_of

_NOT_LOGS: Final = ("_", ".")  # as in Spark, names that begin so are not data
_QUARANTINE: Final = "quarantine"


def logs_by_dialect(
    paths: Sequence[str],
    *,
    ledger: bool = False,
    warn: Callable[[str], None] = lambda _: None,
    errors: list[OSError] | None = None,
) -> dict[str, list[str]]:
    """The paths to read, by dialect. Raises UsageError when there is no log at one of them.

    A ledger says more about the logs beside it; only ``ledger`` wants it for itself. What cannot
    be looked at goes to ``errors``, if these are given and anything else was found.
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        for log in _logs_at(path, warn, errors):
            if log.dialect == LEDGER and not ledger:
                continue
            places = found.setdefault(log.dialect, [])
            places += [place for place in _places(log) if place not in places]
    if errors and not found:
        raise errors[0]
    if not found:
        raise UsageError(f"only a ledger at {', '.join(paths)}: `journeyman dump` shows it")
    return found


def _logs_at(path: str, warn: Callable[[str], None], errors: list[OSError] | None) -> Iterator[Log]:
    """``errors`` takes what cannot be looked at; without it, that is raised."""
    disk = disk_at(path)
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
    if is_database(path) or not has_glob(path) or disk_at(path).exists(path):
        return [path]
    return [found.path for found in expand(filesystem_of(path), absolute(path))]


def _below(disk: ReadingDisk, finder: LogFinder, path: str) -> Iterator[Log]:
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
    """Return the paths for the source: a ztick file, a directory, or single files of one."""
    if log.dialect == ZTICK or log.whole:
        return [log.where]
    return [file.path for file in log.files]
