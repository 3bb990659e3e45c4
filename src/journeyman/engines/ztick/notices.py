r"""Notices: how an occurrence or a job of a rule ended, reported to people and other programs.

    a run fails for good ─┐
    missed, without rule ─┼─> notice: a job of its own   <owner>!failed@<now>   due now
    ``expect``            ├─>                            <name>!late@<time>     due if not in time
    ``check_in``         ─┘                              <name>!checkin@<now>   due now

    ledger   NoticeSet(job, {runner words, facts})  ...  NoticeSettled(job)
    log      JobSet planned, triggered, then executed; or planned again, up to NOTICE_RETRIES times

A notice is written in the batch that decides the failure, so it is as durable as the failure. It
runs, is retried, listed and removed like any job. A crash may leave less in the log than in the
ledger, which is written first: ``resume`` plans a notice again if the job that it is about has
ended; else that job runs again, and is reported again. The jobs of settled notices are removed.

The owner is the timetable, or the rule. An owner has at most MAX_OF_OWNER notices under way, and
all together MAX_NOTICES: what fails faster than that is known to fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from journeyman.engines.ztick import job_table, steps
from journeyman.engines.ztick.messages import StartRun
from journeyman.engines.ztick.timetables import AT, Occurrence
from journeyman.formats.ledger import NoticeSet, NoticeSettled, RunRetried
from journeyman.formats.timed_frame import Instant
from journeyman.formats.ztick import JobSet, Status
from journeyman.protocols.ztick.grammar import read_reporter
from journeyman.timetables.timetable import Timetable, TimetableBackoff
from journeyman.units import NS_PER_S

if TYPE_CHECKING:
    from journeyman.engines.ztick.state import ZtickState

NOTICE_RETRIES: Final = 12
MAX_OF_OWNER: Final = 500
MAX_NOTICES: Final = 20_000
MAX_OUTPUT_CHARS: Final = 2_000
OF_NOTICE: Final = "notice of "  # before the owner, where the rule of a run is named
LATE, CHECK_IN = "late", "checkin"
_BACKOFF = TimetableBackoff()  # 10 s, 20 s, ... up to an hour: over four hours in all
_ENDED_WELL, _ENDED_BADLY = "ok", "error"


def report_failure(
    state: ZtickState, job: job_table.Job, event: str, reason: str, output: str = ""
) -> None:
    """A job has failed for good, was missed, or has no rule: plan the notice that its timetable or
    rule asks for."""
    identifier = job_table.identifier_of(job)
    name = state.timetables.owner(identifier)
    timetable = None if name is None else _timetable(state, name)
    facts = {
        "event": event,
        "job": identifier,
        "execution": job_table.execution_ns_of(job),
        "reason": reason,
        "output": output[-MAX_OUTPUT_CHARS:],
    }
    if name is not None and timetable is not None:
        _settle_late(state, name, _label(name, identifier))
        _check_in(state, name, timetable, _ENDED_BADLY, facts)
        if timetable.options.on_failure:
            _plan(state, name, event, list(timetable.options.on_failure), facts)
            return
        if timetable.runner:
            return
    if state.timetables.rule_options and (rule := state.rules.match(identifier)) is not None:
        options = state.timetables.rule_options.get(rule.identifier)
        if options is not None and options.on_failure:
            _plan(state, rule.identifier, event, list(options.on_failure), facts)


def report_success(state: ZtickState, job: job_table.Job, name: str) -> None:
    """An occurrence of this timetable has succeeded."""
    timetable = _timetable(state, name)
    if timetable is not None and (timetable.expect_s or timetable.check_in):
        _settle_late(state, name, _label(name, job_table.identifier_of(job)))
        facts = {"job": job_table.identifier_of(job), "execution": job_table.execution_ns_of(job)}
        _check_in(state, name, timetable, _ENDED_WELL, facts)


def _check_in(
    state: ZtickState, name: str, timetable: Timetable, status: str, facts: Mapping[str, Any]
) -> None:
    if timetable.check_in:
        exit_code = "0" if status == _ENDED_WELL else "1"
        url = timetable.check_in.replace("{status}", status).replace("{exit_code}", exit_code)
        _plan(state, name, CHECK_IN, ["http", "GET", url], {**facts, "event": CHECK_IN})


def expect(state: ZtickState, name: str, timetable: Timetable, planned: Occurrence) -> None:
    """Plan the notice that this occurrence is late, to be removed when it is in time."""
    if not timetable.expect_s:
        return
    at_s = planned.at_s + timetable.jitter_s + timetable.expect_s
    facts = {
        "event": LATE,
        "job": planned.job(name),
        "execution": planned.at_s * NS_PER_S,
        "reason": f"it has not succeeded within {timetable.fields()['expect']}",
        "output": "",
    }
    identifier = _late(name, planned.label)
    _add(state, identifier, name, list(timetable.options.on_failure), facts, at_s * NS_PER_S)


def unexpect(state: ZtickState, name: str, planned: Occurrence) -> None:
    """The occurrence is not planned any more."""
    _settle_late(state, name, planned.label)


def forget(state: ZtickState, name: str) -> None:
    """The timetable is removed: no occurrence of it is late any more. Failures are reported."""
    for identifier, notice in list(state.timetables.notices.items()):
        if notice["owner"] == name and notice["facts"]["event"] == LATE:
            close_notice(state, identifier)


def due(state: ZtickState, job: job_table.Job) -> JobSet | None:
    """A notice is due; None: there is nothing to report any more."""
    identifier = job_table.identifier_of(job)
    notice = state.timetables.notices[identifier]
    facts = notice["facts"]
    is_first = job[job_table.STATUS_AT] == job_table.PLANNED and not state.timetables.retries(
        identifier
    )
    if facts["event"] == LATE and is_first:
        about = state.jobs.get(facts["job"])
        if about is None or about[job_table.STATUS_AT] == job_table.EXECUTED:
            close_notice(state, identifier)
            return None
    return _trigger(state, job, notice)


def _trigger(state: ZtickState, job: job_table.Job, notice: Mapping[str, Any]) -> JobSet:
    identifier, execution_ns, owner = (
        job_table.identifier_of(job),
        job_table.execution_ns_of(job),
        notice["owner"],
    )
    runner = read_reporter(notice["runner"])
    if isinstance(runner, str):  # written by a newer version
        close_notice(state, identifier, is_over=False)
        return steps.end(state, job, Status.FAILED)
    run_id = state.runs.next_id
    triggered = state.jobs.move(identifier, job, job_table.TRIGGERED, run_id)
    state.runs.add(
        triggered,
        StartRun(
            run_id,
            identifier,
            execution_ns,
            runner,
            f"{OF_NOTICE}{owner}",
            owner,
            facts={"owner": owner, **notice["facts"]},
        ),
    )
    return JobSet(identifier, execution_ns, Status.TRIGGERED)


def run_ended(state: ZtickState, identifier: str, *, success: bool) -> None:
    """The run of a notice has ended, and its job as well: try it again if it failed."""
    book = state.timetables
    attempt = book.retries(identifier) + 1
    if success or attempt > NOTICE_RETRIES:
        close_notice(state, identifier, is_over=False)
        return
    book.set_retries(identifier, attempt)
    state.ledger.append(RunRetried(Instant(state.now_ns), identifier, attempt))
    delay_ns = _BACKOFF.delay_s(attempt) * NS_PER_S
    steps.plan(state, identifier, state.now_ns + delay_ns)


def resume(state: ZtickState) -> None:
    """Repair, after a start, the notices whose last records the log has lost."""
    for identifier in state.timetables.take_settled_notices():
        steps.remove_unended(state, identifier)
    for identifier, notice in list(state.timetables.notices.items()):
        job = state.jobs.get(identifier)
        if job is None:
            about = state.jobs.get(notice["facts"]["job"])
            is_late = notice["facts"]["event"] == LATE
            if is_late or (
                about is not None
                and about[job_table.STATUS_AT] in (job_table.EXECUTED, job_table.FAILED)
            ):
                steps.plan(state, identifier, notice["due"])
            else:
                close_notice(state, identifier)
        elif job[job_table.STATUS_AT] == job_table.EXECUTED:
            close_notice(state, identifier)
        elif job[job_table.STATUS_AT] == job_table.FAILED:
            run_ended(state, identifier, success=False)


def close_notice(state: ZtickState, identifier: str, *, is_over: bool = True) -> None:
    """There is nothing more to report. ``is_over``: its planned job is removed, too."""
    if identifier not in state.timetables.notices:
        return
    state.timetables.set_notice(identifier, None)
    state.ledger.append(NoticeSettled(Instant(state.now_ns), identifier))
    steps.end_retries(state, identifier)
    if is_over:
        steps.remove_planned(state, identifier)


def _plan(
    state: ZtickState, owner: str, event: str, reporter: list[str], facts: Mapping[str, Any]
) -> None:
    identifier = steps.free_job(state, f"{owner}!{event}")
    _add(state, identifier, owner, reporter, facts, state.now_ns)


def _add(
    state: ZtickState,
    identifier: str,
    owner: str,
    reporter: list[str],
    facts: Mapping[str, Any],
    due_ns: int,
) -> None:
    book = state.timetables
    is_new = identifier not in book.notices
    if is_new and (book.notices_of(owner) >= MAX_OF_OWNER or len(book.notices) >= MAX_NOTICES):
        return
    body = {"owner": owner, "runner": reporter, "facts": dict(facts), "due": due_ns}
    book.set_notice(identifier, body)
    state.ledger.append(NoticeSet(Instant(state.now_ns), identifier, body))
    steps.plan(state, identifier, due_ns)


def _late(name: str, label: str) -> str:
    return f"{name}!{LATE}{AT}{label}"


def _settle_late(state: ZtickState, name: str, label: str) -> None:
    """An occurrence has ended, or is not planned any more; one that was reported late stays so."""
    identifier = _late(name, label)
    job = state.jobs.get(identifier)
    is_reported = bool(state.timetables.retries(identifier))
    if job is not None and job[job_table.STATUS_AT] == job_table.PLANNED and not is_reported:
        close_notice(state, identifier)


def _label(name: str, identifier: str) -> str:
    return identifier.removeprefix(f"{name}{AT}")


def _timetable(state: ZtickState, name: str) -> Timetable | None:
    read = state.timetables.read(name)
    return None if read is None else read.timetable
