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

Refused is a ``RefusedCommand``. This is not a session: whether a secret is right, what a client may
access, timeouts and the effect of a command are decided elsewhere. After ``Auth`` the machine
continues as if the secret were right, so that commands sent with it are not lost; a session that
refuses the secret closes the connection and drops the later events.

- Events come in the order of the lines, and the same ones however the bytes were cut into feeds.
- AUTH without authentication is ``AuthNotNeeded``; after a successful AUTH it gives no event.
- No bytes raise. Malformed lines and unknown commands give no event: the protocol is silent there.
  HTTP lines are an exception, because a web page could otherwise have later lines executed; lines
  of the other two services are refused, because their clients would wait for a reply.
- Between feeds at most one unfinished line is kept, of less than LINE_LIMIT_BYTES.

SETs of the usual shape are read many at a time: ``feed_sets`` gives what ``feed`` gives, with the
SETs that came together as one event, and one alone too. One expression over all that was received
finds them; no object is made for each. At the first byte that is not usual all of it goes to the
parser. Usual is: printable ASCII, single spaces, no quotes, a time of at most 19 digits, LF at the
end.

    r1 SET app.task.1 1711612800000000000\n
    r2 SET app.task.2 1711612800000000000\n     -> SetMany

Lines and tokens:

    r1 RULE SET rule.1 app. shell "/bin/echo \"two words\""\n
    ^^ ^^^^ ^^^ ^^^^^^ ^^^^ ^^^^^ ^^^^^^^^^^^^^^^^^^^^^^^^    eight tokens, the last one quoted

- Only the space separates tokens, any number of them; a tab is data.
- A ``"`` outside quotes begins a quoted token, also in the middle of a word: ``ab"cd"`` is two
  tokens. Inside quotes a backslash makes the next byte literal, whatever it is; outside it is an
  ordinary byte. ``""`` is a token of no bytes.
- A line ends at the first LF outside quotes; inside them LF is data. One CR before that LF is
  dropped, so that CRLF clients are understood.
- A line has at most ``limit_bytes`` bytes, its LF included.

Laws (tests/property/test_ztick_protocol.py): ``feed_sets`` is ``feed``; feeding data in any pieces
gives the same lines; ``tokenize(join(tokens)) == tokens``; never more than ``limit_bytes`` bytes
are kept between feeds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date
from enum import Enum, auto
from itertools import chain

from journeyman import protocols
from journeyman.errors import TimetableError
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.commands import Event, SetMany
from journeyman.protocols.ztick.grammar import (
    read_run_options,
    read_runner,
    read_timetable_command,
    split_options,
)
from journeyman.protocols.ztick.replies import in_a_message
from journeyman.units import DAY_S, NS_PER_S

LINE_LIMIT_BYTES = 4096

