"""The history of runs: lines, files, rotation, what a crash and a bad disk leave."""

from __future__ import annotations

import errno
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.config import DatabaseSettings, HistorySettings
from journeyman.disk import AppendFile
from journeyman.engines.ztick.messages import StartRun
from journeyman.formats.ztick import Shell
from journeyman.logs.ztick.run_history import (
    OUTCOMES,
    RunFiles,
    RunLine,
    decode_run,
    encode_run,
    history_files,
    last_runs,
)
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.ztick import runs as run_history
from journeyman.servers.ztick.runs import EndedRun, RunHistory, history_directory, read_recent_runs
from journeyman.testing import ManualClock
from journeyman.units import MIB
from tests.support.simulated_disk import SimulatedDisk

WAIT_S = 60.0
RUN = RunLine("job", "rule", "shell", 5, 7, 9, "failed", "exit status 3", "said\n")

times = st.integers(-(2**63), 2**63 - 1)
texts = st.text()
lines = st.builds(
    RunLine, texts, texts, texts, times, times, times, st.sampled_from(OUTCOMES), texts, texts
)


class History:
    """A history on a simulated disk; ``write`` is one round of its thread."""

    def __init__(self, disk: SimulatedDisk | None = None, **settings: int) -> None:
        self.disk = disk or SimulatedDisk()
        self.clock = ManualClock()
        self.said: list[str] = []
        self.history = RunHistory(
            HistorySettings(**settings),  # type: ignore[arg-type]
            "log.runs",
            self.disk,
            self.clock,
            ServerLog(self.clock, self.said.append),
            gather_s=0,
        )

    def run(self, job: str, *, success: bool = True, output: bytes = b"") -> None:
        effect = StartRun(1, job, 5, Shell("true"), "rule")
        self.history.ended(effect, EndedRun(job, 5, 10, 4, success, "", output))

    def write(self) -> None:
        self.history.start()
        self.history.stop()

    def text(self) -> str:
        names = history_files(self.disk.list_dir("log.runs"))
        return b"".join(self.disk.read_bytes(f"log.runs/{name}") for name in names).decode()


def files(disk: SimulatedDisk, clock: ManualClock, **limits: int) -> RunFiles:
    whole = {"file_bytes": MIB, "keep_files": 100, "keep_days": 0} | limits
    return RunFiles(disk, clock, "runs", holders=None, **whole)


def names(disk: SimulatedDisk) -> list[str]:
    return history_files(disk.list_dir("runs"))


# -- lines ---------------------------------------------------------------------------------------


@given(lines)
def test_a_run_is_one_line_and_comes_back_from_it(run: RunLine):
    line = encode_run(run)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_run(line) == run


@given(lines, st.data())
def test_a_part_of_a_line_is_no_run(run: RunLine, data):
    line = encode_run(run)
    assert decode_run(line[: data.draw(st.integers(0, len(line) - 2))]) is None


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"null",
        b"[1]",
        b"\xff",
        b"[" * 100_000,
        encode_run(RUN).replace(b'"execution_ns":5', b'"execution_ns":"5"'),
        encode_run(RUN).replace(b'"execution_ns":5', b'"execution_ns":true'),
        encode_run(RUN).replace(b'"job":"job"', b'"job":7'),
        encode_run(RUN).replace(b'"job":"job",', b""),
    ],
)
def test_what_is_no_run_is_stepped_over(line: bytes):
    assert decode_run(line) is None


def test_fields_of_a_later_version_are_ignored_and_missing_texts_are_empty():
    value = json.loads(encode_run(RUN)) | {"host": "a"}
    for name in ("rule", "runner", "detail", "output"):
        del value[name]
    assert decode_run(json.dumps(value).encode()) == RunLine("job", "", "", 5, 7, 9, "failed")


# -- files ---------------------------------------------------------------------------------------


def test_lines_go_to_the_newest_file_until_it_is_full():
    disk, clock = SimulatedDisk(), ManualClock()
    begun = clock.now_ns() // 1_000_000
    runs = files(disk, clock, file_bytes=100)
    for _ in range(3):
        runs.append([b"x" * 49 + b"\n"])
    assert names(disk) == [f"{begun}.jsonl", f"{begun + 1}.jsonl"]
    assert disk.size(f"runs/{begun}.jsonl") == 100
    runs.close()
    again = files(disk, clock, file_bytes=100)
    again.append([b"y\n"])
    assert disk.read_bytes(f"runs/{begun + 1}.jsonl").endswith(b"x\ny\n")


