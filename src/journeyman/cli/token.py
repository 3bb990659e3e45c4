"""``journeyman token new``: a section for the auth file, with a new random secret."""

from __future__ import annotations

import re
import secrets

import click

from journeyman.errors import UsageError


@click.group()
def token() -> None:
    """Make tokens for the auth file of a server."""


@token.command()
@click.argument("name")
@click.option("--namespace", default="*", show_default=True, metavar="PREFIX",
              help="What it may touch: names that begin with this; * is everything.")  # fmt: skip
@click.option("--runners", metavar="NAMES", help="What its rules may run, like 'http queue'.")
def new(name: str, namespace: str, runners: str | None) -> None:
    """Print a token called NAME, to be appended to the auth file."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise UsageError(f"a token's name is of A-Z a-z 0-9 _ -, not {name!r}")
    click.echo(f"[token.{name}]")
    click.echo(f'secret = "sk_{name}_{secrets.token_hex(24)}"')
    click.echo(f'namespace = "{namespace}"')
    if runners is not None:
        click.echo(f'runners = "{runners}"')
