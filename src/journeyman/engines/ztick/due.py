r"""Which planned job is due next: a heap of the jobs themselves.

            coming                  leaving, while the queue is being tidied
           12:05 a                     12:04 x
          /       \                   /       \
      12:30 b     ...             12:10 y     ...        earliest first, then first SET

A job that is SET again or removed stays in its heap, where nobody looks for it; it is *stale*, and
passed over when it comes up. Nothing is made for a job beyond its place in the heap.

When more than half of the heap is stale, everything has to go into a new one. Done at once, that
would stop the server for half a second at a million jobs. So the heap becomes the leaving one, an
empty one takes its place, and every further change moves a few jobs over, from the end: without
its last leaf a heap is still a heap. Meanwhile the next job is at the top of one of the two.

The queue can be taken back to where it was when a batch began. Jobs that were pushed since then
are stale as soon as their states are taken back. Those that have left a heap are kept aside until
the batch ends, also the stale ones: they may be the present state again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush

from journeyman.engines.ztick.job import PLANNED, Job, execution_ns_of, pack

SLACK = 1_000  # so many stale jobs are never worth the work
MOVES = 4  # jobs that each change moves over; with 1, changes would add as fast as this clears


class DueQueue:
    """The planned jobs, in the order in which they become due."""

    __slots__ = ("_coming", "_gone", "_holds", "_leaving")

    def __init__(self, holds: Callable[[Job], bool]) -> None:
        """``holds`` tells whether a job is the present state of its identifier."""
        self._holds = holds
        self._coming: list[Job] = []
        self._leaving: list[Job] = []
        self._gone: list[Job] | None = None  # what has left the heaps in this batch

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
        bound, holds = pack(now_ns + 1, 0, PLANNED, ""), self._holds
        return sum(job < bound and holds(job) for job in (*self._coming, *self._leaving))

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
        """To be called when the jobs are again as they were."""
        gone, self._gone = self._gone, None
        for job in gone or ():
            if self._holds(job):
                heappush(self._coming, job)
