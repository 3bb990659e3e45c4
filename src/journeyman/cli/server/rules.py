"""``journeyman rules``: what the schedule runs for which jobs."""

from __future__ import annotations

import click

from journeyman.cli.server.connection import connected, server_option, server_options, show
from journeyman.client import Schedule
from journeyman.errors import JourneymanError, UsageError
from journeyman.protocols.ztick.rules import read_runner, runner_words


@click.group()
def rules() -> None:
    """List, add and remove rules of the schedule."""


@rules.command("ls")
@server_options
def list_rules(server: str | None, as_json: bool) -> None:
    """List the rules."""
    with connected(Schedule, server) as schedule:
        found = schedule.rules()
    show(
        [
            {"rule": r.identifier, "pattern": r.pattern, "runner": " ".join(runner_words(r.runner))}
            for r in found
        ],
        as_json,
    )


@rules.command("add", context_settings={"ignore_unknown_options": True})
@server_option
@click.argument("rule")
@click.argument("pattern")
@click.argument("runner", nargs=-1, required=True, type=click.UNPROCESSED, metavar="RUNNER ARG...")
def add_rule(server: str | None, rule: str, pattern: str, runner: tuple[str, ...]) -> None:
    """Run jobs whose id begins with PATTERN by RUNNER; replaces a rule of this name."""
    read = read_runner(runner)
    if isinstance(read, str):
        raise UsageError(read)
    with connected(Schedule, server) as schedule:
        schedule.set_rule(rule, pattern, read)


@rules.command("rm")
@server_option
@click.argument("names", nargs=-1, required=True, metavar="RULE...")
def remove_rules(server: str | None, names: tuple[str, ...]) -> None:
    """Remove rules."""
    with connected(Schedule, server) as schedule:
        for name in names:
            if not schedule.remove_rule(name):
                raise JourneymanError(f"no rule {name!r} on this server")
