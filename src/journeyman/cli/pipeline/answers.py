"""The answer of a pipeline command that is a table: to stdout, to files, or only its plan.

    @click.command()
    @session_options
    @answer_options
    def history(..., options: SessionOptions, answer: Answer):
        with pipeline_session(options) as spark:
            answer.give(frame, options)                     # one table
            answer.give({"jobs": a, "rules": b}, options)   # several: each named, each a directory

``--explain`` prints the plan of each table and runs nothing. Without ``--output`` a table goes to
stdout; with it, Spark writes a directory of files (with several tables, one directory in it for
each).

The answer of commands that change logs: one line a log, JSON or words, and the exit code.

Exit code 0: every log was treated, or had nothing to gain; 1: at least one was left as it was for
a reason that its line gives.
"""

from __future__ import annotations

import functools
import posixpath
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from journeyman.cli.output import Output, counted, json_line
from journeyman.cli.pipeline.session_options import SessionOptions
from journeyman.errors import UsageError

if TYPE_CHECKING:
    from journeyman.spark.maintenance import MaintenanceResult
    from journeyman.spark.session import DataFrame


def tell(outcomes: Iterable[MaintenanceResult], *, json: bool) -> None:
    """Print what became of each log; ends the command with 1 if one could not be treated."""
    failed = False
    with Output() as output:
        for outcome in outcomes:
            failed = failed or outcome.error is not None
            output.line(json_line(outcome.as_dict()) if json else _words(outcome))
    if failed:
        click.get_current_context().exit(1)


def refuse_output(options: SessionOptions) -> None:
    if options.output is not None:
        raise UsageError("the logs are changed where they are: leave --output out")


def _words(outcome: MaintenanceResult) -> str:
    if outcome.error is not None:
        return f"{outcome.log}: left as it was: {outcome.error}"
    if not outcome.changed:
        return f"{outcome.log}: {counted(outcome.records_before, 'record')}, nothing to gain"
    return (
        f"{outcome.log}: {counted(outcome.records_before, 'record')} read, "
        f"{outcome.records_after} kept; {outcome.bytes_before} bytes read, "
        f"{outcome.bytes_after} kept"
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """How the answer is wanted. ``format_`` None: a table on stdout, Parquet in files."""

    format_: str | None = None
    force: bool = False

    def give(self, tables: DataFrame | Mapping[str, DataFrame], options: SessionOptions) -> None:
        """Print, write or explain the tables."""
        named = dict(tables) if isinstance(tables, Mapping) else {"": tables}
        if options.explain:
            explain(named)
        elif options.output is None:
            self._print(named)
        else:
            self._write(named, options.output)

    def _print(self, named: Mapping[str, DataFrame]) -> None:
        from journeyman.spark.answers import answer_lines

        format_ = self.format_ or "table"
        if format_ == "parquet":
            raise UsageError("--format parquet is for files: give --output PATH")
        with Output() as output:
            for number, (name, frame) in enumerate(named.items()):
                if name and format_ != "json":
                    output.line(f"{'' if number == 0 else chr(10)}# {name}")
                for line in answer_lines(frame, format_):
                    output.line(line)

    def _write(self, named: Mapping[str, DataFrame], output: str) -> None:
        from journeyman.spark.answers import write_answer

        format_ = self.format_ or "parquet"
        if format_ == "table":
            raise UsageError("--format table is for the screen: choose parquet, csv or json")
        for name, frame in named.items():
            path = posixpath.join(output, name) if name else output
            write_answer(frame, path, format_, overwrite=self.force)


def explain(tables: Mapping[str, DataFrame]) -> None:
    """Print the plan of each table."""
    from journeyman.spark.answers import plan_of

    with Output() as output:
        for name, frame in tables.items():
            if name:
                output.line(f"# {name}")
            output.line(plan_of(frame))


def answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--format and --force; the command gets them as one argument ``answer``."""

    @functools.wraps(command)
    def gathered(*args: Any, format_: str | None, force: bool, **others: Any) -> Any:
        return command(*args, answer=Answer(format_, force), **others)

    gathered = click.option("--force", is_flag=True, help="Replace what --output holds.")(gathered)
    return click.option(
        "--format",
        "format_",
        type=click.Choice(["table", "csv", "json", "parquet"]),
        help="[default: table; parquet with --output]",
    )(gathered)
