"""What a task makes of a bucket of ztick's last records: rows of jobs, or of rules."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from journeyman.columnar.arrays import Column
from journeyman.columnar.latest import JOBS as LAST_OF_JOBS
from journeyman.columnar.latest import RULES as LAST_OF_RULES
from journeyman.columnar.latest import LatestJobs, latest_rules
from journeyman.columnar.picking import joined, rows_where
from journeyman.columnar.views import numbers_in
from journeyman.spark.packets import unpack
from journeyman.spark.replay.merging import Group, place_columns
from journeyman.spark.replay.ztick import JOBS, RULES
from journeyman.spark.replay.ztick_words import RUNNERS, STATUSES

__all__ = ["job_rows", "rule_rows"]

_JOB, _RULE = 0, 1  # the kinds of records that set something


def job_rows(group: Group) -> Iterator[pa.RecordBatch]:
    """Rows of the table of jobs."""
    latest = LatestJobs()
    for each in group.packets:
        latest.take(unpack(each.packet, LAST_OF_JOBS))
    rows = latest.batch()
    rows = rows_where(rows, numbers_in(rows.column("kind")) == _JOB)
    columns = [
        *_places(group, rows),
        rows.column("identifier"),
        rows.column("execution_ns"),
        STATUSES.take(rows.column("status")),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=JOBS.names)


def rule_rows(group: Group) -> Iterator[pa.RecordBatch]:
    """Rows of the table of rules."""
    rows, _ = latest_rules(joined([unpack(each.packet, LAST_OF_RULES) for each in group.packets]))
    rows = rows_where(rows, numbers_in(rows.column("kind")) == _RULE)
    columns = [
        *_places(group, rows),
        rows.column("identifier"),
        rows.column("pattern"),
        RUNNERS.take(rows.column("runner")),
        rows.column("runner_args"),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=RULES.names)


def _places(group: Group, rows: pa.RecordBatch) -> list[Column]:
    positions, lengths = (numbers_in(rows.column(name)) for name in ("position", "length"))
    return place_columns(group, positions, lengths)
