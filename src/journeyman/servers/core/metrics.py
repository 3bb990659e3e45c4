"""Figures with names, kinds and labels, and those about the disk.

A figure has one name here, ``jobs.scheduled``, and each of the two readers sees it in the form
that is usual there:

    OTLP         ztick.jobs.scheduled                   ztick.execution.duration, in s
    Prometheus   journeyman_jobs_scheduled_total        journeyman_execution_duration_seconds

See servers/ztick/otlp.py and servers/http/server.py. What a service counts is in its metrics.py.

About the disk: how long syncs take, how large the logs are, how much room is left.

    logs --sync--> measured()       every sync of a log is timed, whichever thread does it
    watch() --a thread, every SAMPLE_S--> bytes of each log, free bytes of its file system

Sizes are sampled in a thread, because a directory may hold thousands of files and a file system may
be slow; a request for the figures gets the last sample. A log is known by its service:
``schedule``, ``workq`` or ``kestrel``; and there is the ``ledger``.
"""

from __future__ import annotations

import asyncio
import os
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, cast

from journeyman.clock import Clock
from journeyman.config import Persistence, Settings, WorkqPersistence
from journeyman.disk import AppendFile, Disk, absolute
from journeyman.logs.segments import ztick_files
from journeyman.servers.core.shared import delay_to_second
from journeyman.units import NS_PER_MS

SAMPLE_S = 10.0
BOUNDS_MS = (
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0),
    *(1_000.0, 2_500.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0, 300_000.0, 3_600_000.0),
)

Labels: TypeAlias = dict[str, str | bool]
_REQUEST = itemgetter(1)


