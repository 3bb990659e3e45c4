"""A replay straight into Parquet files: one job, in which the tasks that merge also write.

    packets --by log, table and bucket--> groups --merge--> rows --Arrow--> part files
                                                                             |
    driver   <-- names, rows, damage -----------------------------------------
             --> all directories are put in their places, when every task has ended well

Taking millions of rows out of Python, through Spark's row format, into its Parquet writer costs
several times what the replay itself costs. Here rows never leave Arrow, and the logs are read once
for all tables and for what is said about damage. It needs a file system that the driver and all
tasks share, and that can rename a directory; to other places Spark's own writer goes
(journeyman.spark.answers).

A task that is tried again writes files of other names; only those are published that the driver
was told of. What a killed run leaves is one directory whose name begins with ``_temporary-``.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row
from pyspark.sql.types import StructType

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.spark.files import staging_name
from journeyman.spark.replay import STATE_TABLES, groups_of
from journeyman.spark.source.options import (
    DAMAGE_KIND,
    PACKET_KIND,
    PACKET_SCHEMA,
    arrow_schema,
    struct,
)
from journeyman.spark.source.packets import extra_columns, with_constants

# Damage of a checkpoint is of interest to the readers.
_DAMAGE_TABLE: Final = {"kestrel": "readers"}
_MESSAGE: Final = struct(
    "table string, file string, rows bigint, places bigint, damaged_bytes bigint"
)
ROW_GROUP_ROWS: Final = 256 * 1024
_LOOKED_AT: Final = 4096  # rows that decide how the columns are encoded
_SUCCESS: Final = "_SUCCESS"


@dataclass(slots=True)
class Written:
    """What a replay came to."""

    rows: dict[str, int] = field(default_factory=dict)  # by table
    damaged_places: int = 0
    damaged_bytes: int = 0


def write_states(
    packets: DataFrame, dialect: str, targets: Mapping[str, str], *, overwrite: bool = False
) -> Written:
    """All tables of the packets' state, each into the directory that ``targets`` names for it.

    UsageError if one exists already and ``overwrite`` was not said.
    """
    # Absolute: the tasks may run elsewhere.
    places = {name: Path(path).absolute() for name, path in targets.items()}
    if not overwrite:
        for place in places.values():
            _refuse_existing(place)
    above = next(iter(places.values())).parent
    staging = above / staging_name(SystemClock().now_ns())
    extras = extra_columns(packets, PACKET_SCHEMA.names)
    try:
        staging.mkdir(parents=True)
        told = write_files(packets, dialect, str(staging)).collect()
        written = _summed(told, targets)
        for table in STATE_TABLES[dialect].values():
            files = [row["file"] for row in told if row["table"] == table.name]
            schema = arrow_schema(StructType([*table.schema.fields, *extras]))
            _complete(staging / table.name, files, schema)
        for name, place in places.items():
            _put_in_place(staging / name, place, staging / f"{name}.old", overwrite=overwrite)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return written


def write_files(packets: DataFrame, dialect: str, staging: str) -> DataFrame:
    """What tells of the files that were written; they are when it is asked for."""
    extras = tuple(each.name for each in extra_columns(packets, PACKET_SCHEMA.names))
    task = partial(_write_groups, dialect, staging, extras)
    return route_packets(packets, dialect).mapInArrow(task, _MESSAGE)


def route_packets(packets: DataFrame, dialect: str) -> DataFrame:
    """Packets and damages, the rows of a group together and in order."""
    made = {
        "table": f"coalesce(table, '{_DAMAGE_TABLE.get(dialect, DAMAGE_KIND)}') AS table",
        "bucket": "coalesce(bucket, 0) AS bucket",
    }
    extras = extra_columns(packets, PACKET_SCHEMA.names)
    # In words: each column that is made here costs Python and Java a dozen messages.
    columns = [made.get(name, name) for name in PACKET_SCHEMA.names]
    return (
        packets.selectExpr(*columns, *(f"`{each.name}`" for each in extras))
        .filter(f"kind IN ('{PACKET_KIND}', '{DAMAGE_KIND}')")
        .repartition("_log", "table", "bucket")
        .sortWithinPartitions("_log", "table", "bucket", "_position")
    )


def _summed(told: Sequence[Row], targets: Mapping[str, str]) -> Written:
    written = Written(dict.fromkeys(targets, 0))
    for row in told:
        if row["table"] is not None:
            written.rows[row["table"]] += row["rows"]
        written.damaged_places += row["places"] or 0
        written.damaged_bytes += row["damaged_bytes"] or 0
    return written


def _write_groups(
    dialect: str, staging: str, extras: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task does: its groups into one file a table; then it tells of them."""
    told: list[dict[str, Any]] = []
    with ExitStack() as stack:
        files: dict[str, _PartFile] = {}
        for group in groups_of(batches, extras):
            told += _told_of_damage(packet.row for packet in group.packets)
            for table in STATE_TABLES[dialect].values():
                if table.packets != group.table:
                    continue
                if table.name not in files:
                    made = _PartFile(Path(staging) / table.name, table.schema, extras)
                    files[table.name] = stack.enter_context(made)
                for batch in table.merge(group):
                    files[table.name].add(batch, group.extras)
    told += [{"table": name, "file": file.name, "rows": file.rows} for name, file in files.items()]
    yield pa.RecordBatch.from_pylist(told, schema=arrow_schema(_MESSAGE))


