"""The state that all decisions of the schedule share, and how a batch of changes is taken back.

jobs, rules, timetables    what the log and the ledger say
runs                       which runs wait for a slot, and which are under way
now_ns, records, effects   of the command that is being decided
"""

from __future__ import annotations

from typing import Any, TypeAlias

from journeyman.engines.ztick import job_table, messages
from journeyman.engines.ztick.browsing import JobOrder
from journeyman.engines.ztick.rules import RuleBook
from journeyman.engines.ztick.timetables import TimetableBook
from journeyman.formats import ztick
from journeyman.formats.ledger import Record as LedgerRecord

_Waiting: TypeAlias = tuple[job_table.Job, messages.StartRun]
_Change: TypeAlias = tuple[dict[int, Any], int, object]  # the table, the run id, the earlier value


class RunQueue:
    """Runs of triggered jobs: which wait, which are under way.

    triggered --add--> waiting --start, in order, as slots are free--> running --finish--> ended
                          |
                          +--withdraw: the job was SET or removed--> dropped

    A run has a number of its own, counted from 1, because a job may get a new plan while a run of
    it is under way: the run keeps its slot until it ends, but its end no longer concerns the job.
    Waiting runs start in the order of their numbers. ``_first`` is the smallest number that can
    still be waiting, so a withdrawn run costs one look-up, and nothing is searched.
    """

    __slots__ = ("_changes", "_first", "_max_runs", "_next", "_running", "_saved", "_waiting")

    def __init__(self, max_runs: int) -> None:
        assert max_runs > 0
        self._max_runs = max_runs
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, job_table.Job] = {}
        self._first = 1
        self._next = 1
        self._changes: list[_Change] | None = None  # made by the open batch
        self._saved = (1, 1)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def next_id(self) -> int:
        """The id of the run that is added next."""
        return self._next

    def add(self, job: job_table.Job, effect: messages.StartRun) -> None:
        """Queue a run of a job that was triggered with ``next_id``."""
        run_id = self._next
        assert run_id == effect.run_id == job_table.order_of(job)
        self._note(self._waiting, run_id)
        self._waiting[run_id] = (job, effect)
        self._next = run_id + 1

    def start(self) -> tuple[messages.StartRun, ...]:
        """Give the free slots to the runs that have waited longest."""
        started = []
        while self._waiting and len(self._running) < self._max_runs:
            run_id = self._first
            self._first += 1
            if run_id not in self._waiting:
                continue
            self._note(self._waiting, run_id)
            self._note(self._running, run_id)
            self._running[run_id], effect = self._waiting.pop(run_id)
            started.append(effect)
        return tuple(started)

    def withdraw(self, run_id: int) -> bool:
        """The job of this run was SET or removed: it shall not start. Once started it goes on."""
        self._note(self._waiting, run_id)
        return self._waiting.pop(run_id, None) is not None

    def finish(self, run_id: int) -> job_table.Job | None:
        """Free the slot; the job as it was triggered. None if there is no such run."""
        self._note(self._running, run_id)
        return self._running.pop(run_id, None)

    def _note(self, table: dict[int, Any], run_id: int) -> None:
        if self._changes is not None:
            self._changes.append((table, run_id, table.get(run_id)))

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []
        self._saved = (self._first, self._next)

    def commit_batch(self) -> None:
        self._changes = None

    def undo_batch(self) -> None:
        for table, run_id, before in reversed(self._changes or ()):
            if before is None:
                table.pop(run_id, None)
            else:
                table[run_id] = before
        self._changes = None
        self._first, self._next = self._saved


class ZtickState:
    """The state that all decisions share: the parts, the time, and the outcome so far."""

    __slots__ = (
        "_job_order",
        "_rules_before",
        "effects",
        "jobs",
        "ledger",
        "now_ns",
        "overdue",
        "records",
        "rules",
        "runs",
        "timetables",
    )

    def __init__(
        self,
        jobs: job_table.ZtickJobTable,
        rules: RuleBook,
        timetables: TimetableBook,
        max_runs: int,
    ) -> None:
        self.jobs = jobs
        self.rules = rules
        self.timetables = timetables
        self.runs = RunQueue(max_runs)
        self.now_ns = 0
        self.records: list[ztick.Record | bytes] = []  # bytes: encoded already
        self.ledger: list[LedgerRecord] = []  # taken once a batch
        self.effects: tuple[messages.StartRun, ...] = ()
        self.overdue: job_table.Job | None = None  # planned jobs of the log below this are not run
        self._job_order: JobOrder | None = None  # after the first request
        # Replaced by the open batch, by id.
        self._rules_before: list[tuple[str, ztick.RuleSet | None]] = []

    def replace_rule(self, identifier: str, rule: ztick.RuleSet | None) -> ztick.RuleSet | None:
        """Put, or without a rule remove; what was there before."""
        before = self.rules.replace(identifier, rule)
        self._rules_before.append((identifier, before))
        return before

    def job_order(self) -> JobOrder:
        """Return the jobs in order; from the first call on the order is kept."""
        if self._job_order is None:
            self._job_order = self.jobs.watched_by(JobOrder)
        return self._job_order

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._rules_before.clear()
        self.jobs.begin_batch()
        self.runs.begin_batch()
        self.timetables.changes = []

    def commit_batch(self) -> None:
        self.jobs.commit_batch()
        self.runs.commit_batch()

    def undo_batch(self) -> None:
        self.ledger = []
        self.jobs.undo_batch()
        self.runs.undo_batch()
        self.timetables.undo_batch()
        while self._rules_before:
            self.rules.replace(*self._rules_before.pop())
