"""Logs, runs and readers into the lake, exactly once.

    a log        a stream of its source (spark/streams): offsets, links on files and chains carry it
                 across rotation, compaction and cleaning. A batch and its number are one commit of
                 the lake, so a batch that Spark repeats after kill -9 is known and left out
    runs         lines appended to files of JSON: whole lines behind what was read, and how far,
                 are one commit
    readers      kestrel's checkpoints are replaced, not appended to: each ingest notes where
                 every reader stands

History that was gone before it was read is a row of damage (``lost: ...``) and a warning: a lake
goes on with what there is.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from journeyman.clock import SystemClock
from journeyman.errors import LogError, UsageError
from journeyman.formats.ztick.run_history import decode
from journeyman.logs.ztick.run_history import DIRECTORY_SUFFIX, SUFFIX
from journeyman.spark.files import absolute, find_logs
from journeyman.spark.history import kestrel_attempts
from journeyman.spark.history.logs import journal_of
from journeyman.spark.lake.layout import BETWEEN, TABLES, shaped
from journeyman.spark.lake.storage import Lake, Staged
from journeyman.spark.source.api import register_formats
from journeyman.spark.source.options import DAMAGE_KIND, KESTREL, ZTICK, SourceOptions, arrow_schema
from journeyman.spark.streams.chains import register_stream, survey
from journeyman.spark.streams.offsets import StreamOffset
from journeyman.units import NS_PER_S

_HOST = re.compile(r"[A-Za-z0-9._-]+")  # a part of paths, in every tool that reads them
_RUNS_BYTES = 32 * 1024 * 1024  # of lines in one commit


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
        told = f"{self.host}\n{absolute(self.path)}"
        return f"{self.dialect}-{hashlib.sha256(told.encode()).hexdigest()[:16]}"

    @property
    def options(self) -> dict[str, str]:
        payloads = {"payloads": "true"} if self.payloads else {}
        return {"path": absolute(self.path), "onLostHistory": "continue", **payloads}


def start_stream(
    spark: SparkSession, lake: Lake, source: LakeSource, every_s: float | None = None
) -> StreamingQuery:
    """Let new records flow into bronze: those that are there now, or ``every_s`` seconds."""
    register_formats(spark, source.dialect)
    options = {**source.options, "holder": f"lake {lake.path}"}
    stream = spark.readStream.format(source.dialect).options(**options).load()
    writer = stream.writeStream.foreachBatch(partial(_store_batch, lake, source))
    writer = writer.option("checkpointLocation", lake.checkpoint_path(source.stream))
    if every_s is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_s} seconds").start()


def has_news(lake: Lake, source: LakeSource) -> bool:
    """Whether a stream would find anything: a file that grew, a new file, an unfinished batch.

    To ask costs a few calls of stat; to start a stream, seconds.
    """
    checkpoint = lake.checkpoint_path(source.stream)
    offset = _last_offset(checkpoint)
    if offset is None:
        return True
    seen = survey(SourceOptions.parse(source.dialect, source.options))
    if seen.keys() - offset.logs.keys():
        return True
    for name, log in seen.items():
        newest = offset.logs[name].newest
        known = None if newest is None else (newest.inode, newest.end)
        if log.files and (log.files[-1].inode, log.files[-1].size) != known:
            return True
    return False


def register_holder(lake: Lake, source: LakeSource) -> None:
    """Let the server keep what this lake has not read yet (logs/holders.py)."""
    offset = _last_offset(lake.checkpoint_path(source.stream))
    if offset is not None:
        register_stream(offset, f"lake {lake.path}")


def _last_offset(checkpoint: str) -> StreamOffset | None:
    """Where the last batch ended; None if there is none, or it was not finished."""
    try:
        batches = {name: _numbers(posixpath.join(checkpoint, name)) for name in _CHECKPOINT}
        last = max(batches["offsets"])
        if last not in batches["commits"]:
            return None
        with open(posixpath.join(checkpoint, "offsets", str(last)), encoding="utf-8") as file:
            return StreamOffset.from_json(json.loads(file.read().splitlines()[-1]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


_CHECKPOINT = ("offsets", "commits")


def _numbers(directory: str) -> list[int]:
    return [int(name) for name in os.listdir(directory) if name.isdecimal()]


def _store_batch(lake: Lake, source: LakeSource, frame: DataFrame, number: int) -> None:
    name, table = source.stream, f"bronze/{source.dialect}"
    checkpoint = _checkpoint_id(lake.checkpoint_path(name))
    known = lake.state.checkpoints.get(name, checkpoint)
    if known != checkpoint:
        raise LogError(
            lake.checkpoint_path(name),
            "is not the checkpoint that this lake was filled by; restore it with the lake",
        )
    if number <= lake.state.batches.get(name, -1):
        return
    host = F.lit(source.host)
    if "host" in frame.columns:
        host = F.coalesce(F.col("host"), host)
    rows = frame.withColumns(
        {"host": host, "date": F.lit(_today()).cast("date"), "_ingested_at": F.lit(_now())}
    )
    staged = lake.stage(shaped(rows, table), table)
    lake.commit(
        [staged],
        {},
        batches={**lake.state.batches, name: number},
        checkpoints={**lake.state.checkpoints, name: checkpoint},
    )


def _checkpoint_id(path: str) -> str:
    with open(posixpath.join(path, "metadata"), encoding="utf-8") as file:
        return str(json.load(file)["id"])


# ----------------------------------------
# Runs.


def store_runs(lake: Lake, source: LakeSource, elsewhere: str | None = None) -> None:
    """New whole lines of the runs beside these logs, or in the directory ``elsewhere``."""
    options = SourceOptions.parse(ZTICK, {"path": absolute(source.path)})
    for log in find_logs(options):
        host = dict(log.partitions).get("host") or source.host
        directory = elsewhere or log.name + DIRECTORY_SUFFIX
        for path in _run_files(directory):
            while _store_lines(lake, log.name, host, path):
                pass


def _run_files(directory: str) -> list[str]:
    if "://" in directory or not os.path.isdir(directory):
        return []
    names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    return [posixpath.join(directory, name) for name in names]


def _store_lines(lake: Lake, log: str, host: str, path: str) -> bool:
    """Store some lines of a file; False if there are no more."""
    known = f"{host}{BETWEEN}{path}"
    begin = lake.state.runs.get(known, 0)
    with open(path, "rb") as file:
        file.seek(begin)
        data = file.read(_RUNS_BYTES)
    end = data.rfind(b"\n") + 1
    if end == 0:
        return False
    rows = [
        {"_log": log, "_file": path, "_offset": begin + at, **values, "_ingested_at": _now()}
        for at, values in _lines(data[:end])
    ]
    staged = stage_rows(lake, "bronze/runs", rows, host)
    lake.commit([staged], {}, runs={**lake.state.runs, known: begin + end})
    return True


def _lines(data: bytes) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line: where it begins, and what it says."""
    at = 0
    for line in data.removesuffix(b"\n").split(b"\n"):
        run = decode(line)
        if run is None or not all(_fits(getattr(run, name)) for name in _TIMES):
            yield at, {"kind": DAMAGE_KIND, "_damage": "corrupt: not a line of the run history"}
        else:
            yield at, {"kind": "run", **{name: getattr(run, name) for name in _RUN_FIELDS}}
        at += len(line) + 1


