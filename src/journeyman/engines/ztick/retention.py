"""The jobs that have ended, in the order in which they did: what retention removes first.

    chunks   [a b c ... 1000] [d e f ... 1000] [g h]
              ^ first ended                       ^ last ended

The order of a job that ended here is the time of its end (see ``pack``); that of a loaded one is a
place in the log, a small number. The log has ended jobs in the order of their ends, and the ledger
has marks: this one, and all before it, had ended at that time. So a job is past at the later of its
planned time and its end; a loaded one at the later of its planned time and the first mark at or
after it (``bound``). Without a ledger the planned time alone counts. None is past before one that
ended earlier.

A job that is SET again or removed stays here as *stale* and is skipped. Each new chunk drops the
stale jobs of a few others, so the stale ones are never more than about a third of all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter

CHUNK_JOBS = 1000
TIDIED = 4  # chunks, for each new one
_LONG_AGO_NS = -(2**63)


class _Chunk(deque[bytes]):
    bound_ns = _LONG_AGO_NS  # none of these jobs is past before


class EndedJobs:
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
        # What has left since the batch began, which sets it; and the bound that it had.
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
        """To be called when the jobs are again as they were."""
        gone, self.gone = sorted(self.gone, key=_bound_of), []
        for bound_ns, jobs in groupby(reversed(gone), _bound_of):
            if held := _Chunk(job for _, job in jobs if self._holds(job)):
                held.reverse()
                held.bound_ns = bound_ns
                self._chunks.insert(0, held)


_bound_of = itemgetter(0)
