"""The only place that starts the threads of a server.

    worker("journeyman-writer")      one thread, one thing at a time: the writer
    pool(1, "journeyman-cleaning")   an executor: cleaning, checkpoints, reading
    start(compact, "journeyman-…")   a thread of its own: compactions

``using`` puts something else in their place for what is called inside of it, event loops that
start there included. tests.simulation does so: its threads are steps of a simulation.
Threads that only talk (stderr, telemetry, the history of runs) are not started here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Protocol, TypeAlias

Work: TypeAlias = tuple[Callable[[], None], Callable[[BaseException | None], None]]


class StartedThread(Protocol):
    def is_alive(self) -> bool: ...

    def join(self) -> None: ...


class WorkerThread(Protocol):
    """One thread that is handed one thing after another."""

    @property
    def submit(self) -> Callable[[Work], None]:
        """Call the first of the two in the thread; then, there too, the other with its error."""
        ...

    def close(self) -> None:
        """When all that was submitted is done."""
        ...


class Threads(Protocol):
    """Starts threads."""

    def worker(self, name: str) -> WorkerThread: ...

    def pool(self, workers: int, name: str) -> Executor: ...

    def start(self, target: Callable[[], None], name: str, *, daemon: bool) -> StartedThread: ...


class OneThread:
    """An executor's futures and their locks take twice as long to hand a batch over and back."""

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[Work | None] = SimpleQueue()
        self.submit: Callable[[Work], None] = self._work.put
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            call, done = work
            error: BaseException | None = None
            try:
                call()
            except BaseException as raised:  # noqa: BLE001 - it is for the one who waits
                error = raised
            done(error)
            del work, call, done, error  # nothing is kept while it waits


class SystemThreads:
    """The threads of the machine."""

    def worker(self, name: str) -> WorkerThread:
        return OneThread(name)

    def pool(self, workers: int, name: str) -> Executor:
        return ThreadPoolExecutor(workers, thread_name_prefix=name)

    def start(self, target: Callable[[], None], name: str, *, daemon: bool) -> StartedThread:
        thread = threading.Thread(target=target, name=name, daemon=daemon)
        thread.start()
        return thread


_threads: ContextVar[Threads] = ContextVar("threads")
_of_the_system = SystemThreads()


def worker(name: str) -> WorkerThread:
    """A thread that is handed one thing after another."""
    return _threads.get(_of_the_system).worker(name)


def pool(workers: int, name: str) -> Executor:
    """Return so many threads, which work through what is submitted, in order."""
    return _threads.get(_of_the_system).pool(workers, name)


def start(target: Callable[[], None], name: str, *, daemon: bool = False) -> StartedThread:
    """A thread that does one thing."""
    return _threads.get(_of_the_system).start(target, name, daemon=daemon)


@contextmanager
def using(threads: Threads) -> Iterator[None]:
    token = _threads.set(threads)
    try:
        yield
    finally:
        _threads.reset(token)
