"""Spark applications that replay the same log in turns, so that a machine's moods hit all alike.

    round 1   local[1]   local[1], two tasks   one core   local[2]
    round 2   local[1]   ...

What others do on a machine makes a replay a fifth slower for some minutes, and faster again. Of
applications that are measured one after another that shows as a difference between them; in turns
it does not. All are started and warm before the first round, and wait while another one runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import report

__all__ = ["in_turns"]


class _Application:
    """A process that replays the log once for each line it is sent, and tells the seconds."""

    def __init__(self, log: Path, output: Path, how: Sequence[str], cores: int | None) -> None:
        arguments = ["--dialect", "ztick", "--log", str(log), "--output", str(output), "--paced"]
        command = [sys.executable, "-m", "bench.pipeline_spark", *arguments, *how]
        if cores is not None:
            command = ["taskset", "--cpu-list", f"0-{cores - 1}", *command]
        self._process = subprocess.Popen(
            command, cwd=report.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> _Application:
        return self

    def __exit__(self, *_how: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def run(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


def in_turns(
    log: Path,
    directory: Path,
    ways: Mapping[str, tuple[Sequence[str], int | None]],
    *,
    warming: int,
    rounds: int,
) -> dict[str, list[dict[str, Any]]]:
    """Of each way (options of pipeline_spark; cores that it is bound to) its run in every round."""
    with ExitStack() as stack:
        running = {}
        for number, (name, (how, cores)) in enumerate(ways.items()):
            started = _Application(log, directory / f"turns-{number}", how, cores)
            running[name] = stack.enter_context(started)
            for _ in range(warming):
                running[name].run()
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name, application in running.items():
                found[name].append(application.run())
    return found
