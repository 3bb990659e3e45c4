"""Completed jobs of a work queue in the store: they are in memory only while a batch names them.

    commands that wait --ids that are not in memory--> read, in the writer's thread
        --> those that have completed come into the engine --> the batch is decided, as ever
    two batches later they go again, and so do those that have completed meanwhile

Of parents of jobs (``add -after``) only that they have completed is wanted, and they may be many
and large: they do not come, their queue and the end of their TTL are noted in ``elsewhere``.

So the engine need not know that most jobs are elsewhere, and no memory is needed for what is done.
All jobs that have not completed are in memory: an id that is neither there nor read is free.

    prepare   on the loop, between two batches: the ids to be read; None: none is missing
    bring     on the loop, when they were read
    note      what was decided in it

A job goes two batches later because the answers of a batch leave after the next one was decided,
and what watches the records looks at their jobs then (events.py). What is read for one batch is
bounded: commands whose jobs were not read wait for the next one (``is_unread``), and what was
noted of their parents stays until then. If the store cannot be read, commands that name such ids
are refused, and all others served (``failure``).

``completed_jobs`` is a page of them for people, newest first, like engines/workq/browsing.py, which
has the others; ``merged`` makes one page of both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import Any, Final
from uuid import UUID

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
from journeyman.folds.keyspace import Defaults, workq_of_record
from journeyman.folds.workq import FoldedJob, expires_ns, visible
from journeyman.formats.keyspace.keys import (
    COUNTERS,
    fifo_of_status,
    listing_prefix,
    place_of,
    prefix_range,
    uuid_of_place,
)
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.workq import Command, Record
from journeyman.protocols.workq.commands import Add
from journeyman.storage import Storage
from journeyman.storage.contract import StoreReader
from journeyman.storage.facade import counts_in
from journeyman.storage.pages import bounds, read_jobs
from journeyman.units import MIB

READ_FIRST: Final = 16  # jobs; then twice as many, and so on
READ_AT_ONCE: Final = 128
READ_BYTES: Final = 16 * MIB  # of payloads and results, about, for one batch
LOOKUP_BYTES: Final = 4096  # what a job counts besides: to find none takes its time too
LOOKED_AT_ONCE: Final = 500  # jobs of a page
CROWD: Final = 500  # jobs of one millisecond that are read together
_MS_BYTES: Final = 8  # at the beginning of a place
_DEFAULTS: Final = Defaults()
_COMPLETE: Final = Command.COMPLETE


class CompletedJobs:
    """See the module. One batch is prepared at a time."""

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
