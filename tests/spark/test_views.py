"""One counting law: DuckDB, Spark SQL and a plain Python count give the same rows of every view."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from journeyman.formats import ztick
from journeyman.spark import views
from journeyman.spark.history.columns import ATTEMPTS, RAW_ATTEMPTS
from journeyman.spark.history.logs import attempts_of
from journeyman.spark.source.options import arrow_schema
from tests.support import plain_counts
from tests.support.golden_logs import DATA
from tests.support.spark.histories import busy_log, random_log
from tests.support.spark.written_logs import (
    SECOND_NS,
    ns,
    planned,
    put,
    run,
    write_kestrel,
    write_workq,
    write_ztick,
)

pytestmark = pytest.mark.usefixtures("planned_once")

MINUTE_NS = 60 * SECOND_NS
NO_END = 2**63 - 1
BY_QUEUE = {"_log": "_log", "dialect": "dialect", "queue": views.GROUPINGS["queue"]}
AS_OF_NS, UNTIL_NS = ns(300), ns(100_000)
Rows = list[dict[str, Any]]


@dataclass
class Counted:
    """Rows of attempts for the three ways of counting."""

    frame: DataFrame
    table: pa.Table
    rows: Rows


def golden(_: Path) -> dict[str, list[str]]:
    return {
        "ztick": [str(path) for path in sorted(DATA.glob("ztick/*.log"))],
        "workq": [str(path) for path in sorted(DATA.glob("workq/*/cmdlog"))],
        "kestrel": [str(path) for path in sorted(DATA.glob("kestrel/q*"))],
    }


def generated(directory: Path) -> dict[str, list[str]]:
    chance = random.Random(5)
    names = [f"{chance.choice(['mail', 'backup'])}.{n}" for n in range(40)]
    jobs = [planned(name, number * 7.5) for number, name in enumerate(names)]
    words = ("triggered", "executed", "failed", "planned")
    more = [
        planned(name, number * 7.5, chance.choice(words))
        for number, name in enumerate(names)
        if chance.random() < 0.7
    ]
    moved = [planned(name, 900) for name in chance.sample(names, 5)]
    gone = [ztick.JobRemoved(name) for name in chance.sample(names, 5)]
    runs = [
        run(
            name,
            number * 7.5,
            number * 7.5 + chance.choice([0, 0.5, 3]),
            number * 7.5 + 4,
            chance.choice(["executed", "failed", "cut-off"]),
        )
        for number, name in enumerate(names)
        if chance.random() < 0.6
    ]
    items = [put(n, n, expires_s=n + 200 if n % 3 else None) for n in range(1, 30)]
    return {
        "workq": [
            write_workq(directory / "odd", random_log(1), random_log(2, jobs=20, records=200)),
            write_workq(directory / "busy", busy_log(3)),
        ],
        "ztick": [write_ztick(directory / "logfile", [*jobs, *more, *moved, *gone], runs)],
        "kestrel": [write_kestrel(directory / "spool", "news", [items], {"a": (9, (12,))})],
    }


def damaged(directory: Path) -> dict[str, list[str]]:
    logs = generated(directory)
    chance = random.Random(6)
    for path in directory.rglob("*"):
        if path.is_file() and ".read." not in path.name:
            data = bytearray(path.read_bytes())
            for _ in range(4):
                begin = chance.randrange(20, len(data))
                size = chance.randrange(1, 40)
                data[begin : begin + size] = chance.randbytes(min(size, len(data) - begin))
            path.write_bytes(data)
    return logs


@pytest.fixture(scope="module", params=[golden, generated, damaged], ids=lambda each: each.__name__)
def counted(request, spark: SparkSession, tmp_path_factory) -> Counted:
    logs = request.param(tmp_path_factory.mktemp("logs"))
    return counted_ways(spark, attempts_of(spark, logs).toArrow())


def counted_ways(spark: SparkSession, table: pa.Table) -> Counted:
    """Spark gets the rows alone: to plan again how they were made takes longer than any view."""
    return Counted(spark.createDataFrame(table).cache(), table, table.to_pylist())


def queue_keys(row: Mapping[str, Any]) -> dict[str, Any]:
    queue = row["queue"] if row["queue"] is not None else row["rule"]
    return {"_log": row["_log"], "dialect": row["dialect"], "queue": queue or ""}


def group_keys(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a row that may be an answer, in which the queue stands for the rule."""
    return queue_keys({"rule": None, **row})


