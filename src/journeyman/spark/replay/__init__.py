"""The final state of logs, by Spark: the state tables.

    states(spark, "ztick", "/logs")     {"jobs": DataFrame, "rules": DataFrame}
    states(spark, "workq", "/logs")     {"jobs": DataFrame, "orphans": DataFrame}
    states(spark, "kestrel", "/logs")   {"items": DataFrame, "readers": DataFrame}
    states(spark, "ledger", "/logs")    {"entries": DataFrame}

A table is made of any number of logs and has one row per key: what the fold of journeyman.folds
says of that key (tests/spark/test_replay_*.py). Columns of the tables: docs/spark.md.

    source, reduce=...  ->  packets  ->  repartition by log, table and bucket of the key  ->  merge

No record becomes a row before it is folded. All packets of one log, table and bucket form a group,
and hold every record of the keys in it. A group is merged in memory by a function of its dialect
(``*_tasks.py``), which answers with columns. Sorting is of packets, not of records: a few rows per
task.

All tables of a dialect are made from the same packets. Spark reads the log once for each table that
is asked for, unless the packets are cached, which is cheap: they are a fraction of the log.

    held = packets(spark, "ztick", "/logs").persist()
    jobs, rules = tables_of(held, "ztick").values()

Most payloads in a log belong to records that no state keeps, so those that are asked for are read
from the log afterwards (``with_payloads``). ``write_states`` writes the tables straight to Parquet:
the tasks that merge also write, so rows never leave Arrow, and the logs are read once for all
tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import ArrayType, StructField, StructType

from journeyman.errors import UsageError
from journeyman.spark.data_sources import open_logs
from journeyman.spark.files import Span, changed, read_spans
from journeyman.spark.source.options import (
    DAMAGE_KIND,
    LEDGER,
    OFFSET_MASK,
    PACKET_SCHEMA,
    PACKET_SOURCE,
    REDUCERS,
    SEGMENT_SHIFT,
    arrow_schema,
    columns,
    struct,
)
from journeyman.spark.source.packets import extra_columns, with_constants
from journeyman.spark.tables import Splitter, TableFiles, write_tables, writing

PLACE: Final = columns(
    """
    _log       string  path of the log; equal keys in two logs are two rows
    _file      string  file of the record that determines the row
    _segment   int     ordinal of that file in its log
    _offset    bigint
    _length    int     framing included
    _position  bigint  `_segment << 44 | _offset`: the order inside one log
    """
)
_NO_SOURCE: Final = dict.fromkeys(PACKET_SOURCE.names)
_MAX_ROWS: Final = 65_536  # rows of a batch that goes to Spark
_ALIGNED: Final = 8  # bytes
_BLOCK_BITS: Final = 26  # 64 MiB of log
# Damage of a checkpoint is of interest to the readers.
_DAMAGE_TABLE: Final = {"kestrel": "readers"}
_WITH_PAYLOADS: Final = {("workq", "jobs"), ("kestrel", "items")}
Ints = npt.NDArray[np.signedinteger[Any]]


class ReplayPacket(NamedTuple):
    """One row of a group; see PACKET_SCHEMA. The fields of ``source`` stand beside the others."""

    packet: pa.Buffer  # empty where there is none
    details: pa.Buffer
    row: dict[str, Any]  # the other columns


@dataclass(slots=True)
class PacketGroup:
    """All packets of one log, table and bucket, in log order; some rows have none (see presence).

    ``kept`` is for a merge that makes several tables of one group.
    """

    log: str
    table: str | None
    extras: tuple[Any, ...]  # the values of the partition columns
    packets: list[ReplayPacket] = field(default_factory=list)
    kept: Any = None

    def files(self) -> dict[int, str]:
        """The files of the log that records of this group may come from, by segment."""
        found: dict[int, str] = {}
        for packet in self.packets:
            row = packet.row
            found.update(zip(row["segments"] or (), row["files"] or (), strict=True))
        return found


@dataclass(frozen=True, slots=True)
class StateTable:
    """A state table, and how the groups of a packet's table become its rows.

    What makes the rows is named, as ``module:function``, and imported by the task: it brings numba,
    which whoever only plans a query does without.
    """

    name: str
    packets: str  # the name of the table in packets
    rows: str
    schema: StructType  # without partition columns

    def merge(self, group: PacketGroup) -> Iterator[pa.RecordBatch]:
        """The rows of one group."""
        module, _, function = self.rows.partition(":")
        made: Iterator[pa.RecordBatch] = getattr(import_module(module), function)(group)
        return made


def _table(name: str, rows: str, text: str, *more: StructField, packets: str = "") -> StateTable:
    schema = StructType([*PLACE, *columns(text), *more])
    return StateTable(name, packets or name, f"journeyman.spark.replay.{rows}", schema)


def _by_name(*tables: StateTable) -> dict[str, StateTable]:
    return {table.name: table for table in tables}


ORPHAN_RECORD: Final = struct(
    "position bigint, length int, kind string, logged_ns bigint, result_size int"
)
# The tables of each dialect:
#
# ztick     jobs, rules      the last record of each, unless it is a removal
# workq     jobs, orphans    every job from its add on; records whose add is not there
# kestrel   items, readers   the same put twice is one; readers as folded, and as an opened queue
#                            sees them
#
# The folds of workq need no payloads; where two adds can only be told apart by theirs, they are
# read from the log again. A reader of kestrel is opened with the ids of the whole queue in mind
# (``open_queue``). All it needs of them is the least and the greatest, of which a row without a
# packet tells.
STATE_TABLES: Final[Mapping[str, Mapping[str, StateTable]]] = {
    "ztick": _by_name(
        _table(
            "jobs",
            "ztick_tasks:job_rows",
            """
            identifier    string
            execution_ns  bigint  when the job is due
            status        string  planned, triggered, executed or failed
            """,
        ),
        _table(
            "rules",
            "ztick_tasks:rule_rows",
            """
            identifier   string
            pattern      string         how identifiers of its jobs begin
            runner       string         shell, amqp, direct, awf, http, redis, queue or journal
            runner_args  array<string>
            """,
        ),
    ),
    "workq": _by_name(
        _table(
            "jobs",
            "workq_tasks:job_rows",
            """
            key                string   canonical UUID
            job_id             binary   16 bytes
            kind               string   add or schedule
            logged_ns          bigint   when the add was logged
            name               string   of the queue
            ttr_ms             bigint
            ttl_ms             bigint
            priority           int
            max_attempts       bigint   as in the record
            max_fails          bigint   as in the record
            payload_size       int
            payload            binary   null without `payloads`
            time_ns            bigint   when due; null if ready at once
            created_ns         bigint
            state              string   new, completed, failed, pending or leased
            attempts           bigint
            fails              bigint
            result_size        int      null while unfinished; 0 when the attempts ran out
            result             binary   null without `payloads`, and while unfinished
            started_ns         bigint   null if never
            finished_ns        bigint   null if never
            exhausted          boolean  failed because the attempts ran out
            owed_timeouts      bigint
            parked             boolean  it waits for a time, an event or other jobs
            expires_ns         bigint   TTL after it was created, due or woken; 2^63 - 1: never
            started_position   bigint   of the record that set `started_ns`
            finished_position  bigint   of the record that set `finished_ns`
            result_position    bigint   of the complete or fail with the result
            result_file        string   file of that record
            result_length      int      length of that record
            """,
        ),
        _table(
            "orphans",
            "workq_tasks:orphan_rows",
            """
            key     string
            job_id  binary
            """,
            StructField(
                "records",
                ArrayType(ORPHAN_RECORD),
                metadata={"comment": "the records without an add, in log order"},
            ),
            packets="jobs",
        ),
    ),
    "kestrel": _by_name(
        _table(
            "items",
            "kestrel_tasks:item_rows",
            """
            queue           string
            item_id         bigint
            add_time_ms     bigint
            expire_time_ms  bigint   null if it does not expire
            error_count     int
            data_size       int
            data            binary   null without `payloads`
            ordinal         int      0; 1, 2 ... for further items of the same id
            contested       boolean  whether the id has more than one row
            """,
        ),
        _table(
            "readers",
            "kestrel_tasks:reader_rows",
            """
            queue        string
            reader       string         empty for the default reader
            head         bigint         of the checkpoint; null if it is damaged or absent
            done         array<bigint>  of the checkpoint, ascending; null likewise
            damaged      boolean        whether its file is damaged: it starts at the oldest item
            opened_head  bigint         null if opening the queue drops the reader
            opened_done  array<bigint>  ascending; null likewise
            first_id     bigint         the lowest item id when the queue is opened
            tail_id      bigint         the highest
            """,
        ),
    ),
}


def states(
    spark: SparkSession,
    dialect: str,
    paths: str | Sequence[str],
    *,
    payloads: bool = False,
    **options: object,
) -> dict[str, DataFrame]:
    """The state tables of the logs at these paths, by name. Options are those of the source.

    ``payloads`` fills payload, result and data, by reading those of the final state again.
    """
    if dialect == LEDGER:
        listed = [paths] if isinstance(paths, str) else list(paths)
        return {"entries": _entries(open_logs(spark, dialect, listed, options))}
    return tables_of(packets(spark, dialect, paths, **options), dialect, payloads=payloads)


def packets(
    spark: SparkSession, dialect: str, paths: str | Sequence[str], **options: object
) -> DataFrame:
    """The logs at these paths, reduced to what a replay needs; see source/packets.py."""
    if dialect not in STATE_TABLES:
        raise UsageError(f"{dialect} has no state tables: it is a state itself")
    listed = [paths] if isinstance(paths, str) else list(paths)
    return open_logs(spark, dialect, listed, {"reduce": REDUCERS[dialect], **options})


def count_damages(packets: DataFrame) -> int:
    """Count the places in which the logs are damaged."""
    found = packets.agg(F.count_if(F.col("kind") == DAMAGE_KIND)).collect()[0][0]
    return int(found)


def table_schema(name: str) -> StructType:
    """The columns of ``ztick.jobs`` and so on, without those that come from paths."""
    dialect, _, table = name.partition(".")
    return STATE_TABLES[dialect][table].schema


def tables_of(packets: DataFrame, dialect: str, *, payloads: bool = False) -> dict[str, DataFrame]:
    """The state tables that these packets fold to, by name."""
    tables = {name: _state_table(packets, dialect, name) for name in STATE_TABLES[dialect]}
    if payloads:
        for name, table in tables.items():
            if (dialect, name) in _WITH_PAYLOADS:
                tables[name] = with_payloads(table)
    return tables


def _state_table(packets: DataFrame, dialect: str, name: str) -> DataFrame:
    extras = extra_columns(packets, PACKET_SCHEMA.names)
    schema = StructType([*STATE_TABLES[dialect][name].schema.fields, *extras])
    grouped = _grouped(packets, dialect, STATE_TABLES[dialect][name].packets)
    return grouped.mapInArrow(partial(_table_rows, dialect, name, _names(extras)), schema)


def write_states(
    packets: DataFrame, dialect: str, targets: Mapping[str, str], *, overwrite: bool = False
) -> dict[str, int]:
    """All tables of the packets' state, each into the directory that ``targets`` names for it.

    How many rows each of them has, and under ``damage`` in how many places the logs are damaged.
    """
    frame, tables, split = _to_files(packets, dialect, targets)
    return write_tables(frame, tables, split, overwrite=overwrite)


def writing_states(packets: DataFrame, dialect: str, targets: Mapping[str, str]) -> DataFrame:
    """Return the plan of ``write_states``."""
    return writing(*_to_files(packets, dialect, targets))


def _to_files(
    packets: DataFrame, dialect: str, targets: Mapping[str, str]
) -> tuple[DataFrame, dict[str, TableFiles], Splitter]:
    extras = extra_columns(packets, PACKET_SCHEMA.names)
    tables = {
        name: TableFiles(targets[name], arrow_schema(StructType([*table.schema.fields, *extras])))
        for name, table in STATE_TABLES[dialect].items()
    }
    split = partial(_merged_tables, dialect, tuple(tables), _names(extras))
    return _grouped(packets, dialect), tables, split


def _names(fields: Sequence[StructField]) -> tuple[str, ...]:
    return tuple(each.name for each in fields)


def _grouped(packets: DataFrame, dialect: str, table: str | None = None) -> DataFrame:
    """Packets and damages, of one table or of all, the rows of a group together and in order."""
    made = {
        "table": f"coalesce(table, '{_DAMAGE_TABLE.get(dialect, DAMAGE_KIND)}') AS table",
        "bucket": "coalesce(bucket, 0) AS bucket",
    }
    # In words: each column that is made here costs Python and Java a dozen messages.
    columns = [made.get(name, name) for name in PACKET_SCHEMA.names]
    extras = _names(extra_columns(packets, PACKET_SCHEMA.names))
    rows = packets.selectExpr(*columns, *(f"`{name}`" for name in extras))
    return (
        (rows if table is None else rows.filter(f"table = '{table}'"))
        .repartition("_log", "table", "bucket")
        .sortWithinPartitions("_log", "table", "bucket", "_position")
    )


def _entries(frame: DataFrame) -> DataFrame:
    """The last record of each family and key, if it removes nothing.

    A ledger is small, so this is a plain query on the rows of the source, without packets. Records
    without a key stand by themselves; the same record twice is one.
    """
    own_key = F.concat_ws(" ", "logged_ns", "payload")
    columns = [F.col(name) for name in ("_log", "family", "key")]
    about = Window.partitionBy(*columns, F.when(F.col("key").isNull(), own_key))
    last = F.row_number().over(about.orderBy(F.col("_position").desc()))
    records = frame.where(F.col("kind") != DAMAGE_KIND).withColumn("_last", last)
    removed = F.coalesce("removes", F.lit(False))
    return records.where((F.col("_last") == 1) & ~removed).drop("_last", "removes")


def visible(jobs: DataFrame, as_of_ns: int) -> DataFrame:
    """Return the jobs of workq that exist at this moment, with the queue in which each waits.

    ``queue`` is ``scheduled``, ``ready``, or null for a job that is leased or finished.
    """
    moment = F.lit(as_of_ns).cast("long")
    waits: Column = F.when(
        F.col("state") == "new",
        F.when(F.col("time_ns") > moment, "scheduled").otherwise("ready"),
    ).when((F.col("state") == "pending") & ~F.col("parked"), "ready")
    return jobs.filter(F.col("expires_ns") > moment).withColumn("queue", waits)


def waiting(items: DataFrame, readers: DataFrame) -> DataFrame:
    """Return the ``items`` that some reader must still be given.

    All of them in a queue without a checkpoint: nothing of it was read.
    """
    opened = readers.filter(F.col("_file").isNotNull() & F.col("opened_head").isNotNull())
    heads = opened.groupBy("_log").agg(F.collect_list("opened_head").alias("_heads"))
    done = opened.select("_log", F.explode("opened_done").alias("item_id"))
    done = done.groupBy("_log", "item_id").agg(F.count("*").alias("_done_by"))
    past_head = F.size(F.filter("_heads", lambda head: head >= F.col("item_id")))
    past = past_head + F.coalesce(F.col("_done_by"), F.lit(0))
    is_dead = F.coalesce(past >= F.size("_heads"), F.lit(False))
    return (
        items.join(F.broadcast(heads), "_log", "left")
        .join(done, ["_log", "item_id"], "left")
        .filter(~is_dead)
        .select(*items.columns)
    )


def _merged_tables(
    dialect: str,
    names: Sequence[str],
    extras: tuple[str, ...],
    batches: Iterator[pa.RecordBatch],
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Merge the groups of a task, one after the other, into rows of the tables of these names.

    A row of ``damage`` for each damage, which is only counted.
    """
    tables = [STATE_TABLES[dialect][name] for name in names]
    shapes = {table.name: arrow_schema(table.schema) for table in tables}
    for group in groups_of(batches, extras):
        values = dict(zip(extras, group.extras, strict=True))
        damages = [each.row["_file"] for each in group.packets if each.row["kind"] == DAMAGE_KIND]
        if damages:
            yield DAMAGE_KIND, pa.RecordBatch.from_pydict({"file": pa.array(damages)})
        for table in tables:
            for batch in table.merge(group) if table.packets == group.table else ():
                yield table.name, with_constants(batch.cast(shapes[table.name]), values)


