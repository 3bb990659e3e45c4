"""``dump``: which records, which state, up to when, and what of damage."""

from __future__ import annotations

import json
import threading

import pytest

from journeyman.cli import reading
from journeyman.cli.errors import warn
from journeyman.disk import RealDisk
from journeyman.errors import LogError
from journeyman.formats import kestrel, workq, ztick
from journeyman.logs.detection import LogFinder
from journeyman.logs.ztick.log import ZtickLog
from tests.support.cli_commands import (
    CLOCK,
    DISK,
    NOW_NS,
    added,
    assert_one_line_error,
    event,
    flip_bit,
    job,
    put,
    rows,
    run,
    run_script,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)

MINUTE_NS = 60_000_000_000


def test_json_is_a_shorthand_for_the_format(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))

    assert run("dump", "--json", log).stdout == run("dump", "--format", "json", log).stdout
    assert run("dump", "--format", "text", log).stdout == run("dump", log).stdout


def test_options_may_stand_behind_the_path(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))

    assert run("dump", log, "--json").stdout == run("dump", "--json", log).stdout


def test_several_logs_are_dumped_one_after_the_other(tmp_path):
    first = write_ztick(tmp_path / "a", job("a"))
    second = write_workq(tmp_path / "b", [added(1)])

    assert run("dump", second, first).stdout == (
        run("dump", second).stdout + run("dump", first).stdout
    )


def test_a_name_that_is_no_text_leaves_as_the_bytes_it_was(tmp_path):
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    log = write_workq(tmp_path / "log", [added(1, name=name)])

    done = run_script("dump", log)
    as_json = run_script("dump", "--json", log)

    assert done.returncode == as_json.returncode == 0
    assert b" caf\xe9 " in done.stdout
    assert json.loads(as_json.stdout)["name"] == name


# --- ztick ---


def test_a_ztick_path_means_that_file_alone(tmp_path):
    write_ztick(tmp_path / "log.compressed", job("old"))
    log = write_ztick(tmp_path / "log", job("new"))

    assert [row["identifier"] for row in rows(run("dump", "--json", log))] == ["new"]


def test_a_compact_dump_folds_the_compacted_files_of_ztick_in_load_order(tmp_path):
    write_ztick(tmp_path / "log.compressed", job("a", 1), job("b", 1), job("c", 1))
    write_ztick(tmp_path / "log.to_compress", ztick.JobRemoved("a"), job("b", 2))
    log = write_ztick(tmp_path / "log", job("d", 3))

    found = rows(run("dump", "--compact", "--json", log))

    assert [(row["identifier"], row["execution"]) for row in found] == [
        ("c", 1),
        ("b", 2),
        ("d", 3),
    ]


def test_a_compact_dump_needs_no_active_ztick_file(tmp_path):
    write_ztick(tmp_path / "log.compressed", job("a"))

    assert run("dump", "--compact", tmp_path / "log").stdout.startswith("SET a ")
    assert_one_line_error(run("dump", tmp_path / "log"), 1, "file not found")


def test_ztick_has_no_times_to_go_by(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))

    assert_one_line_error(run("dump", "--as-of", "now", log), 2, "--as-of", "ztick")


def test_ztick_is_read_behind_a_damaged_length(tmp_path):
    log = write_ztick(tmp_path / "log", *(job(f"job.{n}") for n in range(6)))
    length = log.stat().st_size // 6
    flip_bit(log, 2 * length)

    done = run("dump", log)

    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        *("job.0", "job.1", "job.3", "job.4", "job.5"),
    ]
    assert f"{length} bytes at offset {2 * length} left out" in done.stderr


def test_ztick_salvage_shows_a_job_that_stands_alone(tmp_path):
    log = write_ztick(tmp_path / "log", *(job(f"job.{n}") for n in range(7)))
    length = log.stat().st_size // 7
    for number in (2, 4):
        flip_bit(log, number * length)

    plain, salvaged = run("dump", log), run("dump", "--salvage", log)

    assert "job.3" not in plain.stdout
    assert "SET job.3 " in salvaged.stdout
    assert len(salvaged.stdout.splitlines()) == len(plain.stdout.splitlines()) + 1 == 5


