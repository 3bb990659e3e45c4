"""The shared part of commands for a server: --server, --json, clients, lists as text or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from journeyman.cli.output import Output, json_line
from journeyman.client.service import URL_VARIABLE

if TYPE_CHECKING:
    from journeyman.client.blocking import BlockingClient

HTTP_PORT = 5679  # the port of a URL without one

C = TypeVar("C", bound="BlockingClient")


def server_option(command: Any) -> Any:
    return click.option(
        "--server",
        envvar=URL_VARIABLE,
        metavar="URL",
        help=f"journeyman://[TOKEN@]HOST[:PORT]. [default: ${URL_VARIABLE} or this machine]",
    )(command)


def server_options(command: Any) -> Any:
    """--server and --json."""
    flag = click.option("--json", "as_json", is_flag=True, help="JSON lines instead of text.")
    return server_option(flag(command))


@contextmanager
def connected(kind: type[C], server: str | None) -> Iterator[C]:
    """A client of the server, closed at the end."""
    client = kind.from_url(server)
    try:
        yield client
    finally:
        client.close()


SERVICES = ("schedule", "work-queue", "fan-out")


def show(rows: Sequence[Mapping[str, Any]], as_json: bool, columns: Iterable[str] = ()) -> None:
    """Rows of the same shape: JSON lines, or a table with these columns."""
    with Output() as out:
        if as_json:
            for row in rows:
                out.line(json_line({name: plain(value) for name, value in row.items()}))
            return
        names = list(columns) or list(rows[0] if rows else ())
        if not rows:
            return
        lines = [[name.replace("_", "-").upper() for name in names]]
        lines += [[as_cell(row[name]) for name in names] for row in rows]
        widths = [max(len(line[place]) for line in lines) for place in range(len(names))]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            out.line("  ".join(cells).rstrip())


def show_one(row: Mapping[str, Any], as_json: bool) -> None:
    """One thing: a JSON line, or a line per member."""
    if as_json:
        show([row], True)
        return
    width = max(map(len, row))
    with Output() as out:
        for name, value in row.items():
            out.line(f"{name.replace('_', '-').ljust(width)}  {as_cell(value)}")


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    return value


def as_cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(str(plain(value)).split("\n"))
