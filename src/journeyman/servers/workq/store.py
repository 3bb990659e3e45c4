"""The store, as the writer of the work queue sees it: batches go in, and completed jobs come back.

    records of a batch --> the ids in them --engine: how each job is now--> one commit of the store

    the job is there             its record is written, and all index keys that follow from it
    deleted                      its record is removed
    TTL over, finished before    nothing: its record is history, until its retention is over
    TTL over, never finished     its record says failed, with an empty result, at the end of its TTL

A record holds where a job stands, not what happened to it, so nothing is read to write it. The
engine decides nothing while a batch is written, and may be looked at meanwhile.

That a job is due is not a record (it is a matter of time), but a status of the store: ``promote``
turns delayed into waiting, between two batches. Which ones are delayed is remembered here.

Pauses are the states of the queues. They are in the same commit as the records, and so is what the
ledger says: keys, delays of single retries, limits, jobs that wait for others.

One key more is kept, LONGEST_LIFE_KEY: no job of the queue has more time from its creation to the
end of its TTL. It bounds how far back a start looks for failed jobs (store_persistence.py). Any
other program that writes jobs must delete this key.

Completed jobs are in memory only while a batch names them:

    commands that wait --ids that are not in memory--> read, in the writer's thread
        --> those that have completed come into the engine --> the batch is decided, as ever
    two batches later they go again, and so do those that have completed meanwhile

So the engine need not know that most jobs are elsewhere, and no memory is needed for what is done.
All jobs that have not completed are in memory: an id that is neither there nor read is free. A job
goes two batches later because the answers of a batch leave after the next one was decided, and what
watches the records looks at their jobs then (JobEvents).

``completed_jobs`` is a page of them for people, newest first, like engines/workq/browsing.py, which
has the others; ``merged`` makes one page of both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from heapq import heapify, heappop, heappush, merge
from itertools import groupby, islice
from typing import Any, Final, TypeAlias
from uuid import UUID

from journeyman import errors
from journeyman.engines.workq.browsing import (
    COMPLETED_NOW,
    BrowseJobs,
    JobFilter,
    JobsFound,
    SeenJob,
    seen_entry,
    whole_id,
)
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.job import entry_of, id_in, moment_key, moment_of
from journeyman.errors import InvalidData, StorageError
from journeyman.folds.keyspace import (
    LONGEST_LIFE_KEY,
    Defaults,
    queue_record,
    record_of_workq,
    wakes_ns_of,
    workq_of_record,
)
from journeyman.folds.workq import (
    FoldedJob,
    JobState,
    State,
    apply,
    expires_ns,
    visible,
)
from journeyman.formats.keyspace.keys import (
    COUNTERS,
    fifo_of_status,
    listing_prefix,
    place_of,
    prefix_range,
    uuid_of_place,
)
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, Record
from journeyman.protocols.workq.commands import Add
from journeyman.servers.core.group_commit import WriteWait
from journeyman.servers.core.store import as_log_errors
from journeyman.storage import (
    Operation,
    PutEntries,
    PutQueue,
    RemoveJob,
    SetStatus,
    Storage,
    Upsert,
)
from journeyman.storage.contract import StoreReader
from journeyman.storage.facade import counts_in
from journeyman.storage.folded import FoldedRecords, folded_ledger
from journeyman.storage.pages import bounds, read_jobs
from journeyman.units import MIB, NS_PER_MS

Look: TypeAlias = Callable[[bytes], tuple[FoldedJob, int, int] | None]  # WorkqEngine.job

PROMOTED_AT_ONCE: Final = 1000
UNWRITTEN_AT_ONCE: Final = 1000
MAX_U64: Final = 2**64 - 1
_FINISHED: Final = (JobState.COMPLETED, JobState.FAILED)

READ_FIRST: Final = 16  # jobs; then twice as many, and so on
READ_AT_ONCE: Final = 128
READ_BYTES: Final = 16 * MIB  # of payloads and results, about, for one batch
LOOKUP_BYTES: Final = 4096  # what a job counts besides: to find none takes its time too
LOOKED_AT_ONCE: Final = 500  # jobs of a page
CROWD: Final = 500  # jobs of one millisecond that are read together
_MS_BYTES: Final = 8  # at the beginning of a place
_DEFAULTS: Final = Defaults()
_COMPLETE: Final = Command.COMPLETE


def ended(job: FoldedJob) -> FoldedJob:
    """How a job is remembered whose TTL is over: as it was finished, or else as failed then."""
    if job.state not in _FINISHED:
        job.state, job.result, job.finished = JobState.FAILED, b"", Instant(expires_ns(job))
    return job


class StoreRecorder:
    """``write`` and ``promote`` never run at the same time: the writer sees to that."""

    keeps_pauses: Final = True
    wait: Final = WriteWait.MORE  # a commit waits for the disk, under every policy

    def __init__(
        self,
        storage: Storage,
        look: Look,
        delayed: Iterable[tuple[int, bytes]] = (),
        *,
        ledger: FoldedRecords[LedgerRecord] | None = None,
        longest_life_ms: int = 0,
        unwritten: Sequence[Operation] = (),
    ) -> None:
        """``delayed``: when these jobs become ready, and their ids. ``ledger``: that of the store,
        loaded. ``longest_life_ms`` is what LONGEST_LIFE_KEY says. ``unwritten`` is made before
        anything else: a start on a full disk leaves it."""
        self._storage = storage
        self._ledger = ledger or folded_ledger(storage)
        self._look = look
        self._longest_life_ms = longest_life_ms
        self._unwritten = list(unwritten)
        self._delayed = {job_id: wakes_ns for wakes_ns, job_id in delayed}
        self._wakings = [(wakes_ns, job_id) for job_id, wakes_ns in self._delayed.items()]
        heapify(self._wakings)

    def write(
        self,
        records: Sequence[Record],
        paused: Iterable[str] | None = None,
        ledger: Sequence[LedgerRecord] = (),
    ) -> None:
        """Durable when it returns. JourneymanError: nothing was written, unless it is final."""
        operations, delayed = self._changes(records)
        if ledger:
            operations.append(PutEntries(self._ledger.changes(ledger)))
        if paused is not None:
            operations += self._pauses(frozenset(paused))
        if operations:
            with as_log_errors():
                self._keep_longest_life(records)
                self._apply(operations)
        for job_id, wakes_ns in delayed.items():
            self._remember(job_id, wakes_ns)

    def promote(self, now_ns: int) -> bool:
        """Delayed jobs that are due are waiting ones. Whether there may be more."""
        due: list[tuple[int, bytes]] = []
        while self._wakings and self._wakings[0][0] <= now_ns and len(due) < PROMOTED_AT_ONCE:
            wakes_ns, job_id = heappop(self._wakings)
            if self._delayed.get(job_id) == wakes_ns:  # else it has left or been put off meanwhile
                due.append((wakes_ns, job_id))
        if due:
            try:
                with as_log_errors():
                    self._apply([SetStatus(UUID(bytes=job_id), "waiting") for _, job_id in due])
            except errors.JourneymanError:
                self._wakings += due
                heapify(self._wakings)
                raise
        for _, job_id in due:
            del self._delayed[job_id]
        return len(due) == PROMOTED_AT_ONCE

    def has_due(self, now_ns: int) -> bool:
        """Whether ``promote`` may have something to do."""
        return bool(self._wakings) and self._wakings[0][0] <= now_ns

    # -- jobs --

    def _changes(
        self, records: Sequence[Record]
    ) -> tuple[list[Operation], dict[bytes, int | None]]:
        """What to do to the store; and for each job touched when it wakes, None if it is awake."""
        operations: list[Operation] = []
        delayed: dict[bytes, int | None] = {}
        over: list[bytes] = []
        for job_id, record in {record.job_id: record for record in records}.items():
            found = self._look(job_id)
            delayed[job_id] = None
            if found is not None:
                job, *waits = found
                kept = record_of_workq(job, record.logged.unix_ns, *waits)
                if kept.status == "delayed":
                    delayed[job_id] = wakes_ns_of(*found)
                operations.append(Upsert(kept))
            elif record.command == Command.EXPIRE:
                over.append(job_id)
            else:
                operations.append(RemoveJob(UUID(bytes=job_id)))
        if over:
            operations += self._endings(over, records)
        return operations, delayed

    def _endings(self, over: list[bytes], records: Sequence[Record]) -> list[Operation]:
        """The engine has dropped the jobs: what they were is in the store, and in the batch."""
        stored, _ = self._storage.get_jobs([UUID(bytes=job_id) for job_id in over])
        states: dict[bytes, State] = dict.fromkeys(over)
        states |= {record.job_uuid.bytes: _job_of(record) for record in stored}
        changed = {job_id for job_id, job in states.items() if not _is_finished(job)}
        for record in records:
            job_id = record.job_id
            if job_id in states and record.command != Command.EXPIRE:
                states[job_id] = apply(states[job_id], record)
                changed.add(job_id)
        return [
            Upsert(record_of_workq(ended(job), expires_ns(job)))
            for job_id in over
            if job_id in changed and isinstance(job := states[job_id], FoldedJob)
        ]

    def _remember(self, job_id: bytes, wakes_ns: int | None) -> None:
        if wakes_ns is None:
            self._delayed.pop(job_id, None)
        elif self._delayed.get(job_id) != wakes_ns:
            self._delayed[job_id] = wakes_ns
            heappush(self._wakings, (wakes_ns, job_id))

    # -- queues --

    def _pauses(self, names: frozenset[str]) -> list[Operation]:
        """What makes these queues the paused ones."""
        queues = {queue.name: queue for queue in self._storage.load_queues().queues}
        wanted = {name: queues.get(name) or queue_record(name) for name in queues.keys() | names}
        states = {name: "paused" if name in names else "active" for name in wanted}
        return [
            PutQueue(replace(queue, state=states[name]))
            for name, queue in sorted(wanted.items())
            if name not in queues or queue.state != states[name]
        ]

    # -- the store --

    def _apply(self, operations: list[Operation]) -> None:
        while self._unwritten:
            self._storage.apply(self._unwritten[:UNWRITTEN_AT_ONCE])
            del self._unwritten[:UNWRITTEN_AT_ONCE]
        self._storage.apply(operations)

    def _keep_longest_life(self, records: Sequence[Record]) -> None:
        """Before the jobs themselves: it may be too long, never too short."""
        longest_ms = max((life_ms_of(r) for r in records if isinstance(r, JobAdded)), default=0)
        if longest_ms > self._longest_life_ms:
            self._storage.backend.put(LONGEST_LIFE_KEY, longest_ms.to_bytes(8))
            self._longest_life_ms = longest_ms


def life_ms_of(added: JobAdded) -> int:
    """From the creation of a job to the end of its TTL, or a little more."""
    time = added.created if added.time is None else added.time
    waits_ns = max(time.unix_ns - added.created.unix_ns, 0)
    return min(added.ttl_ms + waits_ns // NS_PER_MS + 1, MAX_U64)


def _job_of(record: JobRecord) -> FoldedJob | None:
    try:
        return workq_of_record(record, Defaults())
    except errors.InvalidData:
        return None  # reported when it was loaded; `storage check` names it


def _is_finished(state: State) -> bool:
    return isinstance(state, FoldedJob) and state.state in _FINISHED


class CompletedJobs:
    """Those of one batch at a time.

    prepare   on the loop, between two batches: the ids to be read; None: none is missing
    bring     on the loop, when they were read
    note      what was decided in it

    Of parents of jobs (``add -after``) only that they have completed is wanted, and they may be
    many and large: they do not come, their queue and the end of their TTL are noted in
    ``elsewhere``. What is read for one batch is bounded: commands whose jobs were not read wait for
    the next one (``is_unread``), and what was noted of their parents stays until then. If the store
    cannot be read, commands that name such ids are refused, and all others served (``failure``).
    """

    def __init__(self, storage: Storage, engine: WorkqEngine) -> None:
        self._storage = storage
        self._engine = engine
        self._older: list[bytes] = []  # ids that may go
        self._recent: list[bytes] = []
        self._found: list[FoldedJob] = []
        self._parents: dict[bytes, tuple[str, int]] = {}  # found; "", 0: none that has completed
        self._unread: frozenset[bytes] = frozenset()
        self.failure: StorageError | None = None  # why the rest was not read

    def prepare(self, requests: Iterable[Any]) -> Callable[[], None] | None:
        self._engine.put_away(self._older)
        self._older, self._recent = self._recent, []
        if not self._unread:
            self._engine.elsewhere.clear()
        self._unread, self.failure = frozenset(), None
        has, wanted = self._engine.has, dict[bytes, bool]()  # whether only as a parent
        for request in requests:  # in their order: the first one is read whatever follows it
            for job_id in named_by(request):
                if not has(job_id):
                    wanted[job_id] = False
            for job_id in parents_in(request):
                if job_id not in wanted and not self._is_known(job_id):
                    wanted[job_id] = True
        if not wanted:
            return None
        parents = frozenset(job_id for job_id, is_parent in wanted.items() if is_parent)
        return partial(self._read, list(wanted), parents)

    def _is_known(self, job_id: bytes) -> bool:
        engine = self._engine
        return engine.has(job_id) or job_id in engine.elsewhere or engine.is_child(job_id)

    def bring(self, now_ns: int) -> None:
        parents, self._parents = self._parents, {}
        self._engine.elsewhere.update(parents)
        found, self._found = self._found, []
        for job in found:
            if visible(job, now_ns) is not None:
                self._engine.bring(job)
                self._engine.elsewhere.pop(job.added.job_id, None)
                self._recent.append(job.added.job_id)

    def note(self, records: Sequence[Record]) -> None:
        self._recent += [each.job_id for each in records if each.command == _COMPLETE]
        if self._engine.elsewhere:
            for each in records:
                self._engine.elsewhere.pop(each.job_id, None)

    @property
    def has_unread(self) -> bool:
        return bool(self._unread)

    def is_unread(self, request: Any) -> bool:
        """Whether the request names a job that may be in the store, and was not looked for."""
        if not self._unread:
            return False
        return not self._unread.isdisjoint((*named_by(request), *parents_in(request)))

    def _read(self, job_ids: list[bytes], parents: frozenset[bytes]) -> None:
        """In the writer's thread. ``parents``: which of the ids are wanted as such."""
        at, size, count = 0, 0, READ_FIRST
        try:
            while at < len(job_ids) and size < READ_BYTES:
                some = job_ids[at : at + count]
                size += LOOKUP_BYTES * len(some)
                for record in self._storage.get_jobs([UUID(bytes=each) for each in some])[0]:
                    size += len(record.payload) + sum(len(text) for _, text in record.extra)
                    job = _job(record)
                    if job is not None and record.job_uuid.bytes in parents:
                        self._parents[job.added.job_id] = record.queue, expires_ns(job)
                    elif job is not None:
                        self._found.append(job)
                for each in parents.intersection(some):
                    self._parents.setdefault(each, ("", 0))
                at, count = at + count, min(2 * count, READ_AT_ONCE)
        except StorageError as error:
            self.failure = error
        self._unread = frozenset(job_ids[at:])


