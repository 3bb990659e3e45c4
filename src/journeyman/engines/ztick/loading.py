"""A log -> a ZtickEngine, as it was when the log ended.

    ZtickLoader.add(record)      one record after another, of any kind
    ZtickLoader.add_jobs(...)    many rows about jobs at once
    ZtickLoader.add_sharded(...) the same, sorted by shard, for logs of millions
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
from itertools import islice, pairwise

from journeyman.engines.sharded_dict import ShardedDict
from journeyman.engines.ztick import job_table
from journeyman.engines.ztick.engine import MAX_RUNS, ZtickEngine
from journeyman.engines.ztick.messages import Resumed
from journeyman.engines.ztick.rules import RuleBook
from journeyman.formats.ztick import JobRemoved, JobSet, Record, RuleSet

NAMES_IN_NOTE = 10
GATHERED_JOBS = 512  # single ones are added in columns too: half the time


class ZtickLoader:
    """Takes the records of a log in order; ``finish`` ends it."""

    __slots__ = ("_by_name", "_columns", "_has_removals", "_row_count", "_rules")

    bulk_arguments = ()  # the bulk reader needs to know no more than the files

    def __init__(self) -> None:
        self._by_name: ShardedDict[str, job_table.Job] = ShardedDict()
        self._row_count = 0  # about jobs; each has its number as its order
        self._has_removals = False  # some jobs are REMOVED, and still to be taken out
        self._rules = RuleBook()
        self._columns: tuple[list[str], list[int], list[int]] = ([], [], [])  # not added yet

    def add(self, record: Record) -> None:
        if isinstance(record, JobSet):
            self._add_job(record.identifier, record.execution_ns, int(record.status))
        elif isinstance(record, JobRemoved):
            self._add_job(record.identifier, 0, job_table.REMOVED)
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
        orders = range(self._row_count, self._row_count + len(identifiers))
        jobs = job_table.pack_rows(execution_ns, orders, statuses, identifiers)
        for identifier, job in zip(identifiers, jobs, strict=True):
            self._by_name.shard_of(identifier)[identifier] = job
        self._row_count += len(jobs)
        self._has_removals |= job_table.REMOVED in statuses

    def add_sharded(self, rows: job_table.ShardedRows) -> None:
        """Add jobs that are packed already; their orders count on from the last one."""
        self._add_gathered()
        jobs = [rows.jobs[begin:end] for begin, end in pairwise(rows.ends)]
        names = (
            [*map(job_table.identifier_of, jobs)] if rows.names is None else rows.names.split("\n")
        )
        named = zip(names, jobs, strict=True)
        for number, count in enumerate(rows.counts):
            if count:
                self._by_name.numbered(number).update(islice(named, count))
        self._row_count += len(jobs)
        self._has_removals |= rows.has_removals

    def finish(self, *, max_runs: int = MAX_RUNS, retained: bool = False) -> ZtickEngine:
        """``Resume`` is to be decided before the first ``TriggerDue``. ``retained``: so that
        ``RemoveEnded`` can be."""
        self._add_gathered()
        jobs = [*self._by_name.values()]
        if self._has_removals:
            for job in jobs:
                if job[job_table.STATUS_AT] == job_table.REMOVED:
                    identifier = job_table.identifier_of(job)
                    del self._by_name.shard_of(identifier)[identifier]
            jobs = [job for job in jobs if job[job_table.STATUS_AT] != job_table.REMOVED]
        table = job_table.ZtickJobTable(self._by_name, jobs, self._row_count, retained=retained)
        return ZtickEngine(table, self._rules, max_runs=max_runs)


def notes(resumed: Resumed) -> tuple[str, ...]:
    """Messages about interrupted jobs: none, or a line or two."""
    told = (("run again", resumed.run_again), ("have failed", resumed.failed))
    return tuple(
        f"jobs that the last stop had cut off {fate} ({len(names)}): {_list_names(names)}"
        for fate, names in told
        if names
    )


def _list_names(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:NAMES_IN_NOTE]))
    more = len(names) - NAMES_IN_NOTE
    return f"{shown} and {more} more" if more > 0 else shown
