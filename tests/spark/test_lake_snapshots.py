"""Readers of a lake see whole ingests, whatever is killed, written or removed meanwhile."""

from __future__ import annotations

import threading
from itertools import count
from pathlib import Path

import pytest

from journeyman.formats import workq
from journeyman.spark.lakes import upkeep, work
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.lakes.layout import SNAPSHOTS, TABLES
from journeyman.spark.lakes.storage import Lake, LakeSnapshot, change_lake, open_lake
from tests.support.effort import cases
from tests.support.spark.histories import busy_log
from tests.support.spark.local_work import Killed, kill_after, session, spread_here
from tests.support.spark.written_logs import added, event, write_workq

INGESTS = cases(10)
WHEN = {"_ingested_at", "found_at", "observed_at"}  # when the lake looked


@pytest.fixture(autouse=True)
def no_java(monkeypatch):
    monkeypatch.setattr(work, "spread", spread_here)


def rows_of(lake: Lake) -> dict[str, list[str]]:
    found = {}
    for table in TABLES:
        if table != SNAPSHOTS:
            names = [name for name in TABLES[table].schema.names if name not in WHEN]
            found[table] = sorted(map(repr, lake.read_arrow(table, columns=names).to_pylist()))
    return found


def job(number: int) -> list[workq.Record]:
    """Three records, one attempt."""
    begin = number * 3_600.0
    return [
        added(number, begin),
        event("start-attempt", number, begin + 1),
        event("complete", number, begin + 2),
    ]


def append(log: Path, records: list[workq.Record]) -> None:
    log.mkdir(exist_ok=True)
    path = log / "000000001.log"
    header = b"" if path.exists() else workq.HEADER
    with path.open("ab") as file:
        file.write(header + b"".join(map(workq.CODEC.encode, records)))


def test_an_ingest_killed_after_any_commit_is_made_good_by_the_next(tmp_path):
    records = busy_log(4, jobs=6)
    logs = {"workq": [write_workq(tmp_path / "workq", records)]}
    ingest(session, str(tmp_path / "whole"), logs, host="a")
    expected = rows_of(open_lake(str(tmp_path / "whole")))
    for steps in count(1):
        lake = str(tmp_path / f"killed-{steps}")
        with pytest.MonkeyPatch.context() as patch:
            kill_after(patch, steps)
            try:
                ingest(session, lake, logs, host="a")
            except Killed:
                pass
            else:
                break
        ingest(session, lake, logs, host="a")
        assert rows_of(open_lake(lake)) == expected, steps
    assert steps > len([table for table, rows in expected.items() if rows])


def test_a_reader_never_sees_half_of_an_ingest(tmp_path):
    """It opens the lake again and again while jobs come one by one and old files are removed."""
    log, lake = tmp_path / "workq", str(tmp_path / "lake")
    append(log, job(0))
    ingest(session, lake, {"workq": [str(log)]}, host="a")
    seen: list[tuple[int, ...]] = []
    has_ended = threading.Event()

    def look() -> None:
        is_last = False
        while not is_last:
            is_last = has_ended.is_set()
            opened = open_lake(lake)
            records = opened.read_arrow("bronze/workq", columns=["key"]).num_rows
            jobs = opened.read_arrow("silver/jobs", columns=["key"]).num_rows
            hours = opened.read_arrow("gold/throughput_hourly", columns=["completed"])
            days = opened.read_arrow("gold/throughput_daily", columns=["added"])
            counted = [table.column(0).to_numpy().sum() for table in (hours, days)]
            seen.append((records, jobs, *counted))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(1, INGESTS + 1):
            append(log, job(number))
            ingest(session, lake, {"workq": [str(log)]}, host="a")
            if number % 7 == 0:
                with change_lake(lake) as opened:
                    upkeep.vacuum(opened, 1)
    finally:
        has_ended.set()
        reader.join()
    assert [each for each in seen if each != (3 * each[1], each[1], each[1], each[1])] == []
    jobs = [each[1] for each in seen]
    assert jobs == sorted(jobs)
    assert jobs[-1] == INGESTS + 1
    assert len(set(jobs)) > 1


def test_vacuum_keeps_what_retained_snapshots_need(tmp_path):
    log, lake = tmp_path / "workq", str(tmp_path / "lake")
    then = {}
    for number in range(3):
        append(log, job(number))
        ingest(session, lake, {"workq": [str(log)]}, host="a")
        opened = open_lake(lake)
        then[opened.snapshot.number] = rows_of(opened)
    with change_lake(lake) as changed:
        upkeep.optimize(session, changed, hours=24)
    for row in open_lake(lake).read_arrow(SNAPSHOTS).to_pylist():
        if row["number"] in then:
            old = LakeSnapshot(row["number"], versions=dict(row["versions"]))
            assert rows_of(Lake(lake, old, old)) == then.pop(row["number"])
    assert then == {}
    files = sum(1 for _ in Path(lake).rglob("*.parquet"))
    with change_lake(lake) as changed:
        upkeep.vacuum(changed, 0)
    assert sum(1 for _ in Path(lake).rglob("*.parquet")) < files
    assert open_lake(lake).read_arrow("silver/jobs").num_rows == 3
