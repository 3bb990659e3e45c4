"""A commit of a lake, cut off at every step: the old lake or the new one, and nothing twice."""

from __future__ import annotations

import json
import os
import shutil
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from journeyman.columnar import read_table
from journeyman.disk import RealDisk
from journeyman.errors import JourneymanError, UsageError
from journeyman.folds.kestrel import Reader
from journeyman.formats import kestrel, workq, ztick
from journeyman.logs import publication
from journeyman.logs.kestrel.checkpoints import Checkpoints
from journeyman.logs.ztick.run_history import RunLine, encode_run
from journeyman.spark.lake import delta, places
from journeyman.spark.lake.bronze import LakeSource, _together, store_new
from journeyman.spark.lake.ingest import LogsLeftOut, _one_round, refresh
from journeyman.spark.lake.layout import TABLES
from journeyman.spark.lake.small_files import stage_rows, store_readers, store_runs
from journeyman.spark.lake.state import STATE_VERSION
from journeyman.spark.lake.storage import Lake, change_lake, open_lake
from journeyman.spark.lake.views import files_between
from journeyman.spark.source.splits import LogPartition
from journeyman.spark.streams.offsets import Holes
from tests.support.workq_logs import added

TABLE = "silver/readers"
DAY = "2026-11-17"


class PowerCut(Exception):
    pass


def rows(host: str, *heads: int) -> pa.Table:
    listed = [{"head": head, "host": host, "date": date.fromisoformat(DAY)} for head in heads]
    return pa.Table.from_pylist(listed)


def heads(lake: Lake) -> list[int]:
    files = [f"{lake.table_path(TABLE)}/{name}" for name in lake.files(TABLE)]
    return sorted(int(head.as_py()) for name in files for head in pq.read_table(name)["head"])


def change(lake: Lake) -> None:
    """Two files in the place of the first one, and a note of it."""
    old = lake.files(TABLE)
    staged = [lake.stage_arrow(rows("b", head), TABLE) for head in (3, 4)]
    lake.commit(staged, {TABLE: old}, offsets={"log": 7})


@pytest.mark.parametrize("format_", ["parquet", "delta"])
def test_a_commit_that_is_cut_off_anywhere_is_whole_or_not_there(tmp_path, monkeypatch, format_):
    steps = 0
    outcomes = set()
    while True:
        path = str(tmp_path / str(steps))
        with change_lake(path, format_) as lake:
            lake.commit([lake.stage_arrow(rows("a", 1, 2), TABLE)], {})
        with monkeypatch.context() as patch:
            left = cut_after(patch, steps)
            try:
                with change_lake(path) as lake:
                    change(lake)
            except PowerCut:
                pass
        lake = open_lake(path)
        outcome = heads(lake), dict(lake.state.offsets)
        assert outcome in (([1, 2], {}), ([3, 4], {"log": 7}))
        outcomes.add(str(outcome))
        if left[0] > 0:
            break
        steps += 1
    assert len(outcomes) == 2
    assert steps > 5


def cut_after(patch: pytest.MonkeyPatch, steps: int) -> list[int]:
    """Let the disk do so many things; how many are left is answered, and counted down."""
    left = [steps]
    for name in ("rename", "remove", "sync_dir", "open_append"):
        real = getattr(RealDisk, name)

        def limited(self, *args, _real=real, **kwargs):
            if left[0] <= 0:
                raise PowerCut
            left[0] -= 1
            return _real(self, *args, **kwargs)

        patch.setattr(RealDisk, name, limited)
    return left


@pytest.mark.parametrize("killed", [False, True])
def test_a_commit_syncs_every_directory_of_the_lake_that_may_be_new_and_none_outside(
    tmp_path, monkeypatch, killed
):
    """Also one that a kill interrupts once it is decided, and that the next change finishes."""
    synced: list[str] = []
    monkeypatch.setattr(places, "_sync", synced.append)
    with change_lake(str(tmp_path / "lake")) as lake, monkeypatch.context() as patch:
        rows = pa.table({"date": ["2026-11-17"], "host": ["a"], "key": ["k"]})
        staged = lake.stage_arrow(rows, "silver/jobs")
        if killed:
            patch.setattr(publication, "_apply", killed_here)
            with pytest.raises(PowerCut):
                lake.commit([staged], {})
        else:
            lake.commit([staged], {})
    with change_lake(lake.path):
        pass
    above = Path("silver", "jobs", "date=2026-11-17", "host=a")
    wanted = {"_lake", *map(str, (above, *above.parents[:-1]))}
    directories = [each for each in synced if not each.endswith(".parquet")]
    assert {str(Path(each).relative_to(lake.path)) for each in directories} == wanted


