"""``journeyman handover``: make logs ready for the original programs, and say what these ignore."""

from __future__ import annotations

import posixpath
from typing import Any

import click

from journeyman.cli import output
from journeyman.cli.compact import holders_of
from journeyman.cli.errors import UNDECIDED, warn
from journeyman.cli.reading import dialect_option
from journeyman.clock import Clock, SystemClock
from journeyman.disk import Disk, disk_of
from journeyman.errors import UsageError
from journeyman.logs.catalog import LEDGER, WORKQ, ZTICK, Log
from journeyman.logs.detection import LogFinder
from journeyman.logs.handover import ORIGINALS, Facts, HandedOver, check_unused
from journeyman.logs.holders import Holders
from journeyman.logs.kestrel.handover import hand_over_kestrel
from journeyman.logs.ledger import ledger_beside, peek
from journeyman.logs.workq.handover import hand_over_workq
from journeyman.logs.ztick.handover import hand_over_ztick


@click.command()
@click.argument("path", type=click.Path())
@click.option(
    "--accept",
    is_flag=True,
    help="Accept what the original ignores: exit code 0 unless it would refuse the log.",
)
@click.option(
    "--ledger",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Directory of the ledger, if it is not beside the log.",
)
@dialect_option
@output.queue_option
@output.format_options
@output.quiet_option
@click.pass_context
def handover(
    ctx: click.Context,
    path: str,
    accept: bool,
    ledger: str | None,
    dialect: str | None,
    queue: str | None,
    format_: str,
    json_: bool,
    quiet: bool,
) -> None:
    """Prepare logs for the original program: a log or data directory at PATH.

    Damage is quarantined, files that the original does not read are merged into the one it reads,
    seals are closed, and what it ignores or refuses is listed. Stop the server first.

    Exit code 0: the original can be started; 3: decide on the listed points first.
    """
    disk, clock = disk_of(path), SystemClock()
    logs = LogFinder(disk, warn).find_whole(path, dialect=dialect, queue=queue)
    if all(log.dialect == LEDGER for log in logs):
        raise UsageError(f"{path} is a ledger, which no original reads: give the log beside it")
    check_unused(disk, logs)
    rows: list[tuple[Log, HandedOver]] = []
    for log in logs:
        if log.dialect != LEDGER:
            facts = _facts(disk, log, ledger)
            with output.working(f"preparing {log.title}", quiet=quiet):
                result = hand_over(
                    disk, clock, log, facts, accept=accept, holders=holders_of(disk, clock)
                )
            rows.append((log, result))
    is_safe = all(result.is_safe(accept=accept) for _, result in rows)
    with output.Output() as out:
        if output.as_json(format_, json_):
            shown = [_row(log, result) for log, result in rows]
            out.line(output.json_line({"path": path, "safe": is_safe, "logs": shown}))
        else:
            for log, result in rows:
                _print(out, log, result)
            out.line(_verdict(path, rows, is_safe))
    if not is_safe:
        ctx.exit(UNDECIDED)


def hand_over(
    disk: Disk,
    clock: Clock,
    log: Log,
    facts: Facts,
    *,
    accept: bool = False,
    holders: Holders | None = None,
) -> HandedOver:
    """Make a log ready for its original. LogLocked: a server uses it.

    ``accept``: attempts beyond those that workq can count are not kept.
    """
    if log.dialect == ZTICK:
        return hand_over_ztick(disk, clock, log.where, facts, holders)
    if log.dialect == WORKQ:
        return hand_over_workq(disk, clock, log.where, facts, holders, accept=accept)
    return hand_over_kestrel(disk, clock, log, holders)


def _facts(disk: Disk, log: Log, ledger: str | None) -> Facts:
    return peek(disk, ledger or ledger_beside(posixpath.normpath(log.where)))


def _row(log: Log, result: HandedOver) -> dict[str, Any]:
    return {
        "dialect": log.dialect,
        "log": log.where,
        "queue": log.queue,
        "changes": list(result.changes),
        "findings": [each.as_dict() for each in result.findings],
    }


def _print(out: output.Output, log: Log, result: HandedOver) -> None:
    changes = ", ".join(result.changes) or "nothing to do"
    out.line(f"{log.title}: for {ORIGINALS[log.dialect]}: {changes}")
    for point in result.findings:
        names = ", ".join(point.names)
        more = f" and {point.count - len(point.names)} more" if names and point.is_cut else ""
        effect = "refused" if point.refuses else "ignored"
        out.line(f"  {effect}: {point.text} ({point.count}){': ' if names else ''}{names}{more}")


def _verdict(path: str, rows: list[tuple[Log, HandedOver]], is_safe: bool) -> str:
    if is_safe:
        return "safe: the original can be started"
    if any(point.refuses for _, result in rows for point in result.findings):
        return "not safe: the original would refuse what is listed; see `journeyman handover -h`"
    return f"to be decided: `journeyman handover --accept {path}` accepts what is listed"
