"""The ztick logfile in bulk: bytes -> Arrow, the fast twin of journeyman.formats.ztick.

    u32 length | u8 kind | u16 n | identifier (n) | ...
                 0 job          i64 execution_ns | u8 status
                 1 rule         pattern, runner and its strings
                 2 job removed, 3 rule removed     nothing more

A kernel walks the frames and takes jobs and removals apart; this is all but a few entries of a real
log. Two things are checked behind it, row by row and only where needed: identifiers that are not
plain ASCII must be UTF-8, and rules, which are rare and have many shapes, go through the codec.
The first row that fails either check ends the chunk, as it ends ``framing.scan``.

Seals make no rows; whether they fit is seen to by journeyman.columnar.seals.

Columns that a kind does not have are null; SCHEMA says which.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa

from journeyman.columnar import arrays, chunks
from journeyman.columnar.arrays import Column
from journeyman.columnar.kernels import byte_access, kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints
from journeyman.columnar.seals import is_ztick_seal
from journeyman.errors import FormatError
from journeyman.formats.framing import Buffer, Ending
from journeyman.formats.ztick import CODEC, RuleSet, Runner, layout
from journeyman.formats.ztick.codec import RUNNER_CLASSES

_LENGTH_BYTES = layout.LENGTH.size
_HEAD_BYTES = layout.HEAD.size
_JOB_TAIL_BYTES = layout.JOB_TAIL.size
_HIGHEST_STATUS = 3


_RUNNER_ARGS = pa.list_(pa.string())

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("kind", pa.int8()),  # the type byte, 0 to 3
    ("identifier", pa.string()),
    ("offset", pa.int64()),
    ("length", pa.int32()),  # framing included
    ("execution_ns", pa.int64()),  # jobs
    ("status", pa.int8()),  # jobs
    ("pattern", pa.string()),  # rules
    ("runner", pa.int8()),  # rules: the runner byte, 0 to 7
    ("runner_args", _RUNNER_ARGS),  # rules: the runner's strings in log order
]
SCHEMA = pa.schema(_COLUMNS)

# The fields that the kernel writes for each entry. Its identifier begins at OFFSET + _HEAD_BYTES.
_KIND, _OFFSET, _LENGTH, _ID_LENGTH, _EXECUTION_NS, _STATUS = range(6)
_FIELDS = 6
# Plain numbers for the kernels, which cannot look inside a Struct.


def decode(
    data: Buffer,
    offset: int | None = None,
    *,
    max_records: int = chunks.MAX_RECORDS,
    payloads: bool = False,  # noqa: ARG001 - a logfile has none; the twins share one signature
) -> chunks.Chunk:
    """The rows from ``offset`` on (None: from the start of the file)."""
    start = chunks.first_offset(CODEC, data, offset)
    if isinstance(start, Ending):
        return chunks.refused_chunk(SCHEMA, start)
    log = arrays.as_bytes(data)
    room = chunks.make_fields(_FIELDS, max_records, log.size - start, _HEAD_BYTES)
    rows, position, full = _scan(log, start, start + chunks.MAX_CHUNK_BYTES, room)
    fields = room[:, :rows]
    identifiers = _leading_text(log, fields[_OFFSET] + _HEAD_BYTES, fields[_ID_LENGTH])
    rule_rows = np.flatnonzero(fields[_KIND, : len(identifiers)] == layout.RULE)
    rules = _leading_rules(data, fields[_OFFSET, rule_rows])
    whole = len(identifiers) if len(rules) == len(rule_rows) else int(rule_rows[len(rules)])
    if whole < rows:
        rows, position, full = whole, int(fields[_OFFSET, whole]), False
        fields = fields[:, :rows]
    is_job = fields[_KIND] == layout.JOB
    columns = [
        arrays.numbers(fields[_KIND].astype(np.int8)),
        identifiers[:rows],
        arrays.numbers(fields[_OFFSET]),
        arrays.numbers(fields[_LENGTH].astype(np.int32)),
        arrays.numbers(fields[_EXECUTION_NS], is_job),
        arrays.numbers(fields[_STATUS].astype(np.int8), is_job),
        *_rule_columns(rules, rule_rows[: len(rules)], rows),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
    return chunks.Chunk(batch, position, None if full else chunks.ending_at(CODEC, data, position))


iter_batches = partial(chunks.iter_chunks, decode)


def hop(data: Buffer, offset: int, target: int) -> int:
    """The first frame boundary at or after ``target``, hopping over lengths from ``offset``.

    Contents are not looked at. Less than ``target`` when the lengths lead no further.
    """
    return _hop(arrays.as_bytes(data), chunks.checked_offset(data, offset), target)


@kernel
def _frame_end(data: Bytes, position: int) -> int:
    """The end of the frame at ``position``; 0 when its length is not to be followed."""
    left = data.size - position
    if left < _LENGTH_BYTES:
        return 0
    body = byte_access.big_u32(data, position)
    if (
        body < layout.MIN_ENTRY_BYTES
        or body > layout.MAX_ENTRY_BYTES
        or body > left - _LENGTH_BYTES
    ):
        return 0
    return position + _LENGTH_BYTES + body


@kernel
def _hop(data: Bytes, position: int, target: int) -> int:
    while position < target:
        end = _frame_end(data, position)
        if end == 0:
            break
        position = end
    return position


@kernel
def _scan(data: Bytes, position: int, stop: int, fields: Ints) -> tuple[int, int, bool]:
    """Fill ``fields``; (entries, the offset behind them, whether a limit of the chunk was met)."""
    rows = 0
    while position < data.size:
        if rows == fields.shape[1] or position >= stop:
            return rows, position, True
        end = _frame_end(data, position)
        if end < position + _HEAD_BYTES:
            break
        kind = byte_access.u8(data, position + _LENGTH_BYTES)
        id_length = byte_access.big_u16(data, position + _LENGTH_BYTES + 1)
        id_end = position + _HEAD_BYTES + id_length
        execution_ns, status = 0, 0
        if kind == layout.JOB:
            if id_end + _JOB_TAIL_BYTES != end:
                break
            execution_ns, status = byte_access.big_i64(data, id_end), byte_access.u8(data, end - 1)
            if status > _HIGHEST_STATUS:
                break
        elif kind == layout.RULE:
            if id_end > end:
                break
        elif kind > layout.RULE_REMOVAL or id_end != end:
            break
        elif is_ztick_seal(data, position):
            position = end
            continue
        fields[_KIND, rows] = kind
        fields[_OFFSET, rows] = position
        fields[_LENGTH, rows] = end - position
        fields[_ID_LENGTH, rows] = id_length
        fields[_EXECUTION_NS, rows] = execution_ns
        fields[_STATUS, rows] = status
        rows += 1
        position = end
    return rows, position, False


def _leading_text(log: Bytes, starts: Ints, lengths: Ints) -> Column:
    """The identifiers up to the first that is not UTF-8."""
    offsets, values = arrays.gather_spans(log, starts, lengths)
    if arrays.is_ascii(values):
        return arrays.binary(pa.string(), offsets, values)
    raw = arrays.binary(pa.binary(), offsets, values)
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return raw[: _first_undecodable(raw)].cast(pa.string())


def _first_undecodable(raw: Column) -> int:
    for row, value in enumerate(raw):
        try:
            str(value.as_buffer(), "utf-8")
        except UnicodeDecodeError:
            return row
    raise AssertionError("Arrow refuses UTF-8 that Python takes")


def _leading_rules(data: Buffer, offsets: Ints) -> list[RuleSet]:
    """The rules at these offsets up to the first that is damaged."""
    rules: list[RuleSet] = []
    for offset in offsets.tolist():
        try:
            entry = CODEC.decode(data, offset)
        except FormatError:
            break
        assert entry is not None
        assert isinstance(entry.record, RuleSet)
        rules.append(entry.record)
    return rules


def _rule_columns(rules: list[RuleSet], rule_rows: Ints, rows: int) -> list[Column]:
    """Return pattern, runner and runner_args of all rows; only rules have them, others are null."""
    if not rules:
        return [
            pa.nulls(rows, pa.string()),
            pa.nulls(rows, pa.int8()),
            pa.nulls(rows, _RUNNER_ARGS),
        ]
    patterns = pa.array([rule.pattern for rule in rules], pa.string())
    fields = [_runner_fields(rule.runner) for rule in rules]
    args = pa.array([args for _, args in fields], _RUNNER_ARGS)
    runners, is_rule = np.zeros(rows, np.int8), np.zeros(rows, np.bool_)
    runners[rule_rows], is_rule[rule_rows] = [byte for byte, _ in fields], True
    return [
        arrays.stretched(patterns, rule_rows, rows),
        arrays.numbers(runners, is_rule),
        arrays.stretched(args, rule_rows, rows),
    ]


def _runner_fields(runner: Runner) -> tuple[int, list[str]]:
    byte = RUNNER_CLASSES.index(type(runner))
    args = [getattr(runner, name) for name in layout.RUNNER_STRINGS[byte]]
    if byte in layout.LIST_RUNNERS:
        args += getattr(runner, layout.LIST_RUNNERS[byte])
    return byte, args
