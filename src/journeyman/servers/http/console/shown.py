"""Numbers, times and bytes as people read them. Used by the templates."""

from __future__ import annotations

import json
import re
import shlex
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from jinja2 import pass_context
from jinja2.runtime import Context

from journeyman.formats.task_names import MAX_READ_BYTES, call_of
from journeyman.protocols.workq.commands import JobWait
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.http import wire
from journeyman.servers.http.console import moments
from journeyman.units import DAY_S, NS_PER_S

_T = TypeVar("_T")
_STEPS = ((DAY_S, "d"), (3600, "h"), (60, "min"), (1, "s"))
UNKNOWN = "\u2013"  # a dash
MAX_CUT_BYTES = 4096
_CUT_FAILURE = re.compile(rb'\{"error":"([A-Za-z0-9_.]{1,200})","message":"([^"\\]{0,2000})')
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | int | None) -> str:
    """Write a number with thin spaces between thousands, and a dash for what is not known."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float) and value != int(value):
        return f"{value:,.1f}".replace(",", "\u202f")
    return f"{int(value):,}".replace(",", "\u202f")


def size(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    amount, step = float(value), 0
    while amount >= 1024 and step < len(_SIZES) - 1:
        amount, step = amount / 1024, step + 1
    return f"{amount:.0f} {_SIZES[step]}" if step == 0 else f"{amount:.1f} {_SIZES[step]}"


def duration(seconds: float | None) -> str:
    """The two largest parts: 2 h 5 min."""
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0", "")
    parts: list[str] = []
    left = int(seconds)
    for step, word in _STEPS:
        count, left = divmod(left, step)
        if count or parts:
            parts.append(f"{count} {word}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"


def few_digits(value: float | None) -> str:
    """Write a number with the two or three digits that count."""
    if value is None:
        return UNKNOWN
    if value >= 100:
        return number(round(value))
    return f"{value:.2g}" if value < 10 else f"{value:.3g}"


def per_minute(per_second: float | None) -> str:
    return few_digits(None if per_second is None else 60 * per_second)


def plural(count: int, noun: str) -> str:
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def local_time(text: str) -> str:
    """A time of ISO 8601 with its own offset, as it is on a clock there."""
    then = datetime.fromisoformat(text)
    seconds = ":%S" if then.second else ""
    return f"{then:%a} {then.day} {then:%b} {then:%H:%M{seconds}}"


def milliseconds(value: float | None) -> str:
    return UNKNOWN if value is None else duration(value / 1000)


def percent(share: float | None) -> str:
    """One decimal below ten percent."""
    if share is None:
        return UNKNOWN
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def away(unix_ns: int, now_ns: int) -> str:
    """How long ago, or how long until."""
    seconds = (now_ns - unix_ns) / NS_PER_S
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


@pass_context
def moment(context: Context, unix_ns: int | None) -> str:
    """Write a time to the millisecond, in the zone of the page."""
    return UNKNOWN if unix_ns is None else moments.to_the_millisecond(unix_ns, context["zone"])


@pass_context
def brief(context: Context, unix_ns: int | None) -> str:
    """Write a time for a table: the time of day, with the day unless it is today."""
    if unix_ns is None:
        return UNKNOWN
    return moments.short_time(unix_ns, context["now_ns"], context["zone"])


def readable(data: bytes) -> str:
    """JSON with a line for each member, and anything else as it is."""
    if len(data) <= MAX_READ_BYTES and data[:1] in (b"{", b"["):
        try:
            return json.dumps(json.loads(data), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            pass
    return text_of_bytes(data)


def is_text(data: bytes) -> bool:
    return "data" in wire.text_or_base64("data", data)


def text_of_bytes(data: bytes) -> str:
    """Return bytes as text, or in base64 if they are none."""
    return next(iter(wire.text_or_base64("", data).values()))


def hex_dump(text: str) -> str:
    """Offsets, bytes and characters, sixteen a line; the first 4 KiB."""
    data = bytes.fromhex(text[: 2 * 4096])
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:04x}  {row.hex(' '):<47}  {shown}")
    if len(text) > 2 * 4096:
        lines.append(f"… {len(text) // 2 - 4096} bytes more")
    return "\n".join(lines)


class TaskFailure(msgspec.Struct):
    """The result of a task's job that has failed."""

    error: str
    message: str
    traceback: str = ""


_FAILURE = msgspec.json.Decoder(TaskFailure)


def failure_of(result: bytes | None) -> TaskFailure | None:
    """Read the failure of a task. None: the worker wrote something else."""
    return _read(_FAILURE, result)


def _read(decoder: msgspec.json.Decoder[_T], data: bytes | None) -> _T | None:
    if data is None or not data.startswith(b"{") or len(data) > MAX_READ_BYTES:
        return None
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def payload_line(payload: bytes) -> str:
    """Return a payload for a row: task and arguments, or the payload."""
    call = call_of(payload)
    if call is None:
        return text_of_bytes(payload) if is_text(payload) else "binary"
    return f"{call.task}({call.arguments})"


def wait_words(wait: JobWait) -> str:
    """Return what a parked job waits for, but not until when."""
    if wait.event:
        return f"for the event {wait.event}"
    count = len(wait.jobs)
    return f"for {count} job{'s' if count > 1 else ''}" if count else "for a time"


def error_line(result: bytes | None) -> str:
    """Return an error for a row: its class and message, or what the worker wrote."""
    if not result:
        return "no attempts left"
    failure = failure_of(result)
    if failure is None:
        # The log shows the beginning of a long one.
        cut = _CUT_FAILURE.match(result[:MAX_CUT_BYTES])
        if cut is not None:
            return f"{cut[1].decode()}: {cut[2].decode('utf-8', 'replace')}"
        return text_of_bytes(result) if is_text(result) else "binary"
    return f"{failure.error}: {failure.message}" if failure.message else failure.error


def error_class(result: bytes | None) -> str:
    """The class of the error alone, as a search finds it."""
    failure = failure_of(result)
    return failure.error if failure is not None else ""


def link(path: str, **query: Any) -> str:
    """A path of the console with its query; what is empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, doseq=True, errors='backslashreplace')}" if given else path


def in_path(text: str) -> str:
    return quote(text, safe="", errors="backslashreplace")


FILTERS = {
    "call_of": call_of,
    "error_class": error_class,
    "error_line": error_line,
    "wait_words": wait_words,
    "failure_of": failure_of,
    "payload_line": payload_line,
    "number": number,
    "size": size,
    "duration": duration,
    "few_digits": few_digits,
    "per_minute": per_minute,
    "plural": plural,
    "local_time": local_time,
    "milliseconds": milliseconds,
    "percent": percent,
    "moment": moment,
    "brief": brief,
    "readable": readable,
    "shell_words": shlex.join,
    "instant": wire.time_text,
    "is_text": is_text,
    "text_of_bytes": text_of_bytes,
    "hex_dump": hex_dump,
    "in_path": in_path,
    "id_text": id_text,
}
