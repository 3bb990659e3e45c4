"""Who waits, for what, and until when.

    lease    for a job of some queues         its number stands in ``waiters`` of each of them
    result   for a job to be finished         found by the job's id
    run      for its own job to be finished   the same

A client waits for one thing at a time. Those who wait are numbered in the order in which they came,
and a number is never given twice: who comes back because a batch is undone has his old place.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from journeyman.engines.sorted_set import Order
from journeyman.engines.workq.messages import Client
from journeyman.engines.workq.queues import JobQueue

NO_JOB = b""


class Waiter(NamedTuple):
    """``queues`` of a lease; ``job_id`` of a result or a run."""

    number: int
    client: Client
    until_ns: int | None  # None: a run whose worker is at it; the TTR ends that
    queues: tuple[JobQueue, ...] = ()
    job_id: bytes = NO_JOB
    is_run: bool = False


_Change: TypeAlias = tuple[Waiter, bool]  # whether it was added


class Waiting:
    """All who wait."""

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
        self._changes: list[_Change] | None = None  # of the open batch
        self.deadlines: Order[tuple[int, int]] = Order()  # until_ns, number
        self.unwatched: list[JobQueue] = []  # never used, and nobody waits for them any more

    def __len__(self) -> int:
        return len(self._by_number)

    def __getitem__(self, number: int) -> Waiter:
        return self._by_number[number]

    def of_client(self, client: Client) -> Waiter | None:
        return self._by_client.get(client)

    def awaits(self, job_id: bytes) -> bool:
        """Whether anybody waits for this job."""
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
        number, client, until_ns, queues, job_id, _ = waiter
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
        number, client, until_ns, queues, job_id, _ = waiter
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
