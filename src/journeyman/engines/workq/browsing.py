"""Jobs of the work queue, newest first, a page at a time: for people who look, not for workers.

    BrowseJobs --not sorted yet--> StillSorting, after a few shards more were sorted: ask again
               --sorted----------> JobsFound, at the cost of what was looked at

The order of creation is kept only after the first request for it (creation_order.py).

States are those that people know:

    ready, scheduled   new or pending, now or later        leased, completed, dead, cancelled
    waiting            parked: for a time, an event or other jobs

``error`` is looked for in the result of dead jobs, ``text`` in ids and payloads. A page ends with
its limit, with LISTED_BYTES, or when LOOKED_AT_ONCE jobs were looked at; then ``after`` leads on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from heapq import heappush, heappushpop, nlargest
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from journeyman.engines.sorted_set import SortedSet, StillSorting
from journeyman.engines.workq import packed
from journeyman.formats.task_names import call_of, task_of
from journeyman.formats.workq import delay_ms_of, max_fails_of
from journeyman.protocols.workq import replies
from journeyman.protocols.workq.readers import read_wait
from journeyman.protocols.workq.replies import JobView, QueueView
from journeyman.units import NS_PER_MS

if TYPE_CHECKING:
    from journeyman.engines.workq.ledger_entries import Child, StoredJobOptions
    from journeyman.engines.workq.queues import JobQueue, Queues
    from journeyman.engines.workq.state import WorkqJobTable

LOOKED_AT_ONCE = 10_000
LISTED_BYTES = 1024 * 1024  # a page ends after so many of payloads and results
MOST_PRIORITIES = 64  # priorities of a queue that are searched for its oldest job
ID_DIGITS = 32
FACET_QUEUES = 50  # queues that are named with their counts
FEW = 5_000  # so many jobs of a state are sorted for one page rather than looked for among all


class BrowseJobs(Struct, frozen=True):
    queue: str = ""  # "": of all queues that begin with ``prefix``
    state: str = ""  # one of replies.STATES; "": any
    text: str = ""
    error: str = ""
    limit: int = 50
    after: bytes | None = None
    prefix: str = ""
    since_ns: int = 0  # created at this time or later
    task: str = ""  # the task that the payload calls
    order: str = ""  # "": newest first; "run", "wait": of those looked at, the longest first


class BrowseQueues(Struct, frozen=True):
    """A page of queues in the order of their names, above ``after``, of those that begin with
    ``prefix``."""

    after: str = ""
    limit: int = 50
    prefix: str = ""
    name: str = ""  # this one alone


class QueuesFound(Struct, frozen=True):
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


class JobsFound(Struct, frozen=True):
    """``after`` is None on the last page. ``is_whole``: the limit was reached, or the end.
    ``looked`` is how many jobs that the client may see were looked at."""

    jobs: tuple[JobView, ...]
    after: bytes | None
    is_whole: bool
    looked: int = 0


class CountFacets(Struct, frozen=True):
    """Jobs of a queue, or of all that begin with ``prefix``, by state; and by queue, of a state
    or of all."""

    queue: str = ""
    state: str = ""  # one of replies.STATES or WAITING; "": any
    prefix: str = ""


class FacetCounts(NamedTuple):
    """``queues`` are those with most jobs of the state that was asked for; ``states`` count the
    jobs of all queues that were."""

    states: dict[str, int]
    queues: dict[str, int]
    other_queues: int  # how many more there are


def browse(
    jobs: WorkqJobTable,
    queues: Queues,
    job_options: Mapping[bytes, StoredJobOptions],
    query: BrowseJobs,
    now_ns: int,
) -> JobsFound | StillSorting:
    if jobs.in_order().sort_some():
        return StillSorting()
    number = None
    if query.queue:
        queue = queues.get(query.queue)
        if queue is None or not query.queue.startswith(query.prefix):
            return JobsFound((), None, True)
        number = queue.number
    found = _Page(query, JobFilter(query, now_ns), jobs, queues, job_options)
    if (one := whole_id(query.text)) is not None and query.after is None:
        found.look_at(packed.moment_key(0, one))
        return found.ended(None, is_whole=True)
    dead = query.state == replies.DEAD or bool(query.error)
    every = jobs.in_order().newest(number, query.after, dead=dead)
    for chunk in _few(jobs, queues, query, number) or every:
        for key in chunk:
            if found.fits.is_passed(key):
                return found.ended(None, is_whole=True)
            found.look_at(key)
            if found.is_full:
                return found.ended(key, is_whole=True)
            if found.passed >= LOOKED_AT_ONCE:
                return found.ended(key, is_whole=False)
    return found.ended(None, is_whole=True)


class _Page:
    """Jobs that fit, while they are looked for. Of an order by length the longest are kept."""

    def __init__(
        self,
        query: BrowseJobs,
        fits: JobFilter,
        jobs: WorkqJobTable,
        queues: Queues,
        job_options: Mapping[bytes, StoredJobOptions],
    ) -> None:
        self.fits = fits
        self.passed = 0  # a bound on the work, whomever the jobs belong to
        self.looked = 0  # those of them that the client may see: the answer states it
        self.is_full = False
        self._asked = query
        self._jobs = jobs
        self._queues = queues
        self._options = job_options
        self._found: list[JobView] = []
        self._longest: list[tuple[int, bytes]] = []  # a heap
        self._bytes = 0

    def look_at(self, key: bytes) -> None:
        self.passed += 1
        job_id = packed.id_in(key)
        entry = self._jobs.get(job_id)
        if entry is None:
            return
        name = self._queues.by_number[packed.queue_of(packed.spec_of(entry))].name
        self.looked += name.startswith(self._asked.prefix)
        if not self.fits.takes(job_id, entry, name):
            return
        if self._asked.order:
            length_ns = length_of(entry, self._asked.order)
            if length_ns is not None:
                keep = heappush if len(self._longest) < self._asked.limit else heappushpop
                keep(self._longest, (length_ns, job_id))
            return
        self._add(job_id, entry, name)
        # Payloads of a megabyte would make a page of half a gigabyte.
        self.is_full = len(self._found) >= self._asked.limit or self._bytes >= LISTED_BYTES

    def ended(self, after: bytes | None, *, is_whole: bool) -> JobsFound:
        for _, job_id in sorted(self._longest, reverse=True):
            entry = self._jobs.get(job_id)
            if entry is not None and self._bytes < LISTED_BYTES:
                queue = self._queues.by_number[packed.queue_of(packed.spec_of(entry))]
                self._add(job_id, entry, queue.name)
        return JobsFound(tuple(self._found), after, is_whole, self.looked)

    def _add(self, job_id: bytes, entry: packed.Entry, queue: str) -> None:
        options = self._options.get(job_id)
        first_ns = 0 if options is None else options.first_ns
        view = view_of_entry(entry, queue, first_ns=first_ns)
        self._found.append(view)
        self._bytes += len(view.payload) + len(view.result or b"")


def length_of(entry: packed.Entry, order: str) -> int | None:
    """How long the last attempt of a job that has ended ran, or how long it waited for it; None:
    it has not begun, or not ended."""
    spec, stage, _, _, started_ns, moment_ns, _ = packed.opened(entry)
    if not started_ns:
        return None
    if order == "run":
        return None if stage in packed.UNFINISHED else moment_ns - started_ns
    return started_ns - packed.moment_of(packed.ready_of(spec))


def count_facets(
    jobs: WorkqJobTable, queues: Queues, query: CountFacets
) -> FacetCounts | StillSorting:
    if jobs.in_order().sort_some():
        return StillSorting()
    states = dict.fromkeys((*replies.STATES, replies.WAITING), 0)
    by_queue = dict[str, int]()
    for queue in queues.by_number:
        if not queue.name.startswith(query.prefix) or query.queue not in ("", queue.name):
            continue
        total = jobs.in_order().count_of(queue.number)
        counts = {
            replies.READY: queue.ready_size,
            replies.SCHEDULED: len(queue.scheduled),
            replies.LEASED: queue.leased,
            replies.DEAD: len(queue.dead),
            replies.CANCELLED: queue.cancelled,
            replies.WAITING: queue.parked,
        }
        counts[replies.COMPLETED] = max(0, total - sum(counts.values()))
        for state, count in counts.items():
            states[state] += count
        by_queue[queue.name] = counts[query.state] if query.state else total
    shown = nlargest(FACET_QUEUES, by_queue.items(), key=lambda item: (item[1], item[0]))
    return FacetCounts(states, dict(shown), len(by_queue) - len(shown))


def summaries(jobs: WorkqJobTable, queues: Queues, now_ns: int) -> Iterator[JobSummary]:
    """All jobs but runs, in no order."""
    for job_id, entry in jobs:
        spec = packed.spec_of(entry)
        if not packed.is_run(spec) and packed.expires_ns_of(spec) > now_ns:
            name = queues.by_number[packed.queue_of(spec)].name
            yield JobSummary(job_id, name, state_of(entry), packed.fields_of(spec).created_ns)


def browse_queues(queues: Queues, query: BrowseQueues, now_ns: int) -> QueuesFound:
    if query.name:
        one = queues.get(query.name)
        is_there = one is not None and query.name.startswith(query.prefix)
        found = [one] if one is not None and is_there else []
    else:
        found = queues.page_after(query.after, query.limit + 1, query.prefix)
    page = found[: query.limit]
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
    """Return when the oldest ready job became ready: within a priority that is the first one. Of
    very many priorities only the most urgent are looked at.

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
    """The test whether a job fits a request."""

    def __init__(self, query: BrowseJobs, now_ns: int) -> None:
        self._asked = query
        self._now_ns = now_ns
        self._text = query.text.lower().encode(errors="surrogatepass")
        self._id = query.text.replace("-", "").lower()
        self._task = query.task.encode(errors="surrogatepass")
        # Arguments are found as they are shown: acme.charge(4634
        self._call = self._text.decode(errors="replace") if "(" in query.text else ""
        self._called = self._text.partition(b"(")[0]
        self._error = query.error.lower().encode(errors="surrogatepass")
        self._since = packed.moment_key(query.since_ns) if query.since_ns else b""

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
        if self._task and not self._has_task(spec):
            return False
        return packed.expires_ns_of(spec) > self._now_ns

    def _has_text(self, job_id: bytes, spec: packed.Spec) -> bool:
        if job_id.hex().startswith(self._id):
            return True
        content = packed.key_and_payload_of(spec).lower()
        if self._text in content:
            return True
        if not self._call or self._called not in content:
            return False
        call = call_of(packed.fields_of(spec).payload)
        return call is not None and self._call in f"{call.task}({call.arguments})".lower()

    def _has_task(self, spec: packed.Spec) -> bool:
        if self._task not in spec:
            return False
        return task_of(packed.fields_of(spec).payload).encode() == self._task

    def _has_error(self, entry: packed.Entry) -> bool:
        if isinstance(entry, bytes) or entry[6] is None or entry[1] == packed.COMPLETED:
            return False
        if entry[1] == packed.PARKED:
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
    if stage == packed.PARKED:
        return replies.WAITING
    if stage == packed.COMPLETED:
        return replies.COMPLETED
    return replies.CANCELLED if stage == packed.CANCELLED else replies.DEAD


