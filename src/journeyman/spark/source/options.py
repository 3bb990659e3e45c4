"""The options of the sources, and the columns that Spark sees.

    SourceOptions.parse("ztick", {"path": "/logs", "mode": "FAILFAST"})

Names of options are those of Spark's own file sources where these have them, and as there they are
read without regard to case. A name that nobody knows is an error that names the nearest known one:
an option that was misspelt and silently left out would read other data than was asked for.

Columns, in their order:

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

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from journeyman.errors import UsageError
from journeyman.formats.ledger import KINDS as LEDGER_KINDS
from journeyman.formats.ztick.codec import RUNNER_WORDS
from journeyman.moments import parse_moment

if TYPE_CHECKING:
    import pyarrow as pa

ZTICK, WORKQ, KESTREL, LEDGER = DIALECTS = ("ztick", "workq", "kestrel", "ledger")
CORRUPT_RECORD: Final = "_corrupt_record"  # unless columnNameOfCorruptRecord says otherwise
DAMAGE: Final = "_damage"
DAMAGE_KIND: Final = "damage"
MAX_CORRUPT_BYTES: Final = 64 * 1024
SEGMENT_SHIFT: Final = 44  # position = segment << 44 | offset
OFFSET_MASK: Final = (1 << SEGMENT_SHIFT) - 1
KESTREL_PUT: Final = 8
PERMISSIVE, DROPMALFORMED, FAILFAST = MODES = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
_TABLE_OPTION = "option."
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
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
        "park",
        "wake",
    ),
    "kestrel": ("PUT", "READ_HEAD", "READ_DONE", "UNKNOWN"),
    "ledger": (*LEDGER_KINDS, "unknown"),
}
_KESTREL_WORDS: Final = {KESTREL_PUT: "PUT", 0: "READ_HEAD", 9: "READ_DONE"}
# The words of kind by the number that columnar has for it.
KIND_WORDS: Final[dict[str, tuple[str | None, ...]]] = {
    ZTICK: KINDS[ZTICK],
    WORKQ: (None, *KINDS[WORKQ]),
    KESTREL: tuple(_KESTREL_WORDS.get(code, "UNKNOWN") for code in range(32)),
    LEDGER: KINDS[LEDGER],
}
# The words of other columns that hold numbers in a ztick log, by number.
ZTICK_WORDS: Final[dict[str, tuple[str | None, ...]]] = {
    "status": ("planned", "triggered", "executed", "failed"),
    "runner": RUNNER_WORDS,
}
_STRING, _BINARY, _INT, _LONG = StringType(), BinaryType(), IntegerType(), LongType()
TYPES: Final[Mapping[str, DataType]] = {
    kind.simpleString(): kind
    for kind in (
        *(StringType(), BinaryType(), BooleanType(), IntegerType(), LongType(), DoubleType()),
        *(DateType(), TimestampType(), ArrayType(StringType()), ArrayType(LongType())),
    )
}


def fields(text: str) -> list[StructField]:
    """``"key string, fails bigint"``: columns, with types as SQL spells them."""
    return [StructField(name, TYPES[kind]) for name, kind in map(str.split, text.split(", "))]


def struct(text: str) -> StructType:
    return StructType(fields(text))


def columns(text: str) -> list[StructField]:
    """A line per column: name, type, and what it holds, which becomes the comment of the column."""
    found = []
    for line in text.strip().splitlines():
        name, kind, *comment = line.split(None, 2)
        metadata = {"comment": comment[0]} if comment else None
        found.append(StructField(name, TYPES[kind], metadata=metadata))
    return found


# Users see the text behind the type as the comment of the column, in Spark and on the site.
ENVELOPE: Final = columns(
    """
    _log       string     the log; two hosts are two logs, so group by `_log` and `key`
    _file      string     path of the file
    _segment   int        the place of the file in its log, from 0
    _offset    bigint     where the record begins in its file
    _length    int        its bytes, framing included
    _position  bigint     `_segment << 44 | _offset`: the order inside one log
    kind       string     the kind of record; `damage` for bytes that are not a record
    key        string     identifier, job id as UUID, item id of a PUT, subject of a ledger record
    time       timestamp  when it was written; null if nothing says so, and outside years 1 to 9999
    """
)
DIALECT_COLUMNS: Final[dict[str, list[StructField]]] = {
    ZTICK: columns(
        """
        identifier    string
        execution_ns  bigint         when the job is due
        status        string         planned, triggered, executed or failed
        pattern       string         of a rule: how identifiers of its jobs begin
        runner        string         shell, amqp, direct, awf, http, redis, queue or journal
        runner_args   array<string>  the runner's strings in the order of the log
        """
    ),
    WORKQ: columns(
        """
        job_id        binary   16 bytes
        logged_ns     bigint   when the record was written
        name          string   of the queue; bytes that are not UTF-8 become U+FFFD
        ttr_ms        bigint
        ttl_ms        bigint
        priority      int
        max_attempts  bigint
        max_fails     bigint
        payload_size  int
        payload       binary   null without `payloads`
        time_ns       bigint   when the job is due; null if at once
        created_ns    bigint
        result_size   int      of complete and fail
        result        binary   null without `payloads`
        hidden        boolean  hidden from the original; null if it never is
        """
    ),
    KESTREL: columns(
        """
        queue           string
        reader          string         null for items, empty for the default reader
        item_id         bigint         the item, or the head of a reader
        add_time_ms     bigint
        expire_time_ms  bigint         null if it does not expire
        error_count     int
        data_size       int            0 for commands without data
        data            binary         null without `payloads`
        done_ids        array<bigint>  of READ_DONE
        """
    ),
    LEDGER: columns(
        """
        logged_ns  bigint
        version    bigint   of the payload
        family     string   null for records of newer versions
        removes    boolean  whether it removes the state of its key
        payload    string   JSON
        """
    ),
}
# Columns that a read has only if its schema asks for them: they cost a look into every payload.
NAMED_COLUMNS: Final[dict[str, list[StructField]]] = {
    WORKQ: columns(
        """
        task   string  the task that the payload names; null without `payloads`
        error  string  of fail: the class that the result names; null without `payloads`
        """
    )
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
        StructField("files", ArrayType(_STRING)),  # the files of these segments
        StructField("least_id", _LONG),  # kestrel: of the items in these files
        StructField("greatest_id", _LONG),
    ]
)
# One row is a packet; or, of kind ``damage``, a damage, of which only the first line is filled.
PACKET_SCHEMA: Final = StructType(
    [
        *(field for field in ENVELOPE if field.name in _PACKET_PLACE),
        StructField("table", _STRING),  # the table of the dialect that the packet is for
        StructField("bucket", _INT),  # the bucket of keys that the packet is for
        StructField("records", _LONG),  # records of the log read for it and the packets beside it
        StructField("packet", _BINARY),  # null in a row that only tells of a file
        StructField("details", _BINARY),  # workq: what adds say beyond other records
        StructField("source", PACKET_SOURCE),
    ]
)


def kind_codes(dialect: str, kinds: frozenset[str]) -> list[int]:
    """The numbers that columnar has for these kinds."""
    return [code for code, word in enumerate(KIND_WORDS[dialect]) if word in kinds]


def base_schema(dialect: str) -> StructType:
    """The envelope and the columns of the dialect."""
    return StructType([*ENVELOPE, *DIALECT_COLUMNS[dialect]])


def with_extras(
    base: StructType, partition_columns: Iterable[str], corrupt_record: str | None
) -> StructType:
    """``base``, the partition columns, and the two columns about damage.

    ``corrupt_record`` names the first of these; None leaves both out.
    """
    found = list(base.fields)
    found += [StructField(name, _STRING) for name in partition_columns]
    if corrupt_record is not None:
        found += [StructField(corrupt_record, _BINARY), StructField(DAMAGE, _STRING)]
    names = [field.name for field in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"two columns would be called {name}: rename the `{name}=` directory")
    return StructType(found)


def narrowed(full: StructType, wanted_schema: StructType) -> StructType:
    """``wanted_schema``, if all of its columns are columns of ``full`` with the same type."""
    known = {field.name: field.dataType for field in full.fields}
    for field in wanted_schema.fields:
        if field.name not in known:
            raise UsageError(f"no column {field.name!r} here; there are {', '.join(known)}")
        if known[field.name] != field.dataType:
            right, wrong = known[field.name].simpleString(), field.dataType.simpleString()
            raise UsageError(f"column {field.name} is of type {right}, not {wrong}")
    return wanted_schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark checks batches against."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    # Without the comments of columns, which batches do not have.
    return pa.schema([each.remove_metadata() for each in to_arrow_schema(schema, timezone="UTC")])


Parser = Callable[[str, str], object]  # name and text of an option -> its value
OptionTable = Sequence[tuple[str, str, Parser]]  # its name, the field that holds it, its parser


@dataclass(frozen=True, slots=True)
class AsOfPosition:
    """Records of one log that begin before ``offset`` of ``file``."""

    file: str
    offset: int


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read. They are small, and pickled with every partition's reader."""

    dialect: str
    paths: tuple[str, ...]
    mode: str = PERMISSIVE
    corrupt_record: str = CORRUPT_RECORD
    path_glob_filter: str | None = None
    recursive: bool = False
    ignore_missing_files: bool = False
    max_bytes_per_trigger: int | None = None
    as_of_ns: int | None = None
    as_of_position: AsOfPosition | None = None
    kinds: frozenset[str] | None = None
    key: str | None = None
    start_ns: int | None = None  # at or after
    end_ns: int | None = None  # before
    payloads: bool = False
    queue: str | None = None
    split_bytes: int | None = None
    min_partitions: int | None = None
    starting_offsets: str = "earliest"
    on_lost_history: str = "fail"
    hold_files: bool = True
    holder: str = ""  # who reads, in messages of the server that waits for it
    reduce: str | None = None
    salvage: bool = False
    damage_only: bool = False
    ledger: str | None = None  # ztick: what says when records were written

    @classmethod
    def parse(cls, dialect: str, texts: Mapping[str, str]) -> SourceOptions:
        """Raises UsageError for what is unknown, malformed or contradictory."""
        values = parse_options(dialect, own_options(texts), _OPTIONS)
        paths = [*values.pop("paths", ()), *([values.pop("path")] if "path" in values else ())]
        if not paths or not all(paths):
            raise UsageError(
                "no path to read: give load() a file, a directory or a glob; a table whose columns "
                "were listed by CREATE TABLE keeps no options: list none, or add WITH (path '...')"
            )
        as_of = values.pop("as_of", None)
        field = "as_of_position" if isinstance(as_of, AsOfPosition) else "as_of_ns"
        options = cls(dialect, tuple(paths), **values, **{field: as_of})
        options._check()
        return options

    @property
    def corrupt_column(self) -> str | None:
        """The name of the column for damaged bytes; None when there is none."""
        return self.corrupt_record if self.mode == PERMISSIVE else None

    @property
    def has_moment(self) -> bool:
        """Return whether records are selected by when they were written."""
        return not self.start_ns == self.end_ns == self.as_of_ns is None

    def includes(self, first_ns: int, last_ns: int) -> bool:
        """Return whether a record written between these two moments, or at one, may be wanted."""
        return (
            (self.start_ns is None or last_ns >= self.start_ns)
            and (self.end_ns is None or first_ns < self.end_ns)
            and (self.as_of_ns is None or first_ns <= self.as_of_ns)
        )

    def _check(self) -> None:
        dialect = self.dialect
        unknown = sorted((self.kinds or frozenset()) - set(KINDS[dialect]))
        if unknown:
            raise UsageError(
                f"kinds: {dialect} has no {', '.join(unknown)}; it has {', '.join(KINDS[dialect])}"
            )
        if self.ledger is not None and dialect != ZTICK:
            raise UsageError(f"option ledger is for ztick, not for {dialect}")
        if self.queue is not None and dialect != KESTREL:
            raise UsageError(f"option queue is for kestrel, not for {dialect}")
        if self.reduce is not None and self.reduce != REDUCERS.get(dialect):
            known = REDUCERS.get(dialect, "none")
            raise UsageError(f"{dialect} has no reducer {self.reduce}; it has {known}")
        columns = [field.name for field in DIALECT_COLUMNS[dialect]]
        if self.corrupt_record in columns:
            raise UsageError(f"columnNameOfCorruptRecord: {self.corrupt_record} is taken")


