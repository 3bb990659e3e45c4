"""The server's figures: what is counted while it runs, and all of them as one list of families.

    writer     --count-->             counters ---+
    runs       --run_ended-->         histograms -+--> families --+--> http/server.py, for /metrics
    compaction --compaction_ended-->  counters ---+               +--> telemetry: OTLP
    STAT's figures, read on request --------------+

Nothing is formatted or looked up while commands are served: a batch of commands is counted by the
types of its requests and replies, in one call. Labels have few values each, all of them fixed
words: no identifier ever becomes one. Counters start at zero with the process.

Counting is done on the event loop. ``families`` may be called in any thread: it copies first, and
at worst two figures differ by what happened in between.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Sequence

from journeyman import __version__
from journeyman.engines.ztick.messages import (
    JobNotFound,
    OutOfScope,
    RuleNotFound,
    TimetableNotFound,
    TimetableRefused,
)
from journeyman.errors import JourneymanError
from journeyman.formats.ztick import Runner
from journeyman.formats.ztick.codec import runner_word
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.commands import SetMany
from journeyman.protocols.ztick.grammar import TIMETABLE_COMMANDS
from journeyman.protocols.ztick.replies import Metrics as StatFigures
from journeyman.servers.core import metrics
from journeyman.servers.core.contract import Requests
from journeyman.units import NS_PER_MS, NS_PER_S

COMMAND_WORDS: dict[type, str] = {
    commands.Set: "set",
    SetMany: "set",
    commands.SetRule: "rule_set",
    commands.Get: "get",
    commands.Query: "query",
    commands.Remove: "remove",
    commands.RemoveRule: "remove_rule",
    commands.ListRules: "list_rules",
    commands.Stat: "stat",
    **{command: f"timetable_{word}" for word, command in TIMETABLE_COMMANDS.items()},
    commands.RefusedCommand: "refused",
    commands.AuthNotNeeded: "auth",
}

_OK = "ok"
_COMPACTION_STATES = ("idle", "running", "success", "failure")


def outcome_word(reply_type: type) -> str:
    """``ok``, or the word after ERROR in the answer that this type of reply becomes."""
    if reply_type in (JobNotFound, RuleNotFound, TimetableNotFound):
        return commands.ErrorCode.NOT_FOUND.value
    if reply_type is TimetableRefused:
        return commands.ErrorCode.INVALID_ARGS.value
    if reply_type is OutOfScope:
        return commands.ErrorCode.AUTH_DENIED.value
    if reply_type is type(None):  # only what was refused has no reply
        return commands.ErrorCode.INVALID_ARGS.value
    return commands.ErrorCode.INTERNAL.value if issubclass(reply_type, JourneymanError) else _OK


MAX_FAILING = 1_000  # timetables that are named in the figures


class ServerMetrics:
    """Made once a server. ``others`` are figures that are counted elsewhere."""

    def __init__(self, *others: Callable[[], list[metrics.Family]]) -> None:
        self._others = others
        self._commands = metrics.CommandCounts(COMMAND_WORDS, outcome_word)
        self._durations: dict[tuple[str, bool], metrics.Histogram] = {}
        self._lateness = metrics.Histogram()
        self._compactions = {True: 0, False: 0}
        self._without_rule = 0
        self._missed = 0
        self._failing: dict[str, None] = {}  # timetables whose last run has failed
        self.is_timetable: Callable[[str], bool] = lambda _: True
        self.timetables: Callable[[], tuple[int, int]] = lambda: (0, 0)  # active, paused
        self.spans_crowded_out = 0  # too many waited
        self.spans_not_taken = 0  # by the collector; both are telemetry's, from two threads
        self.exports: Counter[tuple[str, bool]] = Counter()  # by signal and success

    # -- counting --

    def count(self, requests: Requests, outcomes: Sequence[object]) -> None:
        """A batch was answered."""
        self._commands.add(requests, outcomes)
        for (_, request), outcome in zip(requests, outcomes, strict=False):
            if type(request) is SetMany and len(request.rows) > 1:
                self._commands.add_more(SetMany, type(outcome), len(request.rows) - 1)

    def run_ended(self, runner: Runner, success: bool, duration_ns: int, late_ns: int) -> None:
        key = (runner_word(runner), success)
        durations = self._durations.get(key)
        if durations is None:
            durations = self._durations[key] = metrics.Histogram()
        durations.add(duration_ns / NS_PER_MS)
        self._lateness.add(max(late_ns, 0) / NS_PER_MS)  # early: the wall clock was set back

    def run_without_rule(self) -> None:
        self._without_rule += 1

    def timetable_ran(self, name: str, success: bool) -> None:
        """A run of this timetable has ended, or an occurrence was missed."""
        if success:
            self._failing.pop(name, None)
        elif len(self._failing) < MAX_FAILING:
            self._failing[name] = None

    def run_missed(self) -> None:
        self._missed += 1

    def compaction_ended(self, success: bool) -> None:
        self._compactions[success] += 1

    # -- telling --

    def families(self, stat: StatFigures) -> list[metrics.Family]:
        """All figures, together with those of STAT."""
        commands = self._commands.by_word()
        durations = {key: each.copy() for key, each in self._durations.copy().items()}
        runs: list[tuple[metrics.Labels, metrics.Histogram]] = [
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
            metrics.gauge(
                "build_info",
                "1, with the versions as labels.",
                [metrics.Point({"version": __version__, "python": platform.python_version()}, 1)],
            ),
            metrics.counter("jobs.scheduled", "Jobs planned by SET.", commands["set", _OK]),
            metrics.counter(
                "jobs.executed",
                "Runs of jobs that have ended.",
                [metrics.Point(labels, sum(each.counts)) for labels, each in runs],
            ),
            metrics.counter(
                "jobs.without_rule",
                "Jobs that were due and failed because no rule matched.",
                self._without_rule,
            ),
            metrics.counter(
                "timetables.missed",
                "Occurrences that were due and not run: too late, or the run before went on.",
                self._missed,
            ),
            metrics.gauge(
                "timetable.failing",
                "1 for each timetable whose last occurrence failed or was missed.",
                [
                    metrics.Point({"timetable": name}, 1)
                    for name in self._failing.copy()
                    if self.is_timetable(name)
                ],
            ),
            metrics.counter("jobs.removed", "Jobs removed by REMOVE.", commands["remove", _OK]),
            metrics.counter(
                "persistence.compactions",
                "Compactions of the log that have ended.",
                metrics.by_success(self._compactions.copy()),
            ),
            metrics.histogram(
                "execution.duration_ms",
                "How long runs took.",
                [metrics.Point(labels, each) for labels, each in runs],
            ),
            metrics.histogram(
                "execution.lateness_ms",
                "How long after its time a run began.",
                [metrics.Point({}, self._lateness.copy())],
            ),
            metrics.gauge("rules.active", "Rules.", stat.rules_total),
            metrics.gauge(
                "timetables",
                "Timetables by state.",
                [
                    metrics.Point({"state": state}, n)
                    for state, n in zip(("active", "paused"), self.timetables(), strict=True)
                ],
            ),
            metrics.gauge(
                "connections.active", "Open connections of the ztick protocol.", stat.connections
            ),
            metrics.counter(
                "commands",
                "Commands answered.",
                metrics.command_points(commands),
            ),
            metrics.counter(
                "batches", "Batches of commands, each written at once.", self._commands.batches
            ),
            metrics.gauge(
                "jobs",
                "Jobs by status.",
                [metrics.Point({"status": word}, n) for word, n in by_status.items()],
            ),
            metrics.gauge("runs.waiting", "Runs that wait for a slot.", stat.executions_pending),
            metrics.gauge("runs.running", "Runs under way.", stat.executions_inflight),
            metrics.gauge(
                "compression",
                "State of the log's compaction: 1 for the present one.",
                [
                    metrics.Point({"state": s}, int(s == stat.compression))
                    for s in _COMPACTION_STATES
                ],
            ),
            metrics.gauge(
                "uptime_seconds", "Time since the start.", stat.uptime_ns / NS_PER_S, unit="s"
            ),
            metrics.counter(
                "telemetry.spans_dropped",
                "Spans of the sample that no collector got.",
                [
                    metrics.Point({"reason": "queue_full"}, self.spans_crowded_out),
                    metrics.Point({"reason": "export_failed"}, self.spans_not_taken),
                ],
            ),
            metrics.counter(
                "telemetry.exports",
                "Requests to the collector.",
                [
                    metrics.Point({"signal": signal, "success": good}, n)
                    for (signal, good), n in sorted(dict(self.exports).items())
                ],
            ),
            *(family for families in self._others for family in families()),
        ]
