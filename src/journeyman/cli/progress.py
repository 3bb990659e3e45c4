"""A progress bar, or a sign of life, on stderr for long work, when a person is watching.

No bar when stderr is no terminal, with ``--quiet``, or when the work is small: then ``advance``
costs one comparison. rich is imported only when a bar is drawn.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click

quiet_option = click.option(
    "--quiet", "-q", is_flag=True, help="No progress bar and no remarks on the way."
)

WORTH_A_BAR_BYTES = 4 * 1024 * 1024


class Advance(Protocol):
    """Say how much of the total is done by now."""

    def __call__(self, done: int) -> None: ...


def _nothing(done: int) -> None:  # noqa: ARG001 - the shape of Advance
    return None


@contextmanager
def progress(
    title: str, total: int, *, quiet: bool = False, worth: int = WORTH_A_BAR_BYTES
) -> Iterator[Advance]:
    """A bar from 0 to ``total``; yields the function that moves it."""
    if quiet or total < worth or not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)

        def advance(done: int) -> None:
            bar.update(task, completed=done)

        yield advance


@contextmanager
def working(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Show that something goes on whose end cannot be told."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield
