"""The lake against a plain count of the same records: every row of silver and gold.

Three ingests fill it: half of every log; the rest, with a segment begun meanwhile and the ztick log
rotated; and nothing new. The second one is killed before silver and gold, and done again.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import duckdb
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from pyspark.sql import DataFrame, SparkSession

from journeyman.columnar import read_table
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.ztick.run_history import RunLine, encode
from journeyman.spark.history.logs import attempts_of
from journeyman.spark.history.summaries import depth
from journeyman.spark.lake import upkeep
from journeyman.spark.lake.ingest import ingest
from journeyman.spark.lake.layout import HOUR_NS, PERCENTILES
from journeyman.spark.lake.storage import Lake, change_lake, open_lake
from tests.support.report_counts import Try, count_workq, count_ztick, percentile
from tests.support.snippets import snippets_of
from tests.support.spark.histories import busy_log
from tests.support.spark.written_logs import SECOND_NS, ns, planned, put, write_kestrel

pytestmark = pytest.mark.timeout(1200)

HOSTS = ("a", "b")
ENDS = {
    **dict.fromkeys(("completed", "executed"), "completed"),
    "failed": "failed",
    "timed-out": "timed_out",
    "cut-off": "cut_off",
    "expired": "expired",
    **dict.fromkeys(("deleted", "replaced"), "deleted"),
}
FAILURES = ("failed", "timed-out", "cut-off")


class World(NamedTuple):
    """What was written to the logs, by host."""

    directory: Path
    workq: dict[str, list[workq.Record]]
    ztick: list[ztick.Record]
    runs: list[RunLine]
    items: list[kestrel.ItemPut]

    @property
    def lake(self) -> str:
        return str(self.directory / "lake")

    @property
    def logs(self) -> dict[str, list[str]]:
        return {
            "workq": [str(self.directory / "workq")],
            "ztick": [str(self.directory / "ztick" / "logfile")],
            "kestrel": [str(self.directory / "kestrel")],
        }

    @property
    def tries(self) -> dict[tuple[str, str], list[Try]]:
        """By host and dialect, counted in plain Python."""
        found = {(host, "workq"): count_workq(self.workq[host]).tries for host in HOSTS}
        found["c", "ztick"] = count_ztick(self.ztick, self.runs, 0).tries
        return found


def schedule(chance: Random) -> tuple[list[ztick.Record], list[RunLine]]:
    records: list[ztick.Record] = []
    runs = []
    for number in range(60):
        job, due = f"r{number % 3}.job.{chance.randrange(20)}", chance.randrange(0, 180_000, 7)
        if number % 10 == 0:
            job = f"r{number % 3}.nightly@2023-11-15T02:{number:02}:00+01:00"
        records.append(planned(job, due))
        fate = chance.random()
        if fate < 0.5:
            status, detail = ("failed", "exit status 3") if fate < 0.15 else ("executed", "")
            late, took = chance.random() * 3, chance.random() * 50
            times = (ns(due), ns(due + late), ns(due + late + took))
            runs.append(RunLine(job, job[:2], "shell", *times, status, detail))
            records.append(planned(job, due, status))
        elif fate < 0.6:
            records.append(ztick.JobRemoved(job))
    return records, runs


def write(world: World, part: str) -> None:
    """The first half of everything, or the rest."""
    first = part == "first"
    for host, records in world.workq.items():
        middle = len(records) // 2
        chosen = records[:middle] if first else records[middle:]
        directory = world.directory / "workq" / f"host={host}"
        directory.mkdir(parents=True, exist_ok=True)
        data = b"".join(map(workq.CODEC.encode, chosen))
        (directory / f"{1 if first else 2:09d}.log").write_bytes(workq.HEADER + data)
    log = world.directory / "ztick" / "logfile"
    log.parent.mkdir(exist_ok=True)
    half = len(world.ztick) // 2
    if first:
        log.write_bytes(b"".join(map(ztick.CODEC.encode, world.ztick[:half])))
    else:  # rotated, as before a compaction
        os.rename(log, f"{log}.to_compress")
        log.write_bytes(b"".join(map(ztick.CODEC.encode, world.ztick[half:])))
    runs = Path(f"{log}.runs")
    runs.mkdir(exist_ok=True)
    lines = b"".join(map(encode, world.runs))
    cut = len(lines) // 2
    with (runs / "1700000000000.jsonl").open("ab") as file:
        file.write(lines[:cut] if first else lines[cut:])
    items = world.items[: len(world.items) // 2] if first else world.items
    head = 3 if first else 9
    write_kestrel(world.directory / "kestrel", "jobs", [items], {"": (head, ()), "mail": (1, ())})


class Killed(Exception):
    """What a kill looks like from inside."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    chance = Random(20)
    records, runs = schedule(chance)
    workq_logs = {host: busy_log(seed) for seed, host in enumerate(HOSTS)}
    items = [put(number, 7_000 * number) for number in range(1, 25)]
    world = World(tmp_path_factory.mktemp("lake"), workq_logs, records, runs, items)
    write(world, "first")
    assert ingest(spark, world.lake, world.logs, host="c").files.keys() == {
        "bronze/workq",
        "bronze/ztick",
        "bronze/kestrel",
        "bronze/runs",
    }
    write(world, "rest")
    with pytest.MonkeyPatch.context() as patch:
        _kill_before(patch, 6)  # in front of silver and gold
        with pytest.raises(Killed):
            ingest(spark, world.lake, world.logs, host="c")
    ingest(spark, world.lake, world.logs, host="c")
    done = ingest(spark, world.lake, world.logs, host="c")
    assert done.files == {}
    return world


