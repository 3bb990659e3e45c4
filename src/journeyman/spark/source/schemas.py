"""The columns that Spark sees, in their order, and the words and numbers in them.

    rows      envelope | columns of the dialect | partition columns | corrupt record and damage
    packets   PACKET_SCHEMA | partition columns | corrupt record and damage

The envelope is the same for all dialects and comes first. Partition columns are what ``host=a/`` in
a path says; the last two are there in PERMISSIVE mode only. What each column holds is written in
docs/spark.md. A read with a reducer (option ``reduce``) has packets instead of rows: each holds
many records, see packets.py.

    kind        a word in rows, a number in the columns of journeyman.columnar
    _position   segment << 44 | offset
    damage      the kind of rows that are no records

Nothing here reads a byte. It is imported to find and to make a source, each time in a process of
its own; so it is light: no numpy, and pyarrow only inside of a function.
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
DAMAGE_KIND: Final = "damage"
MAX_CORRUPT_BYTES: Final = 64 * 1024
SEGMENT_SHIFT: Final = 44  # position = segment << 44 | offset
OFFSET_MASK: Final = (1 << SEGMENT_SHIFT) - 1
KESTREL_PUT: Final = 8

# The words of the column ``kind``, by dialect.
KINDS: Final[dict[str, tuple[str, ...]]] = {
    "ztick": ("set", "rule_set", "remove", "remove_rule"),
    "workq": (
        "add",
        "schedule",
        "complete",
        "fail",
        "delete",
        "expire",
        "start-attempt",
        "timeout-attempt",
        "unknown",
    ),
    "kestrel": ("PUT", "READ_HEAD", "READ_DONE", "UNKNOWN"),
    "keyspace": ("queue", "job", "queue_time", "status", "status_fifo", "counter", "unknown"),
}
_KESTREL_WORDS: Final = {KESTREL_PUT: "PUT", 0: "READ_HEAD", 9: "READ_DONE"}
# The words of kind by the number that columnar has for it.
KIND_WORDS: Final[dict[str, tuple[str | None, ...]]] = {
    ZTICK: KINDS[ZTICK],
    WORKQ: (None, *KINDS[WORKQ]),
    KESTREL: tuple(_KESTREL_WORDS.get(code, "UNKNOWN") for code in range(32)),
    KEYSPACE: KINDS[KEYSPACE],
}

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

# The option ``reduce``: what a task makes of its records before a row leaves it.
REDUCERS: Final = {ZTICK: "latest", WORKQ: "events", KESTREL: "items"}
PACKET_KIND: Final = "packet"
_PACKET_PLACE: Final = ("_log", "_file", "_offset", "_length", "_position", "kind")

PACKET_SOURCE: Final = StructType(
    [
        StructField("queue", _STRING),
        StructField("reader", _STRING),
        StructField("segments", ArrayType(_INT)),  # those that records may come from,
        StructField("files", ArrayType(_STRING)),  # and their files
        StructField("least_id", _LONG),  # kestrel: of the items in these files
        StructField("greatest_id", _LONG),
    ]
)
# One row is a packet; or, of kind ``damage``, a damage, of which only the first line is filled.
PACKET_SCHEMA: Final = StructType(
    [
        *(StructField(name, kind) for name, kind in ENVELOPE if name in _PACKET_PLACE),
        StructField("table", _STRING),  # which of the dialect's tables the packet is for
        StructField("bucket", _INT),  # and which of its keys
        StructField("records", _LONG),  # of the log that were read for it and those beside it
        StructField("packet", _BINARY),  # null in a row that only tells of a file
        StructField("details", _BINARY),  # workq: what adds say beyond other records
        StructField("source", PACKET_SOURCE),
    ]
)


def kind_codes(dialect: str, words: frozenset[str]) -> list[int]:
    """The numbers that columnar has for these kinds."""
    return [code for code, word in enumerate(KIND_WORDS[dialect]) if word in words]


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
