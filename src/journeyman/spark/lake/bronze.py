"""Logs into bronze, exactly once.

    the lake's state: offset --plan--> pieces of files --tasks: read, write--> staged files
                  ^                                                                 |
                  +------- one commit: these files, and the offset after them ------+

The offsets are those of the streams (spark/streams), whose links, chains and holders carry them
across rotation, compaction and cleaning. They are followed here and not by a streaming query: that
would keep them in a checkpoint of its own, hand each row through Java, and take seconds to start.

History that was gone before it was read is a row of damage (``lost: ...``): a lake goes on with
what there is.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import StructType

from journeyman.clock import SystemClock
from journeyman.errors import JourneymanError, UsageError
from journeyman.logs.catalog import Log
from journeyman.spark.files import absolute, find_logs
from journeyman.spark.lake.columns import AnyColumn, hash_column
from journeyman.spark.lake.folding import PLANNED_COLUMNS, ZtickPlans
from journeyman.spark.lake.layout import HASH, TABLES, moment_of
from journeyman.spark.lake.names import partition_values, staged_path
from journeyman.spark.lake.parts import parts_of, read_part
from journeyman.spark.lake.state import STATE_VERSION, Staged
from journeyman.spark.lake.storage import Lake, new_file
from journeyman.spark.slots import slots_of
from journeyman.spark.source.options import WORKQ, ZTICK, SourceOptions, arrow_schema
from journeyman.spark.source.splits import LogPartition
from journeyman.spark.source.task import read_pieces, with_dictionaries
from journeyman.spark.streams import LogStreamReader
from journeyman.spark.streams.chains import register_stream
from journeyman.spark.streams.offsets import Holes, StreamOffset, lost_rows
from journeyman.spark.tables import ROW_GROUP_ROWS, repeating_columns

_HOST = re.compile(r"[A-Za-z0-9._-]+")  # a part of paths, in every tool that reads them
_BATCH_BYTES = 8 * 1024**3  # of a log in one commit
_TASK_BYTES = 512 * 1024**2
_SMALL_BYTES = 8 * 1024**2  # read here: a job of Spark takes longer to plan
_LOOKED_AT = 64 * 1024  # rows that decide whether texts of a column come again
# Columns of few words, which need not be looked up one by one when they are written.
_CODED = frozenset({"_log", "_file", "kind", "status", "queue", "reader"})
_STAMP = "_ingested_at"
_MADE = "table string, file string"
_MADE_SCHEMA = pa.schema([("table", pa.string()), ("file", pa.string())])
PLANS_TABLE = "bronze/plans"
PLANS_GROUP_ROWS = 64 * 1024  # in the order of hashes, so a few jobs are in few row groups

UNREADABLE = (OSError, JourneymanError, PySparkException, Py4JError)
Made = tuple[str, str]  # a table, and the name of a file below its directory


@dataclass(frozen=True, slots=True)
class LakeSource:
    """A path that holds logs of one dialect, and the host that wrote them unless the path says."""

    dialect: str
    path: str
    host: str
    payloads: bool = False

    def check_hosts(self) -> None:
        """Raises UsageError for a host whose name cannot be a directory everywhere."""
        logs: list[Log] = []
        with suppress(OSError):  # said once it is to be read
            logs = find_logs(SourceOptions.parse(self.dialect, self.options))
        for host in {self.host, *(dict(log.partitions).get("host") or self.host for log in logs)}:
            if _HOST.fullmatch(host) is None:
                raise UsageError(
                    f"not the name of a host: {host!r} (letters, digits, `.`, `_`, `-`)"
                )

    @property
    def stream(self) -> str:
        """The name of its stream in the lake."""
        name = f"{self.host}\n{absolute(self.path)}"
        return f"{self.dialect}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"

    @property
    def options(self) -> dict[str, str]:
        payloads = {"payloads": "true"} if self.payloads else {}
        return {"path": absolute(self.path), "onLostHistory": "continue", **payloads}

    @property
    def table(self) -> str:
        return f"bronze/{self.dialect}"


def store_new(
    spark: SparkSession, lake: Lake, sources: Sequence[LakeSource]
) -> dict[LakeSource, Exception]:
    """Every record that is in the logs now and not in the lake, a batch of each at a time.

    To find where new entries end keeps one core busy: meanwhile tasks of other logs run. Logs that
    cannot be read do not keep the others out of the lake: the answer says why.
    """
    add_plans(lake)
    feeds = [Feed(spark, lake, source) for source in sources]
    with ThreadPoolExecutor(max(1, len(feeds))) as pool:
        while any(list(pool.map(Feed.stage, feeds))):
            ends = {feed.source.stream: feed.end for feed in feeds if feed.staged}
            staged = [each for feed in feeds for each in feed.staged]
            lake.commit(staged, {}, offsets={**lake.state.offsets, **ends})
            for feed in feeds:
                feed.commit()
    for feed in feeds:
        register_stream(StreamOffset.from_json(feed.end), feed.who)
    return {feed.source: feed.error for feed in feeds if feed.error is not None}


class Feed:
    """What comes of one source: ``staged`` and ``end`` are those of the last batch.

    ``error`` is why no more can come.
    """

    def __init__(self, spark: SparkSession, lake: Lake, source: LakeSource) -> None:
        self._spark, self._lake, self.source = spark, lake, source
        self.who = f"lake {lake.path}"
        options = {**source.options, "holder": self.who}
        self._reader = LogStreamReader(source.dialect, options, _read_schema(source))
        self._reader.prepareForTriggerAvailableNow()
        self.end = lake.state.offsets.get(source.stream) or _beginning(lake, source)
        self.staged: list[Staged] = []
        self.error: Exception | None = None

    def stage(self) -> bool:
        """Stage what comes next; False if there is nothing, or it cannot be read."""
        begin, self.staged = self.end, []
        if self.error is not None:
            return False
        try:
            end = self._reader.latestOffset(begin, ReadMaxBytes(_BATCH_BYTES))
            if end == begin:
                return False
            parts = self._reader.partitions(begin, end)
            self.staged = _stage(self._spark, self._lake, self.source, parts)
        except UNREADABLE as error:
            self.error = error
            return False
        self.end = end
        return True

    def commit(self) -> None:
        """The lake has it: files that are held for it may go."""
        if self.staged:
            self._reader.commit(self.end)


def _beginning(lake: Lake, source: LakeSource) -> dict[str, Any]:
    """Named by lake and logs, so that the next one takes over the links of one that was killed."""
    return StreamOffset(stream_name(lake, source)).to_json()


def stream_name(lake: Lake, source: LakeSource) -> str:
    """What its links and its holder are called beside the logs."""
    return hashlib.sha256(f"{lake.path}\n{source.stream}".encode()).hexdigest()[:12]


def _stage(
    spark: SparkSession, lake: Lake, source: LakeSource, parts: Sequence[InputPartition]
) -> list[Staged]:
    directory = lake.new_staging()
    write = partial(_write_part, source, directory, SystemClock().now_ns())
    if sum(map(_size, parts)) <= _SMALL_BYTES:
        made = [each for part in parts for each in write(part)]
    else:
        units = _together(parts, slots_of(spark))
        numbers = spark.range(0, len(units), 1, len(units))
        task = partial(_write_numbered, write, units)
        made = [(row.table, row.file) for row in numbers.mapInArrow(task, _MADE).collect()]
    files: dict[str, list[str]] = {source.table: []}
    for table, name in made:
        files.setdefault(table, []).append(name)
    return [lake.staged(table, directory, names) for table, names in files.items()]


def _together(parts: Sequence[InputPartition], tasks: int) -> list[InputPartition]:
    """The parts in order, several to a task: a plan is stored once by each task that meets it."""
    most = min(_TASK_BYTES, sum(map(_size, parts)) // tasks + 1)
    found: list[InputPartition] = []
    for part in parts:
        last = found[-1] if found else None
        has_room = last is not None and _size(last) + _size(part) // 2 <= most
        if has_room and isinstance(part, LogPartition) and isinstance(last, LogPartition):
            found[-1] = LogPartition([*last.pieces, *part.pieces])
        else:
            found.append(part)
    return found


def _size(part: InputPartition) -> int:
    pieces = part.pieces if isinstance(part, LogPartition) else ()
    return sum(piece.end - piece.begin for piece in pieces)


def _write_numbered(
    write: Callable[[InputPartition], Iterator[Made]],
    parts: Sequence[InputPartition],
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """What a task does. A task that is tried again writes other names; those it returns count."""
    for batch in numbers:
        for number in batch.column("id").to_numpy():
            rows = [{"table": table, "file": name} for table, name in write(parts[number])]
            yield pa.RecordBatch.from_pylist(rows, _MADE_SCHEMA)


def _write_part(
    source: LakeSource, directory: str, now_ns: int, part: InputPartition
) -> Iterator[Made]:
    """A file for each host and table."""
    options = SourceOptions.parse(source.dialect, source.options)
    schema = _read_schema(source)
    if isinstance(part, Holes):
        for row in part.rows:
            host = str(row.get("host") or source.host)
            rows = lost_rows(Holes([row]), schema)
            yield from _write_records(source, BronzeWriter(directory, host, now_ns), rows)
    elif isinstance(part, LogPartition):
        hosts = groupby(part.pieces, key=lambda piece: dict(piece.context.partitions).get("host"))
        for host_or_none, pieces in hosts:
            batches = read_pieces(tuple(pieces), options, schema, coded=_CODED)
            writer = BronzeWriter(directory, host_or_none or source.host, now_ns)
            yield from _write_records(source, writer, batches)


def _read_schema(source: LakeSource) -> StructType:
    """What of a record is stored."""
    fields = TABLES[source.table].inner_schema.fields
    return StructType([each for each in fields if each.name not in (_STAMP, HASH)])


def _write_records(
    source: LakeSource, writer: BronzeWriter, batches: Iterator[pa.RecordBatch]
) -> list[Made]:
    """Records, and while they are at hand, what those of a schedule say of its plans."""
    plans = PlanNotes(writer)
    for rows in _in_groups(batches):
        if source.dialect == ZTICK:
            at = rows.column_names.index("identifier")
            writer.write(source.table, rows.set_column(at, "identifier", plans.take(rows)))
        elif source.dialect == WORKQ:
            writer.write(source.table, rows.append_column(HASH, hash_column(rows["key"])))
        else:
            writer.write(source.table, rows)
    plans.finish()
    return writer.finish()


class PlanNotes:
    """Plans of records, written as soon as there are many."""

    def __init__(self, writer: BronzeWriter) -> None:
        self._writer = writer
        self._plans = ZtickPlans()

    def take(self, rows: pa.Table) -> AnyColumn:
        """The identifiers, in a dictionary if they come again."""
        identifiers = self._plans.take(rows)
        if self._plans.is_full:
            self.finish()
        return identifiers

    def finish(self) -> None:
        self._writer.write(PLANS_TABLE, self._plans.finish())
        self._plans = ZtickPlans()


def add_plans(lake: Lake) -> None:
    """Lakes of version 2 have no plans: make them, of all records.

    Silver has folded these records already, and older ones that were dropped since, so the plans
    are not fresh; unless an ingest was cut off before silver had folded all.
    """
    if lake.state.version == STATE_VERSION:
        return
    table, directory, made = f"bronze/{ZTICK}", lake.new_staging(), []
    for name in lake.files(table):
        host = partition_values(name)["host"]
        writer = BronzeWriter(directory, host, SystemClock().now_ns())
        plans = PlanNotes(writer)
        for part in parts_of(table, posixpath.join(lake.table_path(table), name)):
            for rows, _ in read_part(part, PLANNED_COLUMNS):
                plans.take(rows)
        plans.finish()
        made += [file for _, file in writer.finish()]
    lake.commit(
        [lake.staged(PLANS_TABLE, directory, made)],
        {},
        keep_fresh=not lake.state.fresh.get(table),
        version=STATE_VERSION,
    )


class BronzeWriter:
    """Files of one host and one ingest, one for each table.

    Rows never leave Arrow: Spark's own writer takes several times as long (ADR 7).
    """

    def __init__(self, directory: str, host: str, now_ns: int) -> None:
        self._directory = directory
        self._moment = moment_of(now_ns)
        self._place = f"date={self._moment.date().isoformat()}/host={host}"
        self._files: dict[str, tuple[str, pq.ParquetWriter]] = {}
        self._schemas: dict[str, pa.Schema] = {}

    def write(self, table: str, rows: pa.Table) -> None:
        if rows.num_rows == 0:
            return
        schema = self._schemas.setdefault(table, _schema_for(table, rows))
        stamp = pa.scalar(self._moment, schema.field(_STAMP).type)
        stamped = rows.append_column(_STAMP, pa.repeat(stamp, rows.num_rows))
        whole = stamped.select(schema.names).cast(schema).unify_dictionaries()
        if table not in self._files:
            name = posixpath.join(self._place, f"{secrets.token_hex(8)}.parquet")
            file = new_file(staged_path(self._directory, table, name), whole, _words(whole))
            self._files[table] = name, file
        size = PLANS_GROUP_ROWS if table == PLANS_TABLE else whole.num_rows
        self._files[table][1].write_table(whole, size)

    def finish(self) -> list[Made]:
        for _, file in self._files.values():
            file.close()
        return [(table, name) for table, (name, _) in self._files.items()]


def _schema_for(table: str, rows: pa.Table) -> pa.Schema:
    """What a file like these rows holds."""
    coded = [each.name for each in rows.schema if pa.types.is_dictionary(each.type)]
    return with_dictionaries(arrow_schema(TABLES[table].inner_schema), _CODED.union(coded))


def _words(rows: pa.Table) -> list[str]:
    """Columns whose values come again; keys of jobs may do so only after thousands of others."""
    texts = [each.name for each in rows.schema if pa.types.is_string(each.type)]
    return sorted({*repeating_columns(rows), *repeating_columns(rows.select(texts), _LOOKED_AT)})


def _in_groups(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about a row group each."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if waiting:
        yield pa.Table.from_batches(waiting)
