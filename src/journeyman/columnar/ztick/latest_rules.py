"""The last record of each job or rule of a ztick log: what is left of millions of rows.

    rows     set a   set b   remove a   set b        what stands behind a removal still has to be
    latest                   remove a   set b        beaten: removals stay, as tombstones

A fold by last record may be done in parts: ``latest`` of a log is ``latest`` of the ``latest`` of
its parts, in any order, since every row says where it stood in the log.

Jobs are in latest_jobs.py. Rules are few and have many shapes; ``latest_rules`` finds the rows to
be kept and leaves their columns to Arrow.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import numbers, numbers_in, text_in
from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.key_table import Hashes, KeyTable
from journeyman.columnar.kernels.take import rows_at, rows_where
from journeyman.columnar.kernels.write_bytes import Ints

_SHARED: list[tuple[str, pa.DataType]] = [
    ("identifier", pa.string()),
    ("position", pa.int64()),
    ("length", pa.int32()),
    ("kind", pa.int8()),  # the type byte: 0 job set, 1 rule set, 2 job removed, 3 rule removed
]
_JOB: list[tuple[str, pa.DataType]] = [
    ("execution_ns", pa.int64()),  # null or 0 when removed
    ("status", pa.int8()),
]
_RULE: list[tuple[str, pa.DataType]] = [
    ("pattern", pa.string()),  # null when removed
    ("runner", pa.int8()),
    ("runner_args", pa.list_(pa.string())),
]
JOBS = pa.schema(_SHARED + _JOB)
RULES = pa.schema(_SHARED + _RULE)


def latest_rules(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Hashes]:
    """The last row of each rule, in the order of their first rows; and the hashes of the names."""
    keys = KeyTable()
    rules = keys.numbers_of(*text_in(batch.column(0)))
    last = np.zeros(len(keys), np.int64)
    _last_rows(rules, numbers_in(batch.column("position")), last)
    return rows_at(batch, last), keys.hashes


def jobs_and_rules(
    batch: pa.RecordBatch, first_position: int
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """A decoded chunk as rows of JOBS and of RULES. None: no rules, as in most chunks.

    ``first_position`` is the position of offset 0 of the chunk's file.
    """
    is_rule = (numbers_in(batch.column("kind")) & 1).view(np.bool_)
    position = numbers(numbers_in(batch.column("offset")) + first_position)
    batch = batch.set_column(2, "position", position)
    if not is_rule.any():
        return _narrowed(batch, JOBS), None
    return (
        _narrowed(rows_where(batch, ~is_rule), JOBS),
        _narrowed(rows_where(batch, is_rule), RULES),
    )


def _narrowed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


@kernel
def _last_rows(keys: Ints, positions: Ints, last: Ints) -> None:
    """For each key the row with the highest position; ``last`` begins with a row of any key."""
    seen = np.full(last.size, -1, np.int64)
    for row in range(keys.size):
        if positions[row] > seen[keys[row]]:
            seen[keys[row]] = positions[row]
            last[keys[row]] = row
