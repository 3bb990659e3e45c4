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
from collections.abc import Iterable

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
