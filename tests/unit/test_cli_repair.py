"""``repair``: no byte is lost, the log is clean afterwards, and nobody is disturbed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats import kestrel, workq, ztick
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from tests.support.cli_commands import (
    CLOCK,
    DISK,
    GOLDEN,
    added,
    assert_one_line_error,
    flip_bit,
    job,
    put,
    rows,
    run,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)


def contents(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def damaged_workq(directory: Path) -> Path:
    log = write_workq(directory, [added(n) for n in range(1, 6)])
    segment = log / "000000001.log"
    flip_bit(segment, 8 + len(workq.CODEC.encode(added(1))) + 30)
    segment.write_bytes(segment.read_bytes()[:-3])
    return log


GOLDEN_DAMAGED = [
    *(GOLDEN / "ztick").glob("[eg]*.log"),
    *(
        path.parent / "cmdlog"
        for path in (GOLDEN / "workq").glob("*/description.json")
        if json.loads(path.read_text())["fault"] is not None
        and path.parent.name != "x-unknown-type"  # a record of a newer writer is not damage
    ),
    *(
        path.parent
        for path in (GOLDEN / "kestrel").glob("[rw]*/case.json")
        if json.loads(path.read_text())["files"][0]["end"]["reason"] not in ("eof", "zero-byte")
    ),
]


@pytest.mark.parametrize("path", sorted(GOLDEN_DAMAGED), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_damaged_golden_log_is_clean_afterwards_and_no_byte_is_lost(path, tmp_path):
    copy = tmp_path / "copy"
    if path.is_dir():
        shutil.copytree(path, copy)
    else:
        copy.mkdir()
        shutil.copy(path, copy / path.name)
    target = copy if path.is_dir() else copy / path.name
    before = contents(copy)
    damages = [
        damage
        for log in json.loads(run("verify", "--json", target).stdout)["logs"]
        for file in log["files"]
        for damage in file["damages"]
    ]
    assert damages

    result = run("repair", target)

    assert result.exit_code == 0, (result.stdout, result.stderr)
    assert result.stdout.splitlines()[-1] == "repaired"
    kept = [data for name, data in contents(copy).items() if "quarantine" in name]
    for damage in damages:
        found = before[Path(damage["file"]).name][damage["offset"] :][: damage["length"]]
        assert found == b"" or any(found in data for data in kept)
    if any(
        path.name != "case.json" and not path.name.endswith(".lock") for path in copy.glob("*.*")
    ):
        assert run("verify", target).exit_code == 0


def test_records_behind_damage_are_kept(tmp_path):
    log = damaged_workq(tmp_path / "log")

    result = run("repair", log)

    assert result.exit_code == 0
    assert "3 records kept, 2 of them after damage" in result.stdout
    assert len(rows(run("dump", "--json", log))) == 3
    assert len(list((log / "quarantine").iterdir())) == 2


def test_a_second_repair_finds_nothing_to_do(tmp_path):
    log = damaged_workq(tmp_path / "log")
    run("repair", log)
    before = contents(log)

    result = run("repair", log)

    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "nothing to repair"
    assert contents(log) == before


def test_a_dry_run_tells_the_same_and_changes_nothing(tmp_path):
    log = damaged_workq(tmp_path / "log")
    before = contents(log)

    dry = run("repair", "--dry-run", "--json", log)

    assert dry.exit_code == 1
    assert contents(log) == before
    wet = run("repair", "--json", log)
    foretold, found = json.loads(dry.stdout), json.loads(wet.stdout)
    assert (foretold["dry_run"], foretold["clean_now"]) == (True, False)
    assert (found["dry_run"], found["clean_now"]) == (False, True)
    (foretold_file,), (found_file,) = (
        report["logs"][0]["found"]["files"] for report in (foretold, found)
    )
    assert found_file.pop("quarantined")
    assert foretold_file.pop("quarantined") == []
    assert foretold_file == found_file


def test_a_dry_run_in_text_says_what_to_do(tmp_path):
    log = damaged_workq(tmp_path / "log")

    result = run("repair", "--dry-run", log)

    assert result.exit_code == 1
    assert "can be kept" in result.stdout
    assert result.stdout.splitlines()[-1] == f"to be repaired: `journeyman repair {log}` does it"


def test_the_zero_tail_of_a_kestrel_segment_is_cut_but_was_no_damage(tmp_path):
    segment = write_segment(tmp_path / "jobs.1", put(1))
    whole = segment.read_bytes()
    segment.write_bytes(whole + bytes(100))

    dry = run("repair", "--dry-run", tmp_path)

    assert dry.exit_code == 0
    assert "nothing is damaged" in dry.stdout
    assert run("repair", tmp_path).exit_code == 0
    assert segment.read_bytes() == whole


def test_a_queue_without_readers_gets_none_by_being_repaired(tmp_path):
    segment = write_segment(tmp_path / "jobs.1", put(1), put(2))
    segment.write_bytes(segment.read_bytes()[:-1])

    assert run("repair", tmp_path).exit_code == 0

    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.1", "jobs.lock", "quarantine"]
    assert [row["item_id"] for row in rows(run("dump", "--json", tmp_path))] == [1]


def test_a_damaged_checkpoint_starts_its_reader_at_the_oldest_item(tmp_path):
    write_segment(tmp_path / "jobs.1", put(7), put(8))
    checkpoint = write_checkpoint(tmp_path / "jobs.read.a", 8)
    checkpoint.write_bytes(checkpoint.read_bytes()[:-9])

    assert run("repair", tmp_path).exit_code == 0

    found = rows(run("dump", "--json", checkpoint))
    assert [row.get("id") for row in found] == [6, None]


def test_every_queue_of_a_directory_is_repaired_unless_one_is_chosen(tmp_path):
    for name in ("a.1", "b.1"):
        path = write_segment(tmp_path / name, put(1), put(2))
        path.write_bytes(path.read_bytes()[:-1])

    assert run("repair", "--queue", "a", tmp_path).exit_code == 0
    assert run("verify", "--queue", "b", tmp_path).exit_code == 1
    assert run("repair", tmp_path).exit_code == 0
    assert run("verify", tmp_path).exit_code == 0


def test_all_files_of_a_ztick_log_are_repaired(tmp_path):
    for name in ("log.compressed", "log"):
        path = write_ztick(tmp_path / name, job("a"), job("b"))
        path.write_bytes(path.read_bytes()[:-1])

    assert run("repair", tmp_path / "log").exit_code == 0

    assert run("verify", tmp_path / "log").exit_code == 0
    assert len(list((tmp_path / "quarantine").iterdir())) == 2


def test_a_log_in_use_is_left_alone(tmp_path):
    ztick_path = write_ztick(tmp_path / "ztick", job("a"))
    workq_path = write_workq(tmp_path / "workq", [added(1)])
    with_reader = tmp_path / "with"
    write_segment(with_reader / "jobs.1", put(1))
    write_checkpoint(with_reader / "jobs.read.", 0)
    without_reader = tmp_path / "without"
    write_segment(without_reader / "jobs.1", put(1))

    with (
        ZtickLog.open(DISK, CLOCK, str(ztick_path)),
        WorkqLog.open(DISK, CLOCK, str(workq_path)),
        KestrelLog.open(DISK, CLOCK, str(with_reader), "jobs"),
    ):
        lock = DISK.lock(str(without_reader / "jobs.lock"))
        for path in (ztick_path, workq_path, with_reader, without_reader):
            assert_one_line_error(run("repair", path), 1, "another process", "try again")
            assert run("repair", "--dry-run", path).exit_code == 0
        lock.release()
    for path in (ztick_path, workq_path, with_reader, without_reader):
        assert run("repair", path).exit_code == 0


def test_a_part_of_a_log_is_not_repaired_alone(tmp_path):
    log = damaged_workq(tmp_path / "log")

    assert_one_line_error(run("repair", log / "000000001.log"), 2, "give its directory")


def test_repaired_logs_can_be_appended_to(tmp_path):
    log = damaged_workq(tmp_path / "workq")
    schedule = write_ztick(tmp_path / "ztick", job("a"), job("b"))
    schedule.write_bytes(schedule.read_bytes()[:-4])
    segment = write_segment(tmp_path / "kestrel" / "jobs.1", put(1), put(2))
    segment.write_bytes(segment.read_bytes()[:-4])
    for path in (log, schedule, segment.parent):
        assert run("repair", path).exit_code == 0

    with (log / "000000001.log").open("ab") as file:
        file.write(workq.CODEC.encode(added(9)))
    with schedule.open("ab") as file:
        file.write(ztick.CODEC.encode(job("c")))
    with segment.open("ab") as file:
        file.write(kestrel.WRITER.encode(put(9)))

    for path in (log, schedule, segment.parent):
        assert run("verify", path).exit_code == 0


def test_damage_in_a_segment_that_has_an_index_is_repaired_too(tmp_path):
    items = [put(n) for n in range(1, 2001)]
    first, second = items[:1000], items[1000:]
    path = write_segment(tmp_path / "queues" / "jobs.1", *first)
    write_segment(path.with_name("jobs.2"), *second)
    disk, clock = RealDisk(), SystemClock()
    with KestrelLog.open(disk, clock, str(path.parent), "jobs") as journal:
        assert journal.save_indexes() == 1
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = b"\xee" * 200
    path.write_bytes(data)

    result = run("repair", path.parent)

    assert result.exit_code == 0
    assert "quarantine" in result.output
    assert run("verify", path.parent).exit_code == 0
