"""Gold tables of fan-out queues, and of days whose rows were dropped."""

from __future__ import annotations

from collections import Counter
from datetime import date
from random import Random
from typing import Any, cast

import pytest

from journeyman.clock import SystemClock
from journeyman.columnar import read_table
from journeyman.disk import RealDisk
from journeyman.errors import UsageError
from journeyman.folds.kestrel import Reader
from journeyman.formats import kestrel, ztick
from journeyman.logs.kestrel.checkpoints import Checkpoints
from journeyman.logs.ztick.run_history import RunLine, encode_run
from journeyman.spark.lake.bronze import LakeSource, store_new
from journeyman.spark.lake.ingest import _one_round, refresh
from journeyman.spark.lake.small_files import store_readers
from journeyman.spark.lake.storage import Lake, change_lake
from journeyman.spark.lake.upkeep import retain


def test_items_of_each_hour_are_those_of_a_plain_count(tmp_path):
    """Items of two ingests, of which the second adds to hours that the first has counted."""
    chance = Random(7)
    directory, no_spark = tmp_path / "kestrel", cast(Any, None)
    directory.mkdir()
    put: dict[str, list[kestrel.ItemPut]] = {"mail": [], "audit": []}
    readers = {"mail": {"a": Reader(3, {5}), "b": Reader(9)}, "audit": {"c": Reader(0)}}
    source = LakeSource("kestrel", str(directory), "h")
    with change_lake(str(tmp_path / "lake")) as lake:
        for _ in range(2):
            for queue, items in put.items():
                for _ in range(chance.randrange(8, 20)):
                    size, time_ms = chance.randrange(90), chance.randrange(20_000_000)
                    item = kestrel.ItemPut(len(items) + 1, time_ms, None, 0, b"x" * size)
                    items.append(item)
                data = b"".join(map(kestrel.WRITER.encode, items))
                (directory / f"{queue}.100").write_bytes(kestrel.WRITER.header + data)
                for name, reader in readers[queue].items():
                    Checkpoints(RealDisk(), str(directory), queue).write(name, reader, 1)
            store_new(no_spark, lake, [source])
            refresh(no_spark, lake)
            store_readers(lake, source)
    hours = Counter((q, i.add_time_ms // 3_600_000) for q, items in put.items() for i in items)
    gold = read_table(f"{lake.path}/gold/throughput_hourly").to_pylist()
    assert {(r["queue"], int(r["hour"].timestamp()) // 3600): r["added"] for r in gold} == hours


def test_days_keep_their_items_though_their_hours_were_dropped(tmp_path):
    directory, no_spark = tmp_path / "kestrel", cast(Any, None)
    directory.mkdir()
    source = LakeSource("kestrel", str(directory), "h")
    items = [kestrel.ItemPut(number, number * 10**7, None, 0, b"") for number in range(1, 21)]
    with change_lake(str(tmp_path / "lake")) as lake:
        for some in (items[:13], items):  # the second begins on a day of the first
            data = b"".join(map(kestrel.WRITER.encode, some))
            (directory / "q.100").write_bytes(kestrel.WRITER.header + data)
            store_new(no_spark, lake, [source])
            refresh(no_spark, lake)
            retain(lake, {"gold/throughput_hourly": 1})
    gold = read_table(f"{lake.path}/gold/throughput_daily").to_pylist()
    days = Counter(item.add_time_ms // 86_400_000 for item in items)
    assert {(row["date"] - date(1970, 1, 1)).days: row["added"] for row in gold} == days


def test_gold_of_days_that_silver_dropped_stays_as_it_was_counted(tmp_path):
    """Late records of the schedule, runs and items; and a job that began before what is kept."""
    day_ns = 86_400 * 10**9
    today = SystemClock().now_ns() // day_ns
    old, kept = today - 60, today - 20
    log, runs, queue = tmp_path / "logfile", tmp_path / "logfile.runs", tmp_path / "kestrel"
    runs.mkdir()
    queue.mkdir()
    log.touch()
    (queue / "q.100").write_bytes(kestrel.WRITER.header)
    sources = [
        LakeSource("ztick", str(log), "h"),
        LakeSource("kestrel", str(queue), "h"),
    ]

    def happen(job: str, planned: int, started: int, ended: int, item: int) -> None:
        """On these days: a run that fails, and an item that is put when it was planned."""
        at = (planned * day_ns + 10**9, started * day_ns + 10**9, ended * day_ns + 10**9)
        with log.open("ab") as file:
            file.write(ztick.CODEC.encode(ztick.JobSet(job, at[0], ztick.Status.PLANNED)))
            file.write(ztick.CODEC.encode(ztick.JobSet(job, at[0], ztick.Status.FAILED)))
        with (runs / "1.jsonl").open("ab") as file:
            file.write(encode_run(RunLine(job, "r", "shell", *at, "failed", "exit status 3")))
        with (queue / "q.100").open("ab") as file:
            put = kestrel.ItemPut(item, at[0] // 10**6, None, 0, b"")
            file.write(kestrel.WRITER.encode(put))

    def counted(lake: Lake) -> dict[str, list[tuple[Any, ...]]]:
        _one_round(cast(Any, None), lake, sources, None)
        found = {}
        for table, names in {
            "throughput_daily": ("dialect", "added", "due", "started", "failed"),
            "latency_daily": ("started",),
            "failures_daily": ("failures",),
            "lateness_daily": ("runs",),
            "depth_hourly": ("ready", "running"),
        }.items():
            rows = read_table(f"{lake.path}/gold/{table}").to_pylist()
            day = ((row["date"] - date(1970, 1, 1)).days for row in rows)
            listed = zip(day, rows, strict=True)
            found[table] = sorted((at, *(row[name] for name in names)) for at, row in listed)
        return found

    with change_lake(str(tmp_path / "lake")) as lake:
        for number in range(3):
            happen(f"a{number}", old, old, old, number + 1)
        happen("b", old + 1, kept, kept, 4)
        before = counted(lake)
        assert before["failures_daily"] == [(old, 3), (kept, 1)]
        drop = {"silver/attempts": 30, "silver/runs": 30, "silver/items": 30}
        assert retain(lake, drop) == 4  # the days before `kept`, but b's attempt
        happen("late", old, old, old, 5)
        happen("c", kept, kept, kept, 6)
        after = counted(lake)
    assert after == {
        "throughput_daily": sorted(
            [
                (old, "kestrel", 4, 0, 0, 0),
                (old, "ztick", 0, 3, 3, 3),
                (old + 1, "kestrel", 1, 0, 0, 0),
                (old + 1, "ztick", 0, 1, 0, 0),
                (kept, "kestrel", 1, 0, 0, 0),
                (kept, "ztick", 0, 1, 2, 2),
            ]
        ),
        "latency_daily": [(old, 3), (kept, 2)],
        "failures_daily": [(old, 3), (kept, 2)],
        "lateness_daily": [(old, 3), (kept, 2)],
        "depth_hourly": before["depth_hourly"],
    }


def test_changes_of_depth_cannot_be_dropped(tmp_path):
    with (
        change_lake(str(tmp_path)) as lake,
        pytest.raises(UsageError, match="depth_hourly adds all of it up"),
    ):
        retain(lake, {"gold/depth_changes": 30})
