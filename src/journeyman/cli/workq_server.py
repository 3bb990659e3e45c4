"""``journeyman workq-server``: the work queue alone, started as the original is started.

    workq-server -listen HOST:PORT -cmdlog-path DIR -cmdlog-sync always -cmdlog-sync-int 0

The flags are the original's, with one dash or two. Without -cmdlog-path the command log is in the
data directory: nothing is kept in memory only. All other settings are those of ``serve``.
"""

from __future__ import annotations

import sys
from typing import Any

import click

from journeyman.cli.config import load_settings, settings_options

# Of what `serve` runs, the work queue alone.
_ALONE = {
    "controller.enabled": "false",
    "database.persistence": "memory",
    "kestrel.enabled": "false",
    "workq.enabled": "true",
}
FLAGS = (
    ("listen", "HOST:PORT", "Address of the work queue. [default: 127.0.0.1:9922]"),
    ("cmdlog-path", "DIR", "Its command log. [default: in the data directory]"),
    ("cmdlog-sync", "POLICY", "interval, os or always."),
    ("cmdlog-sync-int", "MS", "Time between syncs."),
    ("cmdlog-clean-int", "MS", "Time between cleanings."),
    ("cmdlog-seg-size", "BYTES", "Size of its segments."),
)


def _original_flags(command: Any) -> Any:
    for name, metavar, text in reversed(FLAGS):
        command = click.option(f"-{name}", f"--{name}", metavar=metavar, help=text)(command)
    return command


@click.command("workq-server")
@settings_options
@click.option("--data", type=click.Path(), metavar="DIR", help="Data directory: data.directory.")
@_original_flags
def workq_server(
    path: str | None, settings: tuple[str, ...], data: str | None, **flags: str | None
) -> int:
    """Run the work queue alone, with the flags of the original workq-server."""
    if flags["cmdlog_sync"] in ("os", "always") and flags["cmdlog_sync_int"] == "0":
        flags["cmdlog_sync_int"] = None  # the original wants to hear so
    given = {"data.directory": data, **{f"workq.{name}": value for name, value in flags.items()}}
    more = _ALONE | {name: value for name, value in given.items() if value is not None}
    configuration = load_settings(path, settings, more)
    from journeyman.servers.process import run

    return run(
        configuration,
        stderr=sys.stderr,
        read_again=lambda: load_settings(path, settings, more),
    )
