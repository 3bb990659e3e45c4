"""The lake against a plain count of the same records: every row of silver and gold.

Three ingests fill it: half of every log; the rest, after the logs were compacted and cleaned as a
server does it; and nothing new. The second one is killed before silver and gold, and done again.
Some logs are damaged, some are those of the original programs.
"""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from datetime import UTC, date, datetime
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from journeyman.clock import SystemClock
from journeyman.columnar import read_table
from journeyman.disk import RealDisk
from journeyman.folds import ztick as ztick_fold
from journeyman.formats import kestrel, ledger, workq, ztick
from journeyman.formats.timed_frame import Instant
from journeyman.logs.holders import Holders
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.recovery import inspect_file
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.logs.ztick.run_history import RunLine, encode_run
from journeyman.servers.http.past.child import lake_days
from journeyman.spark import lake
from journeyman.spark.audit import audit_of_lake
from journeyman.spark.history.logs import attempts_of
from journeyman.spark.history.summaries import summary
from journeyman.spark.lakes import upkeep
from journeyman.spark.lakes.delta import nullable_schema_of
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.lakes.layout import TABLES
from journeyman.spark.lakes.storage import Lake, change_lake, open_lake
from journeyman.spark.redrive import SentMark, selection_of_lake
from journeyman.spark.report import report_of_lake
from journeyman.spark.sql import LogTables
from journeyman.spark.views import HOUR_NS
from tests.support import cli_commands, plain_counts
from tests.support.golden_logs import DATA
from tests.support.report_counts import Try, count_workq, count_ztick, percentile
from tests.support.snippets import snippets_of
from tests.support.spark.histories import busy_log
from tests.support.spark.written_logs import SECOND_NS, key, ns, planned, put, write_kestrel

pytestmark = pytest.mark.timeout(1200)

HOSTS = ("a", "b")
GOLDEN = {  # damage in the middle, records without an add, starts of a job that runs
    "g1": "e-crc-flipped-middle",
    "g2": "x-orphans",
    "g3": "x-start-start",
}
LOST_ITEM = 17
GOLDEN_SCHEDULE = "a_all_entry_types.log"
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
    ledger: list[ledger.Record]
    damages: Counter[tuple[str, str, int]]  # host, dialect and offset
    golden_schedule: list[ztick.Record]

    @property
    def lake(self) -> str:
        return str(self.directory / "lake")

    @property
    def logs(self) -> dict[str, list[str]]:
        return {
            "workq": [str(self.directory / "workq")],
            "ztick": [str(self.directory / "ztick")],
            "kestrel": [str(self.directory / "kestrel")],
            "ledger": [str(self.directory / "ledger")],
        }

    @property
    def tries(self) -> dict[tuple[str, str], list[Try]]:
        """By host and dialect, counted in plain Python."""
        found = {(host, "workq"): count_workq(each).tries for host, each in self.workq.items()}
        found["c", "ztick"] = count_ztick(self.ztick, self.runs, 0).tries
        found["g4", "ztick"] = count_ztick(self.golden_schedule, [], 0).tries
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


def journal() -> list[ledger.Record]:
    """Steps of jobs, of a fork of one, and of an ended one; an event that happened twice."""
    done = [
        ledger.StepDone(
            Instant(ns(n / 3)), f"{key(n % 3)}/charge#{n // 3 + 1}", ns(n % 3), f'"{n}"', 0
        )
        for n in range(18)
    ]
    forked = [
        ledger.StepDone(Instant(ns(7)), each.step.replace(key(1), key(7)), ns(7), each.value, 0)
        for each in done[:9]
        if each.step.startswith(key(1))
    ]
    return [
        *done,
        *forked,
        ledger.StepDone(Instant(ns(1)), f"{key(1)}/approval:a/b!timeout#1", ns(1), "", 0),
        ledger.StepDone(Instant(ns(8)), f"{key(2)}/#odd#2", ns(2), "AP8=", 1),
        ledger.StepDone(Instant(ns(9)), "written by nobody", ns(2), "{}", 0),
        ledger.StepForgotten(Instant(ns(2)), f"{key(0)}/charge#1"),
        ledger.EventSet(Instant(ns(1)), "approval:42", '{"items":[1,2]}', 0),
        ledger.EventForgotten(Instant(ns(4)), "approval:42"),
        ledger.EventSet(Instant(ns(5)), "approval:42", '"no\udc80"', 0),
        ledger.EventSet(Instant(ns(9)), "paid", "AP8=", 1),
    ]


