"""A command log on disk -> a WorkQueue, with the log open for writing.

    small or damaged log     formats: one record after another, past any damage, which is repaired
    large and clean log      columnar, where it is installed: a million waiting jobs in 2 seconds

The fast way runs in a process of its own (bulk_child.py), whose libraries go with it.

Both give the same WorkQueue. The fast way only ever reads a log that is whole to its last byte; at
the first thing that is odd about its bytes it is given up, and the log is read the careful way from
the beginning. Jobs with an odd history are folded, in the fast way too (see engines.workq_bulk).

Under both ways the log's locks are held before a byte is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from journeyman.clock import Clock
from journeyman.disk import Disk
from journeyman.engines.workq.bulk import BulkLoader
from journeyman.engines.workq.engine import WorkQueueEngine
from journeyman.engines.workq.loading import WorkqLoader
from journeyman.formats.workq import CODEC, Record
from journeyman.logs.recovery import FileReport, RecoveryReport
from journeyman.logs.sync import SyncPolicy
from journeyman.logs.workq.log import WorkqLog
from journeyman.servers.core.bulk_child import BulkFailed, can_use, read

# Below this, importing the libraries takes longer than reading with the formats.
BULK_BYTES = 8 * 1024 * 1024
_BULK = "journeyman.servers.workq.bulk"


@dataclass(frozen=True, slots=True)
class OpenedWorkQueue:
    log: WorkqLog
    queue: WorkQueueEngine
    in_bulk: bool


def open_log(
    disk: Disk,
    clock: Clock,
    directory: str,
    *,
    sync: SyncPolicy,
    segment_bytes: int,
    paused: Iterable[str] = (),
    seed: int = 0,
    bulk_bytes: int = BULK_BYTES,
) -> OpenedWorkQueue:
    """Lock, read, repair if needed, and open for writing. LogLocked when someone else has it."""
    reading = _Reading(disk, clock, frozenset(paused), seed, bulk_bytes)
    log = WorkqLog.open(
        disk,
        clock,
        directory,
        sync=sync,
        segment_bytes=segment_bytes,
        each=reading.each,
        in_bulk=reading.all_at_once,
    )
    return OpenedWorkQueue(log, reading.finish(), in_bulk=reading.was_in_bulk)


class _Reading:
    """Reads a log all at once if that is worth it and works, else record by record."""

    def __init__(
        self, disk: Disk, clock: Clock, paused: frozenset[str], seed: int, bulk_bytes: int
    ) -> None:
        self._disk = disk
        self._clock = clock
        self._paused = paused
        self._seed = seed
        self._bulk_bytes = bulk_bytes
        self._loader = WorkqLoader()
        self._queue: WorkQueueEngine | None = None

    @property
    def was_in_bulk(self) -> bool:
        return self._queue is not None

    def each(self, record: Record) -> None:
        self._loader.add(record)

    def all_at_once(self, files: list[str]) -> RecoveryReport | None:
        """None: too small, not possible here, or the log needs care."""
        if sum(self._disk.size(file) for file in files) < self._bulk_bytes:
            return None
        found = self._read_in_child(files) if can_use(self._disk) else self._read_here(files)
        if found is None:
            return None
        self._queue, report = found
        return report

    def _read_here(self, files: list[str]) -> tuple[WorkQueueEngine, RecoveryReport] | None:
        try:
            from journeyman.servers.workq.bulk import read_all
        except ImportError:
            return None
        return read_all(
            self._disk, files, now_ns=self._clock.now_ns(), paused=self._paused, seed=self._seed
        )

    def _read_in_child(self, files: list[str]) -> tuple[WorkQueueEngine, RecoveryReport] | None:
        now_ns = self._clock.now_ns()
        loader = BulkLoader(now_ns=now_ns, paused=self._paused, seed=self._seed)
        numbers = {name: loader.number_of(name) for name in self._paused}
        reports: list[FileReport] = []
        fold = WorkqLoader()
        try:
            for message in read(f"{_BULK}:calls_of", files, now_ns, numbers):
                if message is None:
                    return None
                if isinstance(message, FileReport):
                    reports.append(message)
                else:
                    for name, *arguments in message:
                        getattr(loader, name)(*arguments)
            if loader.odd:
                for file, offsets in zip(
                    files, read(f"{_BULK}:offsets_of", files, loader.odd), strict=True
                ):
                    view = self._disk.view(file)
                    for offset in offsets:
                        entry = CODEC.decode(view, offset)
                        assert entry is not None
                        fold.add(entry.record)
        except BulkFailed:
            return None
        return loader.finish(fold), RecoveryReport(tuple(reports))

    def finish(self) -> WorkQueueEngine:
        if self._queue is not None:
            return self._queue
        return self._loader.finish(
            now_ns=self._clock.now_ns(), paused=self._paused, seed=self._seed
        )
