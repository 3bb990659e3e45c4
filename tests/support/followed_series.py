"""Figures over time made from a log, as the helper process makes them. Not a test itself."""

from __future__ import annotations

from pathlib import Path

from journeyman.disk import RealDisk
from journeyman.logs.workq.tail import NewRecords
from journeyman.servers.series.answers import Wanted
from journeyman.servers.series.files import SeriesFiles
from journeyman.servers.series.follower import AnyLane, runs_lane, work_lane
from journeyman.testing import ManualClock
from journeyman.units import NS_PER_S


def work_lane_of(log: str, directory: Path, now_s: float) -> AnyLane:
    """A lane that goes on from its place."""
    clock = ManualClock(round(now_s * NS_PER_S))
    lane = work_lane(
        SeriesFiles(RealDisk(), str(directory / "series")), NewRecords(RealDisk(), log), clock
    )
    assert lane.open() == ""
    return lane


def runs_lane_of(runs: str, directory: Path, now_s: float) -> AnyLane:
    clock = ManualClock(round(now_s * NS_PER_S))
    lane = runs_lane(SeriesFiles(RealDisk(), str(directory / "series")), RealDisk(), runs, clock)
    assert lane.open() == ""
    return lane


def followed(lane: AnyLane) -> AnyLane:
    """The same lane, once it has read all there is."""
    while lane.step():
        pass
    return lane


def wanted(of: str, from_s: float, to_s: float, step_s: int = 60, prefix: str = "") -> Wanted:
    kind, _, name = of.partition(":")
    return Wanted(kind, name, prefix, int(from_s), int(to_s), step_s)
