"""What all pipeline commands share: the group, their options, which logs their paths mean."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from pyarrow import fs

from journeyman.cli.pipeline import COMMANDS, pipeline
from journeyman.cli.pipeline.shared import (
    SMALL_BYTES,
    SessionOptions,
    input_bytes,
    logs_by_dialect,
    session_options,
)
from journeyman.errors import UsageError
from journeyman.spark import files, session
from tests.support.cli_commands import (
    added,
    assert_one_line_error,
    job,
    put,
    run,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)


def test_the_help_names_every_command_and_imports_none_of_them():
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom journeyman.cli import journeyman\n"
        "print(CliRunner().invoke(journeyman, ['pipeline']).stdout)\n"
        "print([m for m in sys.modules if m.startswith(('pyspark', 'journeyman.spark',"
        " 'journeyman.cli.pipeline.'))], file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "prepare"])
def test_every_command_has_the_shared_options_and_help_without_spark(name):
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom journeyman.cli import journeyman\n"
        f"print(CliRunner().invoke(journeyman, ['pipeline', {name!r}, '--help']).stdout)\n"
        "sys.exit('pyspark' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.startswith(f"Usage: journeyman pipeline {name} ")
    for option in ("--master", "--conf", "--output", "--explain", "--quiet", "--remote"):
        assert f" {option}" in done.stdout


def test_an_unknown_command_is_one_line():
    assert_one_line_error(run("pipeline", "melt"), 2, "'melt'", "journeyman pipeline --help")


def test_a_setting_without_a_value_is_one_line(tmp_path):
    result = run("pipeline", "sql", tmp_path, "--conf", "spark.cores")

    assert_one_line_error(result, 2, "spark.cores", "NAME=VALUE")


def test_a_path_without_a_log_is_told_before_spark_starts(tmp_path):
    result = run("pipeline", "sql", tmp_path, "-e", "select 1")

    assert_one_line_error(result, 2, str(tmp_path), "no log")


def test_the_submit_script_is_where_the_option_says():
    result = run("pipeline", "--submit-script")

    assert Path(result.stdout.strip()).name == "submit.py"
    assert Path(result.stdout.strip()).exists()


def test_the_java_home_that_is_told_has_a_java_that_runs():
    home = run("pipeline", "--java-home").stdout.strip()

    done = subprocess.run([f"{home}/bin/java", "-version"], capture_output=True, check=False)

    assert done.returncode == 0
    assert b"version" in done.stderr


def test_options_reach_the_command_as_one_value():
    seen: list[SessionOptions] = []

    @click.command()
    @session_options
    def command(options: SessionOptions) -> None:
        seen.append(options)

    words = ["--master", "local[3]", "--conf", "a.b=c=d", "--conf", "e=f", "-o", "x", "-q"]
    CliRunner().invoke(command, [*words, "--explain", "--remote", "sc://h"])

    conf = {"a.b": "c=d", "e": "f"}
    assert seen == [SessionOptions("local[3]", "sc://h", conf, "x", explain=True, quiet=True)]


def test_an_import_that_fails_inside_a_command_is_not_hidden(monkeypatch):
    monkeypatch.setitem(COMMANDS, "broken", ("broken:broken", "Asks for what is not there."))

    def absent(name: str) -> None:
        raise ModuleNotFoundError("No module named 'grpc'", name="grpc")

    monkeypatch.setattr("journeyman.cli.importlib.import_module", absent)
    with pytest.raises(ModuleNotFoundError):
        pipeline.get_command(click.Context(pipeline), "broken")


# -- which logs ----------------------------------------------------------------------------------


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Logs of two hosts and of all dialects, and things that are none."""
    for host in ("host=a", "host=b"):
        write_ztick(tmp_path / host / "schedule" / "logfile", job(host))
        write_workq(tmp_path / host / "work", [added(1)])
    write_segment(tmp_path / "host=b" / "queues" / "mail.1", put(1))
    write_checkpoint(tmp_path / "host=b" / "queues" / "mail.read.", 1)
    (tmp_path / "_held").mkdir()
    write_ztick(tmp_path / "_held" / "logfile", job("hidden"))
    (tmp_path / "empty").mkdir()
    return tmp_path


