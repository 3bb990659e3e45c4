"""Numbers, times and bytes as people read them. Used by the templates."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from journeyman.protocols.workq.replies import id_text
from journeyman.servers.http import wire
from journeyman.servers.http.v1.values import LogRecord
from journeyman.units import DAY_S, NS_PER_S

_T = TypeVar("_T")
_STEPS = ((DAY_S, "d"), (3600, "h"), (60, "min"), (1, "s"))
UNKNOWN = "\u2013"  # a dash
MAX_READ_BYTES = 256 * 1024  # longer payloads and results are shown as they are
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")


def number(value: float | int | None) -> str:
    """With thin spaces between thousands; a dash for what is not known."""
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
    parts: list[str] = []
    left = int(seconds)
    for step, word in _STEPS:
        count, left = divmod(left, step)
        if count or parts:
            parts.append(f"{count} {word}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if not part.startswith("0 ")) or "0 s"


def away(unix_ns: int, now_ns: int) -> str:
    """How long ago, or how long until."""
    seconds = (now_ns - unix_ns) / NS_PER_S
    return f"{duration(seconds)} ago" if seconds >= 0 else f"in {duration(-seconds)}"


def moment(unix_ns: int | None) -> str:
    """RFC 3339 as a person reads it: to the millisecond, without T and Z."""
    return UNKNOWN if unix_ns is None else wire.time_text(unix_ns)[:23].replace("T", " ")


def is_text(data: bytes) -> bool:
    return "data" in wire.text_or_base64("data", data)


def text_of_bytes(data: bytes) -> str:
    """As they are, or in base64."""
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


class TaskCall(msgspec.Struct):
    """The payload of a task's job (docs/tasks.md), as far as it is shown."""

    v: int
    task: str
    args: list[msgspec.Raw]
    kwargs: dict[str, msgspec.Raw]


class TaskFailure(msgspec.Struct):
    """The result of a task's job that has failed."""

    error: str
    message: str
    traceback: str = ""


_CALL, _FAILURE = msgspec.json.Decoder(TaskCall), msgspec.json.Decoder(TaskFailure)


def call_of(payload: bytes | None) -> TaskCall | None:
    """None: not the call of a task."""
    return _read(_CALL, payload)


def failure_of(result: bytes | None) -> TaskFailure | None:
    """None: the worker wrote something else."""
    return _read(_FAILURE, result)


def _read(decoder: msgspec.json.Decoder[_T], data: bytes | None) -> _T | None:
    if data is None or not data.startswith(b"{") or len(data) > MAX_READ_BYTES:
        return None
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None


def payload_line(payload: bytes) -> str:
    """For a row: task and arguments, or the payload."""
    call = call_of(payload)
    if call is None:
        return text_of_bytes(payload) if is_text(payload) else "binary"
    given = [_text(value) for value in call.args]
    given += [f"{name}={_text(value)}" for name, value in call.kwargs.items()]
    return f"{call.task}({', '.join(given)})"


def error_line(result: bytes | None) -> str:
    """For a row: the error and its message, or what the worker wrote."""
    if not result:
        return "no attempts left"
    failure = failure_of(result)
    if failure is None:
        return text_of_bytes(result) if is_text(result) else "binary"
    return f"{failure.error}: {failure.message}" if failure.message else failure.error


def _text(value: msgspec.Raw) -> str:
    return bytes(value).decode("utf-8", "replace")


def spans_of(records: list[LogRecord]) -> list[dict[str, Any]]:
    """Return what a job was doing between its records, as parts of a bar."""
    after = {
        "add": "ready", "schedule": "scheduled", "start-attempt": "running",
        "timeout-attempt": "ready", "fail": "failed", "complete": "done",
    }  # fmt: skip
    timed = [(each.time_ns, each.kind) for each in records if each.time_ns is not None]
    if len(timed) < 2 or timed[-1][0] <= timed[0][0]:
        return []
    begin, whole = timed[0][0], timed[-1][0] - timed[0][0]
    spans = []
    for (from_ns, kind), (to_ns, _) in pairwise(timed):
        if to_ns > from_ns and kind in after:
            spans.append(
                {
                    "state": after[kind],
                    "x": round(1000 * (from_ns - begin) / whole, 2),
                    "width": max(round(1000 * (to_ns - from_ns) / whole, 2), 1.0),
                    "seconds": (to_ns - from_ns) / 1e9,
                }
            )
    return spans


def link(path: str, **query: Any) -> str:
    """A path of the console with its query; what is empty is left out."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given, doseq=True, errors='backslashreplace')}" if given else path


def in_path(text: str) -> str:
    return quote(text, safe="", errors="backslashreplace")


FILTERS = {
    "call_of": call_of,
    "error_line": error_line,
    "failure_of": failure_of,
    "payload_line": payload_line,
    "number": number,
    "size": size,
    "duration": duration,
    "moment": moment,
    "instant": wire.time_text,
    "is_text": is_text,
    "text_of_bytes": text_of_bytes,
    "hex_dump": hex_dump,
    "in_path": in_path,
    "id_text": id_text,
}
