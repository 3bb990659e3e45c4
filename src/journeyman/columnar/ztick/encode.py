"""Arrow -> the ztick logfile in bulk: the way back of columnar.ztick, agreeing with formats.ztick.

    kind  identifier  execution_ns  status  pattern  runner  runner_args        one row, one entry
      |
      v
    u32 length | u8 kind | u16 n | identifier (n) | i64 execution_ns | u8 status

Columns are found by name; others are left alone. ``kind``, ``status`` and ``runner`` are words, as
the Spark source has them, or numbers, as columnar.ztick has them. All that a kind needs must be
there; what it does not have is not looked at. Rules are rare and go through the codec.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from journeyman.columnar import arrays
from journeyman.columnar.arrays import Bools, Column
from journeyman.columnar.kernels import byte_access, kernel
from journeyman.columnar.kernels.byte_access import Bytes, Ints
from journeyman.errors import EncodeError
from journeyman.formats.ztick import CODEC, RuleSet, Runner, Status, layout
from journeyman.formats.ztick.codec import RUNNER_CLASSES, RUNNER_WORDS

KINDS = {
    "set": layout.JOB,
    "rule_set": layout.RULE,
    "remove": layout.JOB_REMOVAL,
    "remove_rule": layout.RULE_REMOVAL,
}
STATUSES = {status.word: int(status) for status in Status}
RUNNERS = {word: byte for byte, word in enumerate(RUNNER_WORDS)}

# Plain numbers for the kernels, which cannot look inside a Struct.
_HEAD_BYTES = layout.HEAD.size
_JOB_TAIL_BYTES = layout.JOB_TAIL.size


def encode(batch: pa.RecordBatch, first_row: int = 0) -> memoryview:
    """The entries of all rows, end to end. Raises EncodeError naming row and column."""
    inputs = arrays.Inputs(batch, first_row)
    kinds = inputs.codes("kind", KINDS)
    inputs.refuse_where(kinds == arrays.NO_CODE, "kind", "null")
    identifiers = inputs.strings("identifier")
    inputs.refuse_where(~identifiers.valid, "identifier", "null")
    lengths = identifiers.lengths
    inputs.refuse_where(
        lengths > layout.MAX_STRING_BYTES, "identifier", f"over {layout.MAX_STRING_BYTES} bytes"
    )
    is_job, is_rule = kinds == layout.JOB, kinds == layout.RULE
    execution, statuses = inputs.numbers("execution_ns"), inputs.codes("status", STATUSES)
    inputs.refuse_where(is_job & ~execution.valid, "execution_ns", "null in a job")
    inputs.refuse_where(is_job & (statuses == arrays.NO_CODE), "status", "null in a job")
    rules, rule_ends = _rules(inputs, identifiers, is_rule)
    sizes = _HEAD_BYTES + lengths + np.where(is_job, _JOB_TAIL_BYTES, 0)
    sizes[is_rule] = np.diff(rule_ends)
    log = np.empty(int(sizes.sum()), np.uint8)
    end = _write(
        kinds,
        identifiers.data,
        identifiers.offsets,
        execution.values,
        statuses,
        rules,
        rule_ends,
        log,
    )
    assert end == log.size
    return log.data


@kernel
def _write(
    kinds: Ints,
    names: Bytes,
    offsets: Ints,
    executions: Ints,
    statuses: Ints,
    rules: Bytes,
    rule_ends: Ints,
    log: Bytes,
) -> int:
    at, rule = 0, 0
    for row in range(kinds.size):
        kind = kinds[row]
        if kind == layout.RULE:
            begin, end = rule_ends[rule], rule_ends[rule + 1]
            at = byte_access.copy_span(rules, begin, end - begin, log, at)
            rule += 1
            continue
        begin, length = offsets[row], offsets[row + 1] - offsets[row]
        at = byte_access.put_big_32(
            log, at, length + (layout.JOB_EXTRA if kind == layout.JOB else layout.REMOVAL_EXTRA)
        )
        at = byte_access.put_u8(log, at, kind)
        at = byte_access.put_big_16(log, at, length)
        at = byte_access.copy_span(names, begin, length, log, at)
        if kind == layout.JOB:
            at = byte_access.put_big_64(log, at, executions[row])
            at = byte_access.put_u8(log, at, statuses[row])
    return at


def _rules(inputs: arrays.Inputs, identifiers: arrays.Spans, is_rule: Bools) -> tuple[Bytes, Ints]:
    """The entries of all rules, end to end, and where each ends behind a 0."""
    rows = np.flatnonzero(is_rule).tolist()
    if not rows:
        return arrays.as_bytes(b""), np.zeros(1, np.int64)
    patterns, args = inputs.column("pattern", pa.string()), _args_column(inputs)
    inputs.strings("pattern")
    runners = inputs.codes("runner", RUNNERS)
    inputs.refuse_where(is_rule & (runners == arrays.NO_CODE), "runner", "null in a rule")
    entries = []
    for row in rows:
        begin, end = identifiers.offsets[row], identifiers.offsets[row + 1]
        identifier = str(identifiers.data[begin:end].tobytes(), "utf-8")
        pattern = patterns[row].as_py()
        if pattern is None:
            inputs.refuse(row, "pattern", "null in a rule")
        runner = _runner(inputs, row, int(runners[row]), args[row].as_py())
        try:
            entries.append(CODEC.encode(RuleSet(identifier, pattern, runner)))
        except EncodeError as error:
            column = "pattern" if str(error).startswith("pattern") else "runner_args"
            inputs.refuse(row, column, str(error))
    return arrays.as_bytes(b"".join(entries)), np.cumsum([0, *map(len, entries)])


def _args_column(inputs: arrays.Inputs) -> Column:
    column = inputs.column("runner_args", pa.list_(pa.string()))
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise EncodeError("column runner_args: not UTF-8") from error
    return column


def _runner(inputs: arrays.Inputs, row: int, byte: int, args: list[str | None] | None) -> Runner:
    strings, has_list = len(layout.RUNNER_STRINGS[byte]), byte in layout.LIST_RUNNERS
    if args is None or None in args:
        inputs.refuse(row, "runner_args", "null in a rule")
    if len(args) < strings or (len(args) > strings and not has_list):
        name = list(RUNNERS)[byte]
        wanted = f"{strings} or more" if has_list else str(strings)
        inputs.refuse(row, "runner_args", f"{len(args)} strings; runner {name} has {wanted}")
    fields = [*args[:strings], tuple(args[strings:])] if has_list else args
    return RUNNER_CLASSES[byte](*fields)
