"""All jobs of a schedule: their states, how many have which status, and what is due next.

    plan      SET             any status  -> planned
    take_due  the time came   planned, for the caller to move on at once
    move      a run           planned -> triggered -> executed | failed      planned -> failed
    remove    REMOVE          any status  -> forgotten

engine.py decides which of these a command leads to. Here they are done, each in one step: the job
is in its shard, the counts are right, the queue of due jobs has it if it is planned, and while a
batch is open the state before is noted.

A job is bytes, because the garbage collector does not look at bytes, and a million tuples would
keep it busy:

    u64be execution_ns + 2**63 | u64be order | u8 status | identifier, utf-8
    8                            8             1

So jobs compare in the order in which they run: by time, then by ``order``. For a planned job that
counts SETs (of two jobs with the same time, the one that was SET first runs first), for a triggered
job it is the id of its run, for an ended one see below. A job never changes: another status is
another object, and ``is`` shows whether an object is still the present state of its job.

Ended jobs are also kept in the order of their ends: what retention removes first (``EndedJobs``).

    chunks   [a b c ... 1000] [d e f ... 1000] [g h]
              ^ first ended                       ^ last ended

The ``order`` of a job that ended here is the time of its end; that of a loaded one is a place in
the log, a small number. The log has ended jobs in the order of their ends, and the ledger has
marks: this one, and all before it, had ended at that time. So a job is past at the later of its
planned time and its end; a loaded one at the later of its planned time and the first mark at or
after it (``bound``). Without a ledger the planned time alone counts. None is past before one that
ended earlier. A job that is SET again or removed stays there as *stale* and is skipped. Each new
chunk drops the stale jobs of a few others, so the stale ones are never more than about a third.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import itemgetter
from struct import Struct
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from journeyman.engines.sharded_dict import DictSnapshot, ShardedDict
from journeyman.formats.ztick import Status

Job: TypeAlias = bytes


class JobWatcher(Protocol):
    """An index of jobs that the table keeps up to date (browsing.py)."""

    def change(self, identifier: str, before: Job | None, after: Job | None) -> None: ...


W = TypeVar("W", bound=JobWatcher)

# Statuses as they stand in a job: job[STATUS_AT] == PLANNED.
PLANNED, TRIGGERED, EXECUTED, FAILED = (int(status) for status in Status)
REMOVED = len(Status)  # marks a row of the log that removes its job; no job has it
STATUS_AT = 16
HEAD_BYTES = 17  # before the identifier

_HEAD = Struct(">QQB")
_EPOCH = 2**63  # times before 1970 are negative; shifted by this they sort as bytes
_head = _HEAD.pack


def pack(execution_ns: int, order: int, status: int, identifier: str) -> Job:
    return _head(execution_ns + _EPOCH, order, status) + identifier.encode()


def pack_rows(
    execution_ns: Iterable[int], orders: range, statuses: Iterable[int], identifiers: Sequence[str]
) -> list[Job]:
    """Many at once. ValueError if there is not the same number of each."""
    return [
        _head(time_ns + _EPOCH, order, status) + identifier.encode()
        for time_ns, order, status, identifier in zip(
            execution_ns, orders, statuses, identifiers, strict=True
        )
    ]


def execution_ns_of(job: Job) -> int:
    return int.from_bytes(job[:8]) - _EPOCH


def order_of(job: Job) -> int:
    return int.from_bytes(job[8:STATUS_AT])


def has_ended(job: Job) -> bool:
    return job[STATUS_AT] > TRIGGERED


def ended_ns_of(job: Job) -> int:
    """Return the time from which a job that has ended is kept: see ``EndedJobs``."""
    return max(execution_ns_of(job), order_of(job))


def identifier_of(job: Job) -> str:
    return job[STATUS_AT + 1 :].decode()


NO_RUN = 0  # the run id of a triggered job whose run is yet to be made; real ones begin at 1

JobRow: TypeAlias = tuple[str, Status, int]  # identifier, status, execution_ns
_Change: TypeAlias = tuple[str, Job | None]  # identifier, its state before

_STATUSES = tuple(Status)
SLICE_JOBS = 500  # a listing looks at least at this many jobs at a time, if there are as many


SLACK = 1_000  # so many stale jobs are never worth the work
MOVES = 4  # jobs that each change moves over; with 1, changes would add as fast as this clears


class DueQueue:
    r"""The planned jobs, in the order in which they become due: a heap of the jobs themselves.

            coming                  leaving, while the queue is tidied
           12:05 a                     12:04 x
          /       \                   /       \
      12:30 b     ...             12:10 y     ...        earliest first, then first SET

    A job that is SET again or removed stays in its heap as *stale*, and is skipped when it comes
    up. When more than half of the heap is stale, all jobs have to go into a new one. Done at once
    that would stop the server for half a second at a million jobs. So the heap becomes the leaving
    one, an empty one takes its place, and every further change moves a few jobs over, from the end:
    without its last leaf a heap is still a heap.

    Undo: jobs pushed since the batch began are stale once their states are restored. Jobs that left
    a heap are kept until the batch ends, stale ones too: they may become the present state again.
    """

    __slots__ = ("_coming", "_gone", "_holds", "_leaving")

    def __init__(self, holds: Callable[[Job], bool]) -> None:
        """``holds``: whether a job is the present state of its identifier."""
        self._holds = holds
        self._coming: list[Job] = []
        self._leaving: list[Job] = []
        self._gone: list[Job] | None = None  # entries that have left the heaps in this batch

    def __len__(self) -> int:
        """How many jobs are in it, stale ones counted in."""
        return len(self._coming) + len(self._leaving)

    def fill(self, jobs: Iterable[Job]) -> None:
        """Put many jobs into the empty queue at once."""
        self._coming.extend(jobs)
        heapify(self._coming)

    def push(self, job: Job) -> None:
        heappush(self._coming, job)

    def next_ns(self) -> int | None:
        """No job is due before this time. Maybe none is due then: the next one may be stale."""
        heap = self._earlier()
        return execution_ns_of(heap[0]) if heap else None

    def count(self, now_ns: int) -> int:
        """How many are due. In a heap no job comes before its parent: only those are looked at."""
        bound, found = pack(now_ns + 1, 0, PLANNED, ""), 0
        for heap in (self._coming, self._leaving):
            places = [0]
            while places:
                place = places.pop()
                if place < len(heap) and heap[place] < bound:
                    found += self._holds(heap[place])
                    places += (2 * place + 1, 2 * place + 2)
        return found

    def take(self, now_ns: int, limit: int) -> Iterator[Job]:
        """The jobs due, in order, out of the queue; at most ``limit``, stale ones counted in.

        Each must have got another status before the next one is asked for.
        """
        for _ in range(limit):
            heap = self._earlier()
            if not heap or execution_ns_of(heap[0]) > now_ns:
                return
            job = heappop(heap)
            if self._gone is not None:
                self._gone.append(job)
            if self._holds(job):
                yield job

    def tidy(self, planned: int) -> None:
        """A job that was planned is stale now; ``planned`` are not."""
        if self._leaving:
            self._move_over()
        elif len(self._coming) > 2 * planned + SLACK:
            # Two lists that take turns, never a third: see docs/engines.md on garbage collection.
            self._coming, self._leaving = self._leaving, self._coming

    def _move_over(self) -> None:
        leaving = self._leaving
        for _ in range(min(MOVES, len(leaving))):
            job = leaving.pop()
            if self._holds(job):
                heappush(self._coming, job)
            elif self._gone is not None:
                self._gone.append(job)

    def _earlier(self) -> list[Job]:
        """The heap whose top is next."""
        coming, leaving = self._coming, self._leaving
        if leaving and (not coming or leaving[0] < coming[0]):
            return leaving
        return coming

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._gone = []

    def commit_batch(self) -> None:
        self._gone = None

    def undo_batch(self) -> None:
        """Undo the batch; called when the jobs are again as they were."""
        gone, self._gone = self._gone, None
        for job in gone or ():
            if self._holds(job):
                heappush(self._coming, job)


CHUNK_JOBS = 1000
TIDIED = 4  # chunks, for each new one
_LONG_AGO_NS = -(2**63)


class _Chunk(deque[bytes]):
    bound_ns = _LONG_AGO_NS  # none of these jobs is past before


class EndedJobOrder:
    __slots__ = ("_chunks", "_cursor", "_ended_ns", "_holds", "gone")

    def __init__(
        self,
        holds: Callable[[bytes], bool],
        ended_ns: Callable[[bytes], int],
        jobs: Sequence[bytes] = (),
    ) -> None:
        """``holds``: whether a job is the present state of its identifier."""
        self._holds = holds
        self._ended_ns = ended_ns
        places = range(0, len(jobs), CHUNK_JOBS)
        self._chunks = [_Chunk(jobs[place : place + CHUNK_JOBS]) for place in places]
        self._cursor = 0
        # The jobs that have left since the batch began, which sets it; and the bound that it had.
        self.gone: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        """How many jobs are in it, stale ones counted in."""
        return sum(map(len, self._chunks))

    def add(self, job: bytes) -> None:
        if not self._chunks or len(self._chunks[-1]) >= CHUNK_JOBS:
            self._tidy()
            self._chunks.append(_Chunk())
        self._chunks[-1].append(job)

    def first_ns(self) -> int | None:
        """No job is past before this time. Maybe none is then: the first one may be stale."""
        if not self._chunks:
            return None
        return max(self._ended_ns(self._chunks[0][0]), self._chunks[0].bound_ns)

    def last(self) -> bytes | None:
        """The job that ended last, if it still is what it was then."""
        job = self._chunks[-1][-1] if self._chunks else None
        return job if job is not None and self._holds(job) else None

    def bound(
        self, marks: Sequence[tuple[int, int]], order: Callable[[bytes], int], now_ns: int
    ) -> None:
        """``marks``: the order of a loaded job, ascending, and a time at which it had ended.

        Those after the last mark had ended by now. Called before any job ends here.
        """
        orders = [place for place, _ in marks]
        for chunk in self._chunks:
            at = bisect_left(orders, order(chunk[-1]))
            chunk.bound_ns = marks[at][1] if at < len(marks) else now_ns

    def take(self, before_ns: int, limit: int) -> Iterator[bytes]:
        """The jobs that were past before this time, at most ``limit``, stale ones counted in."""
        for _ in range(limit):
            first_ns = self.first_ns()
            if first_ns is None or first_ns > before_ns:
                return
            chunk = self._chunks[0]
            job = chunk.popleft()
            if not chunk:
                del self._chunks[0]
            self.gone.append((chunk.bound_ns, job))
            if self._holds(job):
                yield job

    def _tidy(self) -> None:
        for _ in range(min(TIDIED, len(self._chunks))):
            self._cursor = (self._cursor + 1) % len(self._chunks)
            chunk, before = self._chunks[self._cursor], self._chunks[self._cursor - 1]
            kept = _Chunk(filter(self._holds, chunk))
            kept.bound_ns = chunk.bound_ns
            if len(kept) < len(chunk):
                self.gone += [(chunk.bound_ns, job) for job in chunk if not self._holds(job)]
            if kept and (self._cursor == 0 or len(before) + len(kept) > CHUNK_JOBS):
                self._chunks[self._cursor] = kept
                continue
            if kept:
                before.extend(kept)
                before.bound_ns = max(before.bound_ns, kept.bound_ns)
            del self._chunks[self._cursor]
            if not self._chunks:
                return
            self._cursor -= 1

    # -- batches ---------------------------------------------------------------------------------

    def undo_batch(self) -> None:
        """Undo the batch; called when the jobs are again as they were."""
        gone, self.gone = sorted(self.gone, key=_bound_of), []
        for bound_ns, jobs in groupby(reversed(gone), _bound_of):
            if held := _Chunk(job for _, job in jobs if self._holds(job)):
                held.reverse()
                held.bound_ns = bound_ns
                self._chunks.insert(0, held)


_bound_of = itemgetter(0)


class JobListing:
    """The jobs as of one moment: an iterator of slices, each quick to make and maybe empty."""

    __slots__ = ("_prefix", "_shards")

    def __init__(self, shards: DictSnapshot[str, Job] | None, prefix: str) -> None:
        """List the jobs whose identifier begins with ``prefix``. None: list no jobs."""
        self._shards = iter(()) if shards is None else shards
        self._prefix = prefix

    def __iter__(self) -> Iterator[list[JobRow]]:
        return self

    def __next__(self) -> list[JobRow]:
        prefix = self._prefix
        rows: list[JobRow] = []
        seen = 0
        for shard in self._shards:
            seen += len(shard)
            rows += [
                (identifier, _STATUSES[job[STATUS_AT]], execution_ns_of(job))
                for identifier, job in shard.items()
                if identifier.startswith(prefix)
            ]
            if seen >= SLICE_JOBS:
                break
        if not seen:
            raise StopIteration
        return rows


class ShardedRows(NamedTuple):
    """Rows of a log about jobs: those of the first shard in the order of the log, then the next."""

    counts: Sequence[int]  # the number of rows of each shard
    jobs: bytes  # packed, end to end
    ends: array[int]  # where each begins, and the last one ends
    names: str | None  # their identifiers, a line each; None: one is more than a line
    has_removals: bool


class ZtickJobTable:
    """The jobs by identifier. ``interrupted`` are those found triggered in the log, by time."""

    __slots__ = (
        "_by_name",
        "_changes",
        "_counts",
        "_due",
        "_next_order",
        "_saved",
        "_watcher",
        "ended",
        "get",
        "interrupted",
    )

    def __init__(
        self,
        by_name: ShardedDict[str, Job] | None = None,
        jobs: Sequence[Job] = (),
        next_order: int = 0,
        *,
        retained: bool = False,
    ) -> None:
        """``jobs`` are all that are in ``by_name``; their orders are below ``next_order``, and are
        those of the log. ``retained``: it is known in which order jobs have ended, so that the
        oldest can be removed."""
        self._by_name: ShardedDict[str, Job] = ShardedDict() if by_name is None else by_name
        self.get = self._by_name.get
        self._watcher: JobWatcher | None = None
        self._due = DueQueue(self.holds)
        others = [job for job in jobs if job[STATUS_AT] != PLANNED]
        planned = [job for job in jobs if job[STATUS_AT] == PLANNED] if others else jobs
        self._due.fill(planned)
        self._counts = [len(planned), 0, 0, 0]
        for job in others:
            self._counts[job[STATUS_AT]] += 1
        self.ended: EndedJobOrder | None = None
        if retained:
            ended = sorted(filter(has_ended, others), key=order_of)
            self.ended = EndedJobOrder(self.holds, ended_ns_of, ended)
        self._next_order = next_order
        self._changes: list[_Change] | None = None  # made by the open batch
        self._saved: tuple[list[int], tuple[Job, ...]] = ([], ())
        # Their order was a place in the log, which must not be taken for a run.
        triggered = sorted(job for job in others if job[STATUS_AT] == TRIGGERED)
        self.interrupted = tuple(self.move(identifier_of(job), job, TRIGGERED) for job in triggered)

    @property
    def counts(self) -> tuple[int, ...]:
        """How many jobs are planned, triggered, executed, failed."""
        return tuple(self._counts)

    def holds(self, job: Job) -> bool:
        """Return whether this is the present state of its job."""
        return self.get(identifier_of(job)) is job

    def listing(self, prefix: str | None) -> JobListing:
        """The jobs whose identifier begins with ``prefix``; None: no jobs."""
        return JobListing(None if prefix is None else self._by_name.snapshot(), prefix or "")

    def watched_by(self, make: Callable[[ShardedDict[str, Job]], W]) -> W:
        """Make a watcher of all jobs, which is told of every change from now on."""
        self._watcher = watcher = make(self._by_name)
        return watcher

    def next_due_ns(self) -> int | None:
        return self._due.next_ns()

    def count_due(self, now_ns: int) -> int:
        """How many planned jobs are due; those that are stale are left out."""
        return self._due.count(now_ns)

    def present_bound(self, now_ns: int) -> Job:
        """Compares, by time and by order, as one that is planned now would."""
        return pack(now_ns, self._next_order, PLANNED, "")

    def take_due(self, now_ns: int, limit: int) -> Iterator[Job]:
        """The planned jobs that are due, in order. Move each on before the next is asked for."""
        return self._due.take(now_ns, limit)

    def put_off(self, jobs: Iterable[Job]) -> None:
        """These were taken, and are to be taken again the next time."""
        for job in jobs:
            self._due.push(job)

    @property
    def next_order(self) -> int:
        """Jobs that are planned from now on have this order, or a later one."""
        return self._next_order

    # -- changes ---------------------------------------------------------------------------------

    def plan(self, identifier: str, execution_ns: int) -> Job | None:
        """Create the job or plan it again; its state before."""
        shard = self._by_name.shard_to_change(identifier)
        before = shard.get(identifier)
        order = self._next_order
        self._next_order = order + 1
        self._counts[PLANNED] += 1
        if before is not None:
            self._counts[before[STATUS_AT]] -= 1
        job = pack(execution_ns, order, PLANNED, identifier)
        shard[identifier] = job
        if self._watcher is not None:
            self._watcher.change(identifier, before, job)
        self._due.push(job)
        if self._changes is not None:
            self._changes.append((identifier, before))
        if before is not None and before[STATUS_AT] == PLANNED:
            self._due.tidy(self._counts[PLANNED])
        return before

    def plan_many(self, rows: Iterable[tuple[bytes, int]]) -> list[tuple[str, Job]]:
        """Plan many jobs, given by identifier in UTF-8 and time. Return the states that were there
        before.

        ``plan``, written out as one loop: a call for each would be most of the time.
        """
        order, known = self._next_order, self._by_name
        replaced: list[tuple[str, Job]] = []
        for raw, execution_ns in rows:
            identifier = raw.decode()
            shard = known.shard_to_change(identifier)
            before = shard.get(identifier)
            job = _head(execution_ns + _EPOCH, order, PLANNED) + raw
            order += 1
            shard[identifier] = job
            self._due.push(job)
            if self._changes is not None:
                self._changes.append((identifier, before))
            if self._watcher is not None:
                self._watcher.change(identifier, before, job)
            if before is not None:
                replaced.append((identifier, before))
                self._counts[before[STATUS_AT]] -= 1
        self._counts[PLANNED] += order - self._next_order
        self._next_order = order
        for _, before in replaced:
            if before[STATUS_AT] == PLANNED:
                self._due.tidy(self._counts[PLANNED])
        return replaced

    def move(self, identifier: str, job: Job, status: int, order: int = NO_RUN) -> Job:
        """Give the job, now at ``job``, a status other than planned; its state then.

        ``order``: the id of its run; the time if it has ended.
        """
        moved = pack(execution_ns_of(job), order, status, identifier)
        self._by_name.shard_to_change(identifier)[identifier] = moved
        if self._watcher is not None:
            self._watcher.change(identifier, job, moved)
        self._counts[job[STATUS_AT]] -= 1
        self._counts[status] += 1
        if self._changes is not None:
            self._changes.append((identifier, job))
        if self.ended is not None and status != TRIGGERED:
            self.ended.add(moved)
        return moved

    def remove(self, identifier: str) -> Job | None:
        """Forget the job; its last state, None if there is no such job."""
        before = self._by_name.shard_to_change(identifier).pop(identifier, None)
        if before is None:
            return None
        if self._watcher is not None:
            self._watcher.change(identifier, before, None)
        self._counts[before[STATUS_AT]] -= 1
        if self._changes is not None:
            self._changes.append((identifier, before))
        if before[STATUS_AT] == PLANNED:
            self._due.tidy(self._counts[PLANNED])
        return before

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []
        self._saved = (self._counts.copy(), self.interrupted)
        self._due.begin_batch()
        if self.ended is not None:
            self.ended.gone = []

    def commit_batch(self) -> None:
        self._changes = None
        self._due.commit_batch()

    def undo_batch(self) -> None:
        changes, self._changes = self._changes or [], None
        for identifier, before in reversed(changes):
            shard = self._by_name.shard_to_change(identifier)
            if self._watcher is not None:
                self._watcher.change(identifier, shard.get(identifier), before)
            if before is None:
                del shard[identifier]
            else:
                shard[identifier] = before
        self._counts, self.interrupted = self._saved
        self._due.undo_batch()
        if self.ended is not None:
            self.ended.undo_batch()
        for _ in changes:  # each SET has left a stale job in the queue
            self._due.tidy(self._counts[PLANNED])
