"""The options that commands share, lines for stdout, and progress on stderr.

Text goes out as UTF-8 whatever the locale says. Names in a log may hold bytes that are not UTF-8;
the decoders keep them by surrogateescape, and here they leave as the bytes they were, so printing
never fails. JSON does the same as ``\\udcXX`` escapes instead (see ``json_line``): a line of JSON
is always valid UTF-8, and reading it back gives the very same string.

There is no bar when stderr is not a terminal, with ``--quiet``, or when the work is small: then
``advance`` costs one comparison. rich is imported only when a bar is drawn.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import click

from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.moments import parse_moment

if TYPE_CHECKING:
    _ParamType = click.ParamType[int]
else:
    _ParamType = click.ParamType

queue_option = click.option("--queue", help="kestrel: only this queue of a directory.")

F = TypeVar("F", bound=Callable[..., Any])

_BATCH_CHARS = 256 * 1024  # lines gathered before they are written

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def format_options(command: F) -> F:
    """--format and its shorthand; ``as_json`` says which was given."""
    command = click.option("--json", "json_", is_flag=True, help="Short for --format json.")(
        command
    )
    return click.option(
        "--format",
        "format_",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Text or JSON.",
    )(command)


def as_json(format_: str, json_: bool) -> bool:
    return json_ or format_ == "json"


def counted(number: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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


class _Moment(_ParamType):
    """Nanoseconds since 1970, ISO 8601 or ``now``."""

    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            text = str(value).strip()
            return SystemClock().now_ns() if text == "now" else parse_moment(text)
        except (ValueError, OverflowError):
            self.fail(
                f"not a time: {value!r} (expected 2026-11-16T12:00:00Z, nanoseconds or now)",
                param,
                ctx,
            )


MOMENT = _Moment()


class FiniteRange(click.FloatRange):
    """``nan`` is within every range of click's, and a wait of it would never end."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


drop_as_of_option = click.option(
    "--as-of",
    type=MOMENT,
    default="now",
    show_default=True,
    help="Drop jobs that have expired by this time: ISO 8601, nanoseconds or `now`.",
)


def check_drop_as_of(as_of_ns: int, *, force: bool) -> None:
    if as_of_ns > SystemClock().now_ns() and not force:
        raise UsageError(
            "--as-of is in the future, so jobs that still exist would be dropped: "
            "give --force to do this"
        )


class Output:
    """Lines for stdout; with ``prompt`` each one is written at once (for --follow).

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
            self.flush()

    def flush(self) -> None:
        """Write the lines given so far. BrokenPipeError: they reach no reader."""
        if not self._lines:
            return
        lines, self._lines = self._lines, []
        self._size = 0
        lines.append("")
        self._stream.write("\n".join(lines).encode("utf-8", "surrogateescape"))
        self._stream.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_how: object) -> None:
        self.flush()


quiet_option = click.option("--quiet", "-q", is_flag=True, help="No progress bar and no remarks.")

WORTH_A_BAR_BYTES = 4 * 1024 * 1024


class Advance(Protocol):
    """Say how much of the total is done by now."""

    def __call__(self, done: int) -> None: ...


def _nothing(done: int) -> None:  # noqa: ARG001 - the shape of Advance
    return None


@contextmanager
def progress(
    title: str, total: int, *, quiet: bool = False, worth: int = WORTH_A_BAR_BYTES
) -> Iterator[Advance]:
    """A bar from 0 to ``total``; yields the function that moves it."""
    if quiet or total < worth or not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def advance(done: int) -> None:
            bar.update(task, completed=done)

        yield advance


@contextmanager
def working(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Show that something goes on whose end is unknown."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield
