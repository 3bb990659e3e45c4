"""What must hold for a whole history; AssertionError with the first things that do not.

    registers     each scheduled job, and each job of the work queue, is linearizable
    in order      what was put first comes first: jobs of one queue, items of one reader
    once          without a crash in between, an item comes once to a reader, a run happens once
    at least once what was stored has come to every reader in the end, every job has ended
    not invented  what came was put; what runs was set
    occurrences   each occurrence of a timetable has one job, and none is missing

    limits        never more leases at a time, or starts in a while, than the limit of the queue
    parents       no job starts before those that it waits for have ended; none fails without reason
    pauses        nothing is leased from a paused queue
    turns         while a job of a fair queue is ready, no other key has more than its weight for
                  each turn of the job's key, and once more
    orders        a worker hears of no job that nobody has cancelled
    steps         those that were recorded are there, each with one value, until their job completes
    waits         see waits.py

Of leases only what is certain counts: one is certain from its answer until something may have ended
it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from journeyman.units import NS_PER_MS
from tests.simulation.clients import Notes
from tests.simulation.history import (
    NEVER,
    NOT_FOUND,
    OK,
    REFUSED,
    UNKNOWN,
    History,
    Model,
    Operation,
    check,
    failed_parent,
    scheduled_job,
    work_job,
)
from tests.simulation.waits import event, without_waits
from tests.simulation.work_clients import LIMITS, TASK_QUEUES, TTR_MS, WEIGHTS, TaskLimit

SHOWN = 10


def tell(wrong: Iterable[str]) -> None:
    """AssertionError, if anything is wrong."""
    found = list(wrong)
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    if found:
        raise AssertionError("\n".join([*found[:SHOWN], *more]))


_MODELS: Mapping[str, Model] = {"schedule": scheduled_job, "work": work_job, "event": event}
REGISTERS = frozenset(_MODELS)


def check_registers(history: History, service: str) -> int:
    """How many operations were checked."""
    count = 0
    for operations in history.of_keys(f"{service}/").values():
        check(_MODELS[service], None, operations)
        count += len(operations)
    return count


def check_not_invented(history: History) -> None:
    """Every scheduled job that was shown was asked for like that, at some time."""
    for key, operations in history.of_keys("schedule/").items():
        asked = {each.ask[1] for each in operations if each.ask[0] == "set"}
        shown = {each.answer for each in operations if each.ask[0] == "get"}
        tell(
            f"{key} was shown as due at {each}, and never set so"
            for each in shown - asked - {NOT_FOUND, REFUSED, UNKNOWN}
        )


def check_order(
    puts: Mapping[str, Operation],
    seen: Mapping[str, Sequence[Operation]],
    lost: Sequence[Operation] = (),
) -> None:
    """``seen``: with which operations each came. It came at first with one of them, maybe not with
    the one that was answered first: a client may be slow to read.

    Wrong is: one was put before another (the first put had ended when the second began), and came
    after it (likewise). ``lost``: operations whose answer may have taken something away for a
    while; what they may have taken may come late.
    """
    begins = sorted((min(each.invoked for each in its), name) for name, its in seen.items())
    ends = sorted((min(each.returned for each in its), name) for name, its in seen.items())
    wrong, ended, latest, which = [], 0, 0, ""
    for begin, name in begins:
        while ends[ended][0] < begin:
            before = ends[ended][1]
            ended += 1
            if puts[before].invoked > latest:
                latest, which = puts[before].invoked, before
        put = puts[name]
        if put.returned < latest and not any(
            each.invoked < begin and each.returned > put.invoked for each in lost
        ):
            wrong.append(f"{name} was put before {which}, and came after it: {put}, {seen[name]}")
    tell(wrong)


def check_occurrences(runs: Sequence[tuple[int, str]], every_s: Mapping[str, int]) -> int:
    """``runs``: in which life of the server which job ran. How many occurrences there were."""
    by_job: dict[str, list[int]] = {}
    for life, job in runs:
        by_job.setdefault(job, []).append(life)
    wrong = [
        f"{job} ran twice in a life: {lives}" for job, lives in by_job.items() if _twice(lives)
    ]
    seconds: dict[str, list[int]] = {name: [] for name in every_s}
    for job in by_job:
        name, at, moment = job.partition("@")
        if at and name in seconds:
            seconds[name].append(int(datetime.fromisoformat(moment).timestamp()))
    for name, every in every_s.items():
        found = sorted(seconds[name])
        if len(set(found)) < len(found):
            wrong.append(f"{name} has two jobs for one occurrence")
        if found:
            missing = sorted(set(range(found[0], found[-1] + 1, every)) - set(found))
            wrong += [f"{name} did not run at {second}" for second in missing]
    tell(wrong)
    return sum(map(len, seconds.values()))


def _twice(lives: Sequence[int]) -> bool:
    return len(set(lives)) < len(lives)


def check_deliveries(
    puts: Mapping[str, Operation],
    deliveries: Sequence[tuple[str, Operation]],
    lost: Sequence[Operation],
) -> None:
    """Of one reader that has read to the end: what came, and with which operation."""
    seen: dict[str, list[Operation]] = {}
    for name, operation in deliveries:
        seen.setdefault(name, []).append(operation)
    wrong = [f"{name} was never put" for name in seen if name not in puts]
    wrong += [
        f"{put} was stored and never came"
        for name, put in puts.items()
        if put.answer == OK and name not in seen
    ]
    tell(wrong)
    check_order(puts, seen, lost)


_ENDS = (
    "complete",
    "fail",
    "release",
    "cancel",
    "touch",
    "park",
)  # of a lease; a touch may make it shorter

_FAILS = ("fail", "cancel")


class HeldJob(NamedTuple):
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
    leases: dict[str, list[HeldJob]] = {queue: [] for queue in TASK_QUEUES}
    for job_id, operations in by_job.items():
        leases[notes.queue_of[job_id]] += _held(job_id, operations)
    for queue, limit in LIMITS.items():
        groups: dict[str, list[HeldJob]] = {}
        for each in sorted(leases[queue], key=lambda held: held.lease.invoked_ns):
            groups.setdefault(notes.key_of[each.job_id] if limit.by_key else "", []).append(each)
        for key, its in groups.items():
            tell(f"{queue} {key}: {wrong}" for wrong in _beyond(limit, its, set_back))
    tell(wrong for job_id in notes.parents for wrong in _without_parents(notes, by_job, job_id))
    tell(wrong for job_id in by_job for wrong in _without_steps(notes, by_job, job_id))
    tell(without_waits(notes))
    tell(_out_of_turn(notes, leases["fair"]))
    tell(
        wrong
        for orders in notes.history.of_keys("orders/").values()
        for wrong in _false(notes, orders)
    )
    for queue in TASK_QUEUES:
        tell(_while_paused(notes.history.of_key(f"queue/{queue}"), leases[queue]))


def _held(job_id: str, operations: Sequence[Operation]) -> Iterator[HeldJob]:
    ends = [
        each.invoked for each in operations if each.ask[0] in _ENDS and each.answer in (OK, UNKNOWN)
    ]
    for lease in operations:
        if lease.ask[0] == "lease":
            until = min((end for end in ends if end > lease.invoked), default=NEVER)
            yield HeldJob(job_id, lease, until)


def _beyond(limit: TaskLimit, leases: Sequence[HeldJob], set_back: Sequence[int]) -> Iterator[str]:
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


def _out_of_turn(notes: Notes, leases: Sequence[HeldJob]) -> Iterator[str]:
    """Only within a life: turns begin anew with a start. A lease without an answer may have taken a
    turn, and one that was answered without a job may have been refused, and undone."""
    asked = [
        each
        for key, operations in notes.history.of_keys("lease/").items()
        if "fair" in key.removeprefix("lease/").split(",")
        for each in operations
    ]
    unclear = [each for each in asked if each.answer in (UNKNOWN, ())]
    firsts: dict[str, Operation] = {}
    for held in leases:
        first = firsts.setdefault(held.job_id, held.lease)
        if held.lease.invoked < first.invoked:
            firsts[held.job_id] = held.lease
    for job_id, lease in firsts.items():
        operations = notes.history.of_key(f"work/{job_id}")
        add = next(each for each in operations if each.ask[0] == "add")
        begin, end = add.returned, lease.invoked
        is_plain = add.answer == OK and add.deaths == lease.deaths and lease.ask[1] == 1
        if not is_plain or any(each.invoked < end and each.returned > begin for each in unclear):
            continue
        own, others = 1, Counter[str]()
        for other in leases:
            key = notes.key_of[other.job_id]
            if key == notes.key_of[job_id]:
                own += other.lease.invoked < end and other.lease.returned > begin
            else:
                others[key] += other.lease.invoked > begin and other.lease.returned < end
        for key, count in others.items():
            if count > WEIGHTS[key] * own:
                yield f"{key} had {count} turns of {WEIGHTS[key]} between {add} and {lease}"


def _false(notes: Notes, orders: Sequence[Operation]) -> Iterator[str]:
    for order in orders:
        for job_id in () if order.answer is UNKNOWN else order.answer:
            ends = notes.history.of_key(f"work/{job_id}")
            if not any(each.ask[0] == "cancel" and each.invoked < order.returned for each in ends):
                yield f"{order}, but nobody cancelled {job_id}"


def _without_parents(
    notes: Notes, by_job: Mapping[str, Sequence[Operation]], job_id: str
) -> Iterator[str]:
    operations = by_job[job_id]
    if any(each.ask[0] == "requeue" for each in operations):
        return  # it waits for none then
    verbs = ("complete", *_FAILS) if job_id in notes.even_failed else ("complete",)
    for parent in notes.parents[job_id]:
        may_fail = parent in notes.parents or any(each.ask[0] in _FAILS for each in by_job[parent])
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


def _without_steps(
    notes: Notes, by_job: Mapping[str, Sequence[Operation]], job_id: str
) -> Iterator[str]:
    operations = notes.history.of_key(f"steps/{job_id}")
    asked: dict[int, list[Operation]] = {}
    for each in operations:
        if each.ask[0] == "step":
            asked.setdefault(each.ask[1], []).append(each)
    completed = min(
        (
            each.invoked
            for each in by_job[job_id]
            if each.ask[0] == "complete" and each.answer in (OK, UNKNOWN)
        ),
        default=NEVER,
    )
    read: dict[int, tuple[bytes, Operation]] = {}
    for look in operations:
        if look.ask[0] != "look" or look.answer in (UNKNOWN, NOT_FOUND):
            continue
        found = dict(look.answer)
        for number, value in found.items():
            if all(each.ask[2] != value for each in asked.get(number, ())):
                yield f"{look} has the value of no step"
            first, by = read.setdefault(number, (value, look))
            if first != value:
                yield f"{look} has another value of step {number} than {by}"
        for number, its in asked.items():
            is_recorded = any(each.answer == OK and each.returned < look.invoked for each in its)
            if is_recorded and number not in found and look.returned < completed:
                yield f"{look} misses step {number}: {its}"


def _while_paused(told: Sequence[Operation], leases: Sequence[HeldJob]) -> Iterator[str]:
    for number, pause in enumerate(told):
        if pause.ask[0] != "pause" or pause.answer != OK:
            continue
        after = (each.invoked for each in told[number + 1 :] if each.ask[0] == "resume")
        end = next(after, NEVER)
        for held in leases:
            if pause.returned < held.lease.invoked and held.lease.returned < end:
                yield f"{held} was leased while its queue was paused by {pause}"
