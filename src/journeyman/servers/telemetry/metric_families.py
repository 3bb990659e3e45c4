"""Figures with names, kinds and labels, and how they look as text.

A figure has one name here, ``jobs.scheduled``, and each of the two who read it see it in the dress
that is usual there:

    OTLP         ztick.jobs.scheduled                   ztick.execution.duration_ms
    Prometheus   journeyman_jobs_scheduled_total        journeyman_execution_duration_seconds

This module knows the second; the first is in otlp.py.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

BOUNDS_MS = (
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0),
    *(1_000.0, 2_500.0, 5_000.0, 10_000.0, 30_000.0, 60_000.0, 300_000.0, 3_600_000.0),
)

_PREFIX = "journeyman_"

Labels: TypeAlias = dict[str, str | bool]


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


def of_queues(family: Family, prefix: str) -> Family:
    """The family without the points of queues whose names do not begin with ``prefix``."""
    if not prefix:
        return family
    points = [p for p in family.points if str(p.labels.get("queue", prefix)).startswith(prefix)]
    return replace(family, points=points)


def text_of(families: Iterable[Family]) -> bytes:
    """The text format of Prometheus, version 0.0.4."""
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: Family) -> Iterator[str]:
    name = _PREFIX + family.name.replace(".", "_")
    if family.kind == "counter":
        name += "_total"
    elif family.kind == "histogram":
        name = name.removesuffix("_ms") + "_seconds"
    yield f"# HELP {name} {family.meaning}\n# TYPE {name} {family.kind}\n"
    for point in family.points:
        if isinstance(point.value, Histogram):
            yield from _histogram_lines(name, point.labels, point.value)
        else:
            yield f"{name}{_braces(point.labels)} {point.value}\n"


def _histogram_lines(name: str, labels: Labels, histogram: Histogram) -> Iterator[str]:
    total = 0
    for bound_ms, count in zip((*BOUNDS_MS, None), histogram.counts, strict=True):
        total += count
        bound = "+Inf" if bound_ms is None else f"{bound_ms / 1000:g}"
        yield f"{name}_bucket{_braces({**labels, 'le': bound})} {total}\n"
    yield f"{name}_sum{_braces(labels)} {histogram.sum_ms / 1000}\n"
    yield f"{name}_count{_braces(labels)} {total}\n"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_word(value)}"' for name, value in labels.items()) + "}"


def _word(value: str | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    # The name of a queue in a log of another program may hold anything.
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
