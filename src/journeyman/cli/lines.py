"""An entry of any dialect as one line of output."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from journeyman import moments
from journeyman.cli.dialects import WORKQ, ZTICK, LogFile
from journeyman.cli.output import json_line
from journeyman.clock import SystemClock
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import Entry
from journeyman.units import NS_PER_S

if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    _ParamType = click.ParamType

# ----------------------------------------
# Small things said the same way everywhere: counts, and bytes for the eye.

SHOWN_BYTES = 60


def counted(number: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def snippet(data: bytes) -> str:
    """``"ping"``, or the beginning and the size of something long. JSON holds bytes whole."""
    shown = repr(data[:SHOWN_BYTES])[2:-1].replace('"', '\\"')
    rest = len(data) - SHOWN_BYTES
    return f'"{shown}"' if rest <= 0 else f'"{shown}"... ({len(data)} bytes)'


# ----------------------------------------
# The word that reports use for the kind of a record: the one that the log's own dump uses.

_WORDS: dict[type, str] = {
    ztick.JobSet: "set",
    ztick.RuleSet: "rule_set",
    ztick.JobRemoved: "remove",
    ztick.RuleRemoved: "remove_rule",
    kestrel.ItemPut: "PUT",
    kestrel.ReadHead: "READ_HEAD",
    kestrel.ReadDone: "READ_DONE",
    kestrel.UnknownCommand: "UNKNOWN",
    workq.UnknownCommand: "unknown",
}
_COMMANDS = {int(command): command.word for command in workq.Command}


def kind_of(record: Any) -> str:
    word = _WORDS.get(type(record))
    return word if word is not None else _COMMANDS[record.command]


# ----------------------------------------
# Moments on the command line: nanoseconds since 1970, ISO 8601, or ``now``.
#
#     1794769251050695748, 2026-11-15T19:00:51Z, 2026-11-15     as in journeyman.moments, or now

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def parse_moment(text: str) -> int:
    """Nanoseconds since 1970. Raises ValueError."""
    return SystemClock().now_ns() if text.strip() == "now" else moments.parse_moment(text)


def iso(unix_ns: int) -> str:
    """ISO 8601 in UTC, with 0, 3, 6 or 9 digits as the moment needs; beyond 9999 the number."""
    seconds, rest_ns = divmod(unix_ns, NS_PER_S)
    try:
        text = (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")
    except OverflowError:
        return f"{unix_ns}ns"
    fraction = f"{rest_ns:09d}"
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{text.rjust(19, '0')}{'.' if fraction else ''}{fraction}Z"


class _Moment(_ParamType):
    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_moment(str(value))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is no moment: give nanoseconds since 1970, ISO 8601 or `now`",
                param,
                ctx,
            )


MOMENT = _Moment()


def line_maker(file: LogFile, *, json: bool) -> Callable[[Entry[Any]], str]:
    """What turns the entries of this file into lines."""
    name = file.name
    if file.dialect == ZTICK:
        from journeyman.cli import ztick_lines

        ztick_line = ztick_lines.json_text if json else ztick_lines.text
        return lambda entry: ztick_line(entry.record)
    if file.dialect == WORKQ:
        from journeyman.cli import workq_lines

        if json:
            return lambda entry: json_line(workq_lines.fields(name, entry))
        return lambda entry: workq_lines.text(name, entry)
    from journeyman.cli import kestrel_lines

    if json:
        return lambda entry: json_line(kestrel_lines.fields(name, entry))
    return lambda entry: kestrel_lines.text(name, entry)
