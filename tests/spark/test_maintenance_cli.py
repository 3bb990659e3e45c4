"""``journeyman pipeline compact | clean | archive | convert``: lines, exit codes, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from journeyman.cli import journeyman
from journeyman.formats import ztick
from journeyman.spark.maintenance import make_durable
from tests.support.simulated_disk import SimulatedDisk
from tests.support.spark.stream_driver import open_workq, open_ztick, ztick_bytes
from tests.support.workq_logs import added, deleted


def run(*words: str | Path) -> Result:
    return CliRunner().invoke(journeyman, ["pipeline", *map(str, words)])


@pytest.mark.usefixtures("spark")
def test_compact_tells_what_became_of_each_log_and_fails_if_one_is_in_use(tmp_path):
    for host in "ab":
        (tmp_path / host).mkdir()
        (tmp_path / host / "logfile").write_bytes(ztick_bytes(1, 2, 2, 2))
    with open_ztick(tmp_path / "b" / "logfile"):
        result = run("compact", tmp_path / "a", tmp_path / "b", "--json")
    assert result.exit_code == 1
    done, refused = map(json.loads, result.stdout.splitlines())
    assert (done["records_before"], done["records_after"], done["changed"]) == (4, 2, True)
    assert "is in use" in refused["error"]
    assert (tmp_path / "a" / "logfile").read_bytes() == ztick_bytes(1, 2)


@pytest.mark.usefixtures("spark")
def test_clean_and_convert_work_on_a_queue(tmp_path):
    with open_workq(tmp_path / "queue") as log:
        log.append(
            [added(1, ttl_s=10**10), added(2), deleted(2, 1), added(3, due_s=5, ttl_s=10**10)]
        )
    cleaned = run("clean", tmp_path / "queue")
    assert cleaned.exit_code == 0, cleaned.output
    assert "4 records read, 2 kept" in cleaned.stdout
    converted = run("convert", tmp_path / "queue", "--to", "ztick", "--output", tmp_path / "log")
    assert converted.exit_code == 0, converted.output
    losses = [json.loads(line) for line in converted.stdout.splitlines()]
    assert {"field": "(all)", "reason": "it is ready at once, not scheduled"}.items() <= (
        losses[0].items() | losses[-1].items()
    )
    assert ztick.CODEC.decode((tmp_path / "log").read_bytes(), 0) is not None


@pytest.mark.usefixtures("spark")
def test_an_archive_by_the_command_frees_a_queue_of_what_its_readers_have_finished(tmp_path):
    made = CliRunner().invoke(
        journeyman,
        ["generate", "kestrel", str(tmp_path / "jobs"), "--records", "500", "--quiet"],
    )
    assert made.exit_code == 0, made.output
    result = run(
        "archive", tmp_path / "jobs", "--output", tmp_path / "archive", "--remove", "--json"
    )
    assert result.exit_code == 0, result.output
    (told,) = map(json.loads, result.stdout.splitlines())
    assert told["records_before"] >= 500
    assert told["error"] is None
    (archived,) = (tmp_path / "archive").iterdir()
    assert archived.name.startswith("run=")
    assert list(archived.rglob("*.parquet"))


@pytest.mark.usefixtures("spark")
def test_a_log_goes_to_parquet_and_comes_back_by_the_command(tmp_path):
    log = tmp_path / "logfile"
    log.write_bytes(ztick_bytes(1, 2, 3))
    to = run("convert", log, "--to", "parquet", "--output", tmp_path / "table")
    assert to.exit_code == 0, to.output
    back = run("convert", tmp_path / "table", "--to", "log", "--output", tmp_path / "again")
    assert back.exit_code == 0, back.output
    assert (tmp_path / "again").read_bytes() == log.read_bytes()
    store = run("convert", log, "--to", "keyspace", "--output", tmp_path / "store")
    assert store.exit_code == 0, store.output
    assert list((tmp_path / "store").glob("*.parquet"))


def test_what_was_archived_survives_a_power_cut():
    disk = SimulatedDisk()
    disk.make_dirs("/archive/_run/log=a")
    file = disk.open_append("/archive/_run/log=a/part-0.parquet")
    file.write(b"rows")
    file.close()
    make_durable(disk, "/archive/_run")
    assert disk.after_crash().files() == {"/archive/_run/log=a/part-0.parquet": b"rows"}
