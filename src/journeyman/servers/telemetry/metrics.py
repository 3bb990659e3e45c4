"""The server's figures: what is counted while it runs, and all of them as one list of families.

    writer     --told-->              counters ---+
    runs       --run_ended-->         histograms -+--> families --+--> render(): Prometheus' text
    compaction --compaction_ended-->  counters ---+               +--> telemetry: OTLP
    STAT's figures, read when somebody asks ------+

Nothing is formatted or looked up while commands are served: a batch of commands is counted by the
types of its requests and replies, in one call. Labels have few values each, all of them words of
ours: no identifier ever becomes one. Counters start at zero with the process.

Counting is done on the event loop. ``families`` may be called in any thread: it copies first, and
at worst two figures differ by what happened in between.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal, TypeAlias

from journeyman import __version__
from journeyman.engines.ztick.messages import JobNotFound, OutOfScope, RuleNotFound
from journeyman.errors import JourneymanError
from journeyman.formats.ztick import Runner
from journeyman.formats.ztick.runners import runner_word
from journeyman.protocols.ztick import (
    AuthNotNeeded,
    ErrorCode,
    Get,
    ListRules,
    Query,
    RefusedCommand,
    Remove,
    RemoveRule,
    Set,
    SetRule,
    Stat,
)
from journeyman.protocols.ztick import Metrics as StatFigures
from journeyman.units import NS_PER_MS, NS_PER_S

# ----------------------------------------
# Figures with names, kinds and labels, and how they look as text.
#
# A figure has one name here, ``jobs.scheduled``, and each of the two who read it see it in the
# dress that is usual there:
#
#     OTLP         ztick.jobs.scheduled                   ztick.execution.duration_ms
#     Prometheus   journeyman_jobs_scheduled_total        journeyman_execution_duration_seconds
#
# This module knows the second; the first is in otlp.py.

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


COMMAND_WORDS: dict[type, str] = {
    Set: "set",
    SetRule: "rule_set",
    Get: "get",
    Query: "query",
    Remove: "remove",
    RemoveRule: "remove_rule",
    ListRules: "list_rules",
    Stat: "stat",
    RefusedCommand: "refused",
    AuthNotNeeded: "auth",
}

_OK = "ok"
_COMPACTION_STATES = ("idle", "running", "success", "failure")
_REQUEST = itemgetter(1)


def outcome_word(reply_type: type) -> str:
    """``ok``, or the word behind ERROR in the answer that this type of reply becomes."""
    if reply_type in (JobNotFound, RuleNotFound):
        return ErrorCode.NOT_FOUND.value
    if reply_type is OutOfScope:
        return ErrorCode.AUTH_DENIED.value
    if reply_type is type(None):  # only what was refused has no reply
        return ErrorCode.INVALID_ARGS.value
    return ErrorCode.INTERNAL.value if issubclass(reply_type, JourneymanError) else _OK


class ServerMetrics:
    """Made once a server. ``others`` are figures that somebody else counts, door by door."""

    def __init__(self, *others: Callable[[], list[Family]]) -> None:
        self._others = others
        self._commands: Counter[tuple[type, type]] = Counter()
        self._durations: dict[tuple[str, bool], Histogram] = {}
        self._lateness = Histogram()
        self._compactions = {True: 0, False: 0}
        self._batches = 0
        self._without_rule = 0
        self.spans_crowded_out = 0  # too many waited
        self.spans_not_taken = 0  # by the collector; both are telemetry's, from two threads
        self.exports: Counter[tuple[str, bool]] = Counter()  # by signal and success

    # -- counting --

    def told(self, requests: Iterable[tuple[Any, object]], outcomes: Iterable[object]) -> None:
        """A batch was answered: (client, request), and in the same order what each came to."""
        self._batches += 1
        self._commands.update(
            zip(map(type, map(_REQUEST, requests)), map(type, outcomes), strict=False)
        )

    def run_ended(self, runner: Runner, success: bool, duration_ns: int, late_ns: int) -> None:
        key = (runner_word(runner), success)
        histogram = self._durations.get(key)
        if histogram is None:
            histogram = self._durations[key] = Histogram()
        histogram.add(duration_ns / NS_PER_MS)
        self._lateness.add(max(late_ns, 0) / NS_PER_MS)  # early: the wall clock was set back

    def run_without_rule(self) -> None:
        self._without_rule += 1

    def compaction_ended(self, success: bool) -> None:
        self._compactions[success] += 1

    # -- telling --

    def families(self, stat: StatFigures) -> list[Family]:
        """All figures, together with those that STAT tells."""
        commands = self._command_counts()
        durations = {key: each.copy() for key, each in self._durations.copy().items()}
        runs: list[tuple[Labels, Histogram]] = [
            ({"runner": word, "success": success}, each)
            for (word, success), each in durations.items()
        ]
        by_status = {
            "planned": stat.jobs_planned,
            "triggered": stat.jobs_triggered,
            "executed": stat.jobs_executed,
            "failed": stat.jobs_failed,
        }
        return [
            Family(
                "build_info",
                "gauge",
                "1, with the versions as labels.",
                [Point({"version": __version__, "python": platform.python_version()}, 1)],
            ),
            _counter("jobs.scheduled", "Jobs planned by SET.", commands["set", _OK]),
            Family(
                "jobs.executed",
                "counter",
                "Runs of jobs that have ended.",
                [Point(labels, sum(each.counts)) for labels, each in runs],
            ),
            _counter(
                "jobs.without_rule",
                "Jobs that were due and failed because no rule matched.",
                self._without_rule,
            ),
            _counter("jobs.removed", "Jobs removed by REMOVE.", commands["remove", _OK]),
            Family(
                "persistence.compactions",
                "counter",
                "Compactions of the log that have ended.",
                [Point({"success": good}, n) for good, n in self._compactions.copy().items()],
            ),
            Family(
                "execution.duration_ms",
                "histogram",
                "How long runs took.",
                [Point(labels, each) for labels, each in runs],
                unit="ms",
            ),
            Family(
                "execution.lateness_ms",
                "histogram",
                "How long after its time a run began.",
                [Point({}, self._lateness.copy())],
                unit="ms",
            ),
            _gauge("rules.active", "Rules.", stat.rules_total),
            _gauge(
                "connections.active", "Open connections of the ztick protocol.", stat.connections
            ),
            Family(
                "commands",
                "counter",
                "Commands answered.",
                [Point({"command": c, "outcome": o}, n) for (c, o), n in sorted(commands.items())],
            ),
            _counter("batches", "Batches of commands, each written at once.", self._batches),
            Family(
                "jobs",
                "gauge",
                "Jobs by status.",
                [Point({"status": word}, n) for word, n in by_status.items()],
            ),
            _gauge("runs.waiting", "Runs that wait for a slot.", stat.executions_pending),
            _gauge("runs.running", "Runs under way.", stat.executions_inflight),
            Family(
                "compression",
                "gauge",
                "State of the log's compaction: 1 for the present one.",
                [Point({"state": s}, int(s == stat.compression)) for s in _COMPACTION_STATES],
            ),
            _gauge("uptime_seconds", "Time since the start.", stat.uptime_ns / NS_PER_S, unit="s"),
            Family(
                "telemetry.spans_dropped",
                "counter",
                "Spans of the sample that no collector got.",
                [
                    Point({"reason": "queue_full"}, self.spans_crowded_out),
                    Point({"reason": "export_failed"}, self.spans_not_taken),
                ],
            ),
            Family(
                "telemetry.exports",
                "counter",
                "Requests to the collector.",
                [
                    Point({"signal": signal, "success": good}, n)
                    for (signal, good), n in sorted(dict(self.exports).items())
                ],
            ),
            *(family for families in self._others for family in families()),
        ]

    def render(self, stat: StatFigures, prefix: str = "") -> bytes:
        """All figures in the text format of Prometheus, version 0.0.4.

        Of those that name a queue only the ones whose names begin with ``prefix``.
        """
        return text_of(of_queues(family, prefix) for family in self.families(stat))

    def _command_counts(self) -> Counter[tuple[str, str]]:
        """By words. What the server itself submits has no word and is not counted."""
        counts: Counter[tuple[str, str]] = Counter()
        for (request_type, reply_type), count in dict(self._commands).items():
            if request_type in COMMAND_WORDS:
                counts[COMMAND_WORDS[request_type], outcome_word(reply_type)] += count
        return counts


def _counter(name: str, meaning: str, value: int) -> Family:
    return Family(name, "counter", meaning, [Point({}, value)])


def _gauge(name: str, meaning: str, value: float, *, unit: str = "") -> Family:
    return Family(name, "gauge", meaning, [Point({}, value)], unit)
