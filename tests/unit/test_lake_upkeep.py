"""A lake looked after without Spark: its tables listed, old days dropped; weeks compared."""

from __future__ import annotations

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from journeyman.columnar import read_table
from journeyman.formats import ledger
from journeyman.formats.timed_frame import Instant
from journeyman.spark.lakes import work
from journeyman.spark.lakes.delta import nullable_schema_of
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.lakes.storage import change_lake, open_lake
from journeyman.spark.lakes.upkeep import forget, retain
from tests.support.cli_commands import run
from tests.support.spark.local_work import session, spread_here
from tests.support.spark.written_logs import added, event, write_workq

OLD_DAY = "2020-01-31"


@pytest.fixture(autouse=True)
def no_java(monkeypatch):
    monkeypatch.setattr(work, "spread", spread_here)


def filled(path: str) -> None:
    """A day of long ago and today, in one table."""
    row = {
        "log": "l",
        "queue": "q",
        "reader": "r",
        "items_behind": 1,
        "bytes_behind": 2,
        "host": "a",
        "observed_at": datetime(2026, 11, 17, tzinfo=UTC),
    }
    with change_lake(path) as lake:
        for day in (date.fromisoformat(OLD_DAY), datetime.now(UTC).date()):
            rows = pa.Table.from_pylist(
                [{**row, "date": day}], nullable_schema_of("silver/readers")
            )
            lake.write("silver/readers", rows)
        lake.commit(complete=True)


def test_tables_are_listed_with_their_days(tmp_path):
    filled(str(tmp_path))
    lines = run("pipeline", "lake", "tables", "--lake", str(tmp_path)).stdout.splitlines()
    (line,) = (line for line in lines if "silver/readers" in line)
    assert line.split()[:3] == ["silver/readers", "2", "files"]
    assert f"{OLD_DAY} to " in line


def test_old_days_are_dropped_by_table(tmp_path):
    filled(str(tmp_path))
    command = ("pipeline", "lake", "retain", "silver/readers=30", "--lake", str(tmp_path))
    assert "1 row removed" in run(*command).stdout
    assert "0 rows removed" in run(*command).stdout
    (left,) = open_lake(str(tmp_path)).read_arrow("silver/readers")["date"].to_pylist()
    assert str(left) > OLD_DAY
    assert len(list((tmp_path / "silver" / "readers").glob("*.parquet"))) == 1


def test_a_day_of_gold_whose_rows_were_dropped_stays_as_it_was_counted(tmp_path):
    log, path = tmp_path / "workq", str(tmp_path / "lake")
    write_workq(log, [added(1, 0), event("start-attempt", 1, 1), event("complete", 1, 2)])
    ingest(session, path, {"workq": [str(log)]}, host="a")
    before = open_lake(path).read_arrow("gold/throughput_daily").to_pylist()
    with change_lake(path) as lake:
        assert retain(lake, {"silver/attempts": 30}) == 1
    write_workq(
        log,
        [added(1, 0), event("start-attempt", 1, 1), event("complete", 1, 2)],
        [added(2, 3)],
    )
    ingest(session, path, {"workq": [str(log)]}, host="a")
    assert open_lake(path).read_arrow("gold/throughput_daily").to_pylist() == before != []


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
    now = Instant(1)
    records: list[ledger.Record] = [
        ledger.JobOptionsSet(now, "victim", {"payload": "c2VjcmV0"}),
        ledger.JobOptionsSet(now, "other", {"payload": "b3RoZXI="}),
        ledger.QueuePaused(now, "victim"),
    ]
    data = ledger.HEADER + b"".join(map(ledger.CODEC.encode, records))
    (tmp_path / "000000001.ledger").write_bytes(data)
    path = str(tmp_path / "lake")
    ingest(session, path, {"ledger": [str(tmp_path)]}, host="a")
    with change_lake(path) as lake:
        assert forget(session, lake, ["victim"]) == 1
    left = read_table(str(tmp_path / "lake" / "bronze" / "ledger"))
    assert set(zip(left["kind"].to_pylist(), left["key"].to_pylist(), strict=True)) == {
        ("job-options-set", "other"),
        ("queue-paused", "victim"),
    }