def parse_options(who: str, options: Mapping[str, str], table: OptionTable) -> dict[str, Any]:
    """The values by field. Raises UsageError for a name that is not in the table."""
    known = {name.lower(): (name, field, parse) for name, field, parse in table}
    values = {}
    for name, text in options.items():
        if name.lower() not in known:
            near = difflib.get_close_matches(name.lower(), known, 1, 0.5)
            names = ", ".join(each for each, _, _ in table)
            hint = f"did you mean {known[near[0]][0]}?" if near else f"there are {names}"
            raise UsageError(f"{who} has no option {name!r}: {hint}")
        _, field, parse = known[name.lower()]
        values[field] = parse(name, text)
    return values


def own_options(all_options: Mapping[str, str]) -> dict[str, str]:
    """Return the options for a source, of all that Spark hands over about a table.

    For CREATE TABLE that is its properties (``owner``, ``provider``, and those of TBLPROPERTIES),
    its place, and each option twice: as it is, and once more with ``option.`` before it.
    """
    if "provider" not in all_options:
        return dict(all_options)
    options = {
        name.removeprefix(_TABLE_OPTION): text
        for name, text in all_options.items()
        if name.startswith(_TABLE_OPTION)
    }
    place = all_options.get("path", all_options.get("location"))
    if place is not None and "paths" not in options:
        options["path"] = place
    return options


