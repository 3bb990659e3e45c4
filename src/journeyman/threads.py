"""The only place that starts the threads of a server.

    pool(1, "journeyman-writer")     an executor: the writer, cleaning, checkpoints, reading
    start(compact, "journeyman-…")   a thread of its own: compactions

``using`` puts something else in their place for what is called inside of it, event loops that
start there included. journeyman.testing.simulation does so: its threads are steps of a simulation.
Threads that only talk (stderr, telemetry, the history of runs) are not started here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class StartedThread(Protocol):
    def is_alive(self) -> bool: ...

    def join(self) -> None: ...


class Threads(Protocol):
    """What starts threads."""

    def pool(self, workers: int, name: str) -> Executor: ...

    def start(self, target: Callable[[], None], name: str, *, daemon: bool) -> StartedThread: ...


class SystemThreads:
    """Those of the machine."""

    def pool(self, workers: int, name: str) -> Executor:
        return ThreadPoolExecutor(workers, thread_name_prefix=name)

    def start(self, target: Callable[[], None], name: str, *, daemon: bool) -> StartedThread:
        thread = threading.Thread(target=target, name=name, daemon=daemon)
        thread.start()
        return thread


_threads: ContextVar[Threads] = ContextVar("threads")
_of_the_system = SystemThreads()


def pool(workers: int, name: str) -> Executor:
    """So many threads, which work through what is submitted, in order."""
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