class Histogram:
    """How many values were at most each of BOUNDS_MS, and more than the last."""

    __slots__ = ("counts", "largest_ms", "smallest_ms", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0
        self.smallest_ms = float("inf")
        self.largest_ms = 0.0

    def add(self, value_ms: float) -> None:
        self.counts[bisect_left(BOUNDS_MS, value_ms)] += 1
        self.sum_ms += value_ms
        self.smallest_ms = min(self.smallest_ms, value_ms)
        self.largest_ms = max(self.largest_ms, value_ms)

    def copy(self) -> Histogram:
        copied = Histogram()
        copied.counts = self.counts.copy()
        copied.sum_ms = self.sum_ms
        copied.smallest_ms, copied.largest_ms = self.smallest_ms, self.largest_ms
        return copied


@dataclass(frozen=True, slots=True)
class Point:
    labels: Labels
    value: int | float | Histogram


@dataclass(frozen=True, slots=True)
class Family:
    """Points of one name. Those of a histogram are Histograms, all others numbers."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    points: Sequence[Point]
    unit: str = ""


def counter(name: str, meaning: str, values: float | Sequence[Point]) -> Family:
    return Family(name, "counter", meaning, _points(values))


def gauge(name: str, meaning: str, values: float | Sequence[Point], unit: str = "") -> Family:
    return Family(name, "gauge", meaning, _points(values), unit)


def histogram(name: str, meaning: str, points: Sequence[Point]) -> Family:
    return Family(name, "histogram", meaning, points, unit="ms")


def _points(values: float | Sequence[Point]) -> Sequence[Point]:
    return [Point({}, values)] if isinstance(values, int | float) else values


def by_success(counts: Mapping[bool, int]) -> list[Point]:
    return [Point({"success": success}, count) for success, count in counts.items()]


class CommandCounts:
    """Commands by the types of request and reply, in one call a batch; words only when asked."""

    def __init__(
        self, command_words: Mapping[type, str], outcome_word: Callable[[type], str]
    ) -> None:
        """``command_words``: names of clients' commands; those of the server are not counted."""
        self._words = command_words
        self._outcome_word = outcome_word
        self._counts: Counter[tuple[type, type]] = Counter()
        self.batches = 0

    def add(self, requests: Iterable[tuple[Any, object]], outcomes: Iterable[object]) -> None:
        """A batch was answered: (client, request), and in the same order what each came to."""
        self.batches += 1
        self._counts.update(
            zip(map(type, map(_REQUEST, requests)), map(type, outcomes), strict=False)
        )

    def add_more(self, request_type: type, reply_type: type, count: int) -> None:
        """Count a request that stands for several."""
        self._counts[request_type, reply_type] += count

    def by_word(self) -> Counter[tuple[str, str]]:
        counts: Counter[tuple[str, str]] = Counter()
        for (request_type, reply_type), count in dict(self._counts).items():
            if request_type in self._words:
                counts[self._words[request_type], self._outcome_word(reply_type)] += count
        return counts


def command_points(counts: Mapping[tuple[str, str], int]) -> list[Point]:
    return [Point({"command": c, "outcome": o}, n) for (c, o), n in sorted(counts.items())]


def of_queues(family: Family, prefix: str) -> Family:
    """Return the family as a token sees it: with a prefix only the points of queues whose names
    begin with it, because all else counts what belongs to others."""
    if not prefix:
        return family
    names = ("queue", "timetable")
    points = [
        point
        for point in family.points
        if any(str(point.labels.get(name, "")).startswith(prefix) for name in names)
    ]
    return replace(family, points=points)


@dataclass(frozen=True, slots=True)
class DiskSample:
    log_bytes: int
    free_bytes: int | None  # None: the disk does not say


class LastSync(NamedTuple):
    ended_ns: int  # since 1970
    took_ns: int


class MeasuredDisk(Disk, Protocol):
    """A disk with figures of the logs on it, by service."""

    last_syncs: dict[str, LastSync]
    samples: dict[str, DiskSample]

    async def watch(self) -> None:
        """Sample sizes, again and again."""
        ...

    def sample(self) -> dict[str, DiskSample]:
        """The sizes now; those that cannot be read are left out. Blocks."""
        ...

    def families(self) -> list[Family]: ...


def measured(disk: Disk, clock: Clock, places: Mapping[str, str]) -> MeasuredDisk:
    """Return the same disk, with its writes measured. ``places``: the path of each
    service's log."""
    return cast(MeasuredDisk, _TimingDisk(disk, clock, places))


class _TimingDisk:
    """Another disk, with a clock at the syncs of the logs."""

    def __init__(self, disk: Disk, clock: Clock, places: Mapping[str, str]) -> None:
        self._disk = disk
        self._clock = clock
        self._places = {name: absolute(path) for name, path in places.items()}
        self._lock = threading.Lock()
        self._syncs = {name: Histogram() for name in places}
        self.last_syncs: dict[str, LastSync] = {}
        self.samples: dict[str, DiskSample] = {}

    def open_append(self, path: str) -> AppendFile:
        file, service = self._disk.open_append(path), self._service_of(absolute(path))
        return file if service is None else _TimedFile(file, self, service)

    def timed_sync(self, service: str, sync: Callable[[], None]) -> None:
        begin_ns = self._clock.monotonic_ns()
        sync()
        took_ns = self._clock.monotonic_ns() - begin_ns
        with self._lock:
            self._syncs[service].add(took_ns / NS_PER_MS)
            self.last_syncs[service] = LastSync(self._clock.now_ns(), took_ns)

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self.samples = await loop.run_in_executor(None, self.sample)
            await asyncio.sleep(delay_to_second(loop, SAMPLE_S))

    def sample(self) -> dict[str, DiskSample]:
        found = {}
        for service, path in self._places.items():
            try:
                found[service] = DiskSample(_size_of(self._disk, path), self._disk.free_bytes(path))
            except OSError:
                continue  # being replaced, or not made yet: the next sample sees it
        return found

    def families(self) -> list[Family]:
        with self._lock:
            syncs = {name: each.copy() for name, each in self._syncs.items()}
        samples = self.samples
        return [
            histogram(
                "sync.duration_ms",
                "How long a sync of a log took.",
                [Point(_labels_of(name), each) for name, each in syncs.items()],
            ),
            gauge(
                "log.bytes",
                "Size of a log on the disk.",
                [Point(_labels_of(name), each.log_bytes) for name, each in samples.items()],
            ),
            gauge(
                "disk.free_bytes",
                "Room left on the file system of a log.",
                [
                    Point(_labels_of(name), each.free_bytes)
                    for name, each in samples.items()
                    if each.free_bytes is not None
                ],
            ),
        ]

    def _service_of(self, path: str) -> str | None:
        for name, place in self._places.items():
            if path == place or path.startswith((place + ".", place + os.sep)):
                return name
        return None

    def __getattr__(self, name: str) -> Any:
        """All else is the other disk's."""
        return getattr(self._disk, name)


class _TimedFile:
    def __init__(self, file: AppendFile, disk: _TimingDisk, service: str) -> None:
        self._file = file
        self._disk = disk
        self._service = service
        self.path = file.path
        self.size = file.size
        self.write = file.write
        self.truncate = file.truncate
        self.close = file.close

    def sync(self) -> None:
        self._disk.timed_sync(self._service, self._file.sync)


def places_of(settings: Settings) -> dict[str, str]:
    """Where the open services keep their logs; those in memory have none."""
    places = {}
    if settings.database.persistence is Persistence.LOGFILE:
        places["schedule"] = settings.database.logfile_path
    if settings.workq.enabled and settings.workq.persistence is WorkqPersistence.LOG:
        places["workq"] = settings.workq.cmdlog_path
    if settings.kestrel.enabled:
        places["kestrel"] = settings.kestrel.queue_path
    if settings.ledger.enabled:
        places["ledger"] = settings.ledger.path
    return places


def _labels_of(service: str) -> Labels:
    return {"log": service}


def _size_of(disk: Disk, path: str) -> int:
    """Return the size of a log: of its directory, or of a ztick log and the files beside it."""
    if disk.is_dir(path):
        return sum(file.size for file in disk.scan(path).values() if not file.is_dir)
    return sum(map(disk.size, ztick_files(disk, path)))