def _fits(ns: int) -> bool:
    return -(2**63) <= ns < 2**63


_TIMES = ("execution_ns", "started_ns", "ended_ns")
_RUN_FIELDS = ("job", "rule", "runner", *_TIMES, "outcome", "detail", "output")


def stage_rows(lake: Lake, table: str, rows: Sequence[Mapping[str, Any]], host: str) -> Staged:
    """A few rows of today."""
    schema = arrow_schema(TABLES[table].schema)
    inner = pa.schema([each for each in schema if each.name not in ("date", "host")])
    listed = [{each.name: row.get(each.name) for each in inner} for row in rows]
    return lake.stage_table(pa.Table.from_pylist(listed, schema=inner), table, _today(), host)


# ----------------------------------------
# Readers.


def store_readers(spark: SparkSession, lake: Lake, source: LakeSource) -> bool:
    """Where the readers of these queues stand now; False if no file changed since the last look."""
    assert source.dialect == KESTREL
    logs = find_logs(SourceOptions.parse(KESTREL, {"path": absolute(source.path)}))
    files = [(file.path, file.size, file.modified_ns) for log in logs for file in log.files]
    looks = hashlib.sha256(repr(sorted(files, key=str)).encode()).hexdigest()
    if lake.state.readers.get(source.stream) == looks:
        return False
    hosts = {log.name: dict(log.partitions).get("host") or source.host for log in logs}
    observed_at = _now()
    by_host: dict[str, list[dict[str, Any]]] = {}
    for row in kestrel_attempts.lag(*journal_of(spark, [source.path])).collect():
        oldest = None if row.oldest_ns is None else _moment(row.oldest_ns)
        values = {"log": row._log, "observed_at": observed_at, "oldest_at": oldest}
        names = ("queue", "reader", "head", "tail_id", "items_behind", "bytes_behind")
        values |= {name: row[name] for name in names}
        by_host.setdefault(hosts.get(row._log, source.host), []).append(values)
    staged = [stage_rows(lake, "silver/readers", rows, host) for host, rows in by_host.items()]
    lake.commit(staged, {}, readers={**lake.state.readers, source.stream: looks})
    return bool(staged)


def _now() -> datetime:
    return _moment(SystemClock().now_ns())


def _moment(ns: int) -> datetime:
    return datetime.fromtimestamp(ns // NS_PER_S, UTC).replace(microsecond=ns % NS_PER_S // 1000)


def _today() -> str:
    return _now().date().isoformat()
