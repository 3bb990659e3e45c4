"""Threads that run the functions of jobs, and can be interrupted.

    pool.submit(work)            a thread calls it ; started when needed, at most ``size`` at a time
    pool.interrupt(work, error)  raises error inside of it, as soon as it runs Python code again
    pool.signal_programs(work)   what it has started and waits for gets a signal (programs.py)
    pool.abandon(work)           a thread that does not react is left alone and replaced

Threads are daemons: one that hangs in a system call does not keep the worker from ending.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from journeyman.tasks.worker.programs import seconds_since_boot, signal_programs


class Work:
    """A function to be called once, by some thread; ``ended`` gets what it returns or raises."""

    __slots__ = ("begun_s", "call", "ended", "error", "is_abandoned", "lock", "native", "thread")

    def __init__(
        self, call: Callable[[], Any], ended: Callable[[Any, BaseException | None], None]
    ) -> None:
        self.call = call
        self.ended = ended
        self.lock = threading.Lock()
        self.thread: int | None = None  # the thread that runs it now
        self.native = 0  # the kernel's number of this thread
        self.begun_s = 0.0  # seconds since the boot
        self.error: type[BaseException] | None = None  # it was interrupted with
        self.is_abandoned = False


class ThreadPool:
    def __init__(self, size: int) -> None:
        self._size = size
        self._waiting: SimpleQueue[Work | None] = SimpleQueue()
        self._started = 0
        self._busy = 0  # submitted and not finished; only the submitting thread adds
        self._count = threading.Lock()

    def submit(self, work: Work) -> None:
        with self._count:
            self._busy += 1
            if self._busy > self._started and self._started < self._size:
                self._started += 1
                threading.Thread(target=self._run, name="journeyman-job", daemon=True).start()
        self._waiting.put(work)

    def interrupt(self, work: Work, error: type[BaseException]) -> None:
        with work.lock:
            work.error = error
            if work.thread is not None:
                _raise_in(work.thread, error)

    def signal_programs(self, work: Work, number: int) -> None:
        """Send this signal to the programs that the function has started and that still run."""
        with work.lock:  # so that the thread does not go on to other work meanwhile
            if work.thread is not None:
                signal_programs(work.native, work.begun_s, number)

    def abandon(self, work: Work) -> None:
        """Start another thread in place of the one that does not come back from this."""
        with self._count:
            work.is_abandoned = True
            self._busy -= 1
            self._started -= 1

    def close(self) -> None:
        for _ in range(self._started):
            self._waiting.put(None)

    def _run(self) -> None:
        me, native = threading.get_ident(), threading.get_native_id()
        while (work := self._waiting.get()) is not None:
            value, error = None, None
            try:
                with work.lock:
                    if work.error is not None:  # interrupted before it began
                        raise work.error
                    work.thread, work.native = me, native
                    work.begun_s = seconds_since_boot()
                value = work.call()
            except BaseException as raised:  # noqa: BLE001 - interruptions, too
                error = raised
            while work.thread is not None:
                try:
                    _leave(work, me)
                except _Awaited:
                    break
                except BaseException as late:  # noqa: BLE001 - it came after the function's end
                    error = late
            work.ended(value, error)
            with self._count:
                if work.is_abandoned:  # another thread has taken this one's place
                    return
                self._busy -= 1


class _Awaited(BaseException):
    """Raised by a thread in itself, in place of an interruption that has not been raised yet."""


def _leave(work: Work, me: int) -> None:
    """Make the work one that cannot be interrupted any more."""
    with work.lock:
        work.thread = None
        is_interrupted = work.error is not None
    if is_interrupted:
        # The interruption may still be on its way, and would hit the thread's next work. It cannot
        # just be taken back: Python 3.11 looks for one at every step until some thread raises one.
        _raise_in(me, _Awaited)
        while True:
            pass


def _raise_in(thread: int, error: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
