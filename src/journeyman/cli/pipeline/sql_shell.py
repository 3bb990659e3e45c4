r"""The shell of ``journeyman pipeline sql``: statements over several lines, ended by ``;``.

    sql> SELECT status, count(*) FROM jobs      type on until the semicolon
      -> GROUP BY status;
    sql> \d                                     the tables; \d NAME the columns of one; \q ends it

An error is one line, and the shell goes on. Ctrl-C cancels what runs, or clears what was typed;
Ctrl-D ends the shell. What was typed is kept in $XDG_STATE_HOME/journeyman/sql_history.
"""

from __future__ import annotations

import contextlib
import os
import readline
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from journeyman.cli.errors import sentence
from journeyman.cli.pipeline.answers import Answer
from journeyman.cli.pipeline.interruption import interruptible, plainly_interruptible
from journeyman.cli.pipeline.session_options import SessionOptions
from journeyman.errors import JourneymanError

if TYPE_CHECKING:
    from journeyman.spark.sql import LogTables

PROMPT, CONTINUED = "sql> ", "  -> "
HISTORY_LINES = 1000
_HELP = r"""Statements end with ;   \d lists the tables, \d NAME its columns, \q ends the shell."""


def run_shell(tables: LogTables, answer: Answer, options: SessionOptions) -> None:
    """Read statements and answer them until the end of the input."""
    if not options.quiet:
        click.echo(f"tables: {', '.join(tables.names)}\n{_HELP}", err=True)
    with plainly_interruptible(), _history(), _completion(tables.names):
        for typed in _typed():
            if typed in (r"\q", "quit", "exit"):
                return
            with _one_line_errors(), interruptible(tables.cancel):
                _answer(typed, tables, answer, options)


def _answer(typed: str, tables: LogTables, answer: Answer, options: SessionOptions) -> None:
    if not typed.startswith("\\"):
        answer.give(tables.query(typed), options)
        return
    command, _, name = typed.partition(" ")
    if command == r"\d" and name.strip():
        answer.give(tables.query(f"DESCRIBE {name.strip()}"), options)
    elif command == r"\d":
        click.echo("\n".join(tables.names))
    else:
        click.echo(_HELP)


def _typed() -> Iterator[str]:
    """Statements and commands, as they are typed."""
    from journeyman.spark.sql import statements

    waiting = ""
    while True:
        try:
            line = input(CONTINUED if waiting.strip() else PROMPT)
        except EOFError:
            click.echo()
            return
        except KeyboardInterrupt:
            click.echo()
            waiting = ""
            continue
        if not waiting.strip() and (line.startswith("\\") or line.strip() in ("quit", "exit")):
            yield line.strip().rstrip(";")
            continue
        whole, waiting = statements(f"{waiting}{line}\n")
        yield from whole


@contextmanager
def _one_line_errors() -> Iterator[None]:
    from journeyman.spark.session.failures import in_one_sentence

    try:
        yield
    except KeyboardInterrupt:
        click.echo("cancelled", err=True)
    except (JourneymanError, OSError) as error:
        click.echo(f"error: {sentence(error)}", err=True)
    except Exception as error:
        said = in_one_sentence(error)
        if said is None:
            raise
        click.echo(f"error: {sentence(said)}", err=True)


@contextmanager
def _history() -> Iterator[None]:
    """Lines typed in earlier shells, and these for later ones. Without a place for them, none."""
    configured = os.environ.get("XDG_STATE_HOME", "")
    root = Path(configured) if os.path.isabs(configured) else Path("~/.local/state").expanduser()
    path = root / "journeyman" / "sql_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.write_history_file(path)
            path.chmod(0o600)


@contextmanager
def _completion(names: list[str]) -> Iterator[None]:
    """Tab completes the names of the tables."""

    def matching(text: str, number: int) -> str | None:
        found = [name for name in names if name.startswith(text.lower())]
        return found[number] if number < len(found) else None

    before = readline.get_completer()
    readline.set_completer(matching)
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before)
