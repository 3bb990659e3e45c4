"""What opening a kestrel queue finds and repairs: everything between the lock and the first append.

    1  an interrupted change of many files is finished                  see publication
    2  unfinished files of this queue are removed
    3  segments are read, or their indexes; damage is quarantined       see retention.py
    4  readers are placed, and the checkpoints say where                see checkpoints.py

The caller holds the lock of the queue.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from journeyman.clock import Clock
from journeyman.disk import Disk, Lock
from journeyman.errors import LogLocked
from journeyman.folds.anomaly import Anomaly, Notes
from journeyman.folds.kestrel import FoldedQueue, Reader, open_queue
from journeyman.logs.kestrel.checkpoints import Checkpoints
from journeyman.logs.kestrel.index import SegmentCatalog
from journeyman.logs.kestrel.retention import recover_segments
from journeyman.logs.publication import finish, journal_path, pending
from journeyman.logs.recovery import RecoveryReport
from journeyman.logs.segments import (
    LOCK_SUFFIX,
    is_queue_name,
    kestrel_lock_name,
    kestrel_segments,
    kestrel_temporaries,
    workq_segments,
)
from journeyman.units import NS_PER_MS


@dataclass(frozen=True, slots=True)
class FoundQueue:
    catalog: SegmentCatalog
    checkpoints: Checkpoints
    next_id: int
    last_path: str | None  # the segment with the highest number; None: look for it
    report: RecoveryReport
    anomalies: tuple[Anomaly, ...] = ()  # readers that do not stand where their checkpoints said


def find_queue(
    disk: Disk,
    clock: Clock,
    directory: str,
    queue: str,
    *,
    seal: bool = True,
    thorough: bool = False,
    names: Sequence[str] | None = None,
    notes: Notes = None,
) -> FoundQueue:
    """``thorough``: every segment is read, whatever its index says.

    ``seal``: checkpoints are written with seals.
    ``names`` are the files that belong to it, for callers that have already listed the directory.
    """
    if finish_publication(disk, directory, queue) or names is None:
        names = disk.list_dir(directory)
    for name in kestrel_temporaries(queue, names):
        disk.remove(posixpath.join(directory, name))
    paths = [posixpath.join(directory, name) for name in kestrel_segments(queue, names)]
    segments, reports = recover_segments(disk, paths, thorough=thorough)
    catalog = SegmentCatalog(segments)
    checkpoints = Checkpoints(disk, directory, queue, seal=seal)
    found, reader_reports = checkpoints.load(names, catalog.tail)
    anomalies: list[Anomaly] = []
    view = open_queue(catalog.edge_ids(), found, anomalies.append)
    if notes is not None:
        for anomaly in anomalies:
            notes(anomaly)
    checkpoints.settle(found, view.readers, clock.now_ns() // NS_PER_MS)
    report = RecoveryReport((*reports, *reader_reports))
    last_path = paths[-1] if paths and disk.exists(paths[-1]) else None
    next_id = _next_id(view, found)
    return FoundQueue(catalog, checkpoints, next_id, last_path, report, tuple(anomalies))


def finish_publication(disk: Disk, directory: str, queue: str = "") -> bool:
    """Carry through a change of many files that was cut short; whether there was one.

    It may be about other queues than this one. Of those the locks are needed as well: LogLocked if
    another process has one of them open.
    """
    publication = pending(disk, journal_path(directory))
    names = () if publication is None else (*publication.renames.values(), *publication.removes)
    files = (posixpath.basename(name) for name in names)
    others = {file.partition(".")[0].partition("+")[0] for file in files} - {queue}
    locks: list[Lock] = []
    try:
        for other in sorted(others):
            locks.append(  # noqa: PERF401 - those that were taken are let go if one is not
                disk.lock(posixpath.join(directory, kestrel_lock_name(other)))
            )
        finish(disk, journal_path(directory))
    finally:
        for lock in locks:
            lock.release()
    return publication is not None


def remove_stale_locks(disk: Disk, directory: str, names: Sequence[str]) -> None:
    """Remove lock files of deleted queues: a crash while a queue was erased leaves its lock.

    Only files that no other program can have put there: empty, not held, named like a queue
    without files. ``names`` are those in the directory.
    """
    if workq_segments(names):  # it has locks of its own here, and the original does not look twice
        return
    owned = {name.partition(".")[0] for name in names if not name.endswith(LOCK_SUFFIX)}
    for name in names:
        queue = name.removesuffix(LOCK_SUFFIX)
        if queue == name or queue in owned or not is_queue_name(queue):
            continue
        path = posixpath.join(directory, name)
        with suppress(LogLocked, FileNotFoundError):
            if disk.size(path) == 0:
                lock = disk.lock(path)
                disk.remove(path)
                lock.release()


def _next_id(view: FoldedQueue, found: Mapping[str, Reader | None]) -> int:
    """Above every id that was ever given out, as far as the files know."""
    seen = [max(reader.head, *reader.done, 0) for reader in found.values() if reader is not None]
    return max(view.tail, *seen, 0) + 1
