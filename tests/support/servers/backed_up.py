"""A server whose data is backed up under load, and what a restored directory has."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from journeyman.client import KestrelClient, Schedule, WorkQueue
from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000
PATIENCE_S = 60.0
BACKUPS = 3
PORTS = re.compile(r"(schedule|work queue|fan-out queues) listens? on [^\s]+:(\d+)")
RESTLESS = {
    "database.compression_interval": 1,
    "workq.cmdlog_seg_size": 20_000,
    "workq.cmdlog_clean_int": 50,
    "kestrel.segment_bytes": 20_000,
}

CALM = {"database.compression_interval": 0, "workq.cmdlog_clean_int": 0}


class Server(ScheduleProcess):
    """All services on one data directory."""

    def __init__(self, directory: Path, data: Path, settings: dict[str, Any]) -> None:
        super().__init__(directory)
        self._settings = {
            **{f"{name}.listen": "127.0.0.1:0" for name in ("controller", "workq", "kestrel")},
            "http.listen": "127.0.0.1:0",
            "data.directory": str(data),
            **{name: str(value) for name, value in settings.items()},
        }

    def port_of(self, service: str) -> int:
        found = (PORTS.search(line) for line in self.lines)
        return next(int(match[2]) for match in found if match and match[1] == service)


class Load(threading.Thread):
    """Numbers from 0, one after the other: sent, then acknowledged."""

    def __init__(self, send: Callable[[int], object]) -> None:
        super().__init__(daemon=True)
        self._send = send
        self.sent = self.acknowledged = 0
        self.stopping = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.sent += 1
                self._send(self.sent - 1)
                self.acknowledged += 1
        except BaseException as error:  # noqa: BLE001 - the main thread reports it
            self.error = error


def found_in(where: Path, data: Path) -> dict[str, list[int]]:
    """What a server on a restored directory has."""
    with Server(where, data, {}) as server:
        assert not [line for line in server.lines if "quarantine" in line or " ERROR " in line]
        with (
            Schedule(port=server.port_of("schedule")) as schedule,
            WorkQueue(port=server.port_of("work queue")) as work,
            KestrelClient(port=server.port_of("fan-out queues")) as queues,
        ):
            planned = sorted(
                int(job.identifier.removeprefix("job.")) for job in schedule.query("job.")
            )
            leased = iter(lambda: work.lease_many("work", wait_ms=1, max_jobs=100), [])
            numbers = sorted(int(job.payload) for jobs in leased for job in jobs)
            items = [int(item) for item in iter(lambda: queues.get("orders"), None)]
        assert server.stop() == 0
    return {"schedule": planned, "work": numbers, "items": items}