def test_a_directory_stands_for_all_logs_below_it(logs):
    assert logs_by_dialect([str(logs)]) == {
        "ztick": [f"{logs}/host=a/schedule/logfile", f"{logs}/host=b/schedule/logfile"],
        "workq": [f"{logs}/host=a/work", f"{logs}/host=b/work"],
        "kestrel": [f"{logs}/host=b/queues"],
    }


def test_a_glob_stands_for_what_it_matches(logs):
    assert logs_by_dialect([f"{logs}/host=*/work"]) == {
        "workq": [f"{logs}/host=a/work", f"{logs}/host=b/work"]
    }


def test_files_and_directories_may_be_given_together_and_count_once(logs):
    log = f"{logs}/host=a/schedule/logfile"
    segment = f"{logs}/host=b/queues/mail.1"

    found = logs_by_dialect([log, f"{logs}/host=a/schedule", segment])

    assert found == {"ztick": [log], "kestrel": [segment]}


def test_several_ztick_logs_in_a_directory_are_all_meant(tmp_path):
    write_ztick(tmp_path / "one.log", job("a"))
    write_ztick(tmp_path / "two.log", job("b"))

    found = logs_by_dialect([str(tmp_path)])

    assert found == {"ztick": [f"{tmp_path}/one.log", f"{tmp_path}/two.log"]}


def test_with_a_dialect_paths_are_as_the_source_takes_them(logs):
    paths = [f"{logs}/host=a", f"{logs}/host=?/work"]

    assert logs_by_dialect(paths, "workq") == {"workq": paths}
    with pytest.raises(UsageError, match="does not exist"):
        logs_by_dialect([f"{logs}/nowhere"], "workq")
    with pytest.raises(UsageError, match="no kestrel log"):
        logs_by_dialect([f"{logs}/host=a/work"], "kestrel")


def test_a_connect_server_may_see_other_files(monkeypatch):
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")

    assert logs_by_dialect(["/nowhere"], "workq") == {"workq": ["/nowhere"]}


def test_logs_at_a_uri_are_found_as_in_a_directory(logs, monkeypatch):
    root = "arrow://here"
    made = files.Remote(fs.SubTreeFileSystem(str(logs), fs.LocalFileSystem()), root, None)
    monkeypatch.setattr(files, "_remote", {root: made}.__getitem__)

    def there(found: dict[str, list[str]]) -> dict[str, list[str]]:
        return {
            dialect: [path.replace(str(logs), root) for path in paths]
            for dialect, paths in found.items()
        }

    assert logs_by_dialect([root]) == there(logs_by_dialect([str(logs)]))
    globbed = logs_by_dialect([f"{root}/host=*/work"])
    assert globbed == there(logs_by_dialect([f"{logs}/host=*/work"]))
    assert input_bytes([root]) > 0
    with pytest.raises(FileNotFoundError):
        logs_by_dialect([f"{root}/nowhere"])


