"""``journeyman pipeline clean``: workq logs without deleted and expired jobs, on Spark, offline."""

from __future__ import annotations

import click

from journeyman.cli.lines import MOMENT
from journeyman.cli.output import as_json, format_options
from journeyman.cli.pipeline.answers import explain, refuse_output, tell
from journeyman.cli.pipeline.log_paths import logs_by_dialect, pipeline_dialect_option
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)
from journeyman.clock import SystemClock
from journeyman.errors import UsageError


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option(
    "--as-of",
    type=MOMENT,
    default="now",
    show_default=True,
    help="Drop what has expired at this time: ISO 8601, nanoseconds or `now`.",
)
@click.option("--force", is_flag=True, help="Allow a time in the future.")
@pipeline_dialect_option
@format_options
@session_options
def clean(
    logs: tuple[str, ...],
    as_of: int,
    force: bool,
    dialect: str | None,
    format_: str,
    json_: bool,
    options: SessionOptions,
) -> None:
    """Drop expired and deleted jobs from the workq logs at LOGS.

    Each remaining job is written with as few records as possible. The result is replayed and
    compared with the state before, and only then replaces the log.
    """
    refuse_output(options)
    found = logs_by_dialect(logs, dialect)
    other = next((kind for kind in found if kind != "workq"), None)
    if other is not None:
        raise UsageError(f"{found[other][0]} is a {other} log: use `journeyman pipeline compact`")
    if as_of > SystemClock().now_ns() and not force:
        raise UsageError(
            "--as-of is in the future, so jobs that still exist would be dropped: "
            "give --force if that is meant"
        )
    with pipeline_session(options, logs, changes_logs=True) as spark:
        from journeyman.spark.maintenance import clean as clean_logs
        from journeyman.spark.replay.workq import visible
        from journeyman.spark.tables import states

        if options.explain:
            jobs = states(spark, "workq", found["workq"])["jobs"]
            explain({"workq.jobs": visible(jobs, as_of)})
            return
        tell(clean_logs(spark, found["workq"], as_of_ns=as_of), json=as_json(format_, json_))
