"""``journeyman storage COMMAND``: the store of job records, an index of the work queue's log.

    follow     keep it the index of the log; a server does so by itself
    check      does everything follow from the job records?
    rebuild    make it again: indexes from the records, records from the log
    list       numbers of jobs, and jobs by queue and status
    export     the store -> a Parquet file
    import     such files -> the store

Which store: the settings of [storage], as the server takes them, or --engine and --path.
docs/storage.md is about the store, docs/cli.md about the commands.
"""

from __future__ import annotations

import click

from journeyman.cli.config import load_settings, settings_options
from journeyman.cli.storage.checking import check, list_
from journeyman.cli.storage.follow import follow, rebuild
from journeyman.cli.storage.parquet import export, import_
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
    """Follow, check, rebuild, list, import and export the store of job records."""
    more = {"storage.engine": engine, "storage.path": place}
    given = {name: value for name, value in more.items() if value is not None}
    whole = load_settings(path, settings, given).settings
    found: StorageSettings = whole.storage
    ctx.meta["journeyman.settings"] = whole
    if found.engine == "memory" and ctx.invoked_subcommand != "follow":
        raise UsageError("storage.engine memory keeps nothing: choose rocksdb, sqlite or postgres")
    ctx.obj = found


for command in (follow, check, rebuild, list_, import_, export):
    storage.add_command(command)
