"""An entry of any dialect as one line of output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from journeyman.cli.dialects import WORKQ, ZTICK, LogFile
from journeyman.cli.output import json_line
from journeyman.formats.framing import Entry


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
