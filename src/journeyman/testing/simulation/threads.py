"""Threads of a simulated server: what is submitted is done later, as steps of the simulation.

    submit --after a delay by chance--> the work is done, here and now --> its future has a result

One piece of work is one step, so threads take turns between pieces of work, never inside of them;
power may be cut at every operation of the disk inside. A pool of N threads has N such lines.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from journeyman.testing.simulation.world import Loop
from journeyman.threads import PoolWorker, Worker


class SimulatedThreads:
    """Threads of the process whose loop this is. ``delay_s`` says how long the next step takes."""

    def __init__(
        self, loop: Loop, chance: random.Random, delay_s: Callable[[random.Random], float]
    ) -> None:
        self._loop = loop
        self._chance = chance
        self._delay_s = delay_s

    def worker(self, name: str) -> Worker:
        return PoolWorker(self.pool(1, name))

    def pool(self, workers: int, name: str) -> Executor:  # noqa: ARG002 - as of the machine
        return _Pool(self._later, workers)

    def start(self, target: Callable[[], None], name: str, *, daemon: bool) -> _Started:  # noqa: ARG002
        return _Started(self._later, target)

    def _later(self, step: Callable[[], None]) -> None:
        self._loop.call_later(self._delay_s(self._chance), step)


class _Pool(Executor):
    def __init__(self, later: Callable[[Callable[[], None]], None], workers: int) -> None:
        self._later = later
        self._idle = workers
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        if self._idle:
            self._idle -= 1
            self._later(self._step)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Do what waits: a real pool does so too."""
        while self._waiting:
            self._do_one()

    def _step(self) -> None:
        if self._waiting:
            self._do_one()
        if self._waiting:
            self._later(self._step)
        else:
            self._idle += 1

    def _do_one(self) -> None:
        future, work = self._waiting.popleft()
        if not future.set_running_or_notify_cancel():
            return  # the one who waited for it has left
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - as a real pool does
            future.set_exception(error)
        else:
            future.set_result(result)


class _Started:
    def __init__(
        self, later: Callable[[Callable[[], None]], None], target: Callable[[], None]
    ) -> None:
        self._target: Callable[[], None] | None = target
        later(self.join)

    def is_alive(self) -> bool:
        return self._target is not None

    def join(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target()
