"""Lines for stdout, as bytes.

Text goes out as UTF-8 whatever the locale says. Names in a log may hold bytes that are no UTF-8;
the decoders keep them by surrogateescape, and here they leave as the bytes they were, so printing
never fails. JSON does the same as ``\\udcXX`` escapes instead (see ``json_line``): a line of JSON
is always valid UTF-8, and reading it back gives the very same string.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, Self, TypeVar

import click

from journeyman.logs.catalog import DIALECTS

dialect_option = click.option(
    "--dialect", type=click.Choice(DIALECTS), help="Do not guess what kind of log it is."
)

F = TypeVar("F", bound=Callable[..., Any])

_BATCH_CHARS = 256 * 1024  # lines gathered before they are written

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def format_options(command: F) -> F:
    """--format and its shorthand; ``as_json`` tells what was asked for."""
    command = click.option("--json", "json_", is_flag=True, help="Short for --format json.")(
        command
    )
    return click.option(
        "--format",
        "format_",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text for people, JSON for programs.",
    )(command)


def as_json(format_: str, json_: bool) -> bool:
    return json_ or format_ == "json"


def json_line(value: Any) -> str:
    """One line of JSON, compact, UTF-8 left as it is."""
    text = _ENCODER.encode(value)
    if text.isascii():
        return text
    return _escape_surrogates(text)


def _escape_surrogates(text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join(
            f"\\u{ord(char):04x}" if "\ud800" <= char <= "\udfff" else char for char in text
        )
    return text


class Output:
    """stdout, a line at a time; ``prompt`` writes each one at once (for --follow).

    Use it in a ``with`` block: whatever ends the block, the lines given so far are written.
    """

    def __init__(self, *, prompt: bool = False) -> None:
        self._stream = sys.stdout.buffer
        self._lines: list[str] = []
        self._size = 0
        self._batch = 0 if prompt else _BATCH_CHARS

    def line(self, text: str) -> None:
        self._lines.append(text)
        self._size += len(text)
        if self._size >= self._batch:
            self._write()

    def _write(self) -> None:
        lines, self._lines = self._lines, []
        self._size = 0
        lines.append("")
        self._stream.write("\n".join(lines).encode("utf-8", "surrogateescape"))
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_how: object) -> None:
        if self._lines:
            self._write()
