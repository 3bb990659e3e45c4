"""The worker: leases jobs, runs them, reports how they ended; loses none.

    server --lease link--> ready --at most `concurrency`--> running --outcome--> reports
       ^                                                                            |
       +------------- report link: complete, fail, touch; until acknowledged -------+

- A lease waits at the server: an idle worker sends nothing.
- While a job is in hand, the worker renews its lease (touch) three times per lease. If the worker
  dies or hangs, the lease ends and the job goes to another worker.
- A report is sent again on a new connection until the server has acknowledged it.
- Short jobs are leased ahead, as many as start within ``AHEAD_S``; long ones never are.
- stop() ends leasing at once; what is in hand is finished and reported.
- A job that a client cancels is interrupted, and its outcome is dropped (orders.py).

Sync functions run in threads (``threads``) or on the event loop (``asyncio``); async ones always on
the loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Literal, NamedTuple
from uuid import UUID

from journeyman.client import errors as client_errors
from journeyman.errors import UsageError
from journeyman.protocols.workq.commands import MAX_LEASED, Complaint
from journeyman.tasks import outcomes, running
from journeyman.tasks.app import App
from journeyman.tasks.batches import BatchTask, check_queues
from journeyman.tasks.broker import Relay
from journeyman.tasks.envelope import Failure
from journeyman.tasks.errors import JobCancelled, JobTimeout
from journeyman.tasks.options import is_name, key_name
from journeyman.tasks.server import ServerBroker
from journeyman.tasks.steps import RAISED, StepBook
from journeyman.tasks.worker.batches import BatchLease
from journeyman.tasks.worker.held import Held
from journeyman.tasks.worker.journal import WorkerJournal
from journeyman.tasks.worker.link import AGAIN_S, LinkRefused, NothingReady, Reports, WorkerLink
from journeyman.tasks.worker.notes import JobWords
from journeyman.tasks.worker.orders import facts_of, follow_orders, memory_bytes
from journeyman.tasks.worker.threads import ThreadPool, Work

logger = logging.getLogger("journeyman.worker")

Kind = Literal["threads", "asyncio"]

WAIT_MS = 3_600_000  # how long one lease may wait
AHEAD_S = 0.05  # jobs expected to start within this time are leased ahead
MAX_AHEAD = 256
PROGRAMS_S = 0.5  # a thread that was interrupted has so long to end the programs that it started
STUCK_S = 5.0  # after its timeout a thread has so long to react
FIRST_PAUSE_S, LAST_PAUSE_S = 0.1, 5.0  # between attempts to connect
RELAY_S = 1.0  # between two looks into an outbox that has nothing to send
BURST_WAIT_S = 10.0  # for a server that cannot be reached; without burst: for as long as it takes
_PASSING = ("SERVER-ERROR", "internal")  # codes of refusals: of the work queue, of the schedule
_SHOWN_TASKS = 30  # at the start
MAX_UNKNOWN = 1_000  # tasks that get a warning: anyone can send any name


class QueueShare(NamedTuple):
    """A queue, and how often it is asked first compared with the others."""

    name: str
    weight: int = 1

    @classmethod
    def parse(cls, text: str) -> QueueShare:
        """``mail`` or ``mail:3``. Raises UsageError."""
        name, colon, weight = text.partition(":")
        if not is_name(name) or (colon and not (weight.isdecimal() and int(weight))):
            raise UsageError(f"not a queue: {text!r}; write NAME or NAME:WEIGHT, like mail:3")
        return cls(name, int(weight or 1))


class Worker:
    """See the module. ``await worker.run()`` returns after ``stop()``, or when a burst is done."""

    def __init__(
        self,
        app: App,
        queues: Sequence[QueueShare] = (),
        *,
        concurrency: int = 8,
        kind: Kind = "threads",
        burst: bool = False,
        name: str = "",
        on_outcome: Callable[[running.Prepared, outcomes.Outcome, float], None] | None = None,
        max_jobs: int = 0,
        max_memory: int = 0,
    ) -> None:
        """It stops by itself after so many jobs, or with so many bytes of memory; 0: never."""
        broker = app.broker
        if not isinstance(broker, ServerBroker):
            raise UsageError("this app runs in memory: call run_all() instead of a worker")
        self._app = app
        self._broker = broker
        self._queues = list(queues) or [QueueShare(n) for n in sorted(_queues_of(app))]
        check_queues(list(app.tasks.values()))
        served = {queue.name for queue in self._queues}
        batches = [task for task in app.tasks.values() if isinstance(task, BatchTask)]
        self._batch_tasks = [task for task in batches if task.defaults.queue in served]
        of_batches = {task.defaults.queue for task in self._batch_tasks}
        self._leased_alone = [queue for queue in self._queues if queue.name not in of_batches]
        self._concurrency = concurrency
        self._kind = kind
        self._burst = burst
        self._on_outcome = on_outcome
        self.name = key_name(name or f"{socket.gethostname()}-{os.getpid()}")
        self._held: dict[str, Held] = {}
        self._ready: deque[Held] = deque()
        self._running = 0
        self._mean_s = 1.0  # mean run time of recent jobs; at 1.0 none is leased ahead
        self._pool = ThreadPool(concurrency)
        # By threads.
        self._ended: deque[tuple[Held, outcomes.Outcome | outcomes.BatchEnded]] = deque()
        self._lease_link: WorkerLink | None = None
        self._batch_links: list[WorkerLink] = []
        self._slot_waiters: deque[asyncio.Future[None]] = deque()
        self._in_batches = self._batches = 0  # jobs in hand that are members; batches with a slot
        self._was_answered = False  # a lease
        self._unknown: set[str] = set()  # tasks that were given back
        self._stopping = False
        self._changed = asyncio.Event()
        self._max_jobs, self._max_memory = max_jobs, max_memory
        self._done = 0
        self._quiet_until = 0.0  # a line about the connection has just been written

    # -- life --------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Raises AccessDenied if the server refuses the token; in a burst also CannotConnect."""
        self._loop = asyncio.get_running_loop()
        has_token = self._broker.address.token is not None
        self._reports = Reports(lambda: self._connect(self._has_reports), has_token=has_token)
        names = " ".join(f"{q.name}:{q.weight}" if q.weight > 1 else q.name for q in self._queues)
        tasks = ", ".join(list(self._app.tasks)[:_SHOWN_TASKS])
        tasks += ", ..." if len(self._app.tasks) > _SHOWN_TASKS else ""
        logger.info(
            "worker %s: queues %s, %d at a time; tasks: %s",
            self.name, names, self._concurrency, tasks,
        )  # fmt: skip
        await self._set_limits()
        background = [
            self._loop.create_task(self._renew_leases()),
            self._loop.create_task(self._follow_orders()),
        ]
        background += [self._loop.create_task(self._relay(each)) for each in self._app.outboxes]
        if self._app.recurring:
            background.append(self._loop.create_task(self._set_timetables()))
        leases = [
            BatchLease(self, task, wait_ms=WAIT_MS, is_burst=self._burst).run()
            for task in self._batch_tasks
        ]
        leases += [self._lease_jobs()] if self._leased_alone else []
        leasing = [self._loop.create_task(each) for each in leases]
        background += leasing
        try:
            await asyncio.gather(*leasing)
            while self._held or self._reports.is_busy:
                self._reports.check()
                await self._change(0.5)
        finally:
            for each in background:
                each.cancel()
            self._reports.close()
            self._pool.close()
            for link in self._lease_links:
                link.close()
            await self._broker.aclose()
            await asyncio.sleep(0)  # transports close in the next turn of the loop
        logger.info("worker %s: stopped", self.name)

    def stop(self) -> None:
        """Lease nothing more. From the thread of the event loop."""
        if self._stopping:
            return
        self._stopping = True
        logger.info("worker %s: stopping, %d jobs in hand", self.name, len(self._held))
        for link in self._lease_links:
            link.end_input()
        self._changed.set()

    @property
    def _lease_links(self) -> list[WorkerLink]:
        return [*self._batch_links, *([self._lease_link] if self._lease_link else [])]

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    @property
    def is_idle(self) -> bool:
        """True if no job is in hand and every report was acknowledged."""
        return not self._held and not self._reports.is_busy

    @property
    def in_hand(self) -> int:
        return len(self._held)

    # -- leasing -----------------------------------------------------------------------------------

    async def _lease_jobs(self) -> None:
        while not self._stopping:
            room = self._room()
            if room <= 0:
                await self._change()
                continue
            link = self._lease_link or await self._connect(lambda: not self._stopping)
            self._lease_link = link
            if link is None:
                return
            try:
                await self._lease(link, room)
            except ConnectionError as error:
                if not self._stopping:
                    logger.warning("connection lost: %s; connecting again", error)
                link.close()
                self._lease_link = None
            except NothingReady:
                self._was_answered = True
                if self._burst and not self._stopping:
                    if self.is_idle:
                        return
                    await self._change(0.5)
            except LinkRefused as error:
                if not str(error).startswith("SERVER-ERROR"):
                    raise
                logger.warning("the server cannot lease (%s); trying again", error)
                await self._change(AGAIN_S)
            except client_errors.BadAnswer as error:
                if not self._was_answered:  # the port is wrong, and stays so
                    raise
                logger.warning("%s; connecting again", error)
                link.close()
                self._lease_link = None
                await self._change(AGAIN_S)

    async def _lease(self, link: WorkerLink, room: int) -> None:
        names = [queue.name for queue in self._leased_alone]
        weights = [queue.weight for queue in self._leased_alone]
        wait_ms = 0 if self._burst else WAIT_MS
        if len(set(weights)) > 1:
            preferred = random.choices(names, weights)
            try:
                self._take(await link.ask(self._lease_request(preferred, room, 0), 3))
                return
            except NothingReady:
                pass
        self._take(await link.ask(self._lease_request(names, room, wait_ms), 3))

    def _lease_request(self, names: Sequence[str], room: int, wait_ms: int) -> bytes:
        most = min(room, MAX_LEASED)
        words = f"lease {' '.join(names)} {wait_ms} -max={most} -worker={self.name}\r\n"
        return words.encode()

    def _room(self) -> int:
        """How many jobs to lease now. With enough in hand: none, until half of them are done, so
        that one lease, which costs the server a sync, brings many."""
        ahead = min(int(self._concurrency * AHEAD_S / self._mean_s), MAX_AHEAD)
        most = self._concurrency + ahead
        in_hand = len(self._held) - self._in_batches + self._batches
        return 0 if in_hand >= self._concurrency and in_hand > most // 2 else most - in_hand

    def _take(self, rows: Sequence[Any]) -> None:
        self._ready += self._hold(rows)
        self._dispatch()

    def _hold(self, rows: Sequence[Any]) -> list[Held]:
        """The jobs of a lease, whose leases are renewed from now on."""
        self._was_answered = True
        now_ns = time.monotonic_ns()
        leased: list[Held] = []
        for row in rows:
            job_id, queue, ttr = row.words[:3]
            numbers = map(int, row.words[4:8])  # attempt, fails, max_fails, given_back
            delivery = running.Delivery(job_id, queue, row.payload, int(ttr), *numbers)
            held = Held(running.prepare(self._app, delivery), now_ns)
            held.prepared.current.touch = lambda job_id=job_id: self._touch_soon(job_id)
            held.words = JobWords(self._loop, job_id, self._reports.say)
            held.prepared.current.note = held.words.note
            journal = WorkerJournal(
                self._loop, self._reports, job_id, delivery.attempt, held.words.flush
            )
            held.prepared.current.steps = StepBook(self._app, journal, job_id)
            if (before := self._held.get(job_id)) is not None:
                before.prepared.current.is_lost = True  # its lease ran out while we had it
            self._held[job_id] = held
            leased.append(held)
        self._changed.set()  # there are leases to renew
        return leased

    # -- batches -----------------------------------------------------------------------------------

    async def open_lease_link(self) -> WorkerLink | None:
        """Another connection for leases. None: the worker stops."""
        link = await self._connect(lambda: not self._stopping)
        self._batch_links = [each for each in self._batch_links if not each.lost.done()]
        if link is not None:
            self._batch_links.append(link)
        return link

    async def lease(self, link: WorkerLink, queue: str, most: int, wait_ms: int) -> Sequence[Held]:
        """Jobs of the queue of a batch task. Raises NothingReady, LinkRefused, ConnectionError."""
        leased = self._hold(await link.ask(self._lease_request([queue], most, wait_ms), 3))
        for held in leased:
            held.is_member = True
        self._in_batches += len(leased)
        return leased

    async def take_slot(self) -> None:
        """Wait for a slot; the next one that is free goes to the batch that waits longest."""
        if self._running < self._concurrency:
            self._running += 1
        else:
            free = self._loop.create_future()
            self._slot_waiters.append(free)
            await free
        self._batches += 1

    def release_slot(self) -> None:
        """Give a slot to a batch that waits, or back."""
        while self._slot_waiters:
            free = self._slot_waiters.popleft()
            if not free.done():
                free.set_result(None)
                return
        self._running -= 1

    async def complete_arguments(self, held_job: Held) -> None:
        """Fetch the results that its first argument is made of."""
        if held_job.prepared.envelope.gather:
            try:
                held_job.prepared = await self._with_results(held_job.prepared)
            except client_errors.ClientError as error:
                held_job.prepared = held_job.prepared._replace(task=None, problem=error)

    def run_alone(self, held_job: Held) -> None:
        """A job of another task, or one that cannot be run."""
        held_job.is_member = False
        self._in_batches -= 1
        self._ready.append(held_job)
        self._dispatch()

    def run_batch(self, members: Sequence[Held]) -> None:
        """Run the batch in the slot that was taken."""
        wanted = [held for held in members if not held.is_cancelled]
        for held in members:
            if held.is_cancelled:
                self._let_go(held)
                logger.info("cancelled %s id=%s before it started", *_named(held.prepared))
        if not wanted:
            self._batches -= 1
            self.release_slot()
            return
        batch = Held(running.batch_of([held.prepared for held in wanted]), time.monotonic_ns())
        batch.members, batch.started = tuple(wanted), time.perf_counter()
        self._start(batch)

    async def pause(self, at_most_s: float) -> None:
        """Wait until a job came or ended, but at most so long."""
        await self._change(at_most_s)

    # -- running -----------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while self._ready and self._running < self._concurrency:
            held = self._ready.popleft()
            self._running += 1
            held.started = time.perf_counter()
            if held.prepared.envelope.gather:
                held.running = self._loop.create_task(self._gather(held))
            else:
                self._start(held)

    def _start(self, held_job: Held) -> None:
        prepared = held_job.prepared
        task = prepared.task
        if task is None:
            assert prepared.problem is not None
            if isinstance(prepared.problem, running.UnknownTask):
                outcome = running.given_back(prepared, prepared.problem)
            else:
                outcome = running.failed(prepared, prepared.problem)
            self._loop.call_soon(self._end, held_job, outcome)
        elif task.is_async or self._app.middleware:
            held_job.running = self._loop.create_task(self._run_on_loop(held_job))
        elif self._kind == "asyncio":
            # Not here: connections and leases have their turn between two jobs.
            self._loop.call_soon(lambda: self._end(held_job, self._attempt(prepared)))
        else:
            self._run_in_thread(
                held_job, lambda value, error: self._thread_ended(held_job, value, error)
            )

    async def _gather(self, held_job: Held) -> None:
        """Fetch the results of the group that the job follows, then start it."""
        prepared = held_job.prepared
        try:
            held_job.prepared = await self._with_results(prepared)
        except (client_errors.ClientError, asyncio.CancelledError) as error:
            self._end(held_job, running.failed(prepared, error))
            return
        held_job.running = None
        self._start(held_job)

    async def _with_results(self, prepared: running.Prepared) -> running.Prepared:
        """Raises ClientError."""
        ids = [UUID(each) for each in prepared.envelope.gather]
        return running.gathered(self._app, prepared, await self._broker.aendings(ids))

    def _attempt(self, prepared: running.Prepared) -> outcomes.Outcome | outcomes.BatchEnded:
        """A sync function, here and now."""
        try:
            value = running.call_here(prepared)
        except RAISED as error:
            return running.end_attempt(self._app, prepared, None, error)
        return running.end_attempt(self._app, prepared, value)

    def _run_in_thread(
        self, held_job: Held, ended: Callable[[Any, BaseException | None], None]
    ) -> None:
        context = copy_context()  # has what middleware set, a span for example
        held_job.work = Work(lambda: context.run(running.call_here, held_job.prepared), ended)
        limit = held_job.prepared.options.timeout_s
        if limit is not None:
            held_job.timer = self._loop.call_later(limit, self._time_out, held_job)
        self._pool.submit(held_job.work)

    def _thread_ended(self, held_job: Held, value: Any, error: BaseException | None) -> None:
        """Note, in the thread, that its work has ended: the loop is woken once for all that end
        meanwhile."""
        prepared = held_job.prepared
        explained = None if error is None else _explained(prepared, error)
        outcome = running.end_attempt(self._app, prepared, value, explained)
        is_first = not self._ended
        self._ended.append((held_job, outcome))
        if is_first:
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        while self._ended:
            self._end(*self._ended.popleft())

    def _time_out(self, held_job: Held) -> None:
        self._interrupt(held_job, JobTimeout)

    def _interrupt(self, held_job: Held, error: type[JobTimeout | JobCancelled]) -> None:
        assert held_job.work is not None
        self._pool.interrupt(held_job.work, error)
        held_job.timer = self._loop.call_later(PROGRAMS_S, self._end_programs, held_job)

    def _end_programs(self, held_job: Held) -> None:
        """The thread runs no Python code; it may wait for a program."""
        assert held_job.work is not None
        self._pool.signal_programs(held_job.work, signal.SIGTERM)
        held_job.timer = self._loop.call_later(STUCK_S - PROGRAMS_S, self._give_up, held_job)

    def _give_up(self, held_job: Held) -> None:
        assert held_job.work is not None
        self._pool.signal_programs(held_job.work, signal.SIGKILL)
        self._pool.abandon(held_job.work)
        limit = held_job.prepared.options.timeout_s
        late = "was cancelled" if held_job.is_cancelled else f"took longer than {limit:g} s"
        logger.warning("%s %s: %s, and its thread does not react", *_named(held_job.prepared), late)
        error = JobTimeout(f"{late}, and its thread does not react")
        self._end(held_job, running.end_attempt(self._app, held_job.prepared, None, error))

    async def _follow_orders(self) -> None:
        names = [queue.name for queue in self._queues]
        with suppress(client_errors.ClientError):  # the other connections say what is wrong
            await follow_orders(
                lambda: self._connect(lambda: True),
                self.name,
                lambda: facts_of(names, self._concurrency),
                self._cancel,
            )

    def _cancel(self, job_id: str) -> None:
        """A client has ended the job."""
        held = self._held.get(job_id)
        if held is None or held.is_cancelled:
            return
        held.is_cancelled = held.prepared.current.is_lost = True
        if held in self._ready:
            self._ready.remove(held)
            del self._held[job_id]
            logger.info("cancelled %s id=%s before it started", *_named(held.prepared))
            self._changed.set()
        if held.running is not None:
            held.running.cancel()
        if held.work is not None:
            if held.timer is not None:
                held.timer.cancel()
            self._interrupt(held, JobCancelled)

    async def _run_on_loop(self, held_job: Held) -> None:
        prepared = held_job.prepared
        task = prepared.task
        assert task is not None
        in_loop = task.is_async or self._kind == "asyncio"
        call = (
            (lambda: running.await_here(prepared))
            if in_loop
            else (lambda: self._in_thread(held_job))
        )
        limit = task.defaults.timeout_s if in_loop else None  # threads are interrupted
        try:
            async with asyncio.timeout(limit):
                value = await running.call_around(self._app, prepared, call)
            outcome = running.end_attempt(self._app, prepared, value)
        except TimeoutError as error:
            late = JobTimeout() if limit is not None else error
            outcome = running.end_attempt(self._app, prepared, None, _explained(prepared, late))
        except RAISED as error:
            outcome = running.end_attempt(self._app, prepared, None, _explained(prepared, error))
        except asyncio.CancelledError:
            outcome = running.end_attempt(self._app, prepared, None, RuntimeError("cancelled"))
        self._end(held_job, outcome)

    async def _in_thread(self, held_job: Held) -> Any:
        """The function of a task whose middleware runs on the loop."""
        done: asyncio.Future[tuple[Any, BaseException | None]] = self._loop.create_future()

        def set_ended(value: Any, error: BaseException | None) -> None:
            if not done.done():
                done.set_result((value, error))  # not set_exception, which refuses StopIteration

        def ended(value: Any, error: BaseException | None) -> None:
            self._loop.call_soon_threadsafe(set_ended, value, error)

        self._run_in_thread(held_job, ended)
        value, error = await done
        if error is not None:
            raise error
        return value

    # -- outcomes ----------------------------------------------------------------------------------

    def _end(self, held_job: Held, outcome: outcomes.Outcome | outcomes.BatchEnded) -> None:
        if held_job.is_over:  # a thread that was given up came back
            return
        held_job.is_over = True
        if held_job.timer is not None:
            held_job.timer.cancel()
        took_s = time.perf_counter() - held_job.started
        if isinstance(outcome, outcomes.BatchEnded):
            self._batches -= 1
            for member, own in zip(held_job.members, outcome.outcomes, strict=True):
                self._end_job(member, own, took_s)
        else:
            self._mean_s += (took_s - self._mean_s) * 0.2
            self._end_job(held_job, outcome, took_s)
        self.release_slot()
        self._dispatch()
        self._changed.set()

    def _let_go(self, held_job: Held) -> None:
        if self._held.get(held_job.job_id) is held_job:
            del self._held[held_job.job_id]
        self._in_batches -= held_job.is_member

    def _end_job(self, held_job: Held, outcome: outcomes.Outcome, took_s: float) -> None:
        prepared = held_job.prepared
        self._let_go(held_job)
        if isinstance(outcome, outcomes.AttemptParked):
            held_job.words = None  # later the job is not leased
        if held_job.words is not None and not prepared.current.is_lost:
            held_job.words.flush()  # before the report: later the job is not leased
        if held_job.is_cancelled:
            logger.info("cancelled %s id=%s after %.1f ms", *_named(prepared), took_s * 1000)
        elif isinstance(outcome, outcomes.AttemptParked):
            logger.info("parked %s id=%s after %.1f ms", *_named(prepared), took_s * 1000)
        elif prepared.current.is_lost:
            logger.warning("%s %s: lost its lease; the outcome is dropped", *_named(prepared))
        else:
            self._conclude(prepared, outcome, took_s)

    def _conclude(
        self, prepared: running.Prepared, outcome: outcomes.Outcome, took_s: float
    ) -> None:
        self._reports.send(prepared.delivery.job_id, prepared.delivery.attempt, outcome)
        if isinstance(outcome, outcomes.GivenBack):
            self._log_given_back(prepared, outcome)
        else:
            _log(prepared, outcome, took_s)
        if self._on_outcome is not None:
            self._on_outcome(prepared, outcome, took_s)
        running.call_hooks(self._app, prepared, outcome)
        self._done += 1
        self._recycle()

    def _recycle(self) -> None:
        """Stop if enough was done, or too much memory is used: another process takes over."""
        memory = memory_bytes() if self._max_memory and not self._stopping else None
        if 0 < self._max_jobs <= self._done:
            reason = f"{self._done} jobs are done"
        elif memory is not None and memory > self._max_memory:
            reason = f"it uses {memory >> 20} MB of memory"
        else:
            return
        if not self._stopping:
            logger.info("worker %s: %s", self.name, reason)
            self.stop()

    def _log_given_back(self, prepared: running.Prepared, outcome: outcomes.GivenBack) -> None:
        """A warning once for each task: there may be many such jobs, and each comes again."""
        level = logging.DEBUG
        if prepared.name not in self._unknown and len(self._unknown) < MAX_UNKNOWN:
            self._unknown.add(prepared.name)
            level = logging.WARNING
        logger.log(
            level,
            "given back %s id=%s queue=%s, again in %.1f s: %s",
            *_named(prepared), prepared.delivery.queue, outcome.delay_ms / 1000,
            _short(outcome.failure),
        )  # fmt: skip

    def _has_reports(self) -> bool:
        return not self._stopping or bool(self._held) or self._reports.is_busy

    # -- leases in hand ----------------------------------------------------------------------------

    async def _renew_leases(self) -> None:
        while True:
            if not self._held:
                await self._change()
                continue
            shortest_s = min(h.prepared.delivery.ttr_ms for h in self._held.values()) / 1000
            await asyncio.sleep(min(max(shortest_s / 6, 0.02), 5.0))
            now_ns = time.monotonic_ns()
            for held in list(self._held.values()):
                if now_ns - held.lease_ns > held.prepared.delivery.ttr_ms * 1_000_000 // 3:
                    self._touch(held)

    def _touch_soon(self, job_id: str) -> None:
        """Have the lease renewed soon; called from any thread."""
        held = self._held.get(job_id)
        if held is not None:
            self._loop.call_soon_threadsafe(self._touch, held)

    def _touch(self, held_job: Held) -> None:
        held_job.lease_ns = time.monotonic_ns()

        def refused(refusal: str) -> None:
            if refusal.endswith(Complaint.CANCELLED):
                self._cancel(held_job.job_id)
            elif refusal.endswith(("NOT-FOUND", Complaint.NOT_LEASED)):
                steps = held_job.prepared.current.steps
                if steps is not None and steps.is_parked:
                    return
                held_job.prepared.current.is_lost = True
                if held_job.running is not None:
                    held_job.running.cancel()

        self._reports.touch(held_job.job_id, refused)

    # -- connections -------------------------------------------------------------------------------

    async def _connect(self, is_wanted: Callable[[], bool]) -> WorkerLink | None:
        """Again and again until there is one; None if it is not wanted any more."""
        pause_s, began = FIRST_PAUSE_S, self._loop.time()
        while is_wanted():
            try:
                return await WorkerLink.connect(self._broker.address)
            except client_errors.CannotConnect as error:
                left_s = self._patience_left_s(str(error), began)
                wait_s = min(self._retry_in(str(error), pause_s), left_s)
            await self._change(wait_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)
        return None

    def _patience_left_s(self, problem: str, began: float) -> float:
        """Raises CannotConnect if none is."""
        if not self._burst:
            return math.inf
        left_s = began + BURST_WAIT_S - self._loop.time()
        if left_s <= 0:
            raise client_errors.CannotConnect(
                f"{problem} A burst waits {BURST_WAIT_S:g} s for its server"
            )
        return left_s

    def _retry_in(self, problem: str, pause_s: float) -> float:
        """How long to wait, with jitter. One line for all that try in this time."""
        wait_s = pause_s * random.uniform(0.8, 1.2)
        now = self._loop.time()
        if now >= self._quiet_until:
            logger.warning("%s; trying again in %.1f s", problem, wait_s)
            self._quiet_until = now + wait_s
        return wait_s

    async def _set_limits(self) -> None:
        """Set the limits of the app's queues, before the first lease. Raises AccessDenied."""
        limits = self._app.limits()
        pause_s, began = FIRST_PAUSE_S, self._loop.time()
        while limits:
            try:
                await self._broker.set_limits(limits)
                return
            except client_errors.ConnectionFailed as error:
                left_s = self._patience_left_s(str(error), began)
                wait_s = min(self._retry_in(str(error), pause_s), left_s)
            except (client_errors.AccessDenied, client_errors.BadAnswer):
                raise
            except client_errors.ClientError as error:
                if not _passes(error):
                    logger.error("the server refused limits of this app: %s", error)
                    return
                said = f"the server cannot take limits ({error})"
                wait_s = min(self._retry_in(said, pause_s), self._patience_left_s(said, began))
            await self._change(wait_s)
            if self._stopping:
                return
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    async def _relay(self, outbox: Relay) -> None:
        """Send what waits in an outbox; the database or the server may be away for a while."""
        pause_s = RELAY_S
        while True:
            sent = 0
            try:
                sent = (await asyncio.to_thread(outbox.relay, self._broker)).sent
            except client_errors.ConnectionFailed as error:
                pause_s = min(pause_s * 2, LAST_PAUSE_S)
                self._retry_in(str(error), pause_s)
            except Exception as error:  # noqa: BLE001 - whatever the database raises
                pause_s = min(pause_s * 2, LAST_PAUSE_S)
                self._retry_in(f"the outbox {outbox.table} cannot be read ({error})", pause_s)
            else:
                pause_s = RELAY_S
            if not sent:
                await asyncio.sleep(pause_s)

    async def _set_timetables(self) -> None:
        """The schedule may be away for a while, or refuse them; jobs are run all the same."""
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await self._broker.set_timetables(self._app.recurring.values())
            except client_errors.ConnectionFailed as error:
                wait_s = self._retry_in(str(error), pause_s)
            except client_errors.ClientError as error:
                if not _passes(error):
                    logger.error("the schedule refused a timetable of this app: %s", error)
                    return
                wait_s = self._retry_in(f"the schedule cannot take timetables ({error})", pause_s)
            else:
                names = " ".join(self._app.recurring)
                logger.info("timetables are set: %s", names)
                return
            await asyncio.sleep(wait_s)
            pause_s = min(pause_s * 2, LAST_PAUSE_S)

    async def _change(self, at_most_s: float | None = None) -> None:
        """Wait until a job came or ended, or stop() was called."""
        self._changed.clear()
        try:
            async with asyncio.timeout(at_most_s):
                await self._changed.wait()
        except TimeoutError:
            return


