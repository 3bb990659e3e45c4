"""A task: a function that can also be sent to a worker. Calling it calls the function.

    send_mail("a@b.c", subject="hi")                          the plain function, here and now
    send_mail.send("a@b.c", subject="hi")                     a job
    await send_mail.asend("a@b.c", subject="hi")              the same for asyncio
    send_mail.at(timedelta(minutes=5)).send("a@b.c", "hi")    later
    send_mail.options(priority=9).send("a@b.c", "hi")         with other options for this job
    send_mail.call("a@b.c", "hi").then(note).send()           a chain of two jobs

Arguments are checked against the signature before anything is sent, by mypy and at run time.

A task can recur (``Recurring``): a timetable of the server adds a job of it at each of its times.

    @app.cron("0 2 * * *", tz="Europe/Berlin", catch_up="once", overlap="skip")

A worker sets the timetables of its app when it starts; the server keeps them, plans them and adds
the jobs, so one firing is one job however many workers there are, and it fires without any. The
expression is checked where it is written. For the schedule a firing is over when its job is added,
so its ``overlap`` holds for adding alone, and the work queue sees to the rest: ``skip`` gives all
firings one id, which is free again when the job is finished; ``queue`` gives them one key, of which
one job runs at a time.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from secrets import token_hex
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)
from uuid import UUID, uuid4

from journeyman.client import WorkQueueRunner
from journeyman.errors import UsageError
from journeyman.protocols.workq.salts import next_id, salted, stable_id
from journeyman.tasks.arguments import Arguments
from journeyman.tasks.broker import Order
from journeyman.tasks.current import DoneJob, FailedJob
from journeyman.tasks.envelope import Envelope
from journeyman.tasks.jobs import Job
from journeyman.tasks.options import JobOptions, Options, check_job_options, filled, key_name
from journeyman.tasks.sending import Application
from journeyman.timetables import Timetable

P = ParamSpec("P")
R = TypeVar("R")  # returned by the function; a coroutine if it is async
T = TypeVar("T")  # the result of the job
Q = ParamSpec("Q")  # the further arguments of a task that follows
U = TypeVar("U")
F = TypeVar("F", covariant=True)  # a flow
H = TypeVar("H", bound=Callable[[Any], Any])

ARGS = "args"  # unique="args"
# Makes the ids of new jobs. Jobs that a step sends have the same ids in every attempt.
NEW_ID: ContextVar[Callable[[], UUID]] = ContextVar("journeyman_new_id", default=uuid4)
# How tasks are sent with Celery, RQ, huey, taskiq and procrastinate.
OTHER_NAMES = {"delay", "apply_async", "enqueue", "schedule", "kiq", "defer", "s", "signature"}


class Following(Protocol[F]):
    """Calls that can follow one call: a group."""

    def following(self, call: Call[Any]) -> F: ...


class Sendable(Generic[T]):
    """A call, or a flow that ends in one call: a group may contain it."""

    __slots__ = ()


@dataclass(slots=True)
class Call(Sendable[T]):
    """A call that has not been sent yet."""

    task: AnyTask
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Options
    when: datetime | timedelta | None = None
    job_id: UUID | None = None  # None: a new one, or by the unique key
    followers: tuple[Call[Any], ...] = ()
    gather: tuple[UUID, ...] = ()  # jobs it waits for; their results are its first argument
    is_single: bool = False  # it is the result of one job, not a list
    even_failed: bool = False  # it runs however they end
    follows: str = ""  # the job before it in a chain

    @overload
    def then(
        self, task: Task[Concatenate[T, Q], Any, U], *args: Q.args, **kwargs: Q.kwargs
    ) -> Call[U]: ...

    @overload
    def then(self, task: Following[F]) -> F: ...

    def then(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """Then call this task with the result as its first argument, followed by these; or the
        tasks of a group, each with the result as its first argument."""
        if not isinstance(task, Task):
            return task.following(self)
        following: Call[Any] = Call(task, args, kwargs, task.defaults)
        return replace(self, followers=(*self.followers, following))

    def without_followers(self) -> Call[Any]:
        return replace(self, followers=())

    def send(self) -> Job[T]:
        """Add the job. For a chain, add the first job and return the last."""
        broker = self.app.broker
        with self.app.sending(self.task.name, self.options.queue) as sending:
            salt = broker.salt() if self.derives_ids else b""
            for order in self._orders(salt):
                sending.job_ids.append(str(order.job_id))
                if is_new := broker.add(order):
                    break
        return self.job_of(order, salt, is_new=is_new)

    async def asend(self) -> Job[T]:
        """``send`` for asyncio."""
        broker = self.app.broker
        with self.app.sending(self.task.name, self.options.queue) as sending:
            salt = await broker.asalt() if self.derives_ids else b""
            for order in self._orders(salt):
                sending.job_ids.append(str(order.job_id))
                if is_new := await broker.aadd(order):
                    break
        return self.job_of(order, salt, is_new=is_new)

    @property
    def derives_ids(self) -> bool:
        """True if its id, or that of a follower, is not a random one."""
        return self.options.unique is not None or bool(self.followers)

    @property
    def app(self) -> Application:
        return self.task.app

    def _orders(self, salt: bytes) -> Iterator[Order]:
        """The order for the broker. Of a task with debounce also what to try if it is refused:
        two ids share the sends of a key, so that the job of one can wait while that of the other
        runs. If both run, the job gets an id of its own."""
        debounce_s = self.options.debounce_s
        if debounce_s is None or self.job_id is not None:
            yield self.order(salt)
            return
        if self.when is not None:
            raise UsageError(f"{self.task.name} has debounce, which says when the job starts")
        plain = replace(self.options, debounce_s=None)
        call = replace(self, options=plain, when=timedelta(seconds=debounce_s))
        first = call.order(salt)
        second_id = salted(stable_id(first.job_id.bytes, b"second"), salt)
        first.moves, first.unless = True, second_id
        yield first
        second = replace(call, job_id=second_id).order(salt)
        second.moves = True
        yield second
        yield replace(call, job_id=uuid4()).order(salt)

    def order(self, salt: bytes = b"") -> Order:
        """The order for the broker. Raises TypeError, UsageError."""
        task, options = self.task, self.options
        if options.debounce_s is not None and self.job_id is None:
            raise UsageError(
                f"{task.name} has debounce, which is for send alone:"
                " not for groups, flows, outboxes and on_commit"
            )
        first: tuple[Any, ...] = ([],) if self.gather else ()
        bound = task.bind((*first, *self.args), self.kwargs)
        args, kwargs = task.arguments.pack(self.args, self.kwargs, begins_at=len(first))
        is_unique = options.unique is not None
        if is_unique or options.key_template is not None:
            # Later calls of a chain were packed before; templates name attributes of the objects.
            plain, named = task.arguments.unpack((*first, *args), kwargs, begins_at=len(first))
            bound = task.bind(plain, named)
            bound.apply_defaults()
        arguments = bound.arguments
        job_id = self.job_id or self._unique_id(arguments, salt) or NEW_ID.get()()
        followers = self._with_ids(job_id, salt)
        then = tuple([call.as_json() for call in followers])
        gather = tuple(map(str, self.gather))
        envelope = Envelope(
            *(task.name, args, kwargs, _current_trace(), then, gather),
            self.even_failed,
            self.is_single,
            follows=self.follows,
        )
        if is_unique:
            envelope.send_id = token_hex(8)
        payload = envelope.encode(task.app.codec)
        limit_key = ""
        if options.key_template is not None:
            limit_key = key_name(filled(options.key_template, arguments, task.name))
        at = None if self.when is None else self._moment()
        return Order(
            job_id, payload, options, at, limit_key, self.gather, self.even_failed, is_unique,
            bool(followers),
        )  # fmt: skip

    def _with_ids(self, job_id: UUID, salt: bytes) -> tuple[Call[Any], ...]:
        """The followers, with their ids if these are salted: a worker may have another salt."""
        if not salt:
            return self.followers
        followers = []
        for call in self.followers:
            job_id = call.job_id or salted(next_id(job_id), salt)
            followers.append(replace(call, job_id=job_id))
        return tuple(followers)

    def as_json(self) -> dict[str, Any]:
        """Return the call as it stands in the envelope of the job before it."""
        args, kwargs = self.task.arguments.pack(self.args, self.kwargs, begins_at=1)
        members = {
            "task": self.task.name,
            "args": args,
            "kwargs": kwargs,
            "queue": self.options.queue,
        }
        return members if self.job_id is None else members | {"id": str(self.job_id)}

    def _unique_id(self, arguments: Mapping[str, Any], salt: bytes) -> UUID | None:
        unique, task = self.options.unique, self.task
        if unique is None:
            return None
        if unique == ARGS:
            packed = task.arguments.pack((), arguments)[1]
            key = task.app.codec.dumps(sorted(packed.items()))
        else:
            key = filled(unique, arguments, task.name).encode()
        return salted(stable_id(self.options.queue, task.name, key), salt)

    def _moment(self) -> datetime | None:
        when = self.when
        if isinstance(when, timedelta):
            return self.task.app.now() + when
        if when is not None and not isinstance(when, datetime):
            raise UsageError(f"at({when!r}): give a timedelta from now, or a datetime with a zone")
        if when is not None and when.tzinfo is None:
            raise UsageError(f"at({when}): the time has no time zone; say which, for example UTC")
        return when

    def job_of(self, order: Order, salt: bytes = b"", *, is_new: bool = True) -> Job[T]:
        """The job created by this order."""
        app = self.app
        ids = [order.job_id]
        for call in self._with_ids(order.job_id, salt):
            ids.append(call.job_id or next_id(ids[-1]))
        last = self.followers[-1].task if self.followers else self.task
        read = last.arguments.unpack_result
        return Job(app.broker, app.codec, *ids, task=last.name, is_new=is_new, read=read)


@dataclass(slots=True)
class Hooks:
    """Functions that a worker calls after an attempt."""

    success: list[Callable[[DoneJob], Any]] = field(default_factory=list)
    retry: list[Callable[[FailedJob], Any]] = field(default_factory=list)
    failure: list[Callable[[FailedJob], Any]] = field(default_factory=list)


class Task(Generic[P, R, T]):
    """A function that can be sent to a worker. Created by ``app.task``."""

    def __init__(
        self, app: Application, function: Callable[P, R], name: str, options: Options
    ) -> None:
        self.app = app
        self.function = function
        self.name = name
        self.is_async = inspect.iscoroutinefunction(function)
        self.hooks = Hooks()
        self._options = options
        self._signature = inspect.signature(function)
        self.arguments = Arguments(name, function)
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Add a job. Durable when this returns, as the server's sync setting says."""
        return self.call(*args, **kwargs).send()

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """``send`` for asyncio."""
        return await self.call(*args, **kwargs).asend()

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """A call to be sent later, or as part of a chain or group."""
        return Call(self, args, kwargs, self._options)

    def after(
        self: Task[Concatenate[Any, Q], Any, T], *args: Q.args, **kwargs: Q.kwargs
    ) -> Call[T]:
        """A call for a group that follows a call: its first argument is the result of that."""
        return Call(self, args, kwargs, self._options)

    def at(self, when: datetime | timedelta) -> Sender[P, T]:
        """Start at this time, or after this delay."""
        return Sender(self, self._options, when)

    def options(self, **options: Unpack[JobOptions]) -> Sender[P, T]:
        """Other options for one job."""
        check_job_options(options)
        return Sender(self, self._options.with_(options))

    def on_success(self, hook: H) -> H:
        """Call this in the worker with a ``DoneJob`` when a job of the task is done."""
        self.hooks.success.append(hook)
        return hook

    def on_retry(self, hook: H) -> H:
        """Call this with a ``FailedJob`` when an attempt failed and the job is tried again."""
        self.hooks.retry.append(hook)
        return hook

    def on_failure(self, hook: H) -> H:
        """Call this with a ``FailedJob`` when a job of the task has failed for good."""
        self.hooks.failure.append(hook)
        return hook

    @property
    def defaults(self) -> Options:
        return self._options

    def bind(self, args: Iterable[Any], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """The arguments by name. Raises TypeError if the function does not accept them."""
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.name}: {error}") from None

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    if not TYPE_CHECKING:  # else every misspelt attribute would have a type

        def __getattr__(self, name: str) -> Any:
            hint = "; a job is sent with .send(...)" if name in OTHER_NAMES else ""
            raise AttributeError(f"a task has no attribute {name!r}{hint}", name=name, obj=self)


