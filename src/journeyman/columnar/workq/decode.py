"""The workq command log in bulk: bytes -> Arrow, the fast twin of journeyman.formats.workq.

The kernel in scan.py checks the CRC of every record and finds its fields; here they become
columns. Columns that a command does not have are null, as the comments in the schema say; the bytes
of payloads and results are null everywhere unless ``payloads=True`` (their sizes never are).

Three things are narrower than in the records, because Arrow and Spark are:

    numbers    at most 2^63 - 1; beyond, they are clamped
    times      nanoseconds since 1970 in 64 bits, clamped; zone offsets are left out
    names      text; bytes of a name that are not UTF-8 become U+FFFD, one each, as Python's
               "replace" does. The protocol never lets such a name in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from journeyman.columnar import arrays, chunks
from journeyman.columnar.arrays import Bools, Column
from journeyman.columnar.kernels.byte_access import Bytes, Ints
from journeyman.columnar.workq import scan as at
from journeyman.formats.framing import Buffer, Ending
from journeyman.formats.timed_frame import CRC_BYTES
from journeyman.formats.workq import CODEC, Command

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("kind", pa.int8()),  # the command; 9 for those of newer writers
    ("job_id", pa.binary()),  # 16 bytes
    ("offset", pa.int64()),
    ("length", pa.int32()),  # CRC included
    ("logged_ns", pa.int64()),
    ("name", pa.string()),  # add, schedule; and so on down to created_ns
    ("ttr_ms", pa.int64()),
    ("ttl_ms", pa.int64()),
    ("priority", pa.int32()),
    ("max_attempts", pa.int64()),
    ("max_fails", pa.int64()),
    ("payload_size", pa.int32()),
    ("payload", pa.binary()),
    ("time_ns", pa.int64()),  # null also when the job is ready at once
    ("created_ns", pa.int64()),
    ("result_size", pa.int32()),  # complete, fail; of a park, what the job waits for
    ("result", pa.binary()),  # the same
    ("hidden", pa.bool_()),  # fail, timeout-attempt: whether the original steps over it; or true
]
SCHEMA = pa.schema(_COLUMNS)

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class FieldsChunk:
    """A chunk with a row for each field of scan.py; the next chunk takes its place."""

    fields: Ints
    next_offset: int
    ending: Ending | None


def decode(
    data: Buffer,
    offset: int | None = None,
    *,
    max_records: int = chunks.MAX_RECORDS,
    payloads: bool = False,
) -> chunks.Chunk:
    """The rows from ``offset`` on (None: from the start of the segment, its header checked)."""
    start = chunks.first_offset(CODEC, data, offset)
    if isinstance(start, Ending):
        return chunks.refused_chunk(SCHEMA, start)
    log = arrays.as_bytes(data)
    room = chunks.make_fields(at.FIELDS, max_records, log.size - start, at.SMALLEST_RECORD_BYTES)
    rows, position, full = at.scan_records(log, start, start + chunks.MAX_CHUNK_BYTES, room, False)
    batch = pa.RecordBatch.from_arrays(_columns(log, room[:, :rows], payloads), schema=SCHEMA)
    return chunks.Chunk(batch, position, None if full else chunks.ending_at(CODEC, data, position))


def iter_fields(data: Buffer, *, max_records: int, is_proven: bool) -> Iterator[FieldsChunk]:
    """The numbers that scan.py takes from each record, for callers that need no Arrow columns.

    ``is_proven``: the whole file was read before.
    """
    start = chunks.first_offset(CODEC, data, None)
    if isinstance(start, Ending):
        yield FieldsChunk(np.empty((at.FIELDS, 0), np.int64), start.offset, start)
        return
    log = arrays.as_bytes(data)
    room = chunks.make_fields(at.FIELDS, max_records, log.size - start, at.SMALLEST_RECORD_BYTES)
    full = True
    while full:
        rows, start, full = at.scan_records(
            log, start, start + chunks.MAX_CHUNK_BYTES, room, is_proven
        )
        yield FieldsChunk(
            room[:, :rows], start, None if full else chunks.ending_at(CODEC, data, start)
        )


iter_batches = partial(chunks.iter_chunks, decode)


def hop(data: Buffer, offset: int, target: int) -> int:
    """The first record boundary at or after ``target``, hopping over sizes from ``offset``.

    Neither contents nor CRC are looked at. Less than ``target`` when the sizes lead no further.
    """
    return at.hop(arrays.as_bytes(data), chunks.checked_offset(data, offset), target)


def _columns(log: Bytes, fields: Ints, payloads: bool) -> list[Column]:
    kinds = fields[at.KIND]
    is_add = (kinds == Command.ADD) | (kinds == Command.SCHEDULE)
    is_finish = (kinds == Command.COMPLETE) | (kinds == Command.FAIL) | (kinds == Command.PARK)
    can_hide = (kinds == Command.FAIL) | (kinds == Command.TIMEOUT_ATTEMPT)
    is_hidden = fields[at.HIDDEN] == 1
    blocks = fields[at.BLOCK_START], fields[at.BLOCK_SIZE]
    block_sizes = fields[at.BLOCK_SIZE].astype(np.int32)
    return [
        arrays.numbers(kinds.astype(np.int8)),
        arrays.binary(pa.binary(), *gather_ids(log, fields)),
        arrays.numbers(fields[at.OFFSET]),
        arrays.numbers(fields[at.LENGTH].astype(np.int32)),
        arrays.numbers(fields[at.LOGGED_NS]),
        _names(log, fields, is_add),
        arrays.numbers(fields[at.TTR_MS], is_add),
        arrays.numbers(fields[at.TTL_MS], is_add),
        arrays.numbers(fields[at.PRIORITY].astype(np.int32), is_add),
        arrays.numbers(fields[at.ATTEMPTS], is_add),
        arrays.numbers(fields[at.FAILS], is_add),
        arrays.numbers(np.where(is_add, block_sizes, 0), is_add),
        arrays.blobs(log, *blocks, is_add & payloads),
        arrays.numbers(fields[at.TIME_NS], fields[at.HAS_TIME] == 1),
        arrays.numbers(fields[at.CREATED_NS], is_add),
        arrays.numbers(np.where(is_finish, block_sizes, 0), is_finish),
        arrays.blobs(log, *blocks, is_finish & payloads),
        arrays.flags(is_hidden, can_hide | is_hidden),
    ]


def gather_ids(log: Bytes, fields: Ints) -> tuple[Ints, Bytes]:
    """The ids, 16 bytes each, and where they begin: as many bytes as a record has, then zeros."""
    starts = fields[at.ID_START]
    lengths = fields[at.OFFSET] + fields[at.LENGTH] - CRC_BYTES - starts
    is_short = lengths < _ID_BYTES
    offsets, ids = arrays.gather_spans(log, starts, np.minimum(lengths, _ID_BYTES))
    if is_short.any():  # only records of newer writers are
        padded = np.zeros((len(starts), _ID_BYTES), np.uint8)
        padded[np.arange(_ID_BYTES) < lengths[:, np.newaxis]] = ids
        return np.arange(len(starts) + 1, dtype=offsets.dtype) * _ID_BYTES, padded.reshape(-1)
    return offsets, ids


def _names(log: Bytes, fields: Ints, valid: Bools) -> Column:
    offsets, values = arrays.gather_spans(log, fields[at.NAME_START], fields[at.NAME_LENGTH])
    if arrays.is_ascii(values):
        return arrays.binary(pa.string(), offsets, values, valid)
    raw = arrays.binary(pa.binary(), offsets, values, valid)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        names = [
            None if name is None else name.decode("utf-8", "replace") for name in raw.to_pylist()
        ]
        return pa.array(names, pa.string())
