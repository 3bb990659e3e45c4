r"""The life of a timetable's occurrences: planned one ahead, run, missed, held, tried again.

    TIMETABLE SET ──> next one planned ──due──> run it; plan the one after it, in the same batch
                            ^                   │
                            └───────────────────┘   ledger: done, planned     log: JobSet, JobSet

    due and                                          then
    ───────────────────────────────────────────────  ───────────────────────────────────────────
    busy, ``queue``                                  held: run when the run before has ended
    busy, ``skip``                                   skipped; the next is the first after now
    late, and ``none``                               missed; the next is the first after now
    later ones are due as well, and ``once``         missed; the next is the last of them
    later ones are due as well, and ``all``          run; the next is the one after it
    else                                             run; the next is the one after it

Skipped and missed jobs are failed, without a run. Held jobs stay planned. A run that failed and is
to be tried again plans its own job again, a little later; until then its timetable is busy.

What a crash leaves. The ledger is written first, so it may name an occurrence that the log does not
have: the check after a start plans it again, under the same id. An occurrence is never planned
twice, because the next one is always looked for after the last one that was decided, whatever the
clock says, and a job that has ended is never planned again.

The check (``sweep``) goes through all timetables, a few at a time, after a start and after the
clock was set back: is the job there, is it at the right moment by the zone's rules of today?
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from journeyman.engines.ztick import job_table, notices, steps
from journeyman.engines.ztick.messages import Missed, StartRun
from journeyman.engines.ztick.timetables import Occurrence, Read, TimetableRow, read_body
from journeyman.formats.ledger import RunRetried, TimetablePlanned, TimetableUnplanned
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick import JobRemoved, JobSet, Status
from journeyman.timetables.run_options import NO_OPTIONS
from journeyman.timetables.zones import wall_seconds
from journeyman.units import NS_PER_S

if TYPE_CHECKING:
    from journeyman.engines.ztick.state import ZtickState

OF_TIMETABLE = "timetable "  # before the name, where the rule of a run is named
SWEEP_NAMES = 100  # in one decision
SET_BACK_NS = 60 * NS_PER_S  # clocks that are set back by less are not worth a check
FAR_AHEAD_S = 366 * 86_400
MAX_TAKEN = 100  # so many occurrences in a row may have run already; then one runs again

MISSED = "missed: it was due while the server was not running, or much too late"
SUPERSEDED = "missed: a later occurrence was due as well"
OVERLAP = "skipped: the previous run has not ended"


# -- from status to status ---------------------------------------------------------------------


def trigger(state: ZtickState, job: job_table.Job) -> JobSet:
    """Queue a run, by the timetable that the job belongs to if it has a runner of its own, else by
    the rule that fits now; without one the job has failed."""
    identifier, execution_ns = job_table.identifier_of(job), job_table.execution_ns_of(job)
    name = state.timetables.owner(identifier)
    read = None if name is None else state.timetables.read(name)
    runner = None if read is None else read.runner
    by, owner = f"{OF_TIMETABLE}{name}", name or ""
    options = NO_OPTIONS if read is None else read.timetable.options
    if runner is None:
        rule = state.rules.match(identifier)
        if rule is None:
            return steps.end(state, job, Status.FAILED)
        runner, by, owner = rule.runner, rule.identifier, rule.identifier
        options = state.timetables.rule_options.get(rule.identifier, NO_OPTIONS)
    if name is not None:
        state.timetables.add_run(name, 1)
    run_id = state.runs.next_id
    triggered = state.jobs.move(identifier, job, job_table.TRIGGERED, run_id)
    start = StartRun(run_id, identifier, execution_ns, runner, by, owner, options)
    state.runs.add(triggered, start)
    return JobSet(identifier, execution_ns, Status.TRIGGERED)


# -- due -----------------------------------------------------------------------------------------


def due(state: ZtickState, job: job_table.Job, name: str) -> JobSet | Missed | None:
    """A job of a timetable is due: its record, or None if it is held or not wanted any more."""
    book, identifier = state.timetables, job_table.identifier_of(job)
    row = book.get(name)
    assert row is not None
    is_next = row.planned is not None and identifier == row.planned.job(name)
    read = read_body(row.body)
    if not is_next or read is None:
        is_alone = read is None or read.timetable.overlap == "allow" or not book.is_busy(name)
        if is_alone or book.retries(identifier):
            return trigger(state, job)
        book.hold(name, job)
        return None
    if row.paused:  # a crash came between the pause and the end of its job
        state.jobs.remove(identifier)
        state.records.append(JobRemoved(identifier))
        return None
    return _next_is_due(state, job, name, row, read)


def _next_is_due(
    state: ZtickState, job: job_table.Job, name: str, row: TimetableRow, read: Read
) -> JobSet | Missed | None:
    assert row.planned is not None
    book, timetable, at_s = state.timetables, read.timetable, row.planned.at_s
    now_s = state.now_ns // NS_PER_S
    following = _after(state, read, at_s)
    is_late = state.now_ns > job_table.execution_ns_of(job) + timetable.grace_s * NS_PER_S
    others_too = following is not None and following <= now_s
    if timetable.overlap != "allow" and book.is_busy(name):
        if timetable.overlap == "queue" or (timetable.catch_up == "all" and is_late):
            book.hold(name, job)
            return None
        return _pass_over(
            state, job, name, row, read, _after(state, read, max(at_s, now_s)), OVERLAP
        )
    if timetable.catch_up == "none" and (is_late or others_too):
        last = _last(state, read, at_s, now_s, 1)
        is_in_time = bool(last) and now_s - last[0] <= timetable.grace_s
        new = last[0] if is_in_time else _after(state, read, max(at_s, now_s))
        return _pass_over(state, job, name, row, read, new, MISSED)
    if timetable.catch_up == "once" and others_too:
        (new,) = _last(state, read, at_s, now_s, 1)
        return _pass_over(state, job, name, row, read, new, SUPERSEDED)
    if timetable.catch_up == "all" and others_too and at_s > book.catching_up.get(name, at_s - 1):
        missed = _last(state, read, at_s - 1, now_s, timetable.catch_up_limit)
        book.catching_up[name] = now_s
        if missed[0] > at_s:
            return _pass_over(state, job, name, row, read, missed[0], SUPERSEDED)
    return _run(state, job, name, row, read, following)


def _run(
    state: ZtickState,
    job: job_table.Job,
    name: str,
    row: TimetableRow,
    read: Read,
    following: int | None,
) -> JobSet:
    record = trigger(state, job)
    plan_next(state, name, row._replace(done=row.planned), read, following)
    return record


def _pass_over(
    state: ZtickState,
    job: job_table.Job,
    name: str,
    row: TimetableRow,
    read: Read,
    following: int | None,
    reason: str,
) -> Missed:
    record = steps.end(state, job, Status.FAILED)
    if reason == MISSED:
        notices.report_failure(state, job, "missed", reason)
    plan_next(state, name, row._replace(done=row.planned), read, following)
    return Missed(record, reason)


def plan_next(
    state: ZtickState, name: str, row: TimetableRow, read: Read, at_s: int | None
) -> TimetableRow:
    """Note what is done, and plan the occurrence at this moment, or none; the new row."""
    planned = None
    for _ in range(MAX_TAKEN):
        if at_s is None:
            planned = None
            break
        planned = Occurrence(at_s, read.occurrences.zone.offset_s(at_s))
        before = state.jobs.get(planned.job(name))
        if before is None or before[job_table.STATUS_AT] == job_table.PLANNED:
            break
        at_s = _after(state, read, at_s)
    new = row._replace(planned=planned)
    state.timetables.put(name, new)
    done = "" if new.done is None else new.done.label
    label = "" if planned is None else planned.label
    state.ledger.append(TimetablePlanned(Instant(state.now_ns), name, done, label))
    if planned is not None:
        identifier = planned.job(name)
        delay_ns = read.occurrences.delay_ns(name, planned.at_s)
        steps.plan(state, identifier, planned.at_s * NS_PER_S + delay_ns)
        notices.expect(state, name, read.timetable, planned)
    return new


def unplan(state: ZtickState, name: str, row: TimetableRow) -> None:
    """Take the planned occurrence out of the schedule, unless it has been triggered."""
    if row.planned is not None:
        steps.remove_planned(state, row.planned.job(name))
        notices.unexpect(state, name, row.planned)


def first_after_now(state: ZtickState, row: TimetableRow, read: Read) -> int | None:
    """The first occurrence of a new, changed or resumed timetable; never one that is done."""
    now_s = state.now_ns // NS_PER_S
    return _after(state, read, now_s if row.done is None else max(now_s, row.done.at_s))


def _after(state: ZtickState, read: Read, moment_s: int) -> int | None:
    state.timetables.steps += 1
    return read.occurrences.after(moment_s)


def _last(state: ZtickState, read: Read, after_s: int, until_s: int, count: int) -> list[int]:
    state.timetables.steps += 10 + 2 * count
    return read.occurrences.last(after_s, until_s, count)


# -- runs and jobs that end ----------------------------------------------------------------------


def run_ended(state: ZtickState, name: str) -> None:
    """A run of this timetable has ended, or is not to start any more."""
    state.timetables.add_run(name, -1)
    release(state, name)


def retry(state: ZtickState, identifier: str) -> bool:
    """The last run of this job has failed: try it again, if its timetable says so."""
    book = state.timetables
    name = book.owner(identifier)
    row = None if name is None else book.get(name)
    read = None if row is None else read_body(row.body)
    attempt = book.retries(identifier) + 1
    if read is None or attempt > read.timetable.retries:
        steps.end_retries(state, identifier)
        return False
    book.set_retries(identifier, attempt)
    state.ledger.append(RunRetried(Instant(state.now_ns), identifier, attempt))
    delay_ns = read.timetable.backoff.delay_s(attempt) * NS_PER_S
    steps.plan(state, identifier, state.now_ns + delay_ns)
    return True


def resume(state: ZtickState) -> None:
    """Repair, after a start, what the ledger knows and the log has lost. A job that has failed is
    planned again; one whose timetable was removed does not run."""
    for name, planned in state.timetables.take_orphans().items():
        if planned is not None:
            steps.remove_planned(state, planned.job(name))
        state.ledger.append(TimetableUnplanned(Instant(state.now_ns), name))
    for identifier, attempt in state.timetables.all_retries():
        job = state.jobs.get(identifier)
        status = None if job is None else job[job_table.STATUS_AT]
        if status == job_table.FAILED and state.timetables.owner(identifier) is not None:
            state.timetables.set_retries(identifier, attempt - 1)
            retry(state, identifier)
        elif status not in (job_table.PLANNED, job_table.TRIGGERED):
            steps.end_retries(state, identifier)


def release(state: ZtickState, name: str) -> None:
    """Run what was held, if nothing of the timetable is under way any more."""
    book = state.timetables
    while not book.is_busy(name) and (job := book.release(name)) is not None:
        if not state.jobs.holds(job) or job[job_table.STATUS_AT] != job_table.PLANNED:
            continue
        row = book.get(name)
        read = None if row is None else read_body(row.body)
        is_next = row is not None and row.planned is not None
        if (
            read is None
            or row is None
            or not is_next
            or job_table.identifier_of(job) != _next_job(name, row)
        ):
            state.records.append(trigger(state, job))
        elif not row.paused:
            assert row.planned is not None
            state.records.append(
                _run(state, job, name, row, read, _after(state, read, row.planned.at_s))
            )


def _next_job(name: str, row: TimetableRow) -> str:
    assert row.planned is not None
    return row.planned.job(name)


def removed(state: ZtickState, identifier: str, name: str) -> None:
    """A client has removed this job: if it was the next occurrence, there is another one."""
    row = state.timetables.get(name)
    steps.end_retries(state, identifier)
    if row is None or row.paused or row.planned is None or identifier != row.planned.job(name):
        return
    notices.unexpect(state, name, row.planned)
    read = read_body(row.body)
    if read is not None:
        moment_s = max(row.planned.at_s, state.now_ns // NS_PER_S)
        plan_next(state, name, row._replace(done=row.planned), read, _after(state, read, moment_s))


# -- the check after a start, and after the clock was set back ------------------------------------


def look_at_clock(state: ZtickState) -> None:
    """If the clock was set back, what was planned by the wrong time has to be looked at again."""
    book = state.timetables
    if state.now_ns < book.latest_ns - SET_BACK_NS:
        book.check_all()
        book.clock_was_wrong = True
        book.latest_ns = state.now_ns
    book.latest_ns = max(book.latest_ns, state.now_ns)


def sweep(state: ZtickState) -> None:
    for name in state.timetables.next_to_check(SWEEP_NAMES):
        row = state.timetables.get(name)
        if row is not None:
            _check(state, name, row)


def _check(state: ZtickState, name: str, row: TimetableRow) -> None:
    if row.paused:
        unplan(state, name, row)
        return
    if row.planned is None:
        if row.done is None and (read := read_body(row.body)) is not None:  # set, never planned
            plan_next(state, name, row, read, first_after_now(state, row, read))
        return
    job = state.jobs.get(row.planned.job(name))
    status = None if job is None else job[job_table.STATUS_AT]
    if status is not None and status != job_table.PLANNED:  # the ledger has lost what came after it
        read = read_body(row.body)
        if read is not None:
            following = _after(state, read, row.planned.at_s)
            plan_next(state, name, row._replace(done=row.planned), read, following)
    elif state.timetables.has_new_rules(row) or _may_be_nearer(state, row):
        _plan_again(state, name, row)
    elif job is None:
        read = read_body(row.body)
        if read is not None:
            plan_next(state, name, row, read, row.planned.at_s)


def _may_be_nearer(state: ZtickState, row: TimetableRow) -> bool:
    """Return whether it may have been planned while the clock was wrong. After a start only what is
    far ahead is worth the time to find out."""
    assert row.planned is not None
    least_s = 0 if state.timetables.clock_was_wrong else FAR_AHEAD_S
    return row.planned.at_s - state.now_ns // NS_PER_S > least_s


def _plan_again(state: ZtickState, name: str, row: TimetableRow) -> None:
    """Plan the next occurrence at the moment that is right by the rules and the clock of today."""
    read = read_body(row.body)
    if read is None:
        return
    assert row.planned is not None
    if state.timetables.has_new_rules(row):
        at_s = _by_new_rules(state, row.planned, row.done, read)
    else:
        at_s = first_after_now(state, row, read)
        if at_s == row.planned.at_s and state.jobs.get(row.planned.job(name)) is not None:
            return
    unplan(state, name, row)
    plan_next(state, name, row, read, at_s)


def _by_new_rules(
    state: ZtickState, planned: Occurrence, done: Occurrence | None, read: Read
) -> int | None:
    """When the wall shows now what it was to show then. That may be over: then it was missed."""
    wall = datetime.fromtimestamp(planned.at_s + planned.offset_s, UTC).replace(tzinfo=None)
    start_s = min(read.occurrences.zone.first_moment(wall), planned.at_s) - 1
    if done is None:
        return _after(state, read, start_s)
    at_s = _after(state, read, max(start_s, done.at_s))
    if at_s is not None and _is_the_same_wall(read, done, at_s):
        return _after(state, read, at_s)
    return at_s


def _is_the_same_wall(read: Read, done: Occurrence, at_s: int) -> bool:
    """Return whether this is what was done already, at the offset that the zone had then."""
    zone = read.occurrences.zone
    return (
        wall_seconds(zone.wall(at_s)) == done.at_s + done.offset_s
        and zone.offset_s(done.at_s) != done.offset_s
    )