def named_by(request: Any) -> Sequence[bytes]:
    """The ids of jobs that a request names."""
    if type(request) is BrowseJobs:
        one = whole_id(request.text)
        return () if one is None else (one,)
    job_id = getattr(request, "job_id", None)
    return () if job_id is None else (job_id,)


def parents_in(request: Any) -> Sequence[bytes]:
    """The ids of jobs that the job of a request shall wait for."""
    options = request.options if type(request) is Add else None
    return () if options is None else options.after


def _job(record: JobRecord) -> FoldedJob | None:
    """None: it has not completed, or cannot be a job."""
    if record.status != "completed":
        return None
    try:
        job = workq_of_record(record, _DEFAULTS)
        entry_of(job, 0, 0)  # all numbers are in range
    except (InvalidData, struct.error, OverflowError):
        return None  # `storage check` names it
    return job if job.added.ttl_ms >= 0 else None


# -- pages ---------------------------------------------------------------------------------------


def shows_completed(asked: BrowseJobs) -> bool:
    """Whether a page has to be looked for in the store too: one job is brought by its id."""
    is_one = whole_id(asked.text) is not None and asked.after is None
    return asked.state in ("", COMPLETED_NOW) and not asked.error and not is_one


def completed_jobs(storage: Storage, asked: BrowseJobs, now_ns: int) -> JobsFound:
    """Reads the store: for a thread."""
    fits, found, looked = JobFilter(asked, now_ns), list[SeenJob](), 0
    with storage.backend.view() as view:
        for record in _newest(view, asked.queue, asked.after):
            key = moment_key(record.created_at_ns, record.job_uuid.bytes)
            if fits.is_passed(key):
                break
            job = _job(record)
            entry = None if job is None else entry_of(job, 0, 0)
            if entry is not None and fits.takes(record.job_uuid.bytes, entry, record.queue):
                found.append(seen_entry(entry, record.queue))
            looked += 1
            if len(found) >= asked.limit or looked >= LOOKED_AT_ONCE:
                return JobsFound(tuple(found), key, len(found) >= asked.limit)
    return JobsFound(tuple(found), None, True)


