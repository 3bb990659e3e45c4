"""A real `journeyman serve` with all its services, whose data directory is in PostgreSQL.

Not a test itself. Its ports are known before it opens them, because it may stand by for a while.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tests.support.ports import free_port
from tests.support.servers.fanout_process import FanOutClient
from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import LineClient
from tests.support.servers.whole_process import WholeProcess
from tests.support.servers.workq_process import WorkqClient

LIMIT_S = 60.0
STANDS_BY = "standing by: another server has the data directory"


class DatabaseProcess(WholeProcess):
    """``ports`` are known before it is started."""

    def __init__(
        self, directory: Path, address: str, settings: Mapping[str, object] | None = None
    ) -> None:
        directory.mkdir(exist_ok=True)
        names = {"schedule": "controller", "work": "workq", "fan-out": "kestrel", "http": "http"}
        own: dict[str, object] = {
            "data.directory": address,
            "database.logfile_path": f"{address}/schedule.log",
        }
        ports = {name: free_port() for name in names}
        own |= {f"{names[name]}.listen": f"127.0.0.1:{port}" for name, port in ports.items()}
        super().__init__(directory, settings={**own, **(settings or {})})
        self.ports = ports
        self.port, self.http_port = ports["schedule"], ports["http"]

    def schedule(self) -> LineClient:
        return LineClient(self.ports["schedule"])

    def work(self) -> WorkqClient:
        return WorkqClient(self.ports["work"])

    def fan_out(self) -> FanOutClient:
        return FanOutClient(self.ports["fan-out"])

    def stand_by(self) -> None:
        """Start it while another server is active."""
        self.lines.clear()
        self.start(wait=False)
        self.wait_for_line(STANDS_BY)

    def wait_for_answer(self, limit_s: float = LIMIT_S) -> float:
        """Until all services answer; how long that took."""
        begin = time.monotonic()
        while True:
            try:
                with self.schedule() as schedule, self.work() as work, self.fan_out() as fan_out:
                    assert schedule.ask("r GET none").startswith("r ")
                    assert work.ask("inspect server").startswith("+OK")
                    assert fan_out.ask("version").startswith("VERSION")
                    return time.monotonic() - begin
            except (OSError, AssertionError):
                assert time.monotonic() - begin < limit_s, self.lines[-20:]
                time.sleep(0.01)

    def readiness(self) -> tuple[int, str]:
        """Status and code of /v1/ready; HTTP opens a moment after the other services."""
        try:
            status, found = ask(self, "GET", "/v1/ready")
        except ConnectionRefusedError:
            return 0, "closed"
        if isinstance(found, str):  # a problem has a media type of its own
            found = json.loads(found)
        return status, found.get("code", "")

    def is_closed(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=LIMIT_S).close()
        except ConnectionRefusedError:
            return True
        return False
