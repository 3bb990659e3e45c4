#!/usr/bin/env python3
"""Trace the walk of a command through the code: which modules it passes from socket to reply.

    python scripts/walk.py              SET, add, put, a start and a replay on Spark
    python scripts/walk.py set add      only these

The real server runs in a child process under a profiler. For each command, a few go first, so
that nothing is imported or built during the walk; then one command is recorded, in all threads,
from the call of data_received with its bytes to the call of transport.write with its reply. What
comes before and after, like counting it for /metrics or setting the timer for what is due next, is
not part of the walk. The walk of a start is all that a server with a small log of each service
runs, from the call of main to the first reply. For the replay, the driver and every Python worker
are recorded, from start to end.

What runs while a module is imported does not count. A module counts once, however often it is
entered; "changes" counts each time that the walk goes
from one module into another. Modules outside of journeyman are not counted.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from asyncio import selector_events
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import journeyman

TRANSPORTS = str(selector_events.__file__)
PACKAGE = str(Path(journeyman.__file__).parent) + os.sep
WALK_FILE = "JOURNEYMAN_WALK"
WALK_OF_START = "JOURNEYMAN_WALK_OF_START"
WARM_UP = 5
PATIENCE_S = 60.0

Exchange = Callable[[socket.socket], None]


# -- inside the traced process --


def _is_importing(frame: FrameType) -> bool:
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith("<frozen importlib"):
        caller = caller.f_back
    return caller is not None


class Recorder:
    """Writes the name of a module each time that the walk enters another one.

    ``whole``: all that runs. Otherwise one command, once ``armed``, from its bytes to its reply.
    """

    def __init__(self, path: str, *, whole: bool) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._last: dict[int, str] = {}
        self._on = whole
        self.armed = False

    def install(self) -> None:
        threading.setprofile(self)
        sys.setprofile(self)

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self.armed and event == "call":
            self._look_for_ends(frame)
        if not self._on or event != "call":
            return
        name = frame.f_code.co_filename
        if not name.startswith(PACKAGE) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            return  # bodies of modules and classes are not optimized code: importing is not walking
        if _is_importing(frame):
            return  # and neither are the functions that they call
        thread = threading.get_ident()
        if self._last.get(thread) != name:
            self._last[thread] = name
            os.write(self._file, name.removeprefix(PACKAGE).encode() + b"\n")

    def _look_for_ends(self, frame: FrameType) -> None:
        name = frame.f_code.co_name
        if not self._on and name == "data_received":
            self._on = True
        elif self._on and name == "write" and frame.f_code.co_filename == TRANSPORTS:
            self._on = self.armed = False
            self.mark()

    def arm(self) -> None:
        self._last.clear()
        self.armed = True
        self.mark()

    def mark(self) -> None:
        os.write(self._file, b"-\n")


def serve_under_the_recorder(arguments: list[str]) -> None:
    from journeyman.cli import main

    sys.modules["uvloop"] = None  # type: ignore[assignment] # its transports cannot be traced
    recorder = Recorder(os.environ[WALK_FILE], whole=WALK_OF_START in os.environ)
    recorder.armed = WALK_OF_START in os.environ  # it ends with the first reply

    def arm(*_: object) -> None:
        recorder.arm()

    signal.signal(signal.SIGUSR1, arm)
    recorder.install()
    sys.argv = ["journeyman", *arguments]
    main()


# -- outside --


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"walk: no {what} within {PATIENCE_S:.0f} s")
        time.sleep(0.02)


def ask(connection: socket.socket, words: bytes, ending: bytes = b"\n") -> None:
    connection.sendall(words)
    answer = b""
    while not answer.endswith(ending):
        part = connection.recv(65536)
        if not part:
            sys.exit(f"walk: the server closed the connection after {words!r}")
        answer += part


def numbered(words: str) -> Exchange:
    """An exchange whose words hold a number that is another one each time."""
    numbers = iter(range(1, 1000))
    return lambda connection: ask(connection, words.format(next(numbers)).encode())


COMMANDS: dict[str, tuple[str, Exchange]] = {
    "set": ("schedule", numbered("w{0} SET walk.{0} 4102444800000000000\n")),
    "add": (
        "work queue",
        numbered("add 61a444a0-6128-41c0-8078-cc757d3b{0:04d} walk 1000 60000 2\r\nhi\r\n"),
    ),
    "put": ("fan-out queues", numbered("set walk 0 0 5\r\n{0:05d}\r\n")),
}


def walks_of(commands: Sequence[str], folder: Path) -> dict[str, list[str]]:
    """The walks of these commands through one server."""
    walk = folder / "walk"
    server = _serve(folder, {WALK_FILE: str(walk)})
    try:
        ports = _ports(server)
        return {
            command: _record(server, ports[service], exchange, walk)
            for command, (service, exchange) in COMMANDS.items()
            if command in commands
        }
    finally:
        server.terminate()
        server.communicate()


def walk_of_start(folder: Path) -> list[str]:
    """The walk of a server that finds the logs of ``walks_of``."""
    walk = folder / "walk of start"
    server = _serve(folder, {WALK_FILE: str(walk), WALK_OF_START: "1"})
    try:
        port = _ports(server)["schedule"]
        with socket.create_connection(("127.0.0.1", port)) as connection:
            ask(connection, b"r GET walk.1\n")
        return walk.read_text().partition("\n-\n")[0].split()
    finally:
        server.terminate()
        server.communicate()


def _serve(folder: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    configuration = folder / "walk.toml"
    listen = 'listen = "127.0.0.1:0"'
    configuration.write_text(
        f'[controller]\n{listen}\n[database]\nlogfile_path = "{folder}/logfile"\n'
        f'[workq]\n{listen}\ncmdlog_path = "{folder}/workq"\n'
        f'[kestrel]\n{listen}\nqueue_path = "{folder}/kestrel"\n'
    )
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", "serve", "-c", str(configuration)],
        env={**os.environ, **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def _ports(server: subprocess.Popen[str]) -> dict[str, int]:
    """Where each service listens, as the server says."""
    ports: dict[str, int] = {}
    assert server.stderr is not None
    for line in server.stderr:
        if found := re.search(r"the (.+) listens? on \S+:(\d+)", line):
            ports[found[1]] = int(found[2])
        if len(ports) == len(COMMANDS):
            return ports
    sys.exit(f"walk: the server ended with exit code {server.wait()}")


def _record(server: subprocess.Popen[str], port: int, exchange: Exchange, walk: Path) -> list[str]:
    def parts() -> list[str]:
        return walk.read_text().split("-\n") if walk.exists() else [""]

    before = len(parts())
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(WARM_UP):
            exchange(connection)
        server.send_signal(signal.SIGUSR1)
        wait_for(lambda: len(parts()) == before + 1, "recorder")
        exchange(connection)
        wait_for(lambda: len(parts()) == before + 2, "end of the recording")
    return parts()[before].split()


def walk_of_replay(folder: Path) -> list[str]:
    log, walk, site = folder / "log", folder / "walk", folder / "site"
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        f"import walk\nwalk.Recorder(os.environ[{WALK_FILE!r}], whole=True).install()\n"
    )
    journeyman_command = [sys.executable, "-m", "journeyman"]
    generate = [*journeyman_command, "generate", "ztick", "--records", "2000", str(log)]
    subprocess.run(generate, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    subprocess.run(
        [*journeyman_command, "pipeline", "replay", str(log), "--output", str(folder / "out")],
        env={**os.environ, WALK_FILE: str(walk), "PYTHONPATH": path},
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return walk.read_text().split()


def _walks(names: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    with tempfile.TemporaryDirectory() as folder:
        if not {*COMMANDS, "start"}.isdisjoint(names):
            yield from walks_of(names, Path(folder)).items()
        if "start" in names:
            yield "start", walk_of_start(Path(folder))
        if "replay" in names:
            yield "replay", walk_of_replay(Path(folder) / "replay")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("walks", nargs="*", metavar="WALK", help="set, add, put, start or replay")
    parser.add_argument("--modules", action="store_true", help="also list the modules in order")
    options = parser.parse_args()
    walks = options.walks or [*COMMANDS, "start", "replay"]
    if unknown := set(walks) - {*COMMANDS, "start", "replay"}:
        parser.error(f"unknown walk: {', '.join(sorted(unknown))}")
    print("walk     modules  changes")
    for name, steps in _walks(walks):
        print(f"{name:8} {len(set(steps)):7} {len(steps):8}")
        if options.modules:
            print(*(f"    {step}" for step in dict.fromkeys(steps)), sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve_under_the_recorder(sys.argv[2:])
    else:
        main()
