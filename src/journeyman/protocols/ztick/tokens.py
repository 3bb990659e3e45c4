r"""Lines and tokens of the ztick protocol: where a line ends, what its tokens are, and quoting.

    r1 RULE SET rule.1 app. shell "/bin/echo \"two words\""\n
    ^^ ^^^^ ^^^ ^^^^^^ ^^^^ ^^^^^ ^^^^^^^^^^^^^^^^^^^^^^^^    eight tokens, the last one quoted

- Only the space separates tokens, any number of them; a tab is data.
- A ``"`` outside quotes begins a quoted token, also in the middle of a word: ``ab"cd"`` is two
  tokens. Inside quotes a backslash makes the next byte literal, whatever it is; outside it is an
  ordinary byte. ``""`` is a token of no bytes.
- A line ends at the first LF outside quotes; inside them LF is data. One CR before that LF is
  dropped, so that CRLF clients are understood.
- A line has at most ``limit_bytes`` bytes, its LF included.

Tokens are bytes: nothing here knows about UTF-8 or about commands.

Laws (tests/property/test_ztick_protocol.py): ``tokenize(join(tokens)) == tokens``; feeding data in
any pieces gives the same lines; never more than ``limit_bytes`` bytes are kept between feeds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date

from journeyman.units import DAY_S, NS_PER_S

LINE_LIMIT_BYTES = 4096

# Possessive throughout (`++`, `*+`): these never go back, so their time is linear in the line.
_QUOTED = rb'"(?:[^"\\]++|\\.)*+"'
_LINE = re.compile(rb'(?:[^"\n]++|' + _QUOTED + rb")*+\n", re.DOTALL)
_TOKEN = re.compile(rb'"((?:[^"\\]++|\\.)*+)"|([^ "]++)', re.DOTALL)
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)

# Also those of Unicode: some programs take U+0085 and U+2028 for line breaks.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_SHORT_ESCAPES = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}

# CR only because the last one of a line would be taken for a line end.
_MUST_BE_QUOTED = re.compile(rb'[ "\r\n]')


class LineBuffer:
    """Cuts a stream of bytes into lines; ``overflowed`` once a line goes over the limit.

    ``too_long`` is that line as far as it was received.
    """

    __slots__ = ("_limit_bytes", "_rest", "overflowed", "too_long")

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""
        self.overflowed = False
        self.too_long = b""

    @property
    def kept_bytes(self) -> int:
        """How much of an unfinished line is waiting for its end."""
        return len(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, each without its line end.

        After an overflow nothing is kept and nothing more comes out.
        """
        if self.overflowed:
            return []
        has_line_end = b"\n" in data
        data = self._rest + data
        if not has_line_end:
            # What is kept holds no line end already, so there is still none.
            lines = []
            self._rest = data
        else:
            lines = self._cut(data) if b'"' in data else self._cut_unquoted(data)
        if len(self._rest) >= self._limit_bytes and not self.overflowed:
            self.overflowed = True
            self.too_long = self._rest
        if self.overflowed:
            self._rest = b""
        return lines

    def _cut_unquoted(self, data: bytes) -> list[bytes]:
        """Without a quote every LF ends a line."""
        lines = data.split(b"\n")
        self._rest = lines.pop()
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
        self._rest = data[start:]
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


def quote(token: bytes) -> bytes:
    """The token as it has to be written: bare where that is read back the same, else in quotes."""
    if token and not _MUST_BE_QUOTED.search(token):
        return token
    return in_quotes(token)


def in_quotes(token: bytes) -> bytes:
    """The token in quotes, whether it needs them or not."""
    return b'"' + token.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def in_a_message(token: bytes) -> str:
    r"""The token as the text of an error shows it: in quotes, on one line whatever it holds.

    Such a text is for people and is not read back, so a line break is ``\n`` and another control
    character ``\x1b``: a client that takes every LF for the end of an answer is not fooled.
    """
    return _CONTROL.sub(_escape, in_quotes(token).decode(errors="backslashreplace"))


def _escape(control: re.Match[str]) -> str:
    code = ord(control[0])
    return _SHORT_ESCAPES.get(control[0], f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def join(tokens: Iterable[bytes]) -> bytes:
    """One line, without its LF, that is read back as these tokens."""
    return b" ".join(map(quote, tokens))


# ----------------------------------------
# The timestamps of SET: words of a line -> nanoseconds since 1970, or the reason why not.
#
#     1711612800000000000                  nanoseconds, a sign allowed, 64 bits with sign
#     2026-03-30 14:00:00                  two words, or one in quotes
#     2026-03-30T14:00:00                  ISO 8601
#     2026-03-30T14:00:00.123456789+02:00  with a fraction to the nanosecond, with Z or an offset
#     2026-03-30 14:00:00 +02:00           the same offset as a word of its own
#
# Without an offset a time is UTC. Everything else is refused: a day or time of day that does not
# exist, a moment outside 64 bits, a zone by name. A refused SET can be seen by the client; one that
# is taken for another moment cannot.
#
# Words behind a number are ignored, as everywhere in the protocol. Words behind a date and time
# could only mean a zone, so there they are refused unless they are an offset.

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

_NOT_A_TIME = "expected nanoseconds since 1970, YYYY-MM-DD HH:MM:SS or ISO 8601"
_OUT_OF_RANGE = "outside the range of 64-bit nanoseconds"


def read_timestamp(words: Sequence[bytes]) -> int | str:
    """Nanoseconds since 1970, or one phrase that says what is wrong. ``words`` is not empty."""
    first = words[0]
    if _DATE_FIRST.match(first):
        return _read_date_time(b" ".join(words))
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
