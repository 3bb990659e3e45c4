"""A replay straight into files gives what the tables give; all of it or nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from journeyman.errors import UsageError
from journeyman.formats import workq, ztick
from journeyman.spark import replay, tables
from journeyman.spark.replay import STATE_TABLES
from journeyman.spark.source.options import arrow_schema
from tests.support.cli_commands import run
from tests.support.specimens import CREATED, workq_record


def rows_of(frame: DataFrame) -> list[str]:
    return sorted(json.dumps(row.asDict(True), default=str) for row in frame.collect())


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Of each dialect the logs of two hosts, one of them damaged in the middle."""
    root = tmp_path_factory.mktemp("logs")
    for dialect in ("ztick", "workq", "kestrel"):
        for host in ("a", "b"):
            log = root / dialect / f"host={host}" / ("logfile" if dialect == "ztick" else "jobs")
            log.parent.mkdir(parents=True)
            arguments = ["generate", dialect, str(log), "--records", "3000", "--quiet"]
            made = run(*arguments, "--seed", str(ord(host)))
            assert made.exit_code == 0, made.output
        file = log if log.is_file() else min(log.glob("*[0-9]*"))
        data = bytearray(file.read_bytes())
        # A journal has no checksums: there it is seen at the beginning of a record only.
        at = 4 if dialect == "kestrel" else len(data) // 2
        data[at : at + 40] = b"\xff" * 40
        file.write_bytes(bytes(data))
    return root


@pytest.mark.parametrize("dialect", ["ztick", "workq", "kestrel"])
def test_files_hold_the_tables_in_however_many_parts_logs_are_read(spark, logs, tmp_path, dialect):
    path = str(logs / dialect)
    packets = replay.packets(spark, dialect, path, recursiveFileLookup="true", splitBytes="10k")
    targets = {name: str(tmp_path / name) for name in STATE_TABLES[dialect]}
    written = replay.write_states(packets, dialect, targets)
    expected = replay.states(spark, dialect, path, recursiveFileLookup="true")
    for name, frame in expected.items():
        found = spark.read.parquet(targets[name])
        assert found.dtypes == frame.dtypes
        assert rows_of(found) == rows_of(frame)
        assert written[name] == frame.count()
    assert written["damage"] > 0
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(targets)


def test_a_directory_may_be_called_anything(spark, logs, tmp_path):
    log = tmp_path / "data.center`=eu" / "logs"
    shutil.copytree(logs / "kestrel" / "host=a", log)
    path = str(log / "jobs")
    for name, frame in replay.states(spark, "kestrel", path).items():
        assert {row["data_center_"] for row in frame.collect()} == {"eu"}, name
    shown = run("pipeline", "replay", path, "--output", tmp_path / "out", "--quiet")
    assert shown.exit_code == 0, shown.output
    for name in STATE_TABLES["kestrel"]:
        found = spark.read.parquet(str(tmp_path / "out" / name))
        assert {row["data_center_"] for row in found.collect()} == {"eu"}, name
    shown = run("pipeline", "replay", path, "--format", "table", "--quiet")
    assert "data_center_" in shown.stdout


def test_a_table_without_rows_has_columns(spark, tmp_path):
    log = tmp_path / "logfile"
    log.write_bytes(b"")
    targets = {name: str(tmp_path / "state" / name) for name in ("jobs", "rules")}
    replay.write_states(replay.packets(spark, "ztick", str(log)), "ztick", targets)
    for name, frame in replay.states(spark, "ztick", str(log)).items():
        found = spark.read.parquet(targets[name])
        assert found.dtypes == frame.dtypes
        assert found.count() == 0


def test_what_is_there_stays_unless_told_otherwise(spark, tmp_path):
    log = tmp_path / "logfile"
    targets = {name: str(tmp_path / "state" / name) for name in ("jobs", "rules")}

    def write(job: str, *, overwrite: bool = False) -> list[str]:
        log.write_bytes(ztick.CODEC.encode(ztick.JobSet(job, 1, ztick.Status.PLANNED)))
        packets = replay.packets(spark, "ztick", str(log))
        replay.write_states(packets, "ztick", targets, overwrite=overwrite)
        return [row["identifier"] for row in spark.read.parquet(targets["jobs"]).collect()]

    assert write("first") == ["first"]
    with pytest.raises(UsageError, match="already exists"):
        write("second")
    assert [r["identifier"] for r in spark.read.parquet(targets["jobs"]).collect()] == ["first"]
    assert write("third", overwrite=True) == ["third"]
    assert sorted(each.name for each in (tmp_path / "state").iterdir()) == ["jobs", "rules"]