def _explained(prepared: running.Prepared, error: BaseException) -> BaseException:
    """A timeout is raised in a thread without words."""
    if isinstance(error, JobTimeout) and not error.args:
        return JobTimeout(f"took longer than {prepared.options.timeout_s:g} s")
    return error


def _passes(error: client_errors.ClientError) -> bool:
    """True if the same request may be taken later: the disk is full, for example."""
    return isinstance(error, client_errors.Refused) and error.code in _PASSING


def _queues_of(app: App) -> set[str]:
    if not app.tasks:
        raise UsageError("the app has no tasks: is their module imported?")
    return {task.defaults.queue for task in app.tasks.values()}


def _named(prepared: running.Prepared) -> tuple[str, str]:
    return prepared.name, prepared.delivery.job_id


def _log(prepared: running.Prepared, outcome: outcomes.Outcome, took_s: float) -> None:
    assert not isinstance(outcome, outcomes.AttemptParked)
    delivery = prepared.delivery
    what = (prepared.name, delivery.job_id, delivery.queue, delivery.number, took_s * 1000)
    if isinstance(outcome, outcomes.TaskDone):
        logger.info("done %s id=%s queue=%s attempt=%d %.1f ms", *what)
        return
    reason, trace = _short(outcome.failure), outcome.failure.traceback.rstrip()
    if isinstance(outcome, outcomes.Again):
        again_s = outcome.delay_ms / 1000
        logger.warning(
            "retry %s id=%s queue=%s attempt=%d %.1f ms: %s; again in %.1f s",
            *what, reason, again_s,
        )  # fmt: skip
        if trace:
            logger.debug("%s", trace)
    else:
        after = f"\n{trace}" if trace else ""
        logger.error("failed %s id=%s queue=%s attempt=%d %.1f ms: %s%s", *what, reason, after)


def _short(failure: Failure) -> str:
    return " ".join(str(failure).split())[:300]
