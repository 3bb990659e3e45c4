"""Backups of a server under load: what was acknowledged before one is in it, in order, and whole.

Segments rotate, logs are compacted and cleaned all the while, so files come, go and are replaced.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from journeyman.backup import Memory, open_vault, restore, restore_at, take
from journeyman.backup.restoring import MARKS_NS
from journeyman.client import KestrelClient, Schedule, WorkQueue
from journeyman.clock import SystemClock
from tests.support.servers.backed_up import (
    BACKUPS,
    CALM,
    FAR_NS,
    PATIENCE_S,
    RESTLESS,
    Load,
    Server,
    found_in,
)


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
