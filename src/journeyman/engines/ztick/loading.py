"""A log -> a ZtickEngine, as it was when the log ended.

    ZtickLoader.add(record)      one record after another, of any kind
    ZtickLoader.add_jobs(...)    many rows about jobs at once, for logs of millions
    finish -> ZtickEngine     nothing is queued yet that was running when the log ended
    decide(Resume)               now it is, or has failed: records to write, runs to start

The last record of a job, and of a rule, is its state, as in journeyman.folds.ztick; the two must
agree (tests/property/test_ztick_engine.py). Jobs and rules are apart, so the order counts only
among jobs and among rules. Planned jobs of the same time become due in the order of their records.

A job whose last record says ``triggered`` was waiting or running when the process ended. How
far its run has come is unknown. By default it runs again, so every job runs at least once.
"""

from __future__ import annotations

from collections.abc import Sequence

from journeyman.engines.sharded_dict import ShardedDict
from journeyman.engines.ztick.engine import MAX_RUNS, ZtickEngine
from journeyman.engines.ztick.jobs import (
    HEAD_BYTES,
    REMOVED,
    STATUS_AT,
    Job,
    ZtickJobTable,
    order_of,
    pack_rows,
)
from journeyman.engines.ztick.messages import Resumed
from journeyman.engines.ztick.rules import RuleBook
from journeyman.formats.ztick import JobRemoved, JobSet, Record, RuleSet

NAMES_IN_NOTE = 10
GATHERED_JOBS = 512  # single ones are added in columns too: half the time


class ZtickLoader:
    """Takes the records of a log in order; ``finish`` ends it. Until then, every row about a job
    takes 8 bytes more than the jobs themselves."""

    __slots__ = ("_by_name", "_columns", "_rows", "_rules")

    def __init__(self) -> None:
        self._by_name: ShardedDict[str, Job] = ShardedDict()
        self._rows: list[Job | None] = []  # as they came; None: not the state of its job any more
        self._rules = RuleBook()
        self._columns: tuple[list[str], list[int], list[int]] = ([], [], [])  # not added yet

    def add(self, record: Record) -> None:
        if isinstance(record, JobSet):
            self._add_job(record.identifier, record.execution_ns, int(record.status))
        elif isinstance(record, JobRemoved):
            self._add_job(record.identifier, 0, REMOVED)
        else:
            self._rules.replace(record.identifier, record if isinstance(record, RuleSet) else None)

    def _add_job(self, identifier: str, execution_ns: int, status: int) -> None:
        identifiers, times, statuses = self._columns
        identifiers.append(identifier)
        times.append(execution_ns)
        statuses.append(status)
        if len(identifiers) >= GATHERED_JOBS:
            self._add_gathered()

    def _add_gathered(self) -> None:
        columns, self._columns = self._columns, ([], [], [])
        self._add_columns(*columns)

    def add_jobs(
        self, identifiers: Sequence[str], execution_ns: Sequence[int], statuses: Sequence[int]
    ) -> None:
        """Three columns of the log's rows about jobs, in order. The status of a removal is REMOVED,
        its time is not looked at."""
        self._add_gathered()  # they came before
        self._add_columns(identifiers, execution_ns, statuses)

    def _add_columns(
        self, identifiers: Sequence[str], execution_ns: Sequence[int], statuses: Sequence[int]
    ) -> None:
        places = range(len(self._rows), len(self._rows) + len(identifiers))
        self._add_packed(identifiers, pack_rows(execution_ns, places, statuses, identifiers))

    def add_heads(self, identifiers: Sequence[str], heads: bytes) -> None:
        """The same, with the heads of the jobs; their orders count on from the last one."""
        self._add_gathered()
        places = range(0, len(heads), HEAD_BYTES)
        jobs = [
            heads[place : place + HEAD_BYTES] + identifier.encode()
            for place, identifier in zip(places, identifiers, strict=True)
        ]
        self._add_packed(identifiers, jobs)

    def _add_packed(self, identifiers: Sequence[str], jobs: Sequence[Job]) -> None:
        self._rows += jobs
        rows, shard_of = self._rows, self._by_name.shard_of
        for identifier, job in zip(identifiers, jobs, strict=True):
            shard = shard_of(identifier)
            before = shard.setdefault(identifier, job)
            if before is not job:
                rows[order_of(before)] = None
                shard[identifier] = job
            if job[STATUS_AT] == REMOVED:
                rows[order_of(job)] = None
                del shard[identifier]

    def finish(self, *, max_runs: int = MAX_RUNS, retained: bool = False) -> ZtickEngine:
        """``Resume`` is to be decided before the first ``TriggerDue``. ``retained``: so that
        ``RemoveEnded`` can be."""
        self._add_gathered()
        # In the order of the log, which is that in memory: in any other order, going through
        # millions of jobs takes several times as long.
        jobs = [job for job in self._rows if job is not None]
        self._rows = []
        table = ZtickJobTable(self._by_name, jobs, retained=retained)
        return ZtickEngine(table, self._rules, max_runs=max_runs)


def notes(resumed: Resumed) -> tuple[str, ...]:
    """What is worth telling about the interrupted jobs: nothing, or a line or two."""
    told = (("run again", resumed.run_again), ("have failed", resumed.failed))
    return tuple(
        f"jobs that the last stop had cut off {fate} ({len(names)}): {_shown(names)}"
        for fate, names in told
        if names
    )


def _shown(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:NAMES_IN_NOTE]))
    more = len(names) - NAMES_IN_NOTE
    return f"{shown} and {more} more" if more > 0 else shown
