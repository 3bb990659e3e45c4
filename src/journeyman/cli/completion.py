"""``journeyman completion SHELL``: the script that completes commands and options in a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: journeyman completion bash > ~/.local/share/bash-completion/completions/journeyman
    """
    made = get_completion_class(shell)
    assert made is not None
    root = ctx.find_root().command
    click.echo(made(root, {}, "journeyman", "_JOURNEYMAN_COMPLETE").source())
