"""The tables of a lake: their columns and what these mean. docs/lake.md shows them to readers.

    LAKE/bronze/workq/, silver/attempts/, gold/latency_daily/, ...     each a Delta table
         snapshots/                                                    a Delta table: see storage.py

In bronze ``date`` is the day of the ingest; in silver and gold it is the day on which something
happened, in UTC. Moments are TIMESTAMP columns named ``_at``; ``_ns`` beside them has the
nanoseconds of the log. Durations are seconds. Rows of silver that may still change are kept apart
from the others (``is_open``), so that an ingest rewrites few files; gold is kept by month.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
from pyspark.sql.types import LongType, MapType, StringType, StructField, StructType

from journeyman.spark import views
from journeyman.spark.source import options
from journeyman.units import NS_PER_S

HASH: Final = "_hash"  # the hash of the key
SNAPSHOTS: Final = "snapshots"
KEYED: Final = ("silver/attempts", "silver/jobs", "silver/timetable_firings")
BETWEEN: Final = "|"  # host and path, where one text stands for a log of a host
LOG_DIALECTS: Final = ("ztick", "workq", "kestrel")
BRONZE_DIALECTS: Final = (*LOG_DIALECTS, "ledger")


@dataclass(frozen=True, slots=True)
class LakeTable:
    """``name`` is ``silver/jobs``; columns that end in ``!`` are never null."""

    name: str
    about: str
    columns: tuple[tuple[str, str, str], ...]  # name, type in SQL, what it is

    @property
    def short(self) -> str:
        """Its name in SQL."""
        layer, _, name = self.name.partition("/")
        return f"bronze_{name}" if layer == "bronze" else name or layer

    @property
    def partitions(self) -> tuple[str, ...]:
        """The columns that are in the paths of its files instead of in these."""
        if self.name.startswith("gold/"):
            return ("month",)
        return ("is_open",) if self.name in KEYED else ()

    @property
    def schema(self) -> StructType:
        return StructType(
            [
                StructField(name, _TYPES[kind.rstrip("!")], True, {"comment": about})
                for name, kind, about in self.columns
            ]
        )


_VERSIONS = MapType(StringType(), LongType())
_TYPES = {**options.TYPES, _VERSIONS.simpleString(): _VERSIONS}


def delta_schema(table: LakeTable) -> pa.Schema:
    """The columns of a table as Delta has them: with comments, and some never null."""
    found = options.arrow_schema(table.schema)
    for at, (name, kind, about) in enumerate(table.columns):
        nullable = not kind.endswith("!")
        found = found.set(at, pa.field(name, found.field(at).type, nullable, {"comment": about}))
    return found


_PLACE = (
    ("host", "string!", "the server: `host=` in the path of the log, or `ingest --host`"),
    ("date", "date!", "the day, UTC"),
)
_MONTH = (*_PLACE, ("month", "string!", "the month of the date, as `2026-11`"))
_WHOSE = (
    ("dialect", "string!", "`ztick` or `workq`"),
    ("log", "string!", "path of the log"),
    ("key", "string!", "identifier or job id"),
    ("queue", "string", "workq: name of the job"),
)
_FOUND_BY = ((HASH, "bigint", "of the key: rows of a job are found by it"),)
_VALUE = (
    ("value", "string!", "its value, JSON of the app's codec"),
    ("base64", "boolean!", "the value is not text, and is written in base64"),
)
_OPEN = (("is_open", "boolean!", "it may still change: waiting, leased, planned or triggered"),)
_BY_QUEUE = (
    ("dialect", "string!", "`ztick`, `workq` or `kestrel`"),
    ("queue", "string!", "queue; of a schedule, the rule; empty if it has none"),
)


def _moments(*names: str) -> tuple[tuple[str, str, str], ...]:
    """Pairs of columns: a timestamp and its nanoseconds."""
    words = {
        "created": "added or put; ztick does not record it",
        "ready": "when it could have started; ztick: the time it was planned for",
        "started": "when it started",
        "ended": "when it ended",
        "expires": "when its time to live ends",
        "planned": "the time it was planned for",
        "put": "when it was put",
        "added": "when its job was added",
        "done": "when it was recorded",
        "set": "when it happened",
    }
    return tuple(
        column
        for name in names
        for column in (
            (f"{name}_at", "timestamp", words[name]),
            (f"{name}_ns", "bigint", "the same in nanoseconds since 1970"),
        )
    )


def _ranks(what: str, about: str) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (f"{what}_{rank}_s", "double", f"{about}, {rank}, seconds") for rank in (*_RANKS, "max")
    )


_RANKS = ("p50", "p90", "p95", "p99")
_COUNTS = tuple((name, "bigint!", about) for name, about in views.COUNTS.items())
_LATENCY = (
    ("started", "bigint!", "attempts that started"),
    ("failed", "bigint!", "of these, failed, timed out or cut off"),
    *_ranks("wait", "ready to started"),
    *_ranks("run", "started to ended"),
)
_DEPTHS = (
    ("scheduled", "bigint!", "jobs that are due later"),
    ("ready", "bigint!", "jobs that wait"),
    ("running", "bigint!", "jobs that run"),
)


def _bronze(dialect: str) -> LakeTable:
    base = StructType([*options.base_schema(dialect), *options.NAMED_COLUMNS.get(dialect, ())])
    full = options.with_extras(base, (), options.CORRUPT_RECORD)
    stored = [f for f in full.fields if (dialect, f.name) != ("ztick", "key")]  # its identifier
    columns = [(f.name, f.dataType.simpleString(), "as in spark.md") for f in stored]
    columns += _FOUND_BY if dialect != "ztick" else ()
    columns += [("_ingested_at", "timestamp!", "when the lake got it"), *_PLACE]
    return LakeTable(
        f"bronze/{dialect}", f"records of {dialect} logs as decoded, and damage", tuple(columns)
    )


TABLES: Final[Mapping[str, LakeTable]] = {
    table.name: table
    for table in (
        *(_bronze(dialect) for dialect in BRONZE_DIALECTS),
        LakeTable(
            "bronze/runs",
            "lines of the run history beside ztick logs",
            (
                ("_log", "string!", "path of the log"),
                ("_file", "string!", "the file of runs"),
                ("_offset", "bigint!", "where the line begins in it"),
                ("kind", "string!", "`run` or `damage`"),
                ("job", "string", "identifier"),
                ("rule", "string", "the rule it ran by; empty if none matched"),
                ("runner", "string", "the runner of that rule"),
                ("execution_ns", "bigint", "the time it was planned for"),
                ("started_ns", "bigint", "when it started"),
                ("ended_ns", "bigint", "when it ended"),
                ("outcome", "string", "`executed`, `failed` or `cut-off`"),
                ("detail", "string", "why it failed"),
                ("output", "string", "the end of its output"),
                ("_damage", "string", "why the line cannot be read"),
                ("_ingested_at", "timestamp!", "when the lake got it"),
                *_FOUND_BY,
                *_PLACE,
            ),
        ),
        LakeTable(
            "bronze/notes",
            "what ledgers say of attempts of work queues: who leased them, what was cancelled",
            (
                ("_log", "string!", "path of the ledger"),
                ("key", "string!", "job id"),
                ("attempt", "int", "the attempt that was leased; null: the job was cancelled"),
                ("worker", "string", "who leased it"),
                ("ns", "bigint", "when the lease was noted, or the job was cancelled"),
                ("_ingested_at", "timestamp!", "when the lake got it"),
                *_FOUND_BY,
                *_PLACE,
            ),
        ),
        LakeTable(
            "bronze/plans",
            "what the records of a ztick log that came in one ingest say of each plan",
            (
                ("_log", "string!", "path of the log"),
                ("key", "string!", "identifier"),
                (HASH, "bigint!", "of the identifier, in order in each row group"),
                ("ready_ns", "bigint", "the time planned for; null for removals"),
                ("latest", "bigint!", "position of the last record, times four, and its status"),
                ("position", "bigint!", "of the first record"),
                ("created_ns", "bigint", "when the first record was written, if a ledger says so"),
                ("last_ns", "bigint", "when the last record was written"),
                ("_ingested_at", "timestamp!", "when the lake got it"),
                *_PLACE,
            ),
        ),
        LakeTable(
            "silver/attempts",
            "one row per job and attempt, and one per job that waits",
            (
                *_WHOSE,
                ("task", "string", "workq: the task that the payload names"),
                ("worker", "string", "workq: who leased it, if the ledger was ingested"),
                ("rule", "string", "ztick: the rule it ran by"),
                ("runner", "string", "ztick: the runner of that rule"),
                ("life", "int", "workq: an id may be used again; from 1; 0 without an add"),
                ("attempt", "int!", "from 1; without `started_at`, the one it waits for"),
                ("first", "boolean!", "the first row of its job: count these to count jobs"),
                *_moments("created", "ready", "started", "ended", "expires"),
                ("wait_s", "double", "ready to started; ztick: how late it started"),
                ("run_s", "double", "started to ended"),
                ("outcome", "string!", "as in pipeline.md"),
                ("error", "string", "of a failure: its class, or what the runner said"),
                ("retried", "boolean", "workq: the job was retried after this failure"),
                ("exhausted", "boolean", "workq: the last attempt that max-attempts allows"),
                ("position", "bigint", "of the record that begins the row"),
                *_FOUND_BY,
                *_PLACE,
                *_OPEN,
            ),
        ),
        LakeTable(
            "silver/jobs",
            "one row per job: what became of it so far",
            (
                *_WHOSE,
                ("life", "int!", "workq: an id may be used again; else 1"),
                ("status", "string!", "outcome of its last attempt"),
                ("attempts", "bigint!", "how often it started"),
                ("failures", "bigint!", "how often it failed, timed out or was cut off"),
                *_moments("created", "ready", "started", "ended"),
                *_FOUND_BY,
                *_PLACE,
                *_OPEN,
            ),
        ),
        LakeTable(
            "silver/runs",
            "one row per recorded run of a schedule",
            (
                ("log", "string!", "path of the log"),
                ("key", "string!", "identifier of the job"),
                ("rule", "string", "the rule it ran by; null if none matched"),
                ("runner", "string", "the runner of that rule"),
                *_moments("planned", "started", "ended"),
                ("lateness_s", "double", "planned to started"),
                ("run_s", "double", "started to ended"),
                ("outcome", "string!", "`executed`, `failed` or `cut-off`"),
                ("detail", "string", "why it failed"),
                ("output", "string", "the end of its output"),
                *_PLACE,
            ),
        ),
        LakeTable(
            "silver/timetable_firings",
            "one row per occurrence of a timetable and attempt",
            (
                ("timetable", "string!", "name of the timetable"),
                ("occurrence", "string!", "its time in the zone of the timetable, ISO 8601"),
                ("dialect", "string!", "`ztick`"),
                ("log", "string!", "path of the log"),
                ("key", "string!", "identifier of the job, `timetable@occurrence`"),
                ("attempt", "int!", "from 1; without `started_at`, the one it waits for"),
                *_moments("ready", "started", "ended"),
                ("lateness_s", "double", "planned to started"),
                ("run_s", "double", "started to ended"),
                ("outcome", "string!", "as in pipeline.md"),
                *_FOUND_BY,
                *_PLACE,
                *_OPEN,
            ),
        ),
        LakeTable(
            "silver/items",
            "one row per item of a fan-out queue",
            (
                ("log", "string!", "path of the journal"),
                ("queue", "string!", "name of the queue"),
                ("item_id", "bigint!", "ids ascend from 1"),
                *_moments("put", "expires"),
                ("data_size", "int", "bytes of data"),
                ("position", "bigint!", "of its record in the log"),
                *_FOUND_BY,
                *_PLACE,
            ),
        ),
        LakeTable(
            "silver/steps",
            "one row per step that a task has recorded, and per wait of a parked job that is over",
            (
                ("log", "string!", "path of the ledger"),
                ("key", "string!", "job id"),
                ("step", "string!", "name of the step"),
                ("number", "int!", "counts the steps of this name in the job, from 1"),
                ("timed_out", "boolean!", "it waited, and what it waited for did not come in time"),
                *_VALUE,
                *_moments("added", "done"),
                ("position", "bigint!", "of its record in the ledger"),
                *_FOUND_BY,
                *_PLACE,
            ),
        ),
        LakeTable(
            "silver/events",
            "one row per event that has happened",
            (
                ("log", "string!", "path of the ledger"),
                ("event", "string!", "name of the event"),
                *_VALUE,
                *_moments("set"),
                ("position", "bigint!", "of its record in the ledger"),
                *_FOUND_BY,
                *_PLACE,
            ),
        ),
        LakeTable(
            "silver/readers",
            "where each reader of a fan-out queue stood at each ingest",
            (
                ("log", "string!", "path of the journal"),
                ("queue", "string!", "name of the queue"),
                ("reader", "string!", "name of the reader; empty for the queue itself"),
                ("observed_at", "timestamp!", "when the lake looked"),
                ("head", "bigint", "the last item that it has finished"),
                ("tail_id", "bigint", "the last item that was put"),
                ("items_behind", "bigint!", "items that it still has to be given"),
                ("bytes_behind", "bigint!", "and their bytes"),
                ("oldest_at", "timestamp", "when the oldest of these was put"),
                *_PLACE,
            ),
        ),
        LakeTable(
            "silver/damage",
            "one row per damaged place and per hole in the history",
            (
                ("dialect", "string!", "of the log; `runs` for a line of the run history"),
                ("log", "string!", "path of the log"),
                ("file", "string!", "the file"),
                ("offset", "bigint!", "where the damage begins"),
                ("length", "bigint", "bytes"),
                ("what", "string!", "what is wrong; `lost:` what was gone before it was read"),
                ("found_at", "timestamp!", "when the lake met it"),
                *_PLACE,
            ),
        ),
        *(
            LakeTable(
                f"gold/throughput_{word}",
                f"what came, started and ended, by queue and {unit}",
                (*_BY_QUEUE, *hour, *_COUNTS, *_MONTH),
            )
            for word, unit, hour in (
                ("hourly", "hour", (("hour", "timestamp!", "when the hour begins"),)),
                ("daily", "day", ()),
            )
        ),
        *(
            LakeTable(
                f"gold/latency_{word}",
                f"waits and run times by queue and {unit} of the start",
                (*_BY_QUEUE, *hour, *_LATENCY, *_MONTH),
            )
            for word, unit, hour in (
                ("hourly", "hour", (("hour", "timestamp!", "when the hour begins"),)),
                ("daily", "day", ()),
            )
        ),
        LakeTable(
            "gold/failures_daily",
            "failures by queue, day and reason",
            (
                *_BY_QUEUE,
                ("outcome", "string!", "`failed`, `timed-out` or `cut-off`"),
                ("reason", "string!", "class of the error, what the runner said, else the outcome"),
                ("failures", "bigint!", "how many"),
                *_MONTH,
            ),
        ),
        LakeTable(
            "gold/lateness_daily",
            "how late runs of a schedule started, by rule and day",
            (
                ("rule", "string!", "the rule"),
                ("runs", "bigint!", "runs that started"),
                ("late", "bigint!", "of these, more than a second late"),
                *_ranks("lateness", "planned to started"),
                *_MONTH,
            ),
        ),
        LakeTable(
            "gold/depth_changes",
            "what came to and left each state in each hour; depth_hourly adds these up",
            (*_BY_QUEUE, ("hour", "timestamp!", "when the hour begins"), *_DEPTHS, *_MONTH),
        ),
        LakeTable(
            "gold/depth_hourly",
            "how many jobs were scheduled, ready and running at the end of each hour",
            (*_BY_QUEUE, ("hour", "timestamp!", "when the hour begins"), *_DEPTHS, *_MONTH),
        ),
        LakeTable(
            "gold/reader_lag_hourly",
            "the furthest that a reader was behind in each hour, as far as ingests saw it",
            (
                ("log", "string!", "path of the journal"),
                ("queue", "string!", "name of the queue"),
                ("reader", "string!", "name of the reader"),
                ("hour", "timestamp!", "when the hour begins"),
                ("items_behind", "bigint!", "the most items"),
                ("bytes_behind", "bigint!", "the most bytes"),
                *_MONTH,
            ),
        ),
        LakeTable(
            SNAPSHOTS,
            "one row per commit: the version of every table, and how far the logs were read",
            (
                ("number", "bigint!", "from 1"),
                ("made_at", "timestamp!", "when the row was written"),
                ("complete", "boolean!", "false: records are in bronze, silver and gold follow"),
                ("versions", "map<string,bigint>!", "the Delta version of each table"),
                ("offsets", "string!", "up to where each log was read, JSON"),
                ("runs", "string!", "up to where each file of runs was read, JSON"),
                ("readers", "string!", "what the checkpoints of readers looked like, JSON"),
                ("dropped", "string!", "by table, the first day that `retain` has kept, JSON"),
            ),
        ),
    )
}


def to_datetime(ns: int) -> datetime:
    """A moment, to the microsecond."""
    return datetime.fromtimestamp(ns // NS_PER_S, UTC).replace(microsecond=ns % NS_PER_S // 1000)
