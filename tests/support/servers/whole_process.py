"""A real `journeyman serve` with all its services and a ledger; also below strace."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from tests.support.servers.schedule_process import ScheduleProcess

_PORTS = {
    "work": re.compile(r"the work queue listens on [^\s\"]+?:(\d+)"),
    "fan-out": re.compile(r"the fan-out queues listen on [^\s\"]+?:(\d+)"),
}
_PROCESS = re.compile(r"process=(\d+)")


class WholeProcess(ScheduleProcess):
    """Its files are below ``directory / "data"``. ``ports``: by "schedule", "work", "fan-out",
    and "http" if it is on.

    ``prefix``: the command that runs the server, such as strace.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.data = directory / "data"
        own: dict[str, object] = {
            "data.directory": self.data,
            "database.logfile_path": self.data / "schedule.log",
            "workq.enabled": "true",
            "workq.listen": "127.0.0.1:0",
            "kestrel.enabled": "true",
            "kestrel.listen": "127.0.0.1:0",
        }
        super().__init__(directory, settings={**own, **(settings or {})})
        self._prefix = list(prefix)
        self.ports: dict[str, int] = {}

    def start(self, *, wait: bool = True) -> Self:
        super().start(wait=wait)
        if wait:
            found = {name: int(self.wait_for_line(line)[1]) for name, line in _PORTS.items()}
            http = {"http": self.http_port} if self.http_port else {}
            self.ports = {"schedule": self.port, **found, **http}
        return self

    def _start(self, words: list[str]) -> subprocess.Popen[str]:
        if not self._prefix:
            return super()._start(words)
        return subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "journeyman", *words],
            cwd=self.directory,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill(self) -> None:
        """The server itself: what traces it ends then."""
        if self._prefix:
            os.kill(int(self.wait_for_line(_PROCESS)[1]), signal.SIGKILL)
            self.wait()
        else:
            super().kill()
