"""Jobs go to a Journeyman server: ``ServerBroker``, over the work queue clients.

    journeyman://[token@]host[:port]     all that a URL can say: docs/client.md

Clients connect at the first job, and may be shared by threads, tasks and forked processes.

Sends of several threads travel together (``Gathering``): one request and one reply for those that
wait.

    thread 1 --job--> on its way                     up to LANES threads go at once, alone
    thread 2 --job--> waits ---+ when 1 is answered, 2 has the turn, and takes 3 and 4 along
    thread 3 --job--> waits    |
    thread 4 --job--> waits ---+

The server parses, records and syncs a batch at once, so many senders cost it little more than one.
There is no thread for this and no delay. A batch is bounded; what breaks it is raised in each
thread that has a job in it. The turn goes to the thread that waits longest, so none is overtaken.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from journeyman.client.async_clients import AsyncSchedule, AsyncWorkQueue
from journeyman.client.errors import ConnectionFailed, NotFound, Refused, TimedOut
from journeyman.client.service import ServerUrl, parse_url
from journeyman.client.workq import WorkQueue
from journeyman.client.workq.calls import NewJob, add_requests
from journeyman.client.workq.lines import JobInfo, Result
from journeyman.protocols.workq.commands import Complaint
from journeyman.protocols.workq.replies import JobProgress
from journeyman.tasks.broker import InspectedJob, JobEnding, Order, state_word
from journeyman.tasks.options import Options, QueueLimits
from journeyman.tasks.task import Recurring
from journeyman.units import MS_PER_S

J = TypeVar("J")
R = TypeVar("R")

LANES = 4  # batches that are under way at a time
MAX_JOBS = 64  # jobs in a batch


class _Waiting(Generic[J, R]):
    """A job of a thread, and what came of it."""

    __slots__ = ("error", "has_turn", "job", "outcome", "woken")

    def __init__(self, job: J) -> None:
        self.job = job
        self.has_turn = False  # its thread is to send it; else it was sent along
        self.outcome: R | None = None
        self.error: BaseException | None = None
        self.woken = threading.Lock()  # free when the wait is over
        self.woken.acquire()


class Gathering(Generic[J, R]):
    """See the module. ``send`` returns the outcome of each of these jobs, or raises."""

    def __init__(self, send: Callable[[Sequence[J]], Sequence[R]]) -> None:
        self._send = send
        self._start_over()

    def _start_over(self) -> None:
        """A forked child has none of the threads that wait."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._turns = 0  # threads that have one
        self._waiting: deque[_Waiting[J, R]] = deque()  # without a turn, and not on their way

    def add(self, job: J) -> R:
        """Send this job, perhaps together with those of other threads."""
        if self._process != os.getpid():
            self._start_over()
        with self._lock:
            if self._turns < LANES:
                self._turns += 1
                waiting = None
            else:
                waiting = _Waiting[J, R](job)
                self._waiting.append(waiting)
        if waiting is not None:
            self._wait(waiting)
            if not waiting.has_turn:
                if waiting.error is not None:
                    raise waiting.error
                return waiting.outcome  # type: ignore[return-value]
        return self._send_with_those_that_wait(job)

    def _wait(self, own: _Waiting[J, R]) -> None:
        try:
            own.woken.acquire()
        except BaseException:  # Ctrl-C: leave, and let the others go on
            with self._lock:
                if own in self._waiting:
                    self._waiting.remove(own)
            if own.has_turn:
                self._pass_on()
            raise

    def _send_with_those_that_wait(self, job: J) -> R:
        along: list[_Waiting[J, R]] = []
        if self._waiting:
            with self._lock:
                count = min(len(self._waiting), MAX_JOBS - 1)
                along = [self._waiting.popleft() for _ in range(count)]
        try:
            mine, *theirs = self._send([job, *(each.job for each in along)])
        except BaseException as error:
            for each in along:
                each.error = error
            raise
        else:
            for each, outcome in zip(along, theirs, strict=True):
                each.outcome = outcome
            return mine
        finally:
            self._pass_on()
            for each in along:
                each.woken.release()

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                following = self._waiting.popleft()
                following.has_turn = True
                following.woken.release()
            else:
                self._turns -= 1


T = TypeVar("T")

AGAIN_S = 0.1  # between two attempts to reach a server
MAX_WAITS = 1_000  # for results, at the same time
MAX_HEADS = 1_000  # options whose words are kept


