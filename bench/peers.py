"""The servers that are measured: ours and two of others, each on a free port of the loopback.

    journeyman   fsync_on_persist, the default: answered when durable, one sync for all that wait
    beanstalkd   -b DIR -f0: answered when durable, a sync for every put
    redis        appendfsync always: answered when durable, a sync for all that one turn has read

All data lies in one directory, so all pay for the same disk. A program that is not installed is
said in one line, and what depends on it is not measured.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["Peer", "beanstalkd", "file_system", "free_port", "journeyman", "redis", "version_of"]

START_LIMIT_S = 120.0
STOP_LIMIT_S = 30.0
POLL_S = 0.001
IN_MEMORY = ("tmpfs", "ramfs")
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


class Peer:
    """A server that runs for as long as the ``with`` does. Its output goes to ``<name>.out``."""

    def __init__(self, name: str, command: list[str], port: int, directory: Path) -> None:
        self.name = name
        self.port = port
        self.directory = directory
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int:
        assert self._process is not None
        return self._process.pid

    def begin(self) -> None:
        """Start it, and do not wait for it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / f"{self.name}.out").open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=self.directory, stdout=output, stderr=output
            )

    def start(self) -> float:
        """Start it; seconds until it accepts a connection."""
        begin = time.perf_counter()
        self.begin()
        while not self._accepts():
            assert self._process is not None
            if self._process.poll() is not None or time.perf_counter() - begin > START_LIMIT_S:
                said = (self.directory / f"{self.name}.out").read_text(errors="replace")
                raise SystemExit(f"{self.name} does not start: {said[-500:]}")
            time.sleep(POLL_S)
        return time.perf_counter() - begin

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def memory_bytes(self) -> tuple[int, int]:
        """Resident now, and at most since it started."""
        lines = Path(f"/proc/{self.process_id}/status").read_text().splitlines()
        fields = dict(line.split(":", 1) for line in lines)
        return _kib(fields["VmRSS"]), _kib(fields["VmHWM"])

    def cpu_seconds(self) -> float:
        """Processor time of its own, so far."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __enter__(self) -> Self:
        if self._process is None:
            self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _accepts(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
        except OSError:
            return False
        return True


def journeyman(directory: Path, settings: Mapping[str, object] | None = None) -> Peer:
    port = free_port()
    command = [sys.executable, "-m", "journeyman", "serve", "--listen", f"127.0.0.1:{port}"]
    command += ["--workq-listen", "off", "--kestrel-listen", "off", "--log", "logfile"]
    for name, value in (settings or {}).items():
        command += ["--set", f"{name}={value}"]
    return Peer("journeyman", command, port, directory)


def beanstalkd(directory: Path) -> Peer | None:
    """None, and a line that says so, if it is not installed."""
    program = _find("beanstalkd", "beanstalkd")
    if program is None:
        return None
    port = free_port()
    command = [program, "-l", "127.0.0.1", "-p", str(port), "-b", ".", "-f", "0"]
    return Peer("beanstalkd", command, port, directory)


def redis(directory: Path, appendfsync: str = "always") -> Peer | None:
    """None, and a line that says so, if it is not installed."""
    program = _find("redis-server", "redis-server")
    if program is None:
        return None
    port = free_port()
    settings = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": ".",
        "save": "",
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "auto-aof-rewrite-percentage": "0",
    }
    command = [program]
    for name, value in settings.items():
        command += [f"--{name}", value]
    return Peer("redis", command, port, directory)


def version_of(program: str, *options: str) -> str:
    path = shutil.which(program, path=SEARCH_PATH)
    if path is None:
        return "not installed"
    found = subprocess.run([path, *options], capture_output=True, text=True, check=False)
    return (found.stdout or found.stderr).strip()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def file_system(directory: Path) -> str:
    """The kind of file system; SystemExit if it is no disk, where a sync would cost nothing."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, this_kind, *_ = line.split()
        if directory.resolve().is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, this_kind
    if kind in IN_MEMORY:
        raise SystemExit(f"{directory} is in memory ({kind}); give --directory on a disk")
    return kind


def _find(program: str, package: str) -> str | None:
    path = shutil.which(program, path=SEARCH_PATH)
    if path is None:
        print(f"{program} is not installed (apt-get install {package}): not measured beside it")
    return path


def _kib(text: str) -> int:
    return int(text.split()[0]) * 1024