def test_ztick_rules_of_a_newer_writer_hide_nothing(tmp_path):
    newer = [ztick.CODEC.encode(ztick.RuleSet(f"r{n}", "p", ztick.Shell("x"))) for n in (1, 2)]
    newer = [rule[:-4] + b"\x63" + rule[-3:] for rule in newer]  # runner 99
    log = tmp_path / "log"
    log.write_bytes(b"".join([ztick.CODEC.encode(job("a")), *newer, ztick.CODEC.encode(job("b"))]))

    done = run("dump", log)

    assert [line.split()[1] for line in done.stdout.splitlines()] == ["a", "b"]
    assert done.stderr.splitlines() == [
        f"warning: failed to decode frame {n}: error.InvalidData" for n in (1, 2)
    ]


# --- workq ---


def test_workq_records_are_filtered_by_when_they_were_logged(tmp_path):
    log = write_workq(
        tmp_path / "log",
        [added(1), added(2, at_ns=NOW_NS + MINUTE_NS)],
        [event(1, workq.Command.DELETE, at_ns=NOW_NS + 2 * MINUTE_NS)],
    )

    def count(as_of_ns: int) -> int:
        return len(rows(run("dump", "--json", "--as-of", as_of_ns, log)))

    assert [count(NOW_NS + k * MINUTE_NS) for k in (-1, 0, 1, 2)] == [0, 1, 2, 3]
    assert count(NOW_NS + MINUTE_NS - 1) == 1


def test_a_compact_dump_shows_workq_jobs_as_of_a_moment(tmp_path):
    log = write_workq(
        tmp_path / "log",
        [added(1, ttl_ms=300_000), added(2, ttl_ms=90_000)],
        [event(1, workq.Command.START_ATTEMPT, at_ns=NOW_NS + MINUTE_NS)],
    )

    def states(as_of_ns: int) -> dict[str, int]:
        found = rows(run("dump", "--compact", "--json", "--as-of", as_of_ns, log))
        return {row["id"][:13]: row["state"] for row in found}

    first, second = "00000000-0001", "00000000-0002"
    assert states(NOW_NS - 1) == {}
    assert states(NOW_NS) == {first: 0, second: 0}
    assert states(NOW_NS + MINUTE_NS) == {first: 4, second: 0}
    assert states(NOW_NS + 2 * MINUTE_NS) == {first: 4}  # the second has expired
    assert states(NOW_NS + 5 * MINUTE_NS) == {}


def test_a_compact_dump_of_workq_in_text_says_state_and_queue(tmp_path):
    log = write_workq(tmp_path / "log", [added(1), added(2), event(2, workq.Command.START_ATTEMPT)])

    lines = run("dump", "--compact", "--as-of", NOW_NS, log).stdout.splitlines()

    assert "new in ready attempts=0" in lines[0]
    assert "leased attempts=1" in lines[1]


# --- kestrel ---


def test_kestrel_items_are_filtered_by_when_they_were_added(tmp_path):
    write_segment(tmp_path / "jobs.1", put(1, add_time_ms=1000), put(2, add_time_ms=2000))
    write_checkpoint(tmp_path / "jobs.read.", 0)

    found = rows(run("dump", "--json", "--as-of", "1970-01-01T00:00:01.999Z", tmp_path))

    assert [row["command"] for row in found] == ["PUT", "READ_HEAD", "READ_DONE"]


def test_only_one_queue_may_be_asked_for(tmp_path):
    write_segment(tmp_path / "a.1", put(1))
    write_segment(tmp_path / "b.1", put(2))

    assert [row["item_id"] for row in rows(run("dump", "--json", tmp_path))] == [1, 2]
    assert [row["item_id"] for row in rows(run("dump", "--json", "--queue", "b", tmp_path))] == [2]


def test_kestrel_is_read_behind_damage(tmp_path):
    path = write_segment(tmp_path / "jobs.1", *(put(n) for n in range(1, 7)))
    length = len(kestrel.WRITER.encode(put(1)))
    flip_bit(path, 4 + 2 * length)

    done = run("dump", path)

    assert len(done.stdout.splitlines()) == 5
    assert f"{length} bytes at offset {4 + 2 * length} left out" in done.stderr