def any_text(_: str, text: str) -> str:
    return text


def text_option(name: str, text: str) -> str:
    if not text:
        raise UsageError(f"{name} is empty")
    return text


def flag_option(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise UsageError(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def number_from(low: int) -> Parser:
    def parse(name: str, text: str) -> int:
        digits = text.strip()
        if not digits.isascii() or not digits.isdecimal() or int(digits) < low:
            raise UsageError(f"{name} is a number from {low} on, not {text!r}")
        return int(digits)

    return parse


def _size(name: str, text: str) -> int:
    """Bytes, as Spark writes them: 1048576, 64m, 64mb, 1g."""
    low = text.strip().lower()
    digits = low.rstrip("bkmgti")
    unit = low[len(digits) :].removesuffix("b").removesuffix("i")
    if not digits.isdecimal() or unit not in _UNITS or int(digits) < 1:
        raise UsageError(f"{name} is a size like 1048576, 64m or 1g, not {text!r}")
    return int(digits) * _UNITS[unit]


def _moment(name: str, text: str) -> int:
    try:
        return parse_moment(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{name} is a moment in ISO 8601 or nanoseconds since 1970, not {text!r}"
        ) from None


def _as_of(name: str, text: str) -> int | AsOfPosition:
    file, colon, offset = text.rpartition(":")
    try:
        return parse_moment(text)
    except (ValueError, OverflowError):
        if colon and file and offset.isdecimal():
            return AsOfPosition(file, int(offset))
        raise UsageError(
            f"{name} is a moment (ISO 8601, nanoseconds) or FILE:OFFSET, not {text!r}"
        ) from None


def one_of(*choices: str) -> Parser:
    """One of these words, in the case in which they are written here."""

    def parse(name: str, text: str) -> str:
        found = [choice for choice in choices if choice.lower() == text.lower()]
        if not found:
            raise UsageError(f"{name} is {' or '.join(choices)}, not {text!r}")
        return found[0]

    return parse


def _read_kinds(name: str, text: str) -> frozenset[str]:
    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise UsageError(f"{name} names no kind")
    return words


def _listed_paths(name: str, text: str) -> list[str]:
    """Several paths, as Spark hands them on: a JSON list."""
    try:
        listed = json.loads(text)
    except ValueError:
        listed = None
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise UsageError(f"{name} is a JSON list of strings, not {text!r}")
    return listed


_OPTIONS: Final[OptionTable] = (
    ("path", "path", any_text),
    ("paths", "paths", _listed_paths),
    ("mode", "mode", one_of(*MODES)),
    ("columnNameOfCorruptRecord", "corrupt_record", text_option),
    ("pathGlobFilter", "path_glob_filter", text_option),
    ("recursiveFileLookup", "recursive", flag_option),
    ("ignoreMissingFiles", "ignore_missing_files", flag_option),
    ("maxBytesPerTrigger", "max_bytes_per_trigger", _size),
    ("asOf", "as_of", _as_of),
    ("kinds", "kinds", _read_kinds),
    ("key", "key", text_option),
    ("startTime", "start_ns", _moment),
    ("endTime", "end_ns", _moment),
    ("payloads", "payloads", flag_option),
    ("queue", "queue", text_option),
    ("splitBytes", "split_bytes", _size),
    ("minPartitions", "min_partitions", number_from(1)),
    ("reduce", "reduce", text_option),
    ("salvage", "salvage", flag_option),
    ("damageOnly", "damage_only", flag_option),
    ("ledger", "ledger", text_option),
    # For streams; a batch read leaves them alone, as it does the limit of a trigger.
    ("startingOffsets", "starting_offsets", one_of("earliest", "latest")),
    ("onLostHistory", "on_lost_history", one_of("fail", "continue")),
    ("holdFiles", "hold_files", flag_option),
    ("holder", "holder", text_option),
)
