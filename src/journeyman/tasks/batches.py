"""Batches: a task whose function takes many jobs at once.

    @app.batch(100, within=2)
    def index(pages: list[Page]) -> None: ...

    index.send(page)        one job, as ever: its own id, result and retries

A worker leases jobs of the task until there are 100, or 2 seconds after the first one, and calls
the function once with the list of their arguments. They end together: if it returns nothing, all
are done; a list has the result of each, in order; an exception fails them all. A job that has
failed before is run in a batch of its own, so that one bad job does not take others with it again
and again.

    members (Prepared of each job) --batch_of--> Prepared --attempt--> BatchEnded(outcomes)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, get_args, get_origin

from journeyman.errors import UsageError
from journeyman.tasks.arguments import Arguments
from journeyman.tasks.durations import Seconds, seconds
from journeyman.tasks.options import Options, key_name
from journeyman.tasks.sending import Application
from journeyman.tasks.task import Task

A = TypeVar("A")
R = TypeVar("R")
T = TypeVar("T")

MAX_SIZE = 1000  # jobs of a batch
MAX_WITHIN_S = 3600.0


class BatchArguments(Arguments):
    """Annotations of one job: its argument is an item of the list, so is its result."""

    def hint_of_one(self, hint: Any) -> Any:
        """``Page`` of ``list[Page]``, also of ``list[Page] | None``."""
        for part in (hint, *get_args(hint)):
            if get_origin(part) is not None and (items := get_args(part)):
                return items[0]
        return Any


class BatchTask(Task[[A], R, T]):
    """A task whose function takes the arguments of many jobs. Created by ``app.batch``."""

    def __init__(
        self,
        app: Application,
        function: Callable[[list[A]], R],
        name: str,
        options: Options,
        size: int,
        within: Seconds,
    ) -> None:
        """Raises UsageError."""
        super().__init__(app, function, name, options)  # type: ignore[arg-type]
        if type(size) is not int or not 1 <= size <= MAX_SIZE:
            raise UsageError(f"the size of a batch is a number from 1 to {MAX_SIZE}: {size!r}")
        if len(inspect.signature(function).parameters) != 1:
            raise UsageError(f"{name}: the function of a batch takes one argument, a list")
        self.size = size
        self.within_s = 0.0 if within == 0 else seconds("within", within, MAX_WITHIN_S)
        self.arguments = BatchArguments(name, function)

    def __call__(self, items: list[A]) -> R:  # type: ignore[override]
        """Call the function here, with a list."""
        return self.function(items)  # type: ignore[arg-type]


def queue_of_batch(name: str, options: Options, *, is_chosen: bool) -> Options:
    """Batches have a queue of their own, because a worker leases from it in another way: unless
    one was chosen, it is called like the task."""
    return options if is_chosen else replace(options, queue=key_name(name))


def check_queues(tasks: Sequence[Task[Any, Any, Any]]) -> None:
    """Raises UsageError if a task shares the queue of a batch task."""
    batches = {task.defaults.queue: task for task in tasks if isinstance(task, BatchTask)}
    for task in tasks:
        owner = batches.get(task.defaults.queue)
        if owner is not None and owner is not task:
            raise UsageError(
                f"{owner.name} takes its jobs in batches, so its queue {task.defaults.queue!r}"
                f" cannot be that of {task.name} too; give one of them another queue"
            )
