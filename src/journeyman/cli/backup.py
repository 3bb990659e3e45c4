"""``journeyman backup`` and ``journeyman restore``: a data directory, while its server runs.

    journeyman backup TARGET                take one; only what is new is stored
    journeyman backup TARGET --every 60     again and again, until interrupted
    journeyman backup TARGET --follow       what is new, as soon as it is written
    journeyman backup TARGET --list         what is there
    journeyman backup TARGET --check        read every byte of it
    journeyman restore TARGET --data DIR    the newest, or as of --at

TARGET is a directory or a URI that fsspec opens. docs/backup.md says what a backup holds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NoReturn

import click

from journeyman import backup as backups
from journeyman.backup.vault import read_manifest
from journeyman.cli.config import load_settings, settings_options
from journeyman.cli.errors import DAMAGED, warn
from journeyman.cli.output import MOMENT, FiniteRange, Output, counted
from journeyman.cli.reading import map_log
from journeyman.cli.verify import inspect_log
from journeyman.clock import SystemClock
from journeyman.config import Settings
from journeyman.data_directory import STORE_DIRECTORY
from journeyman.disk import absolute, disk_of
from journeyman.errors import JourneymanError, UsageError
from journeyman.logs.detection import LogFinder
from journeyman.servers.preflight import is_below, places_kept

FOLLOW_S = 1.0
FOLLOW_KEPT = 3600
THIN_S = 600.0  # between two looks for backups that are too old

data_option = click.option("--data", type=click.Path(), metavar="DIR",
                           help="Data directory. [default: data.directory]")  # fmt: skip


@click.command("backup")
@click.argument("target")
@settings_options
@data_option
@click.option("--every", type=FiniteRange(0.1, 31_536_000), metavar="SECONDS",
              help="Repeat until interrupted.")  # fmt: skip
@click.option(
    "--follow",
    is_flag=True,
    help="Back up changes every second, or --every; keep the newest 3600, or --keep.",
)
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep only the newest N.")
@click.option("--full", is_flag=True, help="Also read files that have not changed.")
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
    follow: bool,
    keep: int | None,
    full: bool,
    list_: bool,
    check: bool,
) -> None:
    """Back up a data directory to TARGET, a directory or a URI, while the server runs.

    The first backup stores everything, later ones only new data. Everything that was acknowledged
    before the command started is in the backup.
    """
    vault = backups.open_vault(target)
    if list_ or check:
        damaged = list(backups.check_backups(vault)) if check else []
        with Output() as output:
            for line in (*_lines_of(vault, damaged if check else None), *damaged):
                output.line(line)
        ctx.exit(DAMAGED if damaged else 0)
    directory = _data_directory(load_settings(path, settings, _directory_setting(data)).settings)
    if follow:
        if full:
            raise UsageError("--follow and --full cannot be combined: use one of them")
        if disk_of(directory).is_dir(os.path.join(directory, STORE_DIRECTORY)):
            raise UsageError(f"{directory} has a store, which is copied as a whole: use --every")
        _Follow(vault, directory, every or FOLLOW_S, keep or FOLLOW_KEPT).run()

    def once() -> None:
        click.echo(_take(vault, directory, full=full))
        if keep is not None:
            backups.keep_newest(vault, keep)

    if every is None:
        once()
    else:
        _repeat(once, every)


class _Follow:
    """Looks at the directory at intervals, and takes a backup if something is new.

    If the machine is lost, what was acknowledged after the last backup began is lost: each line
    says how long ago that was when it had arrived.
    """

    def __init__(self, vault: backups.Vault, directory: str, every_s: float, kept: int) -> None:
        self._vault = vault
        self._directory = directory
        self._every_s = every_s
        self._kept = kept
        self._memory = backups.Memory()
        self._thinned_s = time.monotonic()

    def run(self) -> NoReturn:
        click.echo(
            f"following {self._directory}, every {self._every_s:g} s: if this machine is lost, so "
            "is what was acknowledged in that time and the time a backup takes"
        )
        _repeat(self.once, self._every_s)

    def once(self) -> None:
        if not backups.is_changed(self._directory, self._memory.last):
            return
        began_s = time.monotonic()
        try:
            taken = backups.take(self._directory, self._vault, SystemClock(), memory=self._memory)
        except (JourneymanError, OSError):
            self._memory = backups.Memory()  # the vault may have lost something: ask it again
            raise
        behind_s = time.monotonic() - began_s
        name, files = taken.manifest.name, counted(len(taken.manifest.files), "file")
        click.echo(f"{name}: {files}, {taken.new_bytes} new bytes, {behind_s:.2f} s behind")
        if time.monotonic() - self._thinned_s >= THIN_S:
            self._thinned_s = time.monotonic()
            backups.keep_newest(self._vault, self._kept)
            self._memory.chunks = None


def _repeat(once: Callable[[], None], every_s: float) -> NoReturn:
    """A target that is away for a while is a warning: the next backup has what this one missed."""
    while True:
        began_s = time.monotonic()
        try:
            once()
        except (JourneymanError, OSError) as error:
            warn(f"no backup: {error}")
        time.sleep(max(0.0, began_s + every_s - time.monotonic()))


def _take(vault: backups.Vault, directory: str, *, full: bool) -> str:
    taken = backups.take(directory, vault, SystemClock(), full=full)
    manifest = taken.manifest
    return (
        f"{manifest.name}: {counted(len(manifest.files), 'file')}, {manifest.size} bytes, "
        f"{taken.new_bytes} of them new"
    )


def _lines_of(vault: backups.Vault, damaged: list[str] | None) -> Iterator[str]:
    for name in backups.list_backups(vault):
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


def _directory_setting(data: str | None) -> dict[str, str]:
    return {} if data is None else {"data.directory": data}


def _data_directory(settings: Settings) -> str:
    """UsageError if a service keeps its data elsewhere: the backup would lack it."""
    directory = absolute(settings.data.directory)
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
@click.option("--data", type=click.Path(), required=True, metavar="DIR",
              help="New directory: missing or empty.")  # fmt: skip
@click.option("--at", type=MOMENT, help="Restore the state at this time, if the backups allow it.")
@click.pass_context
def restore_command(ctx: click.Context, target: str, data: str, at: int | None) -> None:
    """Restore a backup from TARGET into a new data directory, and verify every log in it.

    Exit code 0: every byte is as it was stored, and the logs are clean. Exit code 1: a part of the
    backup is missing or damaged, and nothing was restored; or a log was damaged when the backup was
    taken, and was restored unchanged.
    """
    vault = backups.open_vault(target)
    if at is None:
        manifest = backups.restore(vault, data)
        found = backups.RestoredMoment(manifest, manifest.taken_ns)
    else:
        found = backups.restore_at(vault, data, at)
    damaged = list(_damaged_logs(data, found.until_ns))
    with Output() as output:
        if found.why_not:
            output.line(f"{data}: as of the backup before that moment: {found.why_not}")
        elif at is not None:
            output.line(f"{data}: cut at that moment; the backup before it is {found.base.name}")
        files, size = _size_of(data)
        moment = replace(found.base, taken_ns=found.until_ns).name
        output.line(f"{data}: {counted(files, 'file')}, {size} bytes, as of {moment}")
        for where in damaged:
            output.line(
                f"{where}: damaged when the backup was taken; `journeyman repair` repairs it"
            )
    ctx.exit(DAMAGED if damaged else 0)


def _size_of(directory: str) -> tuple[int, int]:
    """How many files, and how many bytes."""
    files = size = 0
    for name, facts in disk_of(directory).scan(directory).items():
        inner = _size_of(os.path.join(directory, name)) if facts.is_dir else (1, facts.size)
        files, size = files + inner[0], size + inner[1]
    return files, size


def _damaged_logs(directory: str, as_of_ns: int) -> Iterator[str]:
    disk = disk_of(directory)
    try:
        logs = list(LogFinder(disk, warn).find([directory]))
    except UsageError:
        return  # no log at all: a server without a single record, or a store alone
    for log in logs:
        report = inspect_log(map_log(disk, log, compacted=True), as_of_ns, lambda _: None)
        if not report.clean:
            yield report.where
