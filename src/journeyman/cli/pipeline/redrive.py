"""``journeyman pipeline redrive LOGS | --lake DIR``: put failed or lost jobs back onto a server.

    journeyman pipeline redrive LOGS                                      what would go; none does
    journeyman pipeline redrive LOGS --to HOST:PORT --record FILE --yes   it goes

The record is what makes it safe to repeat, also after a kill in the middle: what it has as done
does not go again. See journeyman.spark.redrive for what happens to each job.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from journeyman.cli.output import MOMENT, FiniteRange
from journeyman.cli.pipeline import shared
from journeyman.clock import SystemClock
from journeyman.disk import disk_of
from journeyman.errors import UsageError
from journeyman.logs.catalog import WORKQ, ZTICK

if TYPE_CHECKING:
    from journeyman.spark.redrive import Redriven
    from journeyman.spark.sinks.server_options import ServerOptions

TOKEN_VARIABLE = "JOURNEYMAN_TOKEN"


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The options of one redrive, besides those of the session."""

    condition: str | None
    since: int | None
    until: int | None
    to: str | None
    record: str | None
    yes: bool
    limit: int
    rate: float
    at_ns: int | None
    tls: bool
    tls_ca: str | None

    def check(self) -> None:
        if self.yes and (self.to is None or self.record is None):
            raise UsageError(
                "--yes needs --to, the server, and --record, the record of what was sent"
            )

    def server(self, dialect: str) -> dict[str, str]:
        """The options of the server sink."""
        given = {
            "door": dialect,
            "address": self.to,
            "rateLimit": str(self.rate),
            "tasks": "1",
            "tls": str(self.tls).lower(),
            "tlsCa": self.tls_ca,
            "token": os.environ.get(TOKEN_VARIABLE),
        }
        return {name: value for name, value in given.items() if value is not None}


@click.command()
@click.argument("logs", nargs=-1)
@shared.lake_option
@click.option("--where", "condition", metavar="SQL", help="Which jobs. [default: failed ones]")
@click.option(
    "--since", type=MOMENT, help="Only jobs planned for (ztick) or created (workq) then or later."
)
@click.option("--until", type=MOMENT, help="Only jobs planned for or created before this time.")
@click.option("--to", metavar="HOST:PORT", help="The server.")
@click.option("--record", metavar="FILE", help="The record of what was sent.")
@click.option("--yes", is_flag=True, help="Send; without it, only show what would be sent.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Jobs at most, those with the oldest records first.")  # fmt: skip
@click.option(
    "--rate",
    type=FiniteRange(min=0, min_open=True),
    default=100.0,
    show_default=True,
    help="Jobs per second.",
)
@click.option("--at", "at_ns", type=MOMENT, help="When they are due. [default: at once]")
@click.option("--tls", is_flag=True, help="Use TLS.")
@click.option("--tls-ca", metavar="FILE", help="Trust the certificates in this file.")
@shared.pipeline_dialect_option
@shared.session_options
@shared.answer_options
def redrive(
    logs: tuple[str, ...],
    lake: str | None,
    dialect: str | None,
    options: shared.SessionOptions,
    answer: shared.Answer,
    **wanted: Any,
) -> None:
    """Send failed or lost jobs of LOGS, or of a lake, to a server again.

    Without --yes it only shows what would be sent. A token is read from the environment variable
    JOURNEYMAN_TOKEN.
    """
    asked = _Wanted(**wanted)
    asked.check()
    found = shared.logs_or_lake(logs, dialect, lake)
    from journeyman.spark.lakes.storage import open_lake
    from journeyman.spark.redrive import check_dialect, read_done, selection, selection_of_lake
    from journeyman.spark.sinks.server_options import ServerOptions

    opened = None if lake is None else open_lake(lake)
    if opened is not None:
        found = {each: [] for each in (ZTICK, WORKQ) if opened.files(f"bronze/{each}")}
        found = found if dialect is None else {dialect: []}
    if len(found) != 1:
        kinds = ", ".join(found) or "none"
        raise UsageError(f"one dialect at a time, not {kinds}: choose with --dialect")
    ((kind, paths),) = found.items()
    check_dialect(kind)
    server = ServerOptions.parse(asked.server(kind))
    if not asked.yes:
        answer.check(options)
    done = read_done(disk_of(asked.record), asked.record) if asked.record is not None else []
    with shared.pipeline_session(options, logs or [lake or ""]) as spark:
        which: dict[str, Any] = {
            "done": done,
            "limit": asked.limit,
            "since_ns": asked.since,
            "until_ns": asked.until,
        }
        if opened is None:
            jobs = selection(spark, kind, paths, asked.condition, **which)
        else:
            jobs = selection_of_lake(spark, kind, opened, asked.condition, **which)
        if options.explain:
            shared.explain({"jobs": jobs})
        elif asked.yes:
            _tell(_send(asked, server, jobs), asked)
        else:
            answer.give(jobs, options)
            if not options.quiet:
                click.echo("nothing was sent: sending needs --to, --record and --yes", err=True)


def _send(wanted: _Wanted, server: ServerOptions, jobs: Any) -> Redriven:
    from journeyman.spark.redrive import RedriveLedger
    from journeyman.spark.redrive import redrive as send

    assert wanted.record is not None
    with RedriveLedger(disk_of(wanted.record), wanted.record) as ledger:
        return send(jobs, server, ledger, SystemClock(), at_ns=wanted.at_ns)


def _tell(outcome: Redriven, wanted: _Wanted) -> None:
    counts = {
        "sent": outcome.sent,
        "arrived before": outcome.arrived_before,
        "changed meanwhile": outcome.changed_meanwhile,
        "refused": outcome.refused,
    }
    click.echo(", ".join(f"{count} {name}" for name, count in counts.items()))
    if outcome.refused:
        shown = "; ".join(f"{job[:80]}: {reason}" for job, reason in outcome.first_refused)
        raise UsageError(f"{wanted.to} refused {outcome.refused} jobs: {shown}")
