"""One server for all the test workers of a session, started by the first and ended after the last.

    worker --- connection --+
    worker --- connection --+--> keeper (a process of its own) ---> the server's processes
    worker --- connection --+

A worker is one that holds a connection to the keeper; the operating system closes it however the
worker ends, kill -9 included. When the last one is closed the keeper stops the server, then closes
that connection, so whoever leaves last has waited for the end and nothing is left behind.

    keeper -> worker   one line of JSON: {"port": 40123} or {"error": "..."}, when that is known
    worker -> keeper   nothing; the end of its stream means goodbye
    keeper -> worker   the end of its stream: goodbye

Workers meet at a socket in the directory that pytest gives the session; a lock file there keeps
two of them from starting a keeper at the same time.
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.programs import find_program
from tests.support.servers.services import SERVICES, Service

LONELY_LIMIT_S = 60.0  # whoever started the keeper is gone
CONNECT_LIMIT_S = 60.0
POLL_S = 0.02
ROOT = Path(__file__).parents[3]


class Membership:
    """A worker's share in a running server."""

    def __init__(self, connection: socket.socket, port: int) -> None:
        self._connection = connection
        self.port = port

    def leave(self) -> None:
        """Give it back; if nobody else has a share, wait until the server is gone."""
        with self._connection:
            self._connection.shutdown(socket.SHUT_WR)
            while self._connection.recv(1024):
                pass


def join(name: str, meeting: Path) -> Membership:
    """A share in the server of that name, which is started if it does not run. MissingProgram."""
    find_program(SERVICES[name].program)
    while True:
        with _locked(meeting / f"{name}.lock"):
            connection = _connect(meeting, name) or _start(meeting, name)
        line = _read_line(connection)
        if line:
            break
        connection.close()  # that keeper was just leaving
    answer = json.loads(line)
    if "error" in answer:
        connection.close()
        raise RuntimeError(answer["error"])
    return Membership(connection, answer["port"])


def _read_line(connection: socket.socket) -> bytes:
    try:
        with connection.makefile("rb") as lines:
            return lines.readline()
    except ConnectionResetError:
        return b""


def _connect(meeting: Path, name: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(meeting / f"{name}.sock"))
    except OSError:
        connection.close()
        return None
    return connection


def _start(meeting: Path, name: str) -> socket.socket:
    log = meeting / f"{name}.keeper.log"
    with log.open("ab") as output:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.support.servers.keeper", name, str(meeting)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    keeper.returncode = 0  # it outlives us if others need it: nobody here waits for it
    deadline = time.monotonic() + CONNECT_LIMIT_S
    while time.monotonic() < deadline:
        connection = _connect(meeting, name)
        if connection is not None:
            return connection
        time.sleep(POLL_S)
    raise RuntimeError(f"the keeper of {name} does not answer: {log.read_text()[-2000:]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# -- the keeper's side ---------------------------------------------------------------------------


def keep(service: Service, meeting: Path) -> None:
    path = meeting / f"{service.name}.sock"
    path.unlink(missing_ok=True)
    # Open before the server is: workers that come meanwhile wait in the queue.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(100)
        try:
            service.start()
            greeting: dict[str, object] = {"port": service.port}
        except (RuntimeError, OSError) as error:
            greeting = {"error": str(error)}
        try:
            last = _serve(listener, json.dumps(greeting).encode() + b"\n")
        finally:
            path.unlink(missing_ok=True)
            service.stop()
        if last is not None:
            last.close()


def _serve(listener: socket.socket, greeting: bytes) -> socket.socket | None:
    """Until the last worker leaves; its connection, still open."""
    members: set[socket.socket] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        while True:
            ready = selector.select(None if members else LONELY_LIMIT_S)
            if not ready:
                return None
            # Those who come before those who leave, so that nobody is last by accident.
            for key, _ in sorted(ready, key=lambda each: each[0].fileobj is not listener):
                if key.fileobj is listener:
                    member, _ = listener.accept()
                    member.sendall(greeting)
                    members.add(member)
                    selector.register(member, selectors.EVENT_READ)
                    continue
                leaving = key.fileobj
                assert isinstance(leaving, socket.socket)
                selector.unregister(leaving)
                members.remove(leaving)
                if not members:
                    return leaving
                leaving.close()


if __name__ == "__main__":
    _name, _meeting = sys.argv[1], Path(sys.argv[2])
    keep(SERVICES[_name](_meeting / f"{_name}-{os.getpid()}"), _meeting)
