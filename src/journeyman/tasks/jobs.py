"""A job where it was sent: its state, its progress, and its result.

job = send_mail.send("a@b.c")       Job[str]
job.result(timeout=10)              the returned value; JobFailed, JobCancelled, TimeoutError
await job                           the same for asyncio, without a limit
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Generic, TypeVar, cast
from uuid import UUID

from journeyman.protocols.workq.replies import JobProgress
from journeyman.tasks.broker import Broker, JobEnding
from journeyman.tasks.durations import Seconds, seconds
from journeyman.tasks.envelope import CANCELLED, Codec, Failure
from journeyman.tasks.errors import JobCancelled, JobFailed

T = TypeVar("T")

WAIT_S = 3600.0  # how long one question to the server may wait


class Job(Generic[T]):
    """A job that was sent. Keep its ``id`` to find it later with ``app.job(id)``."""

    __slots__ = ("_broker", "_codec", "_ids", "_read", "flow", "is_new", "task")

    def __init__(
        self,
        broker: Broker,
        codec: Codec,
        *ids: UUID,
        task: str = "",
        is_new: bool = True,
        read: Callable[[Any], Any] | None = None,
    ) -> None:
        """``ids`` of a chain, to its last job; each is there once the one before has succeeded.

        ``is_new`` is False if an unfinished job with the same key was there already. ``read``
        makes the returned value of the JSON that it travelled as.
        """
        self._broker = broker
        self._codec = codec
        self._ids = ids
        self.task = task
        self.is_new = is_new
        self._read = read
        self.flow: tuple[UUID, ...] = ()  # all jobs of its flow, if it is the end of one

    @property
    def id(self) -> str:
        return str(self._ids[-1])

    @property
    def ids(self) -> tuple[UUID, ...]:
        """The ids of all jobs of its chain."""
        return self._ids

    def result(self, timeout: Seconds | None = None) -> T:
        """Wait for the result. Raises JobFailed, TimeoutError, NotFound (deleted or expired)."""
        end = _deadline(timeout)
        for job_id in self._ids:
            while True:
                left = WAIT_S if end is None else max(0.0, end - time.monotonic())
                ending = self._broker.ending(job_id, min(left, WAIT_S))
                if ending is not None:
                    break
                if end is not None and time.monotonic() >= end:
                    raise TimeoutError(f"job {job_id} is not done after {timeout} s")
            value = self._value(job_id, ending)
        return value

    async def aresult(self, timeout: Seconds | None = None) -> T:
        """``result`` for asyncio."""
        async with asyncio.timeout(None if timeout is None else seconds("timeout", timeout)):
            for job_id in self._ids:
                while (ending := await self._broker.aending(job_id, WAIT_S)) is None:
                    continue
                value = self._value(job_id, ending)
        return value

    def __await__(self) -> Generator[Any, None, T]:
        return self.aresult().__await__()

    def state(self) -> str:
        """``scheduled``, ``waiting`` (for the jobs of a group, or for those before it in a chain),
        ``ready``, ``running``, ``retrying``, ``done``, ``dead``, ``cancelled``, or ``gone``
        (deleted, expired).
        """
        for job_id in self._ids:
            found = self._in_chain(job_id, self._broker.state(job_id))
            if found != "done":
                break
        return found

    async def astate(self) -> str:
        """``state`` for asyncio."""
        for job_id in self._ids:
            found = self._in_chain(job_id, await self._broker.astate(job_id))
            if found != "done":
                break
        return found

    def _in_chain(self, job_id: UUID, state: str) -> str:
        """A job after the first is added when the one before ends: until then it is not there."""
        return "waiting" if state == "gone" and job_id != self._ids[0] else state

    def is_done(self) -> bool:
        """Return whether it succeeded, failed or was cancelled."""
        return _have_ended(self._broker.endings(self._ids))

    async def ais_done(self) -> bool:
        """``is_done`` for asyncio."""
        return _have_ended(await self._broker.aendings(self._ids))

    def progress(self) -> JobProgress:
        """How far it has come, as it says with ``jm.job().progress(...)``, and the last lines of
        its log; of a chain, of its last job. Raises NotFound."""
        return self._broker.progress(self._ids[-1])

    async def aprogress(self) -> JobProgress:
        """``progress`` for asyncio."""
        return await self._broker.aprogress(self._ids[-1])

    def delete(self) -> bool:
        """Delete the job in any state; for a chain, the first. Returns whether it existed."""
        return self._broker.delete(self._ids[0])

    async def adelete(self) -> bool:
        """``delete`` for asyncio."""
        return await self._broker.adelete(self._ids[0])

    def cancel(self) -> bool:
        """End the job unless it has ended: one that waits never runs, one that runs is stopped in
        its worker. Returns whether it was cancelled. The other jobs of its chain or flow are
        cancelled with it, as far as they have not ended."""
        cancelled = [self._broker.cancel(job_id) for job_id in self._to_cancel()]
        return any(cancelled)

    async def acancel(self) -> bool:
        """``cancel`` for asyncio."""
        cancelled = [await self._broker.acancel(job_id) for job_id in self._to_cancel()]
        return any(cancelled)

    def fork(self, step: str, number: int = 1) -> Job[T]:
        """Send the job once more, from the ``number``-th step of this name on: the new job is given
        what this one recorded before it. Of a chain, its last job. Raises NotFound, or Refused if
        the job has not recorded this step."""
        return self._forked(self._broker.fork(self._ids[-1], step, number))

    async def afork(self, step: str, number: int = 1) -> Job[T]:
        """``fork`` for asyncio."""
        return self._forked(await self._broker.afork(self._ids[-1], step, number))

    def _forked(self, new_id: UUID) -> Job[T]:
        return Job(self._broker, self._codec, new_id, task=self.task, read=self._read)

    def _to_cancel(self) -> Sequence[UUID]:
        """A chain from its beginning: the worker may have added the next job just before. A flow
        from its end: what follows a job that is cancelled first would fail instead."""
        return self.flow[::-1] or self._ids

    def _value(self, job_id: UUID, ending: JobEnding) -> T:
        if not ending.succeeded:
            failure = Failure.decode(ending.result)
            kind = JobCancelled if failure == CANCELLED else JobFailed
            raise kind(str(job_id), failure)
        value = value_of(self._codec, ending)
        is_last = job_id == self._ids[-1]
        return cast(T, value if self._read is None or not is_last else self._read(value))

    def __repr__(self) -> str:
        return f"Job({self.id}, {self.task})" if self.task else f"Job({self.id})"


def ended_values(jobs: Sequence[Job[T]]) -> list[T]:
    """Return the values of the first of these jobs, up to one that has not ended; or JobFailed."""
    ids = _only_ids(jobs)
    return _values(jobs, jobs[0]._broker.endings(ids)) if ids else []


async def aended_values(jobs: Sequence[Job[T]]) -> list[T]:
    """``ended_values`` for asyncio."""
    ids = _only_ids(jobs)
    return _values(jobs, await jobs[0]._broker.aendings(ids)) if ids else []


def _only_ids(jobs: Sequence[Job[T]]) -> list[UUID]:
    """None if one of them is a chain: its jobs come one after another."""
    return [] if any(len(job._ids) > 1 for job in jobs) else [job._ids[0] for job in jobs]


def _values(jobs: Sequence[Job[T]], endings: Sequence[JobEnding | None]) -> list[T]:
    found = []
    for job, ending in zip(jobs, endings, strict=True):
        if ending is None:
            break
        found.append(job._value(job._ids[0], ending))
    return found


def _have_ended(endings: Sequence[JobEnding | None]) -> bool:
    """Return whether a chain is over: its last job has ended, or an earlier one has failed."""
    for ending in endings:
        if ending is None or not ending.succeeded:
            return ending is not None
    return True


def ended_value(codec: Codec, ending: JobEnding | None) -> tuple[Any, Failure | None]:
    """Return how a job ended. None: it was deleted, or its TTL is over."""
    if ending is None:
        return None, Failure("NotFound", "the job was deleted, or its ttl has ended")
    if not ending.succeeded:
        return None, Failure.decode(ending.result)
    return value_of(codec, ending), None


def value_of(codec: Codec, ending: JobEnding) -> Any:
    """The value returned by a job that succeeded."""
    return codec.loads(ending.result) if ending.result else None


def _deadline(timeout: Seconds | None) -> float | None:
    return None if timeout is None else time.monotonic() + seconds("timeout", timeout)
