"""Chains, groups, and flows of both: what follows a job, and what follows many.

    fetch.call(url).then(parse).then(store, table="pages").send()
    jm.group(resize.call(n) for n in names).then(publish, album=7).send()
    jm.group(resize.call(n) for n in names).always(report).send()
    fetch.call(url).then(jm.group(resize.after(n) for n in sizes)).then(publish).then(note).send()

A chain: each task gets the result of the one before as its first argument. What follows travels in
the envelope (``then``); the worker adds it **before** it completes the job, under an id made of the
job's id: a worker that dies in between repeats the job, and the same id adds nothing twice.

    "then": [{"task": name, "args": [...], "kwargs": {...}, "queue": name}, ...]

If the sender's token has a namespace, ``id`` is there too: made with the salt of that namespace,
which the worker may not know.

A group: its calls run in any order, at the same time. What follows is added with them, and waits at
the server until all have succeeded (``after``); its envelope names them (``gather``), and its first
argument is the list of their results. If one fails for good, so does what follows; unless it
follows ``always``: then it runs when all have ended, and its argument is a list of ``Ended``.

    "gather": [id, ...], "even_failed": true

A flow has steps that are calls or groups, and the calls of a group may be flows that end in a call.
All its jobs are added at once, those before first; each waits at the server (``after``) for the
jobs of the step before. After a call the first argument is its result (``single``), after a group
the list of results.

    "gather": [id], "single": true
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, overload
from uuid import UUID

from journeyman.errors import UsageError
from journeyman.protocols.workq.salts import next_id
from journeyman.tasks.broker import Broker, JobEnding, Order
from journeyman.tasks.durations import Seconds
from journeyman.tasks.envelope import MAX_CALLS, Codec, Failure
from journeyman.tasks.jobs import Job, aended_values, ended_value, ended_values
from journeyman.tasks.task import Call, Sendable, Task

if TYPE_CHECKING:
    from journeyman.tasks.app import App
    from journeyman.tasks.sending import Sending

Q = ParamSpec("Q")
T = TypeVar("T")
U = TypeVar("U")

ASKED_AT_ONCE = 100  # for their results


@dataclass(frozen=True, slots=True)
class Ended(Generic[T]):
    """How a job of a group ended: with a value, or with a failure."""

    value: T | None = None
    failure: Failure | None = None

    @property
    def succeeded(self) -> bool:
        return self.failure is None


def ended(codec: Codec, ending: JobEnding | None) -> Ended[Any]:
    """Return how a job ended. None: the job was deleted, or its TTL has ended."""
    return Ended(*ended_value(codec, ending))


class Group(Generic[T]):
    """Calls that run at the same time; from ``group``."""

    def __init__(self, calls: Iterable[Sendable[T]]) -> None:
        self.calls = list(calls)
        if not self.calls:
            raise UsageError("a group needs at least one call")
        if not all(isinstance(call, Call | Flow) for call in self.calls):
            raise UsageError("a group takes calls, and flows that end in a call: add then(task)")

    def send(self) -> GroupJobs[T]:
        """Add all jobs."""
        return GroupFlow[T]((self,)).send()

    async def asend(self) -> GroupJobs[T]:
        """``send`` for asyncio."""
        return await GroupFlow[T]((self,)).asend()

    @overload
    def then(
        self, task: Task[Concatenate[list[T], Q], Any, U], *args: Q.args, **kwargs: Q.kwargs
    ) -> Flow[U]: ...

    @overload
    def then(self, task: Group[U]) -> GroupFlow[U]: ...

    def then(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Then call this task, or the tasks of this group, with the list of results as the first
        argument."""
        return _followed((self,), task, args, kwargs)

    def always(
        self, task: Task[Concatenate[list[Ended[T]], Q], Any, U], *args: Q.args, **kwargs: Q.kwargs
    ) -> Flow[U]:
        """``then``, also if some fail: the first argument says how each of them ended."""
        return Flow((self, Call(task, args, kwargs, task.defaults, even_failed=True)))

    def following(self, call: Call[Any]) -> GroupFlow[T]:
        """Return this group as the step that follows a call."""
        return GroupFlow((call, self))


Step: TypeAlias = Call[Any] | Group[Any]


