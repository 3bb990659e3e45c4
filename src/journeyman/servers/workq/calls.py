"""Commands of the work queue from inside the process: from HTTP, and from the schedule's rules.

    reply = await calls.ask(command)      through the same writer, durable when it is there
    reason = await calls.add(job)         "" when the job is there

These never wait for a job or a result: only commands that are answered at once may be asked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from journeyman.protocols.workq.commands import Add, Complaint, RefusedLine
from journeyman.protocols.workq.replies import Reply
from journeyman.servers.workq.writer import CAN_WAIT, Request, WorkqWriter


@dataclass(frozen=True, slots=True)
class NotDone:
    """The command was not carried out; it may be asked again."""

    reason: str


class WorkqCalls:
    """Asks the writer, one command at a time or many."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: WorkqWriter) -> None:
        self._loop = loop
        self._writer = writer

    async def ask(self, command: Request) -> Reply | NotDone:
        assert type(command) not in CAN_WAIT
        call = _Call(self._loop)
        self._writer.submit(call, [command])
        return await call.reply

    async def add(self, job: Add) -> str:
        """Add the job, unless it is there already. Why that could not be, or nothing."""
        reply = await self.ask(job)
        if isinstance(reply, NotDone):
            return reply.reason
        if isinstance(reply, RefusedLine) and reply.complaint is not Complaint.DUPLICATE_JOB:
            return f"the work queue refused the job: {reply.complaint}"
        return ""


class _Call:
    """One command, as a client of the writer."""

    is_lost = False
    prefix = ""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.reply: asyncio.Future[Reply | NotDone] = loop.create_future()

    def gives_up(self, request: Request) -> bool:  # noqa: ARG002 - it never waits
        return False

    def render(self, reply: Reply) -> Reply:
        return reply

    def render_failure(self) -> NotDone:
        return NotDone("the change could not be recorded")

    def answered(self, answers: list[Any]) -> None:
        (reply,) = answers
        if not self.reply.done():  # whoever asked may have gone
            self.reply.set_result(reply)

    def room(self) -> None:
        """Not asked for: there are never many of these."""

    def drop(self) -> None:
        if not self.reply.done():
            self.reply.set_result(NotDone("the work queue has stopped"))
