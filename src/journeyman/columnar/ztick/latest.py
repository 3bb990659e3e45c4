"""The last record of each job or rule of a ztick log: what is left of millions of rows.

    rows     set a   set b   remove a   set b        what stands behind a removal still has to be
    latest                   remove a   set b        beaten: removals stay, as tombstones

A fold by last record may be done in parts: ``latest`` of a log is ``latest`` of the ``latest`` of
its parts, in any order, since every row says where it stood in the log.

Jobs are many and have one shape, so a kernel keeps what is known of each. Rules are few and have
many shapes; ``latest_rules`` finds the rows to be kept and leaves their columns to Arrow.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.columnar import arrays
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import Ints
from journeyman.columnar.kernels.key_table import Hashes, KeyTable

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
# The fields of a job. SMALL is length << 16 | kind << 8 | status.
_POSITION, _EXECUTION_NS, _SMALL = range(3)
_FIELDS = 3
_FIRST_JOBS = 1024


def latest_rules(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, Hashes]:
    """The last row of each rule, in the order of their first rows; and the hashes of the names."""
    keys = KeyTable()
    rules = keys.numbers_of(*arrays.text_in(batch.column(0)))
    last = np.zeros(len(keys), np.int64)
    _last_rows(rules, arrays.numbers_in(batch.column("position")), last)
    return arrays.rows_at(batch, last), keys.hashes


def jobs_and_rules(
    batch: pa.RecordBatch, first_position: int
) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
    """A decoded chunk as rows of JOBS and of RULES. None: no rules, as in most chunks.

    ``first_position`` is the position of offset 0 of the chunk's file.
    """
    is_rule = (arrays.numbers_in(batch.column("kind")) & 1).view(np.bool_)
    position = arrays.numbers(arrays.numbers_in(batch.column("offset")) + first_position)
    batch = batch.set_column(2, "position", position)
    if not is_rule.any():
        return _narrowed(batch, JOBS), None
    return (
        _narrowed(arrays.rows_where(batch, ~is_rule), JOBS),
        _narrowed(arrays.rows_where(batch, is_rule), RULES),
    )


def _narrowed(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = [batch.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class LatestJobs:
    """The last record of every job seen so far."""

    def __init__(self) -> None:
        self._keys = KeyTable()
        self._jobs = np.empty((0, _FIELDS), np.int64)

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def key_bytes(self) -> int:
        """The bytes of all identifiers together."""
        return self._keys.key_bytes

    @property
    def hashes(self) -> Hashes:
        """The hash of each identifier, in the order of ``batch``."""
        return self._keys.hashes

    def take(self, batch: pa.RecordBatch) -> None:
        """Rows of JOBS, in any order."""
        jobs = self._keys.numbers_of(*arrays.text_in(batch.column(0)))
        if len(self._keys) > len(self._jobs):
            room = max(_FIRST_JOBS, 1 << (len(self._keys) - 1).bit_length())
            grown = np.full((room, _FIELDS), -1, np.int64)
            grown[: len(self._jobs)] = self._jobs
            self._jobs = grown
        positions, lengths, kinds, executions_ns, statuses = map(
            arrays.numbers_in, batch.columns[1:]
        )
        small = lengths.astype(np.int64) << 16 | kinds.astype(np.int64) << 8 | statuses
        _keep_last(jobs, positions, executions_ns, small, self._jobs)

    def batch(self) -> pa.RecordBatch:
        """One row of JOBS for each, in the order of their first records."""
        ends, names = self._keys.keys()
        known = self._jobs[: len(self._keys)]
        small = known[:, _SMALL]
        columns = [
            arrays.binary(pa.string(), ends, names),
            arrays.numbers(known[:, _POSITION].copy()),
            arrays.numbers((small >> 16).astype(np.int32)),
            arrays.numbers((small >> 8 & 0xFF).astype(np.int8)),
            arrays.numbers(known[:, _EXECUTION_NS].copy()),
            arrays.numbers((small & 0xFF).astype(np.int8)),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=JOBS)


@kernel
def _last_rows(keys: Ints, positions: Ints, last: Ints) -> None:
    """Find for each key the row with the highest position; ``last`` begins with a row
    of any key."""
    seen = np.full(last.size, -1, np.int64)
    for row in range(keys.size):
        if positions[row] > seen[keys[row]]:
            seen[keys[row]] = positions[row]
            last[keys[row]] = row


@kernel
def _keep_last(
    keys: Ints, positions: Ints, executions_ns: Ints, small: Ints, jobs: npt.NDArray[np.int64]
) -> None:
    for row in range(keys.size):
        job = keys[row]
        if positions[row] > jobs[job, _POSITION]:
            jobs[job, _POSITION] = positions[row]
            jobs[job, _EXECUTION_NS] = executions_ns[row]
            jobs[job, _SMALL] = small[row]
