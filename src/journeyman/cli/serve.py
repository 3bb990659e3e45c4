"""``journeyman serve``: the schedule, as a server that speaks the ztick protocol.

    settings --> log, listeners, ticker, runners --> until SIGTERM or SIGINT

What happens while it runs is told on stderr; docs/operations.md says how to run it. Exit codes: 0
after a clean stop, 1 when it could not start or the log failed, 2 when the settings are wrong.
"""

from __future__ import annotations

import sys

import click

from journeyman.cli.settings import load_settings, settings_options

__all__ = ["serve"]


@click.command()
@settings_options
@click.option("--listen", metavar="HOST:PORT", help="Address to listen on: controller.listen.")
@click.option("--log", "log_path", type=click.Path(), help="The log: database.logfile_path.")
@click.option("--level", metavar="LEVEL", help="How much is said on stderr: log.level.")
def serve(
    path: str | None,
    settings: tuple[str, ...],
    listen: str | None,
    log_path: str | None,
    level: str | None,
) -> int:
    """Run the schedule: keep jobs and rules, and run each job when it is due."""
    given = {
        "controller.listen": listen,
        "database.logfile_path": log_path,
        "log.level": level,
    }
    more = {name: value for name, value in given.items() if value is not None}
    configuration = load_settings(path, settings, more)
    from journeyman.servers.process import run

    return run(configuration, stderr=sys.stderr)
