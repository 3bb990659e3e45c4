"""What all decisions of the schedule share: the parts of the state, the moment, and the outcome.

jobs, rules, runs      see jobs.py, rules.py, runs.py
now_ns                 the moment of the decision
records, effects       what it has come to so far
overdue                planned jobs of the log below this are not run
"""

from __future__ import annotations

from journeyman.engines.ztick.job import Job
from journeyman.engines.ztick.jobs import ScheduledJobTable
from journeyman.engines.ztick.messages import StartRun
from journeyman.engines.ztick.rules import RuleBook
from journeyman.engines.ztick.runs import RunQueue
from journeyman.formats.ztick import Record


class ZtickState:
    """See the module's docstring. The decisions are functions that take it."""

    __slots__ = ("effects", "jobs", "now_ns", "overdue", "records", "rules", "runs")

    def __init__(self, jobs: ScheduledJobTable, rules: RuleBook, max_runs: int) -> None:
        self.jobs = jobs
        self.rules = rules
        self.runs = RunQueue(max_runs)
        self.now_ns = 0
        self.records: list[Record] = []
        self.effects: tuple[StartRun, ...] = ()
        self.overdue: Job | None = None

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        for part in (self.jobs, self.rules, self.runs):
            part.begin_batch()

    def commit_batch(self) -> None:
        for part in (self.jobs, self.rules, self.runs):
            part.commit_batch()

    def undo_batch(self) -> None:
        for part in (self.jobs, self.rules, self.runs):
            part.undo_batch()
