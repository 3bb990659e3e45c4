"""``compact`` and ``clean``: smaller logs of the same state."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from journeyman.errors import LogError
from journeyman.formats import workq, ztick
from journeyman.logs.holders import Place, register
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.spark.maintenance.holding import hold_log, logs_at, refuse_unread
from journeyman.spark.sinks.commit import LocalDisk
from tests.support.cli_commands import (
    CLOCK,
    DISK,
    GOLDEN,
    added,
    assert_one_line_error,
    event,
    job,
    put,
    rows,
    run,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)

PAST_NS = 1_700_000_000_000_000_000
DAY_NS = 24 * 3600 * 1_000_000_000


# --- ztick ---


def test_a_ztick_log_becomes_one_file_of_the_same_state(tmp_path):
    write_ztick(tmp_path / "log.compressed", job("a", 1), job("b", 1))
    write_ztick(tmp_path / "log.to_compress", ztick.JobRemoved("a"), job("c", 1))
    log = write_ztick(tmp_path / "log", job("b", 2), ztick.RuleRemoved("r"))
    state = run("dump", "--compact", log).stdout

    result = run("compact", "--json", log)

    (row,) = rows(result)
    assert (row["dialect"], row["records_kept"]) == ("ztick", 2)
    assert row["bytes_kept"] == log.stat().st_size
    assert run("dump", log).stdout == run("dump", "--compact", log).stdout == state
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.lock"]


@pytest.mark.parametrize("name", ["a_all_entry_types", "b_sets_removes_resets", "d5_same_id_input"])
def test_golden_ztick_logs_keep_their_state(name, tmp_path):
    log = tmp_path / "log"
    shutil.copy(GOLDEN / "ztick" / f"{name}.log", log)
    state = run("dump", "--compact", log).stdout
    size = log.stat().st_size

    assert run("compact", log).exit_code == 0

    assert run("dump", log).stdout == state
    assert log.stat().st_size < size


def test_compacting_a_damaged_ztick_log_puts_the_damage_aside(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"), job("b"))
    log.write_bytes(log.read_bytes()[:-2])

    result = run("compact", log)

    assert result.exit_code == 0
    assert "quarantined in quarantine/" in result.stderr
    assert result.stdout == f"{log}: 1 record read, 1 kept; 17 bytes read, 17 kept\n"
    assert len(list((tmp_path / "quarantine").iterdir())) == 1
    assert run("compact", log).stderr == ""


def test_a_ztick_log_in_use_is_not_compacted(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))

    with ZtickLog.open(DISK, CLOCK, str(log)):
        assert_one_line_error(run("compact", log), 1, "another process")


def test_an_archive_is_for_kestrel_only(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))

    assert_one_line_error(run("compact", "--archive", tmp_path, log), 2, "--archive")


# --- kestrel ---


def test_kestrel_segments_that_every_reader_is_past_go(tmp_path):
    for number in range(1, 5):
        write_segment(tmp_path / f"jobs.{number}", put(2 * number - 1), put(2 * number))
    write_checkpoint(tmp_path / "jobs.read.a", 4)
    write_checkpoint(tmp_path / "jobs.read.b", 6)
    state = run("dump", "--compact", tmp_path).stdout

    result = run("compact", tmp_path)

    assert result.exit_code == 0
    assert "2 segments deleted: jobs.1, jobs.2" in result.stdout
    assert sorted(path.name for path in tmp_path.glob("jobs.[0-9]*")) == ["jobs.3", "jobs.4"]
    assert run("dump", "--compact", tmp_path).stdout == state


def test_kestrel_segments_may_be_archived_instead(tmp_path):
    queue, archive = tmp_path / "queue", tmp_path / "archive"
    first = write_segment(queue / "jobs.1", put(1)).read_bytes()
    write_segment(queue / "jobs.2", put(2))
    write_checkpoint(queue / "jobs.read.", 1)

    (row,) = rows(run("compact", "--json", "--archive", archive, queue))

    assert row["segments_retired"] == [str(archive / "archive~jobs.1")]
    assert (archive / "archive~jobs.1").read_bytes() == first


def test_only_the_chosen_queue_is_compacted(tmp_path):
    for queue in ("a", "b"):
        write_segment(tmp_path / f"{queue}.1", put(1))
        write_segment(tmp_path / f"{queue}.2", put(2))
        write_checkpoint(tmp_path / f"{queue}.read.", 1)

    assert run("compact", "--queue", "b", tmp_path).exit_code == 0

    assert sorted(path.name for path in tmp_path.glob("?.1")) == ["a.1"]


def test_nothing_of_a_queue_without_checkpoints_goes(tmp_path):
    write_segment(tmp_path / "jobs.1", put(1))
    write_segment(tmp_path / "jobs.2", put(2))

    result = run("compact", tmp_path)

    assert result.exit_code == 0
    assert "left alone" in result.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["jobs.1", "jobs.2"]


# --- workq ---


def test_a_workq_log_is_cleaned_not_compacted(tmp_path):
    log = write_workq(tmp_path / "log", [added(1)])

    assert_one_line_error(run("compact", log), 2, f"journeyman clean {log}")


def test_a_ztick_log_is_compacted_not_cleaned(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))

    assert_one_line_error(run("clean", log), 2, f"journeyman compact {log}")


def expired_and_living(directory: Path) -> Path:
    """Three jobs that are over, one that lives for 30 days more, and the active segment."""
    now_ns = CLOCK.now_ns()
    living = added(9, at_ns=now_ns - DAY_NS, ttl_ms=30 * 24 * 3600 * 1000)
    return write_workq(
        directory,
        [added(n, at_ns=PAST_NS) for n in (1, 2, 3)],
        [added(4, at_ns=PAST_NS), living],
        [event(9, workq.Command.START_ATTEMPT, at_ns=now_ns)],
    )


def test_cleaning_removes_segments_of_which_nothing_is_left(tmp_path):
    log = expired_and_living(tmp_path / "log")
    state = run("dump", "--compact", log).stdout

    (row,) = rows(run("clean", "--json", log))

    assert (row["segments_visited"], row["segments_removed"]) == (2, 1)
    assert not (log / "000000001.log").exists()
    assert run("dump", "--compact", log).stdout == state


def test_a_segment_that_is_not_due_is_rewritten_only_by_force(tmp_path):
    log = write_workq(
        tmp_path / "log",
        [added(1, at_ns=PAST_NS), added(2, at_ns=CLOCK.now_ns(), ttl_ms=2_592_000_000)],
        [event(2, workq.Command.START_ATTEMPT, at_ns=CLOCK.now_ns())],
    )

    # The mean of "over in 2023" and "over in 30 days" has passed long ago.
    assert "1 record dropped" in run("clean", log).stdout

    log = write_workq(
        tmp_path / "other",
        [added(1, at_ns=CLOCK.now_ns() - DAY_NS, ttl_ms=1000)]
        + [added(n, at_ns=CLOCK.now_ns(), ttl_ms=2_592_000_000) for n in range(2, 9)],
        [event(2, workq.Command.START_ATTEMPT, at_ns=CLOCK.now_ns())],
    )
    assert "0 records dropped" in run("clean", log).stdout
    assert "1 record dropped" in run("clean", "--force", log).stdout
    assert run("verify", log).exit_code == 0


def test_cleaning_as_of_a_moment_in_the_past_keeps_what_lived_then(tmp_path):
    log = expired_and_living(tmp_path / "log")

    assert "0 records dropped" in run("clean", "--as-of", PAST_NS, log).stdout


def test_cleaning_as_of_the_future_needs_force(tmp_path):
    log = expired_and_living(tmp_path / "log")
    future = CLOCK.now_ns() + 300 * DAY_NS

    assert_one_line_error(run("clean", "--as-of", future, log), 2, "future", "--force")
    result = run("clean", "--as-of", future, "--force", log)
    assert result.exit_code == 0
    assert "5 records dropped" in result.stdout


def test_cleaning_a_damaged_log_puts_the_damage_aside_first(tmp_path):
    log = expired_and_living(tmp_path / "log")
    segment = log / "000000002.log"
    segment.write_bytes(segment.read_bytes() + b"\1")

    result = run("clean", log)

    assert result.exit_code == 0
    assert "quarantine/" in result.stderr
    assert run("clean", "--quiet", log).stderr == ""


def test_a_workq_log_in_use_is_not_cleaned(tmp_path):
    log = write_workq(tmp_path / "log", [added(1)])

    with WorkqLog.open(DISK, CLOCK, str(log)):
        assert_one_line_error(run("clean", log), 1, "another process")


def test_the_golden_log_does_not_bring_a_deleted_job_back(tmp_path):
    """The original's cleaner drops the delete and keeps the add; compare c-live-1-after."""
    source = GOLDEN / "workq" / "c-live-0-before"
    description = json.loads((source / "description.json").read_text())
    shutil.copytree(source / "cmdlog", tmp_path / "log")

    assert (
        run("clean", "--force", "--as-of", description["now_ns"], tmp_path / "log").exit_code == 0
    )

    found = rows(
        run("dump", "--compact", "--json", "--as-of", description["now_ns"], tmp_path / "log")
    )
    assert description["deleted_id"] not in {row["id"] for row in found}
    assert [row["id"] for row in found] == [j["id"] for j in description["state_after_replay"]]