def killed_here(*_: object) -> None:
    raise PowerCut


def test_files_are_left_out_in_which_nothing_happens_between_two_moments(tmp_path):
    day, table = 86_400 * 10**9, "silver/attempts"
    listed = [
        # ready on one day, started on the next, not ended; and one of another day
        {"date": date(1970, 1, 11), "host": "a", "ready_ns": 10 * day, "started_ns": 11 * day},
        {"date": date(1970, 1, 21), "host": "a", "ready_ns": 20 * day, "started_ns": None},
    ]
    with change_lake(str(tmp_path / "lake")) as lake:
        lake.commit([lake.stage_arrow(pa.Table.from_pylist(listed), table)], {})
        early, late = lake.files(table)
        assert files_between(lake, table, None, None) is None
        assert files_between(lake, table, 11 * day, None) == [early, late]
        assert files_between(lake, table, 11 * day, 20 * day) == [early]
        assert files_between(lake, table, 12 * day, None) == [late]
        assert files_between(lake, table, None, 10 * day) == []


def test_one_process_changes_a_lake_at_a_time(tmp_path):
    with (
        change_lake(str(tmp_path)),
        pytest.raises(JourneymanError, match="another process is changing this lake"),
        change_lake(str(tmp_path)),
    ):
        pass


def test_a_lake_keeps_its_format_and_knows_its_version(tmp_path):
    with change_lake(str(tmp_path)) as lake:
        lake.commit([], {})
    with (
        pytest.raises(UsageError, match="is a lake of format parquet"),
        change_lake(str(tmp_path), "delta"),
    ):
        pass
    state = Path(tmp_path / "_lake" / "state.json")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"version": 9}))
    with pytest.raises(UsageError, match="version 9"):
        open_lake(str(tmp_path))


def test_what_is_not_a_lake_is_said_so(tmp_path):
    with pytest.raises(UsageError, match="there is no lake"):
        open_lake(str(tmp_path))
    with change_lake(f"file://{tmp_path}") as lake:
        lake.commit([], {})
    assert open_lake(str(tmp_path)).path == str(tmp_path)


def test_a_delta_table_may_be_changed_by_another_program_meanwhile(tmp_path, monkeypatch):
    real = delta._commit
    met: list[deltalake.DeltaTable] = []

    def commit_late(*args: Any) -> None:
        if not met:
            met.append(deltalake.DeltaTable(str(tmp_path / TABLE)))
            met[0].alter.set_table_properties({"delta.logRetentionDuration": "interval 60 days"})
        real(*args)

    with change_lake(str(tmp_path), "delta") as lake:
        lake.commit([lake.stage_arrow(rows("a", 1, 2), TABLE)], {})
        monkeypatch.setattr(delta, "_commit", commit_late)
        change(lake)
        assert heads(lake) == [3, 4]
    assert len(met) == 1


def test_delta_keeps_replaced_files_until_they_are_vacuumed(tmp_path):
    with change_lake(str(tmp_path), "delta") as lake:
        lake.commit([lake.stage_arrow(rows("a", 1, 2), TABLE)], {})
        change(lake)
        table = deltalake.DeltaTable(lake.table_path(TABLE))
        assert len(table.file_uris()) == 2
        assert len(list(Path(lake.table_path(TABLE)).rglob("*.parquet"))) == 3
        lake.vacuum()
        assert len(list(Path(lake.table_path(TABLE)).rglob("*.parquet"))) == 2
        assert heads(lake) == [3, 4]


def test_every_table_is_described():
    page = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()
    for table in TABLES.values():
        section = page.partition(f"**`{table.short}`**")[2].partition("\n**`")[0]
        for name, kind, about in table.columns:
            null = "no" if kind.endswith("!") else "yes"
            if about != "as in spark.md":
                assert f"| `{name}` | {kind.rstrip('!')} | {null} | {about} |" in section
        assert f"FROM {table.short}" in section


