"""``journeyman pipeline sql``: ask the logs in SQL, once or in a shell."""

from __future__ import annotations

import sys

import click

from journeyman.cli.pipeline.answers import Answer, answer_options
from journeyman.cli.pipeline.log_paths import logs_by_dialect, pipeline_dialect_option
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)
from journeyman.errors import UsageError


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("--execute", "-e", metavar="QUERY", help="Run this, and do not start a shell.")
@click.option("--payloads", is_flag=True, help="Fill the columns payload, result, data and value.")
@pipeline_dialect_option
@answer_options
@session_options
def sql(
    logs: tuple[str, ...],
    execute: str | None,
    payloads: bool,
    dialect: str | None,
    answer: Answer,
    options: SessionOptions,
) -> None:
    """Ask the logs at LOGS in SQL.

    Each dialect that is found has a table of its log (ztick_log, workq_log, kestrel_log) and tables
    of its state (jobs, rules, work_jobs, orphans, items, readers). Without --execute statements are
    read from a shell, or from stdin if that is no terminal.
    """
    found = logs_by_dialect(logs, dialect)
    if execute is None and sys.stdin.isatty():
        _check_for_a_shell(options)
    text = _statements_asked(execute)
    if options.output is not None and len(text or ()) != 1:
        raise UsageError("--output takes the answer of one statement: give one, with --execute")
    with pipeline_session(options, logs) as spark:
        from journeyman.spark.sql import LogTables

        tables = LogTables(spark, found, payloads=payloads)
        if text is None:
            from journeyman.cli.pipeline.sql_shell import run_shell

            run_shell(tables, answer, options)
            return
        for statement in text:
            answer.give(tables.query(statement), options)


def _check_for_a_shell(options: SessionOptions) -> None:
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
