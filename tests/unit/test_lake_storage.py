"""Snapshots of a lake: killed after every commit, read while it changes, cleaned up. No Java."""

from __future__ import annotations

import os
import shutil
import threading
from datetime import UTC, date, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from journeyman.columnar import read_table
from journeyman.disk import RealDisk
from journeyman.errors import JourneymanError, UsageError
from journeyman.folds.kestrel import Reader
from journeyman.formats import kestrel, workq, ztick
from journeyman.logs.kestrel.checkpoints import Checkpoints
from journeyman.logs.ztick.run_history import RunLine, encode_run
from journeyman.spark.lakes import delta, upkeep, work
from journeyman.spark.lakes.bronze import LakeSource, _together
from journeyman.spark.lakes.frames import open_tables
from journeyman.spark.lakes.ingest import LogsLeftOut, ingest
from journeyman.spark.lakes.layout import SNAPSHOTS, TABLES
from journeyman.spark.lakes.small_files import store_readers, store_runs
from journeyman.spark.lakes.storage import Lake, change_lake, open_lake
from journeyman.spark.lakes.views import files_between
from journeyman.spark.source.pieces import LogPartition
from journeyman.spark.streams.offsets import Holes
from tests.support.effort import DEEP
from tests.support.report_counts import count_workq
from tests.support.spark.histories import busy_log
from tests.support.spark.local_work import session, spread_here
from tests.support.spark.written_logs import (
    planned,
    put,
    run,
    write_kestrel,
    write_workq,
    write_ztick,
)
from tests.support.workq_logs import added

TABLE = "silver/readers"
WHEN = {"_ingested_at", "found_at", "observed_at"}  # the lake looked: not the same in two lakes


class Killed(BaseException):
    """What a kill looks like from inside."""


@pytest.fixture(autouse=True)
def no_java(monkeypatch):
    monkeypatch.setattr(work, "spread", spread_here)


def readers(*heads: int) -> pa.Table:
    place: dict[str, object] = {
        "log": "l",
        "queue": "q",
        "reader": "r",
        "host": "a",
        "date": date(2026, 11, 17),
        "observed_at": datetime(2026, 11, 17, tzinfo=UTC),
    }
    rows = [{**place, "head": head, "items_behind": 0, "bytes_behind": 0} for head in heads]
    return pa.Table.from_pylist(rows, delta.nullable_schema_of(TABLE))


def heads(lake: Lake) -> list[int]:
    return sorted(int(str(head)) for head in lake.read_arrow(TABLE)["head"].to_pylist())


def replace(lake: Lake, *new: int) -> None:
    lake.change(TABLE, (), lake.files(TABLE))
    lake.write(TABLE, readers(*new))
    lake.write("silver/damage", delta.nullable_schema_of("silver/damage").empty_table())


def kill_after(patch: pytest.MonkeyPatch, steps: int) -> list[int]:
    """Let so many commits of tables and snapshots happen, and no more; how many did."""
    made: list[int] = []
    real_commit, real_append = delta.commit, Lake._append

    def step(do: Any, *args: Any) -> Any:
        found = do(*args)
        made.append(1)
        if len(made) == steps:
            raise Killed
        return found

    patch.setattr(delta, "commit", lambda *args: step(real_commit, *args))
    patch.setattr(Lake, "_append", lambda *args: step(real_append, *args))
    patch.setattr("journeyman.spark.lakes.storage.at_once", lambda do, each: list(map(do, each)))
    return made


def write_logs(directory: Path, share: float) -> dict[str, list[str]]:
    """Logs of all dialects, of which a share is written."""
    records = busy_log(7, jobs=20)
    jobs = [planned(f"r.{number % 5}", 3_600 * number) for number in range(20)]
    runs = [run(f"r.{number % 5}", 3_600 * number, 1, 2) for number in range(0, 20, 3)]
    items = [put(number, 7_000 * number) for number in range(1, 20)]

    def some(every: list[Any]) -> list[Any]:
        return every[: round(len(every) * share)]

    shutil.rmtree(directory / "ztick", ignore_errors=True)  # with the runs beside the log
    write_kestrel(directory / "kestrel", "q", [some(items)], {"": (round(9 * share), ())})
    return {
        "workq": [write_workq(directory / "workq", some(records))],
        "ztick": [write_ztick(directory / "ztick" / "logfile", some(jobs), some(runs))],
        "kestrel": [str(directory / "kestrel")],
    }


