"""The figures of the work queue.

    writer   --count-->           commands by word and outcome, batches
    cleaning --cleaning_ended-->  cleanings
    the engine's own figures, read on request: jobs by state, queues, who waits

Nothing is formatted while commands are served, and counters start at zero with the process. Labels
are fixed words, but for the names of the MOST_QUEUES largest queues.
"""

from __future__ import annotations

from collections.abc import Callable, Sized

from journeyman.clock import Clock
from journeyman.engines.workq.messages import QueueFigures, WorkqStats
from journeyman.errors import JourneymanError
from journeyman.protocols.workq import commands
from journeyman.protocols.workq.replies import JobMissing, WaitTimedOut
from journeyman.servers.core import metrics
from journeyman.units import NS_PER_S

_COMMAND_NAMES: dict[type, str] = {
    commands.Add: "add",
    commands.ScheduleJob: "schedule",
    commands.RunJob: "run",
    commands.AwaitResult: "result",
    commands.Lease: "lease",
    commands.Complete: "complete",
    commands.Fail: "fail",
    commands.Delete: "delete",
    commands.Cancel: "cancel",
    commands.AwaitOrders: "worker",
    commands.NoteProgress: "progress",
    commands.RecordStep: "step",
    commands.Park: "park",
    commands.Emit: "emit",
    commands.Fork: "fork",
    commands.Requeue: "requeue",
    commands.RequeueAll: "requeue-all",
    commands.SetLimits: "limit",
    commands.Touch: "touch",
    commands.PauseQueue: "pause",
    commands.ResumeQueue: "resume",
    commands.RefusedLine: "refused",
    **dict.fromkeys(
        (
            commands.InspectServer,
            commands.InspectToken,
            commands.InspectQueue,
            commands.InspectQueues,
            commands.InspectPausedQueues,
            commands.InspectJob,
            commands.InspectProgress,
            commands.InspectSteps,
            commands.InspectEvent,
            commands.InspectJobs,
            commands.InspectScheduledJobs,
            commands.InspectDeadJobs,
        ),
        "inspect",
    ),
}

MOST_QUEUES = 100  # clients choose the names, so their number is bounded
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
        queue_totals: Callable[[], list[tuple[int, int]]],
    ) -> None:
        self.stats = stats
        self.queue_totals = queue_totals
        self._largest_queues = largest_queues
        self._clock = clock
        self._sessions = sessions
        self._commands = metrics.CommandCounts(_COMMAND_NAMES, _outcome_word)
        self.count = self._commands.add
        self._cleanings = {True: 0, False: 0}

    def cleaning_ended(self, success: bool) -> None:
        self._cleanings[success] += 1

    def families(self) -> list[metrics.Family]:
        stats = self.stats()
        states = ("ready", "scheduled", "leased", "completed", "failed", "cancelled")
        return [
            metrics.counter(
                "workq.commands",
                "Commands of the work queue that were decided.",
                metrics.command_points(self._commands.by_word()),
            ),
            metrics.counter(
                "workq.batches", "Batches of commands of the work queue.", self._commands.batches
            ),
            metrics.counter(
                "workq.evicted", "Unfinished jobs that their TTL has ended.", stats.evicted
            ),
            metrics.counter(
                "workq.cleanings",
                "Cleanings of the command log that have ended.",
                metrics.by_success(self._cleanings.copy()),
            ),
            metrics.gauge(
                "workq.jobs",
                "Jobs of the work queue by state.",
                [metrics.Point({"state": state}, getattr(stats, state)) for state in states],
            ),
            metrics.gauge("workq.queues", "Queues.", stats.queues),
            metrics.gauge(
                "workq.waiting", "Clients that wait for a job or a result.", stats.waiting
            ),
            metrics.gauge(
                "workq.connections", "Open connections of the workq protocol.", len(self._sessions)
            ),
            *self._queue_families(),
        ]

    def _queue_families(self) -> list[metrics.Family]:
        shown, others = self._largest_queues(MOST_QUEUES)
        now_ns = self._clock.now_ns()
        counts = [
            metrics.Point(
                {"queue": each.name or OTHER_QUEUES, "state": state}, getattr(each, state)
            )
            for each in (*shown, others)
            for state in ("ready", "scheduled", "dead")
        ]
        ages = [
            metrics.Point({"queue": each.name}, max(now_ns - each.oldest_ready_ns, 0) / NS_PER_S)
            for each in shown
            if each.oldest_ready_ns is not None
        ]
        return [
            metrics.gauge("workq.queue_jobs", "Jobs of the largest queues by state.", counts),
            metrics.gauge(
                "workq.oldest_ready_seconds",
                "How long the job that waits longest has been ready, in the largest queues.",
                ages,
                unit="s",
            ),
        ]
