"""What a server says and counts when it keeps a log for a lake, and when it lets go."""

from __future__ import annotations

from typing import Any

from journeyman.config.settings import LakeSettings
from journeyman.formats.ztick import JobSet, Status
from journeyman.logs.holders import register
from journeyman.logs.ztick.log import ZtickLog
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.process import LogHolders
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk

PATH = "/data/schedule.log"


def figures(holders: LogHolders) -> dict[str, list[Any]]:
    return {family.name: [point.value for point in family.points] for family in holders.families()}


def test_what_is_kept_is_a_figure_and_what_is_let_go_a_message():
    said: list[str] = []
    disk, clock = SimulatedDisk(), ManualClock()
    messages = ServerLog(clock, said.append)
    for hold_bytes in (10**6, 10):
        holders = LogHolders(LakeSettings(hold_bytes), disk, clock, messages)
        with ZtickLog.open(disk, clock, PATH, holders=holders.of_logs) as log:
            register(disk, "/data", "me", "lake /lake", clock.now_ns(), {})
            log.append([JobSet("a", 1, Status.PLANNED)])
            done = log.compact()
        if hold_bytes > 10:
            assert done is None
            assert figures(holders)["lake.held_bytes"][0] > 0
            assert said == []
    assert done is not None
    assert figures(holders) == {"lake.held_bytes": [0], "lake.let_go": [2]}
    assert "lake /lake had not read all that was dropped" in said[0]
    assert "raise lake.hold_bytes" in said[0]
    assert "schedule.log.to_compress" in said[0]
