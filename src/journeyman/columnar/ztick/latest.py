"""The last record of every job of a ztick log, looked up by its identifier as fast as can be.

    index    upper half of hash, number + 1        a power of two of entries, at most half full
    jobs     hash | first 16 bytes of the identifier | end and length in the arena |
             position | execution_ns | length, kind, status        one line of memory a job
    arena    mail.1sync.7mail.2                     all identifiers, end to end

A replay is thirty look-ups a job, in no order, so what it costs is waiting for memory. Some rows
are therefore looked up together, step by step: all hashes, all entries of the index, all jobs; and
each step has the lines fetched that the next one needs. A hash proves nothing: in the end all bytes
of the identifiers are compared, and where the first guess was wrong, or the job is new, it is
looked up once more, one entry after another.

``take_bytes`` reads a log without making rows of it: plain jobs and removals. Seals
are stepped over. It stops where the decoder has to be asked.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.columnar.arrays import (
    as_bytes,
    binary,
    numbers,
    numbers_in,
    rows_at,
    rows_where,
    text_in,
)
from journeyman.columnar.chunks import checked_offset
from journeyman.columnar.kernels import kernel
from journeyman.columnar.kernels.byte_access import (
    Bytes,
    Ints,
    big_i64,
    big_u16,
    copy_span,
    prefetch,
    u8,
)
from journeyman.columnar.kernels.key_table import (
    INLINE_BYTES,
    Hashes,
    KeyTable,
    first_bytes,
    hash_of,
    is_same,
)
from journeyman.columnar.seals import ZTICK_SEAL_BYTES, is_ztick_seal
from journeyman.columnar.ztick.decode import plain_end
from journeyman.formats.framing import Buffer
from journeyman.formats.ztick.layout import HEAD, JOB, JOB_TAIL, LENGTH

# ----------------------------------------
# The last record of each job or rule of a ztick log: what is left of millions of rows.
#
#     rows     set a   set b   remove a   set b        what stands behind a removal still has to be
#     latest                   remove a   set b        beaten: removals stay, as tombstones
#
# A fold by last record may be done in parts: ``latest`` of a log is ``latest`` of the ``latest``
# of its parts, in any order, since every row says where it stood in the log.
#
# Rules are few and have many shapes; ``latest_rules`` finds the rows
# to be kept and leaves their columns to Arrow.

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


_FIRST_JOBS = 1000  # at least; then as many as are expected
_KEY_BYTES = 16  # of an identifier, as a first guess
_NEVER = -1

_ROWS = 256  # looked up together
# What is known of such a row.
_AT, _ID, _ID_LENGTH, _ROW_HASH, _NUMBER = range(5)
_ROW_WORDS = 5

_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFF_FFFF)
_NONE = np.uint64(0)
_LENGTH_BYTES = LENGTH.size
_HEAD_BYTES = HEAD.size
_JOB_TAIL_BYTES = JOB_TAIL.size


class LatestJobs:
    """The last record of every job seen so far."""

    def __init__(self, expected: int = 0) -> None:
        room = 1 << max(_FIRST_JOBS, expected - 1).bit_length()
        self._index = np.zeros(2 * room, np.uint64)
        self._jobs = lines(room)
        self._arena = np.empty(room * _KEY_BYTES, np.uint8)
        self._count = 0
        self._scratch = np.empty((_ROW_WORDS, _ROWS), np.int64)
        self.rows = 0  # taken in so far

    def __len__(self) -> int:
        return self._count

    @property
    def key_bytes(self) -> int:
        """The bytes of all identifiers together."""
        return int(self._jobs[self._count - 1, KEY_END]) if self._count else 0

    def take(self, batch: pa.RecordBatch) -> None:
        """Rows of JOBS, in any order."""
        offsets, values = text_in(batch.column(0))
        positions, lengths, kinds, executions_ns, statuses = map(numbers_in, batch.columns[1:])
        row = 0
        while row < batch.num_rows:
            row, self._count, needed = _take_rows(
                offsets,
                values,
                positions,
                lengths,
                kinds,
                executions_ns,
                statuses,
                row,
                *self._memory(),
                self._count,
            )
            self._make_room(needed)
        self.rows += batch.num_rows

    def take_bytes(self, data: Buffer, offset: int, target: int, first_position: int) -> int:
        """Entries from the boundary ``offset`` on that begin before ``target``; where they end.

        ``first_position`` is the position of the first byte of the data.
        """
        log, needed = as_bytes(data), 1
        offset = checked_offset(data, offset)
        while needed:
            offset, rows, self._count, needed = _take_entries(
                log, offset, target, first_position, *self._memory(), self._count
            )
            self.rows += rows
            self._make_room(needed)
        return offset

    def batch(self) -> pa.RecordBatch:
        """One row of JOBS for each, in the order of their first records."""
        return rows_of(self._jobs, self._count, self._arena, 1)[0]

    def in_buckets(self, buckets: int) -> list[tuple[int, pa.RecordBatch]]:
        """The same for each bucket that has any: buckets are those of key_table.buckets_of."""
        rows, starts = rows_of(self._jobs, self._count, self._arena, buckets)
        return [
            (bucket, rows.slice(start, end - start))
            for bucket, (start, end) in enumerate(pairwise(starts))
            if end > start
        ]

    def _memory(self) -> tuple[Hashes, Ints, Bytes, Ints]:
        return self._index, self._jobs, self._arena, self._scratch

    def _make_room(self, needed: int) -> None:
        """For another job with so many bytes; 0 if there is enough."""
        if needed and self.key_bytes + needed > self._arena.size:
            arena = np.empty(2 * self._arena.size + needed, np.uint8)
            arena[: self._arena.size] = self._arena
            self._arena = arena
        if needed and self._count == len(self._jobs):
            jobs = lines(4 * len(self._jobs))
            jobs[: len(self._jobs)] = self._jobs
            self._jobs = jobs
            self._index = np.zeros(2 * len(jobs), np.uint64)
            _fill_index(self._jobs, self._count, self._index)


@kernel
def _fill_index(jobs: Ints, count: int, index: Hashes) -> None:
    mask = np.uint64(index.size - 1)
    for number in range(count):
        code = np.uint64(jobs[number, HASH])
        slot = code & mask
        while index[np.int64(slot)] != _NONE:
            slot = slot + np.uint64(1) & mask
        index[np.int64(slot)] = code >> _HALF << _HALF | np.uint64(number + 1)


@kernel
def _find(data: Bytes, rows: Ints, count: int, index: Hashes, jobs: Ints, arena: Bytes) -> None:
    """The hash of each row, and the number of its job; -1 if it is not known, or hard to find.

    Calls are few and short here: they cost more than what is done.
    """
    mask = np.uint64(index.size - 1)
    for row in range(count):
        start = rows[_ID, row]
        code = hash_of(data, start, start + rows[_ID_LENGTH, row])
        rows[_ROW_HASH, row] = np.int64(code)
        prefetch(index, np.int64(code & mask))
    for row in range(count):
        code = np.uint64(rows[_ROW_HASH, row])
        slot = code & mask
        entry = index[np.int64(slot)]
        while entry != _NONE and entry >> _HALF != code >> _HALF:
            slot = slot + np.uint64(1) & mask
            entry = index[np.int64(slot)]
        number = np.int64(entry & _LOW_HALF) - 1
        rows[_NUMBER, row] = number
        if number >= 0:
            prefetch(jobs, number * WORDS)
    for row in range(count):
        number, start, length = rows[_NUMBER, row], rows[_ID, row], rows[_ID_LENGTH, row]
        if number < 0:
            continue
        low, high = first_bytes(data, start, length)
        differs = jobs[number, HASH] ^ rows[_ROW_HASH, row]
        differs |= jobs[number, KEY_LENGTH] ^ length
        differs |= jobs[number, KEY_LOW] ^ np.int64(low)
        differs |= jobs[number, KEY_HIGH] ^ np.int64(high)
        rest = length - INLINE_BYTES
        if differs != 0 or (
            rest > 0
            and not is_same(arena, jobs[number, KEY_END] - rest, data, start + INLINE_BYTES, rest)
        ):
            rows[_NUMBER, row] = -1


@kernel
def _look_up(
    data: Bytes, rows: Ints, row: int, index: Hashes, jobs: Ints, arena: Bytes, count: int
) -> int:
    """The number of the row's job. ``count``: it is new now. -1: it would be, but there is no room.

    One entry after another.
    """
    mask = np.uint64(index.size - 1)
    start, length = rows[_ID, row], rows[_ID_LENGTH, row]
    code = np.uint64(rows[_ROW_HASH, row])
    slot = code & mask
    while index[np.int64(slot)] != _NONE:
        entry = index[np.int64(slot)]
        if entry >> _HALF == code >> _HALF:
            number = np.int64(entry & _LOW_HALF) - 1
            begin = jobs[number, KEY_END] - length
            if jobs[number, KEY_LENGTH] == length and is_same(arena, begin, data, start, length):
                return int(number)
        slot = slot + np.uint64(1) & mask
    begin = jobs[count - 1, KEY_END] if count else 0
    if count == jobs.shape[0] or begin + length > arena.size:
        return -1
    for i in range(length):
        arena[begin + i] = data[start + i]
    low, high = first_bytes(data, start, length)
    jobs[count, HASH] = np.int64(code)
    jobs[count, KEY_LOW], jobs[count, KEY_HIGH] = np.int64(low), np.int64(high)
    jobs[count, KEY_END], jobs[count, KEY_LENGTH] = begin + length, length
    jobs[count, POSITION] = _NEVER
    index[np.int64(slot)] = code >> _HALF << _HALF | np.uint64(count + 1)
    return count


@kernel
def _take_rows(
    offsets: Ints,
    values: Bytes,
    positions: Ints,
    lengths: Ints,
    kinds: Ints,
    executions_ns: Ints,
    statuses: Ints,
    first: int,
    index: Hashes,
    jobs: Ints,
    arena: Bytes,
    rows: Ints,
    count: int,
) -> tuple[int, int, int]:
    """(the row to go on at, jobs known now, bytes that room is needed for or 0)."""
    while first < positions.size:
        some = min(positions.size - first, _ROWS)
        for i in range(some):
            rows[_ID, i] = offsets[first + i]
            rows[_ID_LENGTH, i] = offsets[first + i + 1] - offsets[first + i]
        _find(values, rows, some, index, jobs, arena)
        for i in range(some):
            number = rows[_NUMBER, i]
            if number < 0:
                number = _look_up(values, rows, i, index, jobs, arena, count)
            if number < 0:
                return first + i, count, max(rows[_ID_LENGTH, i], 1)
            count += number == count
            row = first + i
            if positions[row] > jobs[number, POSITION]:
                jobs[number, POSITION] = positions[row]
                jobs[number, EXECUTION_NS] = executions_ns[row]
                jobs[number, SMALL] = (
                    np.int64(lengths[row]) << 16
                    | np.int64(kinds[row]) << 8
                    | np.int64(statuses[row])
                )
        first += some
    return first, count, 0


@kernel
def _take_entries(
    data: Bytes,
    position: int,
    target: int,
    first_position: int,
    index: Hashes,
    jobs: Ints,
    arena: Bytes,
    rows: Ints,
    count: int,
) -> tuple[int, int, int, int]:
    """(the offset to go on at, rows taken, jobs known now, bytes that room is needed for or 0)."""
    taken = 0
    while True:
        some, behind = _plain_entries(data, position, target, rows)
        if some == 0:
            return behind, taken, count, 0
        _find(data, rows, some, index, jobs, arena)
        for i in range(some):
            at, length = rows[_AT, i], rows[_ID_LENGTH, i]
            number = rows[_NUMBER, i]
            if number < 0:
                number = _look_up(data, rows, i, index, jobs, arena, count)
            if number < 0:
                return at, taken, count, max(length, 1)
            count += number == count
            taken += 1
            if first_position + at > jobs[number, POSITION]:
                id_end = rows[_ID, i] + length
                kind = u8(data, at + _LENGTH_BYTES)
                execution_ns, status, end = 0, 0, id_end
                if kind == JOB:
                    end = id_end + _JOB_TAIL_BYTES
                    execution_ns, status = big_i64(data, id_end), u8(data, end - 1)
                jobs[number, POSITION] = first_position + at
                jobs[number, EXECUTION_NS] = execution_ns
                jobs[number, SMALL] = (end - at) << 16 | kind << 8 | status
        position = behind


@kernel
def _plain_entries(data: Bytes, position: int, target: int, rows: Ints) -> tuple[int, int]:
    """Some entries that the codec is sure to take; how many, and where they end."""
    some = 0
    while some < _ROWS and position < target:
        if is_ztick_seal(data, position):
            position += ZTICK_SEAL_BYTES
            continue
        end = plain_end(data, position)
        if end == 0 or u8(data, position + _LENGTH_BYTES) & 1:  # a removal of a rule
            break
        identifier = position + _HEAD_BYTES
        rows[_AT, some] = position
        rows[_ID, some] = identifier
        rows[_ID_LENGTH, some] = big_u16(data, identifier - 2)
        some += 1
        position = end
    return some, position
