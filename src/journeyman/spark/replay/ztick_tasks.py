"""The tasks of a replay of ztick logs: find the last record of each job and each rule.

    before the shuffle   30,000,000 records of 1,000,000 jobs --> at most 1,000,000 rows a task, in
                         packets: the option ``reduce=latest``
    behind it            the last of these in each bucket --> rows of jobs, or of rules

Jobs go through a table in memory (LatestJobs). When that is full, its jobs go out as packets and it
begins again; a job may then be in several packets, which the merge sorts out, as it does for those
of other tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from journeyman.columnar.arrays import joined, numbers_in, rows_where
from journeyman.columnar.kernels.key_table import buckets_of
from journeyman.columnar.ztick.latest import JOBS as LAST_OF_JOBS
from journeyman.columnar.ztick.latest import RULES as LAST_OF_RULES
from journeyman.columnar.ztick.latest import LatestJobs, jobs_and_rules, latest_rules
from journeyman.spark.replay import STATE_TABLES, PacketGroup, place_columns
from journeyman.spark.source.options import ZTICK_WORDS
from journeyman.spark.source.packets import (
    Combiner,
    by_bucket,
    pack,
    unpack,
)
from journeyman.spark.source.pieces import SplitContext

_TABLES: Final = STATE_TABLES["ztick"]
_STATUSES, _RUNNERS = (pa.array(ZTICK_WORDS[name]) for name in ("status", "runner"))
JOBS_TABLE: Final = "jobs"
RULES_TABLE: Final = "rules"

_MAX_JOBS: Final = 2_000_000  # held; about 100 bytes each
_MAX_KEY_BYTES: Final = 256 * 1024 * 1024
_MAX_RULES: Final = 500_000


class ZtickCombiner(Combiner):
    """Makes packets of one log."""

    def __init__(self, context: SplitContext) -> None:
        super().__init__(context)
        self._jobs = LatestJobs()
        self._rules: list[pa.RecordBatch] = []

    def _keep(self, batch: pa.RecordBatch, first_position: int) -> None:
        jobs, rules = jobs_and_rules(batch, first_position)
        if rules is not None:
            self._rules.append(rules)
        self._jobs.take(jobs)

    def finish(self) -> Iterator[pa.RecordBatch]:
        if self._rules:
            rules, hashes = latest_rules(joined(self._rules))
            self._rules = []
            found = by_bucket(rules, buckets_of(hashes, self._buckets))
            yield from pack(self._source, RULES_TABLE, found)
        buckets = buckets_of(self._jobs.hashes, self._buckets)
        yield from pack(self._source, JOBS_TABLE, by_bucket(self._jobs.batch(), buckets))
        self._jobs = LatestJobs()

    def _is_full(self) -> bool:
        rules = sum(batch.num_rows for batch in self._rules)
        is_large = len(self._jobs) > _MAX_JOBS or self._jobs.key_bytes > _MAX_KEY_BYTES
        return is_large or rules > _MAX_RULES


_JOB, _RULE = 0, 1  # the kinds of records that set something


def last_jobs(group: PacketGroup) -> pa.RecordBatch:
    """The last records of the jobs that there are, as columnar.ztick.latest has them."""
    latest = LatestJobs()
    for each in group.packets:
        latest.take(unpack(each.packet, LAST_OF_JOBS))
    rows = latest.batch()
    return rows_where(rows, numbers_in(rows.column("kind")) == _JOB)


def last_rules(group: PacketGroup) -> pa.RecordBatch:
    """The last records of the rules that there are."""
    rows, _ = latest_rules(joined([unpack(each.packet, LAST_OF_RULES) for each in group.packets]))
    return rows_where(rows, numbers_in(rows.column("kind")) == _RULE)


def job_rows(group: PacketGroup) -> Iterator[pa.RecordBatch]:
    """Rows of the table of jobs."""
    rows = last_jobs(group)
    columns = [
        *place_columns(group, rows),
        rows.column("identifier"),
        rows.column("execution_ns"),
        _STATUSES.take(rows.column("status")),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=_TABLES["jobs"].schema.names)


def rule_rows(group: PacketGroup) -> Iterator[pa.RecordBatch]:
    """Rows of the table of rules."""
    rows = last_rules(group)
    columns = [
        *place_columns(group, rows),
        rows.column("identifier"),
        rows.column("pattern"),
        _RUNNERS.take(rows.column("runner")),
        rows.column("runner_args"),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=_TABLES["rules"].schema.names)
