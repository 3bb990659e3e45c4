"""The memory of LatestJobs, a line a job; and how lines become columns, bucket after bucket."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.columnar.arrays import binary, numbers
from journeyman.columnar.kernels.copying import Ints, copy_span
from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.read_bytes import Bytes
from journeyman.columnar.ztick.latest_rules import JOBS

# What is known of a job. SMALL is length << 16 | kind << 8 | status.
HASH, KEY_LOW, KEY_HIGH, KEY_END, KEY_LENGTH, POSITION, EXECUTION_NS, SMALL = range(8)
WORDS = 8
_LINE_BYTES = 64


def lines(jobs: int) -> npt.NDArray[np.int64]:
    """Room for so many, each in a line of memory of its own."""
    room = np.empty((jobs + 1) * WORDS, np.int64)
    first = -room.ctypes.data % _LINE_BYTES // room.itemsize
    return room[first : first + jobs * WORDS].reshape(jobs, WORDS)


def rows_of(jobs: Ints, count: int, arena: Bytes, buckets: int) -> tuple[pa.RecordBatch, list[int]]:
    """Rows of JOBS, bucket after bucket; and where those of each begin, and the last ones end.

    Buckets are those of key_table.buckets_of. Inside of each, jobs keep their order.
    """
    key_bytes = int(jobs[count - 1, KEY_END]) if count else 0
    bits = buckets.bit_length() - 1
    starts, key_starts = np.zeros((2, buckets + 1), np.int64)
    _measure_buckets(jobs, count, bits, starts[1:], key_starts[1:])
    starts, key_starts = starts.cumsum(), key_starts.cumsum()
    ends, keys = np.zeros(count + 1, np.int32), np.empty(key_bytes, np.uint8)
    positions, executions_ns = np.empty((2, count), np.int64)
    lengths = np.empty(count, np.int32)
    kinds, statuses = np.empty((2, count), np.int8)
    _lay_out(
        jobs,
        count,
        arena,
        bits,
        starts.copy(),
        key_starts,
        ends,
        keys,
        positions,
        lengths,
        kinds,
        executions_ns,
        statuses,
    )
    columns = [
        binary(pa.string(), ends, keys),
        numbers(positions),
        numbers(lengths),
        numbers(kinds),
        numbers(executions_ns),
        numbers(statuses),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=JOBS), starts.tolist()


@kernel
def _bucket(jobs: Ints, number: int, bits: int) -> int:
    """The upper bits of its hash; of no bits the only bucket there is."""
    return int(np.uint64(jobs[number, HASH]) >> np.uint64(63 - bits) >> np.uint64(1))


@kernel
def _measure_buckets(jobs: Ints, count: int, bits: int, rows: Ints, key_bytes: Ints) -> None:
    for number in range(count):
        bucket = _bucket(jobs, number, bits)
        rows[bucket] += 1
        key_bytes[bucket] += jobs[number, KEY_LENGTH]


@kernel
def _lay_out(
    jobs: Ints,
    count: int,
    arena: Bytes,
    bits: int,
    next_row: Ints,
    next_key: Ints,
    ends: Ints,
    keys: Bytes,
    positions: Ints,
    lengths: Ints,
    kinds: Ints,
    executions_ns: Ints,
    statuses: Ints,
) -> None:
    """All jobs as columns, each in the row that is next in its bucket."""
    for number in range(count):
        bucket = _bucket(jobs, number, bits)
        row, length = next_row[bucket], jobs[number, KEY_LENGTH]
        end = copy_span(arena, jobs[number, KEY_END] - length, length, keys, next_key[bucket])
        ends[row + 1] = end
        positions[row] = jobs[number, POSITION]
        executions_ns[row] = jobs[number, EXECUTION_NS]
        small = jobs[number, SMALL]
        lengths[row], kinds[row], statuses[row] = small >> 16, small >> 8 & 0xFF, small & 0xFF
        next_row[bucket], next_key[bucket] = row + 1, end
