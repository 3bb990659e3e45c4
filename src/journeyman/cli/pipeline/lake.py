"""``journeyman pipeline ingest``: logs flow into a lake once; tables and reports read the lake.

``journeyman pipeline lake`` looks after it: forget keys, drop old days, join small files.
"""

from __future__ import annotations

import socket
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING

import click

from journeyman.cli.errors import warn
from journeyman.cli.output import FiniteRange, counted
from journeyman.cli.pipeline import shared
from journeyman.clock import SystemClock
from journeyman.errors import JourneymanError, UsageError

if TYPE_CHECKING:
    from journeyman.spark.lakes.ingest import Ingested
    from journeyman.spark.session import SparkSession

ACTIONS = ("tables", "forget", "retain", "optimize", "vacuum")


@click.command()
@click.argument("logs", nargs=-1, required=True)
@click.option("--lake", metavar="DIR|URI", required=True, help="The lake; created if missing.")
@click.option(
    "--host", metavar="NAME", help="Host of the logs. [default: `host=` in a path, this machine]"
)
@click.option("--payloads", is_flag=True, help="Also store payloads, results and data.")
@shared.runs_option
@click.option("--follow", is_flag=True, help="Continue until interrupted.")
@click.option(
    "--every",
    type=FiniteRange(0, 86_400),
    default=10.0,
    show_default=True,
    help="Seconds between rounds.",
)
@shared.pipeline_dialect_option
@shared.session_options
def ingest(
    logs: tuple[str, ...],
    lake: str,
    host: str | None,
    payloads: bool,
    runs: str | None,
    follow: bool,
    every: float,
    dialect: str | None,
    options: shared.SessionOptions,
) -> None:
    """Add every new record of LOGS to the lake exactly once, even after a crash.

    Then update the tables that the new records affect. docs/lake.md lists the tables.
    """
    if options.output is not None or options.explain:
        raise UsageError("ingest writes to the lake: leave --output and --explain out")
    from journeyman.spark.lakes.ingest import LogsLeftOut
    from journeyman.spark.lakes.ingest import ingest as ingest_logs
    from journeyman.spark.lakes.lineage import events_of_ingest
    from journeyman.spark.lakes.storage import check_lake

    unreadable: list[str] = []
    found = shared.logs_by_dialect(logs, dialect, ledger=True, unreadable=unreadable)
    shared.check_runs(found, runs)
    check_lake(lake)
    host = host or socket.gethostname()

    with ExitStack() as opened:
        note = opened.enter_context(
            events_of_ingest(lake, found, host=host, follows=follow, warn=warn)
        )

        @cache
        def session() -> SparkSession:
            """Java starts when there is something new, and not before."""
            return opened.enter_context(shared.pipeline_session(options, logs))

        def wait(done: Ingested, left_out: LogsLeftOut | None) -> bool:
            note(done)
            if left_out is not None:
                warn(str(left_out))
            SystemClock().sleep(every)
            return True

        try:
            done = ingest_logs(
                session,
                lake,
                found,
                host=host,
                payloads=payloads,
                run_directory=runs,
                follow=wait if follow else None,
            )
        except LogsLeftOut as error:
            done = error.done
            unreadable.append(str(error))
        note(done)
        _tell(lake, done)
        if unreadable:
            raise JourneymanError("; ".join(unreadable))


def _tell(lake: str, done: Ingested) -> None:
    tables = ", ".join(table.partition("/")[2] for table in done.files)
    news = f"new records of {tables}" if tables else "nothing new"
    click.echo(f"{lake}: {news}; {counted(done.snapshot, 'snapshot')}")


@click.command()
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("arguments", nargs=-1)
@click.option("--lake", metavar="DIR|URI", required=True, help="The lake.")
@shared.session_options
def lake(
    action: str, arguments: tuple[str, ...], lake: str, options: shared.SessionOptions
) -> None:
    """Maintain a lake.

    ACTION is tables, forget KEY..., retain TABLE=DAYS..., optimize [TABLE...], or vacuum [HOURS],
    which keeps the snapshots of the last 24 hours, or of so many.
    """
    if options.output is not None or options.explain:
        raise UsageError("this changes the lake: leave --output and --explain out")
    if action in ("forget", "retain") and not arguments:
        raise UsageError("say what: forget KEY..., retain TABLE=DAYS...")
    from journeyman.spark.lakes import storage, upkeep

    opened = storage.open_lake(lake)
    if action == "tables":
        for each in upkeep.sizes(opened):
            days = f"{each.first_day} to {each.last_day}" if each.first_day else ""
            click.echo(f"{each.table:26} {each.files:6} files {each.bytes:14} bytes  {days}")
        return
    with ExitStack() as stack:
        changed = stack.enter_context(storage.change_lake(lake))

        @cache
        def session() -> SparkSession:
            return stack.enter_context(shared.pipeline_session(options, [lake]))

        if action == "retain":
            rows = upkeep.retain(changed, dict(map(_days, arguments)))
            click.echo(f"{lake}: {counted(rows, 'row')} removed")
        elif action == "forget":
            rows = upkeep.forget(session, changed, arguments)
            click.echo(f"{lake}: {counted(rows, 'record')} removed")
        elif action == "optimize":
            fewer = upkeep.optimize(session, changed, arguments)
            click.echo(f"{lake}: {counted(fewer, 'file')} fewer")
        else:
            hours = _hours(arguments)
            upkeep.vacuum(changed, hours)
            click.echo(f"{lake}: snapshots of the last {counted(hours, 'hour')} are kept")


def _hours(arguments: tuple[str, ...]) -> int:
    from journeyman.spark.lakes.upkeep import KEPT_HOURS

    if not arguments:
        return KEPT_HOURS
    if len(arguments) > 1 or not arguments[0].isdecimal():
        raise UsageError(f"write vacuum HOURS, such as vacuum 24, not {' '.join(arguments)!r}")
    return int(arguments[0])


def _days(text: str) -> tuple[str, int]:
    table, _, days = text.partition("=")
    if not table or not days.isdecimal():
        raise UsageError(f"write TABLE=DAYS, such as bronze/workq=90, not {text!r}")
    return table, int(days)
