"""Engines as of a past moment: the logs up to it, loaded by what a start loads them with.

    work queue   the records that were logged by then, and what the ledger had by then: pauses,
                 limits, keys, delays, waiting jobs
    schedule     the log up to the last mark of the ledger by then, and the timetables of then.
                 What was compacted has the time of its compaction, so the past begins there

Such an engine answers the same commands as the live one, which is why `?at=` needs no code of its
own. A large, whole log is decoded in bulk; any other is read record by record, past its damage.
Both give the same engine.

The last engine is kept, so the pages of one moment cost one load. It is loaded again if the log was
cleaned or compacted, or if the log has grown and the moment was not over when it was loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from journeyman.clock import SystemClock
from journeyman.disk import Disk, disk_of
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.ledger_entries import FAMILIES, LoadedExtensions
from journeyman.engines.workq.loading import WorkqLoader
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.loading import ZtickLoader
from journeyman.engines.ztick.timetables import TimetableLoader
from journeyman.folds import ledger as ledger_fold
from journeyman.formats import workq, ztick
from journeyman.formats.framing import Entry
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.ledger import is_state
from journeyman.logs.ledger import peek_records, times_of
from journeyman.logs.sealing import read_file
from journeyman.logs.segments import ledger_files, workq_files, ztick_files
from journeyman.servers.core.bulk_loading import (
    BULK_BYTES,
    WORKQ_READER,
    ZTICK_READER,
    L,
    LogLoading,
)
from journeyman.units import NS_PER_S

IN_FLIGHT_NS = NS_PER_S  # a batch that was decided at a moment may be written a little later

E = TypeVar("E", WorkqEngine, ZtickEngine)
Counts = dict[str, dict[str, int]]  # by queue and state


class _Facts(NamedTuple):
    """The identity of a file and its length."""

    path: str
    identity: object
    size: int


class _Copies:
    """The bytes of files as of one moment, for a reader that asks a disk for views of them.

    They are copied, not mapped: the server may cut a file back while it is read.
    """

    is_shared = False

    def __init__(self, data: dict[str, bytes]) -> None:
        self._data = data

    def size(self, path: str) -> int:
        return len(self._data[path])

    def view(self, path: str) -> memoryview:
        return memoryview(self._data[path])


class _PastEngines(ABC, Generic[E]):
    """The engine of the last moment that was asked for."""

    def __init__(self, place: str, ledger: str) -> None:
        """``ledger``: empty if there is none."""
        self._place = place
        self._ledger = ledger
        self._disk: Disk = disk_of(place)
        self._clock = SystemClock()
        self._files: list[_Facts] = []  # as they were when the engine was loaded
        self._over_ns = 0  # no record that came after them is of this time, or an earlier one
        self._at_ns = 0
        self._engine: E | None = None

    def at(self, at_ns: int) -> E:
        files = self._facts()
        if self._engine is None or at_ns != self._at_ns or not self._still_holds(files):
            self._engine = None  # two of them may not fit into memory
            self._over_ns = self._clock.now_ns() - IN_FLIGHT_NS
            self._engine = self._load(at_ns)
            self._files, self._at_ns = files, at_ns
        return self._engine

    def _still_holds(self, files: list[_Facts]) -> bool:
        if files == self._files:
            return True
        now = {each.path: each for each in files}
        has_only_grown = all(
            each.path in now
            and now[each.path].identity == each.identity
            and now[each.path].size >= each.size
            for each in self._files
        )
        return has_only_grown and self._at_ns <= self._over_ns

    def _facts(self) -> list[_Facts]:
        paths = self._log_files()
        if self._ledger:
            paths += ledger_files(self._disk, self._ledger)
        found = []
        for path in paths:
            status = self._disk.stat(path)
            found.append(_Facts(path, status.identity, status.size))
        return found

    def _ledger_by(self, at_ns: int) -> Iterator[LedgerRecord]:
        if self._ledger:
            for record in peek_records(self._disk, self._ledger):
                if record.logged.unix_ns <= at_ns:
                    yield record

    @abstractmethod
    def _log_files(self) -> list[str]:
        """The files of the log, in the order in which they are read."""

    @abstractmethod
    def _load(self, at_ns: int) -> E:
        """An engine that knows nothing of what came later."""


class PastWork(_PastEngines[WorkqEngine]):
    """The work queue; ``place`` is the directory of its log."""

    def _log_files(self) -> list[str]:
        return workq_files(self._disk, self._place)

    def _load(self, at_ns: int) -> WorkqEngine:
        states = ledger_fold.replay(each for each in self._ledger_by(at_ns) if is_state(each))
        extensions = LoadedExtensions()
        for (family, _), record in states.items():
            if family in FAMILIES:
                extensions.add(record)
        paused = frozenset(key for family, key in states if family == "queue-pause")
        data = {path: self._disk.read_bytes(path) for path in self._log_files()}

        def make_loader() -> WorkqLoader:
            return WorkqLoader(now_ns=at_ns, paused=paused, extensions=extensions, until_ns=at_ns)

        return _load(data, workq.CODEC, WORKQ_READER, make_loader).finish()

    def counts(self, at_ns: int, prefix: str) -> Counts:
        """Jobs by queue and state, of queues that begin with ``prefix``."""
        counted = Counter(
            (job.queue, job.state)
            for job in self.at(at_ns).summaries()
            if job.queue.startswith(prefix)
        )
        found: Counts = {}
        for (queue, state), count in sorted(counted.items()):
            found.setdefault(queue, {})[state] = count
        return found

    def changes(self, from_ns: int, until_ns: int, limit: int, prefix: str) -> dict[str, Any]:
        """Counts at both moments, how many jobs have another state, and the newest of them."""
        before = self.counts(from_ns, prefix)
        was = {
            job.job_id: job for job in self.at(from_ns).summaries() if job.queue.startswith(prefix)
        }
        after = self.counts(until_ns, prefix)
        changed = []
        for job in self.at(until_ns).summaries():
            if job.queue.startswith(prefix):
                old = was.pop(job.job_id, None)
                if old is None or old.state != job.state:
                    state = None if old is None else old.state
                    changed.append((job.created_ns, job.job_id, job.queue, state, job.state))
        gone = ((job.created_ns, job.job_id, job.queue, job.state, None) for job in was.values())
        newest = sorted([*changed, *gone], key=lambda row: row[:2], reverse=True)
        return {
            "before": before,
            "after": after,
            "changed": len(newest),
            "jobs": [row[1:] for row in newest[:limit]],
        }

    def last(self, at_ns: int, limit: int) -> list[tuple[str, int]]:
        """Files and offsets of the last records by then, newest first."""
        found: list[tuple[str, int]] = []
        for path in reversed(self._log_files()):
            if len(found) >= limit:
                break
            data = self._disk.read_bytes(path)
            places = [
                (path, item.offset)
                for item in _entries(workq.CODEC, [data])
                if item.record.logged.unix_ns <= at_ns
            ]
            found += places[: len(found) - limit - 1 : -1]
        return found


class PastScheduleEngines(_PastEngines[ZtickEngine]):
    """The schedule; ``place`` is the path of its log. It has no times without a ledger."""

    def _log_files(self) -> list[str]:
        return ztick_files(self._disk, self._place)

    def _load(self, at_ns: int) -> ZtickEngine:
        files = self._log_files()
        times = times_of(self._disk, self._ledger, files)
        data: dict[str, bytes] = {}
        for path, known in times.items():
            end = known.end_by(at_ns)
            if end is None:
                data[path] = self._disk.read_bytes(path)
            elif end:
                data[path] = self._disk.read_at(path, 0, end)
        engine = _load(data, ztick.CODEC, ZTICK_READER, ZtickLoader).finish()
        timetables = TimetableLoader()
        for record in self._ledger_by(at_ns):
            timetables.absorb(record)
        timetables.fill(engine.timetables)
        return engine

    def counts(self, at_ns: int, prefix: str) -> dict[str, int]:
        """Jobs by status, of those whose identifier begins with ``prefix``."""
        counted: Counter[str] = Counter()
        for rows in self.at(at_ns).listing(prefix):
            counted.update(status.word for _, status, _ in rows)
        return dict(counted)


def _entries(codec: Any, data: Iterable[bytes]) -> Iterator[Entry[Any]]:
    for each in data:
        for item in read_file(codec, each):
            if isinstance(item, Entry):
                yield item


def _load(data: dict[str, bytes], codec: Any, reader: str, make_loader: Callable[[], L]) -> L:
    loading = LogLoading(_Copies(data), codec, reader, make_loader, BULK_BYTES)
    if loading.add_all([*data]) is None:
        for item in _entries(codec, data.values()):
            loading.add(item.record)
    return loading.loader
