"""Make the page "All options" of the site: every command with its usage and its options.

The site's hooks call it, so that the page says what ``--help`` says. docs/cli.md and
docs/pipeline.md explain what the commands do.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from journeyman.cli import journeyman

HEAD = """# All options

Generated from the commands, as `--help` prints them. [cli.md](cli.md) and
[pipeline.md](pipeline.md) explain what they do.
"""


def page() -> str:
    """Return the page as Markdown."""
    context = click.Context(journeyman, info_name="journeyman")
    return HEAD + "\n" + "\n".join(_sections(context)).rstrip() + "\n"


def _sections(group: click.Context) -> Iterator[str]:
    """Yield the sections of the commands of a group, and of the groups in it."""
    assert isinstance(group.command, click.Group)
    for name in group.command.list_commands(group):
        command = group.command.get_command(group, name)
        if command is None or command.hidden:
            continue
        context = click.Context(command, info_name=name, parent=group)
        yield from _section(context)
        if isinstance(command, click.Group):
            yield from _sections(context)


def _section(context: click.Context) -> Iterator[str]:
    """Yield what a command is for, how it is called, and a table of its options."""
    command = context.command
    yield f"## `{context.command_path}`\n"
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield f"    {usage}\n"
    yield " ".join((command.help or "").split()) + "\n"
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    rows = [record for option in options if (record := option.get_help_record(context))]
    if rows:
        yield "| option | means |\n|---|---|"
        for option, text in rows:
            yield f"| `{_cell(option)}` | {_cell(' '.join(text.split()))} |"
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
