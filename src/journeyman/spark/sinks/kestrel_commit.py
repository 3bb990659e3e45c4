"""Part files -> kestrel journals: for each queue its segments, and a checkpoint for each reader.

    items of a queue        <queue>.<number> ...    rows without a reader
    checkpoint of a reader  <queue>.read.<reader>   rows with one, as they are

    append      all parts of a queue become one segment behind its last one. Their ids are above all
                that were ever given out; a lower one is refused, for readers would pass it over
    overwrite   the segments and checkpoints of every queue that has rows are replaced; other queues
                in the directory are not touched

One new file is one rename. Several, of one or many queues, go by a journal; a directory that is not
there yet appears by one rename. The locks of all queues involved are held.

A queue that is opened without any checkpoint gets a reader at its newest item, past all that is
written here. So rows without a reader want the option ``readers``, unless nobody is to read them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from typing import Any

import pyarrow.compute as pc

from journeyman.columnar.kestrel.decode import PUT, hop, iter_batches
from journeyman.errors import UsageError
from journeyman.formats.framing import Buffer, Codec, scan
from journeyman.formats.kestrel import READER, WRITER, ReadDone, ReadHead
from journeyman.formats.kestrel.codec import SEALS
from journeyman.formats.seals import stamp_of
from journeyman.logs.publication import finish, journal_path, pending, write_whole
from journeyman.logs.sealing import sealed
from journeyman.logs.segments import (
    kestrel_lock_name,
    kestrel_number,
    kestrel_queues,
    kestrel_reader_name,
    kestrel_readers,
    kestrel_segment_name,
    kestrel_segments,
)
from journeyman.spark.sinks.commit import (
    Write,
    join_parts,
    locked,
    make_directory,
    place_files,
    settle_tail,
)
from journeyman.spark.sinks.staging import SinkDisk, Stream
from journeyman.units import NS_PER_MS


def check_free(disk: SinkDisk, path: str, queues: Iterable[str] = ()) -> None:
    """Raises LogLocked if one of the queues is in use, UsageError if no journal can be there."""
    if disk.exists(path) and not disk.is_dir(path):
        raise UsageError(f"{path} is a file: kestrel's queues are in a directory")
    with locked(disk, path, [lock for lock in _locks(path, queues) if disk.exists(lock)]):
        pass


def commit(write: Write) -> None:
    disk, directory = write.disk, write.options.path
    queues = {stream.queue for stream in write.streams() if stream.queue is not None}
    if not queues and write.options.queue is not None:
        queues = {write.options.queue}
    check_free(disk, directory, queues)
    if not disk.is_dir(directory):
        plan = _Plan(write, [])
        for queue in sorted(queues):
            plan.add(queue)
        make_directory(write, plan.names)
        return
    journal = journal_path(directory)
    interrupted = pending(disk, journal)
    others = (
        kestrel_queues((*interrupted.renames.values(), *interrupted.removes)) if interrupted else []
    )
    with locked(disk, directory, _locks(directory, {*queues, *others})):
        finish(disk, journal)
        plan = _Plan(write, disk.list_dir(directory))
        for queue in sorted(queues):
            plan.add(queue)
        place_files(write, journal, plan.names, plan.removes)


def _locks(directory: str, queues: Iterable[str]) -> list[str]:
    return [posixpath.join(directory, kestrel_lock_name(queue)) for queue in sorted(queues)]


class _Plan:
    """Which files get which names, and which go; built queue by queue."""

    def __init__(self, write: Write, there: list[str]) -> None:
        self._write = write
        self._disk = write.disk
        self._directory = write.options.path
        self._there = there
        self.names: dict[str, str] = {}
        self.removes: list[str] = []

    def add(self, queue: str) -> None:
        segments = kestrel_segments(queue, self._there)
        checkpoints = kestrel_readers(queue, self._there)
        if self._write.overwrite:
            self.removes += [*segments, *checkpoints.values()]
            segments, checkpoints = [], {}
        paths = [part.path for part in self._write.parts(Stream(queue))]
        if segments and paths:
            self._check_ids(queue, segments, checkpoints.values())
            settle_tail(self._disk, WRITER, hop, self._path(segments[-1]))
            paths = [self._joined(WRITER, queue, paths)]
        elif not segments and not paths:
            paths = [self._written(WRITER, f"{queue}-empty", [])]
        else:
            paths = [self._joined(WRITER, f"{queue}-{at}", [path]) for at, path in enumerate(paths)]
        self._number(queue, paths)
        readers = [s.reader for s in self._write.streams() if s.queue == queue]
        for reader in (reader for reader in readers if reader is not None):
            parts = [part.path for part in self._write.parts(Stream(queue, reader))]
            joined = self._joined(READER, f"{queue}-read-{reader}", parts)
            self.names[joined] = kestrel_reader_name(queue, reader)
        if readers in ([], [None]) and not checkpoints:
            self._start_readers(queue)

    def _number(self, queue: str, paths: list[str]) -> None:
        """Named by the clock, but above every number in use."""
        numbers = [kestrel_number(queue, name) or 0 for name in self._there]
        first = max(max(numbers, default=0) + 1, self._write.clock.now_ns() // NS_PER_MS)
        for number, path in enumerate(paths, first):
            self.names[path] = kestrel_segment_name(queue, number)

    def _start_readers(self, queue: str) -> None:
        """Checkpoints in front of the first item that is written."""
        lowest = [
            low for message in self._write.messages for q, low, _ in message.ids if q == queue
        ]
        head = min(lowest, default=1) - 1
        entries = [READER.encode(ReadHead(head)), READER.encode(ReadDone(()))]
        for reader in self._write.options.readers:
            path = self._written(READER, f"{queue}-start-{reader}", entries)
            self.names[path] = kestrel_reader_name(queue, reader)

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
        return join_parts(self._write, codec, hop, paths, f"joined-{len(self.names)}-{name}")

    def _written(self, codec: Codec[Any], name: str, entries: list[bytes]) -> str:
        path = self._write.staged(f"written-{len(self.names)}-{name}")
        pieces: Iterable[Buffer] = [codec.header, *entries]
        if self._write.options.seals:
            stamp = stamp_of(self._write.clock.now_ns(), path)
            pieces = sealed(SEALS, codec.header, entries, stamp)
        write_whole(self._disk, path, pieces)
        return path

    def _path(self, name: str) -> str:
        return posixpath.join(self._directory, name)
