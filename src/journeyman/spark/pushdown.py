"""Conditions of a query that the source meets itself: rows that fail never reach Spark.

    WHERE kind = 'set' AND _segment > 3      AND of these is what Spark hands over, never an OR

Of each chunk only the columns in the conditions are made at first; the rest is made for the rows
that are left. A condition on what is the same for a whole file (``_file``, ``_segment``, ``host``)
is met by not opening it. Damaged rows are judged like all others.

Null is neither true nor false here, as in SQL; a row stays only if every condition is true.

Only a read with the option ``pushFilters`` does any of this. Spark keeps one plan for each load():
conditions that one query handed over stay for all later queries of the same DataFrame, which then
miss rows (seen with Spark 4.3.0). So such a DataFrame is good for one query, and nobody gets one
who did not ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

__all__ = ["column_of", "is_supported", "mask_of", "may_meet"]

_COMPARISONS: Final[dict[type[Filter], str]] = {
    EqualTo: "equal",
    GreaterThan: "greater",
    GreaterThanOrEqual: "greater_equal",
    LessThan: "less",
    LessThanOrEqual: "less_equal",
}
_TEXT_TESTS: Final[dict[type[Filter], str]] = {
    StringStartsWith: "starts_with",
    StringEndsWith: "ends_with",
    StringContains: "match_substring",
}


def column_of(condition: Filter) -> str:
    """The column that a condition is about; "" when it is inside of one."""
    if isinstance(condition, Not):
        return column_of(condition.child)
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    return path[0] if len(path) == 1 else ""


def is_supported(condition: Filter, schema: pa.Schema) -> bool:
    """Whether ``mask_of`` can judge this condition as Spark would."""
    at = schema.get_field_index(column_of(condition))
    if at < 0:
        return False
    kind = schema.field(at).type
    if isinstance(condition, Not):
        return is_supported(condition.child, schema)
    if isinstance(condition, IsNull | IsNotNull):
        return True
    if type(condition) in _TEXT_TESTS:
        return pa.types.is_string(kind) and isinstance(_value(condition), str)
    if isinstance(condition, In):
        return all(_is_literal(value, kind) for value in condition.value)
    if isinstance(condition, EqualNullSafe) or type(condition) in _COMPARISONS:
        return _is_literal(_value(condition), kind)
    return False


def _is_literal(value: object, kind: pa.DataType) -> bool:
    if pa.types.is_string(kind):
        return isinstance(value, str)
    if pa.types.is_timestamp(kind):
        return isinstance(value, datetime) and value.tzinfo is not None
    if pa.types.is_integer(kind):
        return isinstance(value, int) and not isinstance(value, bool) and _fits(value, kind)
    return False


def _fits(value: int, kind: pa.DataType) -> bool:
    return -(1 << kind.bit_width - 1) <= value < 1 << kind.bit_width - 1


def _value(condition: Filter) -> Any:
    return getattr(condition, "value", None)


def mask_of(conditions: Iterable[Filter], column: Callable[[str], Any]) -> Any | None:
    """Which rows meet all conditions; None when there are no conditions."""
    mask = None
    for condition in conditions:
        met = _judge(condition, column(column_of(condition)))
        mask = met if mask is None else pc.and_kleene(mask, met)
    return mask


def may_meet(conditions: Iterable[Filter], constants: Mapping[str, Any], schema: pa.Schema) -> bool:
    """Whether rows that all have these values in these columns can meet the conditions."""
    known = [each for each in conditions if column_of(each) in constants]
    mask = mask_of(known, lambda name: pa.array([constants[name]], schema.field(name).type))
    return mask is None or bool(mask[0].as_py())


def _judge(condition: Filter, column: Any) -> Any:
    if isinstance(condition, Not):
        return pc.invert(_judge(condition.child, column))
    if isinstance(condition, IsNull):
        return pc.is_null(column)
    if isinstance(condition, IsNotNull):
        return pc.is_valid(column)
    if isinstance(condition, In):
        found = pc.is_in(column, value_set=pa.array(condition.value, column.type))
        return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))
    if type(condition) in _TEXT_TESTS:
        return getattr(pc, _TEXT_TESTS[type(condition)])(column, pattern=_value(condition))
    literal = pa.scalar(_value(condition), column.type)
    if isinstance(condition, EqualNullSafe):
        return pc.fill_null(pc.equal(column, literal), False)
    return getattr(pc, _COMPARISONS[type(condition)])(column, literal)
