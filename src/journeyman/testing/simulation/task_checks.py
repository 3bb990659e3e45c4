"""What must hold for jobs with extensions, beyond what each job promises (models.py).

    limits   never more leases at a time, or starts in a while, than the limit of the queue allows
    parents  no job starts before those that it waits for have ended; none fails without a reason
    pauses   nothing is leased from a paused queue

Only what is certain counts: a lease is certain from its answer until something may have ended it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from journeyman.testing.simulation.checks import tell
from journeyman.testing.simulation.clients import Notes
from journeyman.testing.simulation.history import NEVER, UNKNOWN, Operation
from journeyman.testing.simulation.models import OK, failed_parent
from journeyman.testing.simulation.task_clients import LIMITS, TASK_QUEUES, TTR_MS, TaskLimit
from journeyman.units import NS_PER_MS

_ENDS = ("complete", "fail", "touch")  # of a lease; a touch may make it shorter


class Held(NamedTuple):
    """A lease of a job, and the order at which it may have ended."""

    job_id: str
    lease: Operation
    until: int

    @property
    def until_ns(self) -> int:
        return self.lease.invoked_ns + TTR_MS * NS_PER_MS

    def is_held_during(self, other: Operation) -> bool:
        """Whether it was held for all of the time in which the other one may have begun."""
        began_before = self.lease.returned < other.invoked
        return began_before and self.until > other.returned and self.until_ns > other.returned_ns


def check_tasks(notes: Notes, set_back: Sequence[int] = ()) -> None:
    """``set_back``: when, in orders of the history, the clock was set back: a rate counts what
    began in the last second by the clock."""
    by_job = {job_id: notes.history.of_key(f"work/{job_id}") for job_id in (*notes.tasks,)}
    leases: dict[str, list[Held]] = {queue: [] for queue in TASK_QUEUES}
    for job_id, operations in by_job.items():
        leases[notes.queue_of[job_id]] += _held(job_id, operations)
    for queue, limit in LIMITS.items():
        groups: dict[str, list[Held]] = {}
        for each in sorted(leases[queue], key=lambda held: held.lease.invoked_ns):
            groups.setdefault(notes.key_of[each.job_id] if limit.by_key else "", []).append(each)
        for key, its in groups.items():
            tell(f"{queue} {key}: {wrong}" for wrong in _beyond(limit, its, set_back))
    tell(wrong for job_id in notes.parents for wrong in _without_parents(notes, by_job, job_id))
    for queue in TASK_QUEUES:
        tell(_while_paused(notes.history.of_key(f"queue/{queue}"), leases[queue]))


def _held(job_id: str, operations: Sequence[Operation]) -> Iterator[Held]:
    ends = [
        each.invoked for each in operations if each.ask[0] in _ENDS and each.answer in (OK, UNKNOWN)
    ]
    for lease in operations:
        if lease.ask[0] == "lease":
            until = min((end for end in ends if end > lease.invoked), default=NEVER)
            yield Held(job_id, lease, until)


def _beyond(limit: TaskLimit, leases: Sequence[Held], set_back: Sequence[int]) -> Iterator[str]:
    for number, each in enumerate(leases):
        # What began long before has ended; what began at once with it counts as well.
        near = leases[max(0, number - 200) : number + 200]
        held = [other for other in near if other.is_held_during(each.lease)]
        at_once = [other for other in near if other.lease.invoked == each.lease.invoked]
        if len(held) + len(at_once) > limit.concurrency:
            yield f"{each} beside {[*held, *at_once]}"
        end_ns = each.lease.invoked_ns + limit.rate_ms * NS_PER_MS
        began = [other.lease for other in leases[number : number + 200]]
        began = [other for other in began if other.returned_ns < end_ns]
        is_set_back = any(each.lease.invoked < at < began[-1].returned for at in set_back if began)
        if len(began) > limit.rate and not is_set_back:
            yield f"{len(began)} began within {limit.rate_ms} ms from {each} on"


def _without_parents(
    notes: Notes, by_job: Mapping[str, Sequence[Operation]], job_id: str
) -> Iterator[str]:
    operations = by_job[job_id]
    if any(each.ask[0] == "requeue" for each in operations):
        return  # it waits for none then
    verbs = ("complete", "fail") if job_id in notes.even_failed else ("complete",)
    for parent in notes.parents[job_id]:
        may_fail = parent in notes.parents or any(each.ask[0] == "fail" for each in by_job[parent])
        first = min(
            (
                each.invoked
                for each in by_job[parent]
                if each.ask[0] in verbs and each.answer in (OK, UNKNOWN)
            ),
            default=NEVER,
        )
        for each in operations:
            is_early = each.ask[0] == "lease" and each.returned < first
            if is_early and not (job_id in notes.even_failed and parent in notes.parents):
                yield f"{each} was leased before its parent {parent} had ended"
            is_failed = each.ask[0] == "look" and each.answer == (False, failed_parent(parent))
            if is_failed and not may_fail:
                yield f"{each}, but {parent} did not fail"


def _while_paused(told: Sequence[Operation], leases: Sequence[Held]) -> Iterator[str]:
    for number, pause in enumerate(told):
        if pause.ask[0] != "pause" or pause.answer != OK:
            continue
        after = (each.invoked for each in told[number + 1 :] if each.ask[0] == "resume")
        end = next(after, NEVER)
        for held in leases:
            if pause.returned < held.lease.invoked and held.lease.returned < end:
                yield f"{held} was leased while its queue was paused by {pause}"
