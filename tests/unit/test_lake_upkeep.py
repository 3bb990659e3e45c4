"""A lake looked after without Spark: its tables listed, old days dropped; weeks compared."""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

import pytest

from journeyman.columnar import read_table
from journeyman.formats import ledger
from journeyman.formats.timed_frame import Instant
from journeyman.spark.lake import small_files
from journeyman.spark.lake.bronze import LakeSource, store_new
from journeyman.spark.lake.layout import TABLES
from journeyman.spark.lake.names import days_of
from journeyman.spark.lake.small_files import stage_rows
from journeyman.spark.lake.storage import Lake, change_lake, open_lake
from journeyman.spark.lake.upkeep import forget
from tests.support.cli_commands import run

OLD_DAY = "2020-01-31"


def filled(path: str) -> Lake:
    """A day of long ago and today, in one table."""
    with change_lake(path) as lake:
        row = {"log": "l", "queue": "q", "reader": "r", "items_behind": 1, "bytes_behind": 2}
        today = stage_rows(lake, "silver/readers", [row], "a")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(small_files, "_now", lambda: datetime.fromisoformat(OLD_DAY))
            old = stage_rows(lake, "silver/readers", [row], "a")
        lake.commit([today, old], {})
        return lake


def test_tables_are_listed_with_their_days(tmp_path):
    filled(str(tmp_path))
    (line,) = run("pipeline", "lake", "tables", "--lake", str(tmp_path)).stdout.splitlines()
    assert line.split()[:3] == ["silver/readers", "2", "files"]
    assert f"{OLD_DAY} to " in line


def test_old_days_are_dropped_by_table(tmp_path):
    filled(str(tmp_path))
    command = ("pipeline", "lake", "retain", "silver/readers=30", "--lake", str(tmp_path))
    assert "1 file removed" in run(*command).stdout
    assert "0 files removed" in run(*command).stdout
    (left,) = open_lake(str(tmp_path)).files("silver/readers")
    assert days_of(left)[0] > OLD_DAY


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("retain", "bronze/nothing=3"), "a lake has no table bronze/nothing"),
        (("retain", "bronze/workq"), "write TABLE=DAYS"),
        (("retain",), "say what"),
        (("forget",), "say what"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, arguments, said):
    filled(str(tmp_path))
    result = run("pipeline", "lake", *arguments, "--lake", str(tmp_path))
    assert result.exit_code != 0
    assert said in result.stderr


def test_what_a_ledger_says_of_a_job_is_forgotten_with_it(tmp_path):
    """Payloads of jobs that wait for others are in the ledger; a queue may be called as a job."""
    now, no_spark = Instant(1), cast(Any, None)
    records: list[ledger.Record] = [
        ledger.JobOptionsSet(now, "victim", {"payload": "c2VjcmV0"}),
        ledger.JobOptionsSet(now, "other", {"payload": "b3RoZXI="}),
        ledger.QueuePaused(now, "victim"),
    ]
    data = ledger.HEADER + b"".join(map(ledger.CODEC.encode, records))
    (tmp_path / "000000001.ledger").write_bytes(data)
    with change_lake(str(tmp_path / "lake")) as lake:
        store_new(no_spark, lake, [LakeSource("ledger", str(tmp_path), "a")])
        assert forget(no_spark, lake, ["victim"]) == 1
    left = read_table(str(tmp_path / "lake" / "bronze" / "ledger"))
    assert set(zip(left["kind"].to_pylist(), left["key"].to_pylist(), strict=True)) == {
        ("job-options-set", "other"),
        ("queue-paused", "victim"),
    }


def test_a_month_of_gold_goes_when_its_last_day_is_old():
    assert days_of("month=2026-02/host=a/1.parquet") == ("2026-02-01", "2026-02-28")
    assert TABLES["gold/latency_daily"].partitions == ("month", "host")
