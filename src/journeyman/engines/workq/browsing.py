"""Jobs of the work queue, newest first, a page at a time: for people who look, not for workers.

    BrowseJobs --not sorted yet--> SortingJobs, after a few shards more were sorted: ask again
               --sorted----------> JobsFound, at the cost of what was looked at

The order of creation is kept only after the first request for it: of all jobs, and of the jobs of
each queue. A job enters when it is made and leaves when it ends, whatever happens to it between.

States are those that people know:

    ready, scheduled   new or pending, now or later        leased, completed, dead, cancelled

``error`` is looked for in the result of dead jobs, ``text`` in ids and payloads. A page ends with
its limit, with LISTED_BYTES, or when LOOKED_AT_ONCE jobs were looked at; then ``after`` leads on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from journeyman.engines.sharded_dict import SHARDS, ShardedDict
from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq import packed
from journeyman.formats.workq import delay_ms_of, max_fails_of
from journeyman.protocols.workq import replies
from journeyman.protocols.workq.replies import JobView, QueueView
from journeyman.units import NS_PER_MS

if TYPE_CHECKING:
    from journeyman.engines.workq.extensions import Child
    from journeyman.engines.workq.queues import JobQueue, Queues
    from journeyman.engines.workq.state import WorkqJobTable

SORTED_AT_ONCE = 4_000
LOOKED_AT_ONCE = 10_000
LISTED_BYTES = 1024 * 1024  # of payloads and results; a page ends when it has as many
MOST_PRIORITIES = 64  # of a queue that are looked at for its oldest job
ID_DIGITS = 32
FEW = 5_000  # so many jobs of a state are sorted for one page rather than looked for among all


@dataclass(frozen=True, slots=True)
class BrowseJobs:
    queue: str = ""  # "": of all queues that begin with ``prefix``
    state: str = ""  # one of replies.STATES; "": any
    text: str = ""
    error: str = ""
    limit: int = 50
    after: bytes | None = None
    prefix: str = ""
    since_ns: int = 0  # created at this time or later


@dataclass(frozen=True, slots=True)
class BrowseQueues:
    """In the order of their names, above ``after``; those that begin with ``prefix``."""

    after: str = ""
    limit: int = 50
    prefix: str = ""
    name: str = ""  # this one alone


@dataclass(frozen=True, slots=True)
class QueuesFound:
    """``numbers`` are those of the queues: their places in ``queue_totals``."""

    queues: tuple[QueueView, ...]
    numbers: tuple[int, ...]
    has_more: bool


class JobSummary(NamedTuple):
    """The part of a job that counts and comparisons need."""

    job_id: bytes
    queue: str
    state: str
    created_ns: int


@dataclass(frozen=True, slots=True)
class JobsFound:
    """``after`` is None on the last page. ``is_whole``: the limit was reached, or the end."""

    jobs: tuple[JobView, ...]
    after: bytes | None
    is_whole: bool


@dataclass(frozen=True, slots=True)
class SortingJobs:
    """The order is not there yet; asking again brings it on."""

    shards_left: int


class CreationOrder:
    """The ids by time of creation, of the jobs in the first ``_sorted`` shards."""

    __slots__ = ("_all", "_dead", "_entries", "_of_queue", "_sorted")

    def __init__(self, entries: ShardedDict[bytes, packed.Entry]) -> None:
        self._entries = entries
        self._all: SortedSet[bytes] = SortedSet()
        self._of_queue: dict[int, SortedSet[bytes]] = {}
        self._dead: SortedSet[bytes] = SortedSet()
        self._sorted = 0

    def begin(self, job_id: bytes, spec: packed.Spec) -> None:
        if self._entries.number_of(job_id) < self._sorted and not packed.is_run(spec):
            self._add(job_id, spec)

    def end(self, job_id: bytes, spec: packed.Spec) -> None:
        if self._entries.number_of(job_id) < self._sorted and not packed.is_run(spec):
            key, queue = (
                packed.moment_key(packed.fields_of(spec).created_ns, job_id),
                packed.queue_of(spec),
            )
            self._all.remove(key)
            self._of_queue[queue].remove(key)
            if not self._of_queue[queue]:
                del self._of_queue[queue]

    def died(self, job_id: bytes, spec: packed.Spec) -> None:
        if self._entries.number_of(job_id) < self._sorted:
            self._dead.add(packed.moment_key(packed.fields_of(spec).created_ns, job_id))

    def revived(self, job_id: bytes, spec: packed.Spec) -> None:
        """Dead no longer, or gone."""
        if self._entries.number_of(job_id) < self._sorted:
            self._dead.remove(packed.moment_key(packed.fields_of(spec).created_ns, job_id))

    def sort_some(self) -> int:
        """How many shards are left to be sorted."""
        enough = SORTED_AT_ONCE
        while self._sorted < SHARDS and enough > 0:
            jobs = self._entries.numbered(self._sorted)
            for job_id, entry in jobs.items():
                if not packed.is_run(packed.spec_of(entry)):
                    self._add(job_id, packed.spec_of(entry))
                    if state_of(entry) == replies.DEAD:
                        self._dead.add(
                            packed.moment_key(
                                packed.fields_of(packed.spec_of(entry)).created_ns, job_id
                            )
                        )
            enough -= len(jobs)
            self._sorted += 1
        return SHARDS - self._sorted

    def newest(
        self, queue: int | None, after: bytes | None, *, dead: bool
    ) -> Iterator[list[bytes]]:
        """``dead``: the dead ones of all queues, whatever ``queue`` is."""
        order = self._all if queue is None else self._of_queue.get(queue)
        order = self._dead if dead else order
        return iter(()) if order is None else order.chunks_after(after, descending=True)

    def _add(self, job_id: bytes, spec: packed.Spec) -> None:
        key, queue = (
            packed.moment_key(packed.fields_of(spec).created_ns, job_id),
            packed.queue_of(spec),
        )
        self._all.add(key)
        of_queue = self._of_queue.get(queue)
        if of_queue is None:
            of_queue = self._of_queue[queue] = SortedSet()
        of_queue.add(key)


def browse(
    jobs: WorkqJobTable, queues: Queues, asked: BrowseJobs, now_ns: int
) -> JobsFound | SortingJobs:
    left = jobs.in_order().sort_some()
    if left:
        return SortingJobs(left)
    number = None
    if asked.queue:
        queue = queues.get(asked.queue)
        if queue is None or not asked.queue.startswith(asked.prefix):
            return JobsFound((), None, True)
        number = queue.number
    fits, found, looked, size = JobFilter(asked, now_ns), list[JobView](), 0, 0

    def look_at(job_id: bytes) -> None:
        entry = jobs.get(job_id)
        if entry is not None:
            name = queues.by_number[packed.queue_of(packed.spec_of(entry))].name
            if fits.takes(job_id, entry, name):
                found.append(view_of_entry(entry, name))

    if (one := whole_id(asked.text)) is not None and asked.after is None:
        look_at(one)
        return JobsFound(tuple(found), None, True)
    last: JobView | None = None
    dead = asked.state == replies.DEAD or bool(asked.error)
    every = jobs.in_order().newest(number, asked.after, dead=dead)
    for chunk in _few(jobs, queues, asked, number) or every:
        for key in chunk:
            if fits.is_passed(key):
                return JobsFound(tuple(found), None, True)
            look_at(packed.id_in(key))
            looked += 1
            if len(found) >= asked.limit:
                return JobsFound(tuple(found), key, True)
            # Payloads of a megabyte would make a page of half a gigabyte.
            if found and found[-1] is not last:
                last = found[-1]
                size += len(last.payload) + len(last.result or b"")
                if size >= LISTED_BYTES:
                    return JobsFound(tuple(found), key, True)
            if looked >= LOOKED_AT_ONCE:
                return JobsFound(tuple(found), key, False)
    return JobsFound(tuple(found), None, True)


def summaries(jobs: WorkqJobTable, queues: Queues, now_ns: int) -> Iterator[JobSummary]:
    """All jobs but runs, in no order."""
    for job_id, entry in jobs:
        spec = packed.spec_of(entry)
        if not packed.is_run(spec) and packed.expires_ns_of(spec) > now_ns:
            name = queues.by_number[packed.queue_of(spec)].name
            yield JobSummary(job_id, name, state_of(entry), packed.fields_of(spec).created_ns)


def browse_queues(queues: Queues, asked: BrowseQueues, now_ns: int) -> QueuesFound:
    if asked.name:
        one = queues.get(asked.name)
        is_there = one is not None and asked.name.startswith(asked.prefix)
        found = [one] if one is not None and is_there else []
    else:
        found = queues.page_after(asked.after, asked.limit + 1, asked.prefix)
    page = found[: asked.limit]
    numbers = tuple(queue.number for queue in page)
    return QueuesFound(
        tuple(view_of_queue(q, now_ns) for q in page), numbers, len(found) > len(page)
    )


def view_of_queue(queue: JobQueue, now_ns: int) -> QueueView:
    oldest = oldest_ns(queue.ready)
    return QueueView(
        queue.name,
        queue.ready_size,
        len(queue.scheduled),
        queue.leased,
        len(queue.dead),
        None if oldest is None else max(0, now_ns - oldest) // NS_PER_MS,
        queue.paused,
        queue.limits,
        len(queue.waiters),
        queue.added,
        queue.started,
    )


def oldest_ns(ready: SortedSet[bytes]) -> int | None:
    """Within a priority the first is the oldest. Of very many priorities the most urgent count.

    It may be asked from another thread while jobs come and go, so nothing is taken for granted.
    """
    found: list[bytes] = []
    spec = ready.first_from(b"")
    while spec is not None and len(found) < MOST_PRIORITIES:
        found.append(packed.ready_of(spec))
        next_urgency = int.from_bytes(spec[: packed.URGENCY_BYTES]) + 1
        if next_urgency >= 2 ** (8 * packed.URGENCY_BYTES):
            break
        spec = ready.first_from(next_urgency.to_bytes(packed.URGENCY_BYTES))
    return packed.moment_of(min(found)) if found else None


class JobFilter:
    """Which jobs fit what was asked for."""

    def __init__(self, asked: BrowseJobs, now_ns: int) -> None:
        self._asked = asked
        self._now_ns = now_ns
        self._text = asked.text.lower().encode(errors="surrogatepass")
        self._id = asked.text.replace("-", "").lower()
        self._error = asked.error.lower().encode(errors="surrogatepass")
        self._since = packed.moment_key(asked.since_ns) if asked.since_ns else b""

    def is_passed(self, key: bytes) -> bool:
        """Return whether neither this job nor an older one can fit."""
        return key < self._since

    def takes(self, job_id: bytes, entry: packed.Entry, name: str) -> bool:
        asked, spec = self._asked, packed.spec_of(entry)
        if packed.is_run(spec) or (self._error and not self._has_error(entry)):
            return False
        if asked.state and state_of(entry) != asked.state:
            return False
        if (asked.queue and name != asked.queue) or not name.startswith(asked.prefix):
            return False
        if self._text and not self._has_text(job_id, spec):
            return False
        return packed.expires_ns_of(spec) > self._now_ns

    def _has_text(self, job_id: bytes, spec: packed.Spec) -> bool:
        if job_id.hex().startswith(self._id):
            return True
        return self._text in packed.key_and_payload_of(spec).lower()

    def _has_error(self, entry: packed.Entry) -> bool:
        if isinstance(entry, bytes) or entry[6] is None or entry[1] == packed.COMPLETED:
            return False
        return self._error in entry[6].lower()


def whole_id(text: str) -> bytes | None:
    """The id that the text is, if it is one."""
    digits = text.replace("-", "")
    if len(digits) != ID_DIGITS or not digits.isascii() or not digits.isalnum():
        return None
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None


def state_of(entry: packed.Entry) -> str:
    if isinstance(entry, bytes):
        return replies.READY
    stage, moment_ns = entry[1], entry[5]
    if stage in packed.WAITING:
        return replies.SCHEDULED if moment_ns else replies.READY
    if stage == packed.LEASED:
        return replies.LEASED
    if stage == packed.COMPLETED:
        return replies.COMPLETED
    return replies.CANCELLED if stage == packed.CANCELLED else replies.DEAD


def _few(
    jobs: WorkqJobTable, queues: Queues, asked: BrowseJobs, number: int | None
) -> list[list[bytes]]:
    """The keys of a state that few jobs are in, newest first; nothing: look among all."""
    if asked.state == replies.LEASED and len(jobs.leases) <= FEW:
        ids = [packed.id_in(key) for key in jobs.leases]
    elif asked.state in (replies.DEAD, replies.SCHEDULED):
        of = queues.by_number if number is None else [queues.by_number[number]]
        parts = [_part(queue, asked.state) for queue in of]
        if sum(map(len, parts)) > FEW:
            return []
        ids = [packed.job_id_of(spec) for part in parts for spec in part]
    else:
        return []
    keys = []
    for job_id in ids:
        entry = jobs.get(job_id)
        if entry is None or packed.is_run(packed.spec_of(entry)):
            continue
        if number is None or packed.queue_of(packed.spec_of(entry)) == number:
            keys.append(
                packed.moment_key(packed.fields_of(packed.spec_of(entry)).created_ns, job_id)
            )
    keys.sort(reverse=True)
    return [[key for key in keys if asked.after is None or key < asked.after]]


def _part(queue: JobQueue, state: str) -> SortedSet[bytes]:
    return queue.dead if state == replies.DEAD else queue.scheduled


def view_of_entry(
    entry: packed.Entry,
    queue: str,
    worker: str = "",
    given_back: int = 0,
    progress: replies.JobProgress | None = None,
) -> JobView:
    """``fails`` counts every failure that a worker has reported, so one more than the fold's for a
    job that has failed for good."""
    spec, stage, attempts, fails, started_ns, moment_ns, result = packed.opened(entry)
    fields, state, moment = packed.fields_of(spec), state_of(entry), moment_ns or None
    return JobView(
        fields.job_id,
        queue,
        state,
        attempts,
        fields.max_attempts,
        fails + (stage == packed.FAILED),
        max_fails_of(fields.max_fails),
        fields.priority,
        fields.ttr_ms,
        fields.ttl_ms,
        delay_ms_of(fields.max_fails),
        fields.created_ns,
        None if packed.is_run(spec) else packed.expires_ns_of(spec),
        fields.payload,
        result,
        fields.key,
        worker,
        is_retry=stage == packed.PENDING,
        given_back=given_back,
        scheduled_ns=fields.time_ns,
        ready_ns=moment if state == replies.SCHEDULED else None,
        started_ns=started_ns or None,
        leased_until_ns=moment if stage == packed.LEASED else None,
        finished_ns=moment if state in replies.FINISHED else None,
        progress=progress,
    )


def view_of_child(child: Child) -> JobView:
    """A job that waits for others: it is created when they have ended."""
    job = child.job
    return JobView(
        job.job_id,
        job.name,
        replies.WAITING,
        0,
        job.max_attempts,
        0,
        job.max_fails,
        job.priority,
        job.ttr_ms,
        job.ttl_ms,
        job.retry_delay_ms,
        None,
        None,
        job.payload,
        key="" if job.options is None else job.options.key,
        waits_for=len(child.left),
    )