def _few(
    jobs: WorkqJobTable, queues: Queues, query: BrowseJobs, number: int | None
) -> list[list[bytes]]:
    """The keys of a state that few jobs are in, newest first; nothing: look among all."""
    if query.state == replies.LEASED and len(jobs.leases) <= FEW:
        ids = [packed.id_in(key) for key in jobs.leases]
    elif query.state in (replies.DEAD, replies.SCHEDULED):
        of = queues.by_number if number is None else [queues.by_number[number]]
        parts = [_part(queue, query.state) for queue in of]
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
    return [[key for key in keys if query.after is None or key < query.after]]


def _part(queue: JobQueue, state: str) -> SortedSet[bytes]:
    return queue.dead if state == replies.DEAD else queue.scheduled


def view_of_entry(
    entry: packed.Entry,
    queue: str,
    worker: str = "",
    given_back: int = 0,
    progress: replies.JobProgress | None = None,
    first_ns: int = 0,
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
        first_ns or fields.created_ns,
        None if packed.is_run(spec) or stage == packed.PARKED else packed.expires_ns_of(spec),
        fields.payload,
        packed.result_of(packed.opened(entry)),
        fields.key,
        worker,
        is_retry=stage in (packed.PENDING, packed.PARKED),
        given_back=given_back,
        scheduled_ns=fields.time_ns,
        ready_ns=moment if state == replies.SCHEDULED else None,
        started_ns=started_ns or None,
        leased_until_ns=moment if stage == packed.LEASED else None,
        finished_ns=moment if state in replies.FINISHED else None,
        progress=progress,
        parks=fields.parks,
        wait=read_wait(result or b"") if stage == packed.PARKED else None,
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