# --- holders ---


def hold(directory: Path, log: str, place: Place | None) -> None:
    """A lake that was seen just now, and has read the log up to here."""
    places = {} if place is None else {log: place}
    assert register(DISK, str(directory), "me", "lake /lake", CLOCK.now_ns(), places)


def assert_waits(result, directory: Path) -> None:
    assert result.exit_code == 0
    assert f"{directory}: " in result.stderr
    assert "stay for lake /lake: let it read them first" in result.stderr


def refused_by_the_pipeline(dialect: str, path: Path) -> bool:
    (log,) = logs_at(dialect, (str(path),))
    with hold_log(LocalDisk(), CLOCK, dialect, log) as held:
        try:
            refuse_unread(DISK, CLOCK, held)
        except LogError as error:
            return "lake /lake has not read all of it: let it read first" in str(error)
    return False


def test_a_schedule_that_a_lake_has_not_read_is_left_alone(tmp_path):
    log = write_ztick(tmp_path / "log", job("a", 1), job("a", 2))
    before = log.read_bytes()
    hold(tmp_path, "log", Place("log", log.stat().st_ino, len(before) - 1))
    assert refused_by_the_pipeline("ztick", log)
    assert_waits(run("compact", log), tmp_path)
    assert log.read_bytes() == before
    hold(tmp_path, "log", Place("log", log.stat().st_ino, len(before)))
    assert not refused_by_the_pipeline("ztick", log)
    assert "stay for" not in run("compact", log).stderr
    assert len(log.read_bytes()) < len(before)


