"""``journeyman pipeline compact``: ztick logs and kestrel queues made small, on Spark, offline.

ztick     the last record of each job and rule, in log order, all in the one file
kestrel   items that every reader has finished go, from the beginning of the queue
workq     has its own word for it: ``journeyman pipeline clean``
"""

from __future__ import annotations

import click

from journeyman.cli.output import as_json, format_options
from journeyman.cli.pipeline.answers import explain, refuse_output, tell
from journeyman.cli.pipeline.log_paths import logs_by_dialect, pipeline_dialect_option
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)
from journeyman.errors import UsageError


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("--queue", help="kestrel: only this queue of a directory.")
@pipeline_dialect_option
@format_options
@session_options
def compact(
    logs: tuple[str, ...],
    queue: str | None,
    dialect: str | None,
    format_: str,
    json_: bool,
    options: SessionOptions,
) -> None:
    """Make the logs at LOGS as small as their state allows.

    The result is replayed and compared with the state before, and only then replaces the log. A log
    in use, or a damaged one, is left unchanged and reported; the others are compacted.
    """
    refuse_output(options)
    found = logs_by_dialect(logs, dialect)
    if "workq" in found:
        raise UsageError(f"{found['workq'][0]} is a workq log: use `journeyman pipeline clean`")
    with pipeline_session(options, logs, changes_logs=True) as spark:
        from journeyman.spark.maintenance import compact as compact_logs
        from journeyman.spark.maintenance import compaction_plans

        if options.explain:
            for kind, paths in found.items():
                explain(compaction_plans(spark, kind, paths))
            return
        outcomes = [
            outcome
            for kind, paths in found.items()
            for outcome in compact_logs(spark, kind, paths, queue=queue)
        ]
        tell(outcomes, json=as_json(format_, json_))
