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
- Every change of a job has its record. Whatever stands in the log, a schedule that is loaded from
  it runs nothing that has ended, and loses nothing that was planned.
- A SET or REMOVE wins over a run of the job that is under way: that run's end is not recorded.
- Time is an argument. The same commands at the same times give the same records.

Identifiers and times must be such that a record can hold them; protocols see to that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from journeyman.engines.ztick import (
    job_table,
    messages,
    notices,
    occurrences,
    steps,
    timetable_commands,
)
from journeyman.engines.ztick.browsing import PageJobs, PageRules, PageTimetables, narrowed
from journeyman.engines.ztick.occurrences import trigger
from journeyman.engines.ztick.rules import RuleBook
from journeyman.engines.ztick.state import ZtickState
from journeyman.engines.ztick.timetables import TimetableBook
from journeyman.formats import ztick
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.ledger import RuleOptionsRemoved, RuleOptionsSet
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick.codec import encode_planned, is_reserved
from journeyman.protocols.ztick import commands
from journeyman.timetables.run_options import NO_OPTIONS

NO_RULE = "no rule matches"  # the reasons of jobs that failed without a run, for people
OVERDUE = "it was due while the server was not running"
CUT_OFF = "the server stopped during the run"
MAX_RUNS = 64
MAX_STEPS = 20_000  # in the search for rules, in one decision: a few milliseconds
MAX_MOMENTS = 300  # computed for timetables in one decision: about ten milliseconds
EVERYTHING = "*"  # the namespace that covers all identifiers; any other is a prefix of them

Pages: TypeAlias = PageJobs | PageRules | PageTimetables
Decidable: TypeAlias = (
    commands.Command
    | Pages
    | messages.TriggerDue
    | messages.RunFinished
    | messages.Resume
    | messages.RemoveEnded
)

# -- clients: each of them is given the prefix of its namespace --


def _set(state: ZtickState, command: commands.Set, prefix: str) -> messages.Reply:
    identifier, execution_ns = command.identifier, command.execution_ns
    if not identifier.startswith(prefix):
        return messages.OUT_OF_SCOPE
    if is_reserved(identifier):
        return messages.Reserved(identifier)
    before = state.jobs.plan(identifier, execution_ns)
    state.records.append(ztick.JobSet(identifier, execution_ns, _PLANNED))
    if before is not None:
        _withdraw(state, identifier, before)
    return messages.DONE


def _set_many(state: ZtickState, command: commands.SetMany, prefix: str) -> messages.Reply:
    """Set each job as ``_set`` does; their records are encoded here, once."""
    assert not prefix, "a client of one namespace may be refused some of them"
    rows = [(identifier, int(time)) for _, identifier, time in command.rows]
    for identifier, before in state.jobs.plan_many(rows):
        _withdraw(state, identifier, before)
    state.records += [encode_planned(*row) for row in rows]
    return messages.DONE


def _withdraw(state: ZtickState, identifier: str, before: job_table.Job) -> None:
    """The job is not what it was: a run that waits for it does not start."""
    name = state.timetables.owner(identifier)
    if name is not None:
        steps.end_retries(state, identifier)
    if (
        before[job_table.STATUS_AT] == job_table.TRIGGERED
        and state.runs.withdraw(job_table.order_of(before))
        and name is not None
    ):
        occurrences.run_ended(state, name)


def _get(state: ZtickState, command: commands.Get, prefix: str) -> messages.Reply:
    identifier = command.identifier
    if not identifier.startswith(prefix):
        return messages.OUT_OF_SCOPE
    job = state.jobs.get(identifier)
    if job is None:
        return messages.JobNotFound(identifier)
    return messages.ScheduledJobState(
        ztick.Status(job[job_table.STATUS_AT]), job_table.execution_ns_of(job)
    )


def _remove(state: ZtickState, command: commands.Remove, prefix: str) -> messages.Reply:
    identifier = command.identifier
    if not identifier.startswith(prefix):
        return messages.OUT_OF_SCOPE
    if is_reserved(identifier):
        return messages.Reserved(identifier)
    before = state.jobs.remove(identifier)
    if before is None:
        return messages.JobNotFound(identifier)
    state.records.append(ztick.JobRemoved(identifier))
    _withdraw(state, identifier, before)
    notices.close_notice(state, identifier)
    if (name := state.timetables.owner(identifier)) is not None:
        occurrences.removed(state, identifier, name)
    return messages.DONE


