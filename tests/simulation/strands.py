"""Threads that can wait: the threads of a simulated process are greenlets, one of which runs.

    Strand        a thread of a process: it runs until it waits, and goes on when it is woken
    StrandLoop    an event loop whose steps may wait as well; the loop is blocked meanwhile
    StrandThreads pools, workers and threads of journeyman.threads
    simulated     ``threading`` and ``time`` for the modules of journeyman, inside of a story

What waits here waits in virtual time: for a lock, an event, an answer of a database. The other
threads of the process and all other processes go on. A process that is frozen does not go on, one
that is dead never does: each of its threads ends where it waits.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from typing import Any

from greenlet import getcurrent, greenlet

from journeyman.threads import WorkerThread
from journeyman.units import NS_PER_S
from tests.simulation.world import Loop, PoolWorker, World


class ProcessEnded(BaseException):
    """The process of this thread has ended."""


class StrandLoop(Loop):
    """The event loop of a process whose threads can wait."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.side = ThreadSide(self)
        self.strands: dict[Strand, None] = {}
        self._blocked_steps: deque[events.Handle] | None = None
        self._signal_handlers: dict[int, Callable[[], Any]] = {}

    def run_step(self, handle: events.Handle) -> None:
        if self._blocked_steps is not None:
            self._blocked_steps.append(handle)
            return
        self._blocked_steps = deque()
        Strand(self, partial(self._run_and_unblock, handle), self).go()

    def _run_and_unblock(self, handle: events.Handle) -> None:
        try:
            handle._run()
        finally:
            steps, self._blocked_steps = self._blocked_steps, None
            self.world.call_next(steps or ())

    def add_signal_handler(  # type: ignore[override]
        self, number: int, call: Callable[..., Any], *args: Any
    ) -> None:
        self._signal_handlers[number] = partial(call, *args)

    def handle_signal(self, number: int) -> None:
        if number in self._signal_handlers:
            self.call_soon(self._signal_handlers[number])

    def die(self) -> None:
        self.is_dead = True
        for strand in list(self.strands):
            strand.end()
        super().die()


class ThreadSide:
    """Where steps of threads happen: with the process, but not on its event loop."""

    def __init__(self, loop: StrandLoop) -> None:
        self.loop = loop

    @property
    def is_dead(self) -> bool:
        return self.loop.is_dead

    @property
    def frozen_until_ns(self) -> int:
        return self.loop.frozen_until_ns

    @frozen_until_ns.setter
    def frozen_until_ns(self, until_ns: int) -> None:
        self.loop.frozen_until_ns = until_ns

    def get_debug(self) -> bool:
        return False

    def call_soon(self, call: Callable[..., None], *arguments: Any) -> None:
        self.loop.world.call_soon(events.Handle(call, arguments, self))  # type: ignore[arg-type]

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        world = self.loop.world
        when_ns = world.clock.monotonic_ns() + max(0, int(seconds * NS_PER_S))
        world.call_at(when_ns, events.Handle(call, arguments, self))  # type: ignore[arg-type]

    def run_step(self, handle: events.Handle) -> None:
        handle._run()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.loop.call_exception_handler(context)


