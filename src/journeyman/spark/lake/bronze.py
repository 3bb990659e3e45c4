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
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadMaxBytes
from pyspark.sql.types import StructType

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.spark.files import absolute, find_logs
from journeyman.spark.lake.layout import TABLES, moment_of
from journeyman.spark.lake.storage import Lake, Staged, new_file, staged_path
from journeyman.spark.replay.state_files import ROW_GROUP_ROWS, repeating_columns
from journeyman.spark.source.options import SourceOptions, arrow_schema
from journeyman.spark.source.splits import LogPartition
from journeyman.spark.source.task import read_pieces, with_dictionaries
from journeyman.spark.streams.chains import register_stream
from journeyman.spark.streams.offsets import Holes, StreamOffset, lost_rows
from journeyman.spark.streams.reader import LogStreamReader

_HOST = re.compile(r"[A-Za-z0-9._-]+")  # a part of paths, in every tool that reads them
_BATCH_BYTES = 8 * 1024**3  # of a log in one commit
_SMALL_BYTES = 8 * 1024**2  # read here: a job of Spark takes longer to plan
_LOOKED_AT = 64 * 1024  # rows that decide whether texts of a column come again
# Columns of few words, which need not be looked up one by one when they are written.
_CODED = frozenset({"_log", "_file", "kind", "status", "queue", "reader"})


@dataclass(frozen=True, slots=True)
class LakeSource:
    """A path that holds logs of one dialect, and the host that wrote them unless the path says."""

    dialect: str
    path: str
    host: str
    payloads: bool = False

    def check_hosts(self) -> None:
        """Raises UsageError for a host whose name cannot be a directory everywhere."""
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


def store_new(spark: SparkSession, lake: Lake, source: LakeSource) -> None:
    """Every record that is in the logs now and not in the lake, batch by batch."""
    who = f"lake {lake.path}"
    schema = _read_schema(source)
    reader = LogStreamReader(source.dialect, {**source.options, "holder": who}, schema)
    reader.prepareForTriggerAvailableNow()
    while True:
        begin = lake.state.offsets.get(source.stream) or _beginning(lake, source)
        end = reader.latestOffset(begin, ReadMaxBytes(_BATCH_BYTES))
        if end == begin:
            break
        staged = _stage(spark, lake, source, reader.partitions(begin, end))
        lake.commit([staged], {}, offsets={**lake.state.offsets, source.stream: end})
        reader.commit(end)
    register_stream(StreamOffset.from_json(begin), who)


def _beginning(lake: Lake, source: LakeSource) -> dict[str, Any]:
    """Named by lake and logs, so that the next one takes over the links of one that was killed."""
    return StreamOffset(stream_name(lake, source)).to_json()


def stream_name(lake: Lake, source: LakeSource) -> str:
    """What its links and its holder are called beside the logs."""
    return hashlib.sha256(f"{lake.path}\n{source.stream}".encode()).hexdigest()[:12]


def _stage(
    spark: SparkSession, lake: Lake, source: LakeSource, parts: Sequence[InputPartition]
) -> Staged:
    directory = lake.new_staging()
    write = partial(_write_part, source, directory, SystemClock().now_ns())
    if sum(map(_size, parts)) <= _SMALL_BYTES:
        files = [file for part in parts for file in write(part)]
    else:
        numbers = spark.range(0, len(parts), 1, len(parts))
        rows = numbers.mapInArrow(partial(_write_numbered, write, parts), "file string").collect()
        files = [row.file for row in rows]
    return lake.staged(source.table, directory, files)


def _size(part: InputPartition) -> int:
    pieces = part.pieces if isinstance(part, LogPartition) else ()
    return sum(piece.end - piece.begin for piece in pieces)


def _write_numbered(
    write: Callable[[InputPartition], Iterator[str]],
    parts: Sequence[InputPartition],
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """What a task does. A task that is tried again writes other names; those it returns count."""
    for batch in numbers:
        for number in batch.column("id").to_numpy():
            yield pa.RecordBatch.from_pydict({"file": pa.array(write(parts[number]), pa.string())})


def _write_part(
    source: LakeSource, directory: str, now_ns: int, part: InputPartition
) -> Iterator[str]:
    """A file for each host; their names below ``directory``."""
    options = SourceOptions.parse(source.dialect, source.options)
    schema = _read_schema(source)
    if isinstance(part, Holes):
        for row in part.rows:
            host = str(row.get("host") or source.host)
            rows = lost_rows(Holes([row]), schema)
            yield from _write_file(source.table, directory, host, now_ns, rows)
    elif isinstance(part, LogPartition):
        hosts = groupby(part.pieces, key=lambda piece: dict(piece.context.partitions).get("host"))
        for host_or_none, pieces in hosts:
            batches = read_pieces(tuple(pieces), options, schema, coded=_CODED)
            host = host_or_none or source.host
            yield from _write_file(source.table, directory, host, now_ns, batches)


def _read_schema(source: LakeSource) -> StructType:
    """What of a record is stored."""
    fields = TABLES[source.table].inner_schema.fields
    return StructType([each for each in fields if each.name != "_ingested_at"])


def _write_file(
    table: str, directory: str, host: str, now_ns: int, batches: Iterator[pa.RecordBatch]
) -> Iterator[str]:
    """The name of the file, if there are rows.

    These never leave Arrow: Spark's own writer takes several times as long (ADR 7).
    """
    moment = moment_of(now_ns)
    place = f"date={moment.date().isoformat()}/host={host}"
    name = posixpath.join(place, f"{secrets.token_hex(8)}.parquet")
    schema = with_dictionaries(arrow_schema(TABLES[table].inner_schema), _CODED)
    stamp = pa.scalar(moment, schema.field("_ingested_at").type)
    with ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for rows in _in_groups(batches):
            stamped = rows.append_column("_ingested_at", pa.repeat(stamp, rows.num_rows))
            whole = stamped.select(schema.names).cast(schema).unify_dictionaries()
            if writer is None:
                new = new_file(staged_path(directory, name), whole, _words(whole))
                writer = stack.enter_context(new)
            writer.write_table(whole, whole.num_rows)
    if writer is not None:
        yield name


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
