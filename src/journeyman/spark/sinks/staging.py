"""Where part files wait: names, and the local disk with what the sinks need beyond logs.

    <directory>/_temporary-<ms>-<hex>/part-...      part files of one write, and what is built there
    <directory>/_temporary-<ms>-<hex>.new/          a directory about to become the log

The directory is that of the log, or the one above it while the log is yet to be made: renames never
leave the file system. Hidden names are no part of any log, so readers never see them.

A write that ends, well or badly, removes its staging directory. One that was killed cannot; what
it leaves is removed by a later write to the same directory, once it is a day old: a younger one
may belong to a write that is still running.

What a task tells the driver about the part files it wrote. Only what is told counts.

    task  --write-->  part files in the staging directory, synced
          --message-> PartsWritten       collected by Spark, one a partition that succeeded

A task that failed, or ran twice, leaves files that no message names; they go with the staging
directory. So nothing is ever written twice.

Whether rows come in the order that they claim: inside a batch, a task, and a whole DataFrame.

The place of a row is the tuple of its order columns. They ascend as Spark's ``orderBy`` has them:
nulls first, text and bytes by their bytes.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from journeyman.disk import Disk, RealDisk
from journeyman.errors import UsageError
from journeyman.units import NS_PER_MS


@dataclass(frozen=True, slots=True)
class StagedStream:
    """What one file, or run of segments, of the result is made of.

    All dialects but kestrel have one stream. kestrel has one for the items of each queue and one
    for the checkpoint of each reader.
    """

    queue: str | None = None
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part file: in its stream, behind those of the same task with lower numbers."""

    stream: StagedStream
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class PartsWritten(WriterCommitMessage):
    """Everything one task wrote. ``first`` and ``last`` are its rows' places in the order."""

    partition: int
    parts: tuple[Part, ...] = ()
    records: int = 0
    first: tuple[Any, ...] | None = None
    last: tuple[Any, ...] | None = None
    logs: tuple[tuple[StagedStream, str], ...] = ()  # which logs the rows of a stream come from
    ids: tuple[tuple[str, int, int], ...] = field(default=())  # kestrel: queue, lowest, highest


def in_order(
    messages: Iterable[WriterCommitMessage | None], order_by: Sequence[str], *, strictly: bool
) -> list[PartsWritten]:
    """The messages in the order of their partitions. Raises UsageError if the rows are not.

    ``strictly``: two rows must not have the same place, as keys of a keyspace must not.
    """
    found = sorted(
        (message for message in messages if isinstance(message, PartsWritten)),
        key=lambda message: message.partition,
    )
    filled = [message for message in found if message.first is not None]
    for before, message in pairwise(filled):
        assert before.last is not None
        assert message.first is not None
        if not follows(message.first, before.last, strictly=strictly):
            raise UsageError(
                f"the rows are not in the order of {', '.join(order_by)}: partition"
                f" {message.partition} begins at {shown(message.first)}, behind"
                f" {shown(before.last)}; journeyman.spark.sinks.write sorts them"
            )
    return found


Place = tuple[Any, ...]


def follows(place: Place, before: Place, *, strictly: bool) -> bool:
    """Whether a row at ``place`` may stand behind one at ``before``."""
    one, other = _comparable(place), _comparable(before)
    return one > other if strictly else one >= other


def shown(place: Place) -> str:
    """For people; long values are cut."""
    texts = [value.hex() if isinstance(value, bytes) else str(value) for value in place]
    return ", ".join(text if len(text) <= 80 else text[:77] + "..." for text in texts)


class OrderCheck:
    """Looks at the batches of one task as they pass."""

    def __init__(self, order_by: Sequence[str], *, strictly: bool = False) -> None:
        self._order_by = list(order_by)
        self._strictly = strictly
        self.first: Place | None = None
        self.last: Place | None = None

    def note(self, batch: pa.RecordBatch) -> None:
        """Raises UsageError for a row that stands before the one in front of it."""
        if not batch.num_rows:
            return
        columns = batch.select(self._order_by)
        first, last = _place(columns, 0), _place(columns, batch.num_rows - 1)
        behind = self.last is None or follows(first, self.last, strictly=self._strictly)
        if not behind or not _is_sorted(columns):
            raise UsageError(
                f"the rows are not in the order of {', '.join(self._order_by)}: sort them by it"
                " (journeyman.spark.sinks.write does)"
            )
        self.first = first if self.first is None else self.first
        self.last = last


