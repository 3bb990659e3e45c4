"""A command from inside the process, as a client of a writer: from HTTP, or a rule of the schedule.

caller --ask--> InternalCall --submit--> writer --answered, or drop--> its future --> caller
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from journeyman.config import ALL_NAMESPACES


@dataclass(frozen=True, slots=True)
class NotDone:
    """The command was not carried out; it may be asked again."""

    reason: str


class InternalCall:
    """One command from inside the process, as a client of a writer. It never waits for anything.

    So it shows all that writers ask of a client; the others are the sessions of the dialects.
    """

    namespace = ALL_NAMESPACES
    prefix = ""  # the names of its queues begin with this
    sends_more = False  # no command follows this one on the same connection
    is_leaving = False  # its connection ends
    is_lost = False  # it takes no answers any more
    is_slow = False  # it does not fetch its answers; ``resume`` is called when it has
    is_held_back = False  # all clients together have too much unsent; likewise

    def __init__(self, loop: asyncio.AbstractEventLoop, has_stopped: str) -> None:
        self.reply: asyncio.Future[Any] = loop.create_future()
        self._has_stopped = has_stopped

    def begin(self, namespace: str) -> None:
        """Ask once more, or for the first time."""
        self.namespace = namespace
        self.prefix = "" if namespace == ALL_NAMESPACES else namespace
        if self.reply.done():
            self.reply = self.reply.get_loop().create_future()

    def denies(self, rule: Any) -> None:
        """Return None, which permits every rule: the caller has checked."""

    def gives_up(self, request: Any) -> bool:  # noqa: ARG002 - it never waits
        """Return whether it takes answers, but does not wait for one to this request."""
        return False

    def render(self, *request_and_reply: Any) -> Any:
        """Return what ``answered`` is given."""
        return request_and_reply[-1]

    def render_failure(self, *_: Any) -> NotDone:
        """Return the answer to a command that could not be recorded."""
        return NotDone("the change could not be recorded")

    def answered(self, answers: list[Any]) -> None:
        if not self.reply.done():  # the caller may have left
            self.reply.set_result(answers[0])

    def room(self) -> None:
        """Not asked for: there are never many of these."""

    def drop(self) -> None:
        if not self.reply.done():
            self.reply.set_result(NotDone(self._has_stopped))
