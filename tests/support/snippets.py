"""Runs the snippets of a page as a reader would, one after the other, in an empty directory.

    ```python title="shop.py"     a file of this name
    ```console                    lines with $ are run by a shell; others are its output
    ```                           a line `...` stands for any lines, `...` in a line for any text

    <!-- again -->                the commands of the next snippet are run until they print this

A command that ends with `&` runs until the page ends. Nothing here waits for it: the page must,
with `journeyman ping --wait`, because readers paste pages whole. Ports are free ones, by variables:
pages name none.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.ports import free_ports

PATIENCE_S = 600.0  # a first run compiles kernels, maybe on a busy machine
AGAIN_S = 0.5
_FENCE = re.compile(
    r"^(<!-- again -->\n)?```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_SERVICES = ("CONTROLLER", "WORKQ", "KESTREL", "HTTP")


class Snippet(NamedTuple):
    again: str
    language: str
    title: str
    text: str


class Command(NamedTuple):
    line: str
    output: list[str]


def snippets_of(page: str) -> list[Snippet]:
    return [Snippet(*match.groups("")) for match in _FENCE.finditer(page)]


def commands_of(text: str) -> list[Command]:
    """A backslash at the end of a line continues it."""
    commands: list[Command] = []
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            commands.append(Command(line[2:], []))
        elif commands:
            commands[-1].output.append(line)
    return commands


def is_like(found: list[str], expected: list[str]) -> bool:
    parts = (r"(?:.*\n)*?" if line == "..." else _pattern(line) + "\n" for line in expected)
    return re.fullmatch("".join(parts), "".join(f"{line}\n" for line in found)) is not None


def _pattern(line: str) -> str:
    return ".*".join(map(re.escape, line.rstrip().split("...")))


class Reader:
    """Someone who follows a page."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[subprocess.Popen[bytes]] = []
        ports = dict(zip(_SERVICES, free_ports(len(_SERVICES)), strict=True))
        self._environment = {**os.environ, **_addresses(ports), "PYTHONPATH": str(directory)}
        programs = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
        self._environment["PATH"] = os.pathsep.join(programs)
        self._environment.pop("PYTEST_ADDOPTS", None)  # what a page says pytest prints is without

    def follow(self, page: str) -> int:
        """How many commands were run. AssertionError: one printed something else."""
        count = 0
        try:
            for snippet in snippets_of(page):
                if snippet.title:
                    (self._directory / snippet.title).write_text(snippet.text)
                elif snippet.language == "console":
                    for command in commands_of(snippet.text):
                        self._run(command, PATIENCE_S if snippet.again else 0.0)
                        count += 1
        finally:
            for process in self._running:
                process.kill()
                process.wait()
        return count

    def _run(self, command: Command, patience_s: float) -> None:
        if command.line.endswith("&"):
            self._start(command.line.removesuffix("&").strip())
            return
        deadline = time.monotonic() + patience_s
        while problem := self._try(command):
            assert time.monotonic() < deadline, problem
            time.sleep(AGAIN_S)

    def _try(self, command: Command) -> str:
        """What was wrong."""
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=self._directory,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        found = [line.rstrip() for line in done.stdout.splitlines()]
        if done.returncode == 0 and is_like(found, command.output):
            return ""
        expected = "\n".join(command.output)
        return f"$ {command.line}\n{done.stdout}{done.stderr}\nbut the page says\n{expected}"

    def _start(self, line: str) -> None:
        with (self._directory / f"messages-{len(self._running)}").open("wb") as messages:
            self._running.append(
                subprocess.Popen(
                    shlex.split(line),
                    cwd=self._directory,
                    env=self._environment,
                    stdout=messages,
                    stderr=messages,
                )
            )


def _addresses(ports: Mapping[str, int]) -> Mapping[str, str]:
    """Where each service listens, and where clients find them."""
    variables = {f"JOURNEYMAN_{name}_LISTEN": f"127.0.0.1:{port}" for name, port in ports.items()}
    others = f"schedule={ports['CONTROLLER']}&fan_out={ports['KESTREL']}&http={ports['HTTP']}"
    return variables | {"JOURNEYMAN_URL": f"journeyman://127.0.0.1:{ports['WORKQ']}?{others}"}
