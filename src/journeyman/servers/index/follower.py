"""Follows the work queue's log and keeps the store its index (storage/index.py).

    step:   log --records since the position--> rows, indexes, counters, position: one commit
            time --rows that change by now----> likewise
            ledger, pauses, queue names ------> the records of the queues, replaced as a set
            position ------------------------> holder of the log (logs/holders.py)

A kill leaves the store at the position of its last commit, and the next start goes on from there.

The position is always in the newest segment that was begun to be read: a segment that was read to
its end is left as soon as there is a later one, and only then may cleaning rewrite it.

The store is rebuilt from the log where it cannot go on from its position: there is none, the log
has other bytes before it (it was cut by a recovery after a power cut, or rewritten), or cleaning
did not wait any longer. A rebuild folds the log in passes, each over a part of the ids, so that
memory does not grow with it. Rows of jobs that the log does not have stay if they are, or belong,
in the archive. A rebuild that was interrupted is begun again: there is no position until its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, Self
from uuid import UUID
from zlib import crc32

from journeyman.clock import Clock, SystemClock
from journeyman.config import Settings
from journeyman.disk import Disk, disk_of
from journeyman.engines.workq.ledger_entries import read_limits
from journeyman.errors import InvalidData
from journeyman.folds.keyspace import queue_record
from journeyman.folds.workq import FoldedJob
from journeyman.formats.keyspace.keys import prefix_range
from journeyman.formats.keyspace.values import QueueRecord
from journeyman.formats.ledger import QueueLimitsSet
from journeyman.formats.workq import HEADER, Record
from journeyman.logs.holders import Place, lost_files, register, unregister
from journeyman.logs.ledger import peek
from journeyman.logs.segments import ledger_files, numbered_name
from journeyman.logs.workq.tail import LogChanged, NewRecords, TailPlace, tail_of
from journeyman.servers.core.ledger import is_used
from journeyman.storage import Storage
from journeyman.storage import index as job_index
from journeyman.storage.checking import in_batches
from journeyman.storage.contract import Changes
from journeyman.storage.pages import Unreadable
from journeyman.storage.position import (
    POSITION_KEY,
    LogPosition,
    read_position,
)
from journeyman.units import MIB, NS_PER_MS, NS_PER_S

BATCH_ROWS: Final = 2000
PASS_BYTES: Final = 64 * MIB  # read of the log in one pass, whose jobs are in memory together
QUEUES_NS: Final = NS_PER_S  # between two looks at the ledger
SEEN_NS: Final = 60 * NS_PER_S  # between two words to the log, if nothing is new

Say = Callable[[str], None]


class Follower:
    """See the module. One process at a time follows a log into a store."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        storage: Storage,
        directory: str,
        *,
        ledger: str | None,
        retention_ms: int,
        say: Say,
    ) -> None:
        """``directory``: of the command log; ``ledger``: of the ledger, None if there is none."""
        self._disk = disk
        self._clock = clock
        self._storage = storage
        self._directory = directory
        self._records = NewRecords(disk, directory)
        self._ledger = ledger
        self._retention_ns = retention_ms * NS_PER_MS
        self._say = say
        self._holder = str(crc32(storage.path.encode()))
        self._position: LogPosition | None = None
        self._queues_seen: object = None
        self._queues_at_ns = -QUEUES_NS
        self._seen: tuple[str, int] | None = None

    @classmethod
    def of_settings(cls, settings: Settings, storage: Storage, say: Say) -> Self:
        """Follow the log of the work queue that has these settings."""
        return cls(
            disk_of(settings.workq.cmdlog_path),
            SystemClock(),
            storage,
            settings.workq.cmdlog_path,
            ledger=settings.ledger.path if is_used(settings) else None,
            retention_ms=settings.storage.retention_ms,
            say=say,
        )

    # -- following --

    def step(self) -> bool:
        """True if there may be more to do at once."""
        if self._position is None:
            self._begin()
        try:
            was_read = self._follow()
        except LogChanged as change:
            self.rebuild(str(change))
            was_read = True
        has_changed = self._pass_time()
        self._keep_queues()
        self._tell_log()
        return was_read or has_changed

    def _begin(self) -> None:
        with self._storage.backend.view() as view:
            try:
                self._position = read_position(view)
            except InvalidData as error:
                self.rebuild(error.reason)
                return
        if self._position is None:
            self.rebuild("it has no position in the log")
        elif lost_files(self._disk, self._directory, self._holder):
            self.rebuild("the log was cleaned before it was read")
            unregister(self._disk, self._directory, self._holder)

    @property
    def position(self) -> LogPosition:
        assert self._position is not None
        return self._position

    def _follow(self) -> bool:
        """Apply what the log has after the position, up to a batch."""
        before = self.position
        records, after = self._records.read(TailPlace(before.segment, before.offset, before.tail))
        position = before.moved(*after)
        if position == before:
            return False
        self._commit(records, position)
        return True

    def _commit(self, records: list[Record], position: LogPosition) -> None:
        with self._storage.backend.turn() as turn:
            index = job_index.IndexChanges(turn, (record.job_id for record in records))
            index.apply(records, position.clock_ns)
            index.draft.put({POSITION_KEY: position.encode()})
            turn.commit(index.draft.changes())
        self._position = position
        self._tell_unstorable(index)

    def _tell_unstorable(self, index: job_index.IndexChanges) -> None:
        if index.unstorable:
            self._say(f"{index.unstorable} jobs are left out: no key can hold their names or times")

    # -- time --

    def _pass_time(self) -> bool:
        """Rows that change by now, some of them; and rows of the archive that are kept no more."""
        now_ns = self._clock.now_ns()
        with self._storage.backend.turn() as turn:
            moment_ns, changing = job_index.changing_by(turn, now_ns, BATCH_ROWS)
            over = job_index.archived_before(turn, now_ns - self._retention_ns, BATCH_ROWS)
            if not changing and not over:
                return False
            index = job_index.IndexChanges(turn, changing)
            position = self.position
            if changing:
                position = replace(position, clock_ns=max(position.clock_ns, moment_ns))
                index.pass_time(changing, position.clock_ns)
            for job_id in over:
                index.draft.remove(UUID(bytes=job_id))
            index.draft.put({POSITION_KEY: position.encode()})
            turn.commit(index.draft.changes())
        self._position = position
        return bool(changing) or len(over) == BATCH_ROWS

    # -- queues --

    def _keep_queues(self) -> None:
        """Names by their jobs; limits and pauses from the ledger, or the list beside the log."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._queues_at_ns < QUEUES_NS:
            return
        self._queues_at_ns = now_ns
        seen = self._what_queues_follow_from()
        if seen == self._queues_seen:
            return
        wanted = {queue.name: queue for queue in self._queues()}
        stored = self._storage.load_queues()
        if stored.unreadable or {queue.name: queue for queue in stored.queues} != wanted:
            self._storage.replace_queues(wanted.values())
        self._queues_seen = seen

    def _what_queues_follow_from(self) -> object:
        names = frozenset(count.queue for count in self._storage.queue_status_counts())
        sizes = []
        if self._ledger is not None:
            paths = ledger_files(self._disk, self._ledger)
            sizes = [(path, self._disk.size(path)) for path in paths if self._disk.exists(path)]
        return names, tuple(sizes)

    def _queues(self) -> Iterator[QueueRecord]:
        states = {} if self._ledger is None else peek(self._disk, self._ledger)
        paused = {key for family, key in states if family == "queue-pause"}
        limits: dict[str, int | None] = {}
        for (_, name), record in states.items():
            if isinstance(record, QueueLimitsSet) and (found := read_limits(record.body)):
                limits[name] = found.concurrency or None
        names = {count.queue for count in self._storage.queue_status_counts()}
        for name in sorted(names | paused | limits.keys()):
            state = "paused" if name in paused else "active"
            queue = replace(queue_record(name), state=state)
            yield replace(queue, concurrency_limit=limits.get(name))

    # -- the log's side --

    def _tell_log(self) -> None:
        """The files that cleaning may change: all before the segment of the position."""
        position, now_ns = self.position, self._clock.now_ns()
        name = numbered_name(position.segment)
        if self._seen is not None and self._seen[0] == name and now_ns - self._seen[1] < SEEN_NS:
            return
        # Without its end: the segment is not finished before there is a later one.
        place = Place(name, None, 0)
        who = f"store {self._storage.path}"
        register(self._disk, self._directory, self._holder, who, now_ns, {"": place})
        self._seen = name, now_ns

    # -- rebuilding --

    def rebuild(self, reason: str) -> int:
        """Make the index from the log; how many jobs the log has."""
        self._say(f"the store is rebuilt from the log: {reason}")
        backend = self._storage.backend
        backend.write({POSITION_KEY: None})
        for batch in in_batches(self._kept_keys()):
            backend.write(dict.fromkeys(batch))
        now_ns = self._clock.now_ns()
        views = [(number, self._records.view(number)) for number in self._records.segments()]
        passes = 1 + sum(len(view) for _, view in views) // PASS_BYTES
        jobs = 0
        for part in range(passes):
            lives, end = self._fold(views, part, passes)
            jobs += sum(isinstance(life.state, FoldedJob) for life in lives.values())
            self._put_lives(lives, now_ns)
            self._drop_rows(lives, part, passes, now_ns)
        position = replace(end, clock_ns=now_ns)
        backend.write({POSITION_KEY: position.encode()})
        backend.flush()
        self._position = position
        self._queues_seen = self._seen = None
        self._say(f"the store is rebuilt: {jobs} jobs, at {position}")
        return jobs

    def _kept_keys(self) -> list[bytes]:
        with self._storage.backend.view() as view:
            return [key for key, _ in view.scan(*prefix_range(job_index.KEPT))]

    def _fold(
        self, views: list[tuple[int, memoryview]], part: int, parts: int
    ) -> tuple[dict[bytes, job_index.JobLife], LogPosition]:
        """The jobs of a part of the ids, and where the log ends."""
        lives: dict[bytes, job_index.JobLife] = {}
        position = LogPosition()
        for number, view in views:
            end = 0
            for entry in self._records.entries(number, view):
                end = entry.end
                record = entry.record
                if crc32(record.job_id) % parts != part:
                    continue
                if record.job_id not in lives:
                    lives[record.job_id] = job_index.JobLife()
                lives[record.job_id].apply(record)
            end = end or (len(HEADER) if len(view) >= len(HEADER) else 0)
            position = position.moved(number, end, tail_of(view, end))
        return lives, position

    def _put_lives(self, lives: dict[bytes, job_index.JobLife], now_ns: int) -> None:
        kept = [
            (job_id, life)
            for job_id, life in lives.items()
            if life.is_deleted or life.state is not None or life.expired is not None
        ]
        for batch in in_batches(kept, BATCH_ROWS):
            with self._storage.backend.turn() as turn:
                index = job_index.IndexChanges(turn, (job_id for job_id, _ in batch))
                for job_id, life in batch:
                    index.put(job_id, life, now_ns)
                turn.commit(index.draft.changes())
            self._tell_unstorable(index)

    def _drop_rows(
        self, lives: dict[bytes, job_index.JobLife], part: int, parts: int, now_ns: int
    ) -> None:
        """Rows of jobs that the log does not have, unless they are in the archive."""
        gone: list[bytes] = []
        late: list[bytes] = []  # their TTL ended, and they do not say so yet
        for row in self._storage.all_jobs():
            if isinstance(row, Unreadable):
                continue  # `storage check` names it
            job_id = row.job_uuid.bytes
            life = lives.get(job_id)
            has_job = life is not None and (isinstance(life.state, FoldedJob) or life.expired)
            if crc32(job_id) % parts != part or has_job:
                continue
            if not job_index.is_kept_without_log(row, now_ns):
                gone.append(job_id)
            else:
                late.append(job_id)
        for batch in in_batches(gone, BATCH_ROWS):
            self._in_a_turn(batch, _remove_all)
        for batch in in_batches(late, BATCH_ROWS):
            self._in_a_turn(batch, lambda index, ids: index.pass_time(ids, now_ns))

    def _in_a_turn(
        self, job_ids: list[bytes], change: Callable[[job_index.IndexChanges, list[bytes]], None]
    ) -> None:
        with self._storage.backend.turn() as turn:
            index = job_index.IndexChanges(turn, job_ids)
            change(index, job_ids)
            changes: Changes = index.draft.changes()
            if changes:
                turn.commit(changes)


def _remove_all(index: job_index.IndexChanges, job_ids: Iterable[bytes]) -> None:
    for job_id in job_ids:
        index.draft.remove(UUID(bytes=job_id))
