"""The journal of one kestrel queue: segments of items, and a checkpoint for each reader.

    <dir>/<queue>.<number>         segments: items in the order of their ids
    <dir>/<queue>.read.<reader>    checkpoints, see checkpoints.py
    <dir>/<queue>.lock             held for as long as the queue is open; the original has none
    <dir>/.index/                  what closed segments hold, see logs/indexes.py
    <dir>/quarantine/              damaged bytes, see recovery

    put         an id, one record, and a new segment before it if it would not fit this one
    checkpoint  how far a reader has come, durably
    retain      segments that every reader has passed are removed, see segments.py

Ids grow by one per item and are never reused, even if the items that had them are
lost: the next one is above every id in any segment *and* in any checkpoint. (The original reuses
them; a reader whose checkpoint is ahead of the items then skips new ones.) So after a
loss there may be a gap, which readers here skip.

An item of up to 16 MiB always fits: one that is too large for any segment has a segment to itself.

Opening a queue, between the lock and the first append:

    1  an interrupted change of many files is finished                  see publication
    2  unfinished files of this queue are removed
    3  segments are read, or their indexes; damage is quarantined       see segments.py
    4  readers are placed, and the checkpoints say where                see checkpoints.py
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from journeyman.clock import Clock
from journeyman.disk import Disk, Lock
from journeyman.errors import LogLocked, UsageError
from journeyman.folds import Anomaly, Notes
from journeyman.folds.kestrel import DEFAULT_READER, FoldedQueue, Reader, open_queue
from journeyman.formats.framing import Buffer
from journeyman.formats.kestrel import SEALS, WRITER, ItemPut
from journeyman.formats.seals import BLOCK_BYTES, CUT_BYTES
from journeyman.logs import segments as segment_names
from journeyman.logs.appender import Appender, SyncPolicy
from journeyman.logs.holders import Holders, ask
from journeyman.logs.indexes import remove_index
from journeyman.logs.kestrel import segments as queue_segments
from journeyman.logs.kestrel.checkpoints import Checkpoints
from journeyman.logs.publication import finish, journal_path, pending, remove_durably
from journeyman.logs.recovery import RecoveryReport, copy_aside
from journeyman.logs.sealing import Sealing, last_seal, read_whole
from journeyman.units import NS_PER_MS


@dataclass(frozen=True, slots=True)
class FoundQueue:
    catalog: queue_segments.SegmentCatalog
    checkpoints: Checkpoints
    next_id: int
    last_path: str | None  # the segment with the highest number; None: look for it
    report: RecoveryReport
    anomalies: tuple[Anomaly, ...] = ()  # readers that do not stand where their checkpoints said


def find_queue(
    disk: Disk,
    clock: Clock,
    directory: str,
    queue: str,
    *,
    seal: bool = True,
    thorough: bool = False,
    names: Sequence[str] | None = None,
    notes: Notes = None,
) -> FoundQueue:
    """``thorough``: every segment is read, whatever its index says.

    ``seal``: checkpoints are written with seals.
    ``names`` are the files that belong to it, for callers that have already listed the directory.
    """
    if finish_publication(disk, directory, queue) or names is None:
        names = disk.list_dir(directory)
    for name in segment_names.kestrel_temporaries(queue, names):
        disk.remove(posixpath.join(directory, name))
    paths = [
        posixpath.join(directory, name) for name in segment_names.kestrel_segments(queue, names)
    ]
    segments, reports = queue_segments.recover_segments(disk, paths, thorough=thorough)
    catalog = queue_segments.SegmentCatalog(segments)
    checkpoints = Checkpoints(disk, directory, queue, seal=seal)
    is_ours = bool(paths) and not any(report.sealed_again for report in reports)
    is_ours = is_ours and _ends_sealed(disk, paths[-1])
    found, reader_reports = checkpoints.load(names, catalog.tail, is_ours=is_ours)
    anomalies: list[Anomaly] = []
    view = open_queue(catalog.edge_ids(), found, anomalies.append)
    if notes is not None:
        for anomaly in anomalies:
            notes(anomaly)
    checkpoints.save_opened(found, view.readers, clock.now_ns() // NS_PER_MS)
    report = RecoveryReport((*reports, *reader_reports))
    last_path = paths[-1] if paths and disk.exists(paths[-1]) else None
    next_id = _next_id(view, found)
    return FoundQueue(catalog, checkpoints, next_id, last_path, report, tuple(anomalies))


def _ends_sealed(disk: Disk, path: str) -> bool:
    """True if this program was the last one that has written to a segment."""
    return disk.exists(path) and last_seal(disk, SEALS, path, disk.size(path)) is not None


def finish_publication(disk: Disk, directory: str, queue: str = "") -> bool:
    """Carry through a change of many files that was cut short. Returns whether there was one.

    It may be about other queues than this one. Of those the locks are needed as well: LogLocked if
    another process has one of them open.
    """
    publication = pending(disk, journal_path(directory))
    names = () if publication is None else (*publication.renames.values(), *publication.removes)
    files = (posixpath.basename(name) for name in names)
    others = {file.partition(".")[0].partition("+")[0] for file in files} - {queue}
    locks: list[Lock] = []
    try:
        for other in sorted(others):
            locks.append(  # noqa: PERF401 - those that were taken are let go if one is not
                disk.lock(posixpath.join(directory, segment_names.kestrel_lock_name(other)))
            )
        finish(disk, journal_path(directory))
    finally:
        for lock in locks:
            lock.release()
    return publication is not None


def remove_stale_locks(disk: Disk, directory: str, names: Sequence[str]) -> None:
    """Remove lock files of deleted queues: a crash while a queue was erased leaves its lock.

    Only files that no other program can have put there: empty, not held, named like a queue
    without files. ``names`` are those in the directory.
    """
    if segment_names.workq_segments(
        names
    ):  # it has locks of its own here, and the original does not look twice
        return
    owned = {
        name.partition(".")[0] for name in names if not name.endswith(segment_names.LOCK_SUFFIX)
    }
    for name in names:
        queue = name.removesuffix(segment_names.LOCK_SUFFIX)
        if queue == name or queue in owned or not segment_names.is_queue_name(queue):
            continue
        path = posixpath.join(directory, name)
        with suppress(LogLocked, FileNotFoundError):
            if disk.size(path) == 0:
                lock = disk.lock(path)
                disk.remove(path)
                lock.release()


def _next_id(view: FoldedQueue, checkpoints: Mapping[str, Reader | None]) -> int:
    """Above every id that was ever given out, as far as the files know."""
    seen = [
        max(reader.head, *reader.done, 0) for reader in checkpoints.values() if reader is not None
    ]
    return max(view.tail, *seen, 0) + 1


DEFAULT_SEGMENT_BYTES = 16 * 1024 * 1024


class KestrelLog:
    """A queue's journal open for writing. Made by ``open``.

    One thread puts and appends; the rest is safe from any thread meanwhile.
    """

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        lock_path: str,
        lock: Lock,
        appender: Appender,
        recovered: FoundQueue,
        segment_bytes: int,
        archive_directory: str | None,
        holders: Holders | None = None,
    ) -> None:
        self._holders = holders
        self.is_held = False  # retention left a segment because of a holder
        self._disk = disk
        self._clock = clock
        self._lock_path = lock_path
        self._lock = lock
        self._checkpoints = recovered.checkpoints
        self._segment_bytes = segment_bytes
        self._archive_directory = archive_directory
        self._files = threading.Lock()  # checkpoints and retention, one at a time
        self._ids = threading.Lock()  # guards the rest; never held while the appender writes
        self._catalog = recovered.catalog
        self._next_id = recovered.next_id
        self._reader = queue_segments.ItemReader(disk, self._end_of, self._note_damage)
        self.appender = appender
        self.recovery = recovered.report
        self.anomalies = recovered.anomalies
        self.damages: list[tuple[str, int, str]] = []  # met since: path, offset, reason

    @classmethod
    def open(
        cls,
        disk: Disk,
        clock: Clock,
        directory: str,
        queue: str,
        *,
        sync: SyncPolicy = SyncPolicy.ALWAYS,
        seal: bool = True,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        archive_directory: str | None = None,
        thorough: bool = False,
        names: Sequence[str] | None = None,
        notes: Notes = None,
        holders: Holders | None = None,
    ) -> KestrelLog:
        """Lock, recover and open a queue; made, with its directory, if it is missing.

        ``seal``: what is written is sealed, see journeyman.formats.seals.
        ``thorough``: all of every segment is read, and not only its index. ``names`` are the
        files of the queue, if the directory has been listed already. ``notes`` gets the anomalies
        of readers that are not where their checkpoints said. ``holders`` say what retention has
        to leave for now.
        LogLocked: another process has the queue.
        """
        segment_names.check_queue_name(queue)
        disk.make_dirs(directory)
        lock_path = posixpath.join(directory, segment_names.kestrel_lock_name(queue))
        try:
            lock = disk.lock(lock_path)
        except LogLocked as error:
            reason = f"another process has queue {queue} open"
            raise LogLocked(directory, reason) from error
        try:
            recovered = find_queue(
                disk,
                clock,
                directory,
                queue,
                seal=seal,
                thorough=thorough,
                names=names,
                notes=notes,
            )
            plan = segment_names.KestrelPlan(
                disk, clock, directory, queue, WRITER.header, segment_bytes
            )
            sealing = Sealing(SEALS, enabled=seal)
            appender = Appender(disk, clock, plan, sync=sync, sealing=sealing)
            appender.open(recovered.last_path)
            if not recovered.catalog.numbers_follow_ids:
                # The highest number does not hold the highest ids; a new segment will hold both.
                appender.rotate_to(lambda: plan.next_path(plan.first_path()))
        except BaseException:
            lock.release()
            raise
        return cls(
            *(disk, clock, lock_path, lock, appender, recovered, segment_bytes, archive_directory),
            holders,
        )

    @property
    def next_id(self) -> int:
        """The id of the item that is put next."""
        with self._ids:
            return self._next_id

    @property
    def tail(self) -> int:
        """The highest id that is stored; 0 when there is none."""
        with self._ids:
            return self._catalog.tail

    @property
    def segments(self) -> list[queue_segments.Segment]:
        """The segments that hold items, oldest first."""
        with self._ids:
            return list(self._catalog)

    @property
    def readers(self) -> Mapping[str, Reader]:
        """Where each reader stands according to its checkpoint."""
        with self._files:
            durable = self._checkpoints.durable
            return {name: Reader(r.head, set(r.done)) for name, r in durable.items()}

    def put(
        self,
        data: bytes,
        *,
        add_time_ms: int | None = None,
        expire_time_ms: int | None = None,
        error_count: int = 0,
    ) -> ItemPut:
        """Store one item. ``append`` says when it fails, and what is true afterwards.

        ``add_time_ms`` is now by default. EncodeError: it is too large, and no id is used up.
        """
        if add_time_ms is None:
            add_time_ms = self._clock.now_ns() // NS_PER_MS
        item = ItemPut(self.next_id, add_time_ms, expire_time_ms, error_count, data)
        self.append([item])
        return item

    def append(
        self,
        items: Sequence[ItemPut],
        *,
        sync: bool | None = None,
        then: Callable[[], None] | None = None,
    ) -> bool:
        """Write items whose ids the engine has assigned, from ``next_id`` on.

        As durable as the policy says when this returns; LogError: none of them is stored. ``sync``
        and ``then``: see ``Appender.append``.
        Whether a segment was left for the next one: see ``save_indexes``.
        """
        with self._ids:
            next_id = self._next_id
            if any(item.item_id < next_id + place for place, item in enumerate(items)):
                raise UsageError(f"an id below {next_id} was given out before")
            encoded = [WRITER.encode(item) for item in items]
        sizes = [len(record) for record in encoded]
        runs = [[record] for record in encoded]
        if self.has_room_for(sum(sizes)):
            runs = self.appender.in_blocks(encoded)
        positions = self.appender.append([b"".join(run) for run in runs], sync=sync, then=then)
        with self._ids:
            segments_before = len(self._catalog)
            self._next_id = items[-1].item_id + 1
            begin = 0
            for position, run in zip(positions, runs, strict=True):
                end = begin + len(run)
                self._catalog.note_run(position, items[begin:end], sizes[begin:end])
                begin = end
            return len(self._catalog) > max(segments_before, 1)

    def has_room_for(self, size: int) -> bool:
        """Return whether the active segment takes so many bytes more, and the seals between
        them.
        """
        end = self.appender.end()
        seals = (size // BLOCK_BYTES + 4 + size // CUT_BYTES) * SEALS.size
        return end is not None and end.offset + size + seals <= self._segment_bytes

    def read_after(self, item_id: int, *, max_items: int, max_bytes: int) -> list[ItemPut]:
        """The first items with ids above this one, in order. Only what was committed is seen."""
        return self._reader.read_after(self.segments, item_id, max_items, max_bytes)

    def left_for(self, reader: Reader) -> tuple[int, int]:
        """How many items, and bytes, this reader still has to be given."""
        return self._reader.left_for(self.segments, reader)

    @property
    def is_unindexed(self) -> bool:
        """Return whether a closed segment has no index."""
        return bool(self._without_index())

    def save_indexes(self) -> int:
        """Write the index of each closed segment that has none. Returns how many."""
        with self._files:
            missing = [s for s in self._without_index() if self._disk.exists(s.path)]
            for segment in missing:
                queue_segments.save_segment(self._disk, segment)
        return len(missing)

    def _without_index(self) -> list[queue_segments.Segment]:
        """Closed segments: those before the last that is known to hold an item. The writer may have
        left that one too, but what it wrote there last may not be noted yet."""
        return [segment for segment in self.segments[:-1] if not segment.indexed]

    def items(self, after: int = 0) -> Iterator[ItemPut]:
        """Stored items with ids above ``after``, as of the first one."""
        end = self.appender.end()
        for segment in self.segments:
            if segment.last_id > after and self._disk.exists(segment.path):
                data: Buffer = self._disk.view(segment.path)
                if end is not None and segment.path == end.path:
                    data = data[: end.offset]
                for entry in read_whole(WRITER, data):
                    if isinstance(entry.record, ItemPut) and entry.record.item_id > after:
                        yield entry.record
            if end is not None and segment.path == end.path:
                break

    def checkpoint(self, name: str, reader: Reader) -> None:
        """Write down how far a reader has come. Durable when this returns."""
        with self._files:
            self._write_checkpoint(name, reader)

    def checkpoint_if_known(self, name: str, reader: Reader) -> bool:
        """Write a checkpoint unless the reader has been dropped or renamed meanwhile. Returns
        whether it was written."""
        with self._files:
            if name not in self._checkpoints.durable:
                return False
            self._write_checkpoint(name, reader)
            return True

    def _write_checkpoint(self, name: str, reader: Reader) -> None:
        """A head beyond the newest item would not be believed: what it passes over are lost ids."""
        tail = self.tail
        if 0 < tail < reader.head:
            reader = Reader(tail, {*reader.done, reader.head})
        self._checkpoints.write(name, reader, self._clock.now_ns() // NS_PER_MS)

    def add_reader(self, name: str) -> Reader:
        """A new reader, at the tail; or in the place of the default reader if there is one.

        Raises UsageError for the default reader where named ones are, and for one that exists.
        """
        with self._files:
            durable = self._checkpoints.durable
            if name in durable:
                raise UsageError(f"reader {name!r} exists")
            if name == DEFAULT_READER and durable:
                raise UsageError("a queue with named readers has no default reader")
            if DEFAULT_READER in durable:
                self._checkpoints.rename(DEFAULT_READER, name)
            else:
                self._write_checkpoint(name, Reader(self.tail))
            return Reader(durable[name].head, set(durable[name].done))

    def drop_reader(self, name: str) -> None:
        """Forget a reader; what only it still had to read may then go.

        In the place of the last one stands a default reader, at the tail: a queue without any
        checkpoint is one that has lost it.
        """
        with self._files:
            if set(self._checkpoints.durable) == {name}:
                self._write_default_at_tail()
            if name != DEFAULT_READER:
                self._checkpoints.drop(name)

    def _write_default_at_tail(self) -> None:
        self._write_checkpoint(DEFAULT_READER, Reader(self._next_id - 1))

    def retain(self) -> list[str]:
        """Remove segments that no reader needs; returns their names, or where they are archived."""
        went: list[str] = []
        with self._files:
            with self._ids:
                retired = self._catalog.retired(self._checkpoints.durable)
            directory, lock_name = posixpath.split(self._lock_path)
            queue, paths = (
                lock_name.removesuffix(segment_names.LOCK_SUFFIX),
                [each.path for each in retired],
            )
            free = ask(self._holders, directory, queue, paths)
            self.is_held = free.count < len(retired)
            for segment in retired[: free.count]:
                where = queue_segments.retire_segment(
                    self._disk, segment.path, self._archive_directory
                )
                with self._ids:
                    self._catalog.forget(segment)
                went.append(where or segment.path)
            free.dropped(paths[: free.count])
        return went

    def close(self) -> None:
        """Sync, and let others have the queue."""
        with self._files:
            try:
                self.appender.close()
            finally:
                self._lock.release()

    def _end_of(self, segment: queue_segments.Segment) -> int:
        end = self.appender.end()
        if end is not None and end.path == segment.path:
            return end.offset
        return self._disk.size(segment.path) if self._disk.exists(segment.path) else 0

    def _note_damage(self, path: str, begin: int, end: int, reason: str) -> None:
        """Its items will never be given out, and the segment goes one day: a copy is kept."""
        copy_aside(self._disk, path, self._disk.view(path), begin, end)
        self.damages.append((path, begin, reason))

    def erase(self) -> None:
        """Close the queue and remove all its files.

        First it is made a queue in which all has been read, by removing the last named reader; a
        crash after that leaves an empty queue whose ids continue.
        """
        with self._files:
            self._write_default_at_tail()
            for name in list(self._checkpoints.durable):
                if name != DEFAULT_READER:
                    self._checkpoints.drop(name)
            # The active one may hold nothing yet, and then is not among the segments.
            paths = {segment.path for segment in self.segments} | {self._active_path()}
            self.appender.close()
            for path in sorted(paths - {""}):
                remove_durably(self._disk, path)
                remove_index(self._disk, path)
            self._checkpoints.drop(DEFAULT_READER)
            self._checkpoints.remove_list()
            with suppress(FileNotFoundError):
                self._disk.remove(self._lock_path)  # last, while it is held: see Disk.lock
            self._lock.release()

    def _active_path(self) -> str:
        end = self.appender.end()
        return end.path if end is not None else ""

    def __enter__(self) -> KestrelLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