# Possessive throughout (`++`, `*+`): these never go back, so their time is linear in the line.
_QUOTED = rb'"(?:[^"\\]++|\\.)*+"'
_LINE = re.compile(rb'(?:[^"\n]++|' + _QUOTED + rb")*+\n", re.DOTALL)
_TOKEN = re.compile(rb'"((?:[^"\\]++|\\.)*+)"|([^ "]++)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)

MIN_NS = -(2**63)
MAX_NS = 2**63 - 1

_EPOCH_DAY = date(1970, 1, 1).toordinal()

# 19 digits are enough for 64 bits: a longer number is refused before it is computed.
_MAX_DIGITS = 19
_NUMBER = re.compile(rb"([+-]?)0*([0-9]+)")
_DATE_FIRST = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DATE_TIME = re.compile(
    rb"([0-9]{4})-([0-9]{2})-([0-9]{2})[T ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    rb"(?:\.([0-9]{1,9}))?"
    rb"(?: ?(?:Z|([+-])([0-9]{2})(?::?([0-9]{2}))?))?"
)

_OTHER_PORT = "this is the port of the schedule"
_NOT_A_TIME = "expected nanoseconds since 1970, YYYY-MM-DD HH:MM:SS or ISO 8601"
_OUT_OF_RANGE = "outside the range of 64-bit nanoseconds"

_AUTH_REQUIRED = protocols.AuthRequired()
_AUTH_NOT_NEEDED = commands.AuthNotNeeded()


class _State(Enum):
    AWAITING_AUTH = auto()
    OPEN = auto()
    CLOSED = auto()


class ZtickParser:
    """One connection: ``feed`` it what was received, get what was asked."""

    __slots__ = ("_auth_is_off", "_first", "_state", "is_plain", "lines")

    def __init__(self, *, auth_required: bool = False) -> None:
        self.lines = LineBuffer()
        self._first: bytes | None = b""  # until it is known that TLS is not spoken
        self._auth_is_off = not auth_required
        self._state = _State.AWAITING_AUTH if auth_required else _State.OPEN
        self.is_plain = False  # only commands are expected: see ``feed_sets``

    @property
    def closed(self) -> bool:
        """Return whether nothing more will come: after AuthRequired, TooLong or Foreign."""
        return self._state is _State.CLOSED

    @property
    def kept_bytes(self) -> int:
        """How much of an unfinished line is waiting for its end."""
        return self.lines.kept_bytes

    def feed(self, data: bytes) -> list[commands.Event]:
        """The events of the lines that ``data`` completes."""
        if self.closed:
            return []
        if self._first is not None and self._begins_as_tls(data):
            self._close()
            return [protocols.TLS]
        self.is_plain = self._first is None and self._state is _State.OPEN
        events: list[commands.Event] = []
        for line in self.lines.feed(data):
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
                if type(event) is protocols.Foreign:
                    self._close()
                    return events
        if self.lines.overflowed:
            events.append(
                protocols.foreign(self.lines.too_long[: protocols.HEAD_BYTES]) or commands.TooLong()
            )
            self._close()
        return events

    def _begins_as_tls(self, data: bytes) -> bool:
        """Return whether a handshake begins the connection: a quote in it would hide its line
        ends.
        """
        assert self._first is not None
        first = self._first + data[: len(protocols.TLS_HANDSHAKE)]
        self._first = first if len(first) < len(protocols.TLS_HANDSHAKE) else None
        return first.startswith(protocols.TLS_HANDSHAKE)

    def _read_first(self, tokens: list[bytes], line: bytes) -> commands.Event | None:
        if len(tokens) > 1 and tokens[0] == b"AUTH":
            self._state = _State.OPEN
            self.is_plain = self._first is None
            return protocols.Auth(tokens[1])
        if found := protocols.foreign(line):
            return found
        if len(tokens) > 1 or tokens == [b"AUTH"]:
            self._close()
            return _AUTH_REQUIRED
        return None

    def _close(self) -> None:
        self._state = _State.CLOSED
        self.is_plain = False
        self.lines = LineBuffer()  # the rest of the last feed is discarded


def _read(tokens: list[bytes], line: bytes) -> commands.Event | None:
    """Return what the line asks for, or None if it is to be passed over in silence."""
    if len(tokens) < 2:
        return protocols.foreign(line)
    if tokens[0] == b"AUTH":
        return None
    read = _READERS.get(tokens[1])
    # The value of a header may read like a command: `Referer: SET job 0`.
    if (read is None or tokens[0].endswith(b":")) and (
        found := protocols.foreign(line)
    ) is not None:
        return found
    if read is None:
        return _refused(tokens, _OTHER_PORT) if protocols.is_of_queues(line) else None
    return read(tokens)


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
    fields, of_runner = split_options(words[2:])
    runner = read_runner(of_runner)
    if isinstance(runner, str):
        return _refused(tokens, runner)
    try:
        options = read_run_options(fields, runner)
    except TimetableError as error:
        return _refused(tokens, str(error))
    return commands.SetRule(tokens[0], words[0], words[1], runner, options)


_READERS: dict[bytes, Callable[[list[bytes]], commands.Event | None]] = {
    b"SET": _read_set,
    b"GET": _reader_of(commands.Get, "job_identifier"),
    b"QUERY": _read_query,
    b"LISTRULES": lambda tokens: commands.ListRules(tokens[0]),
    b"STAT": lambda tokens: commands.Stat(tokens[0]),
    b"REMOVE": _reader_of(commands.Remove, "job_identifier"),
    b"REMOVERULE": _reader_of(commands.RemoveRule, "rule_identifier"),
    b"RULE": _read_set_rule,
    b"TIMETABLE": read_timetable_command,
}


def _missing(tokens: list[bytes], argument: str) -> commands.RefusedCommand:
    return _refused(tokens, f"missing required argument: {argument}")


def _not_utf8(tokens: list[bytes], argument: str) -> commands.RefusedCommand:
    return _refused(tokens, f"{argument} is not valid UTF-8")


def _refused(tokens: list[bytes], message: str) -> commands.RefusedCommand:
    return commands.RefusedCommand(tokens[0], commands.ErrorCode.INVALID_ARGS, message)


class LineBuffer:
    """Cuts a stream of bytes into lines; ``overflowed`` once a line goes over the limit.

    ``too_long`` is that line as far as it was received.
    """

    __slots__ = ("_limit_bytes", "overflowed", "rest", "too_long")

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self.rest = b""  # the beginning of an unfinished line
        self.overflowed = False
        self.too_long = b""

    @property
    def kept_bytes(self) -> int:
        """How much of an unfinished line is waiting for its end."""
        return len(self.rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, each without its line end.

        After an overflow nothing is kept and nothing more comes out.
        """
        if self.overflowed:
            return []
        has_line_end = b"\n" in data
        data = self.rest + data
        if not has_line_end:
            # The kept beginning has no line end either, so there is still no complete line.
            lines = []
            self.rest = data
        else:
            lines = self._cut(data) if b'"' in data else self._cut_unquoted(data)
        if len(self.rest) >= self._limit_bytes and not self.overflowed:
            self.overflowed = True
            self.too_long = self.rest
        if self.overflowed:
            self.rest = b""
        return lines

    def _cut_unquoted(self, data: bytes) -> list[bytes]:
        """Cut the data at every LF, which ends a line if there is no quote."""
        lines = data.split(b"\n")
        self.rest = lines.pop()
        whole = [line.removesuffix(b"\r") for line in lines] if b"\r" in data else lines
        if len(data) > self._limit_bytes:
            # The limit counts the CR as well, so it looks at the lines as they came.
            for number, line in enumerate(lines):
                if len(line) >= self._limit_bytes:
                    self.overflowed = True
                    self.too_long = line
                    return whole[:number]
        return whole

    def _cut(self, data: bytes) -> list[bytes]:
        lines = []
        start = 0
        while match := _LINE.match(data, start, start + self._limit_bytes):
            lines.append(data[start : match.end() - 1].removesuffix(b"\r"))
            start = match.end()
        self.rest = data[start:]
        return lines


def tokenize(line: bytes) -> list[bytes]:
    """The tokens of one whole line as a LineBuffer gives it, so that every quote is closed."""
    if b'"' not in line:
        tokens = line.split(b" ")
        return [token for token in tokens if token] if b"" in tokens else tokens
    return [
        bare or (_ESCAPED.sub(rb"\1", quoted) if b"\\" in quoted else quoted)
        for quoted, bare in _TOKEN.findall(line)
    ]


def read_timestamp(tokens: Sequence[bytes]) -> int | str:
    """The time of a SET: nanoseconds since 1970, or one phrase that says what is wrong.

        1711612800000000000                  nanoseconds, a sign allowed, 64 bits with sign
        2026-03-30 14:00:00                  two words, or one in quotes
        2026-03-30T14:00:00                  ISO 8601
        2026-03-30T14:00:00.123456789+02:00  a fraction to the nanosecond, with Z or an offset
        2026-03-30 14:00:00 +02:00           the same offset as a word of its own

    Without an offset a time is UTC. Everything else is refused: a day or time of day that does not
    exist, a moment outside 64 bits, a zone by name. A refused SET can be seen by the client; one
    that is taken for another moment cannot. Words after a number are ignored, as everywhere in the
    protocol. Words after a date and time could only mean a zone, so there they are refused unless
    they are an offset. ``tokens`` is not empty.
    """
    first = tokens[0]
    if _DATE_FIRST.match(first):
        return _read_date_time(b" ".join(tokens))
    number = _NUMBER.fullmatch(first)
    if number is None:
        return _NOT_A_TIME
    sign, digits = number.groups()
    if len(digits) > _MAX_DIGITS:
        return _OUT_OF_RANGE
    return _in_range(int(sign + digits))


def _read_date_time(text: bytes) -> int | str:
    match = _DATE_TIME.fullmatch(text)
    if match is None:
        return _NOT_A_TIME
    year, month, day, hour, minute, second = (int(group) for group in match.groups()[:6])
    fraction, sign, offset_hours, offset_minutes = match.groups()[6:]
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return "there is no such day"
    if hour > 23 or minute > 59 or second > 59:
        return "there is no such time of day"
    seconds = days * DAY_S + hour * 3600 + minute * 60 + second
    if sign is not None:
        hours, minutes = int(offset_hours), int(offset_minutes or 0)
        if hours > 23 or minutes > 59:
            return "there is no such offset"
        offset = hours * 3600 + minutes * 60
        seconds += offset if sign == b"-" else -offset
    fraction_ns = int(fraction.ljust(9, b"0")) if fraction else 0
    return _in_range(seconds * NS_PER_S + fraction_ns)


def _in_range(ns: int) -> int | str:
    return ns if MIN_NS <= ns <= MAX_NS else _OUT_OF_RANGE


# One event has at most this many rows, so that deciding it never takes long.
MAX_ROWS = 128

# A request id that ends with a colon may be a header of HTTP; the identifiers of seals are
# refused. Lengths are bounded, so that no line is over the limit.
_SET = re.compile(
    rb"^(?!AUTH )([!#-9;-~]{1,200}+) SET (?!journeyman\.seal\.)([!#-~]{1,1000}+) "
    rb"([0-8]?[0-9]{1,18})\n",
    re.MULTILINE,
)
_BETWEEN_BYTES = len(" SET  \n")


def feed_sets(parser: ZtickParser, data: bytes) -> list[Event]:
    """The events of the lines that ``data`` completes."""
    lines = parser.lines
    end = data.rfind(b"\n") + 1
    if not parser.is_plain or not end:
        return parser.feed(data)
    if lines.rest:
        end += len(lines.rest)
        data, lines.rest = lines.rest + data, b""
    rows: list[tuple[bytes, bytes, bytes]] = _SET.findall(data, 0, end)
    if sum(map(len, chain.from_iterable(rows))) + _BETWEEN_BYTES * len(rows) != end:
        return parser.feed(data)
    events: list[Event]
    if len(rows) <= MAX_ROWS:
        events = [SetMany(rows)]
    else:
        events = [SetMany(rows[at : at + MAX_ROWS]) for at in range(0, len(rows), MAX_ROWS)]
    if end < len(data):
        events += parser.feed(data[end:])
    return events
