"""``journeyman storage COMMAND``: the store of job records, without a server running.

    check      does everything follow from the job records?
    rebuild    make it so
    list       numbers of jobs, and jobs by queue and status
    import     logs of any dialect, or a keyspace file -> the store
    export     the store -> a log of any dialect, or a keyspace file

Which store: the settings of [storage], as the server takes them, or --engine and --path.
docs/storage.md is about the store, docs/cli.md about the commands.
"""

from __future__ import annotations

import click

from journeyman.cli.config import load_settings, settings_options
from journeyman.cli.storage.checking import check, export, list_, rebuild
from journeyman.cli.storage.importing import import_
from journeyman.config import StorageSettings
from journeyman.errors import UsageError

__all__ = ["storage"]


@click.group()
@settings_options
@click.option("--engine", metavar="NAME", help="storage.engine: rocksdb, sqlite or postgres.")
@click.option("--path", "place", metavar="PATH", help="storage.path: where the store is.")
@click.pass_context
def storage(
    ctx: click.Context,
    path: str | None,
    settings: tuple[str, ...],
    engine: str | None,
    place: str | None,
) -> None:
    """Check, rebuild, list, import and export the store of job records."""
    more = {"storage.engine": engine, "storage.path": place}
    given = {name: value for name, value in more.items() if value is not None}
    found: StorageSettings = load_settings(path, settings, given).settings.storage
    if found.engine == "memory":
        raise UsageError("storage.engine memory keeps nothing: choose rocksdb, sqlite or postgres")
    ctx.obj = found


for command in (check, rebuild, list_, import_, export):
    storage.add_command(command)
