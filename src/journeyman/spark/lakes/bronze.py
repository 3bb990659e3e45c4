"""Logs into bronze, exactly once.

    the lake's snapshot: offset --plan--> pieces of files --tasks: read, write--> new files
                  ^                                                                 |
                  +------ one snapshot: these files, and the offset after them -----+

The offsets are those of the streams (spark/streams), whose links, chains and holders carry them
across rotation, compaction and cleaning. They are followed here and not by a streaming query, which
would keep them in a checkpoint of its own and hand each row through Java.

A task sorts the records of a chunk by the hashes of their keys and cuts row groups at the borders
of buckets, so that a task that folds a range of keys reads the row groups of that range alone. A
small chunk stays in one row group.

History that was gone before it was read is a row of damage (``lost: ...``): a lake goes on with
what there is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import StructType

from journeyman.clock import SystemClock
from journeyman.errors import JourneymanError, UsageError
from journeyman.logs.catalog import Log
from journeyman.spark import vectors
from journeyman.spark.files import absolute, find_source_logs
from journeyman.spark.history.ledger_notes import notes_of
from journeyman.spark.lakes import delta, work
from journeyman.spark.lakes.folding import item_hashes, ledger_hashes, plans_of
from journeyman.spark.lakes.layout import HASH, TABLES, to_datetime
from journeyman.spark.lakes.storage import Lake
from journeyman.spark.slots import slots_of
from journeyman.spark.source import options
from journeyman.spark.source.pieces import LogPartition
from journeyman.spark.source.task import read_partition, with_dictionaries
from journeyman.spark.streams import LogStreamReader
from journeyman.spark.streams.chains import register_stream
from journeyman.spark.streams.offsets import Holes, StreamOffset, lost_rows
from journeyman.spark.vectors import pc

_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")  # a part of paths, in every tool that reads them
_BATCH_BYTES: Final = 2 * 1024**3  # the limit of one snapshot, all logs together
_TASK_BYTES: Final = 512 * 1024**2
_CHUNK_ROWS: Final = 512 * 1024
_UNSPLIT_ROWS: Final = 64 * 1024
BUCKETS: Final = 32
_PLANS_GROUP_ROWS: Final = 64 * 1024
# Columns of few words, which need not be looked up one by one when they are written.
_CODED: Final = frozenset({"_log", "_file", "kind", "status", "queue", "reader", "host"})
_ADDED: Final = ("_ingested_at", HASH, "host", "date")
_BLOCKS: Final = ("payload", "result")  # columns of a work queue, stored if the ingest was asked to
_ERROR: Final = "error"
NOTES_TABLE: Final = "bronze/notes"
PLANS_TABLE: Final = "bronze/plans"
DAMAGE_TABLE: Final = "silver/damage"
# The table of damage takes these columns from a record.
DAMAGE_COLUMNS: Final = {
    "log": "_log",
    "file": "_file",
    "offset": "_offset",
    "what": options.DAMAGE,
}

UNREADABLE: Final = (OSError, JourneymanError)


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
        with suppress(OSError):  # the ingest reports it
            logs = find_source_logs(options.SourceOptions.parse(self.dialect, self.options))
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
        # The names in payloads and results are stored even if these are not: see _read_schema.
        payloads = {"payloads": "true"} if self.payloads or self.dialect == options.WORKQ else {}
        return {"path": absolute(self.path), "onLostHistory": "continue", **payloads}

    @property
    def table(self) -> str:
        return f"bronze/{self.dialect}"


def stream_name(lake: Lake, source: LakeSource) -> str:
    """Return the name of its links and its holder beside the logs.

    It is always the same: the next process takes over those of one that was killed.
    """
    return hashlib.sha256(f"{lake.path}\n{source.stream}".encode()).hexdigest()[:12]


# ----------------------------------------
# The driver.


class Feed:
    """The answer of one source. It was read up to ``end``; ``error`` says why no more comes."""

    def __init__(self, lake: Lake, source: LakeSource, *, holds: bool) -> None:
        self.source = source
        self._holder = f"lake {lake.path}"
        holding = {"holder": self._holder} if holds else {"holdFiles": "false"}
        given = {**source.options, **holding}
        self._reader = LogStreamReader(source.dialect, given, _read_schema(source))
        self._reader.prepareForTriggerAvailableNow()
        beginning = StreamOffset(stream_name(lake, source)).to_json()
        self.end: dict[str, Any] = lake.snapshot.offsets.get(source.stream) or beginning
        self.parts: Sequence[InputPartition] = ()
        self._next = self.end
        self.error: Exception | None = None

    def plan(self, most_bytes: int) -> None:
        """Find what is new. This needs no Spark, but keeps one core busy."""
        self.parts = ()
        if self.error is None:
            try:
                self._next = self._reader.latestOffset(self.end, ReadMaxBytes(most_bytes))
                if self._next != self.end:
                    self.parts = self._reader.partitions(self.end, self._next)
            except UNREADABLE as error:
                self.error = error

    def advance(self) -> None:
        """The parts are in bronze, and count with the next snapshot."""
        if self.error is None:
            self.end = self._next

    def release(self) -> None:
        """A snapshot has it: files that are held for it may go."""
        if self.parts:
            self._reader.commit(self.end)

    def register(self) -> None:
        """Tell the server how far this lake has read."""
        register_stream(StreamOffset.from_json(self.end), self._holder)


class _Unit(NamedTuple):
    """The input of a task; ``feed`` is the number of its feed."""

    feed: int
    source: LakeSource
    part: InputPartition


def plan_batch(feeds: Sequence[Feed]) -> bool:
    """Find the next batch of each feed; False if there is nothing new."""
    share = max(_TASK_BYTES // 8, _BATCH_BYTES // max(1, len(feeds)))
    with ThreadPoolExecutor(max(1, len(feeds))) as pool:
        list(pool.map(lambda feed: feed.plan(share), feeds))
    return any(feed.parts for feed in feeds)


def store_batch(spark: SparkSession, lake: Lake, feeds: Sequence[Feed]) -> None:
    """Write what ``plan_batch`` has found to bronze. A log that cannot be read does not keep the
    others out: its feed has the error, and none of its records."""
    slots = slots_of(spark)
    units = [
        _Unit(number, feed.source, part)
        for number, feed in enumerate(feeds)
        for part in _together(feed.parts, slots)
    ]
    write = partial(_write_unit, lake.new_files, SystemClock().now_ns())
    packets = work.spread(spark, units, write)
    for number, what, rows in packets:
        if what == _ERROR:
            feeds[number].error = JourneymanError(rows["error"][0].as_py())
    for number, what, rows in packets:
        if what == work.FILES and feeds[number].error is None:
            for file in work.files_in(rows):
                lake.change(file.table, [file])
    for feed in feeds:
        feed.advance()


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


# ----------------------------------------
# What tasks do.


def _write_unit(lake: str, now_ns: int, unit: _Unit) -> Iterator[work.Packet]:
    """Read a part and write it. A task that is tried again writes other names; those it returns
    count."""
    writer = BronzeWriter(lake, unit.source, now_ns)
    try:
        for host, batches in _rows_of(unit.source, unit.part):
            for rows in _in_chunks(_readable(batches)):
                writer.write_records(rows, host)
    except _UnreadableLog as error:
        yield work.Packet(unit.feed, _ERROR, pa.table({"error": [str(error)]}))
        return
    yield work.files_packet(writer.finish(), unit.feed)


class _UnreadableLog(Exception):
    """A log cannot be read. An error of the lake itself is none of these: it ends the ingest."""


def _readable(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except OSError as error:
        raise _UnreadableLog(f"{error.strerror or error}: {error.filename}") from error
    except JourneymanError as error:
        raise _UnreadableLog(str(error)) from error


def _rows_of(
    source: LakeSource, part: InputPartition
) -> Iterator[tuple[str, Iterator[pa.RecordBatch]]]:
    """The records of a part, by host."""
    parsed = options.SourceOptions.parse(source.dialect, source.options)
    schema = _read_schema(source)
    if isinstance(part, Holes):
        for row in part.rows:
            yield str(row.get("host") or source.host), lost_rows(Holes([row]), schema)
    elif isinstance(part, LogPartition):
        hosts = groupby(part.pieces, key=lambda piece: dict(piece.context.partitions).get("host"))
        for host, pieces in hosts:
            yield host or source.host, read_partition(tuple(pieces), parsed, schema, coded=_CODED)


def _read_schema(source: LakeSource) -> StructType:
    """Return the schema of the stored columns."""
    fields = TABLES[source.table].schema.fields
    is_narrow = source.dialect == options.WORKQ and not source.payloads
    left_out = (*_ADDED, *_BLOCKS) if is_narrow else _ADDED
    return StructType([each for each in fields if each.name not in left_out])


class BronzeWriter:
    """Files of one task, one for each table. Rows never leave Arrow."""

    def __init__(self, lake: str, source: LakeSource, now_ns: int) -> None:
        self._lake, self._source = lake, source
        self._moment = to_datetime(now_ns)
        self._files: dict[str, delta.TableWriter] = {}
        self._schemas: dict[str, pa.Schema] = {}

    def write_records(self, rows: pa.Table, host: str) -> None:
        """Records, and what is known of plans and attempts by them, while they are at hand."""
        dialect, table = self._source.dialect, self._source.table
        self._write_damage(rows, host)
        if dialect == options.ZTICK:
            self._write(PLANS_TABLE, plans_of(rows), host)
        elif dialect == options.WORKQ:
            rows = rows.append_column(HASH, vectors.hash_column(rows["key"]))
        elif dialect == options.KESTREL:
            rows = rows.append_column(HASH, item_hashes(rows["item_id"]))
        elif dialect == options.LEDGER:
            rows = rows.append_column(HASH, ledger_hashes(rows))
            notes = notes_of(rows)
            self._write(
                NOTES_TABLE, notes.append_column(HASH, vectors.hash_column(notes["key"])), host
            )
        self._write(table, rows, host)

    def finish(self) -> list[delta.DataFile]:
        return [file for writer in self._files.values() for file in writer.finish()]

    def _write_damage(self, rows: pa.Table, host: str) -> None:
        damaged = rows.filter(pc.equal(rows["kind"], options.DAMAGE_KIND))
        if damaged.num_rows:
            columns: dict[str, vectors.AnyColumn] = {
                n: damaged[old] for n, old in DAMAGE_COLUMNS.items()
            }
            stamp = pa.scalar(self._moment, pa.timestamp("us", "UTC"))
            columns |= {
                "dialect": pa.repeat(self._source.dialect, damaged.num_rows),
                "length": damaged["_length"],
                "found_at": pa.repeat(stamp, damaged.num_rows),
            }
            self._write(DAMAGE_TABLE, pa.table(columns), host)

    def _write(self, table: str, rows: pa.Table, host: str) -> None:
        if not rows.num_rows:
            return
        schema = self._schemas.setdefault(table, _schema_for(table, rows))
        count = rows.num_rows
        stamped = {
            **{name: rows[name] for name in rows.column_names},
            "_ingested_at": pa.repeat(pa.scalar(self._moment, pa.timestamp("us", "UTC")), count),
            "host": vectors.constant(host, count),
            "date": pa.repeat(pa.scalar(self._moment.date(), pa.date32()), count),
        }
        blocks = {name: pa.nulls(count, pa.binary()) for name in _BLOCKS if name not in stamped}
        whole = pa.table({name: {**blocks, **stamped}[name] for name in schema.names}).cast(schema)
        if table not in self._files:
            self._files[table] = delta.TableWriter(self._lake, table)
        writer = self._files[table]
        if table == PLANS_TABLE:  # in the order of hashes
            writer.write(whole, _PLANS_GROUP_ROWS)
        elif HASH in schema.names and count > _UNSPLIT_ROWS:
            for part in _by_bucket(whole):
                writer.write(part, part.num_rows)
        else:
            writer.write(whole, count)


def _by_bucket(rows: pa.Table) -> Iterator[pa.Table]:
    """The rows of each bucket of hashes, in the order that they have."""
    buckets = (vectors.ns_in(rows[HASH]) >> np.int64(59)) + BUCKETS // 2
    order = np.argsort(buckets, kind="stable")
    ends = np.cumsum(np.bincount(buckets, minlength=BUCKETS))
    ordered = vectors.taken(rows, order)
    for begin, end in zip([0, *ends], ends, strict=False):
        if end > begin:
            yield ordered.slice(begin, end - begin)


def _schema_for(table: str, rows: pa.Table) -> pa.Schema:
    """The columns of a file for rows like these."""
    coded = [each.name for each in rows.schema if pa.types.is_dictionary(each.type)]
    return with_dictionaries(options.arrow_schema(TABLES[table].schema), _CODED.union(coded))


def _in_chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Tables of about as many rows as are sorted at once."""
    waiting: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.num_rows
        if count >= _CHUNK_ROWS:
            yield pa.Table.from_batches(waiting)
            waiting, count = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def reasons_of(feeds: Sequence[Feed]) -> Mapping[str, Exception]:
    """Return, by path, why logs were left out."""
    return {feed.source.path: feed.error for feed in feeds if feed.error is not None}
