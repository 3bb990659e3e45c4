"""``journeyman storage check`` and ``rebuild``."""

from __future__ import annotations

import os

import click

from journeyman.cli.errors import DAMAGED
from journeyman.cli.output import Output, as_json, format_options, json_line
from journeyman.cli.progress import progress, quiet_option, working
from journeyman.cli.wording import counted
from journeyman.config import StorageEngine, StorageSettings
from journeyman.errors import StorageLocked, UsageError
from journeyman.storage.checking import check as problems_of
from journeyman.storage.checking import shown
from journeyman.storage.contract import Backend
from journeyman.storage.facade import SCHEMA_KEY
from journeyman.storage.opening import open_backend
from journeyman.storage.options import EngineOptions
from journeyman.storage.paths import expanded
from journeyman.storage.rebuilding import rebuild as make_anew

_SHOWN = 100  # problems, unless asked for all


@click.command()
@click.option("--all", "all_", is_flag=True, help=f"Every problem, not the first {_SHOWN} only.")
@format_options
@quiet_option
@click.pass_context
def check(ctx: click.Context, all_: bool, format_: str, json_: bool, quiet: bool) -> None:
    """Prove every index, counter and rank from the job records. Nothing is changed.

    Exit code 0: all is right, 1: there are problems, one line each.
    """
    found = 0
    backend = existing_backend(ctx.obj)
    try:
        with (
            Output() as output,
            working("checking the store", quiet=quiet),
            backend.view() as view,
        ):
            if view.get(SCHEMA_KEY) is None:
                found = 1
                output.line(_line(SCHEMA_KEY, "it is missing", as_json(format_, json_)))
            for problem in problems_of(view):
                found += 1
                if all_ or found <= _SHOWN:
                    output.line(_line(problem.key, problem.what, as_json(format_, json_)))
            if not as_json(format_, json_):
                if found > _SHOWN and not all_:
                    output.line(f"and {found - _SHOWN} more; --all shows them")
                output.line(
                    f"{counted(found, 'problem')}: `journeyman storage rebuild` mends what follows "
                    "from the records"
                    if found
                    else "all is right"
                )
    finally:
        backend.close()
    if found:
        ctx.exit(DAMAGED)


def _line(key: bytes, what: str, json: bool) -> str:
    return json_line({"key": shown(key), "problem": what}) if json else f"{shown(key)}: {what}"


@click.command()
@quiet_option
@click.pass_context
def rebuild(ctx: click.Context, quiet: bool) -> None:
    """Make every index, counter and rank anew from the job records. Stop the server first."""
    backend = existing_backend(ctx.obj)
    try:
        be_alone(backend)
        jobs = backend.stats().entries_about or 0
        with progress("rebuilding", jobs // 6, quiet=quiet, worth=100_000) as advance:
            done = make_anew(backend, advance)
    finally:
        backend.close()
    unread = f"; {done.unreadable} cannot be read and are in no index" if done.unreadable else ""
    click.echo(f"{counted(done.jobs, 'job')} indexed anew{unread}")


def be_alone(backend: Backend) -> None:
    """No server has its jobs in this store, or it is refused."""
    try:
        backend.be_alone()
    except StorageLocked as error:
        raise UsageError(f"{error}; stop the server first") from error


def existing_backend(settings: StorageSettings) -> Backend:
    """The store as it is, whatever its schema; one that is not there is not made."""
    place = settings.path
    if settings.engine != StorageEngine.POSTGRES:
        place = expanded(settings.path)
        if not os.path.isdir(place) or not os.listdir(place):
            raise UsageError(f"there is no store at {place}: see storage.path")
    options = EngineOptions(settings.cache_capacity_bytes, settings.mode)
    return open_backend(settings.engine, place, options)
