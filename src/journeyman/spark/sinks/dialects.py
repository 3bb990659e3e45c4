"""Part files -> a log: what each dialect makes of the parts that tasks have written.

    COMMITS[dialect].check_free(disk, path)     LogLocked if the log is in use, before any task runs
    COMMITS[dialect].commit(write)              after all tasks, in the driver, with the log locked

The steps that dialects share are in commit.py.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import pyarrow.compute as pc

from journeyman.columnar.kestrel.decode import PUT, iter_batches
from journeyman.columnar.kestrel.decode import hop as kestrel_hop
from journeyman.columnar.workq.decode import hop as workq_hop
from journeyman.columnar.ztick.decode import hop as ztick_hop
from journeyman.errors import UsageError
from journeyman.formats import workq, ztick
from journeyman.formats.framing import Buffer, Codec, scan
from journeyman.formats.kestrel import READER, SEALS, WRITER, ReadDone, ReadHead
from journeyman.formats.seals import stamp_of
from journeyman.logs import publication
from journeyman.logs import segments as logs_segments
from journeyman.logs.sealing import sealed
from journeyman.spark.sinks import commit as sinks_commit
from journeyman.spark.sinks.parts import StagedStream
from journeyman.units import NS_PER_MS

_LOCK = "_lock"


def check_ztick_free(disk: sinks_commit.SinkDisk, path: str) -> None:
    """Raises LogLocked if the log is in use, UsageError if no log can be there."""
    if disk.is_dir(path):
        raise UsageError(f"{path} is a directory: give the path of the logfile in it")
    names = logs_segments.ZtickNames(path)
    if disk.exists(names.lock):
        with sinks_commit.locked(disk, path, [names.lock]):
            pass


def commit_ztick(write: sinks_commit.Write) -> None:
    """All of it in the one file at its path.

        append      active = active + parts        .compressed and .to_compress stay as they are
        overwrite   active = parts                 and they go

    Either is one rename at the end. Before an overwrite the older files are folded into the active
    one: otherwise they would load beside the new file after a crash, or be gone beside the old one.

        step                                                a crash behind it loads as
        0                                                   C, T, A
        1 active = C + T + A, by a rename                   C, T, C, T, A
        2 remove .compressed, then .to_compress             T, C, T, A; then C, T, A
        3 active = parts, by a rename                       the new log

    As the last record of a key wins, all of these but the last are the log as it was.
    """
    disk, names = write.disk, logs_segments.ZtickNames(write.options.path)
    disk.make_dirs(names.directory)
    check_ztick_free(disk, names.active)
    with sinks_commit.locked(disk, names.active, [names.lock]):
        parts = [part.path for part in write.parts(StagedStream())]
        before = None
        if write.overwrite:
            _fold_older_files(write, names)
        elif disk.exists(names.active):
            if not parts:
                return
            sinks_commit.settle_tail(disk, ztick.CODEC, ztick_hop, names.active)
            # A file that was nothing but damage has been removed.
            before = names.active if disk.exists(names.active) else None
        whole = sinks_commit.join_parts(write, ztick.CODEC, ztick_hop, parts, "log", before=before)
        publication.put_in_place(disk, whole, names.active)


def _fold_older_files(write: sinks_commit.Write, names: logs_segments.ZtickNames) -> None:
    disk = write.disk
    older = [path for path in (names.compressed, names.to_compress) if disk.exists(path)]
    if not older:
        return
    files = [*older, names.active] if disk.exists(names.active) else older
    for path in files:
        sinks_commit.settle_tail(disk, ztick.CODEC, ztick_hop, path)
    files = [path for path in files if disk.exists(path)]
    together = write.staged("together")
    sinks_commit.concatenate(disk, files, together, 0)
    publication.put_in_place(disk, together, names.active)
    for path in older:
        if disk.exists(path):
            publication.remove_durably(disk, path)


def _workq_locks(directory: str) -> list[str]:
    return [
        posixpath.join(directory, name)
        for name in (logs_segments.APPEND_LOCK, logs_segments.READ_LOCK)
    ]


def check_workq_free(disk: sinks_commit.SinkDisk, path: str) -> None:
    """Raises LogLocked if the log is in use, UsageError if no log can be there."""
    if disk.exists(path) and not disk.is_dir(path):
        raise UsageError(f"{path} is a file: a workq log is a directory")
    with sinks_commit.locked(
        disk, path, [lock for lock in _workq_locks(path) if disk.exists(lock)]
    ):
        pass


def commit_workq(write: sinks_commit.Write) -> None:
    """Numbered segments, each with its header.

        no directory yet   parts become segments 000000001.log ... of a directory that appears by
                           one rename
        no segment yet     the same in the directory that is there, by a journal
        append             all parts become one segment behind the last, by one rename
        overwrite          parts become segments from 000000001.log on, old ones go, by a journal

    append.lock and read.lock are held, as WorkqLog holds them while it recovers.
    """
    disk, directory = write.disk, write.options.path
    check_workq_free(disk, directory)
    if not disk.is_dir(directory):
        sinks_commit.make_directory(write, _segments(write))
        return
    journal = publication.journal_path(directory)
    with sinks_commit.locked(disk, directory, _workq_locks(directory)):
        publication.finish(disk, journal)
        existing = logs_segments.workq_segments(disk.list_dir(directory))
        if existing and not write.overwrite:
            _append(write, posixpath.join(directory, existing[-1]))
        else:
            sinks_commit.place_files(write, journal, _segments(write), existing)


def _segments(write: sinks_commit.Write) -> dict[str, str]:
    """The parts as segments; a log without records is one segment without any."""
    paths = [part.path for part in write.parts(StagedStream())]
    if not paths:
        paths = [write.staged("empty")]
        publication.write_whole(write.disk, paths[0], [workq.HEADER])
    return {path: logs_segments.numbered_name(number) for number, path in enumerate(paths, 1)}


def _append(write: sinks_commit.Write, last: str) -> None:
    parts = write.parts(StagedStream())
    if not parts:
        return
    disk, directory = write.disk, posixpath.dirname(last)
    following = logs_segments.NumberedPlan(disk, directory, workq.HEADER, 0).next_path(last)
    sinks_commit.settle_tail(disk, workq.CODEC, workq_hop, last)
    segment = write.staged("segment")
    sinks_commit.concatenate(disk, [part.path for part in parts], segment, len(workq.HEADER))
    publication.put_in_place(disk, segment, following)


def check_kestrel_free(disk: sinks_commit.SinkDisk, path: str, queues: Iterable[str] = ()) -> None:
    """Raises LogLocked if one of the queues is in use, UsageError if no journal can be there."""
    if disk.exists(path) and not disk.is_dir(path):
        raise UsageError(f"{path} is a file: kestrel's queues are in a directory")
    with sinks_commit.locked(
        disk, path, [lock for lock in _kestrel_locks(path, queues) if disk.exists(lock)]
    ):
        pass


def commit_kestrel(write: sinks_commit.Write) -> None:
    """Publish for each queue its segments, and a checkpoint for each reader.

        items of a queue        <queue>.<number> ...    rows without a reader
        checkpoint of a reader  <queue>.read.<reader>   rows with one, as they are

        append      all parts of a queue become one segment behind its last one. Their ids are above
                    all that were ever given out; a lower one is refused: readers would pass it over
        overwrite   segments and checkpoints of every queue that has rows are replaced; other queues
                    in the directory are not touched

    One new file is one rename. Several, of one or many queues, go by a journal; a directory that is
    not there yet appears by one rename. The locks of all queues involved are held.

    A queue that is opened without any checkpoint gets a reader at its newest item, past all that is
    written here. So rows without a reader want the option ``readers``, unless nobody is to read
    them.
    """
    disk, directory = write.disk, write.options.path
    queues = {stream.queue for stream in write.streams() if stream.queue is not None}
    if not queues and write.options.queue is not None:
        queues = {write.options.queue}
    check_kestrel_free(disk, directory, queues)
    if not disk.is_dir(directory):
        plan = _Plan(write, [])
        for queue in sorted(queues):
            plan.add(queue)
        sinks_commit.make_directory(write, plan.names)
        return
    journal = publication.journal_path(directory)
    interrupted = publication.pending(disk, journal)
    others = (
        logs_segments.kestrel_queues((*interrupted.renames.values(), *interrupted.removes))
        if interrupted
        else []
    )
    with sinks_commit.locked(disk, directory, _kestrel_locks(directory, {*queues, *others})):
        publication.finish(disk, journal)
        plan = _Plan(write, disk.list_dir(directory))
        for queue in sorted(queues):
            plan.add(queue)
        sinks_commit.place_files(write, journal, plan.names, plan.removes)


def _kestrel_locks(directory: str, queues: Iterable[str]) -> list[str]:
    return [
        posixpath.join(directory, logs_segments.kestrel_lock_name(queue))
        for queue in sorted(queues)
    ]


class _Plan:
    """The new names of files and the files to remove, built queue by queue."""

    def __init__(self, write: sinks_commit.Write, there: list[str]) -> None:
        self._write = write
        self._disk = write.disk
        self._directory = write.options.path
        self._there = there
        self.names: dict[str, str] = {}
        self.removes: list[str] = []

    def add(self, queue: str) -> None:
        segments = logs_segments.kestrel_segments(queue, self._there)
        checkpoints = logs_segments.kestrel_readers(queue, self._there)
        if self._write.overwrite:
            self.removes += [*segments, *checkpoints.values()]
            segments, checkpoints = [], {}
        paths = [part.path for part in self._write.parts(StagedStream(queue))]
        if segments and paths:
            self._check_ids(queue, segments, checkpoints.values())
            sinks_commit.settle_tail(self._disk, WRITER, kestrel_hop, self._path(segments[-1]))
            paths = [self._joined(WRITER, queue, paths)]
        elif not segments and not paths:
            paths = [self._written(WRITER, f"{queue}-empty", [])]
        else:
            paths = [self._joined(WRITER, f"{queue}-{at}", [path]) for at, path in enumerate(paths)]
        self._number(queue, paths)
        readers = [s.reader for s in self._write.streams() if s.queue == queue]
        for reader in (reader for reader in readers if reader is not None):
            parts = [part.path for part in self._write.parts(StagedStream(queue, reader))]
            joined = self._joined(READER, f"{queue}-read-{reader}", parts)
            self.names[joined] = logs_segments.kestrel_reader_name(queue, reader)
        if readers in ([], [None]) and not checkpoints:
            self._start_readers(queue)

    def _number(self, queue: str, paths: list[str]) -> None:
        """Named by the clock, but above every number in use."""
        numbers = [logs_segments.kestrel_number(queue, name) or 0 for name in self._there]
        first = max(max(numbers, default=0) + 1, self._write.clock.now_ns() // NS_PER_MS)
        for number, path in enumerate(paths, first):
            self.names[path] = logs_segments.kestrel_segment_name(queue, number)

    def _start_readers(self, queue: str) -> None:
        """Checkpoints in front of the first item that is written."""
        lowest = [
            low for message in self._write.messages for q, low, _ in message.ids if q == queue
        ]
        head = min(lowest, default=1) - 1
        entries = [READER.encode(ReadHead(head)), READER.encode(ReadDone(()))]
        for reader in self._write.options.readers:
            path = self._written(READER, f"{queue}-start-{reader}", entries)
            self.names[path] = logs_segments.kestrel_reader_name(queue, reader)

    def _check_ids(self, queue: str, segments: list[str], checkpoints: Iterable[str]) -> None:
        lowest = [
            low for message in self._write.messages for q, low, _ in message.ids if q == queue
        ]
        if not lowest:
            return
        tail = max(map(self._highest_item, segments))
        tail = max(tail, *map(self._highest_read, checkpoints), 0)
        if min(lowest) <= tail:
            raise UsageError(
                f"queue {queue} in {self._directory} has given out ids up to {tail}, so item"
                f" {min(lowest)} cannot be appended: give the items ids above that"
            )

    def _highest_item(self, segment: str) -> int:
        highest = 0
        for chunk in iter_batches(self._disk.view(self._path(segment))):
            is_put = pc.equal(chunk.batch.column("kind"), PUT)  # type: ignore[call-overload]
            found = pc.max(chunk.batch.column("item_id").filter(is_put)).as_py()
            highest = max(highest, found or 0)
        return highest

    def _highest_read(self, checkpoint: str) -> int:
        entries, _ = scan(READER, self._disk.read_bytes(self._path(checkpoint)))
        records = [entry.record for entry in entries]
        heads = [record.item_id for record in records if isinstance(record, ReadHead)]
        done = [item for r in records if isinstance(r, ReadDone) for item in r.item_ids]
        return max([*heads, *done], default=0)

    def _joined(self, codec: Codec[Any], name: str, paths: list[str]) -> str:
        """One file of all parts. A single one stays as it is, unless it is to be sealed."""
        if len(paths) == 1 and not self._write.options.seals:
            return paths[0]
        return sinks_commit.join_parts(
            self._write, codec, kestrel_hop, paths, f"joined-{len(self.names)}-{name}"
        )

    def _written(self, codec: Codec[Any], name: str, entries: list[bytes]) -> str:
        path = self._write.staged(f"written-{len(self.names)}-{name}")
        pieces: Iterable[Buffer] = [codec.header, *entries]
        if self._write.options.seals:
            stamp = stamp_of(self._write.clock.now_ns(), path)
            pieces = sealed(SEALS, codec.header, entries, stamp)
        publication.write_whole(self._disk, path, pieces)
        return path

    def _path(self, name: str) -> str:
        return posixpath.join(self._directory, name)


class DialectCommit(NamedTuple):
    """The two steps of a dialect."""

    check_free: Callable[[sinks_commit.SinkDisk, str], None]
    commit: Callable[[sinks_commit.Write], None]


COMMITS: Final = {
    "ztick": DialectCommit(check_ztick_free, commit_ztick),
    "workq": DialectCommit(check_workq_free, commit_workq),
    "kestrel": DialectCommit(check_kestrel_free, commit_kestrel),
}
