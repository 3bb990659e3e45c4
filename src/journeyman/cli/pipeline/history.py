"""``journeyman pipeline history``, ``audit`` and ``report``: what happened, in logs or in a lake.

history   every job and attempt, or what they add up to
audit     what is wrong with these logs, or differs from others
report    both on one HTML page with charts, that opens anywhere
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from journeyman.cli.errors import FAILED
from journeyman.cli.output import MOMENT
from journeyman.cli.pipeline import shared
from journeyman.clock import SystemClock
from journeyman.errors import UsageError
from journeyman.logs.catalog import LEDGER

if TYPE_CHECKING:
    from journeyman.spark.history.columns import RowFilter
    from journeyman.spark.session import DataFrame, SparkSession

SHOWN_FINDINGS = 100  # as a table on the screen; files, CSV and JSON hold all of them
DEFAULT_OUTPUT = "report.html"


def _range_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--since``, ``--until`` and ``--where``: which rows of attempts count."""
    moments = "that were ready, started or ended"
    for option in (
        click.option(
            "--where", "condition", metavar="SQL", help="Only rows that meet this condition."
        ),
        click.option("--until", type=MOMENT, help=f"Only rows {moments} before this time."),
        click.option("--since", type=MOMENT, help=f"Only rows {moments} at or after this time."),
    ):
        command = option(command)
    return command