def test_a_damaged_checkpoint_counts_as_nothing_read(tmp_path):
    write_segment(tmp_path / "jobs.1", put(1), put(2))
    checkpoint = write_checkpoint(tmp_path / "jobs.read.a", 1)
    assert [r["item_id"] for r in rows(run("dump", "--compact", "--json", tmp_path))[:-2]] == [2]

    checkpoint.write_bytes(checkpoint.read_bytes()[:-3])

    result = run("dump", "--compact", "--json", tmp_path)
    assert [row.get("item_id", row.get("id")) for row in rows(result)] == [1, 2, 0, None]
    assert "jobs.read.a" in result.stderr


def test_items_are_shown_until_every_reader_is_past_them(tmp_path):
    write_segment(tmp_path / "jobs.1", *(put(n) for n in range(1, 6)))
    write_checkpoint(tmp_path / "jobs.read.fast", 4)
    write_checkpoint(tmp_path / "jobs.read.slow", 1, 3)
    write_checkpoint(tmp_path / "jobs.read.", 0)  # the default reader does not count beside named

    found = rows(run("dump", "--compact", "--json", tmp_path))

    assert [row["item_id"] for row in found if row["command"] == "PUT"] == [2, 4, 5]
    assert [row["reader"] for row in found if row["command"] == "READ_HEAD"] == ["fast", "slow"]
    assert all(row["queue"] == "jobs" for row in found)


def test_the_same_item_twice_is_shown_once_and_a_reused_id_twice(tmp_path):
    write_segment(tmp_path / "jobs.1", put(1), put(2, b"one"))
    write_segment(tmp_path / "jobs.2", put(1), put(2, b"other"))

    found = rows(run("dump", "--compact", "--json", tmp_path))

    assert [row["item_id"] for row in found] == [1, 2, 2]


# --- a log in use ---


def test_a_ztick_log_is_seen_whole_while_it_is_compacted(tmp_path):
    """Whatever compaction does meanwhile, no job is missing from the state."""
    path = str(tmp_path / "log")
    expected = {f"job.{number}" for number in range(40)}
    with ZtickLog.open(DISK, CLOCK, path) as log:
        log.append([job(name) for name in sorted(expected)])
        stop = threading.Event()

        def compact_again_and_again() -> None:
            while not stop.is_set():
                log.append([job("job.0")])
                log.compact()

        thread = threading.Thread(target=compact_again_and_again)
        thread.start()
        try:
            for _ in range(30):
                found = rows(run("dump", "--compact", "--json", path))
                assert {row["identifier"] for row in found} == expected
        finally:
            stop.set()
            thread.join()


def test_a_log_that_a_compaction_renames_while_it_is_looked_at_is_found(tmp_path, monkeypatch):
    path = write_ztick(tmp_path / "log", job("a"))
    read_at = RealDisk.read_at

    def renamed(self: RealDisk, name: str, offset: int, length: int) -> bytes:
        path.rename(tmp_path / "log.to_compress")
        return read_at(self, name, offset, length)

    monkeypatch.setattr(RealDisk, "read_at", renamed)
    found = rows(run("dump", "--compact", "--json", path))
    assert [row["identifier"] for row in found] == ["a"]


def test_a_log_whose_files_never_stand_still_is_given_up(tmp_path, monkeypatch):
    path = write_ztick(tmp_path / "log", job("a"))
    (log,) = LogFinder(DISK, warn).find([str(path)])
    view = RealDisk.view

    def replaced(self: RealDisk, name: str) -> memoryview:
        write_ztick(tmp_path / "next", job("b")).rename(path)
        return view(self, name)

    monkeypatch.setattr(RealDisk, "view", replaced)

    with pytest.raises(LogError, match="keep changing"):
        reading.map_log(DISK, log)


def test_a_workq_log_being_cleaned_is_not_read(tmp_path, monkeypatch):
    log = write_workq(tmp_path / "log", [added(1)])
    monkeypatch.setattr(reading, "_LOCK_TIMEOUT_S", 0.0)
    lock = DISK.lock(str(log / "read.lock"))

    try:
        assert_one_line_error(run("dump", log), 1, "read.lock", "another process")
    finally:
        lock.release()
    assert run("dump", log).exit_code == 0


def test_reading_makes_no_files(tmp_path):
    log = write_workq(tmp_path / "log", [added(1)])
    before = sorted(path.name for path in log.iterdir())

    assert run("dump", "--compact", log).exit_code == 0
    assert run("verify", log).exit_code == 0

    assert sorted(path.name for path in log.iterdir()) == before
