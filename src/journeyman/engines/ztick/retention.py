"""The jobs that have ended, in the order in which they did: what retention removes first.

    chunks   [a b c ... 1000] [d e f ... 1000] [g h]
              ^ first ended                       ^ last ended

The order of a job that ended here is the time of its end (see ``pack``); that of a loaded one is a
place in the log, a small number. The log has ended jobs in the order of their ends. So a job is
past at the later of its planned time and its end, and a loaded one at its planned time, but never
before one that ended earlier.

A job that is SET again or removed stays here as *stale* and is skipped. Each new chunk drops the
stale jobs of a few others, so the stale ones are never more than about a third of all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

CHUNK_JOBS = 1000
TIDIED = 4  # chunks, for each new one


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
        self._chunks = [deque(jobs[place : place + CHUNK_JOBS]) for place in places]
        self._cursor = 0
        self.gone: list[bytes] = []  # what has left since the batch began, which sets it

    def __len__(self) -> int:
        """How many jobs are in it, stale ones counted in."""
        return sum(map(len, self._chunks))

    def add(self, job: bytes) -> None:
        if not self._chunks or len(self._chunks[-1]) >= CHUNK_JOBS:
            self._tidy()
            self._chunks.append(deque())
        self._chunks[-1].append(job)

    def first_ns(self) -> int | None:
        """No job is past before this time. Maybe none is then: the first one may be stale."""
        return self._ended_ns(self._chunks[0][0]) if self._chunks else None

    def take(self, before_ns: int, limit: int) -> Iterator[bytes]:
        """The jobs that were past before this time, at most ``limit``, stale ones counted in."""
        for _ in range(limit):
            if not self._chunks or self._ended_ns(self._chunks[0][0]) > before_ns:
                return
            job = self._chunks[0].popleft()
            if not self._chunks[0]:
                del self._chunks[0]
            self.gone.append(job)
            if self._holds(job):
                yield job

    def _tidy(self) -> None:
        for _ in range(min(TIDIED, len(self._chunks))):
            self._cursor = (self._cursor + 1) % len(self._chunks)
            chunk, before = self._chunks[self._cursor], self._chunks[self._cursor - 1]
            kept = deque(filter(self._holds, chunk))
            if len(kept) < len(chunk):
                self.gone += [job for job in chunk if not self._holds(job)]
            if kept and (self._cursor == 0 or len(before) + len(kept) > CHUNK_JOBS):
                self._chunks[self._cursor] = kept
                continue
            if kept:
                before.extend(kept)
            del self._chunks[self._cursor]
            if not self._chunks:
                return
            self._cursor -= 1

    # -- batches ---------------------------------------------------------------------------------

    def undo_batch(self) -> None:
        """To be called when the jobs are again as they were."""
        gone, self.gone = self.gone, []
        if held := deque(filter(self._holds, gone)):
            self._chunks.insert(0, held)
