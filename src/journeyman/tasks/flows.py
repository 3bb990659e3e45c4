"""Chains and groups: what follows a job, and what follows many.

    fetch.call(url).then(parse).then(store, table="pages").send()
    jm.group(resize.call(n) for n in names).then(publish, album=7).send()
    jm.group(resize.call(n) for n in names).always(report).send()

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
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar
from uuid import UUID

from journeyman.errors import UsageError
from journeyman.tasks.broker import JobEnding, Order
from journeyman.tasks.envelope import MAX_CALLS, Codec, Failure
from journeyman.tasks.jobs import Job, aended_values, ended_values, value_of
from journeyman.tasks.options import Seconds
from journeyman.tasks.task import Call, Task, next_id

if TYPE_CHECKING:
    from journeyman.tasks.app import App

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
    """None: the job was deleted, or its TTL is over."""
    if ending is None:
        return Ended(failure=Failure("NotFound", "the job was deleted, or its ttl has ended"))
    if not ending.succeeded:
        return Ended(failure=Failure.decode(ending.result))
    return Ended(value_of(codec, ending))


class Group(Generic[T]):
    """Calls that run at the same time; from ``group``."""

    def __init__(self, calls: Iterable[Call[T]]) -> None:
        self._calls = list(calls)
        if not self._calls:
            raise UsageError("a group needs at least one call")
        self._made: list[Order] = []
        for call in self._calls:
            call.task.bind(call.args, call.kwargs)

    def send(self) -> GroupJobs[T]:
        """Add all jobs."""
        broker = self._calls[0].app.broker
        salt = broker.salt() if self._derives_ids else b""
        orders = self._orders(salt)
        broker.add_many(orders)
        return self._jobs(orders, salt)

    async def asend(self) -> GroupJobs[T]:
        """``send`` for asyncio."""
        broker = self._calls[0].app.broker
        salt = await broker.asalt() if self._derives_ids else b""
        orders = self._orders(salt)
        await broker.aadd_many(orders)
        return self._jobs(orders, salt)

    def _orders(self, salt: bytes) -> list[Order]:
        """The same ones if the group is sent again: a reply may have been lost."""
        if not self._made:
            self._made = [call.order(salt) for call in self._calls]
        return self._made

    @property
    def ids(self) -> tuple[UUID, ...]:
        """The ids of the jobs, after they were sent."""
        return tuple([order.job_id for order in self._made])

    @property
    def _derives_ids(self) -> bool:
        return any(call.derives_ids for call in self._calls)

    def then(
        self, task: Task[Concatenate[list[T], Q], Any, U], *args: Q.args, **kwargs: Q.kwargs
    ) -> FollowedGroup[T, U]:
        """Then call this task with the list of results as its first argument."""
        return self._followed(Call(task, args, kwargs, task.defaults))

    def always(
        self, task: Task[Concatenate[list[Ended[T]], Q], Any, U], *args: Q.args, **kwargs: Q.kwargs
    ) -> FollowedGroup[T, U]:
        """``then``, also if some fail: the first argument says how each of them ended."""
        return self._followed(Call(task, args, kwargs, task.defaults, even_failed=True))

    def _followed(self, following: Call[U]) -> FollowedGroup[T, U]:
        if len(self._calls) > MAX_CALLS:
            raise UsageError(f"a group that is followed by a task has at most {MAX_CALLS} calls")
        return FollowedGroup(self, following)

    def _jobs(self, orders: list[Order], salt: bytes) -> GroupJobs[T]:
        pairs = zip(self._calls, orders, strict=True)
        return GroupJobs([call.job_of(order, salt) for call, order in pairs])


class GroupJobs(Generic[T]):
    """The jobs of a group that was sent."""

    def __init__(self, jobs: list[Job[T]]) -> None:
        self.jobs = jobs

    def results(self, timeout: Seconds | None = None) -> list[T]:
        """In the order of the calls; ``timeout`` is for each. Raises as ``Job.result``."""
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

    def _next(self, found: list[T]) -> list[Job[T]]:
        return self.jobs[len(found) : len(found) + ASKED_AT_ONCE]


class FollowedGroup(Generic[T, U]):
    """A group and the call that follows it."""

    def __init__(self, before: Group[T], following: Call[U]) -> None:
        self._group = before
        self._following = following

    def send(self) -> Job[U]:
        """Add all jobs; the Job is that of the call that follows."""
        self._group.send()
        return self._after_group().send()

    async def asend(self) -> Job[U]:
        """``send`` for asyncio."""
        await self._group.asend()
        return await self._after_group().asend()

    def _after_group(self) -> Call[U]:
        return replace(self._following, gather=self._group.ids)


def group(calls: Iterable[Call[T]]) -> Group[T]:
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
