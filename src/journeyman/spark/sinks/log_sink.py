"""``write.format("ztick" | "workq" | "kestrel" | "keyspace")``: a DataFrame becomes a log.

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

    path          ztick: the logfile. workq, kestrel, keyspace: the directory
    orderBy       columns, comma separated, that the rows are in ascending order of; `_position` if
                  the rows have it; a keyspace is always in the order of `raw_key`
    segmentBytes  workq, kestrel, keyspace: a file is left once it has reached this size
    queue         kestrel: the queue of rows that name none
    readers       kestrel: readers, comma separated, that begin at the first item written, where
                  they have no checkpoint; `default` is the one without a name
    seals         ztick, kestrel: whether what is written is sealed, `true` or `false`
"""

from __future__ import annotations

import difflib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.logs.publication import journal_path, pending
from journeyman.logs.segments import check_queue_name, check_reader_name
from journeyman.spark.files import absolute, staging_name
from journeyman.spark.sinks.commit import LocalDisk, Write, remove_staging, remove_stale
from journeyman.spark.sinks.dialects import COMMITS, abort_remotely, commit_remotely
from journeyman.spark.sinks.parts import POSITION, PartsWritten, in_order, write_parts
from journeyman.spark.source import register_formats

MODES = ("append", "overwrite")
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_DEFAULT_READER_WORD: Final = "default"
_RAW_KEY: Final = "raw_key"
_MIN_SEGMENT_BYTES: Final = 1024
_SEGMENT_BYTES: Final = {
    "workq": 64 * 1024 * 1024,
    "kestrel": 16 * 1024 * 1024,
    "keyspace": 256 * 1024 * 1024,
}
_KNOWN: Final = {
    "ztick": ("path", "orderBy", "seals"),
    "workq": ("path", "orderBy", "segmentBytes"),
    "kestrel": ("path", "orderBy", "segmentBytes", "queue", "readers", "seals"),
    "keyspace": ("path", "segmentBytes"),
}


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
            commit_remotely(self.options, self._overwrite, self.staging, ordered)
        else:
            self._commit_locally(ordered)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        if self.options.is_remote:
            abort_remotely(self.staging)
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
        values = {name.lower(): value for name, value in given.items()}
        known = {name.lower() for name in _KNOWN[dialect]}
        for name in given:
            if name.lower() not in known:
                raise UsageError(_unknown(dialect, name))
        if not values.get("path"):
            raise UsageError(f"write.format({dialect!r}) needs a path: save(PATH)")
        queue = values.get("queue")
        if queue is not None:
            check_queue_name(queue)
        return cls(
            dialect,
            absolute(values["path"]).rstrip("/"),
            _order(dialect, values.get("orderby"), columns),
            _segment_bytes(dialect, values.get("segmentbytes")),
            queue,
            _readers(values.get("readers")),
            _seals(values.get("seals", "true")),
        )

    @property
    def is_remote(self) -> bool:
        return "://" in self.path


def _order(dialect: str, given: str | None, columns: Sequence[str]) -> tuple[str, ...]:
    if dialect == "keyspace":
        return (_RAW_KEY,)
    if given is not None:
        names = tuple(name.strip() for name in given.split(",") if name.strip())
        for name in names:
            if name not in columns:
                raise UsageError(f"orderBy: no column {name!r}; there are {', '.join(columns)}")
        if names:
            return names
    if POSITION in columns:
        return (POSITION,)
    raise UsageError(
        f"a {dialect} log is ordered: name the columns with orderBy, and sort by them"
        " (journeyman.spark.write does both)"
    )


def _segment_bytes(dialect: str, given: str | None) -> int:
    if given is None:
        return _SEGMENT_BYTES.get(dialect, 0)
    if not given.isascii() or not given.isdecimal() or int(given) < _MIN_SEGMENT_BYTES:
        raise UsageError(f"segmentBytes is a number from {_MIN_SEGMENT_BYTES} on, not {given!r}")
    return int(given)


def _readers(given: str | None) -> tuple[str, ...]:
    words = [word.strip() for word in (given or "").split(",") if word.strip()]
    readers = tuple("" if word == _DEFAULT_READER_WORD else word for word in words)
    for reader in readers:
        check_reader_name(reader)
    if "" in readers and len(readers) > 1:
        raise UsageError("readers: a queue with named readers has no default reader")
    return readers


def _seals(given: str) -> bool:
    if given.lower() not in ("true", "false"):
        raise UsageError(f"seals is true or false, not {given!r}")
    return given.lower() == "true"


def _unknown(dialect: str, name: str) -> str:
    known = _KNOWN[dialect]
    near = difflib.get_close_matches(name.lower(), [each.lower() for each in known], 1)
    meant = next((each for each in known if near and each.lower() == near[0]), None)
    hint = f"did you mean {meant}?" if meant else f"there are {', '.join(known)}"
    return f"writing {dialect} has no option {name!r}: {hint}"
