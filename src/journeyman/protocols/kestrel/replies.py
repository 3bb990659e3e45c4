r"""Replies of the kestrel protocol, as bytes. Lines end in CR LF.

    set                STORED | NOT_STORED
    get                VALUE <key> 0 <size>\r\n<item>\r\nEND, or END
    monitor            a whole VALUE block for each item, then END
    confirm            END | ERROR
    delete             DELETED
    flush              END
    stats              STAT <name> <value> ..., END

The contract, with every reply to every command: docs/protocols/kestrel.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

from journeyman.protocols.kestrel.commands import Key

STORED = b"STORED\r\n"
NOT_STORED = b"NOT_STORED\r\n"
END = b"END\r\n"
ERROR = b"ERROR\r\n"
CLIENT_ERROR = b"CLIENT_ERROR\r\n"
SERVER_ERROR = b"SERVER_ERROR\r\n"
DELETED = b"DELETED\r\n"
FLUSHED_ALL = b"Flushed all queues.\r\n"


def value(key: Key, data: bytes) -> bytes:
    """The item, under the name it was asked by."""
    return b"%b%d\r\n%b\r\nEND\r\n" % (_value_head(key), len(data), data)


def value_line(key: Key, size: int) -> bytes:
    """The line before an item; see ``with_item``."""
    return b"%b%d\r\n" % (_value_head(key), size)


def with_item(line: bytes, data: bytes) -> bytes:
    """The same as ``value``, of its first line and the item."""
    return b"%b%b\r\nEND\r\n" % (line, data)


@lru_cache(1024)
def _value_head(key: Key) -> bytes:
    return b"VALUE %b 0 " % str(key).encode("latin-1")


def count(number: int) -> bytes:
    return b"%d\r\n" % number


def version(number: str) -> bytes:
    return b"VERSION " + number.encode("latin-1") + b"\r\n"


def word(text: str) -> bytes:
    return text.encode("latin-1") + b"\r\n"


def server_error(reason: str) -> bytes:
    """For what the original does not know; where it does, it says SERVER_ERROR and no more."""
    return b"SERVER_ERROR " + reason.encode("latin-1", "replace") + b"\r\n"


def stat_lines(stats: Iterable[tuple[str, object]]) -> bytes:
    lines = [f"STAT {name} {figure}\r\n" for name, figure in stats]
    return "".join(lines).encode("latin-1", "replace") + END


def queue_dump(queues: Mapping[str, Iterable[tuple[str, object]]]) -> bytes:
    lines: list[str] = []
    for name, stats in queues.items():
        lines.append(f"queue '{name}' {{\r\n")
        lines += (f"  {key}={figure}\r\n" for key, figure in stats)
        lines.append("}\r\n")
    return "".join(lines).encode("latin-1", "replace") + END
