"""Figures over time: lengths, cells, files that were cut short, and a follower that is killed."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.disk import RealDisk
from journeyman.formats import workq
from journeyman.servers.core.following import Turns
from journeyman.servers.series.answers import (
    MAX_OTHERS,
    FoundSummary,
    PageOfRows,
    Wanted,
    count_lately,
    read_series,
    summarize,
    turn_to_page,
)
from journeyman.servers.series.cells import (
    MAX_ERRORS,
    MAX_EXAMPLES,
    OTHERS,
    Cell,
    CellBlock,
    Example,
    work_key,
)
from journeyman.servers.series.counting import MAX_GROUPS
from journeyman.servers.series.figures import FIGURES
from journeyman.servers.series.files import SeriesFiles
from journeyman.servers.series.lengths import bucket_of, middle_of, percentile
from journeyman.units import NS_PER_S
from tests.support.followed_series import followed, runs_lane_of, wanted, work_lane_of
from tests.support.simulated_disk import SimulatedDisk
from tests.support.spark.written_logs import BORN_NS, added, event, run, write_workq, write_ztick

BORN_S = BORN_NS // NS_PER_S
HOUR_S = 3600


def counts(lane: Any, of: str, name: str, to_s: float = 7200, **more: Any) -> list[Any]:
    found = read_series(lane, wanted(of, BORN_S, BORN_S + to_s, **more), [name])
    return [value for value in found.figures[name] if value]


# -- lengths --


@given(st.integers(min_value=0, max_value=2**62))
def test_a_length_is_known_to_a_sixteenth(length_ns: int):
    middle_ns = middle_of(bucket_of(length_ns)) * NS_PER_S
    assert abs(middle_ns - length_ns) <= max(length_ns / 16, 1000)


@given(st.integers(min_value=0, max_value=2**62), st.integers(min_value=0, max_value=2**62))
def test_buckets_are_in_the_order_of_lengths(one_ns: int, other_ns: int):
    assert (bucket_of(one_ns) <= bucket_of(other_ns)) == (
        one_ns <= other_ns or bucket_of(one_ns) == bucket_of(other_ns)
    )


def test_a_percentile_is_the_least_length_that_covers_its_share():
    lengths = {bucket_of(seconds * NS_PER_S): 1 for seconds in range(1, 11)}
    assert percentile(lengths, 500) == pytest.approx(5, rel=1 / 16)
    assert percentile(lengths, 990) == pytest.approx(10, rel=1 / 16)
    assert percentile({}, 500) is None


# -- cells --


def test_a_cell_keeps_the_slowest_and_the_last_and_few_errors():
    cell = Cell()
    for number in range(20):
        cell.note_slow(Example((number * 7) % 20, number, b"%d" % number))
        cell.note_failed(Example(1, number, b"%d" % number, f"Error{number}"))
        cell.note_error(f"Error{number}")
    assert [example.run_us for example in cell.slowest] == [19, 18, 17]
    assert [example.ended_ns for example in cell.latest_failed] == [17, 18, 19]
    assert len(cell.slowest) == MAX_EXAMPLES
    assert len(cell.errors) == MAX_ERRORS + 1
    assert cell.errors[OTHERS] == 20 - MAX_ERRORS


# -- files --


def block(begin_s: int, count: int) -> CellBlock:
    return CellBlock(begin_s, False, {work_key("mail", ""): Cell(added=count)})


def test_a_frame_that_was_cut_short_is_cut_off_by_the_next_writer(tmp_path: Path):
    SeriesFiles(RealDisk(), str(tmp_path)).append_minute(block(BORN_S, 1))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole + whole[: len(whole) // 2])
    files = SeriesFiles(RealDisk(), str(tmp_path))
    assert [each.begin_s for each in files.minutes(0, BORN_S + HOUR_S)] == [BORN_S]
    files.append_minute(block(BORN_S + 60, 2))
    found = SeriesFiles(RealDisk(), str(tmp_path)).minutes(0, BORN_S + HOUR_S)
    assert [cell.added for each in found for cell in each.cells.values()] == [1, 2]


@pytest.mark.parametrize("place", range(0, 40, 3))
def test_damaged_bytes_end_a_file_and_nothing_else(tmp_path: Path, place: int):
    files = SeriesFiles(RealDisk(), str(tmp_path))
    files.append_minute(block(BORN_S, 1))
    (file,) = tmp_path.iterdir()
    data = bytearray(file.read_bytes())
    data[place % len(data)] ^= 0xFF
    file.write_bytes(data)
    assert list(files.minutes(0, BORN_S + HOUR_S)) == []
    SeriesFiles(RealDisk(), str(tmp_path)).append_minute(block(BORN_S, 2))
    assert [each.begin_s for each in files.minutes(0, BORN_S + HOUR_S)] == [BORN_S]


def test_a_minute_that_the_place_counts_outlives_a_power_cut():
    disk = SimulatedDisk()
    files = SeriesFiles(disk, "/series")
    files.append_minute(block(BORN_S, 1))
    files.write_place([])
    files = SeriesFiles(disk.after_crash("lose_all_unsynced"), "/series")
    assert [each.begin_s for each in files.minutes(0, BORN_S + HOUR_S)] == [BORN_S]


def test_of_a_minute_that_is_there_twice_the_last_block_counts(tmp_path: Path):
    files = SeriesFiles(RealDisk(), str(tmp_path))
    for count in (1, 5):
        files.append_minute(block(BORN_S, count))
    (found,) = files.minutes(0, BORN_S + HOUR_S)
    assert [cell.added for cell in found.cells.values()] == [5]


def test_old_files_go_and_the_newest_stay(tmp_path: Path):
    files = SeriesFiles(RealDisk(), str(tmp_path))
    for day in range(100):
        files.append_minute(block(BORN_S + day * 86_400, 1))
        files.append_hour(block((BORN_S + day * 86_400) // HOUR_S * HOUR_S, 1))
    files.prune(BORN_S + 99 * 86_400)
    names = sorted(path.name.partition(".")[0] for path in tmp_path.iterdir())
    assert (names.count("minutes"), names.count("hours")) == (3, 91)


# -- following --


def shop_log(seconds: int, seed: int = 1) -> list[workq.Record]:
    """Jobs of two queues, one a second, with every kind of end."""
    chance, records = random.Random(seed), []
    for number in range(seconds):
        queue = ("team.mail", "print")[number % 2]
        records.append((number, added(number, number, queue=queue, max_fails=3)))
        ended = number + chance.randrange(1, 300)
        records.append((ended, event("start-attempt", number, ended)))
        word = chance.choice(["complete", "complete", "fail", "delete", "timeout-attempt"])
        records.append((ended + 2, event(word, number, ended + 2)))
        if word == "fail" and number % 3:
            records.append((ended + 2, event("timeout-attempt", number, ended + 2)))
    return [record for _, record in sorted(records, key=lambda each: each[0])]


def everything(lane: Any, to_s: int) -> list[Any]:
    found: list[Any] = []
    for of in ("work", "queue:team.mail", "queue:print"):
        for step_s in (60, 3600):
            series = read_series(lane, wanted(of, BORN_S, BORN_S + to_s, step_s), FIGURES)
            found.append((series.times_s, series.figures, series.errors))
        found.append(summarize(lane, Wanted("queue", "", "", BORN_S, BORN_S + to_s, 0)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("saves", [False, True])
def test_a_follower_that_was_killed_comes_to_the_same_figures(tmp_path: Path, saves: bool):
    records, end_s = shop_log(6_000), 7_000
    whole = write_workq(tmp_path / "whole", records)
    expected = everything(followed(work_lane_of(whole, tmp_path / "a", BORN_S + end_s)), end_s)
    log, chance, written = tmp_path / "log", random.Random(2), 0
    while written < len(records):
        written = min(len(records), written + chance.randrange(500, 3_000))
        write_workq(log, records[:written])
        now_s = records[written - 1].logged.unix_ns / NS_PER_S
        lane = followed(work_lane_of(str(log), tmp_path / "b", now_s))
        if saves and chance.random() < 0.7:
            lane.save()  # what was counted after this is counted again
    lane = followed(work_lane_of(str(log), tmp_path / "b", BORN_S + end_s))
    assert everything(lane, end_s) == expected


def test_lost_files_are_counted_again_from_the_log(tmp_path: Path):
    log = write_workq(tmp_path / "log", shop_log(6_000))
    lane = followed(work_lane_of(log, tmp_path, BORN_S + 7_000))
    expected = everything(lane, 7_000)
    lane.save()
    for path in (tmp_path / "series").iterdir():
        path.unlink()
    assert everything(followed(work_lane_of(log, tmp_path, BORN_S + 7_000)), 7_000) == expected


def test_minutes_on_disk_are_better_than_a_log_that_was_cleaned(tmp_path: Path):
    log = write_workq(tmp_path / "log", shop_log(6_000))
    lane = followed(work_lane_of(log, tmp_path, BORN_S + 7_000))
    expected = sum(counts(lane, "work", "added", 3_600))
    (Path(log) / "000000001.log").unlink()
    write_workq(Path(log), [], shop_log(100))
    (Path(log) / "000000001.log").unlink()
    lane = followed(work_lane_of(log, tmp_path, BORN_S + 7_000))
    assert sum(counts(lane, "work", "added", 3_600)) == expected > 3_000


def test_jobs_that_wait_count_in_hours_in_which_nothing_happens(tmp_path: Path):
    records = [added(1, 0), added(2, 1, due_s=9_000), added(3, 40_000, queue="print")]
    lane = followed(work_lane_of(write_workq(tmp_path / "log", records), tmp_path, BORN_S + 50_000))
    found = read_series(
        lane, wanted("queue:mail", BORN_S + 5_000, BORN_S + 30_000, 3_600), ["ready", "scheduled"]
    )
    assert found.figures["scheduled"][0] == 1
    assert found.figures["ready"][-1] == 2
    assert found.figures["scheduled"][-1] == 0


def test_a_lane_removes_minutes_that_are_too_old(tmp_path: Path):
    days = [added(number, number * 86_400) for number in range(5)]
    log, now_s = write_workq(tmp_path / "log", days[:1]), BORN_S + 200
    followed(work_lane_of(log, tmp_path, now_s)).save()
    write_workq(tmp_path / "log", days)
    followed(work_lane_of(log, tmp_path, now_s + 5 * 86_400))
    first = SeriesFiles(RealDisk(), str(tmp_path / "series")).minutes(0, BORN_S + HOUR_S)
    assert list(first) == []


def test_what_is_to_come_is_not_known(tmp_path: Path):
    lane = followed(work_lane_of(write_workq(tmp_path / "log", [added(1)]), tmp_path, BORN_S + 100))
    found = read_series(lane, wanted("work", BORN_S, BORN_S + 600), ["ready"])
    assert found.figures["ready"][0] == 1
    assert found.figures["ready"][-1] is None


def test_a_minute_is_closed_when_it_is_over_without_a_later_record(tmp_path: Path):
    log = write_workq(tmp_path / "log", [added(1)])
    lane = followed(work_lane_of(log, tmp_path, BORN_S + 30))
    assert not (tmp_path / "series").exists()
    followed(work_lane_of(log, tmp_path, BORN_S + 130))
    assert [path.name.partition(".")[0] for path in (tmp_path / "series").iterdir()] == ["minutes"]
    assert counts(lane, "work", "added") == [1]


def test_a_clock_that_was_years_ahead_does_not_keep_the_minutes_shut(tmp_path: Path):
    records = [added(1, 0), added(2, 40_000_000), added(3, 120), added(4, 200)]
    lane = followed(work_lane_of(write_workq(tmp_path / "log", records), tmp_path, BORN_S + 300))
    assert counts(lane, "work", "added") == [1, 1, 1]


def test_names_of_other_namespaces_are_not_counted(tmp_path: Path):
    log = write_workq(tmp_path / "log", shop_log(600))
    lane = followed(work_lane_of(log, tmp_path, BORN_S + 7_000))
    assert sum(counts(lane, "work", "added", prefix="team.")) == 300
    assert counts(lane, "queue:print", "added", prefix="team.") == []
    rows = summarize(lane, Wanted("queue", "", "team.", BORN_S, BORN_S + 7_000, 0))
    assert [row.name for row in rows] == ["team.mail"]


def test_more_names_than_there_is_room_for_are_counted_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert MAX_GROUPS > 10
    monkeypatch.setattr("journeyman.servers.series.counting.MAX_GROUPS", 10)
    records = [added(n, n / 10, queue=f"q{n}") for n in range(50)]
    lane = followed(work_lane_of(write_workq(tmp_path / "log", records), tmp_path, BORN_S + 300))
    rows = summarize(lane, Wanted("queue", "", "", BORN_S, BORN_S + 300, 0))
    assert len(rows) == 11
    assert {row.name: row.cell.added for row in rows}[OTHERS] == 40


def test_a_queue_names_few_of_very_many_tasks(tmp_path: Path):
    payloads = [b'{"v":1,"task":"t%03d","args":[]}' % number for number in range(MAX_OTHERS + 20)]
    records = [added(n, 0, payload=payload) for n, payload in enumerate(payloads)]
    lane = followed(work_lane_of(write_workq(tmp_path / "log", records), tmp_path, BORN_S + 300))
    (row,) = summarize(lane, Wanted("queue", "", "", BORN_S, BORN_S + 300, 0))
    assert row.others == [f"t{number:03}" for number in range(MAX_OTHERS)]


def test_classes_of_errors_that_never_end_are_counted_together(tmp_path: Path):
    """Each minute has some that no other has: a list of steps for each would fill the memory."""
    records: list[workq.Record] = []
    for n in range(200):
        at = added(n, n * 20 + 1)
        failure = b'{"error": "E%d"}' % n
        finished = workq.JobFinished(at.logged, at.job_id, workq.Command.FAIL, failure)
        records += [added(n, n * 20), event("start_attempt", n, n * 20), finished]
    lane = followed(work_lane_of(write_workq(tmp_path / "log", records), tmp_path, BORN_S + 7000))
    found = read_series(lane, wanted("work", BORN_S, BORN_S + 4020), ["failures"])
    assert len(found.errors) == MAX_ERRORS + 1
    steps = zip(*found.errors.values(), strict=True)
    assert [sum(step) for step in steps] == found.figures["failures"]


def test_rows_are_sorted_and_paged():
    rows = [FoundSummary(f"q{n}", Cell(added=n % 3, started=n), [], []) for n in range(6)]
    assert turn_to_page(rows, PageOfRows("", "name", 4, 3)) == (rows[4:], 6)
    page, total = turn_to_page(rows, PageOfRows("q", "-added", 0, 3))
    assert ([row.name for row in page], total) == (["q2", "q5", "q1"], 6)
    assert turn_to_page(rows, PageOfRows("x", "-added", 0, 3)) == ([], 0)
    rows[1].cell.errors = {"ValueError": 2}
    assert count_lately(rows, rows[:2]) == ({"q1": 1, "q0": 0}, {"ValueError": 2})


def test_names_that_no_job_has_any_more_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("journeyman.servers.series.counting.MAX_GROUPS", 10)
    records: list[workq.Record] = []
    for n in range(40):
        records += [added(n, n * HOUR_S, queue=f"q{n}"), event("delete", n, n * HOUR_S + 1)]
    records.insert(0, added(1000, 0, queue="kept"))
    log = write_workq(tmp_path / "log", records)
    lane = followed(work_lane_of(log, tmp_path, BORN_S + 40 * HOUR_S))
    rows = summarize(lane, Wanted("queue", "", "", BORN_S, BORN_S + 40 * HOUR_S, 0))
    assert OTHERS not in {row.name for row in rows}
    assert lane.counts.depths[work_key("kept", "")] == [0, 1, 0]


def test_a_cancelled_job_is_no_failure(tmp_path: Path):
    records = [
        added(1, 0),
        workq.JobFinished(
            added(1, 5).logged, added(1).job_id, workq.Command.FAIL, workq.CANCELLATION
        ),
    ]
    lane = followed(work_lane_of(write_workq(tmp_path / "log", records), tmp_path, BORN_S + 60))
    assert counts(lane, "queue:mail", "cancelled") == [1]
    assert counts(lane, "queue:mail", "failures") == []


def test_a_parked_job_neither_fails_nor_is_ready(tmp_path: Path):
    """It was leased, waits for something, is woken and done; the original is shown a timeout."""
    job_id, at = added(1).job_id, [added(1, seconds).logged for seconds in range(400)]
    command = workq.Command
    records = [
        added(1, 0),
        workq.JobEvent(at[1], job_id, command.START_ATTEMPT),
        workq.JobFinished(at[2], job_id, command.PARK, b"{}", hidden=True),
        workq.JobEvent(at[2], job_id, command.TIMEOUT_ATTEMPT),
        workq.JobEvent(at[130], job_id, command.WAKE, hidden=True),
        workq.JobEvent(at[190], job_id, command.START_ATTEMPT, hidden=True),
        workq.JobFinished(at[200], job_id, command.COMPLETE, b""),
    ]
    write_workq(tmp_path / "log", records[:4])
    followed(work_lane_of(str(tmp_path / "log"), tmp_path, BORN_S + 3)).save()
    lane = followed(work_lane_of(write_workq(tmp_path / "log", records), tmp_path, BORN_S + 400))
    assert counts(lane, "queue:mail", "failures") == []
    assert (counts(lane, "work", "started"), counts(lane, "work", "completed")) == ([1, 1], [1])
    ready = read_series(lane, wanted("work", BORN_S, BORN_S + 300), ["ready"]).figures["ready"]
    assert ready[:4] == [0, 0, 1, 0]
    (row,) = summarize(lane, Wanted("queue", "", "", BORN_S, BORN_S + 400, 0))
    assert (sum(row.cell.run.values()), sum(row.cell.wait.values())) == (2, 2)


def test_a_timetable_with_a_runner_and_one_by_a_rule_are_both_counted(tmp_path: Path):
    label = "2026-11-18T02:00:00+01:00"
    runs = [
        run(f"nightly@{label}", 0, 1, 2),
        run("backup.x", 5, 6, 9, "failed"),
    ]
    own = run(f"weekly@{label}", 1, 2, 3)
    object.__setattr__(own, "rule", "timetable weekly")
    path = write_ztick(tmp_path / "logfile", [], [*runs, own])
    lane = followed(runs_lane_of(f"{path}.runs", tmp_path, BORN_S + 60))
    rows = summarize(lane, Wanted("timetable", "", "", BORN_S, BORN_S + 60, 0))
    assert [(row.name, row.others) for row in rows] == [
        ("nightly", [f"nightly@{label}".partition(".")[0]]),
        ("weekly", []),
    ]
    (backup,) = summarize(lane, Wanted("rule", "backup", "", BORN_S, BORN_S + 60, 0))
    assert (backup.cell.failed, backup.cell.latest_failed[0].key) == (1, b"backup.x")
    lane.save()
    again = followed(runs_lane_of(f"{path}.runs", tmp_path, BORN_S + 60))
    assert sum(counts(again, "schedule", "started")) == 3


def test_a_question_comes_before_the_next_step():
    turns, answered = Turns(), list[str]()

    def ask() -> None:
        with turns:
            answered.append("the question")

    asking = threading.Thread(target=ask)
    with turns:
        asking.start()
        while not turns.is_wanted:
            time.sleep(0.001)
    with turns:
        assert answered == ["the question"]
    asking.join()