@pytest.mark.parametrize("host", ["a/b", "a|b", "", "a b"])
def test_hosts_have_names_that_can_be_directories(tmp_path, host):
    (tmp_path / "000000001.log").write_bytes(workq.HEADER)
    LakeSource("workq", str(tmp_path), "web-1.example").check_hosts()
    with pytest.raises(UsageError, match="not the name of a host"):
        LakeSource("workq", str(tmp_path), host).check_hosts()


def test_runs_are_whole_lines_behind_what_was_read(tmp_path):
    log = tmp_path / "logfile"
    log.write_bytes(ztick.CODEC.encode(ztick.JobSet("a", 1, ztick.Status.PLANNED)))
    (tmp_path / "logfile.runs").mkdir()
    runs = tmp_path / "logfile.runs" / "1.jsonl"
    line = encode_run(RunLine("a", "r", "shell", 1, 2, 3, "executed"))
    runs.write_bytes(line + b"not json\n" + line[:9])
    source = LakeSource("ztick", str(log), "h")
    with change_lake(str(tmp_path / "lake")) as lake:
        store_runs(lake, source)
        store_runs(lake, source)
        runs.write_bytes(line + b"not json\n" + line)
        store_runs(lake, source)
        assert lake.state.commit == 2
        assert len(lake.state.fresh["bronze/runs"]) == 2
    table = read_table(f"{tmp_path}/lake/bronze/runs").sort_by("_offset")
    assert table["_offset"].to_pylist() == [0, len(line), len(line) + 9]
    assert table["job"].to_pylist() == ["a", None, "a"]
    assert table["kind"].to_pylist() == ["run", "damage", "run"]


def test_bronze_is_stored_once_wherever_an_ingest_is_cut_off(tmp_path, monkeypatch):
    """Reads so little that no session is needed."""
    directory, lake_path = tmp_path / "workq", str(tmp_path / "lake")
    directory.mkdir()
    source = LakeSource("workq", str(directory), "h")
    records = [added(number) for number in range(1, 40)]
    written, steps = 0, 0
    while written < len(records):
        batch = records[written : written + 3]
        data = b"".join(map(workq.CODEC.encode, batch))
        path = directory / f"{written // 9 + 1:09d}.log"  # a new segment now and then
        path.write_bytes((path.read_bytes() if path.exists() else workq.HEADER) + data)
        written += len(batch)
        with monkeypatch.context() as patch:
            cut_after(patch, steps)
            try:
                with change_lake(lake_path) as lake:
                    store_new(None, lake, [source])  # type: ignore[arg-type]
            except PowerCut:
                steps += 2
    with change_lake(lake_path) as lake:
        store_new(None, lake, [source])  # type: ignore[arg-type]
    stored = read_table(f"{lake_path}/bronze/workq").sort_by("_position")
    assert stored["job_id"].to_pylist() == [record.job_id for record in records]
    assert steps > 8


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
    sources = [
        LakeSource("workq", str(tmp_path / "bad"), "a"),
        LakeSource("workq", str(tmp_path / "good"), "b"),
        LakeSource("ztick", str(schedule), "c"),
        LakeSource("kestrel", str(tmp_path / "fanout"), "d"),
    ]
    with change_lake(str(tmp_path / "lake")) as lake:
        done, reasons = _one_round(cast("Any", None), lake, sources, None)
    assert set(reasons) == {str(tmp_path / name) for name in ("bad", "logfile", "fanout")}
    said = str(LogsLeftOut(reasons, done))
    assert f"{tmp_path}/bad was left out: not a regular file; move it away: {tmp_path}/bad" in said
    assert f"{tmp_path}/logfile.runs/1.jsonl: not a regular file" in said
    assert f"{tmp_path}/fanout/q.read.r: not a regular file" in said
    assert set(done.files) == {"bronze/workq", "bronze/ztick", "bronze/plans", "bronze/kestrel"}
    for table, host in (("jobs", ["b", "c"]), ("items", ["d"])):
        stored = read_table(f"{tmp_path}/lake/silver/{table}")
        assert sorted(map(str, stored["host"].to_pylist())) == host


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


def planned(number: int) -> ztick.Record:
    return ztick.JobSet(f"job.{number % 7}", number * 10**9, ztick.Status.PLANNED)


