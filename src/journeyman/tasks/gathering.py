"""Sends of several threads travel together: one request and one reply for those that wait.

    thread 1 --job--> on its way                     up to LANES threads go at once, alone
    thread 2 --job--> waits ---+ when 1 is answered, 2 has the turn, and takes 3 and 4 along
    thread 3 --job--> waits    |
    thread 4 --job--> waits ---+

The server parses, records and syncs a batch at once, so many senders cost it little more than one.
There is no thread for this and no delay. A batch is bounded; what breaks it is raised in each
thread that has a job in it. The turn goes to the thread that waits longest, so none is overtaken.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

J = TypeVar("J")
R = TypeVar("R")

LANES = 4  # batches that are under way at a time
MAX_JOBS = 64  # of a batch


class _Waiting(Generic[J, R]):
    """A job of a thread, and what came of it."""

    __slots__ = ("error", "has_turn", "job", "outcome", "woken")

    def __init__(self, job: J) -> None:
        self.job = job
        self.has_turn = False  # its thread is to send it; else it was sent along
        self.outcome: R | None = None
        self.error: BaseException | None = None
        self.woken = threading.Lock()  # free when the wait is over
        self.woken.acquire()


class Gathering(Generic[J, R]):
    """See the module. ``send`` returns the outcome of each of these jobs, or raises."""

    def __init__(self, send: Callable[[Sequence[J]], Sequence[R]]) -> None:
        self._send = send
        self._start_over()

    def _start_over(self) -> None:
        """A forked child has none of the threads that wait."""
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._turns = 0  # threads that have one
        self._waiting: deque[_Waiting[J, R]] = deque()  # without a turn, and not on their way

    def add(self, job: J) -> R:
        """Send this job, perhaps together with those of other threads."""
        if self._process != os.getpid():
            self._start_over()
        with self._lock:
            if self._turns < LANES:
                self._turns += 1
                waiting = None
            else:
                waiting = _Waiting[J, R](job)
                self._waiting.append(waiting)
        if waiting is not None:
            self._wait(waiting)
            if not waiting.has_turn:
                if waiting.error is not None:
                    raise waiting.error
                return waiting.outcome  # type: ignore[return-value]
        return self._send_with_those_that_wait(job)

    def _wait(self, mine: _Waiting[J, R]) -> None:
        try:
            mine.woken.acquire()
        except BaseException:  # Ctrl-C: leave, and let the others go on
            with self._lock:
                if mine in self._waiting:
                    self._waiting.remove(mine)
            if mine.has_turn:
                self._pass_on()
            raise

    def _send_with_those_that_wait(self, job: J) -> R:
        along: list[_Waiting[J, R]] = []
        if self._waiting:
            with self._lock:
                count = min(len(self._waiting), MAX_JOBS - 1)
                along = [self._waiting.popleft() for _ in range(count)]
        try:
            mine, *theirs = self._send([job, *(each.job for each in along)])
        except BaseException as error:
            for each in along:
                each.error = error
            raise
        else:
            for each, outcome in zip(along, theirs, strict=True):
                each.outcome = outcome
            return mine
        finally:
            self._pass_on()
            for each in along:
                each.woken.release()

    def _pass_on(self) -> None:
        with self._lock:
            if self._waiting:
                following = self._waiting.popleft()
                following.has_turn = True
                following.woken.release()
            else:
                self._turns -= 1
