"""Reports of little or nothing, their verdicts, and the commands; figures are in
test_report_figures.py, what the page makes of hostile texts in tests/unit/test_report_page.py."""

from __future__ import annotations

import re
from functools import partial

import pyarrow as pa
import pytest
from click.testing import CliRunner

from journeyman.spark.history.columns import ATTEMPTS
from journeyman.spark.report import FindingCount, figures, report, verdict
from journeyman.spark.report.figures import DialectFigures, Week, measure
from journeyman.spark.report.page import page
from journeyman.spark.source.options import arrow_schema
from tests.support.spark.written_logs import (
    added,
    ns,
    planned,
    write_workq,
    write_ztick,
)

pytestmark = pytest.mark.usefixtures("planned_once")

MADE_NS = ns(10_000)


def test_empty_logs_and_a_single_record_are_reported(spark, tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    logs = {
        "ztick": [str(tmp_path / "empty")],
        "workq": [write_workq(tmp_path / "one", [added(1, 5)])],
    }
    text = page(report(spark, logs, made_ns=MADE_NS))
    assert "The logs are empty." in text
    assert "The audit found no problems." in text
    assert '<h1 class="lead good">' in text


@pytest.mark.parametrize(
    ("failed", "severity", "words"),
    [
        (0, "good", "The audit found no problems."),
        (
            1,
            "good",
            "The audit found no problems. Work queue: 0.5 % of attempts failed (1 of 200).",
        ),
        (4, "warning", "Work queue: 2.0 % of attempts failed (4 of 200)."),
        (42, "serious", "Work queue: 21.0 % of attempts failed (42 of 200)."),
    ],
)
def test_many_failures_are_not_good_news(failed, severity, words):
    said, how = verdict([], [DialectFigures("workq", succeeded=200 - failed, failed=failed)])
    assert (how, said.endswith(words)) == (severity, True)


@pytest.mark.parametrize(
    ("counts", "severity", "words"),
    [
        ({"serious": 1}, "serious", "The audit found 1 serious problem."),
        ({"warning": 2, "info": 3}, "warning", "The audit found 2 warnings."),
        ({"serious": 2, "warning": 1}, "serious", "2 serious problems and 1 warning."),
        ({"info": 3}, "good", "The audit found no problems."),
    ],
)
def test_what_the_audit_found_is_said_first(counts, severity, words):
    found = [FindingCount("finding", level, number, 1) for level, number in counts.items()]
    said, how = verdict(found, [])
    assert (how, said.endswith(words)) == (severity, True)


def test_only_queues_that_ran_in_both_weeks_are_compared(spark, monkeypatch):
    """Also where the rows are too many to be fetched: then Spark counts them."""
    day_ns = 86_400 * 10**9
    shared = {**dict.fromkeys(ATTEMPTS.names), "_log": "l", "dialect": "workq", "first": True}
    rows = [
        shared | {"queue": queue, "outcome": "failed", "started_ns": at, "ready_ns": at - wait}
        for queue, at, wait in (
            *(("both", day * day_ns, day * 10**6) for day in (1, 2, 9, 10, 14)),
            *(("new", day * day_ns, 5) for day in (12, 13)),
            ("long ago", -20 * day_ns, 5),
        )
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(ATTEMPTS))
    records = [{"dialect": "workq", "ns": number * day_ns, "bytes": 7} for number in range(9)]
    written = spark.createDataFrame(pa.Table.from_pylist(records))
    frame = spark.createDataFrame(table)
    count = partial(measure, frame, ["workq"], made_ns=0, as_of_ns=14 * day_ns, records=written)
    measured = count()
    assert measured.weeks == {
        "workq both": (Week(2, 2, 2 * 10**6, None), Week(3, 3, 14 * 10**6, None))
    }
    assert measured.figures["workq"].growth[-1] == 63
    monkeypatch.setattr(figures, "_FEW_ROWS", 0)
    assert count() == measured


def test_the_commands_print_write_and_exit_as_they_should(spark, tmp_path):
    from journeyman.cli import journeyman

    good = write_workq(tmp_path / "good", [added(1, 5)])
    bad = write_ztick(tmp_path / "bad", [planned("late", 1)])

    def ask(*words: str):
        return CliRunner().invoke(journeyman, ["pipeline", *words])

    output = tmp_path / "page.html"
    words = ("--title", "Mine", "--since", str(ns(4)))
    assert ask("report", good, "-o", str(output), *words).exit_code == 0
    assert re.search("<title>Mine</title>", output.read_text())
    again = ask("report", good, "-o", str(output))
    assert (again.exit_code, "--force" in again.output) == (2, True)
    depth = ask("history", good, "--view", "depth", "--format", "csv", "--bucket", "1h")
    assert depth.stdout.splitlines()[0] == "_log,queue,time,bucket_ns,scheduled,ready,running"
    assert depth.stdout.splitlines()[1].endswith(",0,1,0")
    wrong = ask("audit", bad, "--as-of", str(ns(1000)), "--format", "json")
    assert wrong.exit_code == 1
    assert '"finding":"missed-run"' in wrong.stdout
    assert "serious: 1 missed-run" in wrong.stderr
    none = ask("audit", bad, "--as-of", str(ns(1000)), "--where", "severity = 'info'")
    assert none.exit_code == 0
    assert "# summary" in none.stdout
    assert "missed-run" not in none.stdout
    elsewhere = ask("history", good, "--where", "queue = 'elsewhere'", "--format", "csv")
    assert len(elsewhere.stdout.splitlines()) == 1
    nowhere = ask("history", good, "--where", "no such column = 1")
    assert (nowhere.exit_code, len(nowhere.stderr.splitlines())) == (2, 1)
    assert ask("history", good, "--bucket", "soon").exit_code == 2
    assert ask("history", good, "--view", "lag").exit_code == 2
