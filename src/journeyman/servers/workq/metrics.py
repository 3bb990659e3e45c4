"""The work queue's figures, as families of metric_families.py.

    writer   --told-->            commands by word and outcome, batches
    cleaning --cleaning_ended-->  cleanings
    the engine's own figures, read when somebody asks: jobs by state, queues, who waits

As in metrics.py: nothing is formatted while commands are served, and counters start at zero with
the process. Labels are words of ours, but for the names of the MOST_QUEUES largest queues.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sized
from operator import itemgetter
from typing import Any

from journeyman.clock import Clock
from journeyman.engines.workq.messages import QueueFigures, WorkqStats
from journeyman.errors import JourneymanError
from journeyman.protocols.workq import commands
from journeyman.protocols.workq.replies import JobMissing, WaitTimedOut
from journeyman.servers.telemetry.metrics import Family, Point
from journeyman.units import NS_PER_S

_WORDS: dict[type, str] = {
    commands.Add: "add",
    commands.ScheduleJob: "schedule",
    commands.Run: "run",
    commands.AwaitResult: "result",
    commands.Lease: "lease",
    commands.Complete: "complete",
    commands.Fail: "fail",
    commands.Delete: "delete",
    commands.Requeue: "requeue",
    commands.PauseQueue: "pause",
    commands.ResumeQueue: "resume",
    commands.RefusedLine: "refused",
    **dict.fromkeys(
        (
            *(
                commands.InspectServer,
                commands.InspectQueue,
                commands.InspectQueues,
                commands.InspectPausedQueues,
                commands.InspectJob,
            ),
            *(commands.InspectJobs, commands.InspectScheduledJobs, commands.InspectDeadJobs),
        ),
        "inspect",
    ),
}
_REQUEST = itemgetter(1)

MOST_QUEUES = 100  # with figures of their own: clients make up names, and nobody may flood us
OTHER_QUEUES = "(other)"  # no name of a queue has parentheses


def _outcome_word(reply_type: type) -> str:
    """``ok``, ``waits``, or the first word of the error, in lower case."""
    if reply_type is type(None):
        return "waits"
    if reply_type is JobMissing:
        return "not_found"
    if reply_type is WaitTimedOut:
        return "timeout"
    if reply_type is commands.RefusedLine:
        return "client_error"
    return "server_error" if issubclass(reply_type, JourneymanError) else "ok"


class WorkqMetrics:
    """Made once a work queue. ``stats`` asks the engine."""

    def __init__(
        self,
        stats: Callable[[], WorkqStats],
        sessions: Sized,
        largest_queues: Callable[[int], tuple[list[QueueFigures], QueueFigures]],
        clock: Clock,
    ) -> None:
        self._stats = stats
        self._largest_queues = largest_queues
        self._clock = clock
        self._sessions = sessions
        self._commands: Counter[tuple[type, type]] = Counter()
        self._cleanings = {True: 0, False: 0}
        self._batches = 0

    def told(self, requests: Iterable[tuple[Any, object]], outcomes: Iterable[object]) -> None:
        """A batch was answered: (client, request), and in the same order what each came to."""
        self._batches += 1
        self._commands.update(
            zip(map(type, map(_REQUEST, requests)), map(type, outcomes), strict=False)
        )

    def cleaning_ended(self, success: bool) -> None:
        self._cleanings[success] += 1

    def families(self) -> list[Family]:
        stats = self._stats()
        states = ("ready", "scheduled", "leased", "completed", "failed")
        return [
            Family(
                "workq.commands",
                "counter",
                "Commands of the work queue that were decided.",
                self._command_points(),
            ),
            _counter("workq.batches", "Batches of commands of the work queue.", self._batches),
            _counter("workq.evicted", "Unfinished jobs that their TTL has ended.", stats.evicted),
            Family(
                "workq.cleanings",
                "counter",
                "Cleanings of the command log that have ended.",
                [Point({"success": good}, n) for good, n in self._cleanings.copy().items()],
            ),
            Family(
                "workq.jobs",
                "gauge",
                "Jobs of the work queue by state.",
                [Point({"state": state}, getattr(stats, state)) for state in states],
            ),
            _gauge("workq.queues", "Queues.", stats.queues),
            _gauge("workq.waiting", "Clients that wait for a job or a result.", stats.waiting),
            _gauge(
                "workq.connections", "Open connections of the workq protocol.", len(self._sessions)
            ),
            *self._queue_families(),
        ]

    def _queue_families(self) -> list[Family]:
        shown, others = self._largest_queues(MOST_QUEUES)
        now_ns = self._clock.now_ns()
        counts = [
            Point({"queue": each.name or OTHER_QUEUES, "state": state}, getattr(each, state))
            for each in (*shown, others)
            for state in ("ready", "scheduled", "dead")
        ]
        ages = [
            Point({"queue": each.name}, max(now_ns - each.oldest_ready_ns, 0) / NS_PER_S)
            for each in shown
            if each.oldest_ready_ns is not None
        ]
        return [
            Family("workq.queue_jobs", "gauge", "Jobs of the largest queues by state.", counts),
            Family(
                "workq.oldest_ready_seconds",
                "gauge",
                "How long the job that waits longest has been ready, in the largest queues.",
                ages,
                unit="s",
            ),
        ]

    def _command_points(self) -> list[Point]:
        counts: Counter[tuple[str, str]] = Counter()
        for (request_type, reply_type), count in dict(self._commands).items():
            if request_type in _WORDS:
                counts[_WORDS[request_type], _outcome_word(reply_type)] += count
        return [Point({"command": c, "outcome": o}, n) for (c, o), n in sorted(counts.items())]


def _counter(name: str, meaning: str, value: int) -> Family:
    return Family(name, "counter", meaning, [Point({}, value)])


def _gauge(name: str, meaning: str, value: int) -> Family:
    return Family(name, "gauge", meaning, [Point({}, value)])
