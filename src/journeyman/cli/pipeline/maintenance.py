"""``journeyman pipeline compact``, ``clean``, ``archive`` and ``convert``: logs rewritten, offline.

    compact   ztick: the last record of each job and rule, in log order, in one file
              kestrel: items that every reader has finished, from the beginning of the queue, go
    clean     workq: deleted and expired jobs go
    archive   whole logs to Parquet, verified; then, with --remove, segments that the log itself
              does not need go: of workq those in which every job is over, of kestrel those that
              every reader has finished, of ztick none
    convert   ztick <-> workq       what is planned <-> scheduled jobs
              kestrel -> workq      items that a reader waits for -> jobs
              any <-> parquet       every record, byte for byte back
              any -> keyspace       records, indexes and counters, as Parquet files

    OUTPUT/run=20261115T190051Z-logfile-5d41402a/log=.../day=2026-11-15/part-....parquet

A run of ``archive`` appears as a whole, once every row has been read back and compared. ``convert``
answers on stdout with what could not be carried over, one JSON line for each job or field; with
``--losses DIR`` that goes there as Parquet instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from journeyman.cli import output
from journeyman.cli.pipeline import shared
from journeyman.clock import SystemClock
from journeyman.errors import UsageError

if TYPE_CHECKING:
    from journeyman.spark.convert import Conversion

TARGETS = ("ztick", "workq", "keyspace", "parquet", "log")


@click.command()
@click.argument("logs", nargs=-1, required=True)
@output.queue_option
@shared.pipeline_dialect_option
@output.format_options
@shared.session_options
def compact(
    logs: tuple[str, ...],
    queue: str | None,
    dialect: str | None,
    format_: str,
    json_: bool,
    options: shared.SessionOptions,
) -> None:
    """Shrink the logs at LOGS.

    The result is replayed and compared with the state before, and only then replaces the log. A log
    in use, or a damaged one, is left unchanged and reported; the others are compacted.
    """
    shared.refuse_output(options)
    shared.local_only(*logs)
    found = shared.logs_by_dialect(logs, dialect)
    if "workq" in found:
        raise UsageError(f"{found['workq'][0]} is a workq log: use `journeyman pipeline clean`")
    with shared.pipeline_session(options, logs, changes_logs=True) as spark:
        from journeyman.spark.maintenance import compact as compact_logs
        from journeyman.spark.maintenance import compaction_plans

        if options.explain:
            for kind, paths in found.items():
                shared.explain(compaction_plans(spark, kind, paths))
            return
        outcomes = [
            outcome
            for kind, paths in found.items()
            for outcome in compact_logs(spark, kind, paths, queue=queue)
        ]
        shared.tell(outcomes, json=output.as_json(format_, json_))


@click.command()
@click.argument("logs", nargs=-1, required=True)
@output.drop_as_of_option
@click.option("--force", is_flag=True, help="Allow a time in the future.")
@shared.pipeline_dialect_option
@output.format_options
@shared.session_options
def clean(
    logs: tuple[str, ...],
    as_of: int,
    force: bool,
    dialect: str | None,
    format_: str,
    json_: bool,
    options: shared.SessionOptions,
) -> None:
    """Drop expired and deleted jobs from the workq logs at LOGS.

    Each remaining job is written with as few records as possible. The result is replayed and
    compared with the state before, and only then replaces the log.
    """
    shared.refuse_output(options)
    shared.local_only(*logs)
    found = shared.logs_by_dialect(logs, dialect)
    other = next((kind for kind in found if kind != "workq"), None)
    if other is not None:
        raise UsageError(f"{found[other][0]} is a {other} log: use `journeyman pipeline compact`")
    output.check_drop_as_of(as_of, force=force)
    with shared.pipeline_session(options, logs, changes_logs=True) as spark:
        from journeyman.spark.maintenance import clean as clean_logs
        from journeyman.spark.replay import states, visible

        if options.explain:
            jobs = states(spark, "workq", found["workq"])["jobs"]
            shared.explain({"workq.jobs": visible(jobs, as_of)})
            return
        shared.tell(
            clean_logs(spark, found["workq"], as_of_ns=as_of), json=output.as_json(format_, json_)
        )


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Then remove segments that are no longer needed.")
@shared.pipeline_dialect_option
@output.format_options
@shared.session_options
def archive(
    logs: tuple[str, ...],
    remove: bool,
    dialect: str | None,
    format_: str,
    json_: bool,
    options: shared.SessionOptions,
) -> None:
    """Write every record of LOGS, payloads included, to Parquet under --output, and verify it."""
    if options.output is None:
        raise UsageError("say where the archive is with --output")
    if remove:
        shared.local_only(*logs)
    found = shared.logs_by_dialect(logs, dialect)
    with shared.pipeline_session(options, logs, changes_logs=True) as spark:
        from journeyman.spark.maintenance import archive as archive_logs
        from journeyman.spark.maintenance import archived_rows

        if options.explain:
            for kind, paths in found.items():
                shared.explain({kind: archived_rows(spark, kind, tuple(paths))})
            return
        outcomes = [
            outcome
            for kind, paths in found.items()
            for outcome in archive_logs(spark, kind, paths, options.output, remove=remove)
        ]
        shared.tell(outcomes, json=output.as_json(format_, json_))


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option(
    "--to",
    "target",
    type=click.Choice(TARGETS),
    required=True,
    help="Target format; `log` restores a log from --to parquet.",
)
@click.option("--name", help="workq: the queue of all jobs. [default: the rule's, or the queue's]")
@click.option(
    "--ttr-ms", type=int, default=60_000, show_default=True, help="workq: TTR of each job."
)
@click.option(
    "--ttl-ms", type=int, default=2_592_000_000, show_default=True, help="workq: likewise."
)
@click.option("--losses", metavar="DIR", help="Where to list what cannot be carried over.")
@click.option("--force", is_flag=True, help="Replace what is at --output and --losses.")
@shared.pipeline_dialect_option
@shared.session_options
def convert(
    logs: tuple[str, ...],
    target: str,
    name: str | None,
    ttr_ms: int,
    ttl_ms: int,
    losses: str | None,
    force: bool,
    dialect: str | None,
    options: shared.SessionOptions,
) -> None:
    """Convert LOGS to a log, the keys of a store or Parquet files at --output."""
    if options.output is None:
        raise UsageError("say where the result goes with --output")
    if target not in ("parquet", "keyspace"):
        shared.local_only(options.output)
    if target == "log":
        _restore(logs, options)
        return
    source, paths = _one_dialect(logs, dialect)
    from journeyman.spark.convert import JobDefaults, check_way
    from journeyman.spark.convert import convert as plan
    from journeyman.spark.convert.parquet import log_to_parquet

    settings = JobDefaults(SystemClock().now_ns(), name, ttr_ms, ttl_ms)
    if target != "parquet":
        check_way(source, target)
    if not options.explain:
        for place in filter(None, (options.output, losses)):
            shared.check_free(place, force=force)
    with shared.pipeline_session(options, logs) as spark:
        if target == "parquet":
            records = log_to_parquet(spark, source, paths, options.output, force=force)
            click.echo(f"{options.output}: {output.counted(records, 'record')}")
            return
        conversion = plan(spark, source, target, paths, settings)
        if options.explain:
            shared.explain({target: conversion.rows, "losses": conversion.losses})
            return
        try:
            conversion.write(options.output, force=force)
            _tell_losses(conversion, losses, force=force)
        finally:
            conversion.release()


def _one_dialect(logs: tuple[str, ...], dialect: str | None) -> tuple[str, list[str]]:
    found = shared.logs_by_dialect(logs, dialect)
    if len(found) > 1:
        raise UsageError(f"{' and '.join(found)} logs at once: convert them one after the other")
    return next(iter(found.items()))


def _restore(logs: tuple[str, ...], options: shared.SessionOptions) -> None:
    assert options.output is not None
    if len(logs) > 1:
        raise UsageError("--to log takes one directory of Parquet files")
    from journeyman.spark.convert.parquet import log_in, new_path, parquet_to_log

    log_in(logs[0])
    new_path(options.output)
    with shared.pipeline_session(options, logs) as spark:
        dialect = parquet_to_log(spark, logs[0], options.output)
    click.echo(f"{options.output}: the {dialect} log of {logs[0]}")


def _tell_losses(conversion: Conversion, losses: str | None, *, force: bool) -> None:
    from journeyman.spark.answers import answer_lines, write_answer

    if losses is not None:
        write_answer(conversion.losses, losses, "parquet", overwrite=force)
        return

    with output.Output() as out:
        for line in answer_lines(conversion.losses, "json"):
            out.line(line)