def rows_of(path: str, table: str) -> list[str]:
    names = [name for name in TABLES[table].schema.names if name not in WHEN]
    return sorted(map(repr, open_lake(path).read_arrow(table, columns=names).to_pylist()))


def assert_same(one: str, other: str) -> None:
    for table in TABLES:
        if table != SNAPSHOTS:
            assert rows_of(one, table) == rows_of(other, table), table


@pytest.mark.slow
def test_an_ingest_that_is_killed_after_any_commit_is_finished_by_the_next(tmp_path, monkeypatch):
    """The lake is the one that is made in one go; its tables at their last versions, too."""
    logs = write_logs(tmp_path, 1.0)
    whole = str(tmp_path / "whole")
    ingest(session, whole, logs, host="a")
    commits = open_lake(whole).snapshot.number
    steps = 0
    while True:
        steps += 9 if not DEEP else 1
        path = str(tmp_path / str(steps))
        ingest(session, path, write_logs(tmp_path / f"logs{steps}", 0.5), host="a")
        logs = write_logs(tmp_path / f"logs{steps}", 1.0)
        with monkeypatch.context() as patch:
            made = kill_after(patch, steps)
            try:
                ingest(session, path, logs, host="a")
            except Killed:
                pass
            else:
                assert len(made) < steps
                break
        seen = {table: rows_of(path, table) for table in ("silver/jobs", "gold/throughput_daily")}
        assert all(seen.values())
        ingest(session, path, logs, host="a")
        for table in ("silver/jobs", "silver/items", "gold/throughput_daily", "gold/latency_daily"):
            counted = len(rows_of(path, table))
            assert counted == len(rows_of(whole, table)), (steps, table)
            assert read_table(f"{path}/{table}").num_rows == counted
        assert len(rows_of(path, "bronze/workq")) == len(rows_of(whole, "bronze/workq"))
    assert steps > 9
    assert commits > 1


@pytest.mark.slow
def test_two_ingests_are_the_same_as_one(tmp_path):
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    logs = write_logs(tmp_path, 0.4)
    ingest(session, two, logs, host="a")
    logs = write_logs(tmp_path, 1.0)
    ingest(session, two, logs, host="a")
    ingest(session, one, logs, host="a")
    for table in TABLES:
        if table not in (SNAPSHOTS, "bronze/plans", TABLE, "gold/reader_lag_hourly"):
            assert rows_of(one, table) == rows_of(two, table), table


def test_an_ingest_that_finds_nothing_new_asks_for_no_session(tmp_path):
    logs, path = write_logs(tmp_path, 1.0), str(tmp_path / "lake")
    ingest(session, path, logs, host="a")

    def no_session() -> Any:
        raise AssertionError("nothing is new")

    before = open_lake(path).snapshot.number
    assert ingest(no_session, path, logs, host="a").files == {}
    assert open_lake(path).snapshot.number == before