def in_order(rows: Rows) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


Plain = Callable[[Rows], Rows]
VIEWS: dict[str, tuple[Plain, dict[str, Any]]] = {
    "happenings": (
        lambda rows: plain_counts.happenings(rows, queue_keys, UNTIL_NS),
        {"until_ns": UNTIL_NS},
    ),
    "throughput": (
        lambda rows: plain_counts.throughput(rows, queue_keys, MINUTE_NS, UNTIL_NS),
        {"bucket_ns": MINUTE_NS, "until_ns": UNTIL_NS},
    ),
    "depth_changes": (
        lambda rows: plain_counts.depth_changes(rows, queue_keys, views.HOUR_NS, NO_END),
        {"bucket_ns": views.HOUR_NS},
    ),
    "depth": (
        lambda rows: plain_counts.depth(rows, queue_keys, MINUTE_NS, UNTIL_NS),
        {"bucket_ns": MINUTE_NS, "until_ns": UNTIL_NS},
    ),
    "latency": (
        lambda rows: plain_counts.latency(rows, queue_keys, views.DAY_NS, NO_END),
        {"bucket_ns": views.DAY_NS},
    ),
    "outcomes": (lambda rows: plain_counts.outcomes(rows, queue_keys), {}),
    "groups": (lambda rows: plain_counts.groups(rows, group_keys), {}),
    "failures": (
        lambda rows: plain_counts.failures(rows, queue_keys, views.DAY_NS, NO_END),
        {"bucket_ns": views.DAY_NS},
    ),
}


