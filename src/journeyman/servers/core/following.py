"""In a helper process: a thread that follows a log, beside the functions that the server calls.

    server --a question--> functions of the module, in the main thread
    log    --what is new--> step(), in the thread, while questions are answered

A module that follows offers ``start_following``, ``take_messages`` and ``close`` as they are here,
and calls ``prepare`` when it is opened. The server's end is follower_process.py.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from journeyman.errors import JourneymanError, UsageError

P = ParamSpec("P")
T = TypeVar("T")


class Refusal(NamedTuple):
    """Why there is no answer; ``is_usage``: because of what was asked."""

    reason: str
    is_usage: bool


def refusing(function: Callable[P, T]) -> Callable[P, T | Refusal]:
    """Errors become values: the server tells those of a question from those of the helper."""

    @wraps(function)
    def answer(*args: P.args, **kwargs: P.kwargs) -> T | Refusal:
        try:
            return function(*args, **kwargs)
        except (JourneymanError, OSError) as error:
            return Refusal(str(error), isinstance(error, UsageError))

    return answer


class Turns:
    """A lock whose holders take turns: a step that has just ended waits for a question that came
    meanwhile. Of a plain lock the thread that follows would mostly be the next holder again."""

    def __init__(self) -> None:
        self._next = threading.Lock()  # The one who is next has it.
        self._held = threading.Lock()

    def __enter__(self) -> None:
        with self._next:
            self._held.acquire()

    def __exit__(self, *_: object) -> None:
        self._held.release()

    @property
    def is_wanted(self) -> bool:
        """Return whether a thread waits for it."""
        return self._next.locked()


class _Following:
    """The one thread of this process that follows."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.has_ended = threading.Event()
        self.thread: threading.Thread | None = None
        self.failure: BaseException | None = None
        self.at_end: Callable[[], None] | None = None


_following = _Following()


def prepare_following(
    name: str, step: Callable[[], bool], poll_s: float, at_end: Callable[[], None]
) -> None:
    """``step`` will be called at once if it says that there may be more, else after ``poll_s``;
    ``at_end``, once the server has closed the pipe and the last step is over."""

    def go_on() -> None:
        try:
            while not _following.has_ended.is_set():
                if not step():
                    _following.has_ended.wait(poll_s)
        except BaseException as error:  # noqa: BLE001 - ``take_messages`` reports it
            _following.failure = error

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the server as well
    _following.thread = threading.Thread(target=go_on, name=name)
    _following.at_end = at_end


def say(text: str) -> None:
    """The server's log should have this."""
    _following.messages.append(text)


def start_following() -> None:
    """The log is recovered: it may be read."""
    assert _following.thread is not None
    _following.thread.start()


def take_messages() -> list[str]:
    """Return what the server's log should say since the last call. Raises what ended the
    following."""
    if _following.failure is not None:
        raise _following.failure
    count = len(_following.messages)
    taken, _following.messages[:count] = _following.messages[:count], []
    return taken


def close() -> None:
    """The server has closed the pipe."""
    _following.has_ended.set()
    if _following.thread is not None and _following.thread.is_alive():
        _following.thread.join()
    if _following.at_end is not None:
        _following.at_end()
