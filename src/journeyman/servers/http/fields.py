"""Types of the fields of queries and bodies, and the one way to read each.

Fields are written in one way as well (wire.py). What cannot be read is a 400.
"""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64encode
from binascii import Error as BadBase64
from collections.abc import Callable
from typing import Annotated, Any, Final

from msgspec import Meta

from journeyman.moments import parse_moment
from journeyman.servers.http.problems import ApiError

_MOST_NS = 2**63 - 1
# The years are those whose nanoseconds since 1970 have 64 bits.
_DAY = (
    "(?:(?:1[7-9]|2[01])[0-9][0-9]|22[0-5][0-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    "|(?:(?:1[7-9]|2[01])(?:0[48]|[2468][048]|[13579][26])|22(?:0[48]|[24][048]|[135][26])|2000)"
    "-02-29"
)
_TIME = "(?:[01][0-9]|2[0-3]):[0-5][0-9](?::[0-5][0-9](?:[.,][0-9]{1,9})?)?"
_OFFSET = "(?:Z|[+-](?:[01][0-9]|2[0-3]):?[0-5][0-9])"
_NUMBER_OF_NS = "-?(?:[0-9]{1,18}|[1-8][0-9]{18}|9[01][0-9]{17})"
_MOMENT = f"(?:(?:{_DAY})(?:[T ]{_TIME}{_OFFSET}?)?|{_NUMBER_OF_NS})"
_BASE64_END = "[A-Za-z0-9{0}]{{2}}==|[A-Za-z0-9{0}]{{3}}="


def whole_text(pattern: str) -> str:
    """A pattern that fits the whole of a text: a $ alone lets a line end follow in Python."""
    return rf"^(?:{pattern})$(?!\n)"


def documented(pattern: str, **more: Any) -> Meta:
    """Describe a text in the document; other code checks it, and says what is wrong."""
    return Meta(extra_json_schema={"pattern": whole_text(pattern), **more})


MOMENT: Final = re.compile(_MOMENT)
MomentText = Annotated[str, documented(_MOMENT)]
Moment = Annotated[
    MomentText | Annotated[int, Meta(ge=-_MOST_NS - 1, le=_MOST_NS)],
    Meta(description="RFC 3339, or nanoseconds since 1970 as a number or a string"),
]
Cursor = Annotated[
    str,
    documented(f"(?:[A-Za-z0-9_-]{{4}})*(?:{_BASE64_END.format('_-')})?"),
    Meta(max_length=4096, description="`next` of the previous page"),
]
Base64 = Annotated[str, documented(f"(?:[A-Za-z0-9+/]{{4}})*(?:{_BASE64_END.format('+/')})?")]
Text = Annotated[str, Meta(max_length=1024)]
MomentOrNone = Annotated[Text, documented(f"(?:{_MOMENT})?")]
At = Annotated[MomentOrNone, Meta(description="show the state at this time, read from the log")]


def word_of(*words: str) -> Meta:
    """A text that is one of these words; a refusal lists them."""
    return Meta(pattern=whole_text("|".join(words)), extra_json_schema={"enum": list(words)})


def read_moment(value: str | int, name: str) -> int:
    try:
        if isinstance(value, str) and not MOMENT.fullmatch(value):
            raise ValueError
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


def moment_of_query(at: str) -> int | None:
    """The moment of ``?at=``; None: now."""
    return read_moment(at, "at") if at else None


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
        raise ApiError(400, "cursor: give the `next` of the previous page", "invalid_cursor")
    return key