def _kill_before(patch: pytest.MonkeyPatch, commit: int) -> None:
    real, made = Lake._commit, []

    def commit_or_die(self: Lake, *args: Any, **kwargs: Any) -> None:
        made.append(1)
        if len(made) >= commit:
            raise Killed("Killed")
        real(self, *args, **kwargs)

    patch.setattr(Lake, "_commit", commit_or_die)


def rows(spark: SparkSession, world: World, table: str, *names: str) -> list[tuple[Any, ...]]:
    return ordered(open_lake(world.lake).read(spark, table).select(*names))


def ordered(frame: DataFrame) -> list[tuple[Any, ...]]:
    return in_order(tuple(row) for row in frame.collect())


def in_order(found: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(found, key=lambda row: [repr(value) for value in row])


def day(moment_ns: int) -> str:
    return datetime.fromtimestamp(moment_ns // SECOND_NS, UTC).date().isoformat()


def hour(moment_ns: int) -> int:
    return moment_ns // HOUR_NS * HOUR_NS


def test_bronze_holds_every_record_once(spark, world):
    for host in HOSTS:
        found = sorted(rows(spark, world, "bronze/workq", "_position", "host", "logged_ns"))
        assert [at for _, whose, at in found if whose == host] == [
            record.logged.unix_ns for record in world.workq[host]
        ]
    names = sorted(rows(spark, world, "bronze/ztick", "_position", "identifier"))
    assert [name for _, name in names] == [record.identifier for record in world.ztick]
    lines = rows(spark, world, "bronze/runs", "_offset", "job")
    assert [job for _, job in sorted(lines)] == [run.job for run in world.runs]
    assert rows(spark, world, "silver/damage", "what") == []


def test_attempts_are_those_of_a_plain_count(spark, world):
    names = ("created_ns", "ready_ns", "started_ns", "ended_ns", "expires_ns", "outcome", "first")
    for (host, dialect), tries in world.tries.items():
        frame = open_lake(world.lake).read(spark, "silver/attempts")
        mine = frame.where(f"host = '{host}' AND dialect = '{dialect}'")
        found = ordered(mine.selectExpr("coalesce(queue, rule, '')", *names))
        expected = [
            (t.group, t.created, t.ready, t.started, t.ended, t.expires, t.outcome, t.is_first)
            for t in tries
        ]
        assert found == in_order(expected)


def test_timestamps_are_the_nanoseconds_and_days_are_their_days(spark, world):
    columns = ("started_at", "started_ns", "ready_ns", "date", "wait_s")
    for at, started_ns, ready_ns, date, wait_s in rows(spark, world, "silver/attempts", *columns):
        if started_ns is not None:
            assert at.replace(tzinfo=UTC).timestamp() == pytest.approx(started_ns / 1e9, abs=1e-6)
        if ready_ns is not None:
            assert str(date) == day(ready_ns)
            if started_ns is not None:
                assert wait_s == max(started_ns - ready_ns, 0) / 1e9


def test_jobs_add_up_their_attempts(spark, world):
    found = rows(spark, world, "silver/jobs", "host", "dialect", "attempts", "failures")
    for (host, dialect), tries in world.tries.items():
        mine = [row for row in found if row[:2] == (host, dialect)]
        assert sum(row[2] for row in mine) == sum(t.started is not None for t in tries)
        assert sum(row[3] for row in mine) == sum(t.outcome in FAILURES for t in tries)
    jobs = {record.identifier for record in world.ztick if isinstance(record, ztick.JobSet)}
    assert len([row for row in found if row[1] == "ztick"]) == len(jobs)


def test_runs_and_items_are_rows(spark, world):
    columns = ("key", "planned_ns", "lateness_s", "run_s", "outcome", "detail")
    assert rows(spark, world, "silver/runs", *columns) == in_order(
        (
            run.job,
            run.execution_ns,
            (run.started_ns - run.execution_ns) / 1e9,
            (run.ended_ns - run.started_ns) / 1e9,
            run.outcome,
            run.detail or None,
        )
        for run in world.runs
    )
    assert rows(spark, world, "silver/items", "item_id", "put_ns", "data_size") == in_order(
        (item.item_id, item.add_time_ms * 10**6, len(item.data)) for item in world.items
    )
    heads = rows(spark, world, "silver/readers", "reader", "head", "items_behind")
    # A queue with a reader of a name has no default reader any more.
    assert set(heads) == {("mail", 1, 11), ("mail", 1, 23)}


def test_occurrences_of_timetables_are_rows_of_their_own(spark, world):
    names = ("timetable", "occurrence", "key", "outcome", "ready_ns", "started_ns")
    found = rows(spark, world, "silver/timetable_firings", *names)
    attempts = open_lake(world.lake).read(spark, "silver/attempts").where("key LIKE '%@%'")
    expected = ordered(attempts.select(*names[2:]))
    assert [row[2:] for row in in_order(found)] == expected != []
    assert {row[:2] for row in found} <= {
        (record.identifier.split("@")[0], record.identifier.split("@")[1])
        for record in world.ztick
        if "@" in record.identifier
    }


def events(world: World) -> Iterator[tuple[str, str, str, str, int]]:
    """host, dialect, queue, what and when, as docs/history.md says."""
    for (host, dialect), tries in world.tries.items():
        for t in tries:
            dropped = t.outcome in ("replanned", "removed")
            ended = t.ended
            if dialect == "ztick":
                if t.is_first and not dropped and t.ready is not None:
                    yield host, dialect, t.group, "due", t.ready
                if t.outcome in ("executed", "failed") and ended is None:
                    ended = t.ready
            elif t.is_first and t.created is not None:
                yield host, dialect, t.group, "added", t.created
            if t.started is not None:
                yield host, dialect, t.group, "started", t.started
            if t.outcome in ENDS and ended is not None:
                yield host, dialect, t.group, ENDS[t.outcome], ended
    for item in world.items:
        yield "c", "kestrel", "jobs", "added", item.add_time_ms * 10**6


def test_throughput_counts_every_event_in_its_hour_and_its_day(spark, world):
    expected_hours: Counter[tuple[Any, ...]] = Counter()
    expected_days: Counter[tuple[Any, ...]] = Counter()
    for host, dialect, queue, what, at in events(world):
        expected_hours[host, dialect, queue, what, hour(at)] += 1
        expected_days[host, dialect, queue, what, day(at)] += 1
    lake = open_lake(world.lake)
    kinds = sorted(set(ENDS.values()) | {"added", "due", "started"})
    hourly = lake.read(spark, "gold/throughput_hourly").selectExpr(
        "host", "dialect", "queue", "unix_micros(hour) * 1000 AS at", *kinds
    )
    daily = lake.read(spark, "gold/throughput_daily").selectExpr(
        "host", "dialect", "queue", "string(date) AS at", *kinds
    )
    for frame, expected in ((hourly, expected_hours), (daily, expected_days)):
        found = Counter(
            {
                (row.host, row.dialect, row.queue, kind, row["at"]): row[kind]
                for row in frame.collect()
                for kind in kinds
                if row[kind]
            }
        )
        assert found == expected


def test_latency_has_the_percentiles_of_every_day(spark, world):
    groups: dict[tuple[str, str, str, str], list[Try]] = defaultdict(list)
    for (host, dialect), tries in world.tries.items():
        for t in tries:
            if t.started is not None:
                groups[host, dialect, t.group, day(t.started)].append(t)
    frame = open_lake(world.lake).read(spark, "gold/latency_daily")
    found = {(r.host, r.dialect, r.queue, str(r.date)): r for r in frame.collect()}
    assert found.keys() == groups.keys()
    for place, tries in groups.items():
        row = found[place]
        assert row.started == len(tries)
        assert row.failed == sum(t.outcome in FAILURES for t in tries)
        for what, lengths in (("wait", [t.wait for t in tries]), ("run", [t.run for t in tries])):
            for name, rank in PERCENTILES.items():
                expected = percentile(lengths, rank)
                assert row[f"{what}_{name}_s"] == (None if expected is None else expected / 1e9)


def test_failures_have_reasons_and_runs_are_late(spark, world):
    expected: Counter[tuple[str, str, str, str]] = Counter()
    for (host, dialect), tries in world.tries.items():
        for t in tries:
            if dialect == "workq" and t.outcome in FAILURES and t.ended is not None:
                expected[host, t.group, t.outcome, day(t.ended)] += 1
    late: dict[tuple[str, str], list[int]] = defaultdict(list)
    for run in world.runs:
        late[run.rule, day(run.started_ns)].append(run.started_ns - run.execution_ns)
        if run.outcome == "failed":
            expected["c", run.rule, "exit status 3", day(run.ended_ns)] += 1
    found = rows(spark, world, "gold/failures_daily", "host", "queue", "reason", "date", "failures")
    assert {(h, q, why, str(on)): n for h, q, why, on, n in found} == expected
    columns = ("rule", "date", "runs", "late", "lateness_p50_s", "lateness_max_s")
    assert rows(spark, world, "gold/lateness_daily", *columns) == in_order(
        (
            rule,
            datetime.fromisoformat(on).date(),
            len(each),
            sum(ns_late > SECOND_NS for ns_late in each),
            (percentile(each, 0.5) or 0) / 1e9,
            max(each) / 1e9,
        )
        for (rule, on), each in late.items()
    )


def test_depth_is_that_of_the_whole_logs(spark, world):
    logs = {"workq": world.logs["workq"]}
    whole = depth(attempts_of(spark, logs), HOUR_NS)
    expected = [
        (row["_log"].rpartition("=")[2], row.group, row.bucket_ns, *row[4:7])
        for row in whole.select(
            "_log", "group", "time", "bucket_ns", "scheduled", "ready", "running"
        ).collect()
    ]
    frame = open_lake(world.lake).read(spark, "gold/depth_hourly").where("dialect = 'workq'")
    names = ("scheduled", "ready", "running")
    found = frame.selectExpr("host", "queue", "unix_micros(hour) * 1000 AS at", *names)
    assert ordered(found) == in_order(expected)


def printed_by_the_how_to(lake: str) -> str:
    """The lines of docs/duckdb.md over this lake."""
    page = (Path(__file__).parents[2] / "docs" / "duckdb.md").read_text()
    (program,) = (s.text for s in snippets_of(page) if s.title == "lake.py")
    with redirect_stdout(StringIO()) as printed:
        exec(program.replace("/lake/", f"{lake}/"), {})
    return printed.getvalue()


def test_other_tools_read_the_tables(spark, world):
    frame = open_lake(world.lake).read(spark, "silver/jobs")
    files = f"{world.lake}/silver/jobs/*/*/*.parquet"
    query = f"SELECT count(*), sum(attempts) FROM read_parquet('{files}', hive_partitioning=true)"
    expected = tuple(frame.selectExpr("count(*)", "sum(attempts)").collect()[0])
    assert duckdb.connect().execute(query).fetchone() == expected
    assert printed_by_the_how_to(world.lake) == f"[{expected}]\n"
    table = read_table(f"{world.lake}/silver/jobs")
    assert (table.num_rows, pc.sum(table["attempts"]).as_py()) == expected
    assert (
        table.schema.field("ready_at").type
        == ds.dataset(files.split("*")[0]).schema.field("ready_at").type
    )


def test_a_key_is_forgotten_everywhere_and_files_are_joined(spark, tmp_path):
    directory = tmp_path / "workq"
    directory.mkdir()
    lake, logs = str(tmp_path / "lake"), {"workq": [str(directory)]}
    records = busy_log(5, jobs=12)
    half = len(records) // 2
    for number, part in enumerate((records[:half], records[half:]), 1):
        data = workq.HEADER + b"".join(map(workq.CODEC.encode, part))
        (directory / f"{number:09d}.log").write_bytes(data)
        ingest(spark, lake, logs, host="a", format_="delta")
    victim = records[0].job_id
    key = str(UUID(bytes=victim))
    with change_lake(lake) as opened:
        gone = upkeep.forget(spark, opened, [key])
        assert upkeep.optimize(spark, opened) >= 0
        assert upkeep.optimize(spark, opened) == 0
    assert gone == sum(record.job_id == victim for record in records)
    left = count_workq([record for record in records if record.job_id != victim]).tries
    found = open_lake(lake).read(spark, "silver/attempts")
    assert found.where(f"key = '{key}'").count() == 0
    assert ordered(found.selectExpr("ready_ns", "started_ns", "outcome")) == in_order(
        (t.ready, t.started, t.outcome) for t in left
    )
    started = open_lake(lake).read(spark, "gold/throughput_daily").selectExpr("sum(started)")
    assert started.collect()[0][0] == sum(t.started is not None for t in left)
    assert read_table(f"{lake}/silver/attempts").num_rows == len(left)
