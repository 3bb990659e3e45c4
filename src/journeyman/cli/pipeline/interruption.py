"""Ctrl-C while Spark works: its jobs are cancelled, then the command, or the statement, ends.

    SIGINT --> a thread cancels all jobs, again and again --> the main thread's call fails
           --> KeyboardInterrupt, once it is safe            (a second SIGINT: at once)

pyspark's own handler cancels from the middle of whatever call it interrupts, over the connection
which that call is using: that leaves the job running and a trace on stderr. So the signal only
wakes a thread here, which has a connection of its own. It asks more than once because a job may
begin between two of the calls of one command.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_AGAIN_S = 0.2


@contextmanager
def interruptible(cancel: Callable[[], object]) -> Iterator[None]:
    """Let Ctrl-C call ``cancel`` and end the block by KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked, ended = threading.Event(), threading.Event()

    def on_signal(*_: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        threading.Thread(target=_keep_cancelling, args=(cancel, ended), daemon=True).start()

    with _handler(on_signal):
        try:
            yield
        except Exception:
            if asked.is_set():
                raise KeyboardInterrupt from None
            raise
        finally:
            ended.set()
        if asked.is_set():
            raise KeyboardInterrupt


@contextmanager
def plainly_interruptible() -> Iterator[None]:
    """Let Ctrl-C be what it is in any Python program: KeyboardInterrupt, at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _handler(signal.default_int_handler):
        yield


@contextmanager
def _handler(handler: Callable[..., object]) -> Iterator[None]:
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _keep_cancelling(cancel: Callable[[], object], ended: threading.Event) -> None:
    cancel()
    while not ended.wait(_AGAIN_S):
        cancel()
