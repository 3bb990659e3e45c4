"""``journeyman pipeline sql``: statements, tables, formats, the shell."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from journeyman.cli import journeyman
from journeyman.cli.pipeline import sql
from journeyman.cli.pipeline.shared import Answer, SessionOptions
from journeyman.spark import lake as tables_of_lake
from journeyman.spark.sql import LogTables, statements
from tests.support.cli_commands import (
    added,
    assert_one_line_error,
    job,
    put,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("logs")
    write_ztick(path / "host=a" / "logfile", job("a", 1), job("b", 2), job("a", 3))
    write_ztick(path / "host=b" / "logfile", job("a", 4))
    write_workq(path / "work", [added(1), added(2, name='say "hi", now')])
    write_segment(path / "queues" / "mail.1", put(1, b"\xff\x00"), put(2, b"text"))
    write_checkpoint(path / "queues" / "mail.read.", 1)
    return path


def ask(logs: Path, *words: object, typed: str | None = None) -> Result:
    """Run the command in the session of this lane."""
    args = ["pipeline", "sql", str(logs), *map(str, words)]
    return CliRunner().invoke(journeyman, args, input=typed)


@pytest.mark.parametrize(
    ("text", "whole", "rest"),
    [
        ("", [], ""),
        ("select 1", [], "select 1"),
        ("select 1;", ["select 1"], ""),
        ("select 1;\nselect 2;;  select", ["select 1", "select 2"], "  select"),
        ("select ';' , \";\" , `;`; x", ["select ';' , \";\" , `;`"], " x"),
        ("select 'it\\'s; '; y", ["select 'it\\'s; '"], " y"),
        ("select 1 -- not; here\n; z", ["select 1 -- not; here"], " z"),
        ("select /* a; b */ 1; z", ["select /* a; b */ 1"], " z"),
        ("select 'open; x", [], "select 'open; x"),
    ],
)
def test_statements_end_at_semicolons_that_are_not_quoted(text, whole, rest):
    assert statements(text) == (whole, rest)


def test_all_tables_of_all_logs_can_be_asked(spark, logs):
    query = (
        "SELECT (SELECT count(*) FROM ztick_log) AS z, (SELECT count(*) FROM workq_log) AS w,"
        " (SELECT count(*) FROM kestrel_log) AS k, (SELECT count(*) FROM jobs) AS jobs,"
        " (SELECT count(*) FROM rules) AS rules, (SELECT count(*) FROM work_jobs) AS work_jobs,"
        " (SELECT count(*) FROM orphans) AS orphans, (SELECT count(*) FROM items) AS items,"
        " (SELECT count(*) FROM readers) AS readers"
    )

    result = ask(logs, "-e", query, "--format", "json")

    assert result.exit_code == 0, result.stderr
    counts = {"z": 4, "w": 2, "k": 4, "jobs": 3, "rules": 0, "work_jobs": 2, "orphans": 0}
    assert json.loads(result.stdout) == {**counts, "items": 2, "readers": 1}


def test_a_lake_and_what_its_logs_hold_beyond_it_are_asked_together(spark, tmp_path):
    log, lake = tmp_path / "work", str(tmp_path / "lake")

    def pipeline(*words: object) -> str:
        done = CliRunner().invoke(journeyman, ["pipeline", *map(str, words), "--quiet"])
        assert done.exit_code == 0, done.output
        return done.stdout

    write_workq(log, [added(1), added(2)])
    pipeline("ingest", log, "--lake", lake, "--host", "a")
    write_workq(log, [added(1), added(2)], [added(3)])
    asked = ("sql", "--lake", lake, "-e", "SELECT count(*) AS n FROM jobs", "--format", "json")
    live = ("--live", log, "--host", "a")

    assert [json.loads(pipeline(*asked, *more))["n"] for more in ((), live, ())] == [2, 3, 2]
    assert tables_of_lake(spark, lake, live=[str(log)], host="a")["jobs"].count() == 3


def test_an_answer_is_lined_up_for_people(spark, logs):
    result = ask(logs, "-e", "SELECT host, identifier, execution_ns FROM jobs ORDER BY 1, 2;")

    assert result.stdout.splitlines() == [
        "host  identifier  execution_ns",
        "----  ----------  ------------",
        "a     a           3",
        "a     b           2",
        "b     a           4",
    ]


def test_csv_and_tables_hold_bytes_lists_and_nothing(spark, logs):
    query = (
        "SELECT item_id, data, array(1, null) AS list, cast(null AS int) AS none,"
        " 'a,\"b\"' AS text,"
        " timestamp'2026-11-15 01:02:03' AS at FROM items ORDER BY item_id"
    )

    as_csv = ask(logs, "-e", query, "--payloads", "--format", "csv")
    as_table = ask(logs, "-e", query, "--payloads")

    header, first, second = csv.reader(as_csv.stdout.splitlines())
    assert header == ["item_id", "data", "list", "none", "text", "at"]
    assert first == ["1", "/wA=", "[1,null]", "", 'a,"b"', "2026-11-15 01:02:03"]
    assert second[1] == "dGV4dA=="
    _, _, one, two = as_table.stdout.splitlines()
    assert one.split() == ["1", "ff00", "[1,null]", "null", 'a,"b"', "2026-11-15", "01:02:03"]
    assert two.split()[1] == "text"


def test_columns_of_one_name_are_both_shown(spark, logs):
    result = ask(logs, "-e", "SELECT 1 AS x, 2 AS x")

    assert result.stdout.splitlines() == ["x  x", "-  -", "1  2"]


def test_an_answer_may_go_to_files_and_replaces_others_only_by_force(spark, logs, tmp_path):
    asked = ("-e", "SELECT identifier FROM rules", "--output", tmp_path / "out")

    assert ask(logs, *asked).exit_code == 0
    assert_one_line_error(ask(logs, *asked), 2, str(tmp_path / "out"), "--force")
    assert ask(logs, *asked, "--force", "--format", "csv").exit_code == 0

    assert list((tmp_path / "out").glob("*.csv"))
    assert not list((tmp_path / "out").glob("*.parquet"))


def test_the_plan_is_shown_and_not_run(spark, logs):
    result = ask(logs, "--explain", "-e", "SELECT count(*) FROM jobs WHERE 1 / execution_ns > 0")

    assert result.exit_code == 0
    assert result.stdout.startswith("== Physical Plan ==")
    assert "HashAggregate" in result.stdout


@pytest.mark.parametrize(
    ("query", "code", "words"),
    [
        ("SELEC 1", 2, "Syntax error"),
        ("SELECT nothing FROM rules", 2, "`nothing`"),
        ("SELECT * FROM somewhere", 2, "`somewhere`"),
        ("SELECT raise_error('so be it')", 1, "so be it"),
        (" ; ", 2, "no statement"),
    ],
)
def test_an_error_is_one_line(spark, logs, query, code, words):
    assert_one_line_error(ask(logs, "-e", query), code, words)


def test_debug_shows_all_that_spark_said(spark, logs):
    words = ["--debug", "pipeline", "sql", str(logs), "-e", "SELECT 1 FROM somewhere"]

    result = CliRunner().invoke(journeyman, words)

    assert result.exit_code == 2
    assert "AnalysisException: [TABLE_OR_VIEW_NOT_FOUND]" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("journeyman: error: The table or view")


def test_statements_may_come_through_a_pipe(spark, logs):
    typed = "SELECT 1 AS one;\n-- and\nSELECT 2\n AS two"

    result = ask(logs, "--format", "csv", typed=typed)

    assert result.stdout.splitlines() == ["one", "1", "two", "2"]


def test_output_takes_one_answer_only(spark, logs, tmp_path):
    result = ask(logs, "-e", "SELECT 1; SELECT 2", "-o", tmp_path / "out")

    assert_one_line_error(result, 2, "--output", "one statement")


# -- the shell -----------------------------------------------------------------------------------


@pytest.fixture
def shell(spark, logs, monkeypatch, tmp_path, capsys):
    """Type lines into a shell; what it says on stdout and stderr."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tables = LogTables(spark, {"ztick": [f"{logs}/host=a/logfile"]})

    def type_in(*lines: str | type[BaseException]) -> tuple[str, str]:
        waiting = iter([*lines, EOFError])

        def typed(_prompt: str) -> str:
            line = next(waiting)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr("builtins.input", typed)
        sql.run_shell(tables, Answer("csv"), SessionOptions())
        said = capsys.readouterr()
        return said.out, said.err

    return type_in


