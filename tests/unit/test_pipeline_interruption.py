"""Ctrl-C while Spark works."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from journeyman.cli.pipeline.shared import interruptible, plainly_interruptible

PATIENCE_S = 60


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_cancels_from_another_thread_until_the_work_ends():
    cancelled = threading.Semaphore(0)
    by: set[threading.Thread] = set()

    def cancel() -> None:
        by.add(threading.current_thread())
        cancelled.release()

    def work_that_is_cancelled() -> None:
        with interruptible(cancel):
            press_ctrl_c()
            assert cancelled.acquire(timeout=PATIENCE_S)
            assert cancelled.acquire(timeout=PATIENCE_S)
            raise OSError("job cancelled")

    with pytest.raises(KeyboardInterrupt) as raised:
        work_that_is_cancelled()

    assert raised.value.__cause__ is None
    assert threading.main_thread() not in by


def test_work_that_ends_by_itself_meanwhile_is_interrupted_too():
    def short_work() -> None:
        with interruptible(lambda: None):
            press_ctrl_c()

    with pytest.raises(KeyboardInterrupt):
        short_work()


def test_a_second_ctrl_c_waits_for_nothing():
    after: list[str] = []

    def stubborn_work() -> None:
        with interruptible(lambda: None):
            press_ctrl_c()
            press_ctrl_c()
            after.append("went on")

    with pytest.raises(KeyboardInterrupt):
        stubborn_work()

    assert after == []


def test_an_error_of_its_own_is_left_alone():
    with pytest.raises(OSError, match="disk"), interruptible(lambda: None):
        raise OSError("disk")


def test_the_handler_before_is_back_afterwards():
    before = signal.getsignal(signal.SIGINT)

    with interruptible(lambda: None), plainly_interruptible():
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    assert signal.getsignal(signal.SIGINT) is before


def test_in_another_thread_signals_are_left_alone():
    seen: list[object] = []

    def work() -> None:
        with interruptible(lambda: None), plainly_interruptible():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert seen == [signal.getsignal(signal.SIGINT)]
