"""``journeyman backup`` and ``journeyman restore``: a data directory, while its server runs.

    journeyman backup TARGET                take one; only what is new is stored
    journeyman backup TARGET --every 60     again and again, until interrupted
    journeyman backup TARGET --list         what is there
    journeyman backup TARGET --check        read every byte of it
    journeyman restore TARGET --data DIR    the newest, or that of --at

TARGET is a directory or a URI that fsspec opens. docs/backup.md says what a backup holds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import click

from journeyman.backup import (
    Vault,
    check_backups,
    keep_newest,
    list_backups,
    open_vault,
    restore,
    take,
)
from journeyman.backup.manifest import read_manifest
from journeyman.cli.config import load_settings, settings_options
from journeyman.cli.errors import DAMAGED, warn
from journeyman.cli.output import MOMENT, Output, counted
from journeyman.cli.reading import map_log
from journeyman.cli.verify import inspect_log
from journeyman.clock import SystemClock
from journeyman.config import Settings
from journeyman.data_directory import STORE_DIRECTORY
from journeyman.disk import RealDisk
from journeyman.errors import JourneymanError, UsageError
from journeyman.logs.detection import LogFinder
from journeyman.servers.preflight import is_below, places_kept

data_option = click.option("--data", type=click.Path(), metavar="DIR", help="Data directory.")


@click.command("backup")
@click.argument("target")
@settings_options
@data_option
@click.option("--every", type=click.FloatRange(min=0.1), metavar="SECONDS", help="Repeat.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep the newest N only.")
@click.option("--full", is_flag=True, help="Read also files that have not changed.")
@click.option("--list", "list_", is_flag=True, help="List the backups in TARGET.")
@click.option("--check", is_flag=True, help="Check every byte of the backups in TARGET.")
@click.pass_context
def backup(
    ctx: click.Context,
    target: str,
    path: str | None,
    settings: tuple[str, ...],
    data: str | None,
    every: float | None,
    keep: int | None,
    full: bool,
    list_: bool,
    check: bool,
) -> None:
    """Back up a data directory to TARGET, a directory or a URI, while the server runs.

    The first backup stores everything, later ones what is new. Everything that was acknowledged
    before the command started is in the backup.
    """
    vault = open_vault(target)
    if list_ or check:
        damaged = list(check_backups(vault)) if check else []
        with Output() as output:
            for line in (*_lines_of(vault, damaged if check else None), *damaged):
                output.line(line)
        ctx.exit(DAMAGED if damaged else 0)
    directory = _data_directory(load_settings(path, settings, _given(data)).settings)

    def once() -> None:
        click.echo(_take(vault, directory, full=full))
        if keep is not None:
            keep_newest(vault, keep)

    if every is None:
        once()
    else:
        _repeat(once, every)


def _repeat(once: Callable[[], None], every_s: float) -> None:
    """A target that is away for a while is a warning: the next backup has what this one missed."""
    while True:
        began_s = time.monotonic()
        try:
            once()
        except (JourneymanError, OSError) as error:
            warn(f"no backup: {error}")
        time.sleep(max(0.0, began_s + every_s - time.monotonic()))


def _take(vault: Vault, directory: str, *, full: bool) -> str:
    taken = take(directory, vault, SystemClock(), full=full)
    manifest = taken.manifest
    return (
        f"{manifest.name}: {counted(len(manifest.files), 'file')}, {manifest.size} bytes, "
        f"{taken.new_bytes} of them new"
    )


def _lines_of(vault: Vault, damaged: list[str] | None) -> Iterator[str]:
    for name in list_backups(vault):
        try:
            manifest = read_manifest(vault, name)
        except JourneymanError as error:
            if damaged is None:
                yield str(error)
            continue
        files = counted(len(manifest.files), "file")
        yield f"{name}: {files}, {manifest.size} bytes, of {manifest.source}"
    if damaged is not None:
        yield "damaged" if damaged else "every byte is as it was written"


def _given(data: str | None) -> dict[str, str]:
    return {} if data is None else {"data.directory": data}


def _data_directory(settings: Settings) -> str:
    """UsageError if a service keeps its data elsewhere: the backup would lack it."""
    directory = os.path.abspath(settings.data.directory)
    for name, place in places_kept(settings):
        above = os.path.join(directory, STORE_DIRECTORY) if name == "storage.path" else directory
        if not is_below(place, above):
            raise UsageError(
                f"{name} = {place!r} is not below {above}: back it up by its own means, and turn "
                "its service off here with --set"
            )
    return directory


@click.command("restore")
@click.argument("target")
@click.option("--data", type=click.Path(), required=True, metavar="DIR", help="New directory.")
@click.option("--at", type=MOMENT, help="The newest backup taken at this time or before it.")
@click.pass_context
def restore_command(ctx: click.Context, target: str, data: str, at: int | None) -> None:
    """Restore a backup from TARGET into a new data directory, and verify every log in it.

    Exit code 0: every byte is as it was stored, and the logs are clean. Exit code 1: a part of the
    backup is missing or damaged, and nothing was restored; or a log was damaged when the backup was
    taken, and it was restored as it was.
    """
    manifest = restore(open_vault(target), data, at_ns=at)
    damaged = list(_damaged_logs(data, manifest.taken_ns))
    with Output() as output:
        files = counted(len(manifest.files), "file")
        output.line(f"{data}: {files}, {manifest.size} bytes, as of {manifest.name}")
        for where in damaged:
            output.line(
                f"{where}: damaged when the backup was taken; `journeyman repair` repairs it"
            )
    ctx.exit(DAMAGED if damaged else 0)


def _damaged_logs(directory: str, as_of_ns: int) -> Iterator[str]:
    disk = RealDisk()
    try:
        logs = list(LogFinder(disk, warn).find([directory]))
    except UsageError:
        return  # no log at all: a server without a single record, or a store alone
    for log in logs:
        report = inspect_log(map_log(disk, log, compacted=True), as_of_ns, lambda _: None)
        if not report.clean:
            yield report.where
