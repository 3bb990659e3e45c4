"""Backups of a server under load: what was acknowledged before one is in it, in order, and whole.

Segments rotate, logs are compacted and cleaned all the while, so files come, go and are replaced.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from journeyman.backup import Memory, open_vault, restore, restore_at, take
from journeyman.backup.restoring import MARKS_NS
from journeyman.client import KestrelClient, Schedule, WorkQueue
from journeyman.clock import SystemClock
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


@contextmanager
def under_load(directory: Path, data: Path, settings: dict[str, Any]) -> Iterator[dict[str, Load]]:
    """A server with all services and a load on each; it is killed at the end."""
    with (
        Server(directory, data, settings) as server,
        Schedule(port=server.port_of("schedule")) as schedule,
        WorkQueue(port=server.port_of("work queue")) as work,
        KestrelClient(port=server.port_of("fan-out queues")) as queues,
    ):

        def add(number: int) -> None:
            work.add("work", b"%d" % number)
            work.add("brief", b"", ttl_ms=20)  # gives cleaning something to do

        loads = {
            "schedule": Load(lambda n: schedule.set(f"job.{n}", FAR_NS + n)),
            "work": Load(add),
            "items": Load(lambda n: queues.put("orders", b"%d" % n)),
        }
        for load in loads.values():
            load.start()
        yield loads
        for load in loads.values():
            load.stopping.set()
            load.join(PATIENCE_S)
            assert load.error is None
        server.kill()


def test_what_was_acknowledged_before_a_backup_is_in_it(tmp_path):
    vault, data = open_vault(str(tmp_path / "vault")), tmp_path / "data"
    taken = []
    with under_load(tmp_path, data, RESTLESS) as loads:
        for _ in range(BACKUPS):
            wait_for_more(loads)
            before = {name: load.acknowledged for name, load in loads.items()}
            manifest = take(str(data), vault, SystemClock()).manifest
            after = {name: load.sent for name, load in loads.items()}
            taken.append((manifest, before, after))
    for number, (manifest, before, after) in enumerate(taken):
        target = tmp_path / f"restored{number}"
        restore(vault, str(target), at_ns=manifest.taken_ns)
        for name, found in found_in(tmp_path, target).items():
            assert found == list(range(len(found))), f"{name}: not a beginning of what was sent"
            assert before[name] <= len(found) <= after[name], name


def test_any_moment_between_two_backups_can_be_restored(tmp_path):
    """Logs only grow here; a compaction in between is in tests/unit/test_backup_moments.py."""
    vault, data = open_vault(f"memory://{tmp_path.name}"), tmp_path / "data"
    memory = Memory()
    with under_load(tmp_path, data, CALM) as loads:
        wait_for_more(loads)
        take(str(data), vault, SystemClock(), memory=memory)
        wait_for_more(loads)
        before = {name: load.acknowledged for name, load in loads.items()}
        moment_ns = time.time_ns()
        after = {name: load.sent for name, load in loads.items()}
        wait_for_more(loads)
        time.sleep(max(0.0, (moment_ns + MARKS_NS - time.time_ns()) / 1e9))  # its marks are written
        later = take(str(data), vault, SystemClock(), memory=memory)
    assert later.new_bytes < later.manifest.size  # what the first one has was not stored again
    restored = restore_at(vault, str(tmp_path / "restored"), moment_ns)
    assert (restored.until_ns, restored.why_not) == (moment_ns, "")
    for name, found in found_in(tmp_path, tmp_path / "restored").items():
        assert found == list(range(len(found))), f"{name}: not a beginning of what was sent"
        assert before[name] <= len(found) <= after[name] + 1, name


def wait_for_more(loads: dict[str, Load]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    enough = {name: load.acknowledged + 100 for name, load in loads.items()}
    while any(load.acknowledged < enough[name] for name, load in loads.items()):
        assert time.monotonic() < deadline, {
            n: (each.sent, each.error) for n, each in loads.items()
        }
        time.sleep(0.01)


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
