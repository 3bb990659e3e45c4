"""``verify``: counts, damage, live and dead bytes, anomalies; and it writes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journeyman.cli.verify import IdRuns
from journeyman.formats import kestrel, workq, ztick
from tests.support.cli_commands import (
    NOW_NS,
    added,
    event,
    flip_bit,
    job,
    put,
    run,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)

SIZE = {
    "job": len(ztick.CODEC.encode(job("a"))),
    "add": len(workq.CODEC.encode(added(1))),
    "event": len(workq.CODEC.encode(event(1, workq.Command.DELETE))),
    "put": len(kestrel.WRITER.encode(put(1))),
}


def report(path: Path, *options: object, code: int = 0) -> dict[str, Any]:
    """What verify says about the only log there."""
    result = run("verify", "--json", *options, path)
    assert result.exit_code == code, result.stderr
    assert result.stderr == ""
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["clean"] is (code == 0)
    (log,) = found["logs"]
    assert log["clean"] is (code == 0)
    return dict(log)


def live(log: dict[str, Any]) -> dict[str, int]:
    return {Path(file["file"]).name: file["live_bytes"] for file in log["files"]}


def dead(log: dict[str, Any]) -> dict[str, int]:
    return {Path(file["file"]).name: file["dead_bytes"] for file in log["files"]}


# --- counts, and what is live ---


def test_ztick_counts_and_live_bytes(tmp_path):
    write_ztick(tmp_path / "log.compressed", job("a"), job("b"))
    path = write_ztick(tmp_path / "log", job("a"), ztick.JobRemoved("b"), job("c"))

    log = report(path)

    assert (log["dialect"], log["records"]) == ("ztick", 5)
    assert log["kinds"] == {"set": 4, "remove": 1}
    assert live(log) == {"log.compressed": 0, "log": 2 * SIZE["job"]}
    assert log["live_bytes"] == 2 * SIZE["job"]
    assert log["live_bytes"] + log["dead_bytes"] == log["size"]


def test_workq_live_bytes_are_those_of_jobs_that_exist(tmp_path):
    path = write_workq(
        tmp_path / "log",
        [added(1), added(2), added(3, ttl_ms=30_000)],
        [event(1, workq.Command.START_ATTEMPT), event(2, workq.Command.DELETE)],
    )

    log = report(path, "--as-of", NOW_NS)

    assert log["kinds"] == {"add": 3, "start-attempt": 1, "delete": 1}
    assert live(log) == {"000000001.log": 2 * SIZE["add"], "000000002.log": SIZE["event"]}
    assert dead(log) == {"000000001.log": SIZE["add"], "000000002.log": SIZE["event"]}
    assert live(report(path, "--as-of", NOW_NS + 30_000_000_000))["000000001.log"] == SIZE["add"]
    assert log["files"][0]["other_bytes"] == len(workq.HEADER)


def test_a_workq_job_added_anew_leaves_its_former_life_behind(tmp_path):
    later = NOW_NS + 120_000_000_000
    path = write_workq(
        tmp_path / "log",
        [added(1), event(1, workq.Command.START_ATTEMPT), added(1, at_ns=later)],
    )

    assert live(report(path, "--as-of", later)) == {"000000001.log": SIZE["add"]}


def test_kestrel_live_bytes_are_those_of_items_that_a_reader_needs(tmp_path):
    write_segment(tmp_path / "jobs.1", put(1), put(2))
    write_segment(tmp_path / "jobs.2", put(3), put(4))
    write_checkpoint(tmp_path / "jobs.read.a", 2, 4)
    write_checkpoint(tmp_path / "jobs.read.b", 2)

    log = report(tmp_path)

    assert log["queue"] == "jobs"
    assert log["kinds"] == {"PUT": 4, "READ_HEAD": 2, "READ_DONE": 2}
    assert live(log)["jobs.1"] == 0
    assert live(log)["jobs.2"] == 2 * SIZE["put"]
    assert [Path(file["file"]).name for file in log["files"]] == [
        "jobs.1",
        "jobs.2",
        "jobs.read.a",
        "jobs.read.b",
    ]


def test_of_a_checkpoint_the_last_head_is_live(tmp_path):
    path = write_checkpoint(tmp_path / "jobs.read.", 1, 3)
    path.write_bytes(path.read_bytes() + kestrel.READER.encode(kestrel.ReadHead(2)))

    log = report(path)

    assert dead(log) == {"jobs.read.": 9}
    assert live(log) == {"jobs.read.": 9 + 13}


def test_every_queue_of_a_directory_is_reported(tmp_path):
    write_segment(tmp_path / "a.1", put(1))
    broken = write_segment(tmp_path / "b.1", put(1))
    broken.write_bytes(broken.read_bytes()[:-1])

    result = run("verify", "--json", tmp_path)
    found = json.loads(result.stdout)

    assert result.exit_code == 1
    assert [(log["queue"], log["clean"]) for log in found["logs"]] == [("a", True), ("b", False)]
    assert run("verify", "--queue", "a", tmp_path).exit_code == 0


# --- damage ---


def test_damage_is_told_with_place_reason_and_records_behind_it(tmp_path):
    path = write_workq(tmp_path / "log", [added(n) for n in range(1, 8)])
    segment = path / "000000001.log"
    flip_bit(segment, 8 + SIZE["add"] + 30)
    flip_bit(segment, 8 + 4 * SIZE["add"] + 30)
    segment.write_bytes(segment.read_bytes()[:-5])

    log = report(path, code=1)

    (file,) = log["files"]
    assert file["records"] == 4
    assert [
        (d["offset"], d["length"], d["kind"], d["records_behind"]) for d in file["damages"]
    ] == [
        (8 + SIZE["add"], SIZE["add"], "corrupt", 2),
        (8 + 4 * SIZE["add"], SIZE["add"], "corrupt", 1),
        (8 + 6 * SIZE["add"], SIZE["add"] - 5, "torn", 0),
    ]
    assert file["damages"][0]["reason"] == "crc mismatch"
    assert file["damaged_bytes"] == 3 * SIZE["add"] - 5


@pytest.mark.parametrize("cut", [1, 5, 12])
def test_a_torn_tail_counts_as_damage(tmp_path, cut):
    path = write_ztick(tmp_path / "log", job("a"), job("b"))
    path.write_bytes(path.read_bytes()[:-cut])

    (damage,) = report(path, code=1)["files"][0]["damages"]

    assert (damage["kind"], damage["offset"]) == ("torn", SIZE["job"])


def test_a_bad_header_is_damage(tmp_path):
    path = write_workq(tmp_path / "log", [added(1)])
    flip_bit(path / "000000001.log", 0)

    (damage,) = report(path, code=1)["files"][0]["damages"]

    assert (damage["kind"], damage["offset"], damage["records_behind"]) == ("bad-header", 0, 1)


def test_the_zero_tail_of_a_kestrel_segment_is_no_damage_and_that_of_others_is(tmp_path):
    segment = write_segment(tmp_path / "kestrel" / "jobs.1", put(1))
    segment.write_bytes(segment.read_bytes() + bytes(100))
    log = write_ztick(tmp_path / "ztick", job("a"))
    log.write_bytes(log.read_bytes() + bytes(100))

    assert report(segment)["files"][0]["other_bytes"] == 4 + 100
    assert report(log, code=1)["files"][0]["damages"][0]["kind"] == "padding"


def test_text_tells_the_same_story(tmp_path):
    path = write_workq(tmp_path / "log", [added(1), added(2), added(1)])
    flip_bit(path / "000000001.log", 8 + SIZE["add"] + 30)

    result = run("verify", path)

    assert result.exit_code == 1
    size, first = SIZE["add"], "00000000-0001-4000-8000-000000000000"
    total = 8 + 3 * size
    assert result.stdout.splitlines() == [
        f"{path}: workq",
        "  2 records: 2 add",
        f"  000000001.log: 2 records, {total} bytes: {2 * size} live, 0 dead, {size} damaged",
        f"    corrupt at offset {8 + size}, {size} bytes: crc mismatch; 1 record after it",
        "  anomalies: 1 repeated-add",
        f"    repeated-add of {first}: add: added before; the first stands",
        f"damaged: `journeyman repair {path}` repairs it",
    ]


def test_a_clean_log_is_called_clean(tmp_path):
    path = write_ztick(tmp_path / "log", job("a"))

    result = run("verify", path)

    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "clean"


def test_of_many_damages_text_shows_the_first_and_counts_the_rest(tmp_path):
    path = write_workq(tmp_path / "log", [added(n) for n in range(1, 60)])
    for number in range(1, 59, 2):
        flip_bit(path / "000000001.log", 8 + number * SIZE["add"] + 30)

    result = run("verify", path)

    assert result.stdout.count("crc mismatch") == 20
    assert "    and 9 more places" in result.stdout.splitlines()


def test_the_whole_of_a_log_in_use_may_be_an_empty_directory_with_locks(tmp_path):
    (tmp_path / "append.lock").touch()

    assert report(tmp_path)["records"] == 0


# --- anomalies ---


def test_anomalies_are_counted_and_the_first_few_told(tmp_path):
    path = write_ztick(tmp_path / "log", *(ztick.JobRemoved(f"j{n}") for n in range(7)))

    log = report(path)

    assert log["anomalies"] == {"orphan-removal": 7}
    assert len(log["first_anomalies"]) == 5
    assert log["first_anomalies"][0].startswith("orphan-removal of job j0: ")


def test_a_repeated_kestrel_item_and_a_reused_id_are_told_apart(tmp_path):
    write_segment(tmp_path / "jobs.1", put(1), put(2, b"one"), put(3))
    write_segment(tmp_path / "jobs.2", put(1), put(2, b"other"))
    write_checkpoint(tmp_path / "jobs.read.", 0)

    assert report(tmp_path)["anomalies"] == {"repeated-item": 1, "reused-id": 1}


def test_checkpoints_that_do_not_fit_the_items_are_told(tmp_path):
    write_segment(tmp_path / "jobs.1", put(5), put(6))
    write_checkpoint(tmp_path / "jobs.read.ahead", 9)
    write_checkpoint(tmp_path / "jobs.read.behind", 1)

    assert report(tmp_path)["anomalies"] == {"checkpoint-ahead": 1, "checkpoint-behind": 1}


def test_a_single_segment_is_not_blamed_for_having_no_reader(tmp_path):
    assert report(write_segment(tmp_path / "jobs.1", put(1)))["anomalies"] == {}


def test_runs_of_ids_behave_like_a_set():
    runs = IdRuns()
    ids = [5, 6, 7, 1, 3, 2, 6, 9, 8, 1, 10, 4, 4]

    assert runs.span() == ()
    seen: set[int] = set()
    for item_id in ids:
        assert runs.add(item_id) is (item_id not in seen)
        seen.add(item_id)
    assert runs.span() == (1, 10)
