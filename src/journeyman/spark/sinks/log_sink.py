"""``write.format("ztick" | "workq" | "kestrel")``: a DataFrame becomes a log.

    where       when                       what
    driver      ``new_writer``             options and schema checked; is the log in use?
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

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from journeyman.clock import SystemClock
from journeyman.logs.publication import journal_path, pending
from journeyman.spark.files import staging_name
from journeyman.spark.sinks.commit import LocalDisk, Write, remove_staging, remove_stale
from journeyman.spark.sinks.dialects import COMMITS
from journeyman.spark.sinks.log_options import SinkOptions
from journeyman.spark.sinks.parts import in_order, write_parts


def new_writer(
    dialect: str, options: Mapping[str, str], columns: Sequence[str], *, overwrite: bool = False
) -> LogWriter:
    """A writer for rows with these columns. Raises LogLocked when the log is in use."""
    parsed = SinkOptions.parse(dialect, options, columns)
    COMMITS[dialect].check_free(LocalDisk(), parsed.path)
    return LogWriter(parsed, overwrite, _staging(parsed))


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
        ordered = in_order(messages, self.options.order_by)
        disk, clock = LocalDisk(), SystemClock()
        job = Write(disk, clock, self.options, self._overwrite, self.staging, ordered)
        job.check()
        COMMITS[self.options.dialect].commit(job)
        remove_staging(disk, self.staging)
        for directory in (self.options.path, posixpath.dirname(self.options.path)):
            remove_stale(disk, directory, clock.now_ns())

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        disk = LocalDisk()
        # A decided commit is finished by the next writer, from these very files.
        if pending(disk, journal_path(self.options.path)) is None:
            remove_staging(disk, self.staging)


def _staging(options: SinkOptions) -> str:
    """Inside the log's directory if that is there, else beside it."""
    name = staging_name(SystemClock().now_ns())
    is_inside = options.dialect != "ztick" and LocalDisk().is_dir(options.path)
    return posixpath.join(options.path if is_inside else posixpath.dirname(options.path), name)
