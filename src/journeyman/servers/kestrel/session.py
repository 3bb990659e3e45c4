"""One connection of the kestrel protocol: commands to the writer, answers out in order.

The flow of bytes, commands and answers, and its bounds, are in connection.py. Here:

    get, monitor    may wait; the writer keeps what follows them
    monitor         is answered in parts: each item as it comes
    some refusals   end the connection once they are said
    large items     are taken on only as the ones before are answered, and not too many at once
    slow clients    get no more until they have fetched what they were given
    end of input    what was received is still answered, but without waiting
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from journeyman.protocols import Foreign
from journeyman.protocols.kestrel import commands as ask
from journeyman.protocols.kestrel import replies
from journeyman.protocols.kestrel.parser import KestrelParser
from journeyman.servers.core.connection import Connection, PortContext
from journeyman.servers.kestrel.writer import Unfinished, item_bytes

_OUTSIDE = ask.RefusedRequest("the queue is outside the namespace of the token")
_FOR_ALL = ask.RefusedRequest("this is for tokens of all namespaces")
SHARED_BYTES = 16 * 1024  # an item this large is not copied before it is sent
LOAD_BYTES = 4 * 1024 * 1024  # items of one connection that the writer holds at a time
READ_AHEAD_BYTES = 64 * 1024
_STORED = replies.reply_bytes(replies.STORED)
MAX_KEPT_BYTES = 256 * 1024 * 1024  # incomplete items, of all connections together
_TOO_MUCH = ask.RefusedRequest("too many large items are on their way", hangup=True)


def queue_in_scope(event: ask.Event, prefix: str) -> ask.Event:
    """The event, or what is left of it for a token whose queues begin with ``prefix``.

    a queue by its name            outside the namespace: refused
    stats, dump_stats              show the queues of the namespace
    all queues, or the server      flush_all, status WORD, reload, shutdown: refused
    """
    if isinstance(event, ask.Put | ask.PutTooLarge):
        return event if event.queue.startswith(prefix) else _OUTSIDE
    if isinstance(event, ask.ShowStats | ask.DumpStats):
        return event._replace(prefix=prefix)
    if isinstance(
        event,
        ask.GetItem | ask.Monitor | ask.Confirm | ask.DeleteQueue | ask.Flush | ask.FlushExpired,
    ):
        return event if event.key.queue.startswith(prefix) else _OUTSIDE
    if isinstance(event, ask.Version | ask.RefusedRequest | ask.HangUp | Foreign):
        return event
    return event if event == ask.ServerStatus(None) else _FOR_ALL


@dataclass(slots=True)
class KestrelContext(PortContext):
    """The context that all sessions of the fan-out queues share."""

    total_connections: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    kept_bytes: int = 0  # received of incomplete items


class KestrelSession(Connection):
    """See the module's docstring. Made by the listener, once a connection."""

    __slots__ = ("_kept", "_load", "_parser", "is_lost")

    _context: KestrelContext

    sends_more = True
    window_bytes = LOAD_BYTES
    welcome = _STORED
    secret_is_wrong = b"CLIENT_ERROR authentication failure\r\n"
    secret_is_missing = replies.AUTH_REQUIRED.line
    try_again = b"SERVER_ERROR busy, try again\r\n"
    last_event = ask.HangUp
    why_last = "the client quit, or sent what cannot be read"

    def __init__(self, context: KestrelContext) -> None:
        super().__init__(context)
        self._parser = KestrelParser(auth_required=context.access.tokens is not None)
        self._kept = 0  # bytes of an item that is not whole yet
        self._load = 0  # bytes of items in flight, at most
        self.is_lost = False

    def _connected(self) -> None:
        super()._connected()
        self._context.total_connections += 1

    def _parse(self, data: bytes) -> list[ask.Event]:
        context, parser = self._context, self._parser
        context.bytes_read += len(data)
        events = parser.feed(data)
        kept = parser.kept_bytes
        if kept != self._kept:
            context.kept_bytes += kept - self._kept
            self._kept = kept
            if context.kept_bytes > MAX_KEPT_BYTES:
                self._turn_one_away(events)
        return [queue_in_scope(event, self.prefix) for event in events] if self.prefix else events

    def _turn_one_away(self, events: list[ask.Event]) -> None:
        """The one that keeps most goes, not the one that came last: ``events`` are its own."""
        context = self._context
        largest: KestrelSession = max(context.sessions, key=lambda session: session._kept)
        context.kept_bytes -= largest._kept
        largest._kept = 0
        refused = largest._parser.give_up(_TOO_MUCH)
        if largest is self:
            events.append(refused)
        else:
            largest._backlog.append(refused)
            context.loop.call_soon(largest._advance)

    def _authenticate(self, secret: bytes) -> None:
        self._unparsed = self._parser.take_rest() + self._unparsed
        super()._authenticate(secret)

    def _must_be_alone(self, event: Any) -> bool:
        kind = type(event)
        if kind is ask.Monitor or (kind is ask.GetItem and event.wait_ms > 0):
            return True
        size = item_bytes(event)
        self._load = size if self._in_flight == 1 else self._load + size
        return self._load >= LOAD_BYTES

    def _take_run(self, batch: list[Any], window: int) -> None:
        """Do the same as all sessions, with what _must_be_alone asks written out for speed."""
        backlog = self._backlog
        in_flight = self._in_flight
        load = self._load if in_flight else 0
        while backlog and in_flight < window and not self._is_alone:
            event = backlog[0]
            kind = type(event)
            if kind in self.for_session:
                break
            batch.append(backlog.popleft())
            in_flight += 1
            if kind is ask.Put:
                load += len(event.data)
                self._is_alone = load >= LOAD_BYTES
            elif kind is ask.Monitor or (kind is ask.GetItem and event.wait_ms > 0):
                self._is_alone = True
        self._in_flight, self._load = in_flight, load

    def _may_read_on(self) -> bool:
        is_waiting = self._is_alone and self._attempt is None
        return is_waiting and len(self._unparsed) < READ_AHEAD_BYTES

    @property
    def is_slow(self) -> bool:
        return self._must_wait()

    @property
    def is_held_back(self) -> bool:
        if self._budget.is_tight:
            self._budget.wait(self)
        return self._budget.is_tight

    def resume_writing(self) -> None:
        super().resume_writing()
        self._resume()

    def room_to_send(self) -> None:
        super().room_to_send()
        self._resume()

    def _answer_left(self) -> None:
        """Drop the reply that has left; ``answered`` has stopped counting it as in flight."""
        self._out.popleft()
        self._resume()

    def _resume(self) -> None:
        if not self._out and not self._sending_paused:
            self._context.writer.dialect.resume(self)

    # -- the end --

    @property
    def is_leaving(self) -> bool:
        return self._ending or self._closing

    def eof_received(self) -> bool:
        self._ending = True
        if self._is_alone and self._in_flight:
            self._context.writer.dialect.stop_waiting(self)
        self._close_if_done()
        return not self._closing

    def finish(self) -> None:
        super().finish()
        if self._is_alone and self._in_flight:
            self._context.writer.dialect.stop_waiting(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._context.kept_bytes -= self._kept
        self._kept = 0
        super().connection_lost(exc)
        self._context.writer.leave(self)

    # -- from the writer --

    def answered(self, answers: list[replies.Reply | Unfinished]) -> None:  # type: ignore[override]
        """Answers to the oldest commands in flight, in order; some in parts."""
        if self._closing:
            return
        said: list[bytes] = []
        for answer in answers:
            reply = answer.reply if isinstance(answer, Unfinished) else answer
            if type(reply) is replies.ItemFound and len(reply.data) >= SHARED_BYTES:
                self._say(said)
                said = []
                self._out.append(partial(self._word_large, reply))
            else:
                said.append(
                    reply.line if type(reply) is replies.Verdict else replies.reply_bytes(reply)
                )
            self._in_flight -= reply is answer
            if reply.hangup:
                self._ending = True
                self._drop_input()
                self._in_flight = 0
                break
        self._is_alone = self._is_alone and self._in_flight > 0
        self._say(said)
        self._pump()
        if self._backlog or self._unparsed or self._ending:
            self._advance()

    def _word_large(self, reply: replies.ItemFound) -> bytes:
        data = replies.reply_bytes(reply)
        self._context.bytes_written += len(data)
        return data

    def _say(self, answers: list[bytes]) -> None:
        """Small answers at once, unless a large one is still to be sent before them."""
        if not answers:
            return
        data = answers[0] if len(answers) == 1 else b"".join(answers)
        self._context.bytes_written += len(data)
        if self._out:
            self._out.append(data)
        else:
            self._write(data)
