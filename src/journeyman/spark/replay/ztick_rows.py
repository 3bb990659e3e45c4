"""What a task makes of a bucket of ztick's last records: rows of jobs, or of rules."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from journeyman.columnar.arrays import Column, numbers_in
from journeyman.columnar.kernels.take import joined, rows_where
from journeyman.columnar.ztick.latest_jobs import LatestJobs
from journeyman.columnar.ztick.latest_rules import JOBS as LAST_OF_JOBS
from journeyman.columnar.ztick.latest_rules import RULES as LAST_OF_RULES
from journeyman.columnar.ztick.latest_rules import latest_rules
from journeyman.spark.replay.merging import PacketGroup, place_columns
from journeyman.spark.replay.packing import RUNNERS, STATUSES
from journeyman.spark.replay.ztick import JOBS, RULES
from journeyman.spark.source.packets import unpack

_JOB, _RULE = 0, 1  # the kinds of records that set something


def last_jobs(group: PacketGroup) -> pa.RecordBatch:
    """The last records of the jobs that there are, as columnar.latest has them."""
    batches = [unpack(each.packet, LAST_OF_JOBS) for each in group.packets]
    latest = LatestJobs(max(batch.num_rows for batch in batches))
    for batch in batches:
        latest.take(batch)
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
        *_places(group, rows),
        rows.column("identifier"),
        rows.column("execution_ns"),
        STATUSES.take(rows.column("status")),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=JOBS.names)


def rule_rows(group: PacketGroup) -> Iterator[pa.RecordBatch]:
    """Rows of the table of rules."""
    rows = last_rules(group)
    columns = [
        *_places(group, rows),
        rows.column("identifier"),
        rows.column("pattern"),
        RUNNERS.take(rows.column("runner")),
        rows.column("runner_args"),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=RULES.names)


def _places(group: PacketGroup, rows: pa.RecordBatch) -> list[Column]:
    positions, lengths = (numbers_in(rows.column(name)) for name in ("position", "length"))
    return place_columns(group, positions, lengths)
