"""``journeyman pipeline lake``: look after a lake: forget keys, drop old days, join small files."""

from __future__ import annotations

import click

from journeyman.cli.output import counted
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)
from journeyman.errors import UsageError

ACTIONS = ("tables", "forget", "retain", "optimize")


@click.command()
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("arguments", nargs=-1)
@click.option("--lake", metavar="DIR", required=True, help="Where the lake is.")
@session_options
def lake(action: str, arguments: tuple[str, ...], lake: str, options: SessionOptions) -> None:
    """Look after a lake.

    ACTION is tables, forget KEY..., retain TABLE=DAYS..., or optimize [TABLE...].
    """
    if options.output is not None or options.explain:
        raise UsageError("this changes the lake: leave --output and --explain out")
    if action in ("forget", "retain") and not arguments:
        raise UsageError("say what: forget KEY..., retain TABLE=DAYS...")
    from journeyman.spark.lake import storage, upkeep

    storage.open_lake(lake)
    if action == "tables":
        for each in upkeep.sizes(storage.open_lake(lake)):
            days = f"{each.first_day} to {each.last_day}"
            click.echo(f"{each.table:26} {each.files:6} files {each.bytes:14} bytes  {days}")
    elif action == "retain":
        with storage.change_lake(lake) as opened:
            gone = upkeep.retain(opened, dict(map(_days, arguments)))
        click.echo(f"{lake}: {counted(gone, 'file')} removed")
    else:
        with pipeline_session(options, [lake]) as spark, storage.change_lake(lake) as opened:
            if action == "forget":
                rows = upkeep.forget(spark, opened, arguments)
                click.echo(f"{lake}: {counted(rows, 'record')} removed")
            else:
                fewer = upkeep.optimize(spark, opened, arguments)
                click.echo(f"{lake}: {counted(fewer, 'file')} fewer")


def _days(text: str) -> tuple[str, int]:
    table, _, days = text.partition("=")
    if not table or not days.isdecimal():
        raise UsageError(f"write TABLE=DAYS, such as bronze/workq=90, not {text!r}")
    return table, int(days)
