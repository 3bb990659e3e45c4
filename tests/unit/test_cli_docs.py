"""docs/cli.md and docs/pipeline.md describe every command, and only options that there are.

What an option means is said once, in its help, unless it needs more words."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from scripts import command_reference

from journeyman.cli import COMMANDS, journeyman
from journeyman.cli.pipeline import COMMANDS as PIPELINE_COMMANDS
from journeyman.cli.pipeline import pipeline

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()


def sections() -> dict[str, str]:
    parts = re.split(r"^## `journeyman ([\w-]+)`$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def command(name: str) -> click.Command:
    found = journeyman.get_command(click.Context(journeyman), name)
    assert found is not None
    return found


def parameters(name: str) -> list[click.Parameter]:
    """Those of a command and of its own commands; the pipeline's have a page of their own."""
    found = command(name)
    inner = found.commands.values() if isinstance(found, click.Group) else ()
    return [*found.params, *(each for one in inner for each in one.params)]


def options() -> list[tuple[str, str]]:
    return [
        (name, option)
        for name in sorted(COMMANDS)
        for parameter in parameters(name)
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    ]


def test_every_command_has_a_section_and_nothing_else_has():
    assert set(sections()) == set(COMMANDS)


def options_without_help(command: click.Command) -> list[str]:
    """Return the options of a command, and of the commands in it, whose help is missing."""
    inner = command.commands.values() if isinstance(command, click.Group) else ()
    own = [each for each in command.params if isinstance(each, click.Option)]
    silent = [each for each in own if not each.help and not each.hidden]
    names = [f"{command.name} {each.opts[0]}" for each in silent]
    return [*names, *(name for each in inner for name in options_without_help(each))]


def test_every_option_has_a_help_text():
    commands = [*map(command, sorted(COMMANDS)), *map(pipeline_command, PIPELINE_COMMANDS)]
    assert [name for each in commands for name in options_without_help(each)] == []


def test_the_page_of_all_options_has_every_option():
    sections_of_site = command_reference.page()
    for name, option in options():
        section = re.search(rf"^## `journeyman {name}`$.*?(?=^## `journeyman (?!{name}\b)|\Z)",
                            sections_of_site, re.DOTALL | re.MULTILINE)  # fmt: skip
        assert section, name
        assert re.search(rf"[` /]{re.escape(option)}[`, /]", section[0]), (name, option)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_option_is_described_that_does_not_exist(name):
    described = set(re.findall(r"^\| `(--?[a-z-]+)", sections()[name], flags=re.MULTILINE))

    assert described <= {option for of, option in options() if of == name}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_an_example_and_its_exit_codes(name):
    assert f"$ journeyman {name} " in sections()[name]
    assert "Exit code" in sections()[name]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_example_uses_only_options_that_exist(name):
    known = {option for of, option in options() if of == name}
    for line in re.findall(rf"\$ journeyman {name} (.*)", PAGE):
        assert set(re.findall(r"(?<!\S)(--[a-z-]+)", line.split("|")[0])) <= known


@pytest.mark.parametrize("option", ["--version", "--debug", "--help", "JOURNEYMAN_DEBUG"])
def test_what_all_commands_share_is_described(option):
    assert option in PAGE.partition("## `journeyman")[0]


# -- docs/pipeline.md ----------------------------------------------------------------------------


PIPELINE_PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()


def pipeline_sections() -> dict[str, str]:
    parts = re.split(r"^## `journeyman pipeline (\w+)`$", PIPELINE_PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def pipeline_options() -> list[tuple[str, str]]:
    return [
        (name, option)
        for name in PIPELINE_COMMANDS
        for parameter in pipeline_command(name).params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    ]


def pipeline_command(name: str) -> click.Command:
    found = pipeline.get_command(click.Context(pipeline), name)
    assert found is not None
    return found


def test_every_pipeline_command_has_a_section_and_nothing_else_has():
    assert list(pipeline_sections()) == list(PIPELINE_COMMANDS)


@pytest.mark.parametrize("name", PIPELINE_COMMANDS)
def test_no_pipeline_option_is_described_that_does_not_exist(name):
    rows = re.findall(r"^\| (`-[^|]*)", pipeline_sections()[name], flags=re.MULTILINE)
    described = {option for row in rows for option in re.findall(r"`(--?[a-z-]+)", row)}
    assert described <= {option for of, option in pipeline_options() if of == name}


@pytest.mark.parametrize("name", PIPELINE_COMMANDS)
def test_every_pipeline_command_has_exit_codes_and_examples_that_can_be(name):
    section = pipeline_sections()[name]
    examples = re.findall(rf"\$ journeyman pipeline {name}\b(.*)", PIPELINE_PAGE)
    known = {option for of, option in pipeline_options() if of == name}

    assert "Exit code 0" in section
    assert examples
    for line in examples:
        assert set(re.findall(r"(?<!\S)(--[a-z-]+)", line.split("|")[0])) <= known
