"""Attempts, depth, throughput, latency and lag of small logs, known to the last row."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.errors import UsageError
from journeyman.folds import workq as fold
from journeyman.formats import ledger, workq, ztick
from journeyman.spark import read
from journeyman.spark.history import kestrel_attempts, workq_attempts, ztick_attempts
from journeyman.spark.history.columns import (
    ATTEMPTS,
    EVERY_ROW,
    RAW_ATTEMPTS,
    RowFilter,
    attempts_at,
)
from journeyman.spark.history.logs import attempts_of
from journeyman.spark.history.summaries import bucket_for, parse_bucket, summary
from journeyman.spark.history.ztick_attempts import read_runs, run_directories
from journeyman.spark.source.options import SourceOptions, arrow_schema
from journeyman.spark.views import STATES
from tests.support.spark.histories import BUSY, random_log, types
from tests.support.spark.written_logs import (
    SECOND_NS,
    added,
    at,
    event,
    job_id,
    key,
    ns,
    planned,
    put,
    run,
    write_kestrel,
    write_ledger,
    write_workq,
    write_ztick,
)

pytestmark = pytest.mark.usefixtures("compiled")  # the rest of the lane is interpreted

MINUTE_NS = 60 * SECOND_NS


def rows(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.select(*names).collect()), key=by_text)


def seconds(value: int | None) -> float | None:
    return None if value is None else (value - ns(0)) / SECOND_NS


def attempt_rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """queue, job, life, attempt, ready, started, ended (in seconds), outcome."""
    found = [
        (
            row.queue,
            int(row.key[-4:], 16) if row.dialect == "workq" else row.key,
            row.life,
            row.attempt,
            seconds(row.ready_ns),
            seconds(row.started_ns),
            seconds(row.ended_ns),
            row.outcome,
        )
        for row in frame.collect()
    ]
    return sorted(found, key=by_text)


def by_text(row: tuple[Any, ...]) -> list[str]:
    """Sorts rows with and without values alike."""
    return [repr(value) for value in row]


@pytest.fixture(scope="module")
def busy(spark: SparkSession, tmp_path_factory) -> DataFrame:
    path = write_workq(tmp_path_factory.mktemp("history") / "wq", BUSY[:9], BUSY[9:])
    return attempts_at(workq_attempts.attempts(read(spark, "workq", path))).cache()


# -- attempts ------------------------------------------------------------------------------------


def test_every_wait_and_lease_of_a_work_job_is_a_row(busy: DataFrame):
    assert types(busy.schema) == types(ATTEMPTS)
    found = attempt_rows(busy)
    # Job 9 has no add: a foreground run, or a log that was cleaned. Nobody knows its queue.
    assert (None, 9, 0, 1, None, 121, 125, "completed") in found
    assert [row for row in found if row[1] != 9] == [
        ("mail", 1, 1, 1, 0, 2, 62, "timed-out"),
        ("mail", 1, 1, 2, 62, 70, 75, "completed"),
        ("mail", 1, 2, 1, 120, None, None, "waiting"),
        ("mail", 3, 1, 1, 80, 81, 82, "failed"),
        ("mail", 3, 1, 2, 82, 90, 95, "failed"),
        ("mail", 5, 1, 1, 102, None, None, "waiting"),
        ("print", 2, 1, 1, 30, None, 96, "deleted"),
        ("print", 4, 1, 1, 100, 101, None, "leased"),
    ]
    retried = rows(busy.where("retried"), "key", "attempt", "wait_ns", "run_ns")
    assert retried == [(key(3), 1, SECOND_NS, SECOND_NS)]


def test_a_job_whose_time_is_over_has_expired_if_a_moment_is_given(spark, tmp_path):
    path = write_workq(tmp_path / "wq", BUSY)
    at_112 = attempts_at(workq_attempts.attempts(read(spark, "workq", path)), ns(112))
    assert rows(at_112.where("outcome = 'expired'"), "key", "ended_ns") == [(key(5), ns(112))]


def test_attempts_know_their_task_and_the_class_of_their_error(spark, tmp_path):
    """Payloads and results of tasks begin with these names; others say nothing."""
    failure = b'{"error":"ValueError","message":"no \\"x\\"","traceback":"..."}'
    log = [
        added(1, 0, payload=b'{"v":1,"task":"shop.send","args":["a"],"kwargs":{}}', max_fails=3),
        event("start-attempt", 1, 1),
        workq.JobFinished(at(2), job_id(1), workq.Command.FAIL, failure),
        event("timeout-attempt", 1, 2),
        event("start-attempt", 1, 3),
        workq.JobFinished(at(4), job_id(1), workq.Command.COMPLETE, b'{"error":"not one"}'),
        added(2, 5, payload=b"\xff plain"),
        event("start-attempt", 2, 6),
        workq.JobFinished(at(7), job_id(2), workq.Command.FAIL, b"went wrong"),
        event("start-attempt", 9, 8),  # its add is not in the log
        workq.JobFinished(at(9), job_id(9), workq.Command.FAIL, failure),
    ]
    frame = attempts_of(spark, {"workq": [write_workq(tmp_path / "wq", log)]})
    assert rows(frame, "key", "attempt", "task", "outcome", "error") == [
        (key(1), 1, "shop.send", "failed", "ValueError"),
        (key(1), 2, "shop.send", "completed", None),
        (key(2), 1, None, "failed", None),
        (key(9), 1, None, "failed", "ValueError"),
    ]
    (row,) = summary(frame, "failures", "task", bucket_ns=10**15).where("task != ''").collect()
    assert (row.task, row.reason, row.failures) == ("shop.send", "ValueError", 1)


def test_a_ledger_says_which_worker_leased_a_job(spark, tmp_path):
    log = write_workq(
        tmp_path / "wq",
        [
            added(1, 0),
            event("start-attempt", 1, 1),
            event("timeout-attempt", 1, 61),
            event("start-attempt", 1, 62),
            added(2, 3),
        ],
    )
    noted = [
        ledger.AttemptsBegun(at(2), "ann", {key(1): 1}),
        ledger.AttemptsBegun(at(63), "bob", {key(1): 2, key(7): 1, key(2): "odd"}),
    ]
    frame = attempts_of(spark, {"workq": [log], "ledger": [write_ledger(tmp_path, noted)]})
    assert rows(frame, "key", "attempt", "worker") == [
        (key(1), 1, "ann"),
        (key(1), 2, "bob"),
        (key(2), 1, None),
    ]


def test_a_job_that_a_client_cancelled_has_not_failed(spark, tmp_path):
    """In the command log it is a failure; the ledger beside it says at which moment."""
    failed = workq.Command.FAIL
    log = [added(number, number) for number in (1, 2, 3)]
    log += [
        event("start-attempt", 1, 4),
        *(workq.JobFinished(at(number + 4), job_id(number), failed, b"") for number in (1, 2, 3)),
    ]
    noted = [
        ledger.JobOptionsSet(at(5), key(1), {"cancelled_ns": ns(5)}),
        ledger.JobOptionsSet(at(6), key(2), {"cancelled_ns": ns(6)}),
        ledger.JobOptionsSet(at(1), key(3), {"cancelled_ns": ns(1)}),  # a power cut, then a failure
    ]
    for host in ("a", "b"):
        write_workq(tmp_path / host / "wq", log)
    logs = {
        "workq": [str(tmp_path / host / "wq") for host in ("a", "b")],
        "ledger": [write_ledger(tmp_path / "a", noted)],
    }
    frame = attempts_of(spark, logs)
    on_a = frame.where(F.col("_log").endswith("a/wq"))
    assert rows(on_a, "key", "started_ns", "ended_ns", "outcome") == [
        (key(1), ns(4), ns(5), "cancelled"),
        (key(2), None, ns(6), "cancelled"),
        (key(3), None, ns(7), "failed"),
    ]
    others = frame.where(F.col("_log").endswith("b/wq")).select("outcome").distinct().collect()
    assert others == [("failed",)]
    (row,) = summary(on_a, "throughput", "log", bucket_ns=10**15).collect()
    assert (row.cancelled, row.failed, row.started) == (2, 1, 1)


def test_equal_ids_of_two_logs_are_two_jobs(spark, tmp_path):
    one = write_workq(tmp_path / "host=a", [added(1, 0), event("start-attempt", 1, 1)])
    two = write_workq(tmp_path / "host=b", [added(1, 0), event("complete", 1, 5)])
    found = workq_attempts.attempts(read(spark, "workq", one, two))
    assert rows(found, "_log", "outcome") == [(one, "leased"), (two, "completed")]


def test_rows_and_depth_end_where_the_fold_ends(spark, tmp_path):
    log = random_log(1)
    third = len(log) // 3
    path = write_workq(tmp_path / "wq", log[:third], log[third : 2 * third], log[2 * third :])
    found = workq_attempts.attempts(read(spark, "workq", path)).cache()
    states = {k: v for k, v in fold.replay(log).items() if isinstance(v, fold.FoldedJob)}
    lives: dict[str, list[Any]] = {}
    for row in found.where("life > 0").collect():
        last = lives.setdefault(row.key, [])
        if last and last[0].life < row.life:
            last.clear()
        if not last or last[0].life == row.life:
            last.append(row)
    for job, state in states.items():
        attempts = lives[f"{job.hex()[:8]}-0000-4000-8000-{job.hex()[20:]}"]
        assert sum(row.started_ns is not None for row in attempts) == state.attempts
        assert sum(row.retried for row in attempts) == state.fails
    ended = dict.fromkeys(STATES, 0)
    for row in summary(attempts_at(found), "depth_changes", "log", MINUTE_NS).collect():
        for name in STATES:
            ended[name] += row[name]
    waiting = (fold.JobState.NEW, fold.JobState.PENDING)
    ready = [s for s in states.values() if s.state in waiting and s.parked is None]
    assert ended["ready"] == len(ready) < sum(s.state in waiting for s in states.values())
    assert ended["running"] == sum(s.state == fold.JobState.LEASED for s in states.values())
    assert ended["scheduled"] == 0  # without an end every scheduled job becomes ready in time


def test_time_in_a_park_is_neither_a_wait_nor_a_run(spark, tmp_path):
    log = [
        added(1, 0),
        added(2, 0),
        *(event("start-attempt", number, 2) for number in (1, 2)),
        *(event("park", number, 5) for number in (1, 2)),
        *(event("timeout-attempt", number, 5) for number in (1, 2)),  # for the original
        event("wake", 1, 1000),
        event("start-attempt", 1, 1004),
        event("complete", 1, 1005),
    ]
    found = attempts_of(spark, {"workq": [write_workq(tmp_path / "wq", log)]})
    assert [row[1:] for row in attempt_rows(found)] == [
        (1, 1, 1, 0, 2, 5, "parked"),
        (1, 1, 2, 1000, 1004, 1005, "completed"),
        (2, 1, 1, 0, 2, 5, "parked"),
        (2, 1, 2, None, None, None, "waiting"),
    ]
    lengths = rows(found.where("started_ns IS NOT NULL"), "wait_ns", "run_ns")
    assert lengths == [(s * SECOND_NS, r * SECOND_NS) for s, r in ((2, 3), (2, 3), (4, 1))]
    depths = summary(found, "depth", "queue", SECOND_NS).orderBy("bucket_ns").collect()
    by_second = [(seconds(row.bucket_ns), row.ready, row.running) for row in depths]
    assert by_second == [
        *((0, 2, 0), (2, 0, 2), (5, 0, 0)),
        *((1000, 1, 0), (1004, 0, 1), (1005, 0, 0)),
    ]
    (counted,) = summary(found, "throughput", "queue", 10_000 * SECOND_NS).collect()
    assert (counted.started, counted.completed, counted.failed, counted.timed_out) == (3, 1, 0, 0)


def test_runs_and_plans_of_a_schedule_meet(spark, tmp_path):
    log = write_ztick(
        tmp_path / "log file+1%",
        [
            ztick.RuleSet("mail", "mail.", ztick.Shell("true")),
            planned("mail.1", 10),
            planned("mail.1", 10, "triggered"),
            planned("mail.1", 10, "executed"),
            planned("mail.2", 20),
            planned("mail.2", 25),
            planned("mail.3", 30),
            ztick.JobRemoved("mail.3"),
            planned("mail.4", 40),
            planned("mail.4", 40, "triggered"),
            planned("lonely", 50),
            planned("lonely", 50, "failed"),
        ],
        [
            run("mail.1", 10, 10.5, 12),
            run("mail.4", 40, 41, 43, "cut-off"),
            replace(run("mail.4", 40, 60, 61, "failed"), detail="exit code 3"),
            run("gone.1", 5, 5, 6),
        ],
    )
    with open(f"{log}.runs/1700000000000.jsonl", "ab") as file:
        file.write(b'{"job":"torn","execution_ns":5,"sta')
    options = SourceOptions.parse("ztick", {"path": log})
    runs = read_runs(spark, run_directories(options))
    frame = attempts_at(ztick_attempts.attempts(read(spark, "ztick", log), runs))
    assert types(frame.schema) == types(ATTEMPTS)
    assert attempt_rows(frame) == sorted(
        [
            (None, "mail.1", None, 1, 10, 10.5, 12, "executed"),
            (None, "mail.2", None, 1, 20, None, None, "replanned"),
            (None, "mail.2", None, 1, 25, None, None, "planned"),
            (None, "mail.3", None, 1, 30, None, None, "removed"),
            (None, "mail.4", None, 1, 40, 41, 43, "cut-off"),
            (None, "mail.4", None, 2, 40, 60, 61, "failed"),
            (None, "lonely", None, 1, 50, None, None, "failed"),
            (None, "gone.1", None, 1, 5, 5, 6, "executed"),
        ],
        key=by_text,
    )
    errors = rows(frame.where("error IS NOT NULL"), "key", "attempt", "error")
    assert errors == [("mail.4", 2, "exit code 3")]
    late = rows(frame.where("key = 'mail.1'"), "_log", "rule", "runner", "wait_ns", "run_ns")
    assert late == [(log, "mail", "shell", SECOND_NS // 2, 3 * SECOND_NS // 2)]


def test_a_schedule_without_noted_runs_has_its_plans(spark, tmp_path):
    log = write_ztick(tmp_path / "logfile", [planned("a.1", 1), planned("b.1", 2, "executed")])
    directories = run_directories(SourceOptions.parse("ztick", {"path": log}))
    assert directories == {}
    runs = read_runs(spark, directories)
    frame = ztick_attempts.attempts(read(spark, "ztick", log), runs)
    assert rows(frame, "key", "outcome", "started_ns") == [
        ("a.1", "planned", None),
        ("b.1", "executed", None),
    ]


# -- what is computed from attempts --------------------------------------------------------------


def test_depth_rises_and_falls_with_the_jobs(busy: DataFrame):
    found = summary(busy, "depth", "queue", MINUTE_NS)
    # Buckets begin at whole minutes of the clock; these logs begin 20 seconds after one.
    base = ns(0) - ns(0) % MINUTE_NS
    got = [
        (row.queue, (row.bucket_ns - base) // MINUTE_NS, row.scheduled, row.ready, row.running)
        for row in found.orderBy("queue", "bucket_ns").collect()
    ]
    assert got == [
        ("mail", 0, 0, 0, 1),
        ("mail", 1, 0, 0, 0),
        ("mail", 2, 0, 2, 0),
        ("print", 0, 0, 1, 0),
        ("print", 1, 0, 0, 0),
        ("print", 2, 0, 0, 1),
    ]
    early = summary(busy, "depth", "queue", SECOND_NS, until_ns=ns(10))
    waiting = early.where("queue = 'print'").collect()
    assert [(row.scheduled, row.ready) for row in waiting] == [(1, 0)]


def test_throughput_counts_what_happened_in_each_bucket(busy: DataFrame):
    found = summary(busy, "throughput", "queue", 1000 * SECOND_NS).collect()
    totals = {
        row.queue: (row.added, row.started, row.completed, row.failed, row.timed_out, row.deleted)
        for row in found
    }
    assert totals == {
        "mail": (4, 4, 1, 2, 1, 0),
        "print": (2, 1, 0, 0, 0, 1),
        "": (0, 1, 1, 0, 0, 0),
    }


def test_rows_and_buckets_are_chosen_by_time_and_condition(busy: DataFrame):
    """A row counts if one of its moments lies in the time asked for, the end not included."""
    chosen = RowFilter(ns(62), ns(81), "queue = 'mail'")
    assert [row[1:5] for row in attempt_rows(chosen.rows(busy))] == [
        (1, 1, 1, 0),
        (1, 1, 2, 62),
        (3, 1, 1, 80),
    ]
    assert attempt_rows(EVERY_ROW.rows(busy)) == attempt_rows(busy)
    counted = chosen.buckets(
        summary(chosen.rows(busy), "throughput", "queue", SECOND_NS), SECOND_NS
    )
    begins = [row.bucket_ns - ns(0) for row in counted.sort("bucket_ns").collect()]
    assert begins == [62 * SECOND_NS, 70 * SECOND_NS, 75 * SECOND_NS, 80 * SECOND_NS]
    # Job 4 begins to run; that job 2 came and went before counts in the sums.
    late = RowFilter(since_ns=ns(101), condition="queue = 'print'")
    deep = summary(late.of_condition(busy), "depth", "queue", SECOND_NS)
    found = late.buckets(deep, SECOND_NS).collect()
    assert [(row.ready, row.running) for row in found] == [(0, 1)]


def test_percentiles_of_waits_and_runs(spark, tmp_path):
    log = []
    for number in range(1, 101):
        log += [added(number, number), event("start-attempt", number, number + number / 10)]
        log.append(event("complete", number, number + number / 10 + number / 100))
    frame = workq_attempts.attempts(read(spark, "workq", write_workq(tmp_path / "wq", log)))
    frame = attempts_at(frame)
    (row,) = summary(frame, "latency").collect()
    waits = [row.wait_p50_ns, row.wait_p90_ns, row.wait_p99_ns, row.wait_p999_ns, row.wait_max_ns]
    assert [wait / SECOND_NS for wait in waits] == [5, 9, 9.9, 10, 10]
    assert row.run_p50_ns == SECOND_NS // 2
    assert (row.started, row.failed) == (100, 0)
    by_time = summary(frame, "latency", bucket_ns=MINUTE_NS).collect()
    assert sum(row.started for row in by_time) == 100
    assert len(by_time) == 3


def test_rows_are_grouped_by_queue_task_rule_prefix_or_log(spark):
    values = [
        ("l", "workq", "k1", "mail.out", "shop.send", None),
        ("l", "ztick", "backup.db.daily", None, None, "nightly"),
        ("l", "ztick", "lonely", None, None, None),
        ("l", "kestrel", "7", "items:x", None, None),
    ]
    names = ("_log", "dialect", "key", "queue", "task", "rule")
    shared = {**dict.fromkeys(RAW_ATTEMPTS.names), "first": True, "outcome": "waiting"}
    rows = [{**shared, **dict(zip(names, row, strict=True))} for row in values]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(RAW_ATTEMPTS))
    frame = spark.createDataFrame(table).cache()
    found = {
        by: sorted(row[by] for row in summary(frame, "outcomes", by).collect())
        for by in ("queue", "task", "rule", "prefix")
    }
    assert found == {
        "queue": ["", "items:x", "mail.out", "nightly"],
        "task": ["", "shop.send"],
        "rule": ["", "items:x", "mail.out", "nightly"],
        "prefix": ["backup", "items", "lonely", "mail"],
    }
    (row,) = summary(frame, "outcomes", "log").collect()
    assert (row["_log"], row.attempts) == ("l", 4)
    with pytest.raises(UsageError, match="worker, rule, prefix, log, not by 'colour'"):
        summary(frame, "outcomes", "colour")


def test_buckets_are_read_and_chosen():
    assert parse_bucket("1m") == MINUTE_NS
    assert parse_bucket("250 ms") == 250_000_000
    assert parse_bucket("36h") == 36 * 60 * MINUTE_NS
    for text in ("", "0s", "1", "m", "-1s", "1.5h", "1w"):
        with pytest.raises(UsageError, match="duration such as"):
            parse_bucket(text)
    with pytest.raises(UsageError, match="at most 36500d"):
        parse_bucket("999999999d")
    assert bucket_for(0, 200) == 10**6
    assert bucket_for(3600 * SECOND_NS, 300) == 15 * SECOND_NS
    for span in (1, 10**9, 10**12, 10**15, 10**18, 2**62):
        assert span // bucket_for(span, 200) + 1 <= 200


# -- kestrel -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def journal(spark: SparkSession, tmp_path_factory) -> dict[str, DataFrame]:
    from journeyman.spark.replay import states

    directory: Path = tmp_path_factory.mktemp("journal") / "spool"
    items = [put(n, n, size=10 * n, expires_s=50 if n == 6 else None) for n in range(1, 9)]
    write_kestrel(directory, "news", [items[:4], items[4:]], {"a": (5, (7,)), "b": (8, ())})
    write_kestrel(directory, "idle", [[put(1, 1)]], {"": (1, ())})
    return states(spark, "kestrel", [str(directory)])


def test_items_wait_until_every_reader_is_past_them(journal):
    frame = attempts_at(kestrel_attempts.attempts(journal["items"], journal["readers"]), ns(60))
    assert types(frame.schema) == types(ATTEMPTS)
    outcomes = {(row.queue, int(row.key)): row.outcome for row in frame.collect()}
    assert outcomes == {
        **{("news", n): "finished" for n in (1, 2, 3, 4, 5, 7)},
        ("news", 6): "expired",
        ("news", 8): "waiting",
        ("idle", 1): "finished",
    }


def test_lag_is_what_is_before_each_reader(journal):
    found = kestrel_attempts.lag(journal["items"], journal["readers"])
    names = ("queue", "reader", "items_behind", "bytes_behind", "oldest_ns")
    assert rows(found, *names) == [
        ("idle", "", 0, 0, None),
        ("news", "a", 2, 140, ns(6)),
        ("news", "b", 0, 0, None),
    ]