def answers(counted: Counted, view: str, options: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """What DuckDB and Spark say."""
    text = views.statement(view, BY_QUEUE, as_of_ns=AS_OF_NS, **options)
    by_duckdb = views.run_in_duckdb(text, attempts=counted.table)
    frame = views.run_in_spark(counted.frame.sparkSession, text, attempts=counted.frame)
    by_spark = frame.toArrow()
    assert by_duckdb.schema.types == by_spark.schema.types
    return by_duckdb.to_pylist(), by_spark.to_pylist()


@pytest.mark.parametrize("view", VIEWS)
def test_duckdb_spark_and_a_plain_count_agree(counted, view):
    count, options = VIEWS[view]
    by_duckdb, by_spark = answers(counted, view, options)
    plain = count(plain_counts.attempts_at(counted.rows, AS_OF_NS))
    assert in_order(by_duckdb) == in_order(plain)
    assert in_order(by_spark) == in_order(plain)


def test_rows_of_attempts_stand_as_at_the_moment(counted):
    by_duckdb, by_spark = answers(counted, "attempts_at", {})
    plain = plain_counts.attempts_at(counted.rows, AS_OF_NS)
    assert in_order(by_duckdb) == in_order(plain)
    assert in_order(by_spark) == in_order(plain)


def test_percentiles_of_all_time_are_one_bucket(counted):
    by_duckdb, by_spark = answers(counted, "latency", {})
    rows = plain_counts.attempts_at(counted.rows, AS_OF_NS)
    plain = plain_counts.latency(rows, queue_keys, None, NO_END)
    assert in_order(by_duckdb) == in_order(plain) == in_order(by_spark)


def test_moments_at_the_edges_of_64_bits_are_counted(spark):
    """A damaged or hostile log may hold any number as a time."""
    edges = [None, -(2**63) + 1, -1, 0, 1, 2**63 - 2, 2**63 - 1]
    rows = [
        {
            **dict.fromkeys(ATTEMPTS.names),
            "_log": "l",
            "dialect": dialect,
            "key": "k",
            "life": 1,
            "attempt": 1,
            "first": True,
            "outcome": outcome,
            "created_ns": a,
            "ready_ns": b,
            "started_ns": c,
            "ended_ns": a,
            "expires_ns": c,
        }
        for dialect, outcome in (("workq", "failed"), ("ztick", "executed"), ("workq", "waiting"))
        for a in edges
        for b in edges
        for c in edges
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(ATTEMPTS))
    counted = counted_ways(spark, table)
    for view, (count, options) in VIEWS.items():
        by_duckdb, by_spark = answers(counted, view, options)
        plain = count(plain_counts.attempts_at(rows, AS_OF_NS))
        assert in_order(by_duckdb) == in_order(plain), view
        assert in_order(by_spark) == in_order(plain), view


def test_the_logs_of_this_test_hold_every_outcome(counted, request):
    outcomes = Counter(row["outcome"] for row in counted.rows)
    if "generated" in request.node.name:
        assert set(outcomes) == {
            *("waiting", "leased", "completed", "failed", "timed-out", "deleted", "expired"),
            *("replaced", "executed", "cut-off", "planned", "triggered", "removed", "replanned"),
            *("finished", "parked"),
        }
    assert sum(outcomes.values()) > 10


def both_engines(spark: SparkSession, text: str, **given: Rows) -> tuple[Rows, Rows]:
    """What DuckDB and Spark say about some tables."""
    tables = {name: pa.Table.from_pylist(rows) for name, rows in given.items()}
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    by_duckdb = views.run_in_duckdb(text, **tables)
    by_spark = views.run_in_spark(spark, text, **frames).toArrow()
    return by_duckdb.to_pylist(), by_spark.to_pylist()


def test_items_are_finished_once_every_reader_is_past_them(spark):
    chance = random.Random(4)
    items = [
        {"_log": log, "queue": log, "item_id": n, "put_ns": ns(n), "expires_ns": ns(n + 9)}
        | {"data_size": chance.randrange(90), "position": n}
        for log in ("a", "b", "c")
        for n in range(1, 20)
    ]
    readers = [
        {"_log": log, "queue": log, "reader": name, "head": chance.randrange(12), "tail_id": 19}
        | {"done": chance.choice([None, sorted(chance.sample(range(1, 20), 6))])}
        for log in ("a", "b")  # nobody reads the third
        for name in ("", "x", "y")
    ]
    tables: dict[str, Rows] = {"items": items, "readers": readers}
    answers = both_engines(spark, views.statement("lag"), **tables)
    plain = plain_counts.lag(items, readers)
    assert in_order(answers[0]) == in_order(plain) == in_order(answers[1])
    outcomes = plain_counts.item_outcomes(items, readers)
    assert set(outcomes.values()) == {"waiting", "finished"}
    for rows in both_engines(spark, views.statement("item_attempts"), **tables):
        assert {(row["_log"], row["key"]): row["outcome"] for row in rows} == outcomes
        assert [row for row in rows if row["ready_ns"] != row["created_ns"]] == []


def test_notes_of_a_ledger_belong_to_the_attempts_they_follow(spark):
    chance = random.Random(9)
    nothing = dict.fromkeys(RAW_ATTEMPTS.names)
    attempts: Rows = [
        nothing
        | {"_log": f"{place}/wq", "place": place, "key": key, "attempt": attempt, "life": life}
        | {"outcome": chance.choice(["failed", "completed", "leased"]), "error": "E"}
        | {"started_ns": life * 100 + attempt * 10 if attempt < 4 else None}
        | {"ended_ns": life * 100 + attempt * 10 + 5, "position": life * 100 + attempt}
        for place in ("a", "b")
        for key in ("x", "y", "z")
        for life in (1, 2)
        for attempt in (1, 2, 3, 4)
    ]
    notes = [
        {"place": row["place"], "key": row["key"], "attempt": row["attempt"]}
        | {"worker": f"w{chance.randrange(9)}", "ns": row["ended_ns"] - chance.choice([2, 9])}
        for row in attempts
        if chance.random() < 0.6
    ]
    notes += [
        {"place": place, "key": key, "attempt": None, "worker": None, "ns": ns}
        for place in ("a", "c")
        for key in ("x", "y")
        for ns in (*range(115, 235, 10), 235, 235)
    ]
    schema = pa.schema([*arrow_schema(RAW_ATTEMPTS), pa.field("place", pa.string())])
    tables = {
        "attempts": pa.Table.from_pylist(attempts, schema),
        "notes": pa.Table.from_pylist(notes),
    }
    text = views.statement("noted_attempts")
    by_duckdb = views.run_in_duckdb(text, **tables).to_pylist()
    frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
    by_spark = views.run_in_spark(spark, text, **frames).toArrow().to_pylist()
    plain = plain_counts.noted_attempts(attempts, notes)
    assert in_order(by_duckdb) == in_order(plain) == in_order(by_spark)
    assert {row["outcome"] for row in plain} > {"cancelled", "failed"}
    assert len({row["worker"] for row in plain}) > 3


def test_jobs_and_firings_of_a_lake_add_up_attempts(spark):
    chance = random.Random(3)
    keys = ["mail.1", "t@x@2026-11-17T02:00:00+01:00", "u@2026-11-17T02:00:00Z", "v@2026", "@"]
    attempts = [
        {"host": chance.choice("ab"), "log": "/l", "dialect": chance.choice(["ztick", "workq"])}
        | {"key": chance.choice(keys), "life": chance.choice([None, 1, 2]), "attempt": number % 5}
        | {"queue": chance.choice([None, "q"]), "outcome": chance.choice(["failed", "waiting"])}
        | {name: chance.choice([None, number]) for name in ("created_ns", "started_ns")}
        | {name: chance.choice([None, number]) for name in ("ready_ns", "ended_ns")}
        | {"position": number, "is_open": chance.random() < 0.5, "wait_s": 0.5, "run_s": None}
        | {"date": date(2026, 11, 1 + number % 9), "_hash": 7}
        for number in range(300)
    ]
    schema = pa.Table.from_pylist(attempts).schema
    schema = schema.set(schema.get_field_index("run_s"), pa.field("run_s", pa.float64()))
    table = pa.Table.from_pylist(attempts, schema)
    frame = spark.createDataFrame(table)
    for view, count in (("jobs", plain_counts.jobs), ("firings", plain_counts.firings)):
        text = views.statement(view)
        by_duckdb = views.run_in_duckdb(text, attempts=table).to_pylist()
        by_spark = views.run_in_spark(spark, text, attempts=frame).toArrow().to_pylist()
        plain = count(attempts)
        assert len(plain) > 10
        assert in_order(by_duckdb) == in_order(plain) == in_order(by_spark), view


def test_bytes_and_lag_are_counted_by_time(spark):
    chance = random.Random(8)
    records = [
        {"dialect": word, "ns": chance.randrange(-(10**12), 10**13), "bytes": chance.randrange(500)}
        for word in ("workq", "kestrel")
        for _ in range(60)
    ]
    text = views.statement("growth", {"dialect": "dialect"}, bucket_ns=MINUTE_NS * 7)
    answers = both_engines(spark, text, records=records)
    plain = plain_counts.growth(records, MINUTE_NS * 7)
    assert in_order(answers[0]) == in_order(plain) == in_order(answers[1])
    begin = datetime(2026, 11, 17, tzinfo=UTC)
    readers = [
        {"host": "h", "log": "/l", "queue": "q", "reader": chance.choice("ab")}
        | {"observed_at": begin + timedelta(minutes=chance.randrange(400))}
        | {"items_behind": chance.randrange(90), "bytes_behind": chance.randrange(9000)}
        for _ in range(50)
    ]
    answers = both_engines(spark, views.statement("reader_lag"), readers=readers)
    plain = plain_counts.reader_lag(readers)
    moments = [
        sorted((row["reader"], row["hour"].timestamp(), row["items_behind"]) for row in rows)
        for rows in (*answers, plain)
    ]
    assert moments[0] == moments[2] == moments[1]


def test_every_view_has_its_law():
    others = {"attempts_at", "item_attempts", "noted_attempts", "lag", "growth", "reader_lag"}
    others |= {"lengths", "plan_outcomes"}  # parts of latency and schedule_attempts
    others |= {"jobs", "firings"}
    # In test_audit.
    others |= {"job_findings", "plan_findings", "item_ids", "item_findings", "file_findings"}
    others |= {"plan_bytes", "journal_bytes", "segments", "plans", "schedule_attempts"}
    folder = Path(views.__file__).parent
    assert {file.stem for file in folder.glob("*.sql")} == others | set(VIEWS)


def test_duckdb_in_a_task_is_bounded_and_loads_nothing():
    setting = "SELECT current_setting('{}') AS value"
    names = ("threads", "autoload_known_extensions", "autoinstall_known_extensions")
    found = [views.run_in_duckdb(setting.format(name))["value"][0].as_py() for name in names]
    assert found == [1, False, False]
    limit = views.run_in_duckdb(setting.format("memory_limit"))["value"][0].as_py()
    assert limit == "488.2 MiB"  # of each task, and a slot runs one
    overflow = views.run_in_duckdb(setting.format("temp_directory"))["value"][0].as_py()
    assert overflow == tempfile.gettempdir()  # and not wherever a command was started
