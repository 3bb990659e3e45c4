"""``journeyman config`` and ``token``; the options by which a command takes the server's settings.

    -c FILE               a configuration file, TOML
    --set SECTION.KEY=V   one setting, over file and environment; as often as needed

``config --show`` prints the settings in effect, and where each comes from, as a configuration file:
it can be read back with ``-c``. The same command checks a file before a server is started with it:
what ``serve`` would refuse is said in one line, exit code 2.

``token new`` prints a section for the auth file, with a new random secret.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from journeyman.cli.errors import warn
from journeyman.cli.output import Output
from journeyman.config import Configuration, load
from journeyman.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def settings_options(command: F) -> F:
    """-c and --set; ``load_settings`` makes a configuration of them."""
    command = click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="One setting; overrides file and environment; may be repeated.",
    )(command)
    return click.option(
        "-c",
        "--config",
        "path",
        type=click.Path(),
        metavar="FILE",
        help="Configuration file (TOML).",
    )(command)


def load_settings(
    path: str | None, settings: tuple[str, ...], more: Mapping[str, str] | None = None
) -> Configuration:
    """The settings in effect; ``more`` are those with options of their own."""
    options = {}
    for each in settings:
        name, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"--set {each}: expected SECTION.KEY=VALUE")
        options[name.strip()] = value.strip()
    return load(path, options={**options, **(more or {})})


@click.command()
@settings_options
@click.option("--show", is_flag=True, help="Print every setting with its value and its origin.")
@click.option("--sample", is_flag=True, help="Print a file with every setting and its meaning.")
def config(path: str | None, settings: tuple[str, ...], show: bool, sample: bool) -> None:
    """Check the configuration and show the settings in effect.

    Without --show, valid settings print nothing.
    """
    if sample:
        from journeyman.config import sample as written_sample

        click.echo(written_sample(), nl=False)
        return
    configuration = load_settings(path, settings)
    from journeyman.servers.preflight import check_settings, notes

    access = check_settings(configuration)
    for note in (*configuration.notes, *notes(configuration.settings, access)):
        warn(note)
    if show:
        from journeyman.config import show as written

        with Output() as output:
            for line in written(configuration).splitlines():
                output.line(line)


@click.group()
def token() -> None:
    """Create tokens for a server's auth file."""


@token.command()
@click.argument("name")
@click.option("--namespace", default="*", show_default=True, metavar="PREFIX",
              help="Names it may use: those that begin with this; * is all.")  # fmt: skip
@click.option(
    "--runners", metavar="NAMES", help="Runners that its rules may use, like 'http queue'."
)
def new(name: str, namespace: str, runners: str | None) -> None:
    """Print a token called NAME; append it to the auth file."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageError(f"a token's name has only A-Z a-z 0-9 _ and -, not {name!r}")
    click.echo(f"[token.{name}]")
    click.echo(f'secret = "sk_{name}_{secrets.token_hex(24)}"')
    click.echo(f'namespace = "{namespace}"')
    if runners is not None:
        click.echo(f'runners = "{runners}"')