def ingest_more(log: Path, records: list[ztick.Record], *lakes: str) -> None:
    with log.open("ab") as file:
        file.write(b"".join(map(ztick.CODEC.encode, records)))
    for path in lakes:
        with change_lake(path) as lake:
            store_new(None, lake, [LakeSource("ztick", str(log), "h")])  # type: ignore[arg-type]
            refresh(None, lake)  # type: ignore[arg-type]


def stored(path: str, table: str) -> list[dict[str, object]]:
    return sorted(read_table(f"{path}/{table}").to_pylist(), key=str)


def take_plans_away(lake: str) -> Path:
    """As if it were of version 2; its state."""
    shutil.rmtree(f"{lake}/bronze/plans")
    state = Path(lake, "_lake", "state.json")
    state.write_text(json.dumps(json.loads(state.read_text()) | {"version": 2}))
    return state


def test_a_lake_without_plans_gets_them_of_its_records(tmp_path):
    """A lake of version 2 that goes on is the same as one that began with plans."""
    log = tmp_path / "logfile"
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    ingest_more(log, [planned(number) for number in range(30)], old, new)
    state = take_plans_away(old)
    later: list[ztick.Record] = [
        ztick.JobRemoved("job.1"),
        ztick.JobSet("job.2", 16 * 10**9, ztick.Status.EXECUTED),
        ztick.JobSet("job.3", 99 * 10**9, ztick.Status.PLANNED),
    ]
    ingest_more(log, later, old, new)
    for table in ("silver/attempts", "silver/jobs", "gold/throughput_daily"):
        assert stored(old, table) == stored(new, table) != []
    outcomes = [row["outcome"] for row in stored(old, "silver/attempts")]
    assert {"removed", "executed", "replanned", "planned"} == set(outcomes)
    assert json.loads(state.read_text())["version"] == STATE_VERSION


def test_attempts_whose_records_were_dropped_stay_when_a_lake_gets_its_plans(tmp_path):
    log, lake = tmp_path / "logfile", str(tmp_path / "lake")
    ingest_more(log, [planned(number) for number in range(14)], lake)
    dropped = list(Path(lake, "bronze", "ztick").rglob("*.parquet"))
    ingest_more(log, [planned(number) for number in range(14, 21)], lake)
    before = stored(lake, "silver/attempts")
    for path in dropped:
        path.unlink()
    take_plans_away(lake)
    ingest_more(log, [ztick.JobSet("another", 10**9, ztick.Status.PLANNED)], lake)
    assert [row for row in stored(lake, "silver/attempts") if row["key"] != "another"] == before


def test_readers_are_as_far_behind_as_the_items_say(tmp_path):
    items = [
        kestrel.ItemPut(number, 1_000 + number, None, 0, b"x" * number) for number in (1, 2, 3, 4)
    ]
    put = b"".join(map(kestrel.WRITER.encode, items))
    (tmp_path / "q.100").write_bytes(kestrel.WRITER.header + put)
    places = {"a": Reader(1, {3}), "b": Reader(4)}
    for name, reader in places.items():
        Checkpoints(RealDisk(), str(tmp_path), "q").write(name, reader, 1)
    source = LakeSource("kestrel", str(tmp_path), "h")
    with change_lake(str(tmp_path / "_lake")) as lake:
        log = str(tmp_path / "q")
        rows = [
            {"log": log, "queue": "q", "item_id": i.item_id, "data_size": len(i.data), "put_ns": 7}
            for i in items
        ]
        lake.commit([stage_rows(lake, "silver/items", rows, "h")], {})
        assert store_readers(lake, source)
        assert not store_readers(lake, source)  # no file has changed since
    found = read_table(str(tmp_path / "_lake" / TABLE)).sort_by("reader").to_pylist()
    names = ("reader", "head", "tail_id", "items_behind", "bytes_behind")
    assert [tuple(row[name] for name in names) for row in found] == [
        ("a", 1, 4, 2, 6),
        ("b", 4, 4, 0, 0),
    ]


def test_tables_of_gold_are_read_without_spark_too(tmp_path):
    row = {"jobs": 7, "host": "h", "month": DAY[:7]}
    with change_lake(str(tmp_path)) as lake:
        lake.commit([lake.stage_arrow(pa.Table.from_pylist([row]), "gold/latency_daily")], {})

    assert read_table(f"{tmp_path}/gold/latency_daily").to_pylist() == [row]