def _told_of_damage(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the driver is told of the damage in a group."""
    lengths = [row["_length"] or 0 for row in rows if row["kind"] == DAMAGE_KIND]
    return [{"places": len(lengths), "damaged_bytes": sum(lengths)}] if lengths else []


class _PartFile:
    """A Parquet file being written, in row groups of some size whatever the groups' sizes are."""

    def __init__(self, directory: Path, schema: StructType, extras: tuple[str, ...]) -> None:
        self._shape = arrow_schema(schema)
        self._extras = extras
        self._whole = self._shape
        for name in extras:
            self._whole = self._whole.append(pa.field(name, pa.string()))
        self._directory = directory
        self.name = f"part-{secrets.token_hex(8)}.zstd.parquet"
        self.rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> _PartFile:
        return self

    def __exit__(self, *_how: object) -> None:
        if self._writer is None or self._waiting:
            self._write()
        if self._writer is not None:
            self._writer.close()

    def add(self, batch: pa.RecordBatch, extras: tuple[Any, ...]) -> None:
        named = dict(zip(self._extras, extras, strict=True))
        self._waiting.append(with_constants(batch.cast(self._shape), named))
        self._waiting_rows += batch.num_rows
        self.rows += batch.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._waiting, self._whole)
        if self._writer is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(
                self._directory / self.name,
                self._whole,
                compression="zstd",
                use_dictionary=repeating_columns(rows),  # type: ignore[arg-type]  # the stubs know a bool
            )
        self._writer.write_table(rows, ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows = [], 0


def repeating_columns(rows: pa.Table, looked_at: int = _LOOKED_AT) -> list[str]:
    """Columns whose values come again. Of the others a dictionary takes time, and room too."""
    some = rows.slice(0, looked_at)
    return [
        field.name
        for field, column in zip(some.schema, some.columns, strict=True)
        if pa.types.is_dictionary(field.type)
        or (
            not pa.types.is_nested(field.type)
            and pc.count_distinct(column).as_py() <= max(1, some.num_rows // 2)
        )
    ]


def _complete(directory: Path, files: list[str], schema: pa.Schema) -> None:
    """See to it that just the files are there that were told of, or one without rows."""
    directory.mkdir(exist_ok=True)
    there = set(os.listdir(directory))
    if missing := set(files) - there:
        raise UsageError(
            f"{directory}: {min(missing)} was written, but is not seen from here; "
            "choose an --output that all machines share"
        )
    for stray in there - set(files):
        (directory / stray).unlink()
    if not files:
        pq.write_table(schema.empty_table(), directory / f"part-{secrets.token_hex(8)}.parquet")
    (directory / _SUCCESS).touch()


def _put_in_place(made: Path, place: Path, aside: Path, *, overwrite: bool) -> None:
    replaces = overwrite and place.exists()
    if replaces:
        place.rename(aside)
    else:
        _refuse_existing(place)
    try:
        made.rename(place)
    except OSError:
        if replaces:  # what is left in the staging directory goes with it
            aside.rename(place)
        raise


def _refuse_existing(place: Path) -> None:
    if place.exists():
        raise UsageError(f"{place} already exists: choose another --output, or give --force")