def _followed(steps: tuple[Step, ...], task: Any, args: Any, kwargs: Any) -> Any:
    if isinstance(task, Group):
        return GroupFlow((*steps, task))
    return Flow((*steps, Call(task, args, kwargs, task.defaults)))


class _Plan:
    """The jobs of a flow, in the order in which they are added."""

    def __init__(self, steps: Sequence[Step], salt: bytes) -> None:
        self.orders: list[Order] = []
        # Calls and orders at the end of the last step.
        self.last: list[tuple[Call[Any], Order]] = []
        self._salt = salt
        self._place(steps, (), is_single=False, is_last=True)

    def _place(
        self, steps: Sequence[Step], before: tuple[UUID, ...], *, is_single: bool, is_last: bool
    ) -> None:
        """``before``: the jobs that these steps follow. ``is_last``: nothing follows them."""
        for number, step in enumerate(steps, start=1):
            is_end = is_last and number == len(steps)
            if isinstance(step, Group):
                ends: list[tuple[Call[Any], Order]] = []
                for member in step.calls:
                    self._place(_steps_of(member), before, is_single=is_single, is_last=is_end)
                    ends += self.last
                self.last = ends
            elif is_end and not before:
                self._add(step, before, is_single)  # a chain, which the server need not know
            else:
                for call in (step.without_followers(), *step.followers):
                    self._add(call, before, is_single)
                    before, is_single = (self.last[0][1].job_id,), True
            before = tuple([order.job_id for _, order in self.last])
            is_single = isinstance(step, Call)

    def _add(self, call: Call[Any], before: tuple[UUID, ...], is_single: bool) -> None:
        if len(before) > MAX_CALLS:
            raise UsageError(f"a group that is followed by a task has at most {MAX_CALLS} calls")
        if before and call.when is not None:
            raise UsageError(f"{call.task.name} waits for jobs, so it cannot wait for a time")
        order = replace(call, gather=before, is_single=is_single).order(self._salt)
        self.orders.append(order)
        self.last = [(call, order)]

    @property
    def job_ids(self) -> list[str]:
        return [str(order.job_id) for order in self.orders]

    def jobs(self) -> list[Job[Any]]:
        """Return the jobs of the last step."""
        ids = tuple(order.job_id for order in self.orders)
        jobs = [call.job_of(order, self._salt) for call, order in self.last]
        if len(ids) > len(jobs):
            for job in jobs:
                job.flow = ids
        return jobs


def _steps_of(member: Sendable[Any]) -> tuple[Step, ...]:
    if isinstance(member, Call):
        return (member,)
    assert isinstance(member, Flow)
    return member.steps


def _calls_in(steps: Iterable[Step]) -> list[Call[Any]]:
    calls: list[Call[Any]] = []
    for step in steps:
        if isinstance(step, Call):
            calls.append(step)
        else:
            calls += [call for each in step.calls for call in _calls_in(_steps_of(each))]
    return calls


def _first_calls_in(steps: Sequence[Step]) -> list[Call[Any]]:
    """Return the calls that follow nothing."""
    if isinstance(steps[0], Call):
        return [steps[0]]
    return [call for each in steps[0].calls for call in _first_calls_in(_steps_of(each))]