def write(world: World, part: str) -> None:
    """The first half of everything, or the rest."""
    first = part == "first"
    for host in HOSTS:
        records = world.workq[host]
        middle = len(records) // 2
        chosen = records[:middle] if first else records[middle:]
        directory = world.directory / "workq" / f"host={host}"
        directory.mkdir(parents=True, exist_ok=True)
        if host == "a" and not first:
            append_and_clean(directory, chosen)
        else:
            data = b"".join(map(workq.CODEC.encode, chosen))
            (directory / f"{1 if first else 2:09d}.log").write_bytes(workq.HEADER + data)
    log = world.directory / "ztick" / "host=c" / "logfile"
    log.parent.mkdir(exist_ok=True)
    half = len(world.ztick) // 2
    if first:
        log.write_bytes(b"".join(map(ztick.CODEC.encode, world.ztick[:half])))
    else:
        append_and_compact(log, world.ztick[half:])
    write_ledger(world, first)
    runs = Path(f"{log}.runs")
    runs.mkdir(exist_ok=True)
    lines = b"".join(map(encode_run, world.runs))
    cut = len(lines) // 2
    with (runs / "1700000000000.jsonl").open("ab") as file:
        file.write(lines[:cut] if first else lines[cut:])
    items = world.items[: len(world.items) // 2] if first else world.items
    head = 3 if first else 9
    write_kestrel(world.directory / "kestrel", "jobs", [items], {"": (head, ()), "mail": (1, ())})


def append_and_clean(directory: Path, records: list[workq.Record]) -> None:
    """All that was read before goes; what was not stays, although it has expired too."""
    holders = Holders(RealDisk(), SystemClock())
    disk, clock = RealDisk(), SystemClock()
    with WorkqLog.open(disk, clock, str(directory), segment_bytes=2_000, holders=holders) as log:
        for record in records:
            log.append([record])
        report = log.clean(2**62, thorough=True)
    assert [Path(path).name for path in report.changed] == ["000000001.log"]


def append_and_compact(path: Path, records: list[ztick.Record]) -> None:
    holders = Holders(RealDisk(), SystemClock())
    with ZtickLog.open(RealDisk(), SystemClock(), str(path), holders=holders) as log:
        for record in records:
            log.append([record])
            log.compact()
    assert holders.held_bytes


def write_ledger(world: World, first: bool) -> None:
    holders = Holders(RealDisk(), SystemClock())
    half = len(world.ledger) // 2
    directory = str(world.directory / "ledger")
    with LedgerLog.open(RealDisk(), SystemClock(), directory, holders=holders) as log:
        log.append(world.ledger[:half] if first else world.ledger[half:])
        if not first:
            log.compact(lambda _: False)
            log.compact(lambda _: False)


def add_golden(directory: Path) -> tuple[dict[str, list[workq.Record]], Counter[Any]]:
    """Logs of the originals, damaged ones too, as hosts; and what our plain reader finds there."""
    found: dict[str, list[workq.Record]] = {}
    damages: Counter[Any] = Counter()
    for host, name in GOLDEN.items():
        place = directory / "workq" / f"host={host}"
        shutil.copytree(DATA / "workq" / name / "cmdlog", place)
        found[host] = []
        for path in sorted(place.glob("*.log")):
            records, offsets = read_plainly(workq.CODEC, path)
            found[host] += records
            damages.update((host, "workq", offset) for offset in offsets)
    return found, damages


def read_plainly(codec: Any, path: Path) -> tuple[list[Any], list[int]]:
    records: list[Any] = []
    report = inspect_file(RealDisk(), codec, str(path), lambda entry: records.append(entry.record))
    return records, [damage.offset for damage in report.damages]


class Killed(Exception):
    """What a kill looks like from inside."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> World:
    chance = Random(20)
    records, runs = schedule(chance)
    workq_logs = {host: busy_log(seed) for seed, host in enumerate(HOSTS)}
    items = [put(number, 7_000 * number) for number in range(1, 25) if number != LOST_ITEM]
    audits: list[ledger.Record] = [
        ledger.ActionAudited(Instant(ns(number)), "me", "api", "pause", f"q{number}", "ok")
        for number in range(10)
    ]
    audits.append(ledger.AttemptsBegun(Instant(ns(10)), "w", {"a job of another host": 1}))
    audits = sorted([*audits, *journal()], key=lambda record: record.logged.unix_ns)
    directory = tmp_path_factory.mktemp("lake")
    golden, damages = add_golden(directory)
    place = directory / "ztick" / "host=g4"
    place.mkdir(parents=True)
    shutil.copy(DATA / "ztick" / GOLDEN_SCHEDULE, place / "logfile")
    schedule_of_original, offsets = read_plainly(ztick.CODEC, place / "logfile")
    damages.update(("g4", "ztick", offset) for offset in offsets)
    world = World(
        *(directory, workq_logs | golden, records, runs, items, audits, damages),
        schedule_of_original,
    )
    write(world, "first")
    assert ingest(lambda: spark, world.lake, world.logs, host="c").files.keys() == {
        "bronze/workq",
        "bronze/ztick",
        "bronze/kestrel",
        "bronze/plans",
        "bronze/runs",
        "bronze/ledger",
    }
    write(world, "rest")
    with pytest.MonkeyPatch.context() as patch:
        _kill_before(patch, 2)  # in front of silver and gold
        with pytest.raises(Killed):
            ingest(lambda: spark, world.lake, world.logs, host="c")
    ingest(lambda: spark, world.lake, world.logs, host="c")
    done = ingest(lambda: spark, world.lake, world.logs, host="c")
    assert done.files == {}
    return world


def _kill_before(patch: pytest.MonkeyPatch, commit: int) -> None:
    real, made = Lake.commit, []

    def commit_or_die(self: Lake, *args: Any, **kwargs: Any) -> None:
        made.append(1)
        if len(made) >= commit:
            raise Killed("Killed")
        real(self, *args, **kwargs)

    patch.setattr(Lake, "commit", commit_or_die)


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
    def stored(dialect: str, what: str) -> dict[str, list[Any]]:
        """By host, in the order of the log."""
        table = read_table(f"{world.lake}/bronze/{dialect}").sort_by("_position")
        by_host: dict[str, list[Any]] = defaultdict(list)
        for row in table.select(["host", "kind", what]).to_pylist():
            if row["kind"] != "damage":
                by_host[row["host"]].append(row[what])
        return by_host

    assert stored("workq", "logged_ns") == {
        host: [record.logged.unix_ns for record in records] for host, records in world.workq.items()
    }
    assert stored("ztick", "identifier") == {
        "c": [record.identifier for record in world.ztick],
        "g4": [record.identifier for record in world.golden_schedule],
    }
    assert stored("ledger", "logged_ns") == {"c": [each.logged.unix_ns for each in world.ledger]}
    lines = rows(spark, world, "bronze/runs", "_offset", "job")
    assert [job for _, job in sorted(lines)] == [run.job for run in world.runs]


def test_every_damaged_place_is_a_row(spark, world):
    found = rows(spark, world, "silver/damage", "host", "dialect", "offset")
    assert Counter(found) == world.damages != Counter()


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
    for at, started_ns, ready_ns, on_day, wait_s in rows(spark, world, "silver/attempts", *columns):
        if started_ns is not None:
            assert at.replace(tzinfo=UTC).timestamp() == pytest.approx(started_ns / 1e9, abs=1e-6)
        if ready_ns is not None:
            assert str(on_day) == day(ready_ns)
            if started_ns is not None:
                assert wait_s == max(started_ns - ready_ns, 0) / 1e9


def test_jobs_add_up_their_attempts(spark, world):
    found = rows(spark, world, "silver/jobs", "host", "dialect", "attempts", "failures")
    for (host, dialect), tries in world.tries.items():
        mine = [row for row in found if row[:2] == (host, dialect)]
        assert sum(row[2] for row in mine) == sum(t.started is not None for t in tries)
        assert sum(row[3] for row in mine) == sum(t.outcome in FAILURES for t in tries)
    jobs = {record.identifier for record in world.ztick if isinstance(record, ztick.JobSet)}
    assert len([row for row in found if row[:2] == ("c", "ztick")]) == len(jobs)


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
    count = len(world.items)
    assert set(heads) == {("mail", 1, count // 2 - 1), ("mail", 1, count - 1)}
    behind = ("reader", "items_behind", "bytes_behind")
    (last,) = rows(spark, world, "gold/reader_lag_hourly", *behind)[-1:]
    assert last == ("mail", count - 1, sum(len(item.data) for item in world.items[1:]))


def test_steps_and_events_are_what_three_counts_find(spark, world):
    """Each once, although the ledger was compacted twice meanwhile."""
    names = ("key", "step", "number", "timed_out", "value", "base64", "added_ns", "done_ns")
    steps, happened = plain_counts.steps(world.ledger), plain_counts.events(world.ledger)
    assert rows(spark, world, "silver/steps", *names) == in_order(steps)
    assert sum(late for *_, late, _, _, _, _ in steps) == 1
    assert {key(1), key(7)} < {job for job, *_ in steps}
    readable = [
        (event, value.replace("\udc80", "?"), *others) for event, value, *others in happened
    ]
    columns = ("event", "value", "base64", "set_ns")
    assert rows(spark, world, "silver/events", *columns) == in_order(map(tuple, readable))
    assert len(happened) == 3
    counts = "SELECT step, count(*), count(DISTINCT key), max(done_ns) FROM steps GROUP BY step"
    open_lake(world.lake).read(spark, "silver/steps").createOrReplaceTempView("steps")
    by_spark = [tuple(row) for row in spark.sql(counts).collect()]
    files = DeltaTable(f"{world.lake}/silver/steps").file_uris()
    with duckdb.connect() as connection:
        connection.read_parquet(files).create_view("steps")
        by_duckdb = connection.sql(counts).fetchall()
    plain = [
        (name, len(same), len({job for job, *_ in same}), max(done for *_, done in same))
        for name in {step for _, step, *_ in steps}
        for same in [[each for each in steps if each[1] == name]]
    ]
    assert in_order(by_spark) == in_order(by_duckdb) == in_order(plain)


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
    """host, dialect, queue, what and when, as docs/pipeline.md says."""
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
    kept = open_lake(world.lake)
    kinds = sorted(set(ENDS.values()) | {"added", "due", "started"})
    hourly = kept.read(spark, "gold/throughput_hourly").selectExpr(
        "host", "dialect", "queue", "unix_micros(hour) * 1000 AS at", *kinds
    )
    daily = kept.read(spark, "gold/throughput_daily").selectExpr(
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


@pytest.mark.parametrize("unit", ["daily", "hourly"])
def test_latency_has_the_percentiles_of_every_day_and_hour(spark, world, unit):
    groups: dict[tuple[str, str, str, str | int], list[Try]] = defaultdict(list)
    for (host, dialect), tries in world.tries.items():
        for t in tries:
            if t.started is not None:
                bucket = day(t.started) if unit == "daily" else hour(t.started)
                groups[host, dialect, t.group, bucket].append(t)
    bucket_of = "string(date) AS at" if unit == "daily" else "unix_micros(hour) * 1000 AS at"
    frame = open_lake(world.lake).read(spark, f"gold/latency_{unit}").selectExpr("*", bucket_of)
    found = {(r.host, r.dialect, r.queue, r["at"]): r for r in frame.collect()}
    assert found.keys() == groups.keys()
    for place, tries in groups.items():
        row = found[place]
        assert row.started == len(tries)
        assert row.failed == sum(t.outcome in FAILURES for t in tries)
        for what, lengths in (("wait", [t.wait for t in tries]), ("run", [t.run for t in tries])):
            for name, rank in list(plain_counts.PERCENTILES.items())[:4]:
                expected = percentile(lengths, rank)
                near = plain_counts.rounded(expected)
                assert row[f"{what}_{name}_s"] == (None if near is None else near / 1e9)


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
            (plain_counts.rounded(percentile(each, 0.5)) or 0) / 1e9,
            max(each) / 1e9,
        )
        for (rule, on), each in late.items()
    )


def test_depth_is_that_of_the_whole_logs(spark, world):
    kept = [f"{world.logs['workq'][0]}/host={host}" for host in world.workq if host != "a"]
    whole = summary(attempts_of(spark, {"workq": kept}), "depth", "queue", HOUR_NS)
    expected = [
        (row["_log"].rpartition("=")[2], row.queue, row.bucket_ns, *row[4:7])
        for row in whole.select(
            "_log", "queue", "time", "bucket_ns", "scheduled", "ready", "running"
        ).collect()
    ]
    table = open_lake(world.lake).read(spark, "gold/depth_hourly")
    frame = table.where("dialect = 'workq' AND host != 'a'")
    names = ("scheduled", "ready", "running")
    found = frame.selectExpr("host", "queue", "unix_micros(hour) * 1000 AS at", *names)
    assert ordered(found) == in_order(expected)


def printed_by_the_how_to(lake: str) -> str:
    """What a program of docs/lake.md prints over this lake."""
    page = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()
    (program,) = (s.text for s in snippets_of(page) if s.title == "lake.py")
    with redirect_stdout(StringIO()) as printed:
        exec(program.replace("/lake/", f"{lake}/"), {})
    return printed.getvalue()


def test_other_tools_read_the_tables(spark, world):
    frame = open_lake(world.lake).read(spark, "silver/jobs")
    expected = tuple(frame.selectExpr("count(*)", "sum(attempts)").collect()[0])
    assert printed_by_the_how_to(world.lake) == f"[{expected}]\n"
    opened = DeltaTable(f"{world.lake}/silver/jobs")
    files = duckdb.read_parquet(opened.file_uris(), hive_partitioning=True)
    assert files.aggregate("count(*), sum(attempts)").fetchall() == [expected]
    frames = polars.read_delta(f"{world.lake}/silver/jobs")
    assert (frames.height, frames["attempts"].sum()) == expected
    table = read_table(f"{world.lake}/silver/jobs")
    assert (table.num_rows, pc.sum(table["attempts"]).as_py()) == expected
    assert lake(spark, world.lake)["jobs"].count() == expected[0]


def test_tables_have_statistics_comments_and_columns_that_are_never_null(world):
    opened = DeltaTable(f"{world.lake}/silver/attempts")
    fields = {field.name: field for field in opened.schema().fields}
    assert not fields["key"].nullable
    assert fields["queue"].nullable
    assert fields["outcome"].metadata["comment"]
    rows = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    for name in ("started_ns", "key", "ready_at", "date"):
        values = opened.to_pyarrow_table()[name]
        ends = {end: [row[f"{end}.{name}"] for row in rows] for end in ("min", "max")}
        assert min(each for each in ends["min"] if each is not None) == pc.min(values).as_py()
        assert max(each for each in ends["max"] if each is not None) == pc.max(values).as_py()
        assert sum(row[f"null_count.{name}"] for row in rows) == values.null_count


def test_every_example_query_has_an_answer(spark, world):
    page = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()
    queries = re.findall(r"^    (SELECT .*)$", page, re.MULTILINE)
    tables = LogTables(spark, {}, world.lake)
    assert len(queries) == len(tables.names) == len(TABLES)
    answers = {q.split("FROM ")[1].split()[0]: tables.query(q).collect() for q in queries}
    assert answers.keys() == set(tables.names)
    of_others = {"jobs", "runs", "depth_hourly", "reader_lag_hourly"}  # other days, names, counts
    assert {table for table, rows in answers.items() if not rows} <= of_others


def test_the_notebook_shows_the_week_of_the_lake(spark, world, monkeypatch):
    monkeypatch.setenv("LAKE", world.lake)
    path = Path(__file__).parents[2] / "examples" / "what_ran_last_week.ipynb"
    said: dict[str, Any] = {}
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), said)
    first, last = said["week"].values()
    started = [
        str_day
        for tries in world.tries.values()
        for t in tries
        if t.started is not None and str(first) <= (str_day := day(t.started)) <= str(last)
    ]
    assert sum(row.started for row in said["days"].collect()) == len(started) > 0
    assert said["reasons"].collect() != []


def test_the_report_of_a_lake_counts_what_the_logs_said(spark, world):
    report = report_of_lake(spark, open_lake(world.lake), made_ns=1, title="t")
    titles = [section.title for section in report.sections]
    assert "Week on week" not in titles  # these logs are of two days
    assert titles[-1] == "Damage"
    starts = sum(
        each.started is not None
        for (_, dialect), tries in world.tries.items()
        if dialect == "workq"
        for each in tries
    )
    (section,) = [each for each in report.sections if each.title == "Work queue"]
    tiles = {tile.name: tile.value for tile in section.tiles}
    assert tiles["Attempts"] == f"{starts:,}"


def test_the_console_shows_the_days_of_a_lake_without_spark(world):
    days = lake_days(str(world.lake), 10_000)
    assert days == sorted(days, reverse=True)
    started = Counter(
        (day(t.started), dialect)
        for (_, dialect), tries in world.tries.items()
        for t in tries
        if t.started is not None
    )
    assert Counter({(on_day, dialect): count for on_day, dialect, _, count, *_ in days}) == started


def test_an_audit_of_a_lake_finds_what_the_logs_said(spark, world):
    """Also of jobs whose records were cleaned away since."""
    found = audit_of_lake(spark, open_lake(world.lake), as_of_ns=2**62).findings
    counts = Counter(
        {
            (row["log"].partition(":")[0], row.finding): row["count"]
            for row in found.where("dialect = 'workq'").groupBy("log", "finding").count().collect()
        }
    )
    kinds = ("duplicate-execution", "vanished", "orphan", "over-limit", "overlapping-lease")
    expected = Counter(
        {
            (host, kind): number
            for host in HOSTS
            for kind, number in count_workq(world.workq[host]).findings.items()
            if number and kind in kinds
        }
    )
    mine = {key: n for key, n in counts.items() if key[0] in HOSTS and key[1] in kinds}
    assert mine == expected
    (lost,) = found.where("dialect = 'kestrel'").collect()
    assert (lost.finding, lost.key) == ("vanished", "jobs")
    assert lost.detail.startswith("ids missing: 0 before 1, 1 after it")


def test_failed_jobs_of_a_lake_can_be_sent_again(spark, world):
    """Those that the plain fold calls failed; a job is known by the same mark as in the logs."""
    states = [
        state
        for records in (world.ztick, world.golden_schedule)
        for state in ztick_fold.replay(records).values()
        if isinstance(state, ztick.JobSet) and state.status == ztick.Status.FAILED
    ]
    kept, workq_marks = open_lake(world.lake), ("key", "created_ns", "name", "payload_size")
    jobs = selection_of_lake(spark, "ztick", kept).collect()
    failed = sorted((job.identifier, job.execution_ns) for job in states)
    assert failed
    assert sorted((job.identifier, job.execution_ns) for job in jobs) == failed
    rest = selection_of_lake(spark, "ztick", kept, done=[SentMark(*failed[0])], limit=1000)
    assert sorted(job.identifier for job in rest.collect()) == [key for key, _ in failed[1:]]
    adds = {
        (str(UUID(bytes=each.job_id)), each.created.unix_ns, each.name, len(each.payload))
        for records in world.workq.values()
        for each in records
        if isinstance(each, workq.JobAdded)
    }
    work = selection_of_lake(spark, "workq", kept).select(*workq_marks, "status").collect()
    assert {row.status for row in work} == {"failed"}
    assert {tuple(row[name] for name in workq_marks) for row in work} <= adds
    shown = cli_commands.run(
        "pipeline", "redrive", "--lake", world.lake, "--dialect", "ztick", "--format", "json"
    )
    assert sorted(json.loads(line)["identifier"] for line in shown.stdout.splitlines()) == [
        key for key, _ in failed
    ]
    both = cli_commands.run("pipeline", "redrive", "--lake", world.lake)
    assert both.exit_code == 2
    assert "one dialect at a time, not ztick, workq" in both.stderr


def test_a_lake_is_merged_into_a_table_of_ones_own(tmp_path):
    """The lines of docs/lake.md."""
    with change_lake(str(tmp_path / "lake")) as opened:
        for number in (1, 2):  # job 1 goes on, job 2 is new
            jobs = [
                {
                    "key": str(key),
                    "log": "l",
                    "dialect": "workq",
                    "life": 1,
                    "host": "a",
                    "attempts": number,
                    "failures": 0,
                    "status": "completed",
                    "date": date(2026, 11, 17),
                    "is_open": False,
                }
                for key in range(1, number + 1)
            ]
            opened.change("silver/jobs", (), opened.files("silver/jobs"))
            opened.write(
                "silver/jobs", pa.Table.from_pylist(jobs, nullable_schema_of("silver/jobs"))
            )
            opened.commit(complete=True)
            page = (Path(__file__).parents[2] / "docs" / "lake.md").read_text()
            (program,) = (s.text for s in snippets_of(page) if s.title == "merge.py")
            for place in ("lake", "mine"):
                program = program.replace(f'"/{place}', f'"{tmp_path}/{place}')
            exec(program, {})
    found = read_table(str(tmp_path / "mine" / "jobs")).sort_by("key")
    assert found.select(["key", "attempts"]).to_pylist() == [
        {"key": "1", "attempts": 2},
        {"key": "2", "attempts": 2},
    ]


def test_a_key_is_forgotten_everywhere_and_files_are_joined(spark, tmp_path):
    directory = tmp_path / "workq"
    directory.mkdir()
    path, logs = str(tmp_path / "lake"), {"workq": [str(directory)]}
    records = busy_log(5, jobs=12)
    half = len(records) // 2
    for number, part in enumerate((records[:half], records[half:]), 1):
        data = workq.HEADER + b"".join(map(workq.CODEC.encode, part))
        (directory / f"{number:09d}.log").write_bytes(data)
        ingest(lambda: spark, path, logs, host="a")
    victim = records[0].job_id
    key = str(UUID(bytes=victim))
    with change_lake(path) as opened:
        gone = upkeep.forget(lambda: spark, opened, [key])
        assert upkeep.optimize(lambda: spark, opened) >= 0
        assert upkeep.optimize(lambda: spark, opened) == 0
    assert gone == sum(record.job_id == victim for record in records)
    left = count_workq([record for record in records if record.job_id != victim]).tries
    found = open_lake(path).read(spark, "silver/attempts")
    assert found.where(f"key = '{key}'").count() == 0
    assert ordered(found.selectExpr("ready_ns", "started_ns", "outcome")) == in_order(
        (t.ready, t.started, t.outcome) for t in left
    )
    started = open_lake(path).read(spark, "gold/throughput_daily").selectExpr("sum(started)")
    assert started.collect()[0][0] == sum(t.started is not None for t in left)
    assert read_table(f"{path}/silver/attempts").num_rows == len(left)
