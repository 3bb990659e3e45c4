"""docs/cli.md and docs/pipeline.md say what there is: every command, option and exit code."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

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


def common_options() -> set[str]:
    """Those that the page describes once, for all commands."""
    rows = re.findall(r"^\| (`-[^|]*)", PAGE.partition("## `journeyman")[0], flags=re.MULTILINE)
    return {option for row in rows for option in re.findall(r"`(--?[a-z-]+)", row)}


def is_named(option: str, text: str) -> bool:
    return re.search(rf"`{re.escape(option)}[` ]", text) is not None


def test_every_command_has_a_section_and_nothing_else_has():
    assert set(sections()) == set(COMMANDS)


def test_every_option_is_described_with_its_command_or_for_all():
    described, common = sections(), common_options()
    own = [(of, each) for of, each in options() if each not in common]
    missing = [(of, each) for of, each in own if not is_named(each, described[of])]
    assert not missing


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_no_option_is_described_that_does_not_exist(name):
    described = set(re.findall(r"^\| `(--?[a-z-]+)", sections()[name], flags=re.MULTILINE))

    known = {option for of, option in options() if of == name}

    assert bool(described) >= bool(known - common_options())
    assert described <= known


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
SHARED = PIPELINE_PAGE.partition("\n## `journeyman pipeline")[0]


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


def shared_options() -> set[str]:
    return set(re.findall(r"`(--?[a-z-]+)", SHARED))


def test_every_pipeline_command_has_a_section_and_nothing_else_has():
    assert list(pipeline_sections()) == list(PIPELINE_COMMANDS)


def test_every_pipeline_option_is_described_with_its_command_or_for_all():
    described, shared = pipeline_sections(), shared_options()
    own = [(of, each) for of, each in pipeline_options() if each not in shared]
    missing = [(of, each) for of, each in own if not is_named(each, described[of])]
    assert not missing


@pytest.mark.parametrize("name", PIPELINE_COMMANDS)
def test_no_pipeline_option_is_described_that_does_not_exist(name):
    rows = re.findall(r"^\| (`-[^|]*)", pipeline_sections()[name], flags=re.MULTILINE)
    described = {option for row in rows for option in re.findall(r"`(--?[a-z-]+)", row)}
    known = {option for of, option in pipeline_options() if of == name}

    assert bool(described) == bool(known - shared_options())
    assert described <= known


@pytest.mark.parametrize("name", PIPELINE_COMMANDS)
def test_every_pipeline_command_has_exit_codes_and_examples_that_can_be(name):
    section = pipeline_sections()[name]
    examples = re.findall(rf"\$ journeyman pipeline {name}\b(.*)", PIPELINE_PAGE)
    known = {option for of, option in pipeline_options() if of == name}

    assert "Exit code 0" in section
    assert examples
    for line in examples:
        assert set(re.findall(r"(?<!\S)(--[a-z-]+)", line.split("|")[0])) <= known