def test_a_line_longer_than_a_file_may_be_is_kept():
    disk, clock = SimulatedDisk(), ManualClock()
    runs = files(disk, clock, file_bytes=10)
    runs.append([b"z" * 50 + b"\n"])
    runs.append([b"z" * 50 + b"\n"])
    assert [disk.size(f"runs/{name}") for name in names(disk)] == [51, 51]


def test_a_file_is_left_after_a_day_and_goes_when_its_runs_are_too_old():
    disk, clock = SimulatedDisk(), ManualClock()
    runs = files(disk, clock, keep_days=2)
    for day in range(6):
        runs.append([b"%d\n" % day])
        clock.advance(24 * 3600)
    days = [disk.read_bytes(f"runs/{name}") for name in names(disk)]
    # On day 5 nothing that ended before day 3 is kept: file 2 ended when file 3 was begun.
    assert days == [b"2\n", b"3\n", b"4\n", b"5\n"]


def test_no_more_files_are_kept_than_allowed():
    disk, clock = SimulatedDisk(), ManualClock()
    runs = files(disk, clock, file_bytes=10, keep_files=3)
    for number in range(9):
        runs.append([b"number%d\n" % number])
    assert [disk.read_bytes(f"runs/{name}") for name in names(disk)] == [
        b"number6\n",
        b"number7\n",
        b"number8\n",
    ]


def test_names_only_grow_when_the_clock_steps_back():
    disk, clock = SimulatedDisk(), ManualClock(1_000_000_000_000_000_000)
    runs = files(disk, clock, file_bytes=10)
    runs.append([b"first file\n"])
    runs.close()
    later = files(disk, ManualClock(5), file_bytes=10)
    later.append([b"next file\n"])
    assert [disk.read_bytes(f"runs/{name}") for name in names(disk)] == [
        b"first file\n",
        b"next file\n",
    ]


def test_other_files_of_the_directory_are_left_alone():
    disk, clock = SimulatedDisk(), ManualClock()
    disk.make_dirs("runs")
    disk.open_append("runs/notes.jsonl").write(b"mine")
    disk.open_append("runs/12.jsonl.gz").write(b"mine")
    runs = files(disk, clock, file_bytes=5, keep_files=1)
    for _ in range(5):
        runs.append([b"12345\n"])
    assert disk.list_dir("runs") == ["12.jsonl.gz", *names(disk), "notes.jsonl"]
    assert len(names(disk)) == 1


def test_a_line_cut_off_by_a_crash_costs_that_line_alone():
    disk, clock = SimulatedDisk(), ManualClock()
    runs = files(disk, clock)
    runs.append([encode_run(RUN), encode_run(RUN)[:-20]])
    runs.close()
    after = files(disk, clock)
    after.append([encode_run(RUN)])
    after.close()
    assert last_runs(disk, "runs", 10, at_most_bytes=MIB) == [RUN, RUN]
    whole = disk.read_bytes(f"runs/{names(disk)[0]}").split(b"\n")
    assert [decode_run(line) for line in whole] == [RUN, None, RUN, None]


def test_a_failed_write_leaves_no_half_line_and_the_next_one_works():
    disk, clock = SimulatedDisk(), ManualClock()
    runs = files(disk, clock)
    runs.append([b"before\n"])
    disk.fail("write", error=errno.ENOSPC, partial=3)
    with pytest.raises(OSError, match="No space"):
        runs.append([b"lost\n"])
    runs.append([b"behind\n"])
    assert disk.read_bytes(f"runs/{names(disk)[0]}") == b"before\nbehind\n"


@given(st.lists(st.integers(0, 40), max_size=30), st.integers(1, 400), st.integers(1, 12))
def test_the_last_runs_are_found_from_the_end(sizes: list[int], file_bytes: int, count: int):
    disk, clock = SimulatedDisk(), ManualClock()
    runs = files(disk, clock, file_bytes=file_bytes)
    written = [RunLine(f"j{n}", "", "", n, n, n, "executed", "d" * s) for n, s in enumerate(sizes)]
    for run in written:
        runs.append([encode_run(run)])
    found = last_runs(disk, "runs", count, at_most_bytes=MIB) if written else []
    assert found == written[-count:]


