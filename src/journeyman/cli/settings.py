"""The options by which a command takes the server's settings.

-c FILE               a configuration file, TOML
--set SECTION.KEY=V   one setting, over file and environment; as often as needed
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

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
        help="One setting, over file and environment; may be given again.",
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
