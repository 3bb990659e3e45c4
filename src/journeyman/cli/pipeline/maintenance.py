"""``journeyman pipeline compact``, ``clean`` and ``archive``: logs made smaller, on Spark, offline.

    compact   ztick: the last record of each job and rule, in log order, in one file
              kestrel: items that every reader has finished, from the beginning of the queue, go
    clean     workq: deleted and expired jobs go
    archive   whole logs to Parquet, verified; then, with --remove, segments that the log itself
              does not need go: of workq those in which every job is over, of kestrel those that
              every reader has finished, of ztick none

    OUTPUT/run=20261115T190051Z-logfile-5d41402a/log=.../day=2026-11-15/part-....parquet

A run of ``archive`` appears as a whole, once every row has been read back and compared.
"""

from __future__ import annotations

import click

from journeyman.cli.output import as_json, check_drop_as_of, drop_as_of_option, format_options
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


@click.command()
@click.argument("logs", nargs=-1, required=True)
@drop_as_of_option
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
    check_drop_as_of(as_of, force=force)
    with pipeline_session(options, logs, changes_logs=True) as spark:
        from journeyman.spark.maintenance import clean as clean_logs
        from journeyman.spark.replay import states, visible

        if options.explain:
            jobs = states(spark, "workq", found["workq"])["jobs"]
            explain({"workq.jobs": visible(jobs, as_of)})
            return
        tell(clean_logs(spark, found["workq"], as_of_ns=as_of), json=as_json(format_, json_))


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Then remove segments that the log does not need.")
@pipeline_dialect_option
@format_options
@session_options
def archive(
    logs: tuple[str, ...],
    remove: bool,
    dialect: str | None,
    format_: str,
    json_: bool,
    options: SessionOptions,
) -> None:
    """Write every record of LOGS, payloads included, to Parquet under --output, and verify it."""
    if options.output is None:
        raise UsageError("say where the archive is with --output")
    found = logs_by_dialect(logs, dialect)
    with pipeline_session(options, logs, changes_logs=True) as spark:
        from journeyman.spark.maintenance import archive as archive_logs
        from journeyman.spark.maintenance import archived_rows

        if options.explain:
            for kind, paths in found.items():
                explain({kind: archived_rows(spark, kind, tuple(paths))})
            return
        outcomes = [
            outcome
            for kind, paths in found.items()
            for outcome in archive_logs(spark, kind, paths, options.output, remove=remove)
        ]
        tell(outcomes, json=as_json(format_, json_))