def _newest(view: StoreReader, queue: str, after: bytes | None) -> Iterator[JobRecord]:
    """The completed jobs of a queue, or of all, that were created before a job, newest first."""
    place = None if after is None else place_of(moment_of(after), UUID(bytes=id_in(after)))
    for uuids in _of_queue(view, queue, place) if queue else _of_all(view, place):
        records = read_jobs(view, uuids)[0]
        places = {place_of(each.created_at_ns, each.job_uuid): each for each in records}
        for each in sorted(places, reverse=True):
            if place is None or each < place:
                yield places[each]


def _of_queue(view: StoreReader, queue: str, place: bytes | None) -> Iterator[list[UUID]]:
    ends = bounds(view, queue, "completed")
    if ends is None:
        return
    beginning = listing_prefix(queue, "completed")
    last = ends.last + b"\0" if place is None else min(place, ends.last + b"\0")
    keys = view.scan(beginning + ends.first, beginning + last, reverse=True)
    while some := [uuid_of_place(key) for key, _ in islice(keys, READ_FIRST)]:
        yield some


def _of_all(view: StoreReader, place: bytes | None) -> Iterator[list[UUID]]:
    """This index knows milliseconds: the jobs of one are read together, to be sorted. Where they
    are very many, the listings of the queues are read instead, which know more."""
    start, end = fifo_of_status("completed")
    if place is not None:
        end = start + _ms_after(place)
    crowd: bytes | None = b""
    while crowd is not None:
        keys = (key[len(start) :] for key, _ in view.scan(start, end, reverse=True))
        some, crowd = list[UUID](), None
        for ms, of_ms in groupby(keys, key=lambda key: key[:_MS_BYTES]):
            uuids = [uuid_of_place(key) for key in islice(of_ms, CROWD + 1)]
            if len(uuids) > CROWD:
                crowd = ms
                break
            some += uuids
            if len(some) >= READ_FIRST:
                yield some
                some = []
        yield some
        if crowd is not None:
            yield from _of_crowd(view, crowd, place)
            end = start + crowd


