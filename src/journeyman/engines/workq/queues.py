"""The queues, one for each name in use, and the clients that wait.

    ready       jobs to lease, in order; of a fair queue a FairSet (fairness.py)
    scheduled   jobs that are due later, or wait for their retry delay
    dead        failed jobs, until their TTL ends
    waiters     numbers of the clients that wait for a job, longest first
    held        ready jobs whose key is at its limit

**Limits** (protocols.workq.commands.Limits): ``starts`` are the times of the last leases, as many
as the rate allows; ``leased`` counts leases, ``key_leased`` leases per key; ``key_rates`` has the
starts per key. A ready job whose key is at its limit moves from ``ready`` to ``held``. When a job
of the key leaves ``ready`` or ends its lease, or the key's rate allows another start, the first
held job returns. So while jobs of a key are held, one of them is in ``ready`` or the key is at its
limit: none is forgotten. Which of the two lists a job is in is not part of the state, so it need
not be undone. When limits change, all held jobs return, a few at a time.

The first add, schedule, run or pause creates a queue, permanently. A queue created by a waiting
lease that never had a job is released with its last waiting client, and its number is reused. Specs
refer to a queue by its number. A paused queue accepts jobs but leases none.

**Rates of keys**: ``KeyRates`` has the times of the last leases of each key, as many as the rate
allows, or more if it allowed more when they began. The key leased last comes last; keys whose
leases no longer count come first, and are forgotten. A *gate* is the time at which a key with held
jobs may start another one: then one of them is checked. The times are state and can be undone.
Gates are not: an extra gate does no harm, because the job is held again if its key is at its limit,
and holding a job sets a gate.

Who waits, for what, and until when:

    lease    for a job of some queues         its number is in ``waiters`` of each of them
    result   for a job to finish              found by the job's id
    run      for its own job to finish        found by the job's id

A client waits for one thing at a time. Waits are numbered in the order in which they began, and
numbers are never reused: a client that waits again because a batch was undone keeps its place.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq.fairness import FairSet
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.packed import Spec, has_key, key_of
from journeyman.protocols.workq.commands import NO_LIMITS
from journeyman.units import NS_PER_MS

MAX_STARTS: Final = 1_000_000  # in a queue; beyond that the key that was idle longest is forgotten
FORGET_LIMIT: Final = 10  # keys forgotten in one lease


class KeyRates:
    """The rates of keys; without a rate it counts nothing."""

    __slots__ = ("_count", "_gate_of", "_gates", "_per_ns", "rate", "starts")

    def __init__(self, rate: int = 0, per_ms: int = 0) -> None:
        self.rate = rate
        self._per_ns = per_ms * NS_PER_MS
        self.starts: OrderedDict[str, list[int]] = OrderedDict()
        self._count = 0  # all starts together
        self._gates: SortedSet[tuple[int, str]] = SortedSet()
        self._gate_of: dict[str, int] = {}

    def changed(self, rate: int, per_ms: int) -> KeyRates:
        """Return the rates of keys with another limit. They share the starts that are known,
        because there may be a million. They have no gates: when limits change, nothing is held back
        any more.

        The one before can be put in its place again once all that it has noted was taken back.
        """
        found = KeyRates(rate, per_ms)
        if rate:
            found.starts, found._count = self.starts, self._count
        return found

    def put(self, key: str, starts: list[int]) -> None:
        """Leases that were; the key that was leased last comes last."""
        self.starts[key] = starts[-self.rate :]
        self._count += len(self.starts[key])

    def opens_ns(self, key: str, now_ns: int) -> int:
        """When this key may be leased again; in the past: now.

        Starts that are still to come are of a clock that was set back since: they do not count.
        """
        starts = self.starts.get(key)
        if starts is None or len(starts) < self.rate or starts[-self.rate] > now_ns:
            return 0
        return starts[-self.rate] + self._per_ns

    def note_start(self, key: str, now_ns: int) -> Callable[[], None]:
        """A lease begins; the call takes it back."""
        starts = self.starts.setdefault(key, [])
        starts.append(now_ns)
        dropped = starts[: -self.rate]
        del starts[: -self.rate]
        self._count += 1 - len(dropped)
        self.starts.move_to_end(key)
        forgotten = self._forget(now_ns)

        def undo() -> None:
            for former, times in reversed(forgotten):
                self.starts[former] = times
                self.starts.move_to_end(former, last=False)
                self._count += len(times)
            starts.pop()
            starts[:0] = dropped
            self._count -= 1 - len(dropped)
            if not starts:
                del self.starts[key]

        return undo

    def _forget(self, now_ns: int) -> list[tuple[str, list[int]]]:
        """Keys that do not count any more, or are too many; a few at a time."""
        forgotten: list[tuple[str, list[int]]] = []
        while len(self.starts) > 1 and len(forgotten) < FORGET_LIMIT:
            key, starts = next(iter(self.starts.items()))
            if now_ns < starts[-1] + self._per_ns and self._count <= MAX_STARTS:
                break
            forgotten.append((key, starts))
            self._count -= len(starts)
            del self.starts[key]
        return forgotten

    # -- gates -------------------------------------------------------------------------------------

    @property
    def has_gates(self) -> bool:
        return bool(self._gate_of)

    def set_gate(self, key: str, opens_ns: int) -> None:
        """A job of this key is held back until then."""
        self._drop_gate(key)
        self._gates.add((opens_ns, key))
        self._gate_of[key] = opens_ns

    def next_gate_ns(self, now_ns: int) -> int:
        """When to call ``open_one``. There must be a gate."""
        return self._gates.first()[0] if self._gate_too_far(now_ns) is None else now_ns

    def open_one(self, now_ns: int) -> str | None:
        """A key whose gate opens now."""
        if not self._gate_of:
            return None
        opens_ns, key = self._gates.first()
        if opens_ns > now_ns:
            gate = self._gate_too_far(now_ns)
            if gate is None:
                return None
            _, key = gate
        self._drop_gate(key)
        return key

    def _gate_too_far(self, now_ns: int) -> tuple[int, str] | None:
        """One that is further away than the time of the rate: the clock was set back since."""
        return self._gates.first_from((now_ns + self._per_ns + 1, ""))

    def _drop_gate(self, key: str) -> None:
        opens_ns = self._gate_of.pop(key, None)
        if opens_ns is not None:
            self._gates.remove((opens_ns, key))


NO_JOB = b""


class Waiter(NamedTuple):
    """``queues`` of a lease; ``job_id`` of a result or a run."""

    number: int
    client: Client
    until_ns: int | None  # None: a run whose worker is at it; the TTR ends that
    queues: tuple[JobQueue, ...] = ()
    job_id: bytes = NO_JOB
    is_run: bool = False
    max_jobs: int = 0
    worker: str = ""


_Change: TypeAlias = tuple[Waiter, bool]  # true if the waiter was added


class Waiting:
    """All waiting clients."""

    __slots__ = (
        "_by_client",
        "_by_job",
        "_by_number",
        "_changes",
        "_next",
        "deadlines",
        "unwatched",
    )

    def __init__(self) -> None:
        self._by_client: dict[Client, Waiter] = {}
        self._by_number: dict[int, Waiter] = {}
        self._by_job: dict[bytes, dict[int, Waiter]] = {}
        self._next = 1
        self._changes: list[_Change] | None = None  # made by the open batch
        self.deadlines: SortedSet[tuple[int, int]] = SortedSet()  # until_ns, number
        self.unwatched: list[JobQueue] = []  # never used, and no longer waited for

    def __len__(self) -> int:
        return len(self._by_number)

    def __getitem__(self, number: int) -> Waiter:
        return self._by_number[number]

    def of_client(self, client: Client) -> Waiter | None:
        return self._by_client.get(client)

    def awaits(self, job_id: bytes) -> bool:
        """Return whether a client waits for this job."""
        return job_id in self._by_job

    def of_job(self, job_id: bytes) -> list[Waiter]:
        """Longest first."""
        waiters = self._by_job.get(job_id)
        return [waiters[number] for number in sorted(waiters)] if waiters else []

    def next_number(self) -> int:
        number = self._next
        self._next = number + 1
        return number

    def add(self, waiter: Waiter) -> None:
        if self._changes is not None:
            self._changes.append((waiter, True))
        number, client, until_ns, queues, job_id, *_ = waiter
        assert client not in self._by_client, "a client waits for one thing at a time"
        self._by_client[client] = waiter
        self._by_number[number] = waiter
        for queue in queues:
            queue.waiters.add(number)
        if job_id:
            self._by_job.setdefault(job_id, {})[number] = waiter
        if until_ns is not None:
            self.deadlines.add((until_ns, number))

    def remove(self, waiter: Waiter) -> None:
        if self._changes is not None:
            self._changes.append((waiter, False))
        number, client, until_ns, queues, job_id, *_ = waiter
        del self._by_client[client], self._by_number[number]
        for queue in queues:
            queue.waiters.remove(number)
            if not queue.is_used and not queue.waiters:
                self.unwatched.append(queue)
        if job_id:
            waiters = self._by_job[job_id]
            del waiters[number]
            if not waiters:
                del self._by_job[job_id]
        if until_ns is not None:
            self.deadlines.remove((until_ns, number))

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []

    def commit_batch(self) -> None:
        self._changes = None

    def undo_batch(self) -> None:
        changes, self._changes = self._changes or (), None
        for waiter, was_added in reversed(changes):
            if was_added:
                self.remove(waiter)
            else:
                self.add(waiter)


class JobQueue:
    """The waiting and the dead jobs of one name, and who waits for them."""

    __slots__ = (
        "_draining",
        "_held",
        "added",
        "cancelled",
        "counted",
        "dead",
        "held_size",
        "is_used",
        "key_leased",
        "key_rates",
        "leased",
        "limits",
        "name",
        "number",
        "parked",
        "paused",
        "ready",
        "scheduled",
        "started",
        "starts",
        "waiters",
    )

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.ready: SortedSet[Spec] = SortedSet()
        self.scheduled: SortedSet[Spec] = SortedSet()
        self.dead: SortedSet[Spec] = SortedSet()
        self.waiters: SortedSet[int] = SortedSet()
        self.paused = False
        self.is_used = False  # by more than leases: it stays
        self.limits = NO_LIMITS
        self.starts: deque[int] = deque()
        self.added = 0  # jobs, and leases below: since the process started
        self.started = 0
        self.cancelled = 0  # jobs
        self.parked = 0
        self.leased = 0
        self.key_leased: dict[str, int] = {}
        self.key_rates = KeyRates()
        self.held_size = 0
        self._held: dict[str, SortedSet[Spec]] = {}
        self._draining: list[dict[str, SortedSet[Spec]]] = []

    @property
    def ready_size(self) -> int:
        """Return how many jobs wait for nothing but a worker and the limits."""
        return self.ready.size + self.held_size

    def waiting_page(self, offset: int, limit: int) -> list[Spec]:
        """Ready jobs in their order; then those that are held, by key."""
        found = self.ready.page(offset, limit)
        if len(found) < limit and self.held_size:
            skip = max(offset - self.ready.size, 0)
            held = (s for table in self._tables() for specs in table.values() for s in specs)
            found += islice(held, skip, skip + limit - len(found))
        return found

    # -- limits --

    def set_fair(self, *, fair: bool, weights: Mapping[str, int]) -> None:
        """Let keys take turns, or no longer."""
        ready = self.ready
        if isinstance(ready, FairSet) and fair:
            ready.weights = weights
        elif isinstance(ready, FairSet):
            self.ready = ready.plain()
        elif fair:
            self.ready = FairSet(ready, weights)

    def take_turn(self, spec: Spec) -> None:
        """This job, the first of those that are ready, is leased."""
        if isinstance(self.ready, FairSet):
            self.ready.take_turn(spec)

    def opens_ns(self, now_ns: int) -> int:
        """When the rate allows another lease; in the past: now.

        Starts that are still to come are of a clock that was set back since: they do not count.
        """
        limits = self.limits
        if not limits.rate or len(self.starts) < limits.rate or self.starts[0] > now_ns:
            return 0
        return self.starts[0] + limits.per_ms * NS_PER_MS

    def count_lease(self, spec: Spec, change: int) -> None:
        """A lease of this job has begun (1) or ended (-1)."""
        self.leased += change
        if has_key(spec):
            key = key_of(spec)
            count = self.key_leased.get(key, 0) + change
            if count:
                self.key_leased[key] = count
            else:
                del self.key_leased[key]

    def is_saturated(self, spec: Spec, now_ns: int) -> bool:
        """Return whether the key of this job has no room."""
        most, rates = self.limits.key_concurrency, self.key_rates
        if not (most or rates.rate) or not (key := key_of(spec)):
            return False
        if 0 < most <= self.key_leased.get(key, 0):
            return True
        return rates.rate > 0 and rates.opens_ns(key, now_ns) > now_ns

    def hold(self, spec: Spec, now_ns: int) -> None:
        """A ready job waits for room of its key."""
        key = key_of(spec)
        self.ready.remove(spec)
        self._held.setdefault(key, SortedSet()).add(spec)
        self.held_size += 1
        if self.key_rates.rate and (opens_ns := self.key_rates.opens_ns(key, now_ns)) > now_ns:
            self.key_rates.set_gate(key, opens_ns)

    def leave_ready(self, spec: Spec) -> bool:
        """A job is not ready any more; whether another one has become so."""
        if not self.held_size or not has_key(spec):
            self.ready.remove(spec)
            return False
        key = key_of(spec)
        for table in self._tables():
            specs = table.get(key)
            if specs is not None and specs.first_from(spec) == spec:
                self._take_held(table, key, spec)
                return False
        self.ready.remove(spec)
        return self.release_one(key)

    def release_one(self, key: str) -> bool:
        """There may be room for a job of this key."""
        specs = self._held.get(key)
        if specs is None:
            return False
        spec = specs.first()
        self._take_held(self._held, key, spec)
        self.ready.add(spec)
        return True

    def drain(self) -> None:
        """The limits have changed: let all that is held be looked at again, by ``drain_one``."""
        if self._held:
            self._draining.append(self._held)
            self._held = {}

    def drain_one(self) -> bool:
        """Return whether there was one."""
        while self._draining:
            table = self._draining[-1]
            if not table:
                self._draining.pop()
                continue
            key, specs = next(iter(table.items()))
            spec = specs.first()
            self._take_held(table, key, spec)
            self.ready.add(spec)
            return True
        return False

    def _take_held(self, table: dict[str, SortedSet[Spec]], key: str, spec: Spec) -> None:
        specs = table[key]
        specs.remove(spec)
        self.held_size -= 1
        if not specs.size:
            del table[key]

    def _tables(self) -> Iterator[dict[str, SortedSet[Spec]]]:
        yield self._held
        yield from self._draining


class _QueueChange(Enum):
    MADE = auto()
    USED = auto()  # for the first time
    PAUSED = auto()  # also when it is resumed
    RELEASED = auto()


_RELEASED = JobQueue(-1, "")  # stands for a number that is free


class Queues:
    """All queues by number, by name, and in the order of their names."""

    __slots__ = (
        "_by_name",
        "_changes",
        "_free",
        "_names",
        "_paused",
        "by_number",
    )

    def __init__(self) -> None:
        self._by_name: dict[str, JobQueue] = {}
        self.by_number: list[JobQueue] = []
        self._names: SortedSet[bytes] = SortedSet()
        self._paused: SortedSet[bytes] = SortedSet()
        self._free: list[int] = []  # numbers of released queues
        self._changes: list[tuple[_QueueChange, JobQueue]] | None = None  # made by the open batch

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> JobQueue | None:
        return self._by_name.get(name)

    def use(self, name: str) -> JobQueue:
        """The queue, made if there is none. From now on it stays."""
        queue = self._by_name.get(name)
        if queue is None:
            queue = self._make(name)
        if not queue.is_used:
            queue.is_used = True
            self._note(_QueueChange.USED, queue)
        return queue

    def watch(self, name: str) -> JobQueue:
        """The queue, made if there is none, for a client that waits for a job of it."""
        queue = self._by_name.get(name)
        return self._make(name) if queue is None else queue

    def release(self, queues: Iterable[JobQueue]) -> None:
        """Forget those that exist, hold nothing and have no client waiting."""
        for queue in queues:
            is_there = self._by_name.get(queue.name) is queue
            if is_there and not queue.is_used and not queue.waiters:
                self._forget(queue)
                self._note(_QueueChange.RELEASED, queue)

    def _make(self, name: str) -> JobQueue:
        if self._free:
            number = self._free.pop()
            queue = self.by_number[number] = JobQueue(number, name)
        else:
            queue = JobQueue(len(self.by_number), name)
            self.by_number.append(queue)
        self._by_name[name] = queue
        self._names.add(_key(name))
        self._note(_QueueChange.MADE, queue)
        return queue

    def _forget(self, queue: JobQueue) -> None:
        assert not any((queue.ready_size, queue.scheduled, queue.dead, queue.waiters))
        del self._by_name[queue.name]
        self._names.remove(_key(queue.name))
        self.by_number[queue.number] = _RELEASED
        self._free.append(queue.number)

    def _remember(self, queue: JobQueue) -> None:
        """It was forgotten last."""
        number = self._free.pop()
        assert number == queue.number
        self.by_number[number] = self._by_name[queue.name] = queue
        self._names.add(_key(queue.name))

    def page(self, offset: int, limit: int, prefix: str = "") -> list[JobQueue]:
        """Return a page of the queues that begin with ``prefix``, in the order of their names."""
        return self._page(self._names, offset, limit, prefix)

    def page_after(self, name: str, limit: int, prefix: str = "") -> list[JobQueue]:
        """Return queues above ``name`` that begin with ``prefix``."""
        keys = self._names.beginning_with(_key(prefix), _key(name), limit)
        return [self._by_name[_name(key)] for key in keys]

    def paused_page(self, offset: int, limit: int, prefix: str = "") -> list[JobQueue]:
        return self._page(self._paused, offset, limit, prefix)

    def _page(
        self, names: SortedSet[bytes], offset: int, limit: int, prefix: str
    ) -> list[JobQueue]:
        begin = _key(prefix)
        keys = names.page(names.rank(begin) + offset if prefix else offset, limit)
        return [self._by_name[_name(key)] for key in keys if key.startswith(begin)]

    @property
    def paused(self) -> frozenset[str]:
        return frozenset(map(_name, self._paused))

    def set_paused(self, queue: JobQueue, paused: bool) -> None:
        """Pause or resume a queue that is not so already."""
        assert queue.paused is not paused
        queue.paused = paused
        if paused:
            self._paused.add(_key(queue.name))
        else:
            self._paused.remove(_key(queue.name))
        self._note(_QueueChange.PAUSED, queue)

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []

    def commit_batch(self) -> None:
        self._changes = None

    def undo_batch(self) -> None:
        """Undo the batch; called last, when the queues that the batch has made are empty again."""
        changes, self._changes = self._changes or (), None
        for change, queue in reversed(changes):
            if change is _QueueChange.PAUSED:
                self.set_paused(queue, not queue.paused)
            elif change is _QueueChange.USED:
                queue.is_used = False
            elif change is _QueueChange.MADE:
                self._forget(queue)
            else:
                self._remember(queue)

    def _note(self, change: _QueueChange, queue: JobQueue) -> None:
        if self._changes is not None:
            self._changes.append((change, queue))


def _key(name: str) -> bytes:
    """Names are listed in the order of their bytes."""
    return name.encode("utf-8", "surrogateescape")


def _name(key: bytes) -> str:
    return key.decode("utf-8", "surrogateescape")
