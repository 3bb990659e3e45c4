"""How far the queries of a Spark Connect session are, drawn on a terminal as Spark draws it.

    [=================>                      ] 45 % of 12 tasks

A Spark that is started here draws its bar by itself (``spark.ui.showConsoleProgress``). A server's
bar would be on the server's terminal; instead it tells us the state of its stages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TextIO

from pyspark.sql import SparkSession

WIDTH = 40


class Stage(Protocol):
    """What is used of pyspark's StageInfo."""

    num_tasks: int
    num_completed_tasks: int


class Bar:
    """A line that is written over and over, and cleared when a query is done."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._shown = ""

    def __call__(
        self,
        stages: Iterable[Stage] | None,
        inflight_tasks: int,  # noqa: ARG002 - the shape of a handler
        operation_id: str | None,  # noqa: ARG002
        done: bool,
    ) -> None:
        known = list(stages or ())
        total = sum(stage.num_tasks for stage in known)
        if done or total == 0:
            self._show("")
            return
        finished = sum(stage.num_completed_tasks for stage in known)
        filled = WIDTH * finished // total
        bar = ("=" * filled + ">")[:WIDTH].ljust(WIDTH)
        self._show(f"[{bar}] {100 * finished // total} % of {total} tasks")

    def _show(self, text: str) -> None:
        if text != self._shown:
            self._terminal.write(f"\r{text.ljust(len(self._shown))}{'' if text else chr(13)}")
            self._terminal.flush()
            self._shown = text


def draw_progress(spark: SparkSession, terminal: TextIO) -> None:
    """Draw a bar for every query of this Spark Connect session from now on."""
    spark.registerProgressHandler(Bar(terminal))  # type: ignore[arg-type]
