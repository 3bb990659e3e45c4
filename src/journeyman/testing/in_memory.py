"""An app without a server: the engine of the work queue in this process, and time on demand.

    with InMemory(app) as queue:
        view()                                  sends jobs as in production
        queue.assert_sent(send_mail, "a@b.c")
        queue.run_all()                         runs what is ready, and what that sends
        queue.advance(hours=2)                  retries, delays and timetables come due, in order

It decides with the same engine as the server and runs attempts with the same code as a worker;
arguments and results go through the app's codec. A job that fails for good raises JobFailed out of
``run_all`` (its cause is the exception), unless ``run_all(check=False)``.

Sync functions never run inside an event loop, as in a worker. ``run_all`` runs them in the thread
of its caller, which may have an open transaction that no other thread sees; ``arun_all`` runs them
in threads. Async functions and middleware run on a loop.

    thread of the caller    run_all --work--> <--function-- ... --outcome-->     <--number--
    thread of the loop                leases, async functions, middleware, ends of jobs
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import Any, Self, TypeAlias, TypeVar
from uuid import UUID, uuid4

from msgspec import structs

from journeyman.client import NotFound
from journeyman.client.workq import lines
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
from journeyman.errors import JourneymanError, UsageError
from journeyman.protocols.workq import commands, replies
from journeyman.tasks import outcomes, running
from journeyman.tasks.app import App
from journeyman.tasks.batches import BatchTask
from journeyman.tasks.broker import InspectedJob, JobEnding, Order, state_word
from journeyman.tasks.envelope import Envelope, Failure
from journeyman.tasks.errors import JobFailed, JobTimeout, error_of_step
from journeyman.tasks.steps import RAISED, Place, Recorded, StepBook
from journeyman.tasks.task import AnyTask
from journeyman.timetables import occurrences_of
from journeyman.units import NS_PER_S

T = TypeVar("T")
Ended: TypeAlias = tuple[Any, BaseException | None]  # the result of a function, or its exception
InThread: TypeAlias = Callable[[Callable[[], Ended]], Awaitable[Ended]]

START = datetime(2026, 1, 1, tzinfo=UTC)
MOMENT = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SentJob:
    """A job as a test sees it. ``state`` is as ``Job.state`` says it; ``failure`` of a job that
    waits for a retry is that of its last attempt."""

    id: str
    task: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    queue: str
    state: str
    attempts: int
    at: datetime | None
    result: Any = None
    failure: Failure | None = None


class InMemory:
    """Runs an app without a server. Replaces its broker until ``close`` or the end of ``with``."""

    def __init__(self, app: App, *, now: datetime = START, seed: int = 0) -> None:
        self._app = app
        self._before = app.replace_broker(self, self.now)
        self._now = now
        self._engine = WorkqEngine(seed=seed)
        self._orders: dict[bytes, Order] = {}
        self._names: list[str] = []
        self._failures: dict[bytes, Failure] = {}  # the failure of the last attempt, by job
        self._deciding = threading.RLock()  # functions in threads send jobs too
        self._firings = {
            name: occurrences_of(each.timetable) for name, each in app.recurring.items()
        }
        for queue, asked in app.limits().items():
            limits = commands.Limits(
                concurrency=asked.concurrency,
                key_concurrency=asked.key_concurrency,
                fair=asked.fair,
                weights=dict(asked.weights),
            )
            if (rate := asked.rate) is not None:
                limits = structs.replace(limits, rate=rate.count, per_ms=rate.per_ms)
            if (rate := asked.key_rate) is not None:
                limits = structs.replace(limits, key_rate=rate.count, key_per_ms=rate.per_ms)
            self._decide(commands.SetLimits(queue, limits))
        start_s = _to_ns(now) // NS_PER_S
        self._next_s = {name: each.after(start_s) for name, each in self._firings.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._app.replace_broker(*self._before)

    async def aclose(self) -> None:
        self.close()

    def now(self) -> datetime:
        return self._now

    # -- for tests ---------------------------------------------------------------------------------

    @property
    def jobs(self) -> list[SentJob]:
        """Every job that was sent, in order."""
        return [self._sent(job_id, order) for job_id, order in self._orders.items()]

    def sent(self, task: AnyTask | str) -> list[SentJob]:
        """The jobs of one task."""
        name = task if isinstance(task, str) else task.name
        return [job for job in self.jobs if job.task == name]

    def run_all(self, *, check: bool = True) -> int:
        """Run all ready jobs and those they send; returns the number of attempts."""
        return run_here(lambda in_thread: self._run_ready(in_thread, check))

    async def arun_all(self, *, check: bool = True) -> int:
        """``run_all`` for asyncio tests."""
        return await self._run_ready(asyncio.to_thread, check)

    async def _run_ready(self, in_thread: InThread, check: bool) -> int:
        attempts = 0
        while (delivery := self.lease_or_none()) is not None:
            for prepared, outcome in await self._attempt(delivery, in_thread):
                attempts += 1
                if check and isinstance(outcome, outcomes.Dead):
                    job_id = prepared.delivery.job_id
                    raise JobFailed(job_id, outcome.failure) from outcome.failed.exception
        return attempts

    def advance(self, time: timedelta | None = None, *, check: bool = True, **parts: float) -> int:
        """Let time pass and run what comes due, at its time; how many attempts that took.

        ``advance(hours=2)``, or a timedelta.
        """
        passed = timedelta(**parts) if time is None else time
        return run_here(lambda in_thread: self._advance(passed, in_thread, check))

    async def aadvance(
        self, time: timedelta | None = None, *, check: bool = True, **parts: float
    ) -> int:
        """``advance`` for asyncio tests."""
        passed = timedelta(**parts) if time is None else time
        return await self._advance(passed, asyncio.to_thread, check)

    async def _advance(self, time: timedelta, in_thread: InThread, check: bool) -> int:
        end = self._now + time
        if end < self._now:
            raise UsageError("time does not go back")
        attempts = await self._run_ready(in_thread, check)
        # Each record has a time of its own, so what is due at the end may be due a moment later.
        while (due := self._next_due()) is not None and due < end + MOMENT:
            self._now = max(self._now, due)
            self._take_due()
            self._fire()
            attempts += await self._run_ready(in_thread, check)
        self._now = max(self._now, end)
        return attempts

    def assert_sent(self, task: AnyTask | str, *args: Any, **kwargs: Any) -> SentJob:
        """Assert that a job of this task, with these arguments if any, was sent; return it."""
        found = self.sent(task)
        if args or kwargs:
            found = [job for job in found if job.args == args and dict(job.kwargs) == kwargs]
        if not found:
            name = task if isinstance(task, str) else task.name
            wanted = f" with {_format_arguments(args, kwargs)}" if args or kwargs else ""
            sent = "".join(
                f"\n  {j.task}({_format_arguments(j.args, j.kwargs)})" for j in self.jobs
            )
            raise AssertionError(f"{name} was not sent{wanted}; sent:{sent or ' nothing'}")
        return found[-1]

    def assert_nothing_sent(self, task: AnyTask | str | None = None) -> None:
        found = self.jobs if task is None else self.sent(task)
        if found:
            raise AssertionError(f"{len(found)} jobs were sent, the first: {found[0]}")

    # -- Broker ------------------------------------------------------------------------------------

    def salt(self) -> bytes:
        """Return no salt: there are no namespaces."""
        return b""

    async def asalt(self) -> bytes:
        return b""

    def add(self, order: Order) -> bool:
        options = order.options
        job_id = order.job_id.bytes
        shared: dict[str, Any] = {
            "payload": order.payload,
            "priority": options.priority,
            "max_fails": options.max_fails,
            "options": commands.AddOptions(
                order.limit_key,
                options.unique is not None,
                tuple(each.bytes for each in order.after),
                order.even_failed,
                options.unique_ms,
                order.unless_same,
                replaces_unstarted=order.moves,
                unless=b"" if order.unless is None else order.unless.bytes,
            ),
        }
        times = (job_id, options.queue, options.lease_ms, options.ttl_ms)
        command: commands.Command
        if order.at is None:
            command = commands.Add(*times, **shared)
        else:
            command = commands.ScheduleJob(*times, time_ns=_to_ns(order.at), **shared)
        if self._decide(command) is not replies.DONE:
            return False
        self._orders.pop(job_id, None)
        self._failures.pop(job_id, None)
        self._orders[job_id] = order
        if options.queue not in self._names:
            self._names.append(options.queue)
        return True

    async def aadd(self, order: Order) -> bool:
        return self.add(order)

    def add_many(self, orders: Sequence[Order]) -> None:
        for order in orders:
            self.add(order)

    async def aadd_many(self, orders: Sequence[Order]) -> None:
        self.add_many(orders)

    def ending(self, job_id: UUID, wait_s: float) -> JobEnding | None:
        """Waiting for a result runs what is ready, as a worker would meanwhile. Raises TimeoutError
        if that does not end the job: no time passes here by itself."""
        if wait_s > 0:
            self.run_all(check=False)
        return self._ended(job_id, wait_s)

    async def aending(self, job_id: UUID, wait_s: float) -> JobEnding | None:
        if wait_s > 0:
            await self.arun_all(check=False)
        return self._ended(job_id, wait_s)

    def endings(self, job_ids: Sequence[UUID]) -> list[JobEnding | None]:
        return list(map(self._ending_or_none, job_ids))

    async def aendings(self, job_ids: Sequence[UUID]) -> list[JobEnding | None]:
        return self.endings(job_ids)

    def state(self, job_id: UUID) -> str:
        view = self._view(job_id.bytes)
        if view is None:
            return "gone"
        order = self._orders.get(job_id.bytes)
        due = None if order is None else order.at
        is_cancelled = view.state == replies.CANCELLED
        number, after = view.number_of_state, view.waits_for or int(view.wait is not None)
        return state_word(number, after, due, self._now, is_cancelled=is_cancelled)

    async def astate(self, job_id: UUID) -> str:
        return self.state(job_id)

    def facts(self, job_id: UUID) -> InspectedJob | None:
        view, order = self._view(job_id.bytes), self._orders.get(job_id.bytes)
        if view is None or order is None:
            return None
        created = None if view.created_ns is None else _to_moment(view.created_ns)
        state, attempts = self.state(job_id), view.attempts - view.given_back
        facts = order.options.queue, order.payload, state, view.priority, attempts
        return InspectedJob(*facts, created, order.at, view.worker)

    def delete(self, job_id: UUID) -> bool:
        return self._decide(commands.Delete(job_id.bytes)) is replies.DONE

    async def adelete(self, job_id: UUID) -> bool:
        return self.delete(job_id)

    def cancel(self, job_id: UUID) -> bool:
        return self._decide(commands.Cancel(job_id.bytes)) is replies.DONE

    async def acancel(self, job_id: UUID) -> bool:
        return self.cancel(job_id)

    def emit(self, event: str, value: bytes) -> None:
        reply = self._decide(commands.Emit(lines.checked_event(event), value))
        if reply is not replies.DONE:
            raise UsageError(f"the event {event!r} has happened with another value")

    async def aemit(self, event: str, value: bytes) -> None:
        self.emit(event, value)

    def fork(self, job_id: UUID, step: str, number: int) -> UUID:
        new_id = uuid4()
        reply = self._decide(commands.Fork(job_id.bytes, new_id.bytes, step, number))
        if reply is replies.NOT_FOUND:
            raise NotFound("NOT-FOUND", f"no job {job_id}")
        if reply is not replies.DONE:
            raise UsageError(f"job {job_id} has recorded no step {step!r} with number {number}")
        order = self._orders[job_id.bytes]
        self._orders[new_id.bytes] = replace(order, job_id=new_id, at=None)
        return new_id

    async def afork(self, job_id: UUID, step: str, number: int) -> UUID:
        return self.fork(job_id, step, number)

    def progress(self, job_id: UUID) -> replies.JobProgress:
        reply = self._decide(commands.InspectProgress(job_id.bytes))
        if not isinstance(reply, replies.JobProgress):
            raise NotFound("NOT-FOUND", f"no job {job_id}")
        return reply

    async def aprogress(self, job_id: UUID) -> replies.JobProgress:
        return self.progress(job_id)

    # -- details -----------------------------------------------------------------------------------

    def _ended(self, job_id: UUID, wait_s: float) -> JobEnding | None:
        ending = self._ending(job_id)
        if ending is None and wait_s > 0:
            failure = self._failures.get(job_id.bytes)
            last = f"; its last attempt failed: {failure}" if failure else ""
            raise TimeoutError(f"job {job_id} needs time to pass: call advance() first{last}")
        return ending

    def _ending(self, job_id: UUID) -> JobEnding | None:
        reply = self._decide(commands.AwaitResult(job_id.bytes, 0))
        if reply is replies.NOT_FOUND:
            raise NotFound("NOT-FOUND", f"no job {job_id}")
        return (
            JobEnding(reply.success, reply.result) if isinstance(reply, replies.Finished) else None
        )

    def _ending_or_none(self, job_id: UUID) -> JobEnding | None:
        try:
            return self._ending(job_id)
        except NotFound:
            return None

    def _decide(self, command: commands.Command) -> Any:
        with self._deciding:
            self._take_due()
            return self._commit(command, _to_ns(self._now))

    def _commit(self, command: commands.Command | WorkqDue, now_ns: int) -> Any:
        """Decide a batch of its own: the engine forgets nothing before its batch is durable."""
        self._engine.begin_batch()
        reply = self._engine.decide(command, now_ns).reply
        self._engine.commit_batch()
        self._engine.take_ledger()  # there is no log to keep it in
        return reply

    def _take_due(self) -> None:
        """See to what the time has brought."""
        now_ns = _to_ns(self._now)
        while (due := self._engine.next_due_ns()) is not None and due <= now_ns:
            self._commit(WorkqDue(), now_ns)

    def lease_or_none(self, queue: str = "") -> running.Delivery | None:
        """Lease a job, of any queue or this one, like a worker that then dies: it comes again after
        its lease."""
        if not self._names:
            return None
        names = (queue,) if queue else tuple(self._names)
        leased = self._decide(commands.Lease(names, 0, max_jobs=1))
        if not isinstance(leased, replies.LeasedJobs):
            return None
        job_id, queue, ttr_ms, payload, *numbers = leased.jobs[0]
        return running.Delivery(str(UUID(bytes=job_id)), queue, bytes(payload), ttr_ms, *numbers)

    async def _attempt(
        self, delivery: running.Delivery, in_thread: InThread
    ) -> list[tuple[running.Prepared, outcomes.Outcome]]:
        """Run a job, and those that are ready and belong to its batch."""
        first = self._prepare(delivery)
        if not isinstance(first.task, BatchTask):
            return [(first, self._end(first, await outcome_of(self._app, first, in_thread)))]
        members, others, size = [first], list[running.Delivery](), first.task.size
        while not delivery.fails and not others and len(members) < size:
            following = self.lease_or_none(delivery.queue)
            if following is None:
                break
            prepared = self._prepare(following)
            if prepared.task is first.task and not following.fails:
                members.append(prepared)
            else:
                others.append(following)
        ended = await batch_outcomes(self._app, members, in_thread)
        pairs = [(each, self._end(each, own)) for each, own in zip(members, ended, strict=True)]
        for other in others:
            pairs += await self._attempt(other, in_thread)
        return pairs

    def _prepare(self, delivery: running.Delivery) -> running.Prepared:
        prepared = running.prepare(self._app, delivery)
        job_id = UUID(delivery.job_id).bytes
        prepared.current.steps = StepBook(
            self._app,
            _MemoryJournal(self._decide, delivery.job_id, delivery.attempt),
            delivery.job_id,
        )
        prepared.current.note = lambda notes: self._decide(commands.NoteProgress(job_id, notes))
        if prepared.envelope.gather:
            endings = self.endings([UUID(each) for each in prepared.envelope.gather])
            prepared = running.gathered(self._app, prepared, endings)
        return prepared

    def _end(self, prepared: running.Prepared, outcome: outcomes.Outcome) -> outcomes.Outcome:
        if isinstance(outcome, outcomes.AttemptParked):
            return outcome
        job_id = UUID(prepared.delivery.job_id).bytes
        if isinstance(outcome, outcomes.TaskDone):
            self._failures.pop(job_id, None)
            if outcome.following is not None and self.state(UUID(bytes=job_id)) != "cancelled":
                self.add(outcome.following)
            self._decide(commands.Complete(job_id, outcome.result))
        else:
            delay_ms = outcome.delay_ms if isinstance(outcome, outcomes.Again) else None
            is_final = isinstance(outcome, outcomes.Dead)
            if isinstance(outcome, outcomes.Dead) and outcome.report is not None:
                self.add(outcome.report)
            self._failures[job_id] = outcome.failure
            self._decide(
                commands.Fail(job_id, outcome.failure.encode(), delay_ms, is_final=is_final)
            )
        running.call_hooks(self._app, prepared, outcome)
        return outcome

    def _next_due(self) -> datetime | None:
        due_ns = self._engine.next_due_ns()
        found = [] if due_ns is None else [_to_moment(due_ns)]
        found += [_EPOCH + timedelta(seconds=at) for at in self._next_s.values() if at is not None]
        return min(found, default=None)

    def _fire(self) -> None:
        """Add the jobs of timetables that are due."""
        now_s = _to_ns(self._now) // NS_PER_S
        for name, at_s in self._next_s.items():
            if at_s is not None and at_s <= now_s:
                self.add(self._app.recurring[name].order(_EPOCH + timedelta(seconds=at_s)))
                self._next_s[name] = self._firings[name].after(at_s)

    def _view(self, job_id: bytes) -> replies.JobView | None:
        reply = self._decide(commands.InspectJob(job_id))
        return reply.jobs[0] if isinstance(reply, replies.JobList) else None

    def _sent(self, job_id: bytes, order: Order) -> SentJob:
        envelope = Envelope.decode(order.payload, self._app.codec)
        view = self._view(job_id)
        result, failure = None, None if view is None else self._failures.get(job_id)
        if view is not None:
            ending = self._ending(UUID(bytes=job_id)) if view.finished_ns is not None else None
            if ending is not None and ending.succeeded:
                result = self._app.codec.loads(ending.result) if ending.result else None
            elif ending is not None:
                failure = Failure.decode(ending.result)
        return SentJob(
            str(order.job_id),
            envelope.task,
            envelope.args,
            envelope.kwargs,
            order.options.queue,
            self.state(order.job_id),
            0 if view is None else view.attempts,
            order.at,
            result,
            failure,
        )


class _MemoryJournal:
    """The steps of one job. A tasks.steps.Journal."""

    def __init__(
        self, decide: Callable[[commands.Command], Any], job_id: str, attempt: int
    ) -> None:
        self._decide = decide
        self._job_id = job_id
        self._attempt = attempt

    def read(self) -> Recorded:
        return self._recorded(
            self._decide(commands.InspectSteps(UUID(self._job_id).bytes, self._attempt))
        )

    def _recorded(self, reply: Any) -> Recorded:
        if not isinstance(reply, replies.StepList):
            raise self._error_of(reply)
        return {(step.name, step.number): step.value for step in reply.steps}

    async def aread(self) -> Recorded:
        return self.read()

    def record(self, place: Place, value: bytes) -> None:
        reply = self._decide(
            commands.RecordStep(UUID(self._job_id).bytes, *place, value, self._attempt)
        )
        if reply is not replies.DONE:
            raise self._error_of(reply)

    async def arecord(self, place: Place, value: bytes) -> None:
        self.record(place, value)

    def park(self, wait: commands.JobWait) -> Recorded:
        reply = self._decide(commands.Park(UUID(self._job_id).bytes, wait, self._attempt))
        if reply is replies.DONE:
            return {}
        return self._recorded(reply)

    async def apark(self, wait: commands.JobWait) -> Recorded:
        return self.park(wait)

    def _error_of(self, reply: Any) -> JourneymanError:
        return error_of_step(self._job_id, replies.reply_bytes(reply).decode().rstrip())


async def outcome_of(app: App, prepared: running.Prepared, in_thread: InThread) -> outcomes.Outcome:
    if prepared.problem is not None:
        return running.failed(prepared, prepared.problem)
    outcome = await _call(app, prepared, in_thread)
    assert not isinstance(outcome, outcomes.BatchEnded)
    return outcome


async def batch_outcomes(
    app: App, members: Sequence[running.Prepared], in_thread: InThread
) -> tuple[outcomes.Outcome, ...]:
    outcome = await _call(app, running.batch_of(members), in_thread)
    assert isinstance(outcome, outcomes.BatchEnded)
    return outcome.outcomes


async def _call(
    app: App, prepared: running.Prepared, in_thread: InThread
) -> outcomes.Outcome | outcomes.BatchEnded:
    task = prepared.task
    assert task is not None

    async def call() -> Any:
        if task.is_async:
            return await running.await_here(prepared)
        value, error = await in_thread(lambda: _ended(prepared))
        if error is not None:
            raise error
        return value

    limit = task.defaults.timeout_s if task.is_async else None
    try:
        async with asyncio.timeout(limit):
            value = await running.call_around(app, prepared, call)
    except TimeoutError as error:
        late = JobTimeout(f"took longer than {limit:g} s") if limit is not None else error
        return running.end_attempt(app, prepared, None, late, chance=0.5)
    except RAISED as error:
        return running.end_attempt(app, prepared, None, error, chance=0.5)
    return running.end_attempt(app, prepared, value)


def _ended(prepared: running.Prepared) -> Ended:
    """Not raised: futures refuse StopIteration, and an event loop ends with KeyboardInterrupt."""
    try:
        return running.call_here(prepared), None
    except BaseException as error:  # noqa: BLE001 - raised where it is awaited
        return None, error


def run_here(work: Callable[[InThread], Coroutine[Any, Any, T]]) -> T:
    """Run the work on an event loop in a thread, and its sync functions in this one; in another
    if an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        with ThreadPoolExecutor(1) as threads:
            context = copy_context()
            return threads.submit(context.run, lambda: run_here(work)).result()
    functions: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
    calls: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []

    async def in_this_thread(function: Callable[[], Ended]) -> Ended:
        loop, context = asyncio.get_running_loop(), copy_context()
        done: asyncio.Future[Ended] = loop.create_future()
        functions.put(lambda: loop.call_soon_threadsafe(done.set_result, context.run(function)))
        return await done

    async def main() -> T:
        calls.append((asyncio.get_running_loop(), asyncio.current_task()))
        return await work(in_this_thread)

    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(copy_context().run, asyncio.run, main())
        ended.add_done_callback(lambda _: functions.put(None))
        try:
            while (function := functions.get()) is not None:
                function()
        except BaseException:  # Ctrl-C
            for loop, task in calls:
                if task is not None and not ended.done():
                    loop.call_soon_threadsafe(task.cancel)
            raise
        return ended.result()


def _to_ns(moment: datetime) -> int:
    elapsed = moment - _EPOCH
    return (elapsed.days * 86_400 + elapsed.seconds) * NS_PER_S + elapsed.microseconds * 1000


def _to_moment(unix_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=-(-unix_ns // 1000))


def _format_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    return ", ".join([*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items())])