def _query(state: ZtickState, command: commands.Query, prefix: str) -> messages.Reply:
    return state.jobs.listing(narrowed(command.prefix, prefix))


def _page(state: ZtickState, command: PageJobs, prefix: str) -> messages.Reply:
    return state.job_order().page(command, prefix)


def _count(state: ZtickState, *_: object) -> messages.ZtickStats:
    planned, triggered, executed, failed = state.jobs.counts
    return messages.ZtickStats(
        jobs_total=planned + triggered + executed + failed,
        jobs_planned=planned,
        jobs_triggered=triggered,
        jobs_executed=executed,
        jobs_failed=failed,
        rules_total=len(state.rules),
        executions_pending=state.runs.waiting,
        executions_inflight=state.runs.running,
    )


def _set_rule(state: ZtickState, command: commands.SetRule, prefix: str) -> messages.Reply:
    # The pattern too: a rule must not catch the jobs of others.
    if not (command.identifier.startswith(prefix) and command.pattern.startswith(prefix)):
        return messages.OUT_OF_SCOPE
    rule = ztick.RuleSet(command.identifier, command.pattern, command.runner)
    if command.options != NO_OPTIONS:
        if (reason := timetable_commands.refusal(state.timetables, rule.identifier)) is not None:
            return messages.TimetableRefused(reason)
        body = command.options.fields()
        state.ledger.append(RuleOptionsSet(Instant(state.now_ns), rule.identifier, body))
        state.timetables.set_rule_options(rule.identifier, command.options)
    else:
        _remove_rule_options(state, rule.identifier)
    state.replace_rule(rule.identifier, rule)
    state.records.append(rule)
    return messages.DONE


def _remove_rule_options(state: ZtickState, identifier: str) -> None:
    if identifier in state.timetables.rule_options:
        state.ledger.append(RuleOptionsRemoved(Instant(state.now_ns), identifier))
        state.timetables.set_rule_options(identifier, None)


def _remove_rule(state: ZtickState, command: commands.RemoveRule, prefix: str) -> messages.Reply:
    identifier = command.identifier
    if not identifier.startswith(prefix):
        return messages.OUT_OF_SCOPE
    if state.replace_rule(identifier, None) is None:
        return messages.RuleNotFound(identifier)
    _remove_rule_options(state, identifier)
    state.records.append(ztick.RuleRemoved(identifier))
    return messages.DONE


def _list_rules(state: ZtickState, _: commands.ListRules, prefix: str) -> messages.Reply:
    return _rule_listing(state, tuple(state.rules.listing(prefix)))


def _page_rules(state: ZtickState, command: PageRules, prefix: str) -> messages.Reply:
    longer = narrowed(command.prefix, prefix)
    found = () if longer is None else state.rules.page(longer, command.after, command.limit)
    return _rule_listing(state, found)


def _rule_listing(state: ZtickState, rules: tuple[ztick.RuleSet, ...]) -> messages.RuleListing:
    all_options = state.timetables.rule_options
    names = [rule.identifier for rule in rules if rule.identifier in all_options]
    return messages.RuleListing(rules, {name: all_options[name] for name in names})


# -- time and runs --


