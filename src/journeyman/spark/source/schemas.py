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
from typing import TYPE_CHECKING, Final

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

from journeyman.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

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
