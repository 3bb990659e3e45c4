"""Checks of arguments before anything is sent: each returns the value or raises InvalidRequest.

    checks.text(name, "name")               a str
    checks.data(payload, "payload")         bytes; bytearray and memoryview are taken as well
    checks.whole_number(n, "n", 0, 9)       an int from 0 to 9; also one of numpy, never a bool
    checks.moment(when)                     nanoseconds since 1970, or a datetime with a time zone

Every message names the argument, what it has to be, and what was given.
"""

from __future__ import annotations

import math
import operator
import os
import re
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from journeyman.client.errors import InvalidRequest
from journeyman.local_access import MAX_PATH_BYTES, socket_path

Moment: TypeAlias = int | datetime  # nanoseconds since 1970, or a time with its zone

MAX_PORT = 65_535
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INT64 = -(2**63), 2**63 - 1
_HOST_AND_PORT = re.compile(r"(?P<host>[^:\[\]]+|\[[^\[\]]+\]):(?P<port>[0-9]+)")
_SHOWN_CHARACTERS = 80


def describe(value: object) -> str:
    """The value for a message, cut short, with its type."""
    text = repr(value)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[:_SHOWN_CHARACTERS] + "..."
    return f"{text} ({type(value).__name__})"


def text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{what} must be a str, not {describe(value)}")
    return value


def secret(token: object) -> str:
    """Like text, but what was given is never shown."""
    if not isinstance(token, str):
        raise InvalidRequest(f"token must be a str, not a {type(token).__name__}")
    return token


def data(value: object, what: str) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    hint = "; encode it first, for example with .encode()" if isinstance(value, str) else ""
    raise InvalidRequest(f"{what} must be bytes, not {describe(value)}{hint}")


def whole_number(value: object, what: str, low: int, high: int) -> int:
    if type(value) is int and low <= value <= high:  # nearly always
        return value
    expected = f"{what} must be a whole number from {low} to {high}"
    if isinstance(value, bool):
        raise InvalidRequest(f"{expected}, not {describe(value)}")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidRequest(f"{expected}, not {describe(value)}") from None
    if not low <= number <= high:
        raise InvalidRequest(f"{expected}, not {number}")
    return number


def moment(value: object, what: str = "when") -> int:
    """Nanoseconds since 1970."""
    if isinstance(value, datetime):
        when = zoned(value, what)
        return whole_number((when - _EPOCH) // timedelta(microseconds=1) * 1000, what, *_INT64)
    try:
        number = None if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise InvalidRequest(
            f"{what} must be a datetime with a time zone, or an int of nanoseconds since 1970, "
            f"not {describe(value)}"
        )
    if not _INT64[0] <= number <= _INT64[1]:
        raise InvalidRequest(f"{what}: {number} ns is outside the signed 64-bit range")
    return number


def zoned(value: object, what: str = "time") -> datetime:
    if not isinstance(value, datetime):
        raise InvalidRequest(f"{what} must be a datetime with a time zone, not {describe(value)}")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidRequest(f"{what}: {value} has no time zone: give one, for example UTC")
    return value


def address(client: str, host: object, port: object) -> tuple[str, int]:
    """Where a client of this name connects to; ``unix:PATH`` has no port."""
    name = text(host, "host")
    if not name:
        raise InvalidRequest("host must not be empty")
    if "://" in name:
        scheme = name.partition("://")[0]  # the rest may hold a token
        raise InvalidRequest(
            f"host must be a name or an IP address, not a URL ({scheme}://...): use"
            f" {client}.from_url"
        )
    if path := socket_path(name):
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise InvalidRequest(f"the path of a socket has at most {MAX_PATH_BYTES} bytes")
        return name, 0
    if both := _HOST_AND_PORT.fullmatch(name):
        apart = f"{client}({both['host'].strip('[]')!r}, {both['port']})"
        raise InvalidRequest(f"host {name!r} contains the port: give them separately, {apart}")
    return name, whole_number(port, "port", 1, MAX_PORT)


def seconds(value: object, what: str) -> float:
    """More than no time, and not for ever."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{what} must be a number of seconds, not {describe(value)}")
    if not 0 < value < math.inf:
        raise InvalidRequest(f"{what} must be more than 0 seconds, not {value}")
    return float(value)


def batch(value: object) -> int:
    return whole_number(value, "batch", 1, 1_000_000)


def one_of(value: Any, kinds: tuple[type, ...], what: str, expected: str) -> None:
    """Refuse a value that is none of these."""
    if not isinstance(value, kinds):
        raise InvalidRequest(f"{what} must be {expected}, not {describe(value)}")


def pair(value: Any, what: str, expected: str) -> None:
    """Refuse what is not two things together."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InvalidRequest(f"{what} must be {expected}, not {describe(value)}")