def _trigger_due(state: ZtickState, command: messages.TriggerDue, _: str) -> messages.Reply:
    without_rule: list[ztick.JobSet] = []
    skipped: list[messages.Missed] = []
    missed: list[messages.Missed] = []
    book, later = state.timetables, list[job_table.Job]()
    first_new = state.jobs.next_order
    occurrences.look_at_clock(state)
    occurrences.sweep(state)
    enough, enough_moments = state.rules.steps + MAX_STEPS, book.steps + MAX_MOMENTS
    for job in state.jobs.take_due(state.now_ns, command.limit):
        if (
            job_table.order_of(job) >= first_new
        ):  # planned here: if the log is not written, it is not there
            later.append(job)
            continue
        name = book.owner(job_table.identifier_of(job)) if book.total else None
        record: ztick.JobSet | messages.Missed | None
        if job_table.identifier_of(job) in book.notices:
            record = notices.due(state, job)
        elif name is not None:
            record = occurrences.due(state, job, name)
        elif state.overdue is not None and _is_overdue(job, state.overdue):
            record = messages.Missed(steps.end(state, job, ztick.Status.FAILED), "")
            notices.report_failure(state, job, "missed", OVERDUE)
        else:
            record = trigger(state, job)
        if isinstance(record, messages.Missed):
            (missed if record.reason else skipped).append(record)
            record = record.job
        elif record is not None and record.status is ztick.Status.FAILED:
            without_rule.append(record)
            notices.report_failure(state, job, "failed", NO_RULE)
        if record is not None:
            state.records.append(record)
        if state.rules.steps >= enough or book.steps >= enough_moments:
            break  # next_due_ns shows that there are more
    state.jobs.put_off(later)
    state.effects = state.runs.start()
    if without_rule or skipped or missed:
        overdue = tuple(each.job for each in skipped)
        return messages.NotRun(tuple(without_rule), overdue, tuple(missed))
    return messages.DONE


def _is_overdue(job: job_table.Job, bound: job_table.Job) -> bool:
    """Return whether the job is as the log had it, and its time was past when the process
    started.
    """
    return job[:8] <= bound[:8] and job_table.order_of(job) < job_table.order_of(bound)


def _finish_run(state: ZtickState, command: messages.RunFinished, _: str) -> messages.Reply | None:
    job = state.runs.finish(command.run_id)
    if job is None:
        return None
    status: messages.Ended | None = None
    identifier, name = (
        job_table.identifier_of(job),
        state.timetables.counted(job_table.identifier_of(job)),
    )
    if state.jobs.holds(job):
        status = ztick.Status.EXECUTED if command.success else ztick.Status.FAILED
        state.records.append(steps.end(state, job, status))
        if identifier in state.timetables.notices:
            notices.run_ended(state, identifier, success=command.success)
        elif not command.success:
            if name is None or not occurrences.retry(state, identifier):
                notices.report_failure(state, job, "failed", command.detail, command.output)
        elif name is not None:
            steps.end_retries(state, identifier)
            notices.report_success(state, job, name)
    if name is not None:
        occurrences.run_ended(state, name)
    state.effects = state.runs.start()
    return messages.RunEnded(identifier, status)


def _remove_ended(state: ZtickState, command: messages.RemoveEnded, _: str) -> messages.Reply:
    """Remove jobs that have ended, by ordinary removals. Their runs stay in the history."""
    ended = state.jobs.ended
    for job in () if ended is None else ended.take(command.before_ns, command.limit):
        identifier = job_table.identifier_of(job)
        state.jobs.remove(identifier)
        state.records.append(ztick.JobRemoved(identifier))
    return messages.DONE


def _resume(state: ZtickState, command: messages.Resume, _: str) -> messages.Reply:
    """Queue the interrupted jobs again. They are triggered in the log, so only those that have
    failed are written."""
    state.timetables.check_all()
    notices.resume(state)
    occurrences.resume(state)
    if command.skip_overdue:
        state.overdue = state.jobs.present_bound(state.now_ns)
    run_again: list[str] = []
    failed: list[str] = []
    interrupted, state.jobs.interrupted = state.jobs.interrupted, ()
    for job in filter(state.jobs.holds, interrupted):
        if job_table.identifier_of(job) in state.timetables.notices:
            notices.due(state, job)
            continue
        record = (
            trigger(state, job) if command.rerun else steps.end(state, job, ztick.Status.FAILED)
        )
        if record.status is ztick.Status.FAILED:
            failed.append(record.identifier)
            state.records.append(record)
            is_owned = state.timetables.owner(record.identifier) is not None
            if not (is_owned and occurrences.retry(state, record.identifier)):
                notices.report_failure(state, job, "failed", NO_RULE if command.rerun else CUT_OFF)
        else:
            run_again.append(record.identifier)
    state.effects = state.runs.start()
    return messages.Resumed(tuple(run_again), tuple(failed))


