"""Requests and replies without a connection: the one source of both kinds of client.

    a call, for example workq.calls.add("mail", b"...")
        checks its arguments, encodes the request, and returns a Call
    a Call, given a Link, is a conversation: a generator that yields what it needs
        CONNECT     a new connection            Send(data)  these bytes sent
        RECEIVE     more bytes in the buffer    Pause(3)    a little time before the third attempt
    blocking.py performs these steps with a socket, awaiting.py with asyncio

A step that fails is thrown into the conversation as ConnectionFailed; so what is sent again, and
what is reported as lost, is decided here, once:

    once    for what must not be done twice: AnswerLost if the connection breaks after the request
    twice   for what may be repeated: sent again, once, on a new connection

A login that the server could not check in time (it says so, or closes the connection) is tried
again, with pauses that grow; only a verdict on the token raises AccessDenied.

Nothing here touches a socket or a clock. A failed link is never used again: replies still under
way could not be distinguished from those to come.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import Enum
from itertools import count as count_from
from socket import gaierror
from typing import Final, TypeAlias, TypeVar

from journeyman.client import errors

T = TypeVar("T")

_MAX_LINE_BYTES = 2 * 1024 * 1024  # the longest reply line; all protocols stay far below it
_SHOWN_CHARACTERS = 200  # how much of a reply that is not understood an error quotes
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.1, 2.0  # between logins that the server could not check
_MAX_PAUSES = 6
_WITH_TLS = "journeyman+tls://HOST, or tls=True"
_WITHOUT_TLS = "journeyman://HOST, or tls=False"
_TLS_ALERT = b"\x15\x03"  # how a TLS server begins its reply to what is not TLS

# How the first reply begins on each port, to a request that is not of its protocol.
_OTHER_PORTS = (
    ("HTTP", re.compile(r"HTTP/1")),
    ("the work queue", re.compile(r"-(?:CLIENT|SERVER)-ERROR")),
    ("the fan-out queues", re.compile(r"(?:CLIENT_ERROR|SERVER_ERROR|ERROR$)")),
    ("the schedule", re.compile(r"(?:\S+ )?ERROR [a-z]+_[a-z]+")),
)


def port_of(answer: str) -> str | None:
    """The service whose port gives such an answer to what is not of its protocol, if known."""
    return next((title for title, begins in _OTHER_PORTS if begins.match(answer)), None)


class Step(Enum):
    CONNECT = "connect"
    RECEIVE = "receive"


CONNECT: Final = Step.CONNECT
RECEIVE: Final = Step.RECEIVE


@dataclass(slots=True)
class Send:
    """Send these bytes; replies to them may take ``extra_s`` longer than usual."""

    data: bytes
    extra_s: float = 0.0


@dataclass(slots=True)
class Pause:
    """Wait a little before a login is tried again; the first is number 1.

    ConnectionFailed is thrown in instead if this has gone on for as long as a reply may take.
    """

    number: int

    @property
    def seconds(self) -> float:
        pause_s = min(_FIRST_PAUSE_S * 2.0 ** (self.number - 1), _LAST_PAUSE_S)
        return pause_s * random.uniform(0.8, 1.2)


Conversation: TypeAlias = Generator[Step | Send | Pause, None, T]
Greeting: TypeAlias = "Callable[[Link], Conversation[None]]"


class Link:
    """The state of one connection: where it leads, what has arrived, and whether it still works."""

    def __init__(
        self,
        where: str,
        service: str,
        usual_port: int,
        *,
        is_tls: bool = False,
        greeting: Greeting | None = None,
    ) -> None:
        """``greeting`` is held on every new connection; ``service`` and its port by default are
        for messages."""
        self.where = where
        self.is_open = False
        self.requests = 0  # numbers of the schedule's request ids
        self._service = service
        self._usual_port = usual_port
        self._is_tls = is_tls
        self._greeting = greeting
        self._buffer = bytearray()
        self._at = 0  # everything before it was read
        self._heard_anything = False

    # -- for conversations -------------------------------------------------------------------------

    def connected(self) -> Conversation[None]:
        """A connection, if there is none: greeted, and ready for a request."""
        if self.is_open:
            return
        for number in count_from(1):
            yield CONNECT
            if self._greeting is None:
                return
            try:
                yield from self._greeting(self)
            except errors.LoginBusy as busy:
                self.drop()
                if number > _MAX_PAUSES:
                    raise
                try:
                    yield Pause(number)
                except errors.ConnectionFailed:
                    raise busy from None
            except BaseException:
                self.drop()
                raise
            else:
                return

    def line_here(self, ending: bytes = b"\n") -> bytes | None:
        """The next line without its ending, if all of it has arrived."""
        end = self._buffer.find(ending, self._at)
        if end < 0:
            return None
        line = bytes(self._buffer[self._at : end])
        self._at = end + len(ending)
        return line

    def line(self, ending: bytes = b"\n") -> Conversation[bytes]:
        """The next line without its ending."""
        searched = self._at
        while self._buffer.find(ending, searched) < 0:
            unread = len(self._buffer) - self._at
            if unread > _MAX_LINE_BYTES:
                self.drop()
                raise errors.BadAnswer(f"{self.where} sent an endless line")
            if ending != b"\n" and (end := self._buffer.find(b"\n", self._at)) >= 0:
                # Lines of this service never end so, those of the schedule do.
                raise self.unexpected(self._buffer[self._at : end].decode("utf-8", "replace"))
            yield RECEIVE
            searched = max(self._at, self._at + unread - len(ending) + 1)
        line = self.line_here(ending)
        assert line is not None
        return line

    def exactly(self, count: int) -> Conversation[bytes]:
        while len(self._buffer) - self._at < count:
            yield RECEIVE
        block = bytes(self._buffer[self._at : self._at + count])
        self._at += count
        return block

    def unexpected(self, answer: str) -> errors.BadAnswer:
        """Return the error for a reply that this service never gives. The link is of no
        more use."""
        self.drop()
        return errors.BadAnswer(
            unexpected_answer(self.where, self._service, self._usual_port, answer)
        )

    def drop(self) -> None:
        """Close it; the next request opens another."""
        self.is_open = False

    # -- for those who perform the steps -----------------------------------------------------------

    def opened(self) -> None:
        self.is_open = True
        self._buffer.clear()
        self._at = 0
        self._heard_anything = False

    def received(self, data: bytes) -> None:
        """Raises ConnectionFailed at the end of the connection, CannotConnect if TLS is missing."""
        if not data:
            hint = self._is_it_the_port(or_tls=not self._is_tls)
            raise errors.ConnectionFailed(f"{self.where} closed the connection{hint}")
        if not self._heard_anything and not self._is_tls and data.startswith(_TLS_ALERT):
            raise errors.CannotConnect(f"{self.where} speaks TLS: connect with {_WITH_TLS}")
        self._heard_anything = True
        del self._buffer[: self._at]
        self._at = 0
        self._buffer += data

    def cannot_connect(self, error: OSError) -> errors.CannotConnect:
        reason, hint = str(error), ""
        if isinstance(error, gaierror):
            reason = "the host is not known"
        elif isinstance(error, ConnectionRefusedError | FileNotFoundError):
            is_missing = isinstance(error, FileNotFoundError)
            reason = "there is no such socket" if is_missing else "connection refused"
            hint = f"; is journeyman serve running there, with {self._service}?"
        elif self._is_tls:
            import ssl  # only connections with TLS pay for it

            if isinstance(error, ssl.SSLCertVerificationError):
                reason = f"its certificate is not trusted: {error.verify_message}"
            elif isinstance(error, ssl.SSLError | TimeoutError | ConnectionError):
                hint = f"; does this port speak TLS? If not, connect with {_WITHOUT_TLS}"
                if isinstance(error, TimeoutError):
                    reason = "the TLS handshake timed out"
        elif isinstance(error, TimeoutError):
            reason = "timed out"
        return errors.CannotConnect(f"cannot connect to {self.where}: {reason}{hint}")

    def cannot_send(self, error: OSError) -> errors.ConnectionFailed:
        return _failed(f"cannot send to {self.where}: {str(error) or 'timed out'}", error)

    def cannot_receive(self, error: OSError) -> errors.ConnectionFailed:
        hint = self._is_it_the_port()
        reason = str(error) or "timed out"
        return _failed(f"{self.where} does not answer: {reason}{hint}", error)

    def _is_it_the_port(self, *, or_tls: bool = False) -> str:
        """A question for a user who may have the wrong port: nothing ever came from it."""
        if self._heard_anything:
            return ""
        tls = f", and does it want TLS ({_WITH_TLS})" if or_tls else ""
        return f"; is this the port of {self._service}{tls}?"


def unexpected_answer(where: str, service: str, usual_port: int, answer: str) -> str:
    """The message about a reply that this service never gives."""
    if (other := port_of(answer)) is not None and other != service:
        return f"{where} is the port of {other}, not of {service} (by default {usual_port})"
    return f"{where} answers {answer[:_SHOWN_CHARACTERS]!r}; is this the port of {service}?"


def _failed(reason: str, cause: OSError) -> errors.ConnectionFailed:
    return (errors.TimedOut if isinstance(cause, TimeoutError) else errors.ConnectionFailed)(reason)


Reader: TypeAlias = Callable[[Link], Conversation[T]]  # reads one reply
Call: TypeAlias = Callable[[Link], Conversation[T]]  # sends a request and reads its reply


def once(request: bytes, read: Reader[T], extra_ms: int = 0) -> Call[T]:
    """Make a call that must not be done twice."""

    def converse(link: Link) -> Conversation[T]:
        yield from link.connected()
        try:
            yield Send(request, extra_ms / 1000)
            return (yield from read(link))
        except errors.CannotConnect:
            raise
        except errors.ConnectionFailed as error:
            what = request.split(b"\r\n", 1)[0].decode("utf-8", "replace")[:120].rstrip()
            raise errors.AnswerLost(f"{error}; {what} may have happened, or not") from None

    return converse


def twice(request: bytes, read: Reader[T], extra_ms: int = 0) -> Call[T]:
    """Make a call that may be repeated; not after a timeout: it would not be faster then."""

    def ask(link: Link) -> Conversation[T]:
        yield from link.connected()
        yield Send(request, extra_ms / 1000)
        return (yield from read(link))

    return retry_once(ask)


def retry_once(ask: Call[T]) -> Call[T]:
    """Ask; once more on a new connection if this one broke."""

    def converse(link: Link) -> Conversation[T]:
        try:
            return (yield from ask(link))
        except (errors.CannotConnect, errors.TimedOut):
            raise
        except errors.ConnectionFailed:
            return (yield from ask(link))

    return converse


def pipelined(
    count: int,
    encode: Callable[[Link, range], bytes],
    read: Callable[[Link, int, bool], Conversation[T]],
) -> Call[list[T]]:
    """Many requests at once that may be repeated, each with its reply.

    ``encode`` words the requests of a range; ``read`` reads the reply to one, and learns whether it
    may have reached the server before. After a broken connection what has no reply is sent again,
    fewer at a time, as long as there is progress.
    """

    def converse(link: Link) -> Conversation[list[T]]:
        replies: list[T] = []
        sent = 0  # how many may have reached the server
        at_a_time = count
        may_repeat = count == 1  # many are sent again in any case
        while (before := len(replies)) < count:
            some = range(before, min(before + at_a_time, count))
            try:
                if not link.is_open:
                    yield from link.connected()
                perhaps_there, sent = sent, max(sent, some.stop)
                yield Send(encode(link, some))
                for place in some:
                    reply = yield from read(link, place, place < perhaps_there)
                    replies.append(reply)  # kept if the next one fails
            except (errors.CannotConnect, errors.TimedOut):
                raise
            except errors.ConnectionFailed:
                if at_a_time == 1 and before == len(replies):
                    if not may_repeat:
                        raise
                    may_repeat = False
                at_a_time = max(1, at_a_time // 4)
        return replies

    return converse


def greeting(request: bytes, welcome: bytes, refusal: bytes, busy: bytes | None) -> Greeting:
    """Show a token on a new connection. ``refusal`` and ``busy`` are how such replies begin.

    Raises AccessDenied if the server refuses the token, LoginBusy if it could not check it.
    """

    def greet(link: Link) -> Conversation[None]:
        try:
            yield Send(request)
            answer = (yield from link.line()).removesuffix(b"\r")
        except (errors.CannotConnect, errors.TimedOut):
            raise
        except errors.ConnectionFailed as error:
            raise errors.LoginBusy(f"{error}; the token was not checked") from None
        if answer == welcome:
            return
        said = answer.decode("utf-8", "replace")
        if busy is not None and answer.startswith(busy):
            raise errors.LoginBusy(f"{link.where} could not check the token: {said.lstrip('-')}")
        if not answer.startswith(refusal):
            raise link.unexpected(said)
        said = said.removeprefix("ERROR ")
        raise errors.AccessDenied("auth_failed", "" if said == "auth_failed" else said)

    return greet


@dataclass(frozen=True, slots=True)
class Probe:
    """A request of one line whose reply shows whether a token is asked for, and how that begins."""

    request: bytes
    asks: bytes


def greeting_if_asked(
    probe: Probe, find: Callable[[], str | None], greet: Callable[[str], Greeting]
) -> Greeting:
    """Show the token that ``find`` gives, if the server asks for one; else go on without."""

    def greeting_of(link: Link) -> Conversation[None]:
        yield Send(probe.request)
        answer = yield from link.line()
        if not answer.startswith(probe.asks):
            return
        token = find()
        yield CONNECT  # the server has closed the connection, or is about to
        if token is not None:
            yield from greet(token)(link)

    return greeting_of
