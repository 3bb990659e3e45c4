"""The ztick protocol, server side: a connection as a machine that is fed bytes and gives events.

                    auth_required=True                  auth_required=False
                            |                                   |
                            v                                   v
        a malformed +-----------------+  AUTH <secret>  +-------------+ a command     -> itself
        line: none  | awaiting auth   | --------------> | open        | bad arguments -> Refused
                    +-----------------+     -> Auth     +-------------+ anything else: none
                            |                                   |
             anything else  |                                   |  a line over the limit
             -> AuthRequired|          +--------+               |  -> TooLong
                            +--------> | closed | <-------------+
             HTTP, TLS               ^ +--------+   feeds give nothing more
             -> Foreign  ------------+

It is not a session: whether a secret is right, what a client may access, timeouts and the effect of
a command are decided elsewhere. After ``Auth`` the machine continues as if the secret were right,
so that commands sent with it are not lost; a session that refuses the secret closes the connection
and drops the later events.

- Events come in the order of the lines, and the same ones however the bytes were cut into feeds.
- AUTH without authentication is ``AuthNotNeeded``; after a successful AUTH it gives no event.
- No bytes raise. Malformed lines and unknown commands give no event: the protocol is silent there.
  HTTP lines are the exception, because a web page could otherwise have later lines executed.
- Between feeds at most one unfinished line is kept, of less than LINE_LIMIT_BYTES.

Lines and tokens are in tokens.py, the texts of replies in replies.py.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from journeyman.protocols.authentication import Auth, AuthRequired
from journeyman.protocols.foreign import HEAD_BYTES, TLS, TLS_HANDSHAKE, Foreign, foreign
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.rules import read_runner
from journeyman.protocols.ztick.tokens import (
    MAX_NS,
    LineBuffer,
    in_a_message,
    read_timestamp,
    tokenize,
)

_AUTH_REQUIRED = AuthRequired()
_AUTH_NOT_NEEDED = commands.AuthNotNeeded()


class _State(Enum):
    AWAITING_AUTH = auto()
    OPEN = auto()
    CLOSED = auto()


class ZtickParser:
    """One connection: ``feed`` it what was received, get what was asked."""

    __slots__ = ("_auth_is_off", "_first", "_lines", "_state")

    def __init__(self, *, auth_required: bool = False) -> None:
        self._lines = LineBuffer()
        self._first: bytes | None = b""  # until it is known that TLS is not spoken
        self._auth_is_off = not auth_required
        self._state = _State.AWAITING_AUTH if auth_required else _State.OPEN

    @property
    def closed(self) -> bool:
        """Whether nothing more will come: after AuthRequired, TooLong or Foreign."""
        return self._state is _State.CLOSED

    @property
    def kept_bytes(self) -> int:
        """How much of an unfinished line is waiting for its end."""
        return self._lines.kept_bytes

    def feed(self, data: bytes) -> list[commands.Event]:
        """The events of the lines that ``data`` completes."""
        if self.closed:
            return []
        if self._first is not None and self._begins_as_tls(data):
            self._close()
            return [TLS]
        events: list[commands.Event] = []
        for line in self._lines.feed(data):
            tokens = tokenize(line)
            if self._state is _State.OPEN:
                event = _read(tokens, line)
            else:
                event = self._read_first(tokens, line)
            if event is None and self._auth_is_off and len(tokens) > 1 and tokens[0] == b"AUTH":
                event = _AUTH_NOT_NEEDED
            if event is not None:
                events.append(event)
                if event is _AUTH_REQUIRED:
                    return events
                if type(event) is Foreign:
                    self._close()
                    return events
        if self._lines.overflowed:
            events.append(foreign(self._lines.too_long[:HEAD_BYTES]) or commands.TooLong())
            self._close()
        return events

    def _begins_as_tls(self, data: bytes) -> bool:
        """Whether a handshake begins the connection: a quote in it would hide its line ends."""
        assert self._first is not None
        first = self._first + data[: len(TLS_HANDSHAKE)]
        self._first = first if len(first) < len(TLS_HANDSHAKE) else None
        return first.startswith(TLS_HANDSHAKE)

    def _read_first(self, tokens: list[bytes], line: bytes) -> commands.Event | None:
        if len(tokens) > 1 and tokens[0] == b"AUTH":
            self._state = _State.OPEN
            return Auth(tokens[1])
        if found := foreign(line):
            return found
        if len(tokens) > 1 or tokens == [b"AUTH"]:
            self._close()
            return _AUTH_REQUIRED
        return None

    def _close(self) -> None:
        self._state = _State.CLOSED
        self._lines = LineBuffer()  # what is left of the last feed is of no use any more


def _read(tokens: list[bytes], line: bytes) -> commands.Event | None:
    """What the line asks for, or None if it is to be passed over in silence."""
    if len(tokens) < 2:
        return foreign(line)
    if tokens[0] == b"AUTH":
        return None
    read = _READERS.get(tokens[1])
    # The value of a header may read like a command: `Referer: SET job 0`.
    if (read is None or tokens[0].endswith(b":")) and (found := foreign(line)) is not None:
        return found
    return read(tokens) if read is not None else None


# -- one reader a command; tokens[0] is the request id, tokens[1] the command ---------------------


def _read_set(tokens: list[bytes]) -> commands.Event:
    if len(tokens) < 4:
        return _missing(tokens, "timestamp" if len(tokens) == 3 else "job_identifier")
    stamp = tokens[3]
    # Nearly every timestamp is a plain number: it needs no grammar.
    if len(stamp) > 19 or not stamp.isdigit() or (execution_ns := int(stamp)) > MAX_NS:
        moment = read_timestamp(tokens[3:])
        if isinstance(moment, str):
            shown = in_a_message(b" ".join(tokens[3:]))
            return _refused(tokens, f"invalid timestamp {shown}: {moment}")
        execution_ns = moment
    try:
        return commands.Set(tokens[0], tokens[2].decode(), execution_ns)
    except UnicodeDecodeError:
        return _not_utf8(tokens, "job_identifier")


def _reader_of(
    command: Callable[[bytes, str], commands.Event], argument: str
) -> Callable[[list[bytes]], commands.Event]:
    """A reader for the commands that take one identifier and nothing else."""

    def read(tokens: list[bytes]) -> commands.Event:
        if len(tokens) < 3:
            return _missing(tokens, argument)
        try:
            return command(tokens[0], tokens[2].decode())
        except UnicodeDecodeError:
            return _not_utf8(tokens, argument)

    return read


def _read_query(tokens: list[bytes]) -> commands.Event:
    if len(tokens) < 3:
        return commands.Query(tokens[0], "")
    try:
        return commands.Query(tokens[0], tokens[2].decode())
    except UnicodeDecodeError:
        return _not_utf8(tokens, "pattern")


def _read_set_rule(tokens: list[bytes]) -> commands.Event | None:
    if tokens[2:3] != [b"SET"]:
        return None
    if len(tokens) < 6:
        return _missing(tokens, ("rule_identifier", "pattern", "runner")[len(tokens) - 3])
    words = []
    for place, token in enumerate(tokens[3:]):
        try:
            words.append(token.decode())
        except UnicodeDecodeError:
            names = ("rule_identifier", "pattern", "runner")
            return _not_utf8(tokens, names[place] if place < 3 else "runner argument")
    runner = read_runner(words[2:])
    if isinstance(runner, str):
        return _refused(tokens, runner)
    return commands.SetRule(tokens[0], words[0], words[1], runner)


_READERS: dict[bytes, Callable[[list[bytes]], commands.Event | None]] = {
    b"SET": _read_set,
    b"GET": _reader_of(commands.Get, "job_identifier"),
    b"QUERY": _read_query,
    b"LISTRULES": lambda tokens: commands.ListRules(tokens[0]),
    b"STAT": lambda tokens: commands.Stat(tokens[0]),
    b"REMOVE": _reader_of(commands.Remove, "job_identifier"),
    b"REMOVERULE": _reader_of(commands.RemoveRule, "rule_identifier"),
    b"RULE": _read_set_rule,
}


def _missing(tokens: list[bytes], argument: str) -> commands.RefusedCommand:
    return _refused(tokens, f"missing required argument: {argument}")


def _not_utf8(tokens: list[bytes], argument: str) -> commands.RefusedCommand:
    return _refused(tokens, f"{argument} is not valid UTF-8")


def _refused(tokens: list[bytes], message: str) -> commands.RefusedCommand:
    return commands.RefusedCommand(tokens[0], commands.ErrorCode.INVALID_ARGS, message)