_DECISIONS: dict[type, Callable[[ZtickState, Any, str], messages.Reply | None]] = {
    commands.Set: _set,
    commands.SetMany: _set_many,
    commands.Get: _get,
    commands.Remove: _remove,
    commands.Query: _query,
    PageJobs: _page,
    commands.Stat: _count,
    commands.SetRule: _set_rule,
    commands.RemoveRule: _remove_rule,
    commands.ListRules: _list_rules,
    PageRules: _page_rules,
    messages.TriggerDue: _trigger_due,
    messages.RunFinished: _finish_run,
    messages.Resume: _resume,
    messages.RemoveEnded: _remove_ended,
    **timetable_commands.DECISIONS,
}

_PLANNED = ztick.Status.PLANNED  # to look a member up takes its time
_outcome = tuple.__new__  # a third of the time of ZtickOutcome(...), and one is made every time


class ZtickEngine:
    """Jobs, rules and runs, and what is to happen next. Loaded ones: see loading.py."""

    __slots__ = ("_in_batch", "_state", "timetables")

    def __init__(
        self,
        jobs: job_table.ZtickJobTable | None = None,
        rules: RuleBook | None = None,
        *,
        max_runs: int = MAX_RUNS,
    ) -> None:
        jobs = job_table.ZtickJobTable() if jobs is None else jobs
        rules = RuleBook() if rules is None else rules
        self.timetables = TimetableBook()
        self._state = ZtickState(jobs, rules, self.timetables, max_runs)
        self._in_batch = False

    def decide(
        self, command: Decidable, now_ns: int, namespace: str = EVERYTHING
    ) -> messages.ZtickOutcome:
        """Apply the command of a client with this namespace, or what the server itself submits."""
        state = self._state
        state.now_ns = now_ns
        prefix = "" if namespace == EVERYTHING else namespace
        reply = _DECISIONS[type(command)](state, command, prefix)
        records, effects = state.records, state.effects
        if records:
            state.records = []
        if effects:
            state.effects = ()
        return _outcome(messages.ZtickOutcome, (tuple(records), reply, effects))

    def next_due_ns(self) -> int | None:
        """When to decide ``TriggerDue`` next, at times early; None: not before another SET."""
        if self.timetables.is_to_check:
            return 0  # at once
        return self._state.jobs.next_due_ns()

    def first_ended_ns(self) -> int | None:
        """No job has ended before this time that ``RemoveEnded`` could remove; None: none has."""
        ended = self._state.jobs.ended
        return None if ended is None else ended.first_ns()

    def last_ended(self) -> str | None:
        """The job that ended last, for a mark in the ledger."""
        ended = self._state.jobs.ended
        job = None if ended is None else ended.last()
        return None if job is None else job_table.identifier_of(job)

    def bound_ended(self, marks: Mapping[str, int], now_ns: int) -> None:
        """Note once, after loading, the times at which jobs of the log had ended."""
        jobs = self._state.jobs
        if jobs.ended is not None:
            known = [(jobs.get(name), time_ns) for name, time_ns in marks.items()]
            places = [
                (job_table.order_of(job), at)
                for job, at in known
                if job is not None and job_table.has_ended(job)
            ]
            jobs.ended.bound(sorted(places), job_table.order_of, now_ns)

    @property
    def runner_kinds(self) -> set[type]:
        """The kinds of runners that rules name or have named."""
        return self._state.rules.runner_kinds

    def overdue(self, now_ns: int) -> int:
        """How many planned jobs have had their time already. Looks at all of them."""
        return self._state.jobs.count_due(now_ns)

    def stats(self) -> messages.ZtickStats:
        return _count(self._state)

    def listing(self, prefix: str) -> job_table.JobListing:
        """The jobs whose identifier begins with ``prefix``, in slices."""
        return self._state.jobs.listing(prefix)

    def take_ledger(self) -> list[LedgerRecord]:
        """The ledger records decided since the last call, for the same batch."""
        ledger = self._state.ledger
        if ledger:
            self._state.ledger = []
        return ledger

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """Begin a batch, which can be taken back as a whole."""
        assert not self._in_batch
        self._in_batch = True
        self._state.begin_batch()

    def commit_batch(self) -> None:
        """The records of the batch are durable."""
        assert self._in_batch
        self._in_batch = False
        self._state.commit_batch()

    def undo_batch(self) -> None:
        """The records could not be written: be as if the batch had never been. Nothing that it
        gave out may be used: no reply, no effect, no listing."""
        assert self._in_batch
        self._in_batch = False
        self._state.undo_batch()
