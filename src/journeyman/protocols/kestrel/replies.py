r"""Answers of the kestrel protocol: the values that an engine replies with, and their bytes.

    set                STORED | NOT_STORED
    get                ItemFound: VALUE <key> 0 <size>\r\n<item>\r\nEND; or END
    monitor            ItemFound for each item, then END
    confirm            END | ERROR
    delete             DELETED
    flush              END, FLUSHED_ALL, FLUSHED_FOR_MEMCACHED; expired items: Count
    anything           ServerError: SERVER_ERROR <reason>
    stats and others   ServerLines, worded by the server

``reply_bytes`` words any of them. Lines end in CR LF. Each reply says whether the connection ends
with it (``hangup``), about how large it is (``size``), and what it counts as (``kind``).

The contract, with every reply to every command: docs/protocols/kestrel.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, TypeAlias

from journeyman.protocols.kestrel.commands import Key

OK, ITEM, NOT_KEPT = "ok", "item", "not_stored"
FAULT, CLIENT_FAULT, SERVER_FAULT = "error", "client_error", "server_error"
_LINE_BYTES = 64  # estimated size of a one-line reply


class Verdict:
    """A reply that is always the same line. There is one object of each; compare by identity."""

    __slots__ = ("hangup", "kind", "line", "size")

    def __init__(self, line: str, kind: str = OK, *, hangup: bool = False) -> None:
        self.line = line.encode() + b"\r\n" if line else b""
        self.kind = kind
        self.hangup = hangup
        self.size = len(self.line)

    def __repr__(self) -> str:
        return f"Verdict({self.line!r}, hangup={self.hangup})"


@dataclass(slots=True)  # not frozen: one is made for every get
class ItemFound:
    """The item, under the name it was asked by. It may be large: word it as late as possible."""

    key: Key
    data: bytes

    hangup: ClassVar[bool] = False
    kind: ClassVar[str] = ITEM

    @property
    def size(self) -> int:
        return len(self.data) + _LINE_BYTES


@dataclass(frozen=True, slots=True)
class Count:
    number: int

    hangup: ClassVar[bool] = False
    kind: ClassVar[str] = OK
    size: ClassVar[int] = _LINE_BYTES


@dataclass(frozen=True, slots=True)
class ServerError:
    """A failure that the original does not know; where it does, it says SERVER_ERROR
    and no more."""

    reason: str

    hangup: ClassVar[bool] = False
    kind: ClassVar[str] = SERVER_FAULT
    size: ClassVar[int] = _LINE_BYTES


@dataclass(frozen=True, slots=True)
class ServerLines:
    """A report of the server about itself, already encoded."""

    data: bytes

    hangup: ClassVar[bool] = False
    kind: ClassVar[str] = OK

    @property
    def size(self) -> int:
        return len(self.data)


Reply: TypeAlias = Verdict | ItemFound | Count | ServerError | ServerLines

STORED = Verdict("STORED")
NOT_STORED = Verdict("NOT_STORED", NOT_KEPT)
END = Verdict("END")
ERROR = Verdict("ERROR", FAULT)
ERROR_AND_CLOSE = Verdict("ERROR", FAULT, hangup=True)
CLIENT_ERROR = Verdict("CLIENT_ERROR", CLIENT_FAULT)
CLIENT_ERROR_AND_CLOSE = Verdict("CLIENT_ERROR", CLIENT_FAULT, hangup=True)
FORBIDDEN = Verdict("SERVER_ERROR", SERVER_FAULT, hangup=True)  # by the status of the server
DELETED = Verdict("DELETED")
FLUSHED_ALL = Verdict("Flushed all queues.")
FLUSHED_FOR_MEMCACHED = Verdict("OK")  # libmemcached takes the other one for a failure
AUTH_REQUIRED = Verdict("CLIENT_ERROR unauthenticated", CLIENT_FAULT, hangup=True)
GOODBYE = Verdict("", hangup=True)


def reply_bytes(reply: Reply) -> bytes:
    if isinstance(reply, Verdict):
        return reply.line
    if isinstance(reply, ItemFound):
        data = reply.data
        return b"%b%d\r\n%b\r\nEND\r\n" % (_value_head(reply.key), len(data), data)
    if isinstance(reply, ServerLines):
        return reply.data
    if isinstance(reply, Count):
        return b"%d\r\n" % reply.number
    return b"SERVER_ERROR " + reply.reason.encode("latin-1", "replace") + b"\r\n"


@lru_cache(1024)
def _value_head(key: Key) -> bytes:
    return b"VALUE %b 0 " % str(key).encode("latin-1")


def line(text: str) -> ServerLines:
    return ServerLines(text.encode("latin-1") + b"\r\n")


def stat_lines(stats: Iterable[tuple[str, object]]) -> ServerLines:
    lines = [f"STAT {name} {figure}\r\n" for name, figure in stats]
    return ServerLines("".join(lines).encode("latin-1", "replace") + END.line)


def queue_dump(queues: Mapping[str, Iterable[tuple[str, object]]]) -> ServerLines:
    lines: list[str] = []
    for name, stats in queues.items():
        lines.append(f"queue '{name}' {{\r\n")
        lines += (f"  {key}={figure}\r\n" for key, figure in stats)
        lines.append("}\r\n")
    return ServerLines("".join(lines).encode("latin-1", "replace") + END.line)
