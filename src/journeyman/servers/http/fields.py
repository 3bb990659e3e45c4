"""Fields of the HTTP API: their types, and how times, bytes and cursors are written and read.

A time is two fields: ``created`` is RFC 3339 in UTC with nine digits, ``created_ns`` nanoseconds
since 1970 as a string, because JavaScript rounds numbers of that size. Bytes are text where they
are UTF-8, else they come as ``..._base64``. What cannot be read is a 400.
"""

from __future__ import annotations

from base64 import b64decode, b64encode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from msgspec import Meta

from journeyman.moments import parse_moment
from journeyman.servers.http.errors import ApiError
from journeyman.units import NS_PER_S

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_NS, _LAST_NS = -62_135_596_800 * NS_PER_S, 253_402_300_799 * NS_PER_S
_MOST_NS = 2**63 - 1


Time = Annotated[str, Meta(description="RFC 3339, UTC, with nanoseconds")]
Nanoseconds = Annotated[
    str, Meta(pattern=r"^-?[0-9]+$(?!\n)", description="since 1970, as a string")
]
Moment = Annotated[
    str | int, Meta(description="RFC 3339, or nanoseconds since 1970 as a number or a string")
]
Cursor = Annotated[str, Meta(max_length=4096, description="`next` of the page before")]
Text = Annotated[str, Meta(max_length=1024)]
At = Annotated[Text, Meta(description="show the state at this moment, read from the log")]


def time_text(unix_ns: int) -> str:
    """RFC 3339, UTC, nine digits; what is outside the calendar is shown as its nearest end."""
    seconds, rest_ns = divmod(min(max(unix_ns, _FIRST_NS), _LAST_NS), NS_PER_S)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment.replace(tzinfo=None).isoformat()}.{rest_ns:09d}Z"


def read_moment(value: str | int, name: str) -> int:
    try:
        moment_ns = value if isinstance(value, int) else parse_moment(value)
    except (ValueError, OverflowError):
        raise ApiError(
            400,
            f"{name}: not a time: {value!r} (expected 2026-11-16T12:00:00Z or nanoseconds)"[:300],
            "invalid_time",
        ) from None
    if not -_MOST_NS - 1 <= moment_ns <= _MOST_NS:
        raise ApiError(400, f"{name} is outside the range of 64-bit nanoseconds", "invalid_time")
    return moment_ns


def text_or_base64(name: str, data: bytes | memoryview | None) -> dict[str, Any]:
    """Bytes under a name that says what they are."""
    if data is None:
        return {}
    try:
        return {name: bytes(data).decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def read_bytes(text: str, base64: str | None, name: str) -> bytes:
    if base64 is None:
        return text.encode()
    if text:
        raise ApiError(400, f"give {name} or {name}_base64, not both", "invalid_body")
    try:
        return b64decode(base64, validate=True)
    except (BadBase64, ValueError):
        raise ApiError(400, f"{name}_base64 is not base64", "invalid_body") from None


def cursor_of(key: bytes | None) -> str | None:
    return None if key is None else urlsafe_b64encode(key).decode()


def read_cursor(text: str, is_right: Callable[[bytes], bool] = bool) -> bytes | None:
    """``is_right``: whether such a key can have been given out."""
    if not text:
        return None
    try:
        key = b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
    except (ValueError, UnicodeEncodeError):
        key = b""
    if not key or not is_right(key):
        raise ApiError(400, "cursor: give the `next` of the page before", "invalid_cursor")
    return key
