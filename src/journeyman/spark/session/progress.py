"""How far the queries of a Spark Connect session are, drawn on a terminal.

    ━━━━━━━━━━━━━━━━╺━━━━━━━━━━━━━━━━━━━━━━━  45 % of 12 tasks

A Spark that is started here draws its bar by itself (``spark.ui.showConsoleProgress``). A server's
bar would be on the server's terminal; instead it tells us the state of its stages.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable
from typing import Protocol, TextIO

from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


class Stage(Protocol):
    """What is used of pyspark's StageInfo."""

    num_tasks: int
    num_completed_tasks: int


class Bar:
    """A line that is drawn while a query runs, and goes away when it is done."""

    def __init__(self, terminal: TextIO) -> None:
        self._console = Console(file=terminal, force_terminal=True)
        self._drawn: Progress | None = None
        atexit.register(self._clear)  # an interrupted query is never done

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
            self._clear()
            return
        if self._drawn is None:
            words = TextColumn("{task.percentage:.0f} % of {task.total} tasks")
            self._drawn = Progress(
                BarColumn(),
                words,
                console=self._console,
                transient=True,
                auto_refresh=False,
                redirect_stdout=False,  # it holds the answer
                redirect_stderr=False,
            )
            self._drawn.add_task("query")
            self._drawn.start()
        (bar,) = self._drawn.task_ids
        finished = sum(stage.num_completed_tasks for stage in known)
        self._drawn.update(bar, completed=finished, total=total, refresh=True)

    def _clear(self) -> None:
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def draw_progress(spark: SparkSession, terminal: TextIO) -> None:
    """Draw a bar for every query of this Spark Connect session from now on."""
    spark.registerProgressHandler(Bar(terminal))  # type: ignore[arg-type]
