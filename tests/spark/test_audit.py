"""Audits of small logs with known faults, and the account of bytes beside that of verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from journeyman.cli.errors import warn
from journeyman.cli.reading import map_log
from journeyman.cli.verify import inspect_log
from journeyman.disk import RealDisk
from journeyman.errors import UsageError
from journeyman.formats import kestrel, ztick
from journeyman.logs.detection import LogFinder
from journeyman.spark import views
from journeyman.spark.audit import audit
from journeyman.spark.findings import (
    FINDINGS,
    SEGMENTS,
    SEVERITIES,
    SEVERITY,
    count_findings,
    most_serious,
)
from tests.support import plain_counts
from tests.support.spark.histories import random_log, types
from tests.support.spark.written_logs import (
    SECOND_NS,
    added,
    event,
    key,
    ns,
    planned,
    put,
    run,
    write_kestrel,
    write_workq,
    write_ztick,
)

pytestmark = pytest.mark.usefixtures("planned_once")

GRACE_NS = 10 * SECOND_NS
Account = dict[str, tuple[int, int, int, int]]


def found(rows: list[Row], *logs: str) -> list[tuple[str, str | None]]:
    """(finding, key) of all but dead bytes, in logs whose names begin so."""
    told = [
        (row.finding, row.key)
        for row in rows
        if row.finding != "dead-bytes" and row.log.startswith(logs or "")
    ]
    return by_name(told)


def by_name(told: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    return sorted(told, key=lambda each: (each[0], each[1] or ""))


def details(rows: list[Row], finding: str, dialect: str) -> list[str]:
    return sorted(row.detail for row in rows if (row.finding, row.dialect) == (finding, dialect))


def accounts(path: str, as_of_ns: int) -> Account:
    """What verify says: records, live, dead and damaged bytes by file."""
    disk = RealDisk()
    reports = [
        inspect_log(map_log(disk, log, compacted=True), as_of_ns, lambda _: None)
        for log in LogFinder(disk, warn).find([path])
    ]
    return {
        file.file: (file.records, file.live_bytes, file.dead_bytes, file.damaged_bytes)
        for report in reports
        for file in report.files
        if file.records or file.damaged_bytes
    }


def segments(rows: list[Row]) -> Account:
    return {
        row._file: (row.records, row.live_bytes, row.dead_bytes, row.damaged_bytes) for row in rows
    }


# -- one log of each dialect with one of each fault ----------------------------------------------


def faulty_schedule(path: Path) -> str:
    records = [
        ztick.RuleSet("job", "job.", ztick.Shell("true")),
        planned("job.good", 10),
        planned("job.good", 10, "executed"),
        planned("job.twice", 20),
        planned("job.twice", 20, "executed"),
        planned("job.again", 30),
        planned("job.again", 30, "executed"),
        planned("job.again", 30),
        planned("job.again", 30, "executed"),
        planned("job.missed", 40),
        planned("job.hung", 50),
        planned("job.hung", 50, "triggered"),
        planned("job.soon", 95),  # its time is over, but within the grace
        planned("job.later", 500),
        planned("job.gone", 5),
        ztick.JobRemoved("job.gone"),
        ztick.JobRemoved("job.unknown"),
    ]
    runs = [
        run("job.good", 10, 11, 12),
        run("job.twice", 20, 21, 22),
        run("job.twice", 20, 25, 26, "failed"),
        run("job.again", 30, 31, 32),  # planned twice, run twice
        run("job.again", 30, 35, 36),
        run("job.hung", 50, 51, 52, "cut-off"),
    ]
    return write_ztick(path, records, runs)


def compacted_schedule(path: Path) -> str:
    """Two files, and damage in one of them."""
    log = write_ztick(path, [planned("a", 1, "executed"), planned("c", 300)])
    compressed = [planned("a", 1), planned("b", 200), ztick.RuleSet("r", "a", ztick.Shell("x"))]
    Path(f"{log}.compressed").write_bytes(b"".join(map(ztick.CODEC.encode, compressed)))
    with open(log, "ab") as file:
        file.write(b"\0\0\0\x05\xee\xee\xee\xee\xee" + ztick.CODEC.encode(planned("d", 400)))
    return log


FAULTY_JOBS = [
    added(1, 0),
    event("start-attempt", 1, 1),
    event("complete", 1, 2),
    event("start-attempt", 1, 3),  # ran again although finished
    event("complete", 1, 4),
    added(2, 5, max_attempts=1),
    event("start-attempt", 2, 6),
    event("start-attempt", 2, 7),  # two workers at once, and over the limit
    added(3, 10),
    added(3, 20, queue="other"),  # the first life has no end
    event("timeout-attempt", 4, 30),  # nobody knows job 4
    added(5, 40, ttl_s=5),  # expires unrun
    added(6, 40, due_s=50),  # due, and nobody came
    added(7, 40, due_s=95),  # due, but within the grace
    added(8, 40, ttl_s=5),
    event("start-attempt", 8, 41),  # expires, but was tried
    added(9, 60),
    event("complete", 9, 61),
    added(9, 62, queue="other"),  # a finished job whose delete the log has lost: harmless
]


def faulty_queues(spool: Path) -> str:
    items = [[put(1, 1), put(2, 2), put(4, 4)], [put(7, 7), put(8, 8), put(8, 9, size=3)]]
    write_kestrel(spool, "holes", items, {"far": (20, ()), "ok": (2, (4,)), "odd": (1, (30,))})
    write_kestrel(spool, "late", [[put(10, 1), put(11, 2)]], {"slow": (3, ())})
    write_kestrel(spool, "fine", [[put(1, 1), put(2, 2)]], {"": (1, ())})
    write_kestrel(spool, "fresh", [[put(1, 1)]], {})
    (spool / "fine.read.bad").write_bytes(kestrel.READER_MAGIC + b"\x77garbage")
    return str(spool)


@dataclass
class Faulty:
    logs: dict[str, list[str]]
    rows: list[Row]
    segments: Account
    count_findings: list[Row]
    serious: list[Row]
    asked: list[Asked]


def damaged_queue(path: Path) -> str:
    """Random jobs in three segments, one of which is damaged."""
    log = random_log(3)
    third = len(log) // 3
    queue = write_workq(path, log[:third], log[third : 2 * third], log[2 * third :])
    damaged = Path(queue) / "000000002.log"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 0xFF
    damaged.write_bytes(data)
    return queue


@pytest.fixture(scope="module")
def faulty(spark: SparkSession, tmp_path_factory) -> Faulty:
    here = tmp_path_factory.mktemp("faulty")
    logs = {
        "ztick": [faulty_schedule(here / "zt"), compacted_schedule(here / "compacted")],
        "workq": [
            write_workq(here / "wq", FAULTY_JOBS),
            write_workq(here / "empty", []),
            damaged_queue(here / "random"),
        ],
        "kestrel": [faulty_queues(here / "spool")],
    }
    asked: list[Asked] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "run_in_spark", partial(noted, asked, views.run_in_spark))
        result = audit(spark, logs, as_of_ns=ns(100), grace_ns=GRACE_NS)
    assert types(result.findings.schema) == types(FINDINGS)
    assert types(result.segments.schema) == types(SEGMENTS)
    return Faulty(
        logs,
        result.findings.collect(),
        segments(result.segments.collect()),
        count_findings(result.findings).collect(),
        most_serious(result.findings, 3).collect(),
        asked,
    )


@dataclass
class Asked:
    """A view that the audit asked Spark for."""

    statement: str
    tables: dict[str, DataFrame]


def noted(
    asked: list[Asked],
    run: Callable[..., DataFrame],
    spark: SparkSession,
    statement: str,
    **tables: DataFrame,
) -> DataFrame:
    asked.append(Asked(statement, tables))
    return run(spark, statement, **tables)


def test_a_schedule_that_ran_twice_late_or_not_at_all(faulty):
    assert found(faulty.rows, faulty.logs["ztick"][0]) == [
        ("cut-off-run", "job.hung"),
        ("duplicate-execution", "job.twice"),
        ("missed-run", "job.missed"),
        ("never-executed", "job.hung"),
        ("orphan", "job.unknown"),
    ]
    assert details(faulty.rows, "duplicate-execution", "ztick") == [
        (
            "ran 2 times for 2023-11-14T22:13:40.000Z: "
            "first 2023-11-14T22:13:41.000Z, last 2023-11-14T22:13:45.000Z"
        )
    ]
    compacted = faulty.logs["ztick"][1]
    assert found(faulty.rows, compacted) == [("damage", None)]
    dead = details(faulty.rows, "dead-bytes", "ztick")
    assert any(text.endswith(f"of {compacted}.compressed") for text in dead)


def test_a_work_queue_with_one_of_each_fault(faulty):
    assert found(faulty.rows, faulty.logs["workq"][0]) == by_name(
        [
            ("duplicate-execution", key(1)),
            ("duplicate-execution", key(1)),
            ("overlapping-lease", key(2)),
            ("vanished", key(3)),
            ("orphan", key(4)),
            ("expired-unrun", key(5)),
            ("missed-run", key(6)),
        ]
    )
    assert found(faulty.rows, faulty.logs["workq"][1]) == []


def test_queues_with_holes_and_readers_that_cannot_be_right(faulty):
    spool = faulty.logs["kestrel"][0]
    assert found(faulty.rows, spool) == by_name(
        [
            ("checkpoint-damaged", "bad"),
            ("damage", None),
            ("reader-ahead", "far"),
            ("reader-ahead", "odd"),
            ("reader-behind", "slow"),
            ("reused-id", "8"),
            ("vanished", "holes"),
            ("vanished", "holes"),
        ]
    )
    files = [f"{spool}/holes.{1_700_000_000_000 + number}" for number in (0, 1)]
    assert details(faulty.rows, "vanished", "kestrel") == [
        f"ids missing: 0 before 1, 1 after it in {files[0]}",
        f"ids missing: 2 before 7, 0 after it in {files[1]}",
    ]


def test_every_finding_says_how_serious_it_is_and_the_summary_counts_them(faulty):
    assert all(SEVERITY[row.finding] == row.severity for row in faulty.rows)
    assert all(row.detail and row.log and row.dialect for row in faulty.rows)
    assert sum(row["count"] for row in faulty.count_findings) == len(faulty.rows)
    ranks = [SEVERITIES.index(row.severity) for row in faulty.count_findings]
    assert ranks == sorted(ranks)
    (twice,) = [row for row in faulty.count_findings if row.finding == "duplicate-execution"]
    named = [row.log for row in faulty.rows if row.finding == "duplicate-execution"]
    assert (twice["count"], twice.logs) == (len(named), len(set(named)))
    assert {row.severity for row in faulty.serious} == {"serious"}


def test_bytes_are_live_and_dead_as_verify_says(faulty):
    expected: Account = {}
    for paths in faulty.logs.values():
        for path in paths:
            expected |= accounts(path, ns(100))
    assert faulty.segments == expected


LATE_NS = ns(100) - GRACE_NS
PLAIN: dict[str, Callable[..., list[dict[str, Any]]]] = {
    "job_findings": partial(plain_counts.job_findings, as_of_ns=ns(100), late_ns=LATE_NS),
    "plan_findings": partial(plain_counts.plan_findings, late_ns=LATE_NS),
    "item_findings": plain_counts.item_findings,
    "plans": plain_counts.plans,
    "schedule_attempts": plain_counts.schedule_attempts,
    "plan_bytes": plain_counts.plan_bytes,
    "journal_bytes": plain_counts.journal_bytes,
    "segments": plain_counts.segments,
    "file_findings": plain_counts.file_findings,
}


def test_duckdb_spark_and_a_plain_count_find_the_same(spark, faulty):
    """Each view that the audit asks for, on the tables that it has put together."""
    counted = set()
    for each in faulty.asked:
        view = each.statement.rpartition(" ")[2]
        tables = {name: frame.toArrow() for name, frame in each.tables.items()}
        by_duckdb = views.run_in_duckdb(each.statement, **tables).to_pylist()
        plain = PLAIN[view](**{name: table.to_pylist() for name, table in tables.items()})
        # Spark gets the rows alone: to plan again how they were made takes longer than the view.
        frames = {name: spark.createDataFrame(table) for name, table in tables.items()}
        by_spark = views.run_in_spark(spark, each.statement, **frames).toArrow().to_pylist()
        assert in_order(by_duckdb) == in_order(plain) == in_order(by_spark), view
        counted.add(view if plain else "")
    assert counted == set(PLAIN)


def in_order(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


# -- two sides -----------------------------------------------------------------------------------


def test_two_servers_are_compared(spark, tmp_path):
    ours = [
        planned("same", 1),
        planned("moved", 2),
        planned("ours", 3),
        planned("ended", 4),
        ztick.JobRemoved("ended"),
        ztick.RuleSet("r", "a.", ztick.Shell("one")),
    ]
    theirs = [
        planned("moved", 2, "executed"),
        planned("same", 99),
        planned("same", 1),
        planned("ended", 4),
        planned("theirs", 5),
        ztick.RuleSet("r", "a.", ztick.Shell("two")),
    ]
    our_jobs = [added(1, 0), added(2, 0), event("start-attempt", 2, 1), added(3, 0)]
    their_jobs = [added(1, 0), added(2, 0), added(4, 0)]
    here, there = tmp_path / "here", tmp_path / "there"
    our_items, their_items = [[put(1, 1), put(2, 2)]], [[put(2, 2), put(3, 3)]]
    logs = {
        "ztick": [write_ztick(here / "log", ours)],
        "workq": [write_workq(here / "wq", our_jobs)],
        "kestrel": [write_kestrel(here / "spool", "q", our_items, {"": (0, ())})],
    }
    others = {
        "ztick": [write_ztick(there / "log", theirs)],
        "workq": [write_workq(there / "wq", their_jobs)],
        "kestrel": [write_kestrel(there / "spool", "q", their_items, {"": (0, ())})],
    }
    rows = audit(spark, logs, as_of_ns=ns(0), against=others).findings.collect()
    assert found(rows) == by_name(
        [
            ("different", "moved"),
            ("different", "r"),
            ("ended-here", "ended"),
            ("only-here", "ours"),
            ("only-there", "theirs"),
            ("different", key(2)),
            ("only-here", key(3)),
            ("only-there", key(4)),
            ("only-here", "q 1 0"),
            ("only-there", "q 3 0"),
        ]
    )
    assert details(rows, "different", "ztick") == [
        'job: status "planned" there "executed"',
        'rule: runner_args ["one"] there ["two"]',
    ]
    with pytest.raises(UsageError, match="compare like with like"):
        audit(spark, {"ztick": logs["ztick"]}, as_of_ns=0, against={"workq": others["workq"]})


def test_an_audit_of_nothing_is_an_empty_table(spark):
    nothing = audit(spark, {}, as_of_ns=0)
    assert nothing.findings.collect() == []
    assert nothing.segments.collect() == []
