"""Logs of any mix of dialects -> rows of attempts, and the lag of readers.

    {"workq": [paths], "ztick": [paths], "kestrel": [paths]}  -->  one table

Of each log only the columns are read that history needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructType

from journeyman.errors import UsageError
from journeyman.spark import read, views
from journeyman.spark.history import (
    kestrel_attempts,
    ledger_notes,
    workq_attempts,
    ztick_attempts,
)
from journeyman.spark.history.columns import ATTEMPTS, attempts_at
from journeyman.spark.history.ztick_attempts import read_runs, run_directories
from journeyman.spark.replay import packets, tables_of
from journeyman.spark.source import options

_PLACE = ("_log", "_file", "_segment", "_length", "_position", "kind")
# History and audit look at these columns of a record.
COLUMNS = {
    options.ZTICK: (*_PLACE, "time", "identifier", "execution_ns", "status"),
    options.WORKQ: (
        *(*_PLACE, "key", "logged_ns", "name", "ttr_ms", "ttl_ms", "priority"),
        *("max_attempts", "max_fails", "payload_size", "time_ns", "created_ns"),
    ),
    options.KESTREL: (*_PLACE, "reader", "item_id"),
}


def records_of(
    spark: SparkSession, dialect: str, paths: Sequence[str], more_columns: Iterable[str] = ()
) -> DataFrame:
    """The records of these logs, narrowed to what history and audit look at."""
    if dialect not in COLUMNS:
        raise UsageError(f"{dialect} has no history: give logs of {', '.join(COLUMNS)}")
    wanted = {*COLUMNS[dialect], *more_columns}
    full = options.with_extras(options.base_schema(dialect), (), options.CORRUPT_RECORD)
    known = [*full.fields, *options.NAMED_COLUMNS.get(dialect, [])]
    fields = [field for field in known if field.name in wanted]
    # Only the names in payloads and results leave the task that reads them.
    names = {field.name for field in options.NAMED_COLUMNS.get(dialect, [])}
    return read(spark, dialect, *paths, schema=StructType(fields), payloads=bool(names & wanted))


def runs_of(
    spark: SparkSession, paths: Sequence[str], directories: Sequence[str] = ()
) -> DataFrame:
    """Return the runs that servers have recorded beside the logs, or in the directories given."""
    parsed = options.SourceOptions.parse(options.ZTICK, {"paths": json.dumps(list(paths))})
    return read_runs(spark, run_directories(parsed, directories))


def attempts_of(
    spark: SparkSession,
    logs: Mapping[str, Sequence[str]],
    *,
    as_of_ns: int | None = None,
    run_directories: Sequence[str] = (),
    journal: tuple[DataFrame, DataFrame] | None = None,
) -> DataFrame:
    """One row per job and attempt, of all logs, as they stood at ``as_of_ns``.

    ``logs`` are paths by dialect; a ledger among them says who ran which attempt. Without a moment
    only what the logs say counts. ``journal`` is what ``journal_of`` gave, if it was asked before.
    """
    frames = []
    for dialect, paths in logs.items():
        if dialect == options.LEDGER:
            continue
        if dialect == options.KESTREL:
            frames.append(kestrel_attempts.attempts(*(journal or journal_of(spark, paths))))
        elif dialect == options.ZTICK:
            runs = runs_of(spark, paths, run_directories)
            frames.append(ztick_attempts.attempts(records_of(spark, options.ZTICK, paths), runs))
        else:
            records = records_of(spark, dialect, paths, workq_attempts.NAMES)
            leased = workq_attempts.attempts(records)
            frames.append(_with_notes(leased, logs.get(options.LEDGER, ())))
    if not frames:
        return spark.createDataFrame([], ATTEMPTS)
    return attempts_at(reduce(DataFrame.unionByName, frames), as_of_ns)


def _with_notes(attempts: DataFrame, ledgers: Sequence[str]) -> DataFrame:
    """Rows of work queues with what the ledger beside each of their logs says of them."""
    if not ledgers:
        return attempts
    spark = attempts.sparkSession
    fields = [
        field for field in options.base_schema(options.LEDGER) if field.name in ledger_notes.RECORD
    ]
    kinds = ",".join(ledger_notes.KINDS)
    records = read(spark, options.LEDGER, *ledgers, kinds=kinds, schema=StructType(fields))
    notes = records.mapInArrow(ledger_notes.note_batches, ledger_notes.NOTES)
    beside = F.regexp_replace("_log", "[^/]+/?$", "")
    tables = {"attempts": attempts, "notes": notes}
    placed = {name: frame.withColumn("place", beside) for name, frame in tables.items()}
    return views.run_in_spark(spark, views.statement("noted_attempts"), **placed)


def lag_of(spark: SparkSession, logs: Mapping[str, Sequence[str]]) -> DataFrame:
    """How far each reader of a kestrel queue is behind."""
    paths = logs.get(options.KESTREL)
    if not paths:
        raise UsageError("only kestrel queues have readers that lag: give the directory of one")
    return kestrel_attempts.lag(*journal_of(spark, paths))


def journal_of(spark: SparkSession, paths: Sequence[str]) -> tuple[DataFrame, DataFrame]:
    """Items and readers of kestrel queues, as state tables.

    Both come from the same packets, a fraction of the journals, which are kept for that.
    """
    tables = tables_of(packets(spark, options.KESTREL, paths).persist(), options.KESTREL)
    return tables["items"], tables["readers"]
