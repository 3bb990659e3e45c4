"""``journeyman pipeline audit``: what is wrong with these logs, or differs from others."""

from __future__ import annotations

import posixpath

import click

from journeyman.cli.errors import FAILED
from journeyman.cli.output import MOMENT
from journeyman.cli.pipeline.answers import Answer, answer_options
from journeyman.cli.pipeline.log_paths import (
    lake_option,
    logs_by_dialect,
    logs_or_lake,
    pipeline_dialect_option,
)
from journeyman.cli.pipeline.session_options import (
    SessionOptions,
    pipeline_session,
    session_options,
)
from journeyman.clock import SystemClock
from journeyman.errors import UsageError

SHOWN_FINDINGS = 100  # as a table on the screen; files, CSV and JSON hold all of them


@click.command()
@click.argument("logs", nargs=-1)
@lake_option
@click.option(
    "--against", multiple=True, metavar="LOG", help="Compare with these logs; may be repeated."
)
@click.option(
    "--as-of", type=MOMENT, help="What was due by then and has not run was missed. [default: now]"
)
@click.option(
    "--grace",
    default="1m",
    show_default=True,
    help="How late a run may be before it counts as missed.",
)
@click.option(
    "--runs", metavar="DIR", help="ztick: where the runs were recorded, if not beside the log."
)
@pipeline_dialect_option
@session_options
@answer_options
@click.pass_context
def audit(
    ctx: click.Context,
    logs: tuple[str, ...],
    lake: str | None,
    against: tuple[str, ...],
    as_of: int | None,
    grace: str,
    runs: str | None,
    dialect: str | None,
    options: SessionOptions,
    answer: Answer,
) -> None:
    """Find duplicate and missed runs, lost jobs, orphans, damage and dead bytes in LOGS.

    Exit code 1: something serious was found. The answer is a summary, the findings (on the
    screen the first hundred), and an account of every file. Of a lake all records count, as far
    back as it goes.
    """
    from journeyman.spark.history.summaries import parse_bucket

    if lake is not None and (against or runs is not None):
        raise UsageError("--against and --runs are for logs: leave them out with --lake")
    found = logs_or_lake(logs, dialect, lake)
    grace_ns = parse_bucket(grace)
    as_of_ns = SystemClock().now_ns() if as_of is None else as_of
    with pipeline_session(options, [*logs, *against] or [lake or ""]) as spark:
        from journeyman.spark.audit import audit as audit_of
        from journeyman.spark.audit import audit_of_lake
        from journeyman.spark.findings import SERIOUS, most_serious, summary
        from journeyman.spark.lake.storage import open_lake

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
                against=logs_by_dialect(against, dialect) if against else None,
            )
        counted = summary(result.findings)
        findings = result.findings
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


def _say_what_is_serious(serious: dict[str, int], options: SessionOptions) -> None:
    if not options.quiet:
        counts = ", ".join(f"{count} {finding}" for finding, count in serious.items())
        where = "" if options.output is None else f"; see {posixpath.join(options.output, '')}"
        click.echo(f"serious: {counts}{where}", err=True)
