"""Virtual time, and event loops on it: everything that happens is one step of one thread.

    World     clock --advances only here--> heap of timers, queue of what is ready --> one step
      Loop    an asyncio event loop of one simulated process; many share the world, each may die
              or be frozen for a while: what would happen in it meanwhile happens afterwards

Steps run in the order of their time, and at one time in the order in which they were asked for,
as asyncio promises. Nothing waits: when no step is ready, the clock jumps to the next timer. A
process that dies takes its steps along: whatever was still to happen in it never does.

All chance comes from ``World.random``, or from ``World.fork`` for parts whose number of draws must
not disturb others. ``note`` feeds a hash of all that can be seen from outside; two runs of a seed
are the same if their hashes are.

Threads of a simulated server are steps as well (``SimulatedThreads``):

    submit --after a delay by chance--> the work is done, here and now --> its future has a result

One piece of work is one step, so threads take turns between pieces of work, never inside of them;
power may be cut at every operation of the disk inside. A pool of N threads has N such lines. While
the disk is stalled (``stalled_s``) no work is done. ``begun_ns`` knows since when work waits.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future
from contextvars import Context
from hashlib import blake2b
from inspect import iscoroutine
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from journeyman.testing.manual_clock import ManualClock
from journeyman.threads import Work, WorkerThread
from journeyman.units import NS_PER_S

T = TypeVar("T")

MAX_WAITS_AT_AN_END = 100
MAX_STEPS_AT_ONE_TIME = 1_000_000  # then something spins


class Stuck(AssertionError):
    """Nothing can happen any more, or the same moment does not end."""


class PoolWorker:
    """A worker of journeyman.threads that is an executor: the executor's threads are simulated."""

    def __init__(self, pool: Executor) -> None:
        self._pool = pool

    def submit(self, work: Work) -> None:
        call, done = work
        self._pool.submit(call).add_done_callback(lambda future: done(future.exception()))

    def close(self) -> None:
        self._pool.shutdown(wait=True)


class World:
    """See the module."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.steps = 0
        self._timers: list[tuple[int, int, events.Handle]] = []
        self._ready: deque[events.Handle] = deque()
        self._asked = 0
        self._forward_ns = 0
        self._hash = blake2b(digest_size=16)
        self.hub: greenlet | None = None  # that makes the steps

    def fork(self, name: object) -> random.Random:
        """Chance of its own for a part with this name."""
        return random.Random(f"{self.seed}/{name}")

    def note(self, *facts: object) -> None:
        """Something that can be seen from outside has happened now."""
        self._hash.update(repr((self.clock.monotonic_ns(), facts)).encode())

    @property
    def trace(self) -> str:
        return self._hash.hexdigest()

    def set_clock(self, by_ns: int) -> None:
        """Set the wall clock forward or back."""
        self.clock.step_wall(by_ns)
        self._forward_ns += max(by_ns, 0)

    def elapsed_ns(self) -> int:
        """Time that has passed by any clock of a server: set forward it counts, set back it does
        not. What may end after some time has not ended if less than that has passed by this."""
        return self.clock.monotonic_ns() + self._forward_ns

    def call_soon(self, handle: events.Handle) -> None:
        self._ready.append(handle)

    def call_next(self, handles: Iterable[events.Handle]) -> None:
        """These come before all that is ready."""
        self._ready.extendleft(reversed(list(handles)))

    def call_at(self, when_ns: int, handle: events.Handle) -> None:
        self._asked += 1
        heapq.heappush(self._timers, (when_ns, self._asked, handle))

    def run_until(self, is_over: Callable[[], bool]) -> None:
        """Step until it is; Stuck if nothing is left to happen before."""
        ready, timers, clock = self._ready, self._timers, self.clock
        running: asyncio.AbstractEventLoop | None = None
        since = self.steps
        self.hub = getcurrent()
        try:
            while not is_over():
                if not ready:
                    if not timers:
                        raise Stuck("nothing is left to happen")
                    ahead_ns = timers[0][0] - clock.monotonic_ns()
                    if ahead_ns > 0:
                        clock.advance_ns(ahead_ns)
                        since = self.steps
                    ready.append(heapq.heappop(timers)[2])
                handle = ready.popleft()
                loop: Any = handle._loop  # type: ignore[attr-defined]
                if handle.cancelled() or loop.is_dead:
                    continue
                if loop.frozen_until_ns:
                    if clock.monotonic_ns() < loop.frozen_until_ns:
                        self.call_at(loop.frozen_until_ns, handle)
                        continue
                    loop.frozen_until_ns = 0
                if loop is not running:
                    asyncio._set_running_loop(loop)
                    running = loop
                self.steps += 1
                if self.steps - since > MAX_STEPS_AT_ONE_TIME:
                    raise Stuck(f"the same moment does not end: {handle!r}")
                loop.run_step(handle)
        finally:
            asyncio._set_running_loop(None)

    def loop(self) -> Loop:
        """An event loop for a process. What no server uses is not there."""
        return Loop(self)  # type: ignore[abstract]

    def run(self, loop: Loop, work: Coroutine[Any, Any, T]) -> T:
        """Step until the work is done; what it returned or raised."""
        task: asyncio.Task[T] = loop.create_task(work)
        self.run_until(task.done)
        return task.result()


class Loop(asyncio.AbstractEventLoop):
    """The event loop of one process. ``on_mistake`` hears of exceptions that no code caught."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_dead = False
        self.frozen_until_ns = 0  # monotonic; 0: it is not frozen
        self.on_mistake: Callable[[dict[str, Any]], None] = _raise
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.listen: Callable[..., Any] | None = None  # see network.py
        self._executor: Executor | None = None

    def run_step(self, handle: events.Handle) -> None:
        handle._run()

    # -- time --

    def time(self) -> float:
        return self.world.clock.monotonic_ns() / NS_PER_S

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.Handle:
        handle = events.Handle(callback, args, self, context)
        self.world.call_soon(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> events.TimerHandle:
        timer = events.TimerHandle(when, callback, args, self, context)
        when_ns = -int(-when * NS_PER_S // 1)
        # Never early, as ``time`` rounds: what is called too early may ask again for the same time.
        self.world.call_at(when_ns + (when_ns / NS_PER_S < when), timer)
        return timer

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """It is skipped when its time comes."""

    # -- tasks --

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, **options)
        self.tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self.tasks.pop(task, None)

    def use_executor(self, executor: Executor) -> None:
        """For ``run_in_executor`` without one."""
        self._executor = executor

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        chosen = executor or self._executor
        assert chosen is not None
        return asyncio.wrap_future(chosen.submit(func, *args), loop=self)

    async def create_server(self, *args: Any, **options: Any) -> Any:
        assert self.listen is not None
        return self.listen(*args, **options)

    async def subprocess_exec(self, *_: Any, **__: Any) -> Any:
        """A simulated machine has no room for another process."""
        raise BlockingIOError(errno.EAGAIN, "no process can be started")

    # -- the end --

    def die(self) -> None:
        """Nothing of this process happens any more. Its coroutines are closed, for their memory."""
        self.is_dead = True
        around = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # what its code begins now begins here, and never happens
        try:
            while self.tasks:  # one that is closed may begin others
                task = next(iter(self.tasks))
                del self.tasks[task]
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task.get_coro())
        finally:
            asyncio._set_running_loop(around)

    # -- what asyncio asks of a loop --

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.on_mistake(context)


