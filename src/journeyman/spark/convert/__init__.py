"""Logs of one kind made into another, and what cannot be carried over, listed.

    ztick   -> workq      jobs that are planned become scheduled jobs; rules are listed
    workq   -> ztick      scheduled jobs become planned jobs; what else a job says is listed
    kestrel -> workq      items that some reader still waits for become jobs
    any     -> parquet    every record, and back, byte for byte
    any     -> keyspace   job records with their indexes and counters, sorted for a bulk load

A conversion is a function from state tables to two DataFrames: rows for a sink, and losses: one row
for every job, and every field of a job, that the other side has no place for, with the reason. What
is in neither does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from journeyman.errors import UsageError
from journeyman.spark.convert.between_logs import (
    JobDefaults,
    journal_to_queue,
    queue_to_schedule,
    schedule_to_queue,
)
from journeyman.spark.convert.keyspace import queue_rows_to_keyspace, queue_state_to_keyspace
from journeyman.spark.sinks import write
from journeyman.spark.tables import packets, tables_of

__all__ = ["CONVERSIONS", "Conversion", "convert"]


Tables = dict[str, DataFrame]
Converter = Callable[[Tables, JobDefaults], tuple[DataFrame, DataFrame]]


@dataclass(frozen=True, slots=True)
class Conversion:
    """Rows for a sink, and what is not carried over; both made from what Spark ``held``."""

    target: str
    rows: DataFrame
    losses: DataFrame
    held: DataFrame

    def release(self) -> None:
        """Nothing more will be asked of it."""
        self.held.unpersist()

    def write(self, output: str, *, force: bool = False) -> None:
        """Write the rows as a log or keyspace of their own."""
        mode = "overwrite" if force else "append"
        if self.target == "keyspace":
            write(self.rows, "keyspace", output, mode=mode)
        else:
            write(self.rows, self.target, output, mode=mode, orderBy="_log,_position")


def _schedule_to_keyspace(tables: Tables, settings: JobDefaults) -> tuple[DataFrame, DataFrame]:
    return queue_rows_to_keyspace(*schedule_to_queue(tables, settings), settings.now_ns)


def _journal_to_keyspace(tables: Tables, settings: JobDefaults) -> tuple[DataFrame, DataFrame]:
    return queue_rows_to_keyspace(*journal_to_queue(tables, settings), settings.now_ns)


CONVERSIONS: Final[Mapping[tuple[str, str], Converter]] = {
    ("ztick", "workq"): schedule_to_queue,
    ("workq", "ztick"): lambda tables, settings: queue_to_schedule(tables, settings.now_ns),
    ("kestrel", "workq"): journal_to_queue,
    ("workq", "keyspace"): lambda tables, s: queue_state_to_keyspace(tables, s.now_ns),
    ("ztick", "keyspace"): _schedule_to_keyspace,
    ("kestrel", "keyspace"): _journal_to_keyspace,
}


def convert(
    spark: SparkSession, source: str, target: str, paths: Sequence[str], settings: JobDefaults
) -> Conversion:
    """Plan a conversion of the logs at these paths. Nothing runs before it is written."""
    if (source, target) not in CONVERSIONS:
        ways = ", ".join(f"{a} to {b}" for a, b in CONVERSIONS)
        raise UsageError(f"{source} cannot become {target}; there are {ways}, any to parquet")
    held = packets(spark, source, list(paths)).persist()  # rows and losses: the log is read once
    tables = tables_of(held, source, payloads=source != "ztick")
    rows, losses = CONVERSIONS[source, target](tables, settings)
    return Conversion(target, rows, losses, held)