def _table_rows(
    dialect: str, name: str, extras: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for table, batch in _merged_tables(dialect, (name,), extras, batches):
        for start in range(0, batch.num_rows if table == name else 0, _MAX_ROWS):
            yield batch.slice(start, _MAX_ROWS)


def groups_of(batches: Iterator[pa.RecordBatch], extras: tuple[str, ...]) -> Iterator[PacketGroup]:
    """The groups of rows that come one group after the other."""
    group: PacketGroup | None = None
    named = None
    for batch in batches:
        blobs = [batch.column("packet"), batch.column("details")]
        for at, row in enumerate(batch.drop_columns(["packet", "details"]).to_pylist()):
            row.update(row.pop("source") or _NO_SOURCE)
            name = row["_log"], row["table"], row["bucket"]
            if group is None or name != named:
                if group is not None:
                    yield group
                group = PacketGroup(row["_log"], row["table"], tuple(row[name] for name in extras))
                named = name
            packet, details = (aligned(blob[at]) for blob in blobs)
            group.packets.append(ReplayPacket(packet, details, row))
    if group is not None:
        yield group


def aligned(blob: Any) -> pa.Buffer:
    """Its bytes where they are, if the kernels can read them there, as they mostly can."""
    if not blob.is_valid:
        return pa.py_buffer(b"")
    bytes_: pa.Buffer = blob.as_buffer()
    return pa.py_buffer(bytes_.to_pybytes()) if bytes_.address % _ALIGNED else bytes_


def place_columns(group: PacketGroup, rows: pa.RecordBatch) -> list[pa.Array[Any]]:
    """The columns of PLACE for records with these positions and lengths."""
    positions, lengths = (rows.column(name).to_numpy() for name in ("position", "length"))
    segments = positions >> SEGMENT_SHIFT
    return [
        pa.repeat(pa.scalar(group.log), len(positions)),
        files_at(group, positions),
        pa.array(segments.astype(np.int32)),
        pa.array(positions & OFFSET_MASK),
        pa.array(lengths.astype(np.int32)),
        pa.array(positions),
    ]


def files_at(group: PacketGroup, positions: Ints) -> Any:
    """The file of each position; null for one that is negative."""
    files = group.files()
    known = np.array(sorted(files), np.int64)
    places = np.searchsorted(known, positions >> SEGMENT_SHIFT)
    names: Any = pa.array([files[segment] for segment in known.tolist()], pa.string())
    return names.take(pa.array(places, mask=positions < 0))


def with_payloads(table: DataFrame) -> DataFrame:
    """``workq.jobs`` with payload and result, or ``kestrel.items`` with data, read by their places.

    So that this is not one small read a row, in any order, the rows are first brought into the
    order of the log.
    """
    if "payload" in table.columns:
        fill = _fill_jobs
    elif "data" in table.columns:
        fill = _fill_items
    else:
        raise UsageError("only workq jobs and kestrel items have payloads")
    block = F.shiftrightunsigned("_position", _BLOCK_BITS)
    return (
        table.repartition("_log", block)
        .sortWithinPartitions("_log", "_position")
        .mapInArrow(partial(_filled, fill), table.schema)
    )


def _filled(fill: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield fill(batch) if batch.num_rows else batch


def _fill_items(batch: pa.RecordBatch) -> pa.RecordBatch:
    return _put(batch, "data", _own_rows("kestrel", batch).column("data"))


def _fill_jobs(batch: pa.RecordBatch) -> pa.RecordBatch:
    batch = _put(batch, "payload", _own_rows("workq", batch).column("payload"))
    has_result = pc.is_valid(batch.column("result_position"))
    results = pa.nulls(batch.num_rows, pa.binary())
    finished = batch.filter(has_result)
    if finished.num_rows:
        offsets = pc.bit_wise_and(finished.column("result_position"), OFFSET_MASK)
        spans = _spans(finished.column("result_file"), offsets, finished.column("result_length"))
        results = pc.replace_with_mask(
            results, has_result, read_rows("workq", spans).column("result")
        )
    # Attempts that ran out leave an empty result that stands in no record.
    results = pc.if_else(batch.column("exhausted"), pa.scalar(b""), results)
    return _put(batch, "result", results)


def _own_rows(dialect: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = (batch.column(name) for name in ("_file", "_offset", "_length"))
    return read_rows(dialect, _spans(*columns))


def read_rows(dialect: str, spans: Sequence[Span]) -> pa.RecordBatch:
    """The records of these spans as columns of journeyman.columnar, payloads among them."""
    from journeyman.columnar.arrays import joined

    module = import_module(f"journeyman.columnar.{dialect}.decode")
    data = b"".join(read_spans(spans))
    rows = joined([chunk.batch for chunk in module.iter_batches(data, 0, payloads=True)])
    if rows.column("length").to_pylist() != [span.length for span in spans]:
        raise changed(spans[0].file)
    return rows


def _spans(files: Any, offsets: Any, lengths: Any) -> list[Span]:
    columns = zip(files.to_pylist(), offsets.to_pylist(), lengths.to_pylist(), strict=True)
    return [Span(*each) for each in columns]


def _put(batch: pa.RecordBatch, name: str, column: Any) -> pa.RecordBatch:
    at = batch.schema.get_field_index(name)
    return batch.set_column(at, batch.schema.field(at), column)
