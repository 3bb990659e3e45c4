r"""``journeyman pipeline sql``: ask the logs in SQL, once or in a shell.

The shell of ``journeyman pipeline sql``: statements over several lines, ended by ``;``.

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
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from journeyman.cli.errors import sentence
from journeyman.cli.pipeline import shared
from journeyman.errors import JourneymanError, UsageError

if TYPE_CHECKING:
    from journeyman.spark.sql import LogTables

PROMPT, CONTINUED = "sql> ", "  -> "
HISTORY_LINES = 1000
_HELP = r"""Statements end with ;   \d lists the tables, \d NAME its columns, \q ends the shell."""


def run_shell(tables: LogTables, answer: shared.Answer, options: shared.SessionOptions) -> None:
    """Read statements and answer them until the end of the input."""
    if not options.quiet:
        click.echo(f"tables: {', '.join(tables.names)}\n{_HELP}", err=True)
    with shared.plainly_interruptible(), _history(), _completion(tables.names):
        for typed in _typed():
            if typed in (r"\q", "quit", "exit"):
                return
            with _one_line_errors(), shared.interruptible(tables.cancel):
                _answer(typed, tables, answer, options)


def _answer(
    typed: str, tables: LogTables, answer: shared.Answer, options: shared.SessionOptions
) -> None:
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
    from journeyman.spark.session import in_one_sentence

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


@click.command()
@click.argument("logs", nargs=-1)
@shared.lake_option
@click.option(
    "--live",
    metavar="LOGS",
    multiple=True,
    help="With --lake: also what is new in these logs; nothing is stored. Repeat for more.",
)
@click.option("--host", metavar="NAME", help="Host of the live logs, as given to `ingest`.")
@click.option("--execute", "-e", metavar="QUERY", help="Run this statement instead of a shell.")
@click.option("--payloads", is_flag=True, help="Fill the columns payload, result, data and value.")
@shared.pipeline_dialect_option
@shared.answer_options
@shared.session_options
def sql(
    logs: tuple[str, ...],
    lake: str | None,
    live: tuple[str, ...],
    host: str | None,
    execute: str | None,
    payloads: bool,
    dialect: str | None,
    answer: shared.Answer,
    options: shared.SessionOptions,
) -> None:
    """Query the logs at LOGS, or a lake, in SQL.

    Each dialect that is found has a table of its log (ztick_log, workq_log, kestrel_log,
    ledger_log) and tables of its state (jobs, rules, work_jobs, orphans, items, readers,
    ledger_entries); attempts and runs hold their history. `SHOW TABLES` lists them, and those of a
    lake. Without --execute statements are read from a shell, or from stdin if that is not a
    terminal.
    """
    found = shared.logs_or_lake(logs, dialect, lake, ledger=True)
    if (live or host) and lake is None:
        raise UsageError("--live and --host need a lake: give one with --lake")
    new = shared.logs_by_dialect(live, dialect, ledger=True) if live else {}
    if execute is None and sys.stdin.isatty():
        _check_for_a_shell(options)
    text = _statements_asked(execute)
    if options.output is not None and len(text or ()) != 1:
        raise UsageError("--output takes the answer of one statement: give one, with --execute")
    answer.check(options)
    with shared.pipeline_session(options, logs or [lake or ""]) as spark:
        from journeyman.spark.sql import LogTables

        tables = LogTables(spark, found, lake, new, host, payloads=payloads)
        if text is None:
            run_shell(tables, answer, options)
            return
        for statement in text:
            answer.give(tables.query(statement), options)


def _check_for_a_shell(options: shared.SessionOptions) -> None:
    if options.output is not None or options.explain:
        raise UsageError("--output and --explain need a statement: give one with --execute")


def _statements_asked(execute: str | None) -> list[str] | None:
    """The statements to run; None if a person will type them. The last needs no semicolon."""
    if execute is None and sys.stdin.isatty():
        return None
    from journeyman.spark.sql import statements

    whole, rest = statements(execute if execute is not None else sys.stdin.read())
    asked = [*whole, *([rest.strip()] if rest.strip() else [])]
    if not asked:
        raise UsageError("no statement to run: give one with --execute or on stdin")
    return asked
