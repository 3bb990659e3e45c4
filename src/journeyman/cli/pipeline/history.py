"""``journeyman pipeline history``: what happened to every job, and what that adds up to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from journeyman.cli.output import MOMENT
from journeyman.cli.pipeline.answers import Answer, answer_options
from journeyman.cli.pipeline.log_paths import lake_option, logs_or_lake, pipeline_dialect_option
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)

if TYPE_CHECKING:
    from journeyman.spark.session import DataFrame, SparkSession


@click.command()
@click.argument("logs", nargs=-1)
@lake_option
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
@click.option("--since", type=MOMENT, help="Only what was ready, started or ended from then on.")
@click.option("--until", type=MOMENT, help="Only what was ready, started or ended before.")
@click.option("--exact", is_flag=True, help="Exact percentiles; slower.")
@click.option(
    "--runs", metavar="DIR", help="ztick: where the runs were recorded, if not beside the log."
)
@pipeline_dialect_option
@session_options
@answer_options
def history(
    logs: tuple[str, ...],
    lake: str | None,
    view: str,
    by: str,
    bucket: str,
    as_of: int | None,
    since: int | None,
    until: int | None,
    exact: bool,
    runs: str | None,
    dialect: str | None,
    options: SessionOptions,
    answer: Answer,
) -> None:
    """Every job and attempt: waits, run times, outcome; or depth, lag, rates, percentiles.

    Logs of several dialects, and of several servers, may be given together; or a lake.
    """
    from journeyman.spark.history.columns import between
    from journeyman.spark.history.summaries import parse_bucket

    bucket_ns = parse_bucket(bucket)
    found = logs_or_lake(logs, dialect, lake)
    with pipeline_session(options, logs or [lake or ""]) as spark:
        if view == "lag":
            frame = _lag(spark, found, lake)
        else:
            directories = [] if runs is None else [runs]
            rows = _rows(spark, found, lake, as_of, directories, since, until)
            frame = _view(between(rows, since, until), view, by, bucket_ns, as_of, exact)
        answer.give(frame, options)


def _lag(spark: SparkSession, logs: dict[str, list[str]], lake: str | None) -> DataFrame:
    from journeyman.spark.history.logs import lag_of
    from journeyman.spark.lake.storage import open_lake
    from journeyman.spark.lake.views import lag_in

    frame = lag_of(spark, logs) if lake is None else lag_in(spark, open_lake(lake))
    return frame.orderBy("_log", "reader")


def _rows(
    spark: SparkSession,
    logs: dict[str, list[str]],
    lake: str | None,
    as_of_ns: int | None,
    run_directories: list[str],
    since_ns: int | None,
    until_ns: int | None,
) -> DataFrame:
    from journeyman.spark.history.logs import attempts_of
    from journeyman.spark.lake.storage import open_lake
    from journeyman.spark.lake.views import history_of

    if lake is not None:
        return history_of(spark, open_lake(lake), as_of_ns, since_ns, until_ns)
    return attempts_of(spark, logs, as_of_ns=as_of_ns, run_directories=run_directories)


def _view(
    rows: DataFrame, view: str, by: str, bucket_ns: int, as_of_ns: int | None, exact: bool
) -> DataFrame:
    from journeyman.spark.history.summaries import depth, latency, throughput

    if view == "depth":
        return depth(rows, bucket_ns, by, as_of_ns).orderBy("_log", "group", "time")
    if view == "throughput":
        return throughput(rows, bucket_ns, by, as_of_ns).orderBy("_log", "group", "time")
    if view == "latency":
        return latency(rows, by, exact=exact).orderBy("_log", "group")
    return rows
