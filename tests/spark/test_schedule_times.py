"""The times of a schedule's log on Spark, by the marks in its ledger: as of, column and history."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from journeyman.disk import RealDisk
from journeyman.errors import UsageError
from journeyman.formats.ztick import CODEC, JobSet, Status
from journeyman.spark import attempts, read, states
from journeyman.testing import ManualClock
from tests.support.cli_commands import run
from tests.support.marked_schedule import MarkedSchedule


class Schedule(NamedTuple):
    path: str
    planned_ns: int
    compacted_ns: int
    set_ns: int
    ended_ns: int


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> Schedule:
    """``a`` is compacted, ``b`` comes after it and ends without a run."""
    root = tmp_path_factory.mktemp("schedule")
    server = MarkedSchedule(RealDisk(), ManualClock(), f"{root}/data")
    planned = server.batch("a", "b")
    compacted = server.compact()
    set_ = server.batch("b", "c")
    ended = server.batch("b", status=Status.EXECUTED)
    server.stop()
    return Schedule(f"{root}/data/schedule.log", planned, compacted, set_, ended)


def test_the_column_time_is_that_of_the_mark(spark, schedule: Schedule):
    rows = read(spark, "ztick", schedule.path, splitBytes=60).orderBy("_position").collect()
    found = [(row["key"], row["status"], int(row["time"].timestamp())) for row in rows]
    second = 10**9
    assert found == [
        ("a", "planned", schedule.compacted_ns // second),
        ("b", "planned", schedule.compacted_ns // second),
        ("b", "planned", schedule.set_ns // second),
        ("c", "planned", schedule.set_ns // second),
        ("b", "executed", schedule.ended_ns // second),
    ]


@pytest.mark.parametrize("moment", ["planned_ns", "compacted_ns", "set_ns", "ended_ns"])
def test_the_state_as_of_a_time_is_what_dump_shows(spark, schedule: Schedule, moment: str):
    as_of = getattr(schedule, moment)
    jobs = states(spark, "ztick", schedule.path, asOf=str(as_of))["jobs"].collect()
    found = {f"SET {row['identifier']} 0 {row['status']}" for row in jobs}
    dumped = run("dump", "--compact", "--as-of", as_of, schedule.path)
    assert found == set(dumped.stdout.splitlines())
    assert bool(found) == (moment != "planned_ns")


def test_records_between_two_times(spark, schedule: Schedule):
    options = {"startTime": str(schedule.set_ns), "endTime": str(schedule.ended_ns)}
    rows = read(spark, "ztick", schedule.path, **options).collect()
    assert sorted(row["key"] for row in rows) == ["b", "c"]


def test_history_says_when_a_job_was_planned_and_when_it_ended(spark, schedule: Schedule):
    rows = {row["key"]: row for row in attempts(spark, "ztick", schedule.path).collect()}
    assert {key: row["created_ns"] for key, row in rows.items()} == {
        "a": None,  # compacted: known only as of its compaction
        "b": schedule.set_ns,
        "c": schedule.set_ns,
    }
    assert {key: row["ended_ns"] for key, row in rows.items()} == {
        "a": None,
        "b": schedule.ended_ns,
        "c": None,
    }


def test_without_a_ledger_there_is_no_time(spark, tmp_path: Path):
    path = tmp_path / "schedule.log"
    path.write_bytes(CODEC.encode(JobSet("a", 0, Status.PLANNED)))
    (row,) = read(spark, "ztick", str(path)).collect()
    assert row["time"] is None
    with pytest.raises(Exception, match="no ledger with times"):
        read(spark, "ztick", str(path), asOf="2026-01-01").collect()
    with pytest.raises(UsageError, match="option ledger is for ztick"):
        read(spark, "workq", str(path), ledger="x")