@pytest.mark.slow
def test_a_reader_never_sees_half_of_an_ingest(tmp_path):
    """It reads all tables again and again while others are written."""
    records, path = busy_log(5, jobs=30), str(tmp_path / "lake")
    rounds = 100 if DEEP else 5
    log = write_workq(tmp_path / "workq", records[:1])
    ingest(session, path, {"workq": [log]}, host="a")
    ended, wrong, looks = threading.Event(), [], []

    def look() -> None:
        while not ended.is_set():
            lake = open_lake(path)
            stored = lake.read_arrow("bronze/workq", columns=["_position"]).num_rows
            tries = count_workq(records[:stored]).tries
            started = sum(each.started is not None for each in tries)
            found = lake.read_arrow("silver/attempts", columns=["started_ns"])["started_ns"]
            counts = lake.read_arrow("gold/throughput_daily", columns=["started"])["started"]
            seen = (len(found), len(found) - found.null_count, pc.sum(counts).as_py())
            looks.append(seen)
            if seen != (len(tries), started, started):
                wrong.append((stored, seen, len(tries), started))

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for number in range(1, rounds + 1):
            write_workq(tmp_path / "workq", records[: len(records) * number // rounds])
            ingest(session, path, {"workq": [log]}, host="a")
    finally:
        ended.set()
        reader.join()
    assert wrong == []
    assert looks


@pytest.mark.slow
def test_a_live_read_is_an_ingest_that_is_not_stored(tmp_path):
    """The lake, and what the logs hold for it, stay as they are."""
    path, whole = str(tmp_path / "lake"), str(tmp_path / "whole")
    ingest(session, path, write_logs(tmp_path, 0.4), host="a")
    logs = write_logs(tmp_path, 1.0)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*") if file.is_file()}
    tables = open_tables(session(), path, logs, "a")
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert {file for file in tmp_path.rglob("*") if file.is_file()} == set(before)
    ingest(session, whole, logs, host="a")
    for table in TABLES:
        if table not in (SNAPSHOTS, "bronze/plans", TABLE, "gold/reader_lag_hourly"):
            names = [name for name in TABLES[table].schema.names if name not in WHEN]
            found = tables.lake.read_arrow(table, columns=names).to_pylist()
            assert sorted(map(repr, found)) == rows_of(whole, table), table
    assert len(rows_of(path, "silver/jobs")) < len(rows_of(whole, "silver/jobs"))


def test_a_change_is_seen_when_its_snapshot_is_there_and_not_before(tmp_path, monkeypatch):
    path = str(tmp_path)
    with change_lake(path) as lake:
        lake.write(TABLE, readers(1, 2))
        assert heads(lake) == [1, 2]
        lake.commit(complete=True)
    with monkeypatch.context() as patch, change_lake(path) as lake:
        kill_after(patch, 1)
        replace(lake, 3)
        with pytest.raises(Killed):
            lake.commit(complete=True)
    assert read_table(f"{path}/{TABLE}")["head"].to_pylist() == [3]  # by its own log
    assert heads(open_lake(path)) == [1, 2]
    with change_lake(path) as lake:
        assert heads(lake) == [1, 2]
        lake.write(TABLE, readers(4))
        lake.commit(complete=True)
    assert heads(open_lake(path)) == [1, 2, 4]
    assert sorted(map(str, read_table(f"{path}/{TABLE}")["head"].to_pylist())) == ["1", "2", "4"]
    opened = deltalake.DeltaTable(f"{path}/{TABLE}")
    assert opened.transaction_version("journeyman") == open_lake(path).snapshot.number


def test_files_and_logs_are_synced_before_a_snapshot_names_them(tmp_path, monkeypatch):
    synced: set[str] = set()
    real = delta.sync

    def sync(paths: Any) -> None:
        listed = list(paths)
        synced.update(listed)
        real(listed)

    monkeypatch.setattr(delta, "sync", sync)
    with change_lake(str(tmp_path)) as lake:
        lake.write(TABLE, readers(1))
        lake.commit(complete=True)
    written = {str(path) for path in tmp_path.rglob("*") if path.suffix in (".parquet", ".json")}
    first = {path for path in written if path.endswith(f"{0:020}.json")}  # tables without files
    assert written - first <= synced
    assert {str(tmp_path / TABLE), str(tmp_path / TABLE / "_delta_log")} <= synced


def test_vacuum_keeps_what_retained_snapshots_need(tmp_path):
    path = str(tmp_path)
    with change_lake(path) as lake:
        lake.write(TABLE, readers(1, 2))
        lake.commit(complete=True)
        before = open_lake(path)
        replace(lake, 3)
        lake.commit(complete=True)
        upkeep.vacuum(lake, 24)
        assert heads(before) == [1, 2]
        assert len(list(Path(path, TABLE).glob("*.parquet"))) == 2
        upkeep.vacuum(lake, 0)
        assert len(list(Path(path, TABLE).glob("*.parquet"))) == 1
        assert heads(lake) == heads(open_lake(path)) == [3]
        replace(lake, 4)
        lake.commit(complete=True)
    assert heads(open_lake(path)) == [4]


def test_what_a_kill_left_is_vacuumed(tmp_path):
    path = str(tmp_path)
    with change_lake(path) as lake:
        lake.write(TABLE, readers(1))
        lake.commit(complete=True)
        delta.write_rows(path, readers(9), TABLE)  # never committed
        upkeep.vacuum(lake, 0)
    assert len(list(Path(path, TABLE).glob("*.parquet"))) == 1


def test_files_are_left_out_in_which_nothing_happens_between_two_moments(tmp_path):
    with change_lake(str(tmp_path)) as lake:
        for put_ns in (10, 20, 30):
            row: dict[str, object] = {
                "put_ns": put_ns,
                "queue": "q",
                "item_id": put_ns,
                "position": 1,
                "log": "l",
                "host": "a",
                "date": date(2026, 11, 17),
            }
            lake.write(
                "silver/items",
                pa.Table.from_pylist([row], delta.nullable_schema_of("silver/items")),
            )
        lake.commit(complete=True)
    lake = open_lake(str(tmp_path))
    for since, until, number in ((None, None, 3), (20, None, 2), (None, 20, 1), (11, 20, 0)):
        assert len(files_between(lake, "silver/items", since, until)) == number


def test_one_process_changes_a_lake_at_a_time(tmp_path):
    with (
        change_lake(str(tmp_path)),
        pytest.raises(JourneymanError, match="another process is changing this lake"),
        change_lake(str(tmp_path)),
    ):
        pass


def test_a_lake_of_an_earlier_version_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "_lake").mkdir()
    with pytest.raises(UsageError, match="is a lake of an earlier version, which this one"):
        open_lake(str(tmp_path))
    with (
        pytest.raises(UsageError, match="is a lake of an earlier version, which this one"),
        change_lake(str(tmp_path)),
    ):
        pass


def test_what_is_not_a_lake_is_reported(tmp_path):
    with pytest.raises(UsageError, match="there is no lake"):
        open_lake(str(tmp_path))
    with change_lake(f"file://{tmp_path}") as lake:
        lake.commit(complete=True)
    assert open_lake(str(tmp_path)).path == str(tmp_path)


def test_every_table_is_described():
    page = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()
    shared = page.partition("\n## Tables\n")[2].partition("\n### ")[0]
    for table in TABLES.values():
        section = page.partition(f"**`{table.short}`**")[2].partition("\n**`")[0]
        described = shared + section
        for name, kind, about in table.columns:
            null = "no" if kind.endswith("!") else "yes"
            if about != "as in spark.md":
                assert f"| `{name}` | {kind.rstrip('!')} | {null} | {about} |" in described
        assert f"FROM {table.short}" in section


@pytest.mark.parametrize("host", ["a/b", "a|b", "", "a b"])
def test_hosts_have_names_that_can_be_directories(tmp_path, host):
    (tmp_path / "000000001.log").write_bytes(workq.HEADER)
    LakeSource("workq", str(tmp_path), "web-1.example").check_hosts()
    with pytest.raises(UsageError, match="not the name of a host"):
        LakeSource("workq", str(tmp_path), host).check_hosts()


def test_runs_are_whole_lines_after_what_was_read(tmp_path):
    log = tmp_path / "logfile"
    log.write_bytes(ztick.CODEC.encode(ztick.JobSet("a", 1, ztick.Status.PLANNED)))
    (tmp_path / "logfile.runs").mkdir()
    runs = tmp_path / "logfile.runs" / "1.jsonl"
    line = encode_run(RunLine("a", "r", "shell", 1, 2, 3, "executed"))
    runs.write_bytes(line + b"not json\n" + line[:9])
    source = LakeSource("ztick", str(log), "h")
    read: dict[str, int] = {}
    with change_lake(str(tmp_path / "lake")) as lake:
        assert store_runs(lake, source, read)
        assert not store_runs(lake, source, read)
        runs.write_bytes(line + b"not json\n" + line)
        assert store_runs(lake, source, read)
        lake.commit(complete=True)
    table = read_table(f"{tmp_path}/lake/bronze/runs").sort_by("_offset")
    assert table["_offset"].to_pylist() == [0, len(line), len(line) + 9]
    assert table["job"].to_pylist() == ["a", None, "a"]
    assert table["kind"].to_pylist() == ["run", "damage", "run"]
    (damage,) = read_table(f"{tmp_path}/lake/silver/damage").to_pylist()
    assert (damage["dialect"], damage["offset"]) == ("runs", len(line))


def test_logs_that_cannot_be_read_do_not_keep_others_out(tmp_path):
    """A pipe in the place of a file: of a log, of the runs beside one, of a reader."""
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        data = workq.HEADER + workq.CODEC.encode(added(1))
        (tmp_path / name / "000000001.log").write_bytes(data)
    os.mkfifo(tmp_path / "bad" / "000000002.log")
    schedule = tmp_path / "logfile"
    schedule.write_bytes(ztick.CODEC.encode(ztick.JobSet("a", 1, ztick.Status.PLANNED)))
    (tmp_path / "logfile.runs").mkdir()
    os.mkfifo(tmp_path / "logfile.runs" / "1.jsonl")
    (tmp_path / "fanout").mkdir()
    (tmp_path / "fanout" / "q.100").write_bytes(
        kestrel.WRITER.header + kestrel.WRITER.encode(kestrel.ItemPut(1, 1_000, None, 0, b"x"))
    )
    os.mkfifo(tmp_path / "fanout" / "q.read.r")
    logs = {
        "workq": [str(tmp_path / "bad"), str(tmp_path / "good")],
        "ztick": [str(schedule)],
        "kestrel": [str(tmp_path / "fanout")],
    }
    with pytest.raises(LogsLeftOut) as raised:
        ingest(session, str(tmp_path / "lake"), logs, host="a")
    left_out = raised.value
    assert set(left_out.reasons) == {str(tmp_path / name) for name in ("bad", "logfile", "fanout")}
    text = str(left_out)
    assert f"{tmp_path}/bad was left out: not a regular file; move it away: {tmp_path}/bad" in text
    assert f"{tmp_path}/logfile.runs/1.jsonl: not a regular file" in text
    assert f"{tmp_path}/fanout/q.read.r: not a regular file" in text
    stored = {"bronze/workq", "bronze/ztick", "bronze/plans", "bronze/kestrel"}
    assert set(left_out.done.files) == stored
    for table, number in (("jobs", 2), ("items", 1)):
        assert read_table(f"{tmp_path}/lake/silver/{table}").num_rows == number


def test_parts_of_logs_share_tasks_of_about_the_same_size():
    def part(*sizes: int) -> LogPartition:
        return LogPartition([cast(Any, SimpleNamespace(begin=0, end=size)) for size in sizes])

    lost = Holes([{"host": "h"}])
    units = _together([part(90), part(110), part(100), lost, part(60, 40)], 2)
    sizes = [
        [piece.end for piece in unit.pieces] if isinstance(unit, LogPartition) else "lost"
        for unit in units
    ]
    assert sizes == [[90, 110], [100], "lost", [60, 40]]
    assert len(_together([part(2**28)] * 8, 1)) == 4  # 512 MiB at most


def test_readers_are_as_far_behind_as_the_items_say(tmp_path):
    items = [
        kestrel.ItemPut(number, 1_000 + number, None, 0, b"x" * number) for number in (1, 2, 3, 4)
    ]
    data = b"".join(map(kestrel.WRITER.encode, items))
    (tmp_path / "q.100").write_bytes(kestrel.WRITER.header + data)
    places = {"a": Reader(1, {3}), "b": Reader(4)}
    for name, reader in places.items():
        Checkpoints(RealDisk(), str(tmp_path), "q").write(name, reader, 1)
    ingest(session, str(tmp_path / "_kept"), {"kestrel": [str(tmp_path)]}, host="h")
    lake = open_lake(str(tmp_path / "_kept"))
    found = lake.read_arrow(TABLE).sort_by("reader").to_pylist()
    names = ("reader", "head", "tail_id", "items_behind", "bytes_behind")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("a", 1, 4, 2, 6),
        ("b", 4, 4, 0, 0),
    ]
    lags = {row["reader"]: row for row in lake.read_arrow("gold/reader_lag_hourly").to_pylist()}
    assert (lags["a"]["items_behind"], lags["a"]["bytes_behind"]) == (2, 6)
    looks = dict(lake.snapshot.readers)
    assert not store_readers(lake, LakeSource("kestrel", str(tmp_path), "h"), looks)


def test_a_column_that_is_newer_than_a_file_is_null(tmp_path):
    path = str(tmp_path / "0.parquet")
    pq.write_table(pa.table({"key": ["a", "b"], "dialect": ["workq", "workq"]}), path)
    file = delta.DataFile("silver/jobs", path, 1, 2, {"is_open": "true"}, {})
    rows = delta.read_data_file(file, ["key", "queue", "is_open"]).to_pylist()
    assert rows == [{"key": key, "queue": None, "is_open": True} for key in "ab"]
