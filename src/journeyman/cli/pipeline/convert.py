"""``journeyman pipeline convert``: logs of one kind made into another.

    ztick <-> workq       what is planned <-> scheduled jobs
    kestrel -> workq      items that a reader waits for -> jobs
    any <-> parquet       every record, byte for byte back
    any -> keyspace       records, indexes and counters, sorted for a bulk load

The answer on stdout is what could not be carried over, one JSON line for each job or field; with
``--losses DIR`` it goes there as Parquet instead, and a line says how many there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from journeyman.cli.output import Output, counted
from journeyman.cli.pipeline.answers import explain
from journeyman.cli.pipeline.log_paths import logs_by_dialect, pipeline_dialect_option
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)
from journeyman.clock import SystemClock
from journeyman.errors import UsageError

if TYPE_CHECKING:
    from journeyman.spark.convert import Conversion

TARGETS = ("ztick", "workq", "keyspace", "parquet", "log")


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option(
    "--to",
    "target",
    type=click.Choice(TARGETS),
    required=True,
    help="What to make of them; `log`: what --to parquet was made from.",
)
@click.option("--name", help="workq: the queue of all jobs. [default: the rule's, or the queue's]")
@click.option("--ttr-ms", type=int, default=60_000, show_default=True, help="workq: of each job.")
@click.option(
    "--ttl-ms", type=int, default=2_592_000_000, show_default=True, help="workq: likewise."
)
@click.option(
    "--losses", metavar="DIR", help="Where to write the list of what is not carried over."
)
@click.option("--force", is_flag=True, help="Replace what --output holds.")
@pipeline_dialect_option
@session_options
def convert(
    logs: tuple[str, ...],
    target: str,
    name: str | None,
    ttr_ms: int,
    ttl_ms: int,
    losses: str | None,
    force: bool,
    dialect: str | None,
    options: SessionOptions,
) -> None:
    """Convert LOGS to a log, a keyspace or Parquet files at --output."""
    if options.output is None:
        raise UsageError("say where the result goes with --output")
    if target == "log":
        _restore(logs, options)
        return
    source, paths = _one_dialect(logs, dialect)
    with pipeline_session(options, logs) as spark:
        if target == "parquet":
            from journeyman.spark.convert.parquet import log_to_parquet

            records = log_to_parquet(spark, source, paths, options.output, force=force)
            click.echo(f"{options.output}: {counted(records, 'record')}")
            return
        from journeyman.spark.convert import JobDefaults
        from journeyman.spark.convert import convert as plan

        settings = JobDefaults(SystemClock().now_ns(), name, ttr_ms, ttl_ms)
        conversion = plan(spark, source, target, paths, settings)
        if options.explain:
            explain({target: conversion.rows, "losses": conversion.losses})
            return
        try:
            conversion.write(options.output, force=force)
            _tell_losses(conversion, losses, force=force)
        finally:
            conversion.release()


def _one_dialect(logs: tuple[str, ...], dialect: str | None) -> tuple[str, list[str]]:
    found = logs_by_dialect(logs, dialect)
    if len(found) > 1:
        raise UsageError(f"{' and '.join(found)} logs at once: convert them one after the other")
    return next(iter(found.items()))


def _restore(logs: tuple[str, ...], options: SessionOptions) -> None:
    assert options.output is not None
    if len(logs) > 1:
        raise UsageError("--to log takes one directory of Parquet files")
    with pipeline_session(options, logs) as spark:
        from journeyman.spark.convert.parquet import parquet_to_log

        dialect = parquet_to_log(spark, logs[0], options.output)
    click.echo(f"{options.output}: the {dialect} log of {logs[0]}")


def _tell_losses(conversion: Conversion, losses: str | None, *, force: bool) -> None:
    if losses is not None:
        mode = "overwrite" if force else "errorifexists"
        conversion.losses.write.mode(mode).parquet(losses)
        return
    from journeyman.spark.answers import answer_lines

    with Output() as output:
        for line in answer_lines(conversion.losses, "json"):
            output.line(line)