def test_no_more_bytes_are_looked_at_than_allowed():
    disk, clock = SimulatedDisk(), ManualClock()
    files(disk, clock).append([encode_run(RUN)] * 100)
    length = len(encode_run(RUN))
    # Of a line at the very edge nobody has seen that it begins there.
    assert last_runs(disk, "runs", 100, at_most_bytes=10 * length) == [RUN] * 9
    assert last_runs(disk, "runs", 100, at_most_bytes=10 * length + 1) == [RUN] * 10
    assert last_runs(SimulatedDisk(), "runs", 5, at_most_bytes=MIB) == []


# -- the thread ----------------------------------------------------------------------------------


def test_runs_become_lines():
    history = History()
    history.run("a", success=False, output=b"caf\xc3\xa9 \xff\n")
    history.history.cut_off(StartRun(2, "b", 6, Shell("true"), "rule"), 20, 30)
    history.write()
    values = [json.loads(line) for line in history.text().splitlines()]
    assert values == [
        {
            "job": "a",
            "rule": "rule",
            "runner": "shell",
            "execution_ns": 5,
            "started_ns": 10,
            "ended_ns": 14,
            "outcome": "failed",
            "detail": "",
            "output": "café \\xff\n",
        },
        {
            "job": "b",
            "rule": "rule",
            "runner": "shell",
            "execution_ns": 6,
            "started_ns": 20,
            "ended_ns": 50,
            "outcome": "cut-off",
            "detail": "",
            "output": "",
        },
    ]
    assert history.history.written == 2


def test_without_runs_no_directory_is_made():
    history = History()
    history.write()
    assert not history.disk.exists("log.runs")


def test_runs_that_end_while_others_are_written_are_not_lost():
    written = threading.Event()

    class SlowDisk(SimulatedDisk):
        def open_append(self, path: str) -> AppendFile:
            if not written.is_set():
                history.run("meanwhile")
                written.set()
            return super().open_append(path)

    history = History(SlowDisk())
    history.run("first")
    history.history.start()
    assert written.wait(WAIT_S)
    history.history.stop()
    jobs = [json.loads(line)["job"] for line in history.text().splitlines()]
    assert jobs == ["first", "meanwhile"]


def test_a_disk_in_trouble_is_told_once_and_runs_are_counted():
    history = History()
    history.disk.fail("create", "mkdir", error=errno.EACCES, times=10)
    for number in range(2_500):
        history.run(f"job{number}")
    history.write()
    assert history.history.dropped == 2_500
    assert [line for line in history.said if "cannot be written" in line] == history.said
    assert len(history.said) == 1


def test_history_goes_on_when_the_disk_does():
    history = History()
    history.disk.fail("mkdir", error=errno.ENOSPC, times=1)
    for number in range(run_history.MAX_RUNS_A_WRITE + 1):
        history.run(f"job{number}")
    history.write()
    assert (history.history.dropped, history.history.written) == (run_history.MAX_RUNS_A_WRITE, 1)
    assert "written again" in history.said[1]
    assert f"lost_runs={run_history.MAX_RUNS_A_WRITE}" in history.said[1]


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(run_history, "MAX_WAITING_RUNS", 3)
    history = History()
    for number in range(5):
        history.run(f"job{number}")
    history.write()
    assert (history.history.dropped, history.history.written) == (2, 3)


def test_the_next_process_remembers_the_runs_but_not_those_it_runs_again():
    history = History()
    history.run("a", output=b"caf\xc3\xa9")
    history.history.cut_off(StartRun(2, "b", 6, Shell("true")), 20, 30)
    history.run("c", success=False)
    history.write()
    log = ServerLog(history.clock, history.said.append)
    found = read_recent_runs(history.disk, "log.runs", log)
    assert found == [
        EndedRun("a", 5, 10, 4, True, "", "café".encode()),
        EndedRun("c", 5, 10, 4, False, ""),
    ]
    assert history.said == []


def test_the_directory_stands_beside_the_log_unless_set():
    database = DatabaseSettings(logfile_path="data/schedule.log")
    assert history_directory(HistorySettings(), database) == "data/schedule.log.runs"
    assert history_directory(HistorySettings(path="elsewhere"), database) == "elsewhere"
