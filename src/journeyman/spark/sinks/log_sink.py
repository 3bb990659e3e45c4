"""``write.format("ztick" | "workq" | "kestrel")``: a DataFrame becomes a log.

    where       when                       what
    driver      ``new_writer``             options and schema checked; is the log in use?
    executors   ``write``, once a task     rows -> synced part files in the staging directory
    driver      ``commit``, once           part files -> the log, all files or none
                ``abort``, instead         the staging directory goes

Each runs in a process of its own, on a pickled copy of the writer: nothing is remembered but what
the messages say. The log's lock is held during ``commit`` only, so a server may run while tasks
write, and must not while they are committed: then LogLocked is raised, and nothing was changed.

The options of a write (SinkOptions). Names are read without regard to case, as in Spark; one that
nobody knows is an error:

    path          ztick: the logfile. workq, kestrel: the directory
    orderBy       columns, comma separated, that the rows are in ascending order of; `_position` if
                  the rows have it
    segmentBytes  workq, kestrel: a file is left once it has reached this size
    queue         kestrel: the queue of rows that name none
    readers       kestrel: readers, comma separated, that begin at the first item written, where
                  they have no checkpoint; `default` is the one without a name
    seals         ztick, kestrel: whether what is written is sealed, `true` or `false`
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.logs.publication import journal_path, pending
from journeyman.logs.segments import check_queue_name, check_reader_name
from journeyman.spark.files import absolute, refuse_uri, staging_name
from journeyman.spark.sinks.commit import LocalDisk, Write, remove_staging, remove_stale
from journeyman.spark.sinks.dialects import COMMITS
from journeyman.spark.sinks.parts import POSITION, in_order, write_parts
from journeyman.spark.source import register_formats
from journeyman.spark.source.options import (
    OptionTable,
    any_text,
    flag_option,
    number_from,
    parse_options,
)

MODES = ("append", "overwrite")
_DEFAULT_READER_WORD: Final = "default"
_MIN_SEGMENT_BYTES: Final = 1024
_DEFAULT_SEGMENT_BYTES: Final = {
    "workq": 64 * 1024 * 1024,
    "kestrel": 16 * 1024 * 1024,
}


def new_writer(
    dialect: str, options: Mapping[str, str], columns: Sequence[str], *, overwrite: bool = False
) -> LogWriter:
    """A writer for rows with these columns. Raises LogLocked when the log is in use."""
    parsed = SinkOptions.parse(dialect, options, columns)
    COMMITS[dialect].check_free(LocalDisk(), parsed.path)
    return LogWriter(parsed, overwrite, _staging(parsed))


def write(
    frame: DataFrame,
    dialect: str,
    path: str,
    *,
    mode: str = "append",
    partitions: int | None = None,
    **options: Any,
) -> None:
    """Sort the rows and write them as a log; options as docs/spark.md has them.

    ``partitions`` is how many tasks write; by default Spark decides.
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
    register_formats(rows.sparkSession, dialect)
    rows.write.format(dialect).mode(mode).options(**given).save(path)


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
        # What was decided is finished by the next writer, from these very files.
        if pending(disk, journal_path(self.options.path)) is None:
            remove_staging(disk, self.staging)


def _staging(options: SinkOptions) -> str:
    """Inside the log's directory if that is there, else beside it."""
    name = staging_name(SystemClock().now_ns())
    is_inside = options.dialect != "ztick" and LocalDisk().is_dir(options.path)
    return posixpath.join(options.path if is_inside else posixpath.dirname(options.path), name)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Checked and with defaults. Small, and pickled with every task."""

    dialect: str
    path: str
    order_by: tuple[str, ...]
    segment_bytes: int
    queue: str | None = None
    readers: tuple[str, ...] = ()
    seals: bool = True

    @classmethod
    def parse(cls, dialect: str, given: Mapping[str, str], columns: Sequence[str]) -> SinkOptions:
        """``columns`` are those of the rows. Raises UsageError."""
        if dialect == "ledger":
            raise UsageError("a ledger can be read, not written: the server writes it")
        values = parse_options(f"writing {dialect}", given, _OPTIONS[dialect])
        if not values.get("path"):
            raise UsageError(f"write.format({dialect!r}) needs a path: save(PATH)")
        values["path"] = absolute(values["path"]).rstrip("/")
        refuse_uri(values["path"])
        values["order_by"] = _order(dialect, values.get("order_by", ()), columns)
        values.setdefault("segment_bytes", _DEFAULT_SEGMENT_BYTES.get(dialect, 0))
        return cls(dialect, **values)


def _order(dialect: str, names: Sequence[str], columns: Sequence[str]) -> tuple[str, ...]:
    for name in names:
        if name not in columns:
            raise UsageError(f"orderBy: no column {name!r}; there are {', '.join(columns)}")
    if names:
        return tuple(names)
    if POSITION in columns:
        return (POSITION,)
    raise UsageError(
        f"a {dialect} log is ordered: name the columns with orderBy, and sort by them"
        " (journeyman.spark.write does both)"
    )


def _words(_: str, text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _queue(_: str, text: str) -> str:
    check_queue_name(text)
    return text


def _readers(name: str, text: str) -> tuple[str, ...]:
    words = _words(name, text)
    readers = tuple("" if word == _DEFAULT_READER_WORD else word for word in words)
    for reader in readers:
        check_reader_name(reader)
    if "" in readers and len(readers) > 1:
        raise UsageError("readers: a queue with named readers has no default reader")
    return readers


_PATH = ("path", "path", any_text)
_ORDER_BY = ("orderBy", "order_by", _words)
_SEGMENT_BYTES = ("segmentBytes", "segment_bytes", number_from(_MIN_SEGMENT_BYTES))
_QUEUE = ("queue", "queue", _queue)
_READERS = ("readers", "readers", _readers)
_SEALS = ("seals", "seals", flag_option)


_OPTIONS: Final[Mapping[str, OptionTable]] = {
    "ztick": (_PATH, _ORDER_BY, _SEALS),
    "workq": (_PATH, _ORDER_BY, _SEGMENT_BYTES),
    "kestrel": (_PATH, _ORDER_BY, _SEGMENT_BYTES, _QUEUE, _READERS, _SEALS),
}
