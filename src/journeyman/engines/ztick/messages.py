"""What goes into a ZtickEngine besides the commands of clients, and what comes out of it.

a client's command, or TriggerDue, RunFinished, Resume  -->  ZtickOutcome(records, reply, effects)

records   to be written and synced, in this order, before anything else happens
reply     what to answer; nouns, not bytes: each protocol words them in its own way
effects   runs to start, in this order, once the records are durable

Set SetRule                  DONE
TriggerDue                   DONE, NotRun if some of what was due is not run
Remove RemoveRule            DONE, JobNotFound, RuleNotFound
Get                          ScheduledJobState, JobNotFound
PageJobs                     JobPage, StillSorting
Query                        JobListing        ListRules   RuleListing
Stat                         ZtickStats     Resume      Resumed
RunFinished                  RunEnded, or None for an unknown run
each command of a client     OUT_OF_SCOPE, if it reaches beyond the client's namespace
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from journeyman.engines.ztick.browsing import JobPage, StillSorting
from journeyman.engines.ztick.jobs import JobListing
from journeyman.formats.ztick import JobSet, Record, RuleSet, Runner, Status

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
    """A run has ended. ``detail`` is for the server's own log; nothing depends on it."""

    run_id: int
    success: bool
    detail: str = ""


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
    rule: str = field(default="", compare=False)  # whose runner it is; only reported


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


@dataclass(frozen=True, slots=True)
class ZtickStats:
    """What the engine knows of STAT; the server knows the rest."""

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
class NotRun:
    """Due, and failed without a run: for want of a rule, or overdue when the process started."""

    without_rule: tuple[JobSet, ...]
    skipped: tuple[JobSet, ...]


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
)

DONE = Accepted()
OUT_OF_SCOPE = OutOfScope()


class ZtickOutcome(NamedTuple):
    """A named tuple because one is made for every command."""

    records: tuple[Record, ...]
    reply: Reply | None
    effects: tuple[StartRun, ...]
