"""Every figure of a report, counted once more in plain Python: no Spark, no kernel of the project.

    records, lines of runs  -->  Try, one for each wait or lease  -->  tiles, series, rows

The rules are those of docs/folds.md and docs/pipeline.md, in the simplest form that
is right for small logs. Not a test itself.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from journeyman.formats import kestrel, workq, ztick
from journeyman.logs.ztick.run_history import RunLine
from tests.support.plain_counts import rounded

GRACE_NS = 60 * 10**9
NEVER_NS = 2**63 - 1
RANKS = {"50 %": 0.5, "90 %": 0.9, "99 %": 0.99}


@dataclass(slots=True)
class Try:
    """One wait of a job and the lease or run that followed, if any."""

    group: str
    ready: int | None
    created: int | None = None
    started: int | None = None
    ended: int | None = None
    outcome: str = "waiting"
    expires: int | None = None
    is_first: bool = True
    is_known: bool = True  # the log has its add
    was_leased: bool = False  # before, in another row

    @property
    def wait(self) -> int | None:
        if self.ready is None or self.started is None:
            return None
        return max(self.started - self.ready, 0)

    @property
    def run(self) -> int | None:
        if self.started is None or self.ended is None:
            return None
        return max(self.ended - self.started, 0)


def percentile(values: Iterable[int | None], rank: float) -> int | None:
    """The least value that at least this share of all values does not exceed."""
    known = sorted(value for value in values if value is not None)
    return known[max(math.ceil(rank * len(known)) - 1, 0)] if known else None


def rounded_percentile(values: Iterable[int | None], rank: float) -> int | None:
    """A percentile to four digits, as the views have it."""
    return rounded(percentile(values, rank))


# -- work queue ----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Job:
    add: workq.JobAdded
    last: Try
    tries: list[Try]
    is_done: bool = False
    is_leased: bool = False
    is_spent: bool = False
    is_parked: bool = False
    attempts: int = 0
    fails: int = 0
    owed: int = 0
    finished: int = 0
    begun: int = 0
    records: list[workq.Record] = field(default_factory=list)


@dataclass(slots=True)
class WorkQueue:
    """What the records of one log come to."""

    tries: list[Try] = field(default_factory=list)
    findings: Counter[str] = field(default_factory=Counter)
    needed: list[tuple[int, workq.Record]] = field(default_factory=list)  # expiry and record
    last_ns: int = 0


def expiry_of(add: workq.JobAdded) -> int:
    begins = add.created if add.time is None else add.time
    return begins.unix_ns + add.ttl_ms * 10**6


def count_workq(records: Sequence[workq.Record]) -> WorkQueue:
    found = WorkQueue()
    jobs: dict[bytes, _Job] = {}
    early: dict[bytes, list[workq.Record]] = defaultdict(list)
    for record in records:
        if isinstance(record, workq.JobAdded):
            found.last_ns = max(found.last_ns, record.logged.unix_ns, record.created.unix_ns)
            _add(found, jobs, early, record)
            continue
        assert isinstance(record, workq.JobEvent | workq.JobFinished)
        found.last_ns = max(found.last_ns, record.logged.unix_ns)
        job = jobs.get(record.job_id)
        if job is None:
            early[record.job_id].append(record)
            if record.command is workq.Command.EXPIRE:
                _without_add(found, early.pop(record.job_id))
        else:
            job.records.append(record)
            if _apply(found, job, record, 0):
                del jobs[record.job_id]
    for left in early.values():
        _without_add(found, left)
        found.findings["orphan"] += len(left)
    for job in jobs.values():
        found.tries += job.tries
        expiry = job.last.expires
        assert expiry is not None
        found.needed += [(expiry, record) for record in job.records]
    return found


def _add(
    found: WorkQueue,
    jobs: dict[bytes, _Job],
    early: dict[bytes, list[workq.Record]],
    add: workq.JobAdded,
) -> None:
    former = jobs.pop(add.job_id, None)
    if former is not None:
        if not former.is_done:
            expiry = former.last.expires
            assert expiry is not None
            lived = add.created.unix_ns < expiry
            former.last.outcome = "replaced" if lived else "expired"
            former.last.ended = add.created.unix_ns if lived else expiry
            found.findings["vanished"] += lived
        found.tries += former.tries
    ready = max(add.created.unix_ns, add.time.unix_ns if add.time else 0)
    first = Try(add.name, ready, add.created.unix_ns, expires=expiry_of(add))
    job = jobs[add.job_id] = _Job(add, first, [first])
    for record in early.pop(add.job_id, []):
        assert record.logged.unix_ns >= add.created.unix_ns
        job.records.append(record)
        _apply(found, job, record, add.logged.unix_ns)
    job.records.append(add)


def _apply(found: WorkQueue, job: _Job, record: workq.Record, floor: int) -> bool:
    """Whether the job is gone."""
    assert isinstance(record, workq.JobEvent | workq.JobFinished)
    now, command = max(record.logged.unix_ns, floor), record.command
    if command in (workq.Command.DELETE, workq.Command.EXPIRE):
        if not job.is_done:
            job.last.outcome = "deleted" if command is workq.Command.DELETE else "expired"
            job.last.ended = now
        found.tries += job.tries
        return True
    if command is workq.Command.PARK:
        _park(job, now)
    elif command is workq.Command.WAKE:
        if job.is_parked:
            job.last.ready = now
            _go_on(job, now)
    elif command is workq.Command.START_ATTEMPT:
        _start(found, job, now)
    elif command is workq.Command.TIMEOUT_ATTEMPT:
        _time_out(job, now)
    elif job.is_done and not job.is_spent:
        found.findings["duplicate-execution"] += 1
    else:
        job.is_done, job.is_leased, job.is_spent, job.owed = True, False, False, 0
        job.last.outcome = "completed" if command is workq.Command.COMPLETE else "failed"
        job.last.ended = job.finished = now
        _go_on(job, now)
    return False


def _park(job: _Job, now: int) -> None:
    if job.is_done:
        return
    if job.is_leased:
        job.last.outcome, job.last.ended = "parked", now
        _next(job, now)
    job.is_leased, job.is_parked, job.owed = False, True, 0
    job.last.ready, job.last.expires = None, NEVER_NS


def _go_on(job: _Job, now: int) -> None:
    """A parked job is parked no more, and its TTL begins again."""
    if job.is_parked:
        job.is_parked, job.last.expires = False, now + job.add.ttl_ms * 10**6


def _start(found: WorkQueue, job: _Job, now: int) -> None:
    if job.is_done:
        found.findings["duplicate-execution"] += 1
        return
    found.findings["over-limit"] += 0 < job.add.max_attempts <= job.attempts
    if job.is_leased:
        found.findings["overlapping-lease"] += 1
        job.owed += job.add.ttr_ms > 0
        job.last.outcome, job.last.ended = "timed-out", now
        _next(job, None)
    job.is_leased, job.attempts, job.begun = True, job.attempts + 1, now
    job.last.started, job.last.outcome = now, "leased"
    _go_on(job, now)


def _time_out(job: _Job, now: int) -> None:
    if job.is_leased:
        if job.owed and now < job.begun + job.add.ttr_ms * 10**6:
            job.owed -= 1
            return
        job.is_leased, job.owed = False, 0
        job.last.outcome, job.last.ended = "timed-out", now
        if 0 < job.add.max_attempts <= job.attempts:
            job.is_done = job.is_spent = True
        else:
            _next(job, now)
    elif (
        (job.is_done and not job.is_spent and job.last.outcome == "failed")
        and job.finished == now
        and job.fails + 1 < job.add.max_fails
    ):
        job.is_done, job.fails = False, job.fails + 1
        _next(job, now)


def _next(job: _Job, ready: int | None) -> None:
    job.last = Try(
        job.add.name,
        ready,
        job.add.created.unix_ns,
        expires=job.last.expires,
        is_first=False,
        was_leased=job.attempts > 0,
    )
    job.tries.append(job.last)


def _without_add(found: WorkQueue, records: Sequence[workq.Record]) -> None:
    """Leases and results of a job whose add the log does not have."""
    held: Try | None = None
    is_first = True
    for record in records:
        assert isinstance(record, workq.JobEvent | workq.JobFinished)
        now, command = record.logged.unix_ns, record.command
        if held is not None and command is workq.Command.START_ATTEMPT:
            held.outcome, held.ended, held = "timed-out", now, None
        if held is None and command not in _ENDS_ALONE:
            held = Try("", None, is_first=is_first, is_known=False)
            is_first = False
            found.tries.append(held)
        if held is None:
            continue
        if command is workq.Command.START_ATTEMPT:
            held.started, held.outcome = now, "leased"
        else:
            held.outcome, held.ended, held = _ENDINGS[command], now, None


_ENDINGS = {
    workq.Command.COMPLETE: "completed",
    workq.Command.FAIL: "failed",
    workq.Command.TIMEOUT_ATTEMPT: "timed-out",
    workq.Command.DELETE: "deleted",
    workq.Command.EXPIRE: "expired",
}
_ENDS_ALONE = (
    workq.Command.TIMEOUT_ATTEMPT,
    workq.Command.DELETE,
    workq.Command.EXPIRE,
)


def expire(tries: Iterable[Try], as_of_ns: int) -> None:
    """What nobody can have any more at this moment, whether or not a record says so."""
    for each in tries:
        is_open = each.outcome in ("waiting", "leased")
        if is_open and each.expires is not None and each.expires <= as_of_ns:
            each.outcome, each.ended = "expired", each.expires


# -- schedule ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Plan:
    job: str
    due: int
    outcome: str
    times_planned: int = 0


@dataclass(slots=True)
class Schedule:
    tries: list[Try]
    plans: list[Plan]
    findings: Counter[str]
    needed: list[ztick.Record]


def count_ztick(
    records: Sequence[ztick.Record], runs: Sequence[RunLine], as_of_ns: int
) -> Schedule:
    findings: Counter[str] = Counter()
    plans: dict[tuple[str, int], Plan] = {}
    now: dict[str, Plan] = {}
    last: dict[tuple[str, bool], ztick.Record] = {}
    known: set[tuple[str, bool]] = set()
    removed: set[tuple[str, bool]] = set()
    for record in records:
        name = (record.identifier, isinstance(record, ztick.RuleSet | ztick.RuleRemoved))
        if isinstance(record, ztick.JobRemoved | ztick.RuleRemoved):
            removed.add(name)
            last.pop(name, None)
            plan = now.pop(record.identifier, None)
            if plan and plan.outcome in ("planned", "triggered"):
                plan.outcome = "removed"
            continue
        known.add(name)
        last[name] = record
        if isinstance(record, ztick.JobSet):
            before = now.get(record.identifier)
            is_open = before is not None and before.outcome in ("planned", "triggered")
            if before and is_open and before.due != record.execution_ns:
                before.outcome = "replanned"
            place = (record.identifier, record.execution_ns)
            plan = plans.setdefault(place, Plan(*place, ""))
            plan.outcome = record.status.name.lower()
            plan.times_planned += record.status is ztick.Status.PLANNED
            now[record.identifier] = plan
    by_plan: dict[tuple[str, int], list[RunLine]] = defaultdict(list)
    for line in runs:
        by_plan[line.job, line.execution_ns].append(line)
    findings["orphan"] = len(removed - known)
    findings["cut-off-run"] = sum(line.outcome == "cut-off" for line in runs)
    tries = []
    for place in {**plans, **by_plan}:
        plan, lines = plans.get(place), by_plan.get(place, [])
        ran = sum(line.outcome != "cut-off" for line in lines)
        findings["duplicate-execution"] += ran > max(plan.times_planned if plan else 1, 1)
        if plan and plan.outcome in ("planned", "triggered") and plan.due < as_of_ns - GRACE_NS:
            missed = plan.outcome == "planned"
            findings["missed-run" if missed else "never-executed"] += 1
        if not lines:
            assert plan is not None
            tries.append(Try("", plan.due, outcome=plan.outcome))
        for number, line in enumerate(sorted(lines, key=lambda line: line.started_ns)):
            tries.append(
                Try(
                    line.rule,
                    line.execution_ns,
                    started=line.started_ns if line.rule else None,  # no rule, no run
                    ended=line.ended_ns,
                    outcome=line.outcome,
                    is_first=number == 0,
                )
            )
    return Schedule(tries, list(plans.values()), findings, list(last.values()))


# -- fan-out queues ------------------------------------------------------------------------------


@dataclass(slots=True)
class Queue:
    name: str
    items: Sequence[kestrel.ItemPut]
    readers: Mapping[str, tuple[int, tuple[int, ...]]]

    @property
    def put(self) -> int:
        """The highest id ever given out."""
        finished = [max((head, *done)) for head, done in self.readers.values()]
        return max((item.item_id for item in self.items), default=max(finished, default=0))

    def is_finished(self, item: kestrel.ItemPut, reader: str) -> bool:
        head, done = self.readers[reader]
        return item.item_id <= head or item.item_id in done

    def waiting_for(self, reader: str) -> list[kestrel.ItemPut]:
        return [item for item in self.items if not self.is_finished(item, reader)]

    def tries(self) -> list[Try]:
        return [
            Try(
                self.name,
                item.add_time_ms * 10**6,
                item.add_time_ms * 10**6,
                outcome="finished"
                if all(self.is_finished(item, reader) for reader in self.readers)
                else "waiting",
                expires=None if item.expire_time_ms is None else item.expire_time_ms * 10**6,
            )
            for item in self.items
        ]


# -- figures over time ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """The buckets of a chart, and the last moment that the logs know of."""

    times_ns: Sequence[int]
    bucket_ns: int
    last_ns: int

    def count(self, moments: Iterable[int | None]) -> list[int]:
        counted = Counter(
            (each - self.times_ns[0]) // self.bucket_ns
            for each in moments
            if each is not None and each <= self.last_ns
        )
        return [counted[at] for at in range(len(self.times_ns))]

    def at_ends(self, holds: Callable[[int], int]) -> list[int]:
        """A number at the end of each bucket; of the last one, at the last moment."""
        return [holds(min(at + self.bucket_ns - 1, self.last_ns)) for at in self.times_ns]

    def percentiles(
        self, tries: Iterable[Try], length: Callable[[Try], int | None]
    ) -> dict[str, list[int | None]]:
        by_bucket = defaultdict(list)
        for each in tries:
            if each.started is not None:
                by_bucket[(each.started - self.times_ns[0]) // self.bucket_ns].append(length(each))
        return {
            name: [rounded_percentile(by_bucket[at], rank) for at in range(len(self.times_ns))]
            for name, rank in RANKS.items()
        }


def is_between(begin: int | None, moment: int, end: int | None) -> bool:
    return begin is not None and begin <= moment and (end is None or moment < end)