@click.command()
@click.argument("logs", nargs=-1)
@shared.lake_option
@click.option(
    "--view",
    type=click.Choice(["attempts", "depth", "lag", "throughput", "latency"]),
    default="attempts",
    show_default=True,
    help="Rows, or statistics of them.",
)
@click.option(
    "--by",
    type=click.Choice(["queue", "task", "worker", "rule", "prefix", "log"]),
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
@_range_options
@shared.runs_option
@shared.pipeline_dialect_option
@shared.session_options
@shared.answer_options
def history(
    logs: tuple[str, ...],
    lake: str | None,
    view: str,
    by: str,
    bucket: str,
    as_of: int | None,
    since: int | None,
    until: int | None,
    condition: str | None,
    runs: str | None,
    dialect: str | None,
    options: shared.SessionOptions,
    answer: shared.Answer,
) -> None:
    """Every job and attempt: waits, run times, outcome; or depth, lag, rates, percentiles.

    Logs of several dialects, and of several servers, may be given together; or a lake.
    """
    from journeyman.spark.history.columns import RowFilter
    from journeyman.spark.history.summaries import parse_bucket

    bucket_ns = parse_bucket(bucket)
    found = _history_logs(logs, dialect, lake)
    shared.check_runs(found, runs)
    answer.check(options)
    with shared.pipeline_session(options, logs or [lake or ""]) as spark:
        if view == "lag":
            frame = _lag(spark, found, lake)
        else:
            directories = [] if runs is None else [runs]
            chosen = RowFilter(since, until, condition)
            # The depth of a queue counts jobs that have waited since before.
            begin = None if view == "depth" else since
            rows = _rows(spark, found, lake, as_of, directories, begin, until)
            frame = _view(rows, chosen, view, by, bucket_ns, as_of)
        answer.give(frame, options)


def _history_logs(
    logs: tuple[str, ...], dialect: str | None, lake: str | None
) -> dict[str, list[str]]:
    """Paths by dialect, those of ledgers too: they say which worker ran which attempt."""
    found = shared.logs_or_lake(logs, dialect, lake, ledger=True)
    if found.keys() == {LEDGER}:
        raise UsageError(f"only a ledger at {', '.join(logs)}: `journeyman dump` shows it")
    return found


def _lag(spark: SparkSession, logs: dict[str, list[str]], lake: str | None) -> DataFrame:
    from journeyman.spark.history.logs import lag_of
    from journeyman.spark.lakes.storage import open_lake
    from journeyman.spark.lakes.views import lag_in

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
    from journeyman.spark.lakes.storage import open_lake
    from journeyman.spark.lakes.views import history_of

    if lake is not None:
        return history_of(spark, open_lake(lake), as_of_ns, since_ns, until_ns)
    return attempts_of(spark, logs, as_of_ns=as_of_ns, run_directories=run_directories)


def _view(
    attempts: DataFrame,
    chosen: RowFilter,
    view: str,
    by: str,
    bucket_ns: int,
    as_of_ns: int | None,
) -> DataFrame:
    from journeyman.spark.history.summaries import summary

    if view == "attempts":
        return chosen.rows(attempts)
    keys = ["_log"] if by == "log" else ["_log", by]
    if view == "latency":
        return summary(chosen.rows(attempts), view, by).orderBy(*keys)
    rows = chosen.of_condition(attempts) if view == "depth" else chosen.rows(attempts)
    counted = summary(rows, view, by, bucket_ns, as_of_ns)
    return chosen.buckets(counted, bucket_ns).orderBy(*keys, "time")


@click.command()
@click.argument("logs", nargs=-1)
@shared.lake_option
@click.option(
    "--against", multiple=True, metavar="LOG", help="Compare with these logs; may be repeated."
)
@click.option(
    "--as-of", type=MOMENT, help="Jobs due by then that have not run are missed. [default: now]"
)
@click.option(
    "--grace",
    default="1m",
    show_default=True,
    help="How late a run may be before it counts as missed.",
)
@click.option("--where", "condition", metavar="SQL", help="Only findings that meet this condition.")
@shared.runs_option
@shared.pipeline_dialect_option
@shared.session_options
@shared.answer_options
@click.pass_context
def audit(
    ctx: click.Context,
    logs: tuple[str, ...],
    lake: str | None,
    against: tuple[str, ...],
    as_of: int | None,
    grace: str,
    condition: str | None,
    runs: str | None,
    dialect: str | None,
    options: shared.SessionOptions,
    answer: shared.Answer,
) -> None:
    """Find duplicate and missed runs, lost jobs, orphans, damage and dead bytes in LOGS.

    Exit code 1: something serious was found. The result is a summary, the findings (on the screen
    the first hundred), and an account of every file. For a lake, all of its records are checked.
    """
    from journeyman.spark.history.summaries import parse_bucket

    if lake is not None and (against or runs is not None):
        raise UsageError("--against and --runs are for logs: leave them out with --lake")
    found = shared.logs_or_lake(logs, dialect, lake)
    grace_ns = parse_bucket(grace)
    others = shared.logs_by_dialect(against, dialect) if against else None
    if others is not None:
        from journeyman.spark.audit import check_sides

        check_sides(found, others)
    shared.check_runs(found, runs)
    answer.check(options, "summary", "findings", "segments")
    as_of_ns = SystemClock().now_ns() if as_of is None else as_of
    with shared.pipeline_session(options, [*logs, *against] or [lake or ""]) as spark:
        from journeyman.spark.audit import audit as audit_of
        from journeyman.spark.audit import audit_of_lake
        from journeyman.spark.findings import SERIOUS, count_findings, most_serious
        from journeyman.spark.lakes.storage import open_lake

        if lake is not None:
            opened = open_lake(lake)
            result = audit_of_lake(spark, opened, as_of_ns=as_of_ns, grace_ns=grace_ns)
        else:
            result = audit_of(
                spark,
                found,
                as_of_ns=as_of_ns,
                grace_ns=grace_ns,
                run_directories=[] if runs is None else [runs],
                against=others,
            )
        findings = result.findings if condition is None else result.findings.where(condition)
        counted = count_findings(findings)
        if options.output is None and answer.format_ in (None, "table"):
            findings = most_serious(findings, SHOWN_FINDINGS)
        tables = {"summary": counted, "findings": findings, "segments": result.segments}
        answer.give(tables, options)
        if options.explain:
            return
        serious = {
            row.finding: row["count"] for row in counted.collect() if row.severity == SERIOUS
        }
    if serious:
        _say_what_is_serious(serious, options)
        ctx.exit(FAILED)


def _say_what_is_serious(serious: dict[str, int], options: shared.SessionOptions) -> None:
    if not options.quiet:
        counts = ", ".join(f"{count} {finding}" for finding, count in serious.items())
        where = "" if options.output is None else f"; see {posixpath.join(options.output, '')}"
        click.echo(f"serious: {counts}{where}", err=True)


@click.command()
@click.argument("logs", nargs=-1)
@shared.lake_option
@click.option(
    "--title", default="Journeyman report", show_default=True, help="Heading of the page."
)
@click.option(
    "--as-of", type=MOMENT, help="When jobs count as late. [default: the last time in the logs]"
)
@_range_options
@shared.runs_option
@click.option("--force", is_flag=True, help="Replace the file that --output names.")
@shared.pipeline_dialect_option
@shared.session_options
def report(
    logs: tuple[str, ...],
    lake: str | None,
    title: str,
    as_of: int | None,
    since: int | None,
    until: int | None,
    condition: str | None,
    runs: str | None,
    force: bool,
    dialect: str | None,
    options: shared.SessionOptions,
) -> None:
    """Write a page about LOGS or a lake: throughput, waits, depth, failures, growth, lag, audit.

    One file that opens offline, report.html unless --output names another.
    """
    output = options.output or DEFAULT_OUTPUT
    _check_output(output, force=force)
    directories = [] if runs is None else [runs]
    found = _history_logs(logs, dialect, lake)
    shared.check_runs(found, runs)
    with shared.pipeline_session(options, logs or [lake or ""]) as spark:
        from journeyman.spark.history.columns import RowFilter
        from journeyman.spark.history.logs import attempts_of
        from journeyman.spark.report import report as report_of_logs
        from journeyman.spark.report.page import page

        chosen = RowFilter(since, until, condition)
        if lake is not None:
            _write(output, _page_of_lake(spark, lake, title, as_of, chosen))
            click.echo(output)
            return
        if options.explain:
            rows = attempts_of(spark, found, run_directories=directories)
            shared.explain({"attempts": chosen.rows(rows)})
            return
        said = report_of_logs(
            spark,
            found,
            made_ns=SystemClock().now_ns(),
            title=title,
            as_of_ns=as_of,
            run_directories=directories,
            chosen=chosen,
        )
    _write(output, page(said))
    click.echo(output)


def _page_of_lake(
    spark: SparkSession, path: str, title: str, as_of_ns: int | None, chosen: RowFilter
) -> str:
    from journeyman.spark.lakes.storage import open_lake
    from journeyman.spark.report import report_of_lake
    from journeyman.spark.report.page import page

    made_ns, lake = SystemClock().now_ns(), open_lake(path)
    return page(
        report_of_lake(spark, lake, made_ns=made_ns, title=title, as_of_ns=as_of_ns, chosen=chosen)
    )


def _check_output(output: str, *, force: bool) -> None:
    if os.path.isdir(output):
        raise UsageError(f"{output} is a directory: --output names the file to write")
    if os.path.exists(output) and not force:
        raise UsageError(f"{output} already exists: choose another --output, or give --force")
    directory = posixpath.dirname(output)
    if directory and not os.path.isdir(directory):
        raise UsageError(f"{directory} is not a directory: --output names the file to write")


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