def _close(work: Any) -> None:
    """What it does in the end, it does not do, wherever it waits for that: what it waits for first,
    which an end of this one would leave half closed."""
    for _ in range(MAX_WAITS_AT_AN_END):
        if iscoroutine(work) and iscoroutine(work.cr_await):
            _close(work.cr_await)
        try:
            work.close()
        except BaseException:  # noqa: BLE001, S112
            continue
        return


def _raise(context: dict[str, Any]) -> None:
    raise context.get("exception") or AssertionError(context.get("message"))


class SimulatedThreads:
    """Threads of the process whose loop this is. ``delay_s`` says how long the next step takes,
    ``stalled_s`` for how long the disk still does nothing."""

    def __init__(
        self,
        loop: Loop,
        chance: random.Random,
        delay_s: Callable[[random.Random], float],
        stalled_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._loop = loop
        self._chance = chance
        self._delay_s = delay_s
        self._stalled_s = stalled_s
        self._submitted: dict[Future[Any], tuple[str, int]] = {}

    def begun_ns(self, name: str = "") -> int | None:
        """Since when the oldest work of threads with this name waits or is done; None: there is
        none."""
        begun = (at_ns for kind, at_ns in self._submitted.values() if kind.startswith(name))
        return min(begun, default=None)

    def worker(self, name: str) -> WorkerThread:
        return PoolWorker(self.pool(1, name))

    def pool(self, workers: int, name: str) -> Executor:
        return _Pool(self._later, workers, lambda future: self._note(name, future))

    def _note(self, name: str, future: Future[Any]) -> None:
        self._submitted[future] = (name, self._loop.world.clock.monotonic_ns())
        future.add_done_callback(self._submitted.pop)

    def start(self, target: Callable[[], None], name: str, *, daemon: bool) -> _Started:
        return _Started(self._later, target)

    def _later(self, step: Callable[[], None]) -> None:
        self._loop.call_later(self._delay_s(self._chance), self._step, step)

    def _step(self, step: Callable[[], None]) -> None:
        if (wait_s := self._stalled_s()) > 0:
            self._loop.call_later(wait_s, self._step, step)
        else:
            step()


class _Pool(Executor):
    def __init__(
        self,
        later: Callable[[Callable[[], None]], None],
        workers: int,
        note: Callable[[Future[Any]], None],
    ) -> None:
        self._later = later
        self._note = note
        self._idle = workers
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._note(future)
        self._waiting.append((future, lambda: fn(*args, **kwargs)))
        if self._idle:
            self._idle -= 1
            self._later(self._step)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
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
