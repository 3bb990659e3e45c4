"""One workq connection: commands to the writer, one at a time where one may wait.

The flow of bytes, commands and answers, and its bounds, are in connection.py. Here:

    lease, result, run   nothing after it starts before it is answered: only this connection waits
    inspect              the same, so that what a client does not fetch stays bounded
    large answers        are made when they can be sent: until then they share the job's bytes
    many megabytes       are taken on only as the ones before are answered
    end of input         what was received is still answered, in order. A lease or run that waits
                         is answered with TIMEOUT at once, because the client may have left: a
                         worker that closed its connection gets no job. A result is waited for.

So that the end of a connection is seen while its command waits, a little is read ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from journeyman.protocols.workq import commands, replies
from journeyman.protocols.workq.parser import WorkqParser
from journeyman.servers.core.connection import Answer, Connection, PortContext
from journeyman.servers.workq.writer import CAN_WAIT, request_size

LOAD_BYTES = 4 * 1024 * 1024  # payloads of one connection that the writer holds at a time
READ_AHEAD_BYTES = 64 * 1024
LARGE_BYTES = 16 * 1024  # an answer with more payload than this is made when it can be sent

_OK = replies.reply_bytes(replies.DONE)
_DECIDED_ALONE = CAN_WAIT | {
    commands.InspectJob,
    commands.InspectProgress,
    commands.InspectSteps,
    commands.InspectEvent,
    commands.Park,
    commands.Fork,
    commands.InspectJobs,
    commands.InspectScheduledJobs,
    commands.InspectDeadJobs,
    commands.InspectQueues,
    commands.InspectPausedQueues,
}


@dataclass(slots=True)
class WorkqContext(PortContext):
    """The context that all sessions of the work queue share."""

    started_ns: int = field(kw_only=True)


class WorkqSession(Connection):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = ("_is_finishing", "_load", "_parser", "_waits_for_result", "is_lost")

    _context: WorkqContext

    window_bytes = LOAD_BYTES

    welcome = _OK
    secret_is_wrong = replies.reply_bytes(commands.RefusedLine(commands.Complaint.AUTH_FAILED))
    secret_is_missing = replies.reply_bytes(commands.RefusedLine(commands.Complaint.AUTH_REQUIRED))
    try_again = b"-SERVER-ERROR Busy, try again\r\n"
    last_event = commands.HangUp
    why_last = "not the workq protocol"

    def __init__(self, context: WorkqContext) -> None:
        super().__init__(context)
        self._parser = WorkqParser(auth_required=context.access.tokens is not None)
        self._load = 0  # bytes of payload in flight, at most
        self._waits_for_result = False  # the command that stands alone is a result
        self._is_finishing = False  # the server stops
        self.is_lost = False

    def _parse(self, data: bytes) -> list[commands.Event]:
        return self._parser.feed(data)

    def _must_be_alone(self, event: Any) -> bool:
        if type(event) in _DECIDED_ALONE:
            self._waits_for_result = type(event) is commands.AwaitResult
            return True
        size = request_size(event)
        self._load = size if self._in_flight == 1 else self._load + size
        return self._load >= LOAD_BYTES

    def _may_read_on(self) -> bool:
        is_waiting = self._is_alone and self._attempt is None
        return is_waiting and len(self._unparsed) < READ_AHEAD_BYTES

    # -- the end --

    def gives_up(self, request: Any) -> bool:
        if type(request) is commands.AwaitResult:
            return self._is_finishing or self._closing
        return self._ending or self._closing

    def eof_received(self) -> bool:
        self._ending = True
        if not self._waits_for_result:
            self._leave()
        self._close_if_done()
        return not self._closing

    def finish(self) -> None:
        self._is_finishing = True
        super().finish()
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        super().connection_lost(exc)
        self._leave()

    def _leave(self) -> None:
        if self._is_alone and self._in_flight:
            self._context.writer.leave(self)

    # -- from the writer --

    def render(self, reply: replies.Reply) -> Answer:
        if reply is replies.DONE:  # most often, so it is asked first
            return _OK
        if type(reply) is replies.Leased and len(reply.payload) < LARGE_BYTES:
            return replies.reply_bytes(reply)
        if type(reply) is replies.Leased:
            return partial(replies.reply_bytes, reply)
        if type(reply) is replies.Finished:
            return _made_when_sent(reply, len(reply.result))
        if isinstance(reply, replies.LeasedJobs):
            size = reply.payload_bytes
            return (
                replies.leased_parts(reply) if size >= LARGE_BYTES else replies.reply_bytes(reply)
            )
        if isinstance(reply, replies.JobList):
            return _jobs(reply)
        if isinstance(reply, replies.StepList) and reply.payload_bytes >= LARGE_BYTES:
            return replies.step_parts(reply)
        if isinstance(reply, replies.ServerView):
            clients, started_ns = len(self._context.sessions), self._context.started_ns
            reply = reply._replace(active_clients=clients, started_ns=started_ns)
        elif isinstance(reply, replies.TokenView):
            reply = replies.TokenView(self._context.access.salt_of(self.prefix))
        return replies.reply_bytes(reply)

    def render_failure(self) -> Answer:
        return replies.READ_ONLY


def _jobs(reply: replies.JobList) -> Answer:
    parts: Iterator[bytes] = replies.job_list_parts(reply)
    return b"".join(parts) if reply.payload_bytes < LARGE_BYTES else parts


def _made_when_sent(reply: replies.Reply, size: int) -> Answer:
    return replies.reply_bytes(reply) if size < LARGE_BYTES else partial(replies.reply_bytes, reply)
