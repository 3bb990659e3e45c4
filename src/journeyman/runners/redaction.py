"""Keeps credentials out of every text that leaves the runners.

    redis://user:secret@cache:6379     ->   redis://***@cache:6379
    amqp://:a@b/c@host GET /x?to=me    ->   amqp://***@host GET /x?to=me

What counts is a word, a stretch without white space: everything between its first `://` and its
last `@` goes, whatever it is. So a password may hold `/`, `@`, quotes or a second address and is
still gone; the price is that an innocent `@` further on takes the host with it. Text that was cut
in the middle of a word is judged as if the missing part held the other half of the credentials.

Every step looks at each byte a fixed number of times: the text may be hostile and a mebibyte long.
It is not a search for secrets in general: a token in a path or a query is not recognised, which
is why the runners never put one into a text in the first place.
"""

from __future__ import annotations

import re

HIDDEN = "***"

_SEPARATOR = b"://"
_HIDDEN = HIDDEN.encode()
_WORD = re.compile(rb"\S+")


def redact(text: str) -> str:
    """The text without the userinfo of any address in it."""
    if "://" not in text:
        return text
    # Lone surrogates stand for bytes that were not UTF-8; they come back as they were.
    return redact_bytes(text.encode(errors="surrogateescape")).decode(errors="surrogateescape")


def redact_bytes(data: bytes) -> bytes:
    """The same for bytes of no known encoding."""
    if _SEPARATOR not in data:
        return data
    return _WORD.sub(lambda word: _redact_word(word[0]), data)


def redact_cut(head: bytes, tail: bytes) -> tuple[bytes, bytes]:
    """Both sides of a cut: credentials that the cut went through are gone from each of them."""
    last, first = _last_word(head), _first_word(tail)
    before, behind = head[: len(head) - len(last)], tail[len(first) :]
    separator, at = last.find(_SEPARATOR), first.rfind(b"@")
    if separator >= 0:
        last = last[: separator + len(_SEPARATOR)] + _HIDDEN
    if at >= 0:
        first = _HIDDEN + first[at:]
    return redact_bytes(before) + last, first + redact_bytes(behind)


def _redact_word(word: bytes) -> bytes:
    separator, at = word.find(_SEPARATOR), word.rfind(b"@")
    if separator < 0 or at < separator:
        return word
    return word[: separator + len(_SEPARATOR)] + _HIDDEN + word[at:]


def _last_word(data: bytes) -> bytes:
    """The word that touches the end, if one does."""
    return data.rsplit(maxsplit=1)[-1] if data and not data[-1:].isspace() else b""


def _first_word(data: bytes) -> bytes:
    """The word that touches the beginning, if one does."""
    return data.split(maxsplit=1)[0] if data and not data[:1].isspace() else b""
