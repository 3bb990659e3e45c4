"""``App``: the tasks, timetables and hooks of one application, and where their jobs go.

    app = jm.App()                        $JOURNEYMAN_URL, or journeyman://127.0.0.1

    @app.task(queue="mail", retries=5)
    def send_mail(to: str) -> str: ...

    @app.cron("0 2 * * *", tz="Europe/Berlin")
    def nightly() -> None: ...

Nothing connects until the first job is sent. One process may have several apps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, overload
from uuid import UUID

from journeyman.client.service import DEFAULT_URL, URL_VARIABLE, parse_url
from journeyman.client.workq.lines import as_id
from journeyman.errors import TimetableError, UsageError
from journeyman.tasks.batches import BatchTask, queue_of_batch
from journeyman.tasks.broker import Broker, Relay
from journeyman.tasks.current import CurrentJob, FailedJob
from journeyman.tasks.durations import Seconds, seconds
from journeyman.tasks.envelope import Codec, JsonCodec, written
from journeyman.tasks.jobs import Job
from journeyman.tasks.options import Options, QueueLimits, TaskOptions, limits_by_queue
from journeyman.tasks.sending import SendContext, Sending
from journeyman.tasks.task import AnyTask, CatchUp, Overlap, Recurring, Task

P = ParamSpec("P")
A = TypeVar("A")
T = TypeVar("T")
H = TypeVar("H", bound=Callable[[FailedJob], Any])


class Middleware(Protocol):
    """Runs around every job of an app.

    If it also has a method ``sending``, that makes a context for every send: ``sending(sending:
    Sending) -> AbstractContextManager``.
    """

    async def around(self, job: CurrentJob, call: Callable[[], Awaitable[Any]]) -> Any:
        """Await ``call`` and return its value; an exception fails the attempt."""
        ...


class App:
    """The tasks, timetables and hooks of an application."""

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str = "",
        codec: Codec | None = None,
        patience: Seconds = 0.0,
        **defaults: Unpack[TaskOptions],
    ) -> None:
        """``name`` is a prefix for the names of tasks; ``defaults`` are options of every task.
        A ``url`` is checked at once, and connected to when the first job is sent.

        ``patience`` is how long sending waits for a server that cannot be reached, because it
        restarts for example; then it raises CannotConnect.
        """
        if url:
            parse_url(url)
        self._url = url
        self._patience_s = 0.0 if patience == 0 else seconds("patience", patience)
        self.name = name
        self.codec: Codec = JsonCodec() if codec is None else codec
        self.tasks: dict[str, AnyTask] = {}
        self.recurring: dict[str, Recurring] = {}
        self.middleware: list[Middleware] = []
        self.contexts: list[Callable[[], AbstractContextManager[Any]]] = []
        self._send_contexts: list[SendContext] = []
        self.failure_hooks: list[Callable[[FailedJob], Any]] = []
        self.outboxes: list[Relay] = []
        self._defaults = Options().with_(defaults)
        self._broker: Broker | None = None
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)

    # -- tasks -------------------------------------------------------------------------------------

    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def task(self, function: Callable[P, T], /) -> Task[P, T, T]: ...

    @overload
    def task(self, *, name: str | None = None, **options: Unpack[TaskOptions]) -> TaskMaker: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Make a function a task. ``name`` defaults to module and name of the function."""
        maker = TaskMaker(self, name, self._defaults.with_(options))
        return maker if function is None else maker(function)

    def batch(
        self,
        size: int,
        *,
        within: Seconds = 0.0,
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> BatchMaker:
        """Make a function a task that takes many jobs at once: their arguments as a list, when
        there are ``size`` jobs, or ``within`` seconds after the first one."""
        has_queue = "queue" in options
        return BatchMaker(self, name, self._defaults.with_(options), has_queue, size, within)

    def cron(
        self,
        expression: str,
        *,
        tz: str = "UTC",
        catch_up: CatchUp = "once",
        overlap: Overlap = "skip",
        jitter: Seconds = 0.0,
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> CronMaker:
        """Run a function without arguments by a cron expression in a time zone."""
        fields = {"cron": expression, "tz": tz, "catch_up": catch_up, **_jitter(jitter)}
        return CronMaker(self, name, self._defaults.with_(options), fields, overlap)

    def every(
        self,
        interval: Seconds,
        *,
        catch_up: CatchUp = "once",
        overlap: Overlap = "skip",
        jitter: Seconds = 0.0,
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> CronMaker:
        """Run a function without arguments every ``interval``, in whole seconds."""
        fields = {
            "every": _whole_seconds("interval", interval),
            "catch_up": catch_up,
            **_jitter(jitter),
        }
        return CronMaker(self, name, self._defaults.with_(options), fields, overlap)

    def limits(self) -> dict[str, QueueLimits]:
        """The limits that its tasks set on queues. Raises UsageError if two of them disagree."""
        options = {name: task.defaults for name, task in self.tasks.items()}
        options |= {name: each.options() for name, each in self.recurring.items()}
        return limits_by_queue(options)

    def add_task(
        self, function: Callable[P, Any], name: str | None, options: Options
    ) -> Task[P, Any, Any]:
        """Add a task, as the decorators do. Raises UsageError if the name is taken."""
        task: Task[P, Any, Any] = Task(self, function, self.full_name(function, name), options)
        self.keep_task(task)
        return task

    def full_name(self, function: Callable[..., Any], name: str | None) -> str:
        """The name of a task of this function, with the prefix of the app."""
        own = name if name is not None else _name_of(function)
        return f"{self.name}.{own}" if self.name else own

    def keep_task(self, task: AnyTask) -> None:
        """Raises UsageError if its name is taken."""
        if task.name in self.tasks:
            raise UsageError(f"two tasks are called {task.name!r}; give one of them a name=")
        self.tasks[task.name] = task
        if isinstance(task.defaults.on_failure, tuple):
            from journeyman.tasks.failure_reports import notice_task

            notice = notice_task(self, task.defaults.queue)
            self.tasks.setdefault(notice.name, notice)

    # -- hooks -------------------------------------------------------------------------------------

    def on_failure(self, hook: H) -> H:
        """Call this in the worker when a job has failed for good."""
        self.failure_hooks.append(hook)
        return hook

    def use(self, middleware: Middleware) -> None:
        """Run this around every job; the first one added is the outermost."""
        self.middleware.append(middleware)
        sending: SendContext | None = getattr(middleware, "sending", None)
        if sending is not None:
            self._send_contexts.append(sending)

    def sending(self, task: str, queue: str) -> Sending:
        """The context in which jobs are made and sent, the first of this task to this queue."""
        return Sending(task, queue, self._send_contexts)

    def within(self, context: Callable[[], AbstractContextManager[Any]]) -> None:
        """Enter a new context around every function, in the thread that runs it."""
        self.contexts.append(context)

    def use_outbox(self, outbox: Relay) -> None:
        """Workers of this app send the jobs in this outbox."""
        self.outboxes.append(outbox)

    # -- jobs --------------------------------------------------------------------------------------

    def job(self, job_id: str | UUID) -> Job[Any]:
        """A job that was sent before, by its id. Raises InvalidRequest if the id is invalid."""
        return Job(self.broker, self.codec, as_id(job_id))

    def emit(self, event: str, value: Any = None) -> None:
        """An event has happened, with this value: jobs that wait for it (``jm.wait_for``) go on,
        now and for as long as events are kept. Durable when this returns. The same again changes
        nothing; another value of the same event is refused."""
        self.broker.emit(event, self._event_value(event, value))

    async def aemit(self, event: str, value: Any = None) -> None:
        """``emit`` for asyncio."""
        await self.broker.aemit(event, self._event_value(event, value))

    def _event_value(self, event: str, value: Any) -> bytes:
        return b"" if value is None else written(self.codec, value, f"the value of {event!r}")

    @property
    def url(self) -> str:
        return self._url or os.environ.get(URL_VARIABLE) or DEFAULT_URL

    @property
    def broker(self) -> Broker:
        """Made at the first use."""
        if self._broker is None:
            from journeyman.tasks.server import ServerBroker

            self._broker = ServerBroker(self.url, self._patience_s)
        return self._broker

    def replace_broker(
        self, broker: Broker | None, now: Callable[[], datetime]
    ) -> tuple[Broker | None, Callable[[], datetime]]:
        """Replace the broker and its clock, for tests. Returns the previous ones."""
        before = self._broker, self.now
        self._broker, self.now = broker, now
        return before

    def use_server(self, url: str) -> None:
        """Use another server than the one given to the constructor."""
        self._url = url
        self._broker = None

    def close(self) -> None:
        """Close connections; the next job opens new ones."""
        if self._broker is not None:
            self._broker.close()

    async def aclose(self) -> None:
        """Like ``close``, including asyncio connections."""
        if self._broker is not None:
            await self._broker.aclose()

    def __repr__(self) -> str:
        return f"<journeyman.App {self.name or self.url!r}, {len(self.tasks)} tasks>"


class TaskMaker:
    """``@app.task(...)``."""

    def __init__(self, app: App, name: str | None, options: Options) -> None:
        self._app = app
        self._name = name
        self._options = options

    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...

    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._app.add_task(function, self._name, self._options)


class BatchMaker:
    """``@app.batch(...)``."""

    def __init__(
        self,
        app: App,
        name: str | None,
        options: Options,
        has_queue: bool,
        size: int,
        within: Seconds,
    ) -> None:
        self._app = app
        self._name = name
        self._options = options
        self._has_queue = has_queue
        self._size = size
        self._within = within

    @overload
    def __call__(
        self, function: Callable[[list[A]], Coroutine[Any, Any, list[T]]], /
    ) -> BatchTask[A, Coroutine[Any, Any, list[T]], T]: ...

    @overload
    def __call__(
        self, function: Callable[[list[A]], Coroutine[Any, Any, None]], /
    ) -> BatchTask[A, Coroutine[Any, Any, None], None]: ...

    @overload
    def __call__(self, function: Callable[[list[A]], list[T]], /) -> BatchTask[A, list[T], T]: ...

    @overload
    def __call__(self, function: Callable[[list[A]], None], /) -> BatchTask[A, None, None]: ...

    def __call__(self, function: Callable[[list[Any]], Any], /) -> Any:
        name = self._app.full_name(function, self._name)
        options = queue_of_batch(name, self._options, is_chosen=self._has_queue)
        task: BatchTask[Any, Any, Any] = BatchTask(
            self._app, function, name, options, self._size, self._within
        )
        self._app.keep_task(task)
        return task


class CronMaker:
    """``@app.cron(...)`` and ``@app.every(...)``."""

    def __init__(
        self,
        app: App,
        name: str | None,
        options: Options,
        fields: dict[str, str],
        overlap: Overlap,
    ) -> None:
        self._app = app
        self._name = name
        self._options = options
        self._fields = fields | {"overlap": overlap}
        self._overlap = overlap

    @overload
    def __call__(
        self, function: Callable[[], Coroutine[Any, Any, T]], /
    ) -> Task[[], Coroutine[Any, Any, T], T]: ...

    @overload
    def __call__(self, function: Callable[[], T], /) -> Task[[], T, T]: ...

    def __call__(self, function: Callable[[], Any], /) -> Any:
        task = self._app.add_task(function, self._name, self._options)
        task.bind((), {})
        recurring = Recurring(task, self._fields, self._overlap)
        try:
            assert recurring.timetable is not None  # every="..." without a timetable raises above
        except TimetableError as error:
            where = f"the timetable of {task.name}: {error.field}"
            raise TimetableError(where, error.problem, error.allowed) from None
        self._app.recurring[task.name] = recurring
        return task


def _jitter(value: Seconds) -> dict[str, str]:
    return {"jitter": _whole_seconds("jitter", value)} if value else {}


def _whole_seconds(name: str, value: Seconds) -> str:
    found = seconds(name, value)
    if not found.is_integer():
        raise UsageError(f"{name} must be whole seconds: {found:.15g}")
    return f"{found:.0f}s"


def _name_of(function: Callable[..., Any]) -> str:
    """``module.function``; the module of a program that is run directly is its file's name."""
    module = function.__module__
    if module == "__main__":
        path = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(path).stem if path else module
    return f"{module}.{function.__qualname__}".replace(".<locals>", "")