def test_a_task_that_fails_leaves_nothing(spark, tmp_path):
    log = tmp_path / "logfile"
    log.write_bytes(ztick.CODEC.encode(ztick.JobSet("a", 1, ztick.Status.PLANNED)))
    packets = replay.packets(spark, "ztick", str(log))
    cut = packets.withColumn("packet", packets["packet"].substr(1, 20))
    targets = {name: str(tmp_path / "state" / name) for name in ("jobs", "rules")}
    with pytest.raises(Exception, match=r"(?i)arrow|ipc|packet|metadata"):
        replay.write_states(cut, "ztick", targets)
    assert list((tmp_path / "state").iterdir()) == []


def test_files_that_nobody_told_of_are_not_published(tmp_path):
    directory = tmp_path / "jobs"
    directory.mkdir()
    (directory / "part-of-another-try.parquet").write_bytes(b"cut")
    schema = arrow_schema(replay.table_schema("ztick.jobs"))
    table = tables.TableFiles(str(directory), schema)
    tables._complete(table, set())
    names = [each.name for each in directory.iterdir()]
    assert "part-of-another-try.parquet" not in names
    assert "_SUCCESS" in names
    with pytest.raises(UsageError, match="all machines share"):
        tables._complete(table, {"part-elsewhere.parquet"})


def self_quoting_log(path: Path) -> Path:
    """Most of it are results that quote a log, so records seem to begin in them."""
    records = b"".join(map(workq.CODEC.encode, map(workq_record, range(100))))
    quote = records * (500_000 // len(records))
    finished = [
        workq.JobFinished(CREATED, bytes([number]) * 16, workq.Command.FAIL, quote)
        for number in range(4)
    ]
    path.mkdir()
    log = workq.HEADER + records + b"".join(map(workq.CODEC.encode, finished)) + records
    (path / "000000001.log").write_bytes(log)
    return path


def test_parts_of_a_log_that_quotes_itself_begin_where_records_do(spark, tmp_path):
    log = str(self_quoting_log(tmp_path / "log"))
    packets = replay.packets(spark, "workq", log, splitBytes="200k")
    targets = {name: str(tmp_path / "state" / name) for name in ("jobs", "orphans")}
    replay.write_states(packets, "workq", targets)
    for name, frame in replay.states(spark, "workq", log).items():
        assert rows_of(spark.read.parquet(targets[name])) == rows_of(frame)


@pytest.mark.usefixtures("spark")
def test_the_command_writes_files_and_tells_of_damage(spark, logs, tmp_path):
    log = logs / "ztick" / "host=b" / "logfile"
    done = run("pipeline", "replay", log, "--output", tmp_path / "state")
    assert done.exit_code == 0, done.output
    assert "in 1 place damaged and skipped" in done.stderr
    expected = replay.states(spark, "ztick", str(log))
    for name, frame in expected.items():
        assert rows_of(spark.read.parquet(str(tmp_path / "state" / name))) == rows_of(frame)
    again = run("pipeline", "replay", log, "--output", tmp_path / "state")
    assert again.exit_code == 2
    assert "already exists" in again.stderr


@pytest.mark.usefixtures("spark")
def test_the_command_prints_json_and_tables(spark, logs):
    log = logs / "ztick" / "host=a" / "logfile"
    jobs = replay.states(spark, "ztick", str(log))["jobs"].count()
    printed = run("pipeline", "replay", log)
    assert printed.exit_code == 0, printed.output
    rows = [json.loads(line) for line in printed.stdout.splitlines()]
    assert sum(row["table"] == "ztick.jobs" for row in rows) == jobs
    shown = run("pipeline", "replay", log, "--format", "table", "--limit", "3")
    assert f"# ztick.jobs: {jobs:,}, the first 3" in shown.stdout
    refused = run("pipeline", "replay", log, "--as-of", "2026-01-01")
    assert refused.exit_code == 2
    assert "no ledger with times" in refused.stderr


def test_what_was_there_comes_back_if_it_cannot_be_replaced(tmp_path):
    place = tmp_path / "jobs"
    place.mkdir()
    (place / "part.parquet").write_bytes(b"rows")
    with pytest.raises(FileNotFoundError):
        tables._put_in_place(str(tmp_path / "gone"), str(place), overwrite=True)
    assert (place / "part.parquet").read_bytes() == b"rows"
    assert [each.name for each in tmp_path.iterdir()] == ["jobs"]