def _of_crowd(view: StoreReader, ms: bytes, place: bytes | None) -> Iterator[list[UUID]]:
    end = _ms_after(ms) if place is None else min(place, _ms_after(ms))
    counts = counts_in(view.scan(*prefix_range(COUNTERS)))
    listings = [
        listing_prefix(each.queue, "completed") for each in counts if each.status == "completed"
    ]
    places = merge(*(_places(view, each, ms, end) for each in listings), reverse=True)
    while some := [uuid_of_place(each) for each in islice(places, READ_FIRST)]:
        yield some


def _places(view: StoreReader, beginning: bytes, first: bytes, end: bytes) -> Iterator[bytes]:
    for key, _ in view.scan(beginning + first, beginning + end, reverse=True):
        yield key[len(beginning) :]


def _ms_after(place: bytes) -> bytes:
    return (int.from_bytes(place[:_MS_BYTES]) + 1).to_bytes(_MS_BYTES)


def merged(first: JobsFound, second: JobsFound, limit: int) -> JobsFound:
    """One page of two that cover the same range; of a job that is in both the second counts."""
    jobs = {job.job_id: job for job in (*first.jobs, *second.jobs)}
    reached = max(first.after or b"", second.after or b"")  # all down to here are known
    keys = {moment_key(job.created_ns, job_id): job for job_id, job in jobs.items()}
    shown = sorted((key for key in keys if key >= reached), reverse=True)
    after, is_whole = reached or None, first.is_whole and second.is_whole
    if len(shown) > limit:
        after, is_whole = shown[limit - 1], True
    return JobsFound(tuple(keys[key] for key in shown[:limit]), after, is_whole or not after)