def _place(columns: pa.RecordBatch, row: int) -> Place:
    return tuple(column[row].as_py() for column in columns.columns)


def _comparable(place: Place) -> tuple[tuple[bool, Any], ...]:
    return tuple((value is not None, value) for value in place)


def _is_sorted(columns: pa.RecordBatch) -> bool:
    if columns.num_columns == 1:
        (only,) = columns.columns
        if pa.types.is_integer(only.type) and not only.null_count:
            values = only.to_numpy()
            return bool(np.all(values[1:] >= values[:-1]))
    # Whether a value is there comes before the value: nulls first.
    arrays = [array for column in columns.columns for array in (column.is_valid(), column)]
    table = pa.Table.from_arrays(arrays, [str(number) for number in range(len(arrays))])
    keys: list[tuple[str, Any]] = [(name, "ascending") for name in table.schema.names]
    return bool(table.take(pc.sort_indices(table, sort_keys=keys)).equals(table))


STALE_AFTER_S = 24 * 3600
_NAME = re.compile(r"_temporary-([0-9]{1,15})-[0-9a-f]{12}(?:\.new)?")
_COPY_BYTES = 64 * 1024 * 1024
_PLAIN_COPY_BYTES = 1024 * 1024
_MODE = 0o644

Source = tuple[str, int]  # a file, and the offset from which it is copied


class SinkDisk(Disk, Protocol):
    """A disk on which directories too can be renamed and removed, and files joined."""

    def remove_dir(self, path: str) -> None:
        """Remove an empty directory."""
        ...

    def concatenate(self, sources: Sequence[Source], target: str) -> int:
        """Write the sources end to end into a new file, synced; its size."""
        ...


class LocalDisk(RealDisk):
    """The machine's file system. Files are joined inside the kernel, or even by reference."""

    def remove_dir(self, path: str) -> None:
        os.rmdir(path)

    def concatenate(self, sources: Sequence[Source], target: str) -> int:
        to = os.open(target, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, _MODE)
        try:
            for path, offset in sources:
                of = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    _copy(of, to, offset)
                finally:
                    os.close(of)
            os.fdatasync(to)
            return os.fstat(to).st_size
        finally:
            os.close(to)


def remove_staging(disk: SinkDisk, staging: str) -> None:
    """Remove a staging directory with all that is in it."""
    for directory in (staging, f"{staging}.new"):
        _remove_directory(disk, directory)


def remove_stale(disk: SinkDisk, directory: str, now_ns: int) -> None:
    """Remove what writes that were killed a day ago or earlier left behind."""
    for name in disk.list_dir(directory) if disk.is_dir(directory) else ():
        match = _NAME.fullmatch(name)
        if match and now_ns // NS_PER_MS - int(match[1]) > STALE_AFTER_S * 1000:
            _remove_directory(disk, posixpath.join(directory, name))


def _remove_directory(disk: SinkDisk, directory: str) -> None:
    if not disk.is_dir(directory):
        return
    # Another writer may be at the same work.
    with suppress(FileNotFoundError):
        for name in disk.list_dir(directory):
            with suppress(FileNotFoundError):
                disk.remove(posixpath.join(directory, name))
        disk.remove_dir(directory)


def _copy(of: int, to: int, offset: int) -> None:
    """From ``offset`` to the end, at the place where ``to`` is."""
    while copied := _copy_some(of, to, offset):
        offset += copied


def _copy_some(of: int, to: int, offset: int) -> int:
    try:
        return os.copy_file_range(of, to, _COPY_BYTES, offset_src=offset)
    except AttributeError:  # not on every system
        pass
    except OSError as error:  # and not between all file systems
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    data = os.pread(of, _PLAIN_COPY_BYTES, offset)
    left = memoryview(data)
    while left:
        left = left[os.write(to, left) :]
    return len(data)
