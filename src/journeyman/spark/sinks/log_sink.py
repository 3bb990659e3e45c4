"""``write.format("ztick" | "workq" | "kestrel" | "keyspace")``: a DataFrame becomes a log.

    where       when                       what
    driver      ``log_writer``             options and schema checked; is the log in use?
    executors   ``write``, once a task     rows -> synced part files in the staging directory
    driver      ``commit``, once           part files -> the log, all files or none
                ``abort``, instead         the staging directory goes

Each runs in a process of its own, on a pickled copy of the writer: nothing is remembered but what
the messages say. The log's lock is held during ``commit`` only, so a server may run while tasks
write, and must not while they are committed: then LogLocked is raised, and nothing was changed.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.logs.publication import journal_path, pending
from journeyman.spark.files import staging_name
from journeyman.spark.sinks.commit import Write
from journeyman.spark.sinks.dialects import COMMITS
from journeyman.spark.sinks.options import SinkOptions
from journeyman.spark.sinks.parts import write_parts
from journeyman.spark.sinks.staging import (
    LocalDisk,
    PartsWritten,
    in_order,
    remove_staging,
    remove_stale,
)
from journeyman.spark.source.api import register_formats

MODES = ("append", "overwrite")
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def log_writer(
    dialect: str, options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of a data source; called in the driver before any task runs."""
    return new_writer(dialect, options, schema.fieldNames(), overwrite=overwrite)


def new_writer(
    dialect: str, options: Mapping[str, str], columns: Sequence[str], *, overwrite: bool = False
) -> LogWriter:
    """A writer for rows with these columns. Raises LogLocked when the log is in use."""
    parsed = SinkOptions.parse(dialect, options, columns)
    if not parsed.is_remote:
        COMMITS[dialect].check_free(LocalDisk(), parsed.path)
    return LogWriter(parsed, overwrite, _staging(parsed))


def write(
    frame: DataFrame,
    dialect: str,
    path: str,
    *,
    mode: str = "append",
    partitions: int | None = None,
    small_rows: bool = False,
    **options: Any,
) -> None:
    """Sort the rows and write them as a log; options as docs/sinks.md has them.

    ``partitions`` is how many tasks write; by default Spark decides. ``small_rows`` promises that
    10,000 rows, of this DataFrame and of all it is made from, fit into memory together: Spark then
    does not count their bytes, which takes longer than everything else.
    """
    if mode not in MODES:
        raise UsageError(f"mode is {' or '.join(MODES)}, not {mode!r}")
    given = {name: str(value) for name, value in options.items() if value is not None}
    order = SinkOptions.parse(dialect, {**given, "path": path}, frame.columns).order_by
    columns = [f"`{name}`" for name in order]
    if partitions is None:
        ranged = frame.repartitionByRange(*columns)
    else:
        ranged = frame.repartitionByRange(partitions, *columns)
    rows = ranged.sortWithinPartitions(*columns)
    with _uncounted_bytes(frame.sparkSession) if small_rows else nullcontext():
        register_formats(rows.sparkSession, dialect)
        rows.write.format(dialect).mode(mode).options(**given).save(path)


@contextmanager
def _uncounted_bytes(spark: SparkSession) -> Iterator[None]:
    """Without a limit on the bytes of an Arrow batch, which Spark looks at behind every row."""
    before = spark.conf.get(_BATCH_BYTES, None)
    spark.conf.set(_BATCH_BYTES, str(2**31 - 1))
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_BATCH_BYTES)
        else:
            spark.conf.set(_BATCH_BYTES, before)


class LogWriter(DataSourceArrowWriter):
    """One write of one log. Pickled to wherever a step of it runs."""

    def __init__(self, options: SinkOptions, overwrite: bool, staging: str) -> None:
        self.options = options
        self.staging = staging
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return write_parts(self.options, self.staging, partition, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        strictly = self.options.dialect == "keyspace"
        ordered = in_order(messages, self.options.order_by, strictly=strictly)
        if self.options.is_remote:
            import_module("journeyman.spark.sinks.remote").commit(
                self.options, self._overwrite, self.staging, ordered
            )
        else:
            self._commit_locally(ordered)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        if self.options.is_remote:
            import_module("journeyman.spark.sinks.remote").abort(self.staging)
            return
        disk = LocalDisk()
        # What was decided is finished by the next writer, from these very files.
        if pending(disk, journal_path(self.options.path)) is None:
            remove_staging(disk, self.staging)

    def _commit_locally(self, messages: Sequence[PartsWritten]) -> None:
        disk, clock = LocalDisk(), SystemClock()
        job = Write(disk, clock, self.options, self._overwrite, self.staging, messages)
        job.check()
        COMMITS[self.options.dialect].commit(job)
        remove_staging(disk, self.staging)
        for directory in (self.options.path, posixpath.dirname(self.options.path)):
            remove_stale(disk, directory, clock.now_ns())


def _staging(options: SinkOptions) -> str:
    """Inside the log's directory if that is there, else beside it."""
    name = staging_name(SystemClock().now_ns())
    is_inside = options.dialect != "ztick" and (
        options.is_remote or LocalDisk().is_dir(options.path)
    )
    return posixpath.join(options.path if is_inside else posixpath.dirname(options.path), name)