def test_a_statement_may_go_over_several_lines(shell):
    out, _ = shell("SELECT identifier", "FROM jobs", "ORDER BY 1; SELECT 7", "AS seven;")

    assert out.split() == ["identifier", "a", "b", "seven", "7"]


def test_the_tables_and_their_columns_are_listed(shell):
    out, err = shell(r"\d", r"\d rules", r"\h", r"\q", "SELECT 'not reached';")

    listed = ["attempts", "jobs", "rules", "runs", "ztick_log"]
    assert out.splitlines()[:6] == [*listed, "col_name,data_type,comment"]
    assert "pattern,string," in out
    assert "not reached" not in out
    assert f"tables: {', '.join(listed)}" in err


def test_an_error_is_a_line_and_the_shell_goes_on(shell):
    out, err = shell("SELECT wrong;", "SELECT 5 AS five;")

    assert out.split() == ["five", "5"]
    assert err.splitlines()[-1].startswith("error: ")
    assert "`wrong`" in err.splitlines()[-1]


def test_ctrl_c_clears_what_was_typed(shell):
    out, _ = shell("SELECT 1 AS", KeyboardInterrupt, "SELECT 2 AS two;")

    assert out.split() == ["two", "2"]


def test_ctrl_c_while_a_query_runs_cancels_it(shell, monkeypatch):
    answers = iter([KeyboardInterrupt, None])

    def interrupted(*_: object) -> None:
        if (error := next(answers)) is not None:
            raise error

    monkeypatch.setattr(Answer, "give", interrupted)
    _, err = shell("SELECT 1;", "SELECT 2;")

    assert err.endswith("cancelled\n")
    assert next(answers, "all asked") == "all asked"
