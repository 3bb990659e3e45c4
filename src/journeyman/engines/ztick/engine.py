"""The schedule decides: state + command + time -> records, reply, effects.

                   SET, in every status                        the records that say so
                          |                                    ------------------------
                          v      due, a rule matches           JobSet(PLANNED)
                    +-----------+       +-----------+          JobSet(TRIGGERED)
                    |  planned  | ----> | triggered |          JobSet(EXECUTED)
                    +-----------+       +-----------+          JobSet(FAILED)
                          |              |         |           JobRemoved: REMOVE, in every status
    due, no rule, overdue |    run fails |         | run succeeds
                          v              v         v
                        +------------------+  +----------+
                        |      failed      |  | executed |
                        +------------------+  +----------+

- What is decided is applied at once. Records are to be durable before the reply leaves and before
  an effect is done; if they cannot be written, ``undo_batch`` takes back all since ``begin_batch``.
- Every change of a job has its record. Whatever stands in the log, a Schedule that is loaded from
  it runs nothing that has ended, and loses nothing that was planned.
- A SET or REMOVE wins over a run of the job that is under way: that run's end is not recorded.
- Time is an argument. The same commands at the same times give the same records.

Identifiers and times must be such that a record can hold them; protocols see to that.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from journeyman.engines.sharded_dict import JobListing
from journeyman.engines.ztick.job import (
    FAILED,
    STATUS_AT,
    TRIGGERED,
    Job,
    execution_ns_of,
    identifier_of,
    order_of,
)
from journeyman.engines.ztick.jobs import ScheduledJobTable
from journeyman.engines.ztick.messages import (
    DONE,
    OUT_OF_SCOPE,
    Ended,
    JobNotFound,
    NotRun,
    Reserved,
    Resume,
    Resumed,
    RuleListing,
    RuleNotFound,
    RunEnded,
    RunFinished,
    ScheduledJobState,
    ScheduleStats,
    StartRun,
    TriggerDue,
    ZtickOutcome,
)
from journeyman.engines.ztick.rules import RuleBook
from journeyman.engines.ztick.runs import RunQueue
from journeyman.formats.ztick import JobRemoved, JobSet, RuleRemoved, RuleSet, Status
from journeyman.formats.ztick.seals import is_reserved
from journeyman.protocols.ztick.commands import (
    Command,
    Get,
    ListRules,
    Query,
    Remove,
    RemoveRule,
    Set,
    SetRule,
    Stat,
)

MAX_RUNS = 64
MAX_STEPS = 20_000  # of the search for rules, in one decision: a few milliseconds
EVERYTHING = "*"  # the namespace that covers all identifiers; any other is a prefix of them

Decidable: TypeAlias = Command | TriggerDue | RunFinished | Resume

_DENIED = ZtickOutcome((), OUT_OF_SCOPE, ())


class ScheduleEngine:
    """Jobs, rules and runs, and what is to happen next. Loaded ones: see loading.py."""

    __slots__ = ("_in_batch", "_jobs", "_overdue", "_rules", "_runs")

    def __init__(
        self,
        jobs: ScheduledJobTable | None = None,
        rules: RuleBook | None = None,
        *,
        max_runs: int = MAX_RUNS,
    ) -> None:
        self._jobs = ScheduledJobTable() if jobs is None else jobs
        self._rules = RuleBook() if rules is None else rules
        self._runs = RunQueue(max_runs)
        self._in_batch = False
        self._overdue: Job | None = None  # planned jobs of the log below this are not run

    def next_due_ns(self) -> int | None:
        """When to decide ``TriggerDue`` next, at times early; None: not before another SET."""
        return self._jobs.next_due_ns()

    def overdue(self, now_ns: int) -> int:
        """How many planned jobs have had their time already. Looks at all of them."""
        return self._jobs.count_due(now_ns)

    def stats(self) -> ScheduleStats:
        planned, triggered, executed, failed = self._jobs.counts
        return ScheduleStats(
            jobs_total=planned + triggered + executed + failed,
            jobs_planned=planned,
            jobs_triggered=triggered,
            jobs_executed=executed,
            jobs_failed=failed,
            rules_total=len(self._rules),
            executions_pending=self._runs.waiting,
            executions_inflight=self._runs.running,
        )

    def decide(self, command: Decidable, now_ns: int, namespace: str = EVERYTHING) -> ZtickOutcome:
        """Apply the command of a client with this namespace, or what the server itself submits."""
        prefix = "" if namespace == EVERYTHING else namespace
        match command:
            case Set():
                return self._set(command, prefix)
            case Get():
                return self._get(command, prefix)
            case RunFinished():
                return self._finished(command)
            case TriggerDue():
                return self._due(command, now_ns)
            case Remove():
                return self._remove(command, prefix)
            case Query():
                return ZtickOutcome((), self._query(command, prefix), ())
            case Stat():
                return ZtickOutcome((), self.stats(), ())
            case ListRules():
                return ZtickOutcome((), RuleListing(tuple(self._rules.listing(prefix))), ())
            case SetRule():
                return self._set_rule(command, prefix)
            case RemoveRule():
                return self._remove_rule(command, prefix)
            case Resume():
                return self._resume(command, now_ns)
        assert_never(command)

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """From here on everything can be taken back."""
        assert not self._in_batch
        self._in_batch = True
        for part in (self._jobs, self._rules, self._runs):
            part.begin_batch()

    def commit_batch(self) -> None:
        """The records of the batch are durable."""
        assert self._in_batch
        self._in_batch = False
        for part in (self._jobs, self._rules, self._runs):
            part.commit_batch()

    def undo_batch(self) -> None:
        """The records could not be written: be as if the batch had never been. Nothing that it
        gave out may be used: no reply, no effect, no listing."""
        assert self._in_batch
        self._in_batch = False
        for part in (self._jobs, self._rules, self._runs):
            part.undo_batch()

    # -- clients ---------------------------------------------------------------------------------

    def _set(self, command: Set, prefix: str) -> ZtickOutcome:
        identifier, execution_ns = command.identifier, command.execution_ns
        if not identifier.startswith(prefix):
            return _DENIED
        if is_reserved(identifier):
            return ZtickOutcome((), Reserved(identifier), ())
        before = self._jobs.plan(identifier, execution_ns)
        if before is not None and before[STATUS_AT] == TRIGGERED:
            self._runs.withdraw(order_of(before))
        return ZtickOutcome((JobSet(identifier, execution_ns, Status.PLANNED),), DONE, ())

    def _get(self, command: Get, prefix: str) -> ZtickOutcome:
        identifier = command.identifier
        if not identifier.startswith(prefix):
            return _DENIED
        job = self._jobs.get(identifier)
        if job is None:
            return ZtickOutcome((), JobNotFound(identifier), ())
        return ZtickOutcome((), ScheduledJobState(Status(job[STATUS_AT]), execution_ns_of(job)), ())

    def _remove(self, command: Remove, prefix: str) -> ZtickOutcome:
        identifier = command.identifier
        if not identifier.startswith(prefix):
            return _DENIED
        if is_reserved(identifier):
            return ZtickOutcome((), Reserved(identifier), ())
        before = self._jobs.remove(identifier)
        if before is None:
            return ZtickOutcome((), JobNotFound(identifier), ())
        if before[STATUS_AT] == TRIGGERED:
            self._runs.withdraw(order_of(before))
        return ZtickOutcome((JobRemoved(identifier),), DONE, ())

    def _query(self, command: Query, prefix: str) -> JobListing:
        """Both prefixes must fit, so one must begin with the other."""
        longer, shorter = sorted((command.prefix, prefix), key=len, reverse=True)
        return self._jobs.listing(longer if longer.startswith(shorter) else None)

    def _set_rule(self, command: SetRule, prefix: str) -> ZtickOutcome:
        # The pattern too: a rule must not catch the jobs of others.
        if not (command.identifier.startswith(prefix) and command.pattern.startswith(prefix)):
            return _DENIED
        rule = RuleSet(command.identifier, command.pattern, command.runner)
        self._rules.put(rule)
        return ZtickOutcome((rule,), DONE, ())

    def _remove_rule(self, command: RemoveRule, prefix: str) -> ZtickOutcome:
        identifier = command.identifier
        if not identifier.startswith(prefix):
            return _DENIED
        if not self._rules.remove(identifier):
            return ZtickOutcome((), RuleNotFound(identifier), ())
        return ZtickOutcome((RuleRemoved(identifier),), DONE, ())

    # -- time and runs ---------------------------------------------------------------------------

    def _due(self, command: TriggerDue, now_ns: int) -> ZtickOutcome:
        skipped: list[JobSet] = []
        records: list[JobSet] = []
        enough = self._rules.steps + MAX_STEPS
        for job in self._jobs.take_due(now_ns, command.limit):
            if self._overdue is not None and self._is_overdue(job):
                record = self._end(job, Status.FAILED)
                skipped.append(record)
            else:
                record = self._trigger(job)
            records.append(record)
            if self._rules.steps >= enough:
                break  # next_due_ns tells that there are more
        failed = [record for record in records if record.status is Status.FAILED]
        effects = self._runs.start()
        if not failed:
            return ZtickOutcome(tuple(records), DONE, effects)
        without_rule = tuple(record for record in failed if record not in skipped)
        return ZtickOutcome(tuple(records), NotRun(without_rule, tuple(skipped)), effects)

    def _is_overdue(self, job: Job) -> bool:
        """Whether the job is as the log had it, and its time was past when the process started."""
        bound = self._overdue
        assert bound is not None
        return job[:8] <= bound[:8] and order_of(job) < order_of(bound)

    def _trigger(self, job: Job) -> JobSet:
        """Queue a run by the rule that fits now; without one the job has failed."""
        identifier, execution_ns = identifier_of(job), execution_ns_of(job)
        rule = self._rules.match(identifier)
        if rule is None:
            self._jobs.move(identifier, job, FAILED)
            return JobSet(identifier, execution_ns, Status.FAILED)
        run_id = self._runs.next_id
        triggered = self._jobs.move(identifier, job, TRIGGERED, run_id)
        effect = StartRun(run_id, identifier, execution_ns, rule.runner, rule.identifier)
        self._runs.add(triggered, effect)
        return JobSet(identifier, execution_ns, Status.TRIGGERED)

    def _end(self, job: Job, status: Ended) -> JobSet:
        identifier = identifier_of(job)
        self._jobs.move(identifier, job, int(status))
        return JobSet(identifier, execution_ns_of(job), status)

    def _finished(self, command: RunFinished) -> ZtickOutcome:
        job = self._runs.finish(command.run_id)
        if job is None:
            return ZtickOutcome((), None, ())
        if self._jobs.holds(job):
            status: Ended = Status.EXECUTED if command.success else Status.FAILED
            record = self._end(job, status)
            return ZtickOutcome((record,), RunEnded(record.identifier, status), self._runs.start())
        return ZtickOutcome((), RunEnded(identifier_of(job), None), self._runs.start())

    def _resume(self, command: Resume, now_ns: int) -> ZtickOutcome:
        """Queue the interrupted jobs again. They are triggered in the log, so only those that
        have failed are written."""
        if command.skip_overdue:
            self._overdue = self._jobs.present_bound(now_ns)
        run_again: list[str] = []
        failed: list[JobSet] = []
        interrupted, self._jobs.interrupted = self._jobs.interrupted, ()
        for job in filter(self._jobs.holds, interrupted):
            record = self._trigger(job) if command.rerun else self._end(job, Status.FAILED)
            if record.status is Status.FAILED:
                failed.append(record)
            else:
                run_again.append(record.identifier)
        reply = Resumed(tuple(run_again), tuple(record.identifier for record in failed))
        return ZtickOutcome(tuple(failed), reply, self._runs.start())
