"""Threads of a worker: a function can be interrupted, and nothing of that is left afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from typing import Any

from journeyman.tasks.worker.threads import ThreadPool, Work

PATIENCE_S = 60.0


class Interrupted(Exception):
    pass


class Outcome:
    """What a function returned or raised."""

    def __init__(self) -> None:
        self.has_ended = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def __call__(self, value: Any, error: BaseException | None) -> None:
        self.value, self.error = value, error
        self.has_ended.set()


def run_interrupted(pool: ThreadPool) -> None:
    begun, outcome = threading.Event(), Outcome()

    def wait_long() -> None:
        begun.set()
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            time.sleep(0.001)

    work = Work(wait_long, outcome)
    pool.submit(work)
    assert begun.wait(PATIENCE_S)
    pool.interrupt(work, Interrupted)
    assert outcome.has_ended.wait(PATIENCE_S)
    assert isinstance(outcome.error, Interrupted)


def test_an_interruption_does_not_hit_the_next_function():
    pool = ThreadPool(1)
    for number in range(100):
        first, second = Outcome(), Outcome()
        begun = threading.Event()
        work = Work(begun.set, first)
        pool.submit(work)
        assert begun.wait(PATIENCE_S)
        pool.interrupt(work, Interrupted)  # it may be about to end, or have ended
        assert first.has_ended.wait(PATIENCE_S)
        assert first.error is None or isinstance(first.error, Interrupted)
        pool.submit(Work(partial(sum, range(1_000), number), second))
        assert second.has_ended.wait(PATIENCE_S)
        assert (second.value, second.error) == (499_500 + number, None)
    pool.close()


def test_a_process_goes_on_under_a_tracer_after_an_interruption():
    """Python 3.11 hangs under a tracer while it believes that an interruption is on its way."""
    script = (
        "import sys\n"
        "from tests.unit.test_tasks_threads import ThreadPool, run_interrupted\n"
        "run_interrupted(ThreadPool(1))\n"
        "def traced(): return 7\n"
        "sys.settrace(lambda frame, event, argument: None)\n"
        "print(traced())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "7\n"
