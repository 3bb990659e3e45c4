"""``journeyman pipeline report``: one HTML file with charts, that opens anywhere."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING

import click

from journeyman.cli.output import MOMENT
from journeyman.cli.pipeline.answers import explain
from journeyman.cli.pipeline.log_paths import lake_option, logs_or_lake, pipeline_dialect_option
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)
from journeyman.clock import SystemClock
from journeyman.errors import UsageError

if TYPE_CHECKING:
    from journeyman.spark.session import SparkSession

DEFAULT_OUTPUT = "report.html"


@click.command()
@click.argument("logs", nargs=-1)
@lake_option
@click.option(
    "--title", default="Journeyman report", show_default=True, help="Heading of the page."
)
@click.option(
    "--as-of", type=MOMENT, help="When jobs count as late. [default: the last time in the logs]"
)
@click.option(
    "--runs", metavar="DIR", help="ztick: where the runs were recorded, if not beside the log."
)
@click.option("--force", is_flag=True, help="Replace the file that --output names.")
@pipeline_dialect_option
@session_options
def report(
    logs: tuple[str, ...],
    lake: str | None,
    title: str,
    as_of: int | None,
    runs: str | None,
    force: bool,
    dialect: str | None,
    options: SessionOptions,
) -> None:
    """Write a page about LOGS or a lake: throughput, waits, depth, failures, growth, lag, audit.

    One file that opens offline, report.html unless --output names another.
    """
    output = options.output or DEFAULT_OUTPUT
    _check_output(output, force=force)
    directories = [] if runs is None else [runs]
    found = logs_or_lake(logs, dialect, lake)
    with pipeline_session(options, logs or [lake or ""]) as spark:
        from journeyman.spark.history.logs import attempts_of
        from journeyman.spark.report import report as report_of_logs
        from journeyman.spark.report.page import page

        if lake is not None:
            _write(output, _page_of_lake(spark, lake, title, as_of))
            click.echo(output)
            return
        if options.explain:
            explain({"attempts": attempts_of(spark, found, run_directories=directories)})
            return
        said = report_of_logs(
            spark,
            found,
            made_ns=SystemClock().now_ns(),
            title=title,
            as_of_ns=as_of,
            run_directories=directories,
        )
    _write(output, page(said))
    click.echo(output)


def _page_of_lake(spark: SparkSession, path: str, title: str, as_of_ns: int | None) -> str:
    from journeyman.spark.lake.storage import open_lake
    from journeyman.spark.report import report_of_lake
    from journeyman.spark.report.page import page

    made_ns = SystemClock().now_ns()
    lake = open_lake(path)
    return page(report_of_lake(spark, lake, made_ns=made_ns, title=title, as_of_ns=as_of_ns))


def _check_output(output: str, *, force: bool) -> None:
    if os.path.isdir(output):
        raise UsageError(f"{output} is a directory: --output names the file to write")
    if os.path.exists(output) and not force:
        raise UsageError(f"{output} already exists: choose another --output, or give --force")


def _write(output: str, text: str) -> None:
    """All of it or nothing: a reader of the file never sees half a page."""
    directory, name = posixpath.split(output)
    unfinished = posixpath.join(directory, f".{name}.{os.getpid()}.tmp")
    try:
        with open(unfinished, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        os.replace(unfinished, output)
    except BaseException:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise
