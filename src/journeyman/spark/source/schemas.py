"""The columns of each dialect as Spark sees them, in their order.

    envelope | columns of the dialect | partition columns | corrupt record and damage

The envelope is the same for all dialects and comes first. Partition columns are what ``host=a/``
in a path says; the last two are there in PERMISSIVE mode only. What each column holds is written
in docs/spark.md. A reducer brings columns of its own instead of the first two groups.

Nothing here reads a byte. It is imported to find and to make a source, each time in a process of
its own; so it is light: pyarrow only inside of functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from journeyman.columnar.arrays import Bools, Column, binary, numbers
from journeyman.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

# ----------------------------------------
# Small ways between Python, numpy and Arrow columns that do not import pandas.
#
# ``pa.array``, ``pa.scalar`` and ``Array.to_numpy`` all do, the first time they are called, and
# that takes longer than reading many a log. So they are not used on the way of good records.


def texts(values: Iterable[str | None]) -> Column:
    """A short column of strings."""
    given = [None if value is None else value.encode() for value in values]
    offsets = np.cumsum([0, *(len(value or b"") for value in given)]).astype(np.int32)
    joined = np.frombuffer(b"".join(value or b"" for value in given), np.uint8)
    return binary(pa.string(), offsets, joined, np.array([value is not None for value in given]))


def repeated(value: str | int | None, kind: Any, rows: int) -> Column:
    """The same text, number or null in all rows; ``kind`` is its type in Arrow."""
    if value is None:
        nothing: Column = pa.nulls(rows, kind)
        return nothing
    if isinstance(value, int):
        return numbers(np.full(rows, value, np.int32))
    text: Any = texts([value])[0]
    column: Column = pa.repeat(text, rows)
    return column


def mask(wanted: Bools) -> Any:
    """Which rows are wanted, as a filter takes it."""
    bits = pa.py_buffer(np.packbits(wanted, bitorder="little").data)
    return pa.Array.from_buffers(pa.bool_(), len(wanted), [None, bits])


def raw_numbers(column: Column) -> npt.NDArray[Any]:
    """The numbers of a column; where it is null, whatever is there (columnar puts 0)."""
    values = column.buffers()[1]
    kind = np.dtype(column.type.to_pandas_dtype())  # in spite of its name, a type of numpy
    raw = np.frombuffer(b"" if values is None else memoryview(values), kind)
    return raw[column.offset : column.offset + len(column)]


def valid_rows(column: Column) -> Bools:
    """Which rows of a column are not null."""
    bits = column.buffers()[0]
    if bits is None:
        return np.ones(len(column), np.bool_)
    end = column.offset + len(column)
    unpacked = np.unpackbits(np.frombuffer(memoryview(bits), np.uint8), bitorder="little")
    return unpacked[column.offset : end].astype(np.bool_)


# ----------------------------------------
# The columns of a packet's row: see packets.py, which makes and opens them.
#
# By itself, because planning a query needs the columns, and should not import Arrow for them.

PACKET_KIND: Final = "packet"
SEAM_KIND: Final = "seam"  # no packet, but where a part of a file began and ended

PACKET_SCHEMA: Final = StructType(
    [
        StructField("_log", StringType()),
        StructField("_file", StringType()),
        StructField("_segment", IntegerType()),
        StructField("_offset", LongType()),
        StructField("_length", IntegerType()),
        StructField("_position", LongType()),  # the lowest in the packet
        StructField("kind", StringType()),
        StructField("table", StringType()),  # which of the dialect's tables it is for
        StructField("bucket", IntegerType()),
        StructField("records", LongType()),  # of the log that were read for it and those beside it
        StructField("least_id", LongType()),  # kestrel, in rows without a packet: of the items
        StructField("greatest_id", LongType()),
        StructField("queue", StringType()),
        StructField("reader", StringType()),
        StructField("segments", ArrayType(IntegerType())),  # those that records may come from,
        StructField("files", ArrayType(StringType())),  # and their files
        StructField("packet", BinaryType()),
        StructField("reached", LongType()),  # of a seam: behind the last record of its part
        StructField("details", BinaryType()),  # workq: what adds say beyond other records
    ]
)


ZTICK, WORKQ, KESTREL, KEYSPACE = DIALECTS = ("ztick", "workq", "kestrel", "keyspace")

CORRUPT_RECORD: Final = "_corrupt_record"  # unless columnNameOfCorruptRecord says otherwise
DAMAGE: Final = "_damage"

_STRING, _BINARY, _INT, _LONG = StringType(), BinaryType(), IntegerType(), LongType()

ENVELOPE: Final[tuple[tuple[str, DataType], ...]] = (
    ("_log", _STRING),
    ("_file", _STRING),
    ("_segment", _INT),
    ("_offset", _LONG),
    ("_length", _INT),
    ("_position", _LONG),
    ("kind", _STRING),
    ("key", _STRING),
    ("time", TimestampType()),
)

DIALECT_COLUMNS: Final[dict[str, tuple[tuple[str, DataType], ...]]] = {
    ZTICK: (
        ("identifier", _STRING),
        ("execution_ns", _LONG),
        ("status", _STRING),
        ("pattern", _STRING),
        ("runner", _STRING),
        ("runner_args", ArrayType(_STRING)),
    ),
    WORKQ: (
        ("job_id", _BINARY),
        ("logged_ns", _LONG),
        ("name", _STRING),
        ("ttr_ms", _LONG),
        ("ttl_ms", _LONG),
        ("priority", _INT),
        ("max_attempts", _LONG),
        ("max_fails", _LONG),
        ("payload_size", _INT),
        ("payload", _BINARY),
        ("time_ns", _LONG),
        ("created_ns", _LONG),
        ("result_size", _INT),
        ("result", _BINARY),
        ("hidden", BooleanType()),
    ),
    KESTREL: (
        ("queue", _STRING),
        ("reader", _STRING),
        ("item_id", _LONG),
        ("add_time_ms", _LONG),
        ("expire_time_ms", _LONG),
        ("error_count", _INT),
        ("data_size", _INT),
        ("data", _BINARY),
        ("done_ids", ArrayType(_LONG)),
    ),
    KEYSPACE: (
        ("version", _INT),
        ("queue", _STRING),
        ("job_uuid", _STRING),
        ("status", _STRING),
        ("time_ms", _LONG),
        ("count", _LONG),
        ("raw_key", _BINARY),
        ("value", _BINARY),
    ),
}


def base_schema(dialect: str) -> StructType:
    """The envelope and the columns of the dialect."""
    columns = (*ENVELOPE, *DIALECT_COLUMNS[dialect])
    return StructType([StructField(name, kind) for name, kind in columns])


def with_extras(
    base: StructType, partition_columns: Iterable[str], corrupt_record: str | None
) -> StructType:
    """``base``, the partition columns, and the two columns about damage.

    ``corrupt_record`` names the first of these; None leaves both out.
    """
    fields = list(base.fields)
    fields += [StructField(name, _STRING) for name in partition_columns]
    if corrupt_record is not None:
        fields += [StructField(corrupt_record, _BINARY), StructField(DAMAGE, _STRING)]
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two columns would be called {name}: rename the `{name}=` directory")
    return StructType(fields)


def narrowed(full: StructType, asked: StructType) -> StructType:
    """``asked``, if all of its columns are columns of ``full`` with the same type."""
    known = {field.name: field.dataType for field in full.fields}
    for field in asked.fields:
        if field.name not in known:
            raise UsageError(f"no column {field.name!r} here; there are {', '.join(known)}")
        if known[field.name] != field.dataType:
            right, wrong = known[field.name].simpleString(), field.dataType.simpleString()
            raise UsageError(f"column {field.name} is of type {right}, not {wrong}")
    return asked


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark checks batches of this schema against."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
