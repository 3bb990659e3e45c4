"""Servers and workers forked off a process that has imported them: that is most of a start.

    worker of pytest --socket: words, directory, environment, files--> nursery
                                                                          | forks
                     <--number of the process--- in between, and ends ----+
                     - - waits for it, kills it - - - - - - - - - - - - - +--> the server, an orphan

A test run starts hundreds of servers. Each is a process of its own, with its own files, signals and
exit code, and runs ``python -m journeyman`` from its first line on; only the modules are there.
Orphans go to the next process above that asks for them: that is the worker as long as a start
takes, so the server is its child like any other. What cannot be forked, an environment for Python
or the linker of its own, or any server on another system than Linux, is started as usual.

Not for tests of what a start imports, costs or needs.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import resource
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
# What a command imports. Some of its processes import more; they still do so themselves.
_SERVER = ("journeyman.cli.serve", "journeyman.servers.process", "uvloop")
_HTTP = ("journeyman.servers.http.server", "journeyman.servers.http.v1.backend")
_WORKER = ("journeyman.cli.worker", "journeyman.tasks.worker.program", "uvloop")
LIMITS = [name for name in dir(resource) if name.startswith("RLIMIT_")]
_ONLY_AT_A_START = ("PYTHON", "LD_", "MALLOC_")
_PR_SET_CHILD_SUBREAPER = 36
_MESSAGE_BYTES = 1 << 20
_ADOPTION = threading.Lock()  # one start at a time


def start_journeyman(
    words: Sequence[str], directory: Path, environment: Mapping[str, str], patch: str = ""
) -> subprocess.Popen[str]:
    """``python -m journeyman WORDS``, after what ``patch`` does; its stderr is a pipe."""
    if sys.platform != "linux" or _is_for_a_start(environment):
        program = f"{patch}\nfrom journeyman import cli\ncli.main()"
        command = [sys.executable, *(["-c", program] if patch else ["-m", "journeyman"]), *words]
        return subprocess.Popen(
            command, cwd=directory, stderr=subprocess.PIPE, text=True, env=environment
        )
    return _nursery(_modules_of(words)).start(words, directory, environment, patch)


def _is_for_a_start(environment: Mapping[str, str]) -> bool:
    """Whether Python or the linker is asked for something that they look at only once."""
    return any(
        environment.get(name) != os.environ.get(name)
        for name in {*environment, *os.environ}
        if name.startswith(_ONLY_AT_A_START)
    )


def _modules_of(words: Sequence[str]) -> tuple[str, ...]:
    if words[0] == "worker":
        return _WORKER
    has_http = any(word.startswith("http.listen=") for word in words)
    return _SERVER + _HTTP if has_http else _SERVER


class Forked(subprocess.Popen[str]):
    """A process that was not started by Popen, but is a child of this one all the same."""

    def __init__(self, args: Sequence[str], pid: int, stderr: int) -> None:
        self.args = list(args)
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = self.stdout = None
        self.stderr = open(stderr)  # noqa: SIM115 - closed as Popen closes it
        # What Popen's own methods look at.
        self._child_created = True
        self._waitpid_lock = threading.Lock()
        self._communication_started = False
        self._input = None
        self._sigint_wait_secs = 0.25
        self.text_mode = True
        self.encoding = self.errors = None
        self.universal_newlines = True


class Nursery:
    """This side of it."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(number), *modules],
                cwd=ROOT,
                pass_fds=[number],
            )
        atexit.register(self.close)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()

    def start(
        self, words: Sequence[str], directory: Path, environment: Mapping[str, str], patch: str
    ) -> Forked:
        order = {
            "words": list(words),
            "patch": patch,
            "directory": str(directory),
            "environment": dict(environment),
            "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        }
        ours, theirs = os.pipe()
        try:
            with _adopting():
                message = json.dumps(order).encode(errors="surrogateescape")
                socket.send_fds(self._socket, [message], [0, 1, theirs])
                pid = int(self._socket.recv(100))
        finally:
            os.close(theirs)
        return Forked(words, pid, ours)


@contextmanager
def _adopting() -> Iterator[None]:
    """Orphans below this process become its children."""
    with _ADOPTION:
        _set_subreaper(1)
        try:
            yield
        finally:
            _set_subreaper(0)


def _set_subreaper(value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


@cache
def _nursery(modules: tuple[str, ...]) -> Nursery:
    return Nursery(modules)


# -- the nursery itself --


def main(number: int, modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a collection in a server need not touch what all of them share
    with socket.socket(fileno=number) as orders:
        order = _next_birth(orders)
    if order is not None:
        _become(order)


def _next_birth(orders: socket.socket) -> dict[str, Any] | None:
    """In each server: what it is to be. In the nursery: None, when nobody wants one any more."""
    while True:
        message, files, _, _ = socket.recv_fds(orders, _MESSAGE_BYTES, 3)
        if not message:
            return None
        ours, theirs = os.pipe()
        between = os.fork()
        if between:
            os.close(theirs)
            with open(ours, "rb") as pipe:
                number = pipe.read()
            os.waitpid(between, 0)  # from here on the server is the worker's
            for file in files:
                os.close(file)
            orders.send(number)
            continue
        os.close(ours)
        if server := os.fork():
            os.write(theirs, b"%d" % server)
            os._exit(0)
        os.close(theirs)
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        return dict(json.loads(message.decode(errors="surrogateescape")))


def _become(order: dict[str, Any]) -> None:
    os.chdir(order["directory"])
    os.environ.clear()
    os.environ.update(order["environment"])
    time.tzset()
    for name, limits in order["limits"].items():
        resource.setrlimit(getattr(resource, name), tuple(limits))
    sys.path[0] = order["directory"]
    sys.argv = ["journeyman", *order["words"]]
    exec(order["patch"], {})
    runpy.run_module("journeyman", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
