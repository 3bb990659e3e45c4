"""``journeyman import-kestrel``: journals of kestrel 1.x and 2.x become queues of this server."""

from __future__ import annotations

import posixpath
from typing import Any

import click

from journeyman.cli.errors import DAMAGED, warn
from journeyman.cli.output import Output, as_json, counted, format_options, json_line
from journeyman.clock import SystemClock
from journeyman.data_directory import KESTREL_DIRECTORY
from journeyman.disk import RealDisk
from journeyman.errors import UsageError
from journeyman.logs.kestrel.kestrel2_import import (
    KEPT_DIRECTORY,
    PLAIN_READER,
    Imported,
    by_parent,
    find_old_journals,
    import_queue,
)
from journeyman.logs.kestrel.log import finish_publication
from journeyman.logs.segments import check_reader_name
from journeyman.units import NS_PER_MS


@click.command("import-kestrel")
@click.argument("directory", type=click.Path(), metavar="DIR")
@click.option(
    "--plain-reader",
    default=PLAIN_READER,
    show_default=True,
    metavar="NAME",
    help="The reader that gets the items of a plain queue that also has readers.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be imported.")
@format_options
@click.pass_context
def import_kestrel(
    ctx: click.Context,
    directory: str,
    plain_reader: str,
    dry_run: bool,
    format_: str,
    json_: bool,
) -> None:
    """Import the journals of kestrel 1.x or 2.x in DIR, in place.

    DIR may also be the data directory of a server; its queues are in DIR/kestrel.
    A queue `name` becomes the queue `name`, and `name+reader` its reader. Items keep their order,
    add time and expiry; open reads go back to the head. Stop kestrel and this server first. The
    old files are kept in DIR/.imported-kestrel. An interrupted import can be run again.
    Exit code 1: something was left out; the summary says what.
    """
    disk, clock = RealDisk(), SystemClock()
    if not disk.is_dir(directory):
        raise UsageError(f"not a directory: {directory}")
    if not plain_reader:
        raise UsageError("--plain-reader needs a name")
    check_reader_name(plain_reader)
    directory = _queues_in(disk, directory)
    finished = not dry_run and finish_publication(disk, directory)
    found = find_old_journals(disk, directory, disk.list_dir(directory))
    kept = posixpath.join(KEPT_DIRECTORY, str(clock.now_ns() // NS_PER_MS))
    outcomes = [
        import_queue(
            disk,
            clock,
            directory,
            queue,
            members,
            kept=kept,
            plain_reader=plain_reader,
            dry_run=dry_run,
        )
        for queue, members in sorted(by_parent(found).items())
    ]
    imported = sum(not outcome.refused for outcome in outcomes)
    where = posixpath.join(directory, kept)
    with Output() as output:
        for outcome in outcomes:
            if as_json(format_, json_):
                output.line(json_line(_fields(outcome)))
            else:
                output.line(_words(outcome))
            _warn(outcome)
        if not as_json(format_, json_):
            output.line(_summary(imported, len(outcomes), where, dry_run, finished))
    if not all(outcome.is_whole for outcome in outcomes):
        ctx.exit(DAMAGED)


def _queues_in(disk: RealDisk, directory: str) -> str:
    """Where the queues are, if this is the data directory of a server."""
    inside = posixpath.join(directory, KESTREL_DIRECTORY)
    is_data = disk.is_dir(inside) and not find_old_journals(
        disk, directory, disk.list_dir(directory)
    )
    return inside if is_data else directory


def _summary(imported: int, queues: int, where: str, dry_run: bool, finished: bool) -> str:
    if not queues:
        return (
            "an interrupted import was finished"
            if finished
            else "nothing to import: no journal of kestrel 1.x or 2.x"
        )
    if dry_run:
        return f"would import {counted(imported, 'queue')}"
    if not imported:
        return "imported no queue; the files are as they were"
    return f"imported {counted(imported, 'queue')}; the old files are in {where}"


def _words(outcome: Imported) -> str:
    if outcome.refused:
        return f"{outcome.queue}: not imported: {outcome.refused}"
    parts = [counted(outcome.items, "item")]
    named = [f"{name} ({left})" for name, left in sorted(outcome.readers.items()) if name]
    if named:
        parts.append(f"readers {', '.join(named)}")
    if outcome.opened:
        parts.append(f"{counted(outcome.opened, 'open read')} put back to the head")
    return f"{outcome.queue}: {'; '.join(parts)}"


def _warn(outcome: Imported) -> None:
    queue = outcome.queue
    if outcome.plain_reader is not None:
        left = outcome.readers[outcome.plain_reader]
        warn(
            f"queue {queue} has readers, so its own {counted(left, 'item')} can be read as "
            f"{queue}+{outcome.plain_reader}"
        )
    if outcome.too_large:
        warn(f"queue {queue}: {counted(outcome.too_large, 'item')} left out, larger than 16 MiB")
    for replayed in outcome.replayed:
        for damage in replayed.damages:
            warn(
                f"{damage.file}: {damage.length} bytes at offset {damage.offset} left out: "
                f"{damage.kind}, {damage.reason}"
            )
        if replayed.kept:
            warn(
                f"queue {replayed.queue}: {counted(replayed.kept, 'removal')} after the damage not "
                "applied, because it is not known which items they mean; some items come again"
            )


def _fields(outcome: Imported) -> dict[str, Any]:
    return {
        "queue": outcome.queue,
        "imported": not outcome.refused,
        "refused": outcome.refused or None,
        "items": outcome.items,
        "readers": outcome.readers,
        "open_reads": outcome.opened,
        "plain_reader": outcome.plain_reader,
        "too_large": outcome.too_large,
        "damages": [d.as_dict() for each in outcome.replayed for d in each.damages],
        "removals_not_applied": sum(each.kept for each in outcome.replayed),
    }
