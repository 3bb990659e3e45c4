"""A real `journeyman serve` in a directory of its own, and a client that speaks lines.

Not a test itself. The server listens on a port that the system chooses and tells it on stderr.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers.nursery import start_journeyman

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0

ALL_SERVICES = {
    "http.listen": "127.0.0.1:0",
    "workq.enabled": "true",
    "workq.listen": "127.0.0.1:0",
    "workq.cmdlog_path": "cmdlog",
    "kestrel.enabled": "true",
    "kestrel.listen": "127.0.0.1:0",
    "kestrel.queue_path": "queues",
    "ledger.path": "ledger",
}
_LISTENS = re.compile(r"the schedule listens on [^\s\"]+?:(\d+)")
_HTTP = re.compile(r"HTTP listens on [^\s\"]+?:(\d+)")


class ScheduleProcess:
    """``with ScheduleProcess(tmp_path, database__framerate=100) as server: ...``"""

    def __init__(
        self,
        directory: Path,
        *,
        config: str = "",
        program: str = "",
        patch: str = "",
        settings: Mapping[str, object] | None = None,
        **more_settings: object,
    ) -> None:
        """What is changed in the server: ``program`` is Python that does so, then does as
        `-m journeyman` does; ``patch`` does so in a server that has imported everything."""
        self.directory = directory
        self._program = program
        self._patch = patch
        self.lines: list[str] = []
        self.port = 0
        self.http_port = 0
        own = {
            "controller.listen": "127.0.0.1:0",
            "schedule.retention": "0",  # tests plan jobs for 1970; see test_retention.py
            "http.enabled": "false",
            "limits.auth_timeout_ms": "60000",  # a test may be slow to say its token
            "workq.enabled": "false",
            "kestrel.enabled": "false",
        }
        if "logfile_path" not in config:
            own["database.logfile_path"] = "logfile"
        self._settings = own | {
            name.replace("__", "."): str(value)
            for name, value in {**(settings or {}), **more_settings}.items()
        }
        if "http.listen" in self._settings:
            del self._settings["http.enabled"]
        self._config = config
        self._heard = threading.Condition()
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    def named_ports(self, *sections: str) -> list[int]:
        """Those that the settings name; not 0."""
        return [int(self._settings[f"{each}.listen"].rpartition(":")[2]) for each in sections]

    def start(self, *, wait: bool = True) -> Self:
        words = ["serve"]
        if self._config:
            (self.directory / "server.toml").write_text(self._config)
            words += ["-c", "server.toml"]
        for name, value in self._settings.items():
            words += ["--set", f"{name}={value}"]
        self._process = self._start(words)
        self._listener = threading.Thread(target=self._listen_to_stderr, daemon=True)
        self._listener.start()
        if wait:
            self.port = int(self.wait_for_line(_LISTENS)[1])
            if "http.listen" in self._settings:
                self.http_port = int(self.wait_for_line(_HTTP)[1])
        return self

    def _start(self, words: list[str]) -> subprocess.Popen[str]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JOURNEYMAN_")}
        if not self._program:
            return start_journeyman(words, self.directory, environment, self._patch)
        return subprocess.Popen(
            [sys.executable, "-c", self._program, *words],
            cwd=self.directory,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def wait_for_line(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """The first line of stderr, past or to come, that matches."""
        deadline = time.monotonic() + START_TIMEOUT_S
        with self._heard:
            while True:
                is_last_look = not self._listener.is_alive()  # then all lines are there
                for line in self.lines:
                    if match := re.search(pattern, line):
                        return match
                left = deadline - time.monotonic()
                assert left > 0, f"no line {pattern!r} in {self.lines}"
                assert not is_last_look, self.lines
                self._heard.wait(min(left, 0.5))

    def stop(self, *, by: int = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        return self.wait()

    def wait(self) -> int:
        """Its exit code. All that it said is in ``lines``."""
        code = self.process.wait(STOP_TIMEOUT_S)
        self._listener.join(STOP_TIMEOUT_S)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def client(self, **options: object) -> LineClient:
        return LineClient(self.port, **options)  # type: ignore[arg-type]

    def ask(self, line: str) -> str:
        """One command on a connection of its own; its last line."""
        with self.client() as client:
            return client.ask(line)

    def stat(self) -> dict[str, str]:
        with self.client() as client:
            client.send("s STAT")
            rows = client.read_list("s")
        return dict(row.split(" ", 1) for row in rows)

    def wait_until(self, true: Callable[[], bool], what: str = "") -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while not true():
            assert time.monotonic() < deadline, f"never: {what}; {self.lines[-20:]}"
            time.sleep(0.01)

    def wait_for_text(self, name: str) -> str:
        """What a job wrote into a file, once there is a whole line."""
        path = self.directory / name
        self.wait_until(
            lambda: path.exists() and path.read_text().endswith("\n"), f"{name} written"
        )
        return path.read_text()

    def wait_for_status(self, job: str, status: str) -> None:
        with self.client() as client:
            self.wait_until(
                lambda: client.ask(f"w GET {job}").startswith(f"w OK {status} "), f"{job} {status}"
            )

    def __enter__(self) -> Self:
        return self.start() if self._process is None else self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self.wait()

    def _listen_to_stderr(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                with self._heard:
                    self.lines.append(line.rstrip("\n"))
                    self._heard.notify_all()


class LineClient:
    """A blocking client; every wait has an end."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None, secret: str = "") -> None:
        raw = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_TIMEOUT_S)
        self.socket = raw if tls is None else tls.wrap_socket(raw, server_hostname="localhost")
        self._buffer = b""
        if secret:
            assert self.ask(f"AUTH {secret}") == "OK"

    def send(self, *lines: str) -> None:
        self.socket.sendall("".join(line + "\n" for line in lines).encode())

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_line(self) -> str | None:
        """The next line without its end; None when the server has closed."""
        while b"\n" not in self._buffer:
            try:
                data = self.socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                assert not self._buffer, self._buffer
                return None
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="surrogateescape")

    def ask(self, line: str) -> str:
        self.send(line)
        answer = self.read_line()
        assert answer is not None, f"closed instead of an answer to {line!r}"
        return answer

    def read_list(self, request_id: str) -> list[str]:
        """The lines of a list without the request id, up to its OK."""
        rows = []
        while (line := self.read_line()) != f"{request_id} OK":
            assert line is not None, "closed in the middle of a list"
            assert line.startswith(request_id + " "), line
            rows.append(line[len(request_id) + 1 :])
        return rows

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def read_all(self) -> list[str]:
        """Every line until the server closes."""
        lines = []
        while (line := self.read_line()) is not None:
            lines.append(line)
        return lines

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
