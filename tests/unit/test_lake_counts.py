"""Figures of a report of a lake: percentiles of which few lengths are kept, and fan-out queues."""

from __future__ import annotations

from collections import Counter
from datetime import date
from random import Random
from typing import Any, cast

import numpy as np
import pyarrow as pa
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
from journeyman.spark.lake.columns import shaped
from journeyman.spark.lake.ingest import _one_round, refresh
from journeyman.spark.lake.small_files import store_readers
from journeyman.spark.lake.storage import Lake, change_lake, open_lake
from journeyman.spark.lake.upkeep import retain
from journeyman.spark.report import report_of_lake
from journeyman.spark.report.lake_counts import _KEPT_LENGTHS, _counted, _Ranks
from journeyman.spark.report.page import Bars, Table

SHARES = (0.5, 0.9, 0.99, 0.999)


def ranks_of_parts(parts: list[np.ndarray]) -> _Ranks:
    """Each part counted by a task of its own, which hands back a table."""
    merged = _Ranks()
    for part in parts:
        task = _Ranks()
        for piece in np.array_split(part, 3):
            task.add("workq", "wait all", piece)
        merged.merge("workq", task.table("workq"))
    return merged


def test_percentiles_of_few_lengths_are_exact():
    values = np.random.default_rng(1).integers(0, 10**12, 1001)
    found = ranks_of_parts([values[:400], values[400:]]).of("workq", "wait all")
    for share in SHARES:
        assert found.at(share) == np.sort(values)[int(np.ceil(share * len(values))) - 1]
    assert ranks_of_parts([]).of("workq", "wait all").at(0.5) is None


@pytest.mark.parametrize("spread", [1, 10**9])
def test_percentiles_of_many_lengths_are_off_by_few_ranks(spread):
    chance = np.random.default_rng(2)
    parts = [chance.exponential(spread, 60_000).astype(np.int64) + at for at in range(4)]
    found = ranks_of_parts(parts).of("workq", "wait all")
    every = np.sort(np.concatenate(parts))
    for share in SHARES:
        value = found.at(share)
        assert value is not None
        assert value in every
        least = np.searchsorted(every, value, "left") / len(every)
        most = np.searchsorted(every, value, "right") / len(every)
        assert least - 3 / _KEPT_LENGTHS <= share <= most + 3 / _KEPT_LENGTHS


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_lake_without_starts_has_a_report(tmp_path, jobs):
    row = {
        "dialect": "workq",
        "log": "/log",
        "key": "k",
        "queue": "mail",
        "outcome": "waiting",
        "life": 1,
        "attempt": 1,
        "first": True,
        "created_ns": 5,
        "ready_ns": 5,
        "date": date(1970, 1, 1),
        "host": "a",
    }
    with change_lake(str(tmp_path / "lake")) as lake:
        rows = shaped({name: pa.array([value]) for name, value in row.items()}, "silver/attempts")
        lake.commit([lake.stage_arrow(rows.slice(0, jobs), "silver/attempts")], {})
    no_spark: Any = None  # of so few rows it takes none
    report = report_of_lake(no_spark, open_lake(lake.path), made_ns=10, title="t")
    assert [each.title for each in report.sections] == [
        *("Week on week", *["Work queue"] * jobs, "Damage"),
    ]
    assert report.verdict == "No failures."


def test_the_fan_out_figures_are_those_of_a_plain_count(tmp_path):
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
    report = report_of_lake(no_spark, open_lake(lake.path), made_ns=10**17, title="t")
    section = next(each for each in report.sections if each.title == "Fan-out queues")

    behind = {
        (queue, name): [i for i in put[queue] if i.item_id > r.head and i.item_id not in r.done]
        for queue, each in readers.items()
        for name, r in each.items()
    }
    lag = {f"{queue} · {name}": [float(len(items))] for (queue, name), items in behind.items()}
    waiting = {
        queue: max(len(items) for (other, _), items in behind.items() if other == queue)
        for queue in put
    }
    every = sum(map(len, put.values()))
    # What is finished out of turn counts as waiting until every head is past it.
    lowest = {queue: min(r.head for r in each.values()) for queue, each in readers.items()}
    above = sum(i.item_id > lowest[queue] for queue, items in put.items() for i in items)
    assert {tile.name: tile.value for tile in section.tiles} == {
        "Items put": str(every),
        "Stored": str(every),
        "Waiting": str(above),
        "Lag": str(sum(map(len, behind.values()))),
    }
    parts = {part.title: part for part in section.parts}
    assert dict(cast(Bars, parts["Reader lag"]).rows) == lag
    table = {row[0]: row[1:] for row in cast(Table, parts["Busiest queues"]).rows}
    assert table == {
        queue: [str(len(items)), str(len(items)), str(waiting[queue])]
        for queue, items in put.items()
    }
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


def test_moments_are_counted_from_the_earliest_to_the_latest_there_can_be():
    bucket_ns = 2**62
    times_ns = [-(2**63), -bucket_ns, 0, bucket_ns]
    moments = np.array([-(2**63) + 1, -1, 0, 5, 2**63 - 1])
    counted = _counted(moments, moments != 5, times_ns, bucket_ns, 2**63 - 1)
    assert counted.tolist() == [1, 1, 1, 1]
