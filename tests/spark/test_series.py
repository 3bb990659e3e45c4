"""Figures over time agree with the views of the lake, on logs that a server could have written."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from journeyman.formats import workq
from journeyman.servers.series.answers import read_series, summarize
from journeyman.servers.series.cells import COUNTS, DEPTHS
from journeyman.servers.series.lengths import bucket_of
from journeyman.spark import views
from journeyman.spark.history.logs import attempts_of
from journeyman.units import NS_PER_S
from tests.support.followed_series import followed, runs_lane_of, wanted, work_lane_of
from tests.support.spark.histories import busy_log
from tests.support.spark.written_logs import BORN_NS, planned, run, write_workq, write_ztick

pytestmark = pytest.mark.usefixtures("planned_once")

BORN_S = BORN_NS // NS_PER_S
END_S = BORN_S + 165_000  # within two days of the first record: all minutes are kept
MINUTE_NS, HOUR_NS = 60 * NS_PER_S, 3600 * NS_PER_S
BY_QUEUE = {"queue": views.GROUPINGS["queue"]}


def of_tasks(records: list[workq.Record]) -> list[workq.Record]:
    """The same records with payloads and results that name tasks and errors."""
    named: list[workq.Record] = []
    for number, record in enumerate(records):
        if isinstance(record, workq.JobAdded):
            task = ("shop.send_mail", "shop.print", "")[number % 3]
            payload = b'{"v":1,"task":"%s","args":[]}' % task.encode() if task else b"other"
            named.append(replace(record, payload=payload))
        elif isinstance(record, workq.JobFinished) and record.command == workq.Command.FAIL:
            error = (b'{"error":"ValueError","message":"no"}', b"no JSON")[number % 2]
            named.append(replace(record, result=error))
        else:
            named.append(record)
    return named


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = of_tasks([*busy_log(7, jobs=400)])
    half = len(records) // 2
    return write_workq(tmp_path_factory.mktemp("log"), records[:half], records[half:])


@pytest.fixture(scope="module")
def lane(log: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return followed(work_lane_of(log, tmp_path_factory.mktemp("kept"), END_S))


@pytest.fixture(scope="module")
def table(log: str, spark: SparkSession) -> Any:
    return attempts_of(spark, {"workq": [log]}).toArrow()


def rows_of(table: Any, view: str, **options: Any) -> list[dict[str, Any]]:
    statement = views.statement(view, options.pop("keys", BY_QUEUE), **options)
    return views.run_in_duckdb(statement, attempts=table).to_pylist()


@pytest.mark.parametrize("step_s", [60, 3600])
@pytest.mark.parametrize("queue", ["mail", "print"])
def test_counts_are_those_of_throughput(lane, table, queue: str, step_s: int):
    found = read_series(lane, wanted(f"queue:{queue}", BORN_S, END_S, step_s), COUNTS)
    rows = rows_of(table, "throughput", bucket_ns=step_s * NS_PER_S)
    expected = {row["bucket_ns"] // NS_PER_S: row for row in rows if row["queue"] == queue}
    seen = 0
    for at, begin_s in enumerate(found.times_s):
        row = expected.get(begin_s, {})
        for name in COUNTS:
            assert found.figures[name][at] == row.get(name, 0), (begin_s, name)
            seen += row.get(name, 0)
    assert seen == sum(row[name] for row in expected.values() for name in COUNTS) > 500


@pytest.mark.parametrize("step_s", [60, 3600])
@pytest.mark.parametrize("queue", ["mail", "print"])
def test_depths_are_those_of_the_lake(lane, table, queue: str, step_s: int):
    found = read_series(lane, wanted(f"queue:{queue}", BORN_S, END_S, step_s), DEPTHS)
    rows = rows_of(table, "depth", bucket_ns=step_s * NS_PER_S)
    changes = {row["bucket_ns"] // NS_PER_S: row for row in rows if row["queue"] == queue}
    expected: dict[str, int] = dict.fromkeys(DEPTHS, 0)
    highest = 0
    for at, begin_s in enumerate(found.times_s):
        if begin_s in changes:
            expected = {name: changes[begin_s][name] for name in DEPTHS}
        assert {name: found.figures[name][at] or 0 for name in DEPTHS} == expected, begin_s
        highest = max(highest, *expected.values())
    assert highest > 10


def test_failures_are_those_of_the_lake_by_class_of_error(lane, table):
    found = read_series(lane, wanted("queue:mail", BORN_S, END_S, 3600), ["failures"])
    rows = rows_of(table, "failures", bucket_ns=HOUR_NS)
    expected = Counter[tuple[int, str]]()
    for row in rows:
        if row["queue"] == "mail":
            expected[row["bucket_ns"] // NS_PER_S, row["reason"]] += row["failures"]
    seen = {
        (begin_s, error): counts[at]
        for error, counts in found.errors.items()
        for at, begin_s in enumerate(found.times_s)
        if counts[at]
    }
    assert seen == dict(expected)
    assert {"ValueError", "failed", "timed-out"} <= {error for _, error in seen}


def test_waits_and_runs_of_a_task_are_those_of_the_lake(lane, table):
    (found,) = summarize(lane, wanted("task:shop.send_mail", BORN_S, END_S))
    statement = views.statement("attempts_at")
    attempts = views.run_in_duckdb(statement, attempts=table).to_pylist()
    waits, runs = Counter[int](), Counter[int]()
    for row in attempts:
        if row["task"] == "shop.send_mail" and row["started_ns"] is not None:
            waits[bucket_of(row["wait_ns"])] += 1
            if row["run_ns"] is not None:
                runs[bucket_of(row["run_ns"])] += 1
    assert (found.cell.wait, found.cell.run) == (waits, runs)
    assert sum(runs.values()) > 50
    assert found.others == ["mail", "print"]


def test_percentiles_are_those_of_latency_within_a_sixteenth(lane, table):
    names = ("wait_p50", "wait_p90", "wait_p99")
    found = read_series(lane, wanted("queue:mail", BORN_S, END_S, 3600), names)
    rows = rows_of(table, "latency", bucket_ns=HOUR_NS)
    expected = {row["bucket_ns"] // NS_PER_S: row for row in rows if row["queue"] == "mail"}
    compared = 0
    for at, begin_s in enumerate(found.times_s):
        for name in names:
            value = found.figures[name][at]
            row = expected.get(begin_s)
            if row is None or row[f"{name}_ns"] is None:
                assert value is None
            else:
                assert value == pytest.approx(row[f"{name}_ns"] / 1e6, rel=1 / 16)
                compared += 1
    assert compared > 60


def test_runs_of_a_schedule_are_those_of_the_lake(spark: SparkSession, tmp_path: Path):
    outcomes = ("executed", "failed", "cut-off")
    jobs = [(f"backup.{n}", n * 90.0, outcomes[n % 3]) for n in range(60)]
    runs = [
        run(name, due, due + n % 7, due + n % 7 + 3, how) for n, (name, due, how) in enumerate(jobs)
    ]
    path = write_ztick(tmp_path / "logfile", [planned(name, due) for name, due, _ in jobs], runs)
    lane = followed(runs_lane_of(f"{path}.runs", tmp_path, BORN_S + 10_000))
    table = attempts_of(spark, {"ztick": [path]}).toArrow()
    names = ("started", "completed", "failed", "cut_off")
    found = read_series(lane, wanted("rule:backup", BORN_S, BORN_S + 10_000), names)
    ended = Counter[tuple[int, str]]()
    for row in rows_of(table, "throughput", bucket_ns=MINUTE_NS):
        if row["queue"] == "backup":
            for name in names[1:]:
                ended[row["bucket_ns"] // NS_PER_S, name] += row[name]
    seen = Counter[tuple[int, str]]()
    for name in names[1:]:
        for begin_s, value in zip(found.times_s, found.figures[name], strict=True):
            seen[begin_s, name] += int(value or 0)
    assert +seen == +ended
    assert sum(value or 0 for value in found.figures["started"]) == 60