class Strand(greenlet):  # type: ignore[misc]
    """See the module. ``running``: the event loop that its code runs on; None for a thread."""

    def __init__(
        self, loop: StrandLoop, call: Callable[[], None], running: Loop | None = None
    ) -> None:
        super().__init__(self._run_all, loop.world.hub)
        self.loop = loop
        self._call = call
        self._running = running
        self._turn = 0
        self._has_begun = False
        self.gr_context = copy_context()
        loop.strands[self] = None

    def _run_all(self) -> None:
        self._has_begun = True
        try:
            self._call()
        except ProcessEnded:
            pass
        finally:
            self.loop.strands.pop(self, None)

    def go(self, answer: object = None) -> None:
        """Called by the hub: run until it waits or ends."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(self._running)
        try:
            self.switch(*([answer] if self._has_begun else []))
        finally:
            asyncio._set_running_loop(before)

    def pause(self, timeout_s: float | None = None) -> bool:
        """Called by itself: wait until it is woken. False: the time was over first."""
        if self.loop.is_dead:
            raise ProcessEnded
        if timeout_s is not None:
            self.loop.side.call_later(timeout_s, self._resume, self._turn, False)
        is_woken = bool(self.parent.switch())
        if self.loop.is_dead:
            raise ProcessEnded
        return is_woken

    def wake(self) -> None:
        self.loop.side.call_soon(self._resume, self._turn, True)

    def _resume(self, turn: int, is_woken: bool) -> None:
        if turn == self._turn and not self.dead:
            self._turn += 1
            self.go(is_woken)

    def end(self) -> None:
        """The process has ended. Called by the hub."""
        if self is getcurrent() or self.dead:
            return
        if self._has_begun:
            self.throw(ProcessEnded)
        else:
            self.loop.strands.pop(self, None)


def current_strand() -> Strand:
    strand = getcurrent()
    assert isinstance(strand, Strand), "only a thread of a simulated process can wait"
    return strand


def start_strand(loop: StrandLoop, call: Callable[[], None], after_s: float = 0.0) -> Strand:
    strand = Strand(loop, call)
    loop.side.call_later(after_s, strand.go)
    return strand


class _Lock:
    def __init__(self) -> None:
        self._is_held = False
        self._waiting: deque[Strand] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        while self._is_held:
            if not blocking or not _wait_in(self._waiting, None if timeout < 0 else timeout):
                return False
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        _wake_first(self._waiting)

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _ReentrantLock(_Lock):
    def __init__(self) -> None:
        super().__init__()
        self._owner: object = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._owner is not getcurrent():
            if not super().acquire(blocking, timeout):
                return False
            self._owner = getcurrent()
        self._count += 1
        return True

    def release(self) -> None:
        self._count -= 1
        if not self._count:
            self._owner = None
            super().release()


class _Event:
    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[Strand] = deque()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        while self._waiting:
            _wake_first(self._waiting)

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            _wait_in(self._waiting, timeout)
        return self._is_set


class _Condition(_ReentrantLock):
    def __init__(self) -> None:
        super().__init__()
        self._noticed: deque[Strand] = deque()

    def wait_for(self, is_so: Callable[[], bool], timeout: float | None = None) -> bool:
        while not is_so():
            self.release()
            is_woken = _wait_in(self._noticed, timeout)
            self.acquire()
            if not is_woken:
                return is_so()
        return True

    def notify_all(self) -> None:
        while self._noticed:
            _wake_first(self._noticed)


class _Timer:
    daemon = True

    def __init__(self, interval: float, function: Callable[..., Any], args: Any = ()) -> None:
        self._interval = interval
        self._call = partial(function, *args)
        self._is_canceled = False

    def start(self) -> None:
        start_strand(current_strand().loop, self._run, self._interval)

    def cancel(self) -> None:
        self._is_canceled = True

    def _run(self) -> None:
        if not self._is_canceled:
            self._call()


def _wait_in(waiting: deque[Strand], timeout_s: float | None) -> bool:
    strand = current_strand()
    waiting.append(strand)
    try:
        return strand.pause(timeout_s)
    finally:
        if strand in waiting:
            waiting.remove(strand)


def _wake_first(waiting: deque[Strand]) -> None:
    if waiting:
        waiting.popleft().wake()


class _Namespace:
    """A module with some names replaced."""

    def __init__(self, module: Any, **replaced: Any) -> None:
        self.__dict__.update(replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def replaced(module: Any, **names: Any) -> Any:
    """The module with these names replaced."""
    return _Namespace(module, **names)


def _clock_gettime_ns(_: int) -> int:
    return current_world[-1].clock.monotonic_ns()


current_world: list[World] = []
THREADING = replaced(
    threading,
    Lock=_Lock,
    RLock=_ReentrantLock,
    Event=_Event,
    Condition=_Condition,
    Timer=_Timer,
)
TIME = replaced(
    time,
    sleep=lambda seconds: current_strand().pause(seconds),
    clock_gettime_ns=_clock_gettime_ns,
)


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Modules of journeyman that are imported have locks, events and clocks of this world."""
    modules = [m for name, m in sys.modules.items() if name.startswith("journeyman.")]
    changed = [(m, "threading", m.threading) for m in modules if vars(m).get("threading")]
    changed += [(m, "time", m.time) for m in modules if vars(m).get("time") is time]
    current_world.append(world)
    for module, name, _ in changed:
        setattr(module, name, THREADING if name == "threading" else TIME)
    try:
        yield
    finally:
        current_world.pop()
        for module, name, real in changed:
            setattr(module, name, real)


class StrandThreads:
    """Threads of the process whose loop this is."""

    def __init__(self, loop: StrandLoop) -> None:
        self._loop = loop
        self._submitted: dict[Future[Any], tuple[str, int]] = {}

    def begun_ns(self, name: str = "") -> int | None:
        """Since when the oldest work of threads with this name waits or is done."""
        begun = (at_ns for kind, at_ns in self._submitted.values() if kind.startswith(name))
        return min(begun, default=None)

    def worker(self, name: str) -> WorkerThread:
        return PoolWorker(self.pool(1, name))

    def pool(self, workers: int, name: str) -> Executor:
        return _StrandPool(self._loop, workers, partial(self._note, name))

    def _note(self, name: str, future: Future[Any]) -> None:
        self._submitted[future] = (name, self._loop.world.clock.monotonic_ns())
        future.add_done_callback(self._submitted.pop)

    def start(self, target: Callable[[], None], name: str, *, daemon: bool) -> _StartedStrand:
        del name, daemon
        return _StartedStrand(self._loop, target)


class _StrandPool(Executor):
    def __init__(self, loop: StrandLoop, workers: int, note: Callable[[Future[Any]], None]) -> None:
        self._loop = loop
        self._note = note
        self._idle = workers
        self._workers = workers
        self._work: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._has_ended = _Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._note(future)
        self._work.append((future, partial(fn, *args, **kwargs)))
        if self._idle:
            self._idle -= 1
            start_strand(self._loop, self._run)
        return future

    def _run(self) -> None:
        while self._work:
            future, work = self._work.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    result = work()
                except Exception as error:  # noqa: BLE001 - as a real pool does
                    future.set_exception(error)
                else:
                    future.set_result(result)
        self._idle += 1
        if self._idle == self._workers:
            self._has_ended.set()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures
        while wait and self._idle < self._workers:
            self._has_ended.clear()
            self._has_ended.wait()


class _StartedStrand:
    def __init__(self, loop: StrandLoop, target: Callable[[], None]) -> None:
        self._has_ended = _Event()
        self._target = target
        start_strand(loop, self._run)

    def _run(self) -> None:
        try:
            self._target()
        finally:
            self._has_ended.set()

    def is_alive(self) -> bool:
        return not self._has_ended.is_set()

    def join(self) -> None:
        self._has_ended.wait()