class _Steps:
    """Steps that follow each other, and what is made of them once."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.steps = steps
        self._made: _Plan | None = None
        self._calls = _calls_in(steps)
        for call in _first_calls_in(steps):
            call.task.bind(call.args, call.kwargs)

    @property
    def _broker(self) -> Broker:
        return self._calls[0].app.broker

    @property
    def _derives_ids(self) -> bool:
        return any(call.derives_ids for call in self._calls)

    def _plan(self, salt: bytes) -> _Plan:
        """Plan the jobs of the flow. The plan stays the same if the flow is sent again, because a
        reply may have been lost."""
        if self._made is None:
            self._made = _Plan(self.steps, salt)
        return self._made

    def _send(self) -> list[Job[Any]]:
        with self._sending() as sending:
            plan = self._plan(self._broker.salt() if self._derives_ids else b"")
            sending.job_ids += plan.job_ids
            self._broker.add_many(plan.orders)
        return plan.jobs()

    async def _asend(self) -> list[Job[Any]]:
        with self._sending() as sending:
            plan = self._plan(await self._broker.asalt() if self._derives_ids else b"")
            sending.job_ids += plan.job_ids
            await self._broker.aadd_many(plan.orders)
        return plan.jobs()

    def _sending(self) -> Sending:
        first = self._calls[0]
        return first.app.sending(first.task.name, first.options.queue)


class Flow(_Steps, Sendable[T]):
    """Calls and groups that follow each other, with a call at the end."""

    def send(self) -> Job[T]:
        """Add all jobs; the Job is that of the last call."""
        return self._send()[0]

    async def asend(self) -> Job[T]:
        """``send`` for asyncio."""
        return (await self._asend())[0]

    @overload
    def then(
        self, task: Task[Concatenate[T, Q], Any, U], *args: Q.args, **kwargs: Q.kwargs
    ) -> Flow[U]: ...

    @overload
    def then(self, task: Group[U]) -> GroupFlow[U]: ...

    def then(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Then call this task, or the tasks of this group, with the result as first argument."""
        return _followed(self.steps, task, args, kwargs)


class GroupFlow(_Steps, Generic[T]):
    """Calls and groups that follow each other, with a group at the end."""

    def send(self) -> GroupJobs[T]:
        """Add all jobs; the jobs are those of the last group."""
        return GroupJobs(self._send())

    async def asend(self) -> GroupJobs[T]:
        """``send`` for asyncio."""
        return GroupJobs(await self._asend())

    @overload
    def then(
        self, task: Task[Concatenate[list[T], Q], Any, U], *args: Q.args, **kwargs: Q.kwargs
    ) -> Flow[U]: ...

    @overload
    def then(self, task: Group[U]) -> GroupFlow[U]: ...

    def then(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Do as ``Group.then`` does."""
        return _followed(self.steps, task, args, kwargs)

    def always(
        self, task: Task[Concatenate[list[Ended[T]], Q], Any, U], *args: Q.args, **kwargs: Q.kwargs
    ) -> Flow[U]:
        """Do as ``Group.always`` does."""
        return Flow((*self.steps, Call(task, args, kwargs, task.defaults, even_failed=True)))


class GroupJobs(Generic[T]):
    """The jobs of a group that was sent."""

    def __init__(self, jobs: list[Job[T]]) -> None:
        self.jobs = jobs

    def results(self, timeout: Seconds | None = None) -> list[T]:
        """Return the results in the order of the calls; ``timeout`` is for each. Raises as
        ``Job.result``."""
        found: list[T] = []
        while len(found) < len(self.jobs):
            found.append(self.jobs[len(found)].result(timeout))
            found += ended_values(self._next(found))
        return found

    async def aresults(self) -> list[T]:
        """``results`` for asyncio."""
        found: list[T] = []
        while len(found) < len(self.jobs):
            found.append(await self.jobs[len(found)])
            found += await aended_values(self._next(found))
        return found

    def _next(self, values: list[T]) -> list[Job[T]]:
        return self.jobs[len(values) : len(values) + ASKED_AT_ONCE]


def group(calls: Iterable[Sendable[T]]) -> Group[T]:
    """Run these calls at the same time."""
    return Group(calls)


def following_order(app: App, job_id: str, then: tuple[Any, ...], value: Any) -> Order:
    """The job to add after a job that gave ``value``. Raises UsageError, TypeError."""
    first, *rest = [_call_of(app, members) for members in then]
    following = replace(
        first,
        args=(value, *first.args),
        job_id=first.job_id or next_id(UUID(job_id)),
        followers=tuple(rest),
        follows=job_id,
    )
    return following.order()


def _call_of(app: App, members: dict[str, Any]) -> Call[Any]:
    task = app.tasks.get(members["task"])
    if task is None:
        raise UsageError(f"the next task of the chain is unknown: {members['task']!r}")
    options = task.defaults
    if "queue" in members:
        options = options.with_({"queue": members["queue"]})
    job_id = UUID(members["id"]) if "id" in members else None
    args, kwargs = tuple(members.get("args", ())), members.get("kwargs", {})
    return Call(task, args, kwargs, options, job_id=job_id)