@pytest.mark.parametrize(
    "words",
    [
        "compact s3://bucket/logfile",
        "clean s3://bucket/workq",
        "archive s3://bucket/workq --remove --output /archive",
        "convert logfile --to workq --output s3://bucket/workq",
        "convert tables --to log --output s3://bucket/logfile",
    ],
)
def test_logs_are_written_to_local_paths_only(words, monkeypatch):
    monkeypatch.setattr(session, "build_session", None)  # no Java starts
    done = run("pipeline", *words.split())
    assert_one_line_error(done, 2, "local paths only", "no locks")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("replay /nowhere", 1, "not found"),
        ("replay /nowhere --dialect ztick", 2, "does not exist"),
        ("replay {logs}/host=a/work --as-of x", 2, "asOf"),
        ("history /nowhere", 1, "not found"),
        ("history --lake /nowhere", 2, "no lake"),
        ("audit --lake /nowhere", 2, "no lake"),
        ("report --lake /nowhere", 2, "no lake"),
        ("sql --lake /nowhere -e x", 2, "no lake"),
        ("redrive --lake /nowhere", 2, "no lake"),
        ("ingest /nowhere --lake {logs}/lake", 1, "not found"),
        ("ingest {logs} --lake {logs}/host=a/schedule/logfile", 1, "ogfile"),
        ("replay {work} --format parquet", 2, "--output"),
        ("history {work} --output {logs}", 2, "already exists"),
        ("history {work} --output {logs}/new --format table", 2, "screen"),
        ("history {logs}/host=a/schedule --runs /nowhere", 2, "not a directory of runs"),
        ("history {work} --runs {logs}", 2, "schedule"),
        ("ingest {work} --lake {logs}/lake --runs {logs}", 2, "schedule"),
        ("audit {work} --against /nowhere", 1, "not found"),
        ("audit {work} --against {logs}/host=b/schedule", 2, "like with like"),
        ("audit {logs}/host=a/schedule --runs /nowhere", 2, "not a directory of runs"),
        ("report {logs}/host=a/schedule --runs /nowhere", 2, "not a directory of runs"),
        ("report {work} --output /nowhere/report.html", 2, "/nowhere is not a directory"),
        ("sql {work} -e x --output {logs}", 2, "already exists"),
        ("redrive {logs}/host=a", 2, "one dialect at a time"),
        ("redrive {logs}/host=b/queues", 2, "kestrel has none"),
        ("redrive {work} --to a:b:c", 2, "HOST:PORT"),
        ("compact {work}", 2, "pipeline clean"),
        ("compact {logs}/host=a/schedule -o x", 2, "--output"),
        ("clean {logs}/host=a/schedule", 2, "pipeline compact"),
        ("clean {work} --as-of 2200-01-01", 2, "future"),
        ("archive {work}", 2, "--output"),
        ("convert {work} --to ztick", 2, "--output"),
        ("convert {work} --to workq --output {logs}/new", 2, "cannot become"),
        ("convert {work} --to ztick --output {logs}", 2, "already exists"),
        ("convert {work} --to ztick --output {logs}/new --losses {logs}", 2, "already exists"),
        ("convert {work} --to parquet --output {logs}", 2, "already exists"),
        ("convert {work} --to ztick --output {logs}/new --ttr-ms 0", 2, "ttr"),
        ("convert /nowhere --to log --output {logs}/new", 2, "_log.json"),
    ],
)
def test_what_is_wrong_is_said_before_java_starts(logs, words, code, said, monkeypatch):
    monkeypatch.setattr(session, "build_session", None)
    done = run("pipeline", *words.format(logs=logs, work=f"{logs}/host=a/work").split())
    assert_one_line_error(done, code, said)


def test_a_path_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        logs_by_dialect([f"{tmp_path}/missing"])


def test_a_glob_without_a_match_is_an_error(tmp_path):
    with pytest.raises(UsageError, match="no log"):
        logs_by_dialect([f"{tmp_path}/*.log"])


def test_what_is_to_be_read_is_measured_as_far_as_it_is_small(tmp_path):
    log = write_ztick(tmp_path / "logfile", job("a"))
    assert input_bytes([str(tmp_path)]) == input_bytes([str(log)]) == log.stat().st_size
    (tmp_path / "more").mkdir()
    with (tmp_path / "more" / "logfile").open("wb") as file:
        file.truncate(SMALL_BYTES)
    assert input_bytes([str(tmp_path)]) > SMALL_BYTES
    assert input_bytes(["/nowhere/*"]) == input_bytes([]) == 0


def test_what_cannot_be_looked_at_does_not_keep_other_logs_from_being_found(tmp_path):
    data = tmp_path / "data"  # of a server
    write_ztick(data / "schedule.log", job("a", 1))
    write_workq(data / "workq", [added(1)])
    os.mkfifo(data / "workq" / "000000002.log")
    tree = tmp_path / "tree"
    write_workq(tree / "host=a", [added(1)])
    write_workq(tree / "host=b", [added(1)])
    os.mkfifo(tree / "host=b" / "000000002.log")
    missing = str(tmp_path / "missing")
    paths = [str(data), str(tree), missing]

    unreadable: list[str] = []
    found = logs_by_dialect(paths, unreadable=unreadable)

    assert found == {"ztick": [f"{data}/schedule.log"], "workq": [f"{tree}/host=a"]}
    assert [said.partition(str(tmp_path))[2] for said in unreadable] == [
        "/data/workq/000000002.log",
        "/tree/host=b/000000002.log",
        "/missing",
    ]
    assert all(said.startswith("left out: ") for said in unreadable)
    with pytest.raises(OSError, match="not a regular file"):
        logs_by_dialect(paths)
    with pytest.raises(FileNotFoundError):  # nothing is left
        logs_by_dialect([missing], unreadable=[])
