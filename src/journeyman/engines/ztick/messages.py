"""The messages to a ZtickEngine besides the commands of clients, and those that it returns.

a client's command, or TriggerDue, RunFinished, Resume, RemoveEnded
    -->  ZtickOutcome(records, reply, effects)

records   to be written and synced, in this order, before anything else happens
reply     what to answer; nouns, not bytes: each protocol words them in its own way
effects   runs to start, in this order, once the records are durable

Set SetRule RemoveEnded      DONE
TriggerDue                   DONE, NotRun if some of what was due is not run
Remove RemoveRule            DONE, JobNotFound, RuleNotFound
Get                          ScheduledJobState, JobNotFound
PageJobs                     JobPage, StillSorting
PageRules PageTimetables     RuleListing, TimetableListing
Query                        JobListing        ListRules   RuleListing
Stat                         ZtickStats     Resume      Resumed
RunFinished                  RunEnded, or None for an unknown run
SetTimetable ...             DONE, TimetableNotFound, TimetableRefused, and what was asked for
each command of a client     OUT_OF_SCOPE, if it reaches beyond the client's namespace
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from journeyman.engines.sorted_set import StillSorting
from journeyman.engines.ztick.browsing import JobPage
from journeyman.engines.ztick.job_table import JobListing
from journeyman.formats.ztick import JobSet, RuleSet, Runner, Status
from journeyman.timetables import Firing
from journeyman.timetables.run_options import NO_OPTIONS, RunOptions

Ended: TypeAlias = Literal[Status.EXECUTED, Status.FAILED]

# A few milliseconds of work at a million jobs.
DUE_LIMIT = 500


# -- in ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TriggerDue:
    """Trigger what is due now, at most ``limit`` jobs. If more are, ``next_due_ns`` says so."""

    limit: int = DUE_LIMIT


@dataclass(frozen=True, slots=True)
class RunFinished:
    """A run has ended. ``detail`` and ``output`` are for people; they are part of a notice."""

    run_id: int
    success: bool
    detail: str = ""
    output: str = ""


@dataclass(frozen=True, slots=True)
class RemoveEnded:
    """Remove jobs that had ended, and were due, before this time: at most ``limit``."""

    before_ns: int
    limit: int


@dataclass(frozen=True, slots=True)
class Resume:
    """See to what the last process left: jobs that were triggered, run again or not; and whether
    those run that became due while there was no process."""

    rerun: bool = True
    skip_overdue: bool = False  # planned jobs of the log whose time is past already: not run


# -- out -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartRun:
    """Run the job; answer with RunFinished(run_id, ...) when it has ended, however it did."""

    run_id: int
    identifier: str
    execution_ns: int
    runner: Runner
    # The rule or timetable of the runner, for messages.
    rule: str = field(default="", compare=False)
    owner: str = field(default="", compare=False)  # identifier of that rule or timetable
    options: RunOptions = field(default=NO_OPTIONS, compare=False)
    facts: Mapping[str, Any] | None = field(default=None, compare=False)  # the subject of a notice


@dataclass(frozen=True, slots=True)
class Accepted:
    pass


@dataclass(frozen=True, slots=True)
class OutOfScope:
    """The client's namespace does not cover what the command is about."""


@dataclass(frozen=True, slots=True)
class JobNotFound:
    identifier: str


@dataclass(frozen=True, slots=True)
class Reserved:
    """The log itself uses identifiers like this one."""

    identifier: str


@dataclass(frozen=True, slots=True)
class RuleNotFound:
    identifier: str


@dataclass(frozen=True, slots=True)
class ScheduledJobState:
    status: Status
    execution_ns: int


@dataclass(frozen=True, slots=True)
class RuleListing:
    """The rules as of one moment."""

    rules: tuple[RuleSet, ...]
    options: Mapping[str, RunOptions] = field(default_factory=dict)  # by rule, of those with some


@dataclass(frozen=True, slots=True)
class ZtickStats:
    """The part of STAT that the engine knows; the server adds the rest."""

    jobs_total: int
    jobs_planned: int
    jobs_triggered: int
    jobs_executed: int
    jobs_failed: int
    rules_total: int
    executions_pending: int  # triggered, waiting for a slot
    executions_inflight: int  # running, also if the job has been SET or removed since


@dataclass(frozen=True, slots=True)
class RunEnded:
    """``status`` is the job's new one; None if it was SET or removed during the run."""

    identifier: str
    status: Ended | None


@dataclass(frozen=True, slots=True)
class Missed:
    """An occurrence of a timetable that was due and is not run, and why."""

    job: JobSet
    reason: str


@dataclass(frozen=True, slots=True)
class NotRun:
    """Due, and failed without a run: for want of a rule, overdue when the process started, or by
    the choice of a timetable."""

    without_rule: tuple[JobSet, ...]
    skipped: tuple[JobSet, ...]
    missed: tuple[Missed, ...] = ()


@dataclass(frozen=True, slots=True)
class TimetableNotFound:
    identifier: str


@dataclass(frozen=True, slots=True)
class TimetableRefused:
    reason: str


@dataclass(frozen=True, slots=True)
class TimetableView:
    """A timetable and where it stands; times are local, with their offset, or empty."""

    identifier: str
    state: Literal["active", "paused", "ended"]
    fields: dict[str, Any]  # see journeyman.timetables
    next_ns: int | None  # when the planned occurrence is due, with its jitter
    next: str
    last: str  # the last occurrence that was run, missed or skipped
    running: int
    waiting: int  # due, and waiting for a run to end


@dataclass(frozen=True, slots=True)
class TimetableListing:
    """The timetables as of one moment, in slices; ``running`` and ``waiting`` are not counted."""

    slices: Iterator[list[TimetableView]]


@dataclass(frozen=True, slots=True)
class TimetableRun:
    """The job that was planned for now."""

    identifier: str


@dataclass(frozen=True, slots=True)
class NextFirings:
    firings: tuple[Firing, ...]


@dataclass(frozen=True, slots=True)
class BackfillItem:
    """An occurrence of the past: the status of its job, and whether it is run (again)."""

    identifier: str
    execution_ns: int
    status: Status | None
    is_run: bool


@dataclass(frozen=True, slots=True)
class Backfilled:
    rows: tuple[BackfillItem, ...]


@dataclass(frozen=True, slots=True)
class Resumed:
    """The jobs that a stop had cut off, by time."""

    run_again: tuple[str, ...]
    failed: tuple[str, ...]


Reply: TypeAlias = (
    Accepted
    | OutOfScope
    | JobNotFound
    | Reserved
    | RuleNotFound
    | ScheduledJobState
    | JobListing
    | JobPage
    | StillSorting
    | RuleListing
    | ZtickStats
    | RunEnded
    | NotRun
    | Resumed
    | TimetableNotFound
    | TimetableRefused
    | TimetableView
    | TimetableListing
    | TimetableRun
    | NextFirings
    | Backfilled
)

DONE = Accepted()
OUT_OF_SCOPE = OutOfScope()


class ZtickOutcome(NamedTuple):
    """A named tuple because one is made for every command."""

    records: tuple[Any, ...]  # each a Record, or the bytes of one: encoded while it was decided
    reply: Reply | None
    effects: tuple[StartRun, ...]
