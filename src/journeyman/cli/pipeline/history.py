"""``journeyman pipeline history``: what happened to every job, and what that adds up to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from journeyman.cli.lines import MOMENT
from journeyman.cli.pipeline.answers import Answer, answer_options
from journeyman.cli.pipeline.log_paths import logs_by_dialect, pipeline_dialect_option
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)

if TYPE_CHECKING:
    from journeyman.spark.session import DataFrame, SparkSession


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option(
    "--view",
    type=click.Choice(["attempts", "depth", "lag", "throughput", "latency"]),
    default="attempts",
    show_default=True,
    help="Rows, or what they add up to.",
)
@click.option(
    "--by",
    type=click.Choice(["queue", "rule", "prefix", "log"]),
    default="queue",
    show_default=True,
    help="How rows are grouped.",
)
@click.option("--bucket", default="1m", show_default=True, help="Length of time: 10s, 1m, 1h.")
@click.option(
    "--as-of",
    type=MOMENT,
    help="Jobs whose TTL has ended by then are expired; nothing later is shown.",
)
@click.option("--exact", is_flag=True, help="Exact percentiles; slower.")
@click.option(
    "--runs", metavar="DIR", help="ztick: where the runs were recorded, if not beside the log."
)
@pipeline_dialect_option
@session_options
@answer_options
def history(
    logs: tuple[str, ...],
    view: str,
    by: str,
    bucket: str,
    as_of: int | None,
    exact: bool,
    runs: str | None,
    dialect: str | None,
    options: SessionOptions,
    answer: Answer,
) -> None:
    """Every job and attempt of LOGS: waits, run times, outcome; or depth, lag, rates, percentiles.

    Logs of several dialects, and of several servers, may be given together.
    """
    from journeyman.spark.history.summaries import parse_bucket

    bucket_ns = parse_bucket(bucket)
    with pipeline_session(options, logs) as spark:
        found = logs_by_dialect(logs, dialect)
        directories = [] if runs is None else [runs]
        frame = _view(spark, found, view, by, bucket_ns, as_of, exact, directories)
        answer.give(frame, options)


def _view(
    spark: SparkSession,
    logs: dict[str, list[str]],
    view: str,
    by: str,
    bucket_ns: int,
    as_of_ns: int | None,
    exact: bool,
    run_directories: list[str],
) -> DataFrame:
    from journeyman.spark.history.logs import attempts_of, lag_of
    from journeyman.spark.history.summaries import depth, latency, throughput

    if view == "lag":
        return lag_of(spark, logs).orderBy("_log", "reader")
    rows = attempts_of(spark, logs, as_of_ns=as_of_ns, run_directories=run_directories)
    if view == "depth":
        return depth(rows, bucket_ns, by, as_of_ns).orderBy("_log", "group", "time")
    if view == "throughput":
        return throughput(rows, bucket_ns, by, as_of_ns).orderBy("_log", "group", "time")
    if view == "latency":
        return latency(rows, by, exact=exact).orderBy("_log", "group")
    return rows
