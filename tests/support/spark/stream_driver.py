"""What Spark does with a stream reader, without Spark: offsets to a checkpoint, rows to a list."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadLimit

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats import ztick
from journeyman.formats.ztick import JobRemoved, JobSet, Status
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.spark.data_sources import full_schema
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.streams import LogStreamReader

Row = dict[str, Any]


class Query:
    """A query with a checkpoint that outlives ``restarted``, as a killed driver's does."""

    def __init__(self, dialect: str, path: Path | str, **options: str) -> None:
        self._dialect = dialect
        self._options = {"path": str(path), **options}
        self.offsets: list[dict[str, Any]] = []
        self.done = 0  # batches of which the rows are kept
        self.rows: list[Row] = []
        self.batches: list[list[Row]] = []
        self.start()

    def start(self) -> None:
        parsed = SourceOptions.parse(self._dialect, self._options)
        schema = full_schema(parsed)
        self.reader = LogStreamReader(self._dialect, self._options, schema)

    def restarted(self) -> Query:
        """The planner dies; what it knew but had not put into an offset is gone."""
        self.start()
        return self

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """The next batch into the checkpoint; False if there is nothing to do."""
        start = self._start()
        end = self.reader.latestOffset(start, limit or self.reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(start):
            return False
        self.offsets.append(json.loads(json.dumps(end)))
        if self.done:
            self.reader.commit(self.offsets[self.done - 1])
        return True

    def run(self) -> list[Row]:
        """The rows of the batch that is planned, kept once."""
        end = self.offsets[-1]
        start = self.offsets[-2] if len(self.offsets) > 1 else self._origin()
        rows: list[Row] = []
        for partition in self.reader.partitions(start, end):
            copy = pickle.loads(pickle.dumps(partition))
            for batch in pickle.loads(pickle.dumps(self.reader)).read(copy):
                rows += batch.to_pylist()
        if self.done < len(self.offsets):
            self.rows += rows
            self.batches.append(rows)
            self.done = len(self.offsets)
        return rows

    def poll(self) -> list[Row]:
        """Everything there is, in as many batches as it takes."""
        before = len(self.rows)
        while self.plan():
            self.run()
        return self.rows[before:]

    def _start(self) -> dict[str, Any]:
        return self.offsets[-1] if self.offsets else self._origin()

    def _origin(self) -> dict[str, Any]:
        if not self.offsets:
            self._first: dict[str, Any] = json.loads(json.dumps(self.reader.initialOffset()))
        return self._first


def open_ztick(path: Path) -> ZtickLog:
    return ZtickLog.open(RealDisk(), SystemClock(), str(path), sync=SyncPolicy.OS)


def open_workq(path: Path, segment_bytes: int = 400) -> WorkqLog:
    return WorkqLog.open(
        RealDisk(), SystemClock(), str(path), sync=SyncPolicy.OS, segment_bytes=segment_bytes
    )


def open_kestrel(path: Path, queue: str = "jobs", segment_bytes: int = 200) -> KestrelLog:
    return KestrelLog.open(
        RealDisk(),
        SystemClock(),
        str(path),
        queue,
        sync=SyncPolicy.OS,
        segment_bytes=segment_bytes,
    )


def let_the_file_clock_tick(directory: Path) -> None:
    """Until files changed from now on have a later time than those changed before."""
    probe = directory / ".tick"
    probe.touch()
    before = probe.stat().st_ctime_ns
    while probe.stat().st_ctime_ns == before:
        probe.touch()
    probe.unlink()


def set_jobs(log: ZtickLog, *numbers: int) -> None:
    log.append(JobSet(f"job.{n}", 1_700_000_000_000_000_000 + n, Status.PLANNED) for n in numbers)


def remove_jobs(log: ZtickLog, *numbers: int) -> None:
    log.append(JobRemoved(f"job.{n}") for n in numbers)


def put_items(journal: KestrelLog, *numbers: int) -> None:
    for number in numbers:
        journal.put(b"item %d" % number)


def keys(rows: list[Row]) -> list[str]:
    return [row["key"] for row in rows]


def job_names(*numbers: int) -> list[str]:
    return [f"job.{n}" for n in numbers]


def ztick_bytes(*numbers: int) -> bytes:
    return b"".join(
        ztick.CODEC.encode(JobSet(f"job.{n}", 1_700_000_000_000_000_000 + n, Status.PLANNED))
        for n in numbers
    )