class ServerBroker:
    """See the module."""

    def __init__(self, url: str, patience_s: float = 0.0) -> None:
        self.url = url
        self._patience_s = patience_s
        self.address: ServerUrl = parse_url(url)
        self._queue = WorkQueue.from_url(url)
        self._async_queue = AsyncWorkQueue.from_url(url)
        # A wait for a result keeps its connection: it must not keep others from sending.
        self._waiting: WorkQueue = self._for_waits(WorkQueue)
        self._async_waiting: AsyncWorkQueue = self._for_waits(AsyncWorkQueue)
        self._gathering: Gathering[bytes, Refused | None] = Gathering(self._add_all)
        self._heads: dict[int, tuple[Options, bytes, bytes]] = {}
        self._salt: bytes | None = None if self.address.token else b""

    def salt(self) -> bytes:
        """Asked for once: it is the same as long as the data of the server and the token are."""
        if self._salt is None:
            self._salt = self._patiently(self._queue.salt)
        return self._salt

    async def asalt(self) -> bytes:
        if self._salt is None:
            self._salt = await self._async_patiently(self._async_queue.salt)
        return self._salt

    def _for_waits(self, kind: type[Any]) -> Any:
        found = self.address
        host, port = found.place("work_queue")
        return kind(
            host,
            port,
            token=found.token,
            tls=found.tls_setting(),
            timeout_s=found.timeout_s,
            connections=MAX_WAITS,
        )

    def _add_all(self, requests: Sequence[bytes]) -> list[Refused | None]:
        return self._queue.hold(add_requests(requests))

    def add(self, order: Order) -> bool:
        request = self._request(order)
        refused = self._patiently(lambda: self._gathering.add(request))
        return refused is None or _is_there(refused)

    def _patiently(self, act: Callable[[], T]) -> T:
        """Again and again until the server is there, or the patience ends. A job that is there
        already, because its reply was lost, is not added twice: its id is the same. If a unique
        one has even ended meanwhile, its payload is the same (``Envelope.send_id``)."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return act()
            except ConnectionFailed as error:
                if time.monotonic() >= until or isinstance(error, TimedOut):
                    raise error.with_traceback(None) from None  # one short error
            time.sleep(AGAIN_S)

    def _request(self, order: Order) -> bytes:
        """Return the command as ``NewJob.request`` does; of a plain job all but id and payload is
        known already."""
        options = order.options
        is_plain = order.at is None and not order.limit_key and not order.after
        if not is_plain or options.unique is not None or order.has_followers:
            return self._new_job(order).request()
        _, head, flags = self._heads.get(id(options)) or self._head_of(order)
        payload = order.payload
        return b"add %b%b%d%b\r\n%b\r\n" % (
            str(order.job_id).encode(), head, len(payload), flags, payload,
        )  # fmt: skip

    def _head_of(self, order: Order) -> tuple[Options, bytes, bytes]:
        """Return what stands before and after the size; kept with its options, so that their id
        stays.
        """
        line = self._new_job(replace(order, payload=b"")).request().removesuffix(b"\r\n\r\n")
        _add, _job_id, name, ttr, ttl, _size, *flags = line.split(b" ")
        words = b" %b %b %b " % (name, ttr, ttl), b"".join(b" " + flag for flag in flags)
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        return self._heads.setdefault(id(order.options), (order.options, *words))

    def _fields(self, order: Order) -> dict[str, Any]:
        options = order.options
        return {
            "job_id": order.job_id,
            "ttr_ms": options.lease_ms,
            "ttl_ms": options.ttl_ms,
            "priority": options.priority,
            "max_fails": options.max_fails,
            "time": order.at,
            "key": order.limit_key,
            "replace_finished": options.unique is not None,
            "unique_ms": options.unique_ms,
            "unless_same": order.unless_same,
            "replace_unstarted": order.moves,
            "unless": order.unless,
            "after": order.after,
            "even_failed": order.even_failed,
            # Without tokens there is nothing to keep about the sender.
            "has_followers": order.has_followers and self.address.token is not None,
        }

    def _new_job(self, order: Order) -> NewJob:
        return NewJob(name=order.options.queue, payload=order.payload, **self._fields(order))

    async def aadd(self, order: Order) -> bool:
        try:
            await self._async_patiently(
                lambda: self._async_queue.add(
                    order.options.queue, order.payload, **self._fields(order)
                )
            )
        except Refused as refused:
            return _is_there(refused)
        return True

    async def _async_patiently(self, act: Callable[[], Awaitable[T]]) -> T:
        """Do it patiently in asyncio."""
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return await act()
            except ConnectionFailed as error:
                if time.monotonic() >= until or isinstance(error, TimedOut):
                    raise error.with_traceback(None) from None  # one short error
            await asyncio.sleep(AGAIN_S)

    def add_many(self, orders: Sequence[Order]) -> None:
        self._patiently(lambda: _check(self._queue.add_many(map(self._new_job, orders))))

    async def aadd_many(self, orders: Sequence[Order]) -> None:
        async def act() -> None:
            _check([each async for each in self._async_queue.add_many(map(self._new_job, orders))])

        await self._async_patiently(act)

    def ending(self, job_id: UUID, wait_s: float) -> JobEnding | None:
        client = self._waiting if wait_s > 0 else self._queue
        with _explaining_unknown(job_id):
            return _ending(client.result(job_id, wait_ms=round(wait_s * MS_PER_S)))

    async def aending(self, job_id: UUID, wait_s: float) -> JobEnding | None:
        client = self._async_waiting if wait_s > 0 else self._async_queue
        with _explaining_unknown(job_id):
            return _ending(await client.result(job_id, wait_ms=round(wait_s * MS_PER_S)))

    def endings(self, job_ids: Sequence[UUID]) -> list[JobEnding | None]:
        return list(map(_ending, self._queue.results(job_ids)))

    async def aendings(self, job_ids: Sequence[UUID]) -> list[JobEnding | None]:
        return list(map(_ending, await self._async_queue.results(job_ids)))

    def state(self, job_id: UUID) -> str:
        return _state(self._queue.inspect_job(job_id))

    async def astate(self, job_id: UUID) -> str:
        return _state(await self._async_queue.inspect_job(job_id))

    def facts(self, job_id: UUID) -> InspectedJob | None:
        job = self._queue.inspect_job(job_id)
        if job is None:
            return None
        attempts = job.attempts - job.given_back
        facts = job.name, job.payload, _state(job), job.priority, attempts
        return InspectedJob(*facts, job.created, job.time, job.worker)

    async def set_limits(self, limits: Mapping[str, QueueLimits]) -> None:
        for queue, each in limits.items():
            await self._async_queue.limit(
                queue,
                rate=str(each.rate or ""),
                concurrency=each.concurrency,
                key_rate=str(each.key_rate or ""),
                key_concurrency=each.key_concurrency,
                fair=each.fair,
                weights=dict(each.weights),
            )

    async def set_timetables(self, recurring: Iterable[Recurring]) -> None:
        """Setting the same again changes nothing."""
        schedule = AsyncSchedule.from_url(self.url)
        try:
            for each in recurring:
                runner = each.runner(await self.asalt())
                await schedule.set_timetable(each.task.name, runner=runner, **each.fields)
        finally:
            await schedule.close()

    def delete(self, job_id: UUID) -> bool:
        return self._queue.delete(job_id)

    async def adelete(self, job_id: UUID) -> bool:
        return await self._async_queue.delete(job_id)

    def cancel(self, job_id: UUID) -> bool:
        with suppress(NotFound):
            return self._queue.cancel(job_id)
        return False

    async def acancel(self, job_id: UUID) -> bool:
        with suppress(NotFound):
            return await self._async_queue.cancel(job_id)
        return False

    def emit(self, event: str, value: bytes) -> None:
        self._patiently(lambda: self._queue.emit(event, value))

    async def aemit(self, event: str, value: bytes) -> None:
        await self._async_patiently(lambda: self._async_queue.emit(event, value))

    def fork(self, job_id: UUID, step: str, number: int) -> UUID:
        new_id = uuid4()  # the same when it is sent again
        with _explaining_unknown(job_id):
            return self._patiently(lambda: self._queue.fork(job_id, step, number, new_id=new_id))

    async def afork(self, job_id: UUID, step: str, number: int) -> UUID:
        new_id = uuid4()
        with _explaining_unknown(job_id):
            return await self._async_patiently(
                lambda: self._async_queue.fork(job_id, step, number, new_id=new_id)
            )

    def progress(self, job_id: UUID) -> JobProgress:
        with _explaining_unknown(job_id):
            return self._queue.progress(job_id)

    async def aprogress(self, job_id: UUID) -> JobProgress:
        with _explaining_unknown(job_id):
            return await self._async_queue.progress(job_id)

    def close(self) -> None:
        self._queue.close()
        self._waiting.close()

    async def aclose(self) -> None:
        self.close()
        await self._async_queue.close()
        await self._async_waiting.close()


def _check(outcomes: Iterable[tuple[NewJob, Refused | None]]) -> None:
    for _, refused in outcomes:
        if refused is not None:
            _is_there(refused)


def _is_there(refused: Refused) -> bool:
    """False: the job is there already. Any other refusal is raised."""
    if refused.reason != Complaint.DUPLICATE_JOB:
        raise refused
    return False


@contextmanager
def _explaining_unknown(job_id: UUID) -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        why = f"no job {job_id}: it was deleted, its ttl has passed, or it was never sent here"
        raise NotFound(error.code, why) from None


def _state(job: JobInfo | None) -> str:
    if job is None:
        return "gone"
    now = datetime.now(UTC)
    waits_for = job.after or len(job.wait)
    return state_word(job.state, waits_for, job.time, now, is_cancelled=job.is_cancelled)


def _ending(result: Result | None) -> JobEnding | None:
    return None if result is None else JobEnding(result.succeeded, result.result)