def test_cleaning_leaves_segments_that_a_lake_has_not_read(tmp_path):
    write_workq(tmp_path, *([added(number, at_ns=PAST_NS)] for number in (1, 2, 3)))
    hold(tmp_path, "", Place("000000002.log", 0, 0))
    assert refused_by_the_pipeline("workq", tmp_path)
    assert_waits(run("clean", tmp_path), tmp_path)
    left = sorted(path.name for path in tmp_path.glob("*.log"))
    assert left == ["000000002.log", "000000003.log"]
    hold(tmp_path, "", Place("000000003.log", 0, 10**6))
    assert not refused_by_the_pipeline("workq", tmp_path)
    assert "stay for" not in run("clean", tmp_path).stderr
    assert not (tmp_path / "000000002.log").exists()


def test_retention_leaves_segments_that_a_lake_has_not_read(tmp_path):
    for number in (1, 2, 3):
        write_segment(tmp_path / f"jobs.{number}", put(number))
    write_checkpoint(tmp_path / "jobs.read.", 3)
    hold(tmp_path, "jobs", Place("jobs.2", 0, 0))
    assert_waits(run("compact", tmp_path), tmp_path)
    assert not (tmp_path / "jobs.1").exists()
    assert (tmp_path / "jobs.2").exists()
    hold(tmp_path, "jobs", None)
    assert_waits(run("compact", tmp_path), tmp_path)
    hold(tmp_path, "jobs", Place("jobs.3", 0, 0))
    assert "stay for" not in run("compact", tmp_path).stderr
    assert not (tmp_path / "jobs.2").exists()
