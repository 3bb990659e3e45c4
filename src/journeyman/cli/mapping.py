"""All files of a log, mapped at one moment: what dump and verify read.

A log may be in use. A mapped file stays readable when it is renamed, rewritten or removed, so the
only moment that matters is the one in which the files are mapped: then none of them may change
its name.

    workq     read.lock is held, shared, as readers of the original hold it; cleaning waits
    ztick     compaction takes no lock that a reader could hold: when a name changed its file
    kestrel   meanwhile, or was gone, everything is mapped anew

Nothing is written: a lock that is not there is not made, and one that may not be opened is done
without.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from journeyman.cli.dialects import WORKQ, Log
from journeyman.cli.directories import relisted
from journeyman.disk import ReadFile, RealDisk
from journeyman.errors import LogError
from journeyman.logs.segments import READ_LOCK

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
            current = relisted(disk, log, compacted=compacted)
            views = _views(disk, current)
            if views is not None and relisted(disk, log, compacted=compacted) == current:
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
    except OSError:  # not ours to open, or a file system that cannot be written
        yield
        return
    try:
        yield
    finally:
        lock.release()
