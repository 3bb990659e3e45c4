"""The part of an application that its tasks need, and the context in which jobs are sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

from journeyman.tasks.broker import Broker
from journeyman.tasks.envelope import Codec


class Application(Protocol):
    """An ``App``, as far as its tasks and their jobs need it."""

    @property
    def broker(self) -> Broker: ...

    @property
    def codec(self) -> Codec: ...

    @property
    def tasks(self) -> Mapping[str, Any]:
        """Return its tasks by name."""
        ...

    @property
    def contexts(self) -> Sequence[Callable[[], AbstractContextManager[Any]]]:
        """Return what is entered around every function."""
        ...

    @property
    def now(self) -> Callable[[], datetime]: ...

    def sending(self, task: str, queue: str) -> Sending: ...


SendContext = Callable[["Sending"], AbstractContextManager[Any]]


class Sending:
    """Jobs that are being sent, inside of the contexts of the middleware. ``task`` and ``queue``
    are those of the first job; the ids are known when the jobs are made."""

    __slots__ = ("_contexts", "_entered", "job_ids", "queue", "task")

    def __init__(self, task: str, queue: str, contexts: Sequence[SendContext]) -> None:
        self.task = task
        self.queue = queue
        self.job_ids: list[str] = []
        self._contexts = contexts
        self._entered: ExitStack | None = None

    def __enter__(self) -> Self:
        if self._contexts:
            with ExitStack() as stack:
                for context in self._contexts:
                    stack.enter_context(context(self))
                self._entered = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._entered is not None:
            self._entered.__exit__(kind, error, trace)