AnyTask = Task[Any, Any, Any]


class Sender(Generic[P, T]):
    """A task with a time or options for one job; from ``at`` and ``options``."""

    def __init__(
        self, task: AnyTask, options: Options, when: datetime | timedelta | None = None
    ) -> None:
        self._task = task
        self._options = options
        self._when = when

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        return self.call(*args, **kwargs).send()

    async def asend(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        return await self.call(*args, **kwargs).asend()

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        return Call(self._task, args, kwargs, self._options, self._when)

    def at(self, when: datetime | timedelta) -> Sender[P, T]:
        return Sender(self._task, self._options, when)

    def options(self, **options: Unpack[JobOptions]) -> Sender[P, T]:
        check_job_options(options)
        return Sender(self._task, self._options.with_(options), self._when)


def _current_trace() -> Mapping[str, str]:
    """The trace of the sender in W3C form, ``{"traceparent": "00-..."}``, for the envelope.

    Empty without OpenTelemetry or outside of any span. OpenTelemetry is never imported for this:
    a process that has a span has imported it.
    """
    if "opentelemetry.trace" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier


CatchUp: TypeAlias = Literal["none", "once", "all"]
Overlap: TypeAlias = Literal["allow", "skip", "queue"]


@dataclass(frozen=True)
class Recurring:
    """A task and the fields of its timetable, as docs/timetables.md names them."""

    task: AnyTask
    fields: Mapping[str, str]
    overlap: Overlap = "skip"

    @property
    def timetable(self) -> Timetable:
        """Raises TimetableError that names the field that is wrong."""
        return Timetable.read(self.fields)

    def options(self) -> Options:
        """Return the options of the task, with the limit that ``queue`` needs."""
        options = self.task.defaults
        if self.overlap != "queue":
            return options
        return replace(options, key=options.key_template or self.task.name, concurrency=1)

    def runner(self, salt: bytes = b"") -> WorkQueueRunner:
        """The runner of each occurrence: it adds this job."""
        options = self.task.defaults
        flags: dict[str, object] = {
            "payload": Envelope(self.task.name).encode(self.task.app.codec).decode(),
            "ttr": options.lease_ms,
            "ttl": options.ttl_ms,
            "priority": options.priority,
            "max-fails": options.max_fails,
        }
        if self.overlap == "skip":  # one id for all: it is added if the last one is finished
            flags |= {"id": salted(stable_id(self.task.name), salt), "replace": "finished"}
        elif self.overlap == "queue":
            flags["key"] = key_name(self.task.name)
        words = tuple(f"-{name}={value}" for name, value in flags.items())
        return WorkQueueRunner(options.queue, words)

    def order(self, at: datetime) -> Order:
        """The job of one firing, for an app in memory."""
        task, options = self.task, self.task.defaults
        payload = Envelope(task.name).encode(task.app.codec)
        if self.overlap == "skip":
            return Order(stable_id(task.name), payload, replace(options, unique="args"))
        key = key_name(task.name) if self.overlap == "queue" else ""
        return Order(stable_id(task.name, at.isoformat()), payload, options, limit_key=key)
