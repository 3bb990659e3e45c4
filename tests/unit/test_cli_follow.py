"""``dump --follow`` as a process of its own, beside a log that grows, rotates and is compacted."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from journeyman.cli import dump as follow_module
from journeyman.cli.errors import warn
from journeyman.folds.kestrel import Reader
from journeyman.formats import kestrel, workq, ztick
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog, compact_offline
from tests.support.cli_commands import (
    CLOCK,
    DISK,
    added,
    assert_one_line_error,
    event,
    flip_bit,
    job,
    job_id,
    put,
    run,
    write_checkpoint,
    write_segment,
    write_workq,
    write_ztick,
)

PATIENCE_S = 60


class Follower:
    """A running ``dump --follow``; lines are taken from it one by one."""

    def __init__(self, *args: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "journeyman", "dump", "--follow", "--json", *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._collect, daemon=True).start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def next(self) -> dict[str, Any]:
        row: dict[str, Any] = json.loads(self._lines.get(timeout=PATIENCE_S))
        return row

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Exit code and stderr, once everything that was printed has been taken."""
        self.process.send_signal(number)
        assert self.process.stderr is not None
        complaints = self.process.stderr.read().decode()
        code = self.process.wait(PATIENCE_S)
        assert self._lines.empty()
        return code, complaints


@contextmanager
def following(*args: object) -> Iterator[Follower]:
    follower = Follower(*args)
    try:
        yield follower
    finally:
        follower.process.kill()
        follower.process.wait()
        assert follower.process.stdout is not None
        assert follower.process.stderr is not None
        follower.process.stdout.close()
        follower.process.stderr.close()


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def names(follower: Follower, count: int) -> list[str]:
    return [follower.next()["identifier"] for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_there_is_printed_and_a_signal_ends_it_well(tmp_path, number):
    log = write_ztick(tmp_path / "log", job("a"), job("b"))

    with following(log) as follower:
        assert names(follower, 2) == ["a", "b"]
        assert follower.stop(number) == (0, "")


def test_appended_entries_are_printed_even_if_they_come_in_pieces(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))
    entry = ztick.CODEC.encode(job("b"))

    with following(log) as follower:
        assert names(follower, 1) == ["a"]
        append(log, entry[:7])
        append(log, entry[7:] + ztick.CODEC.encode(job("c")))
        assert names(follower, 2) == ["b", "c"]
        assert follower.stop() == (0, "")


def test_an_undecodable_ztick_frame_is_a_warning(tmp_path):
    log = write_ztick(tmp_path / "log", job("a"))

    with following(log) as follower:
        assert names(follower, 1) == ["a"]
        append(log, b"\0\0\0\1\x63" + ztick.CODEC.encode(job("b")))
        assert names(follower, 1) == ["b"]
        assert follower.stop() == (0, "warning: failed to decode frame 1: error.InvalidData\n")


def test_ztick_is_followed_across_compactions(tmp_path):
    path = tmp_path / "log"
    with ZtickLog.open(DISK, CLOCK, str(path)) as log:

        def set_job(name: str) -> None:
            log.append([job(name)])

        set_job("first")
        with following(path) as follower:
            assert names(follower, 1) == ["first"]
            for round_number in range(3):
                set_job(f"before.{round_number}")
                assert log.compact() is not None
                set_job(f"after.{round_number}")
                assert names(follower, 2) == [f"before.{round_number}", f"after.{round_number}"]
            assert follower.stop() == (0, "")


def test_what_is_left_in_the_old_ztick_file_comes_before_the_new_one(tmp_path):
    """The original renames the active file, and makes the next one only with the next write."""
    path = write_ztick(tmp_path / "log", job("a"))
    old = tmp_path / "log.to_compress"

    with following(path) as follower:
        assert names(follower, 1) == ["a"]
        path.rename(old)
        append(old, ztick.CODEC.encode(job("late")))
        assert names(follower, 1) == ["late"]
        append(old, ztick.CODEC.encode(job("last")))
        write_ztick(path, job("new"))
        assert names(follower, 2) == ["last", "new"]
        assert follower.stop() == (0, "")


def test_a_partial_frame_in_the_old_ztick_file_is_a_warning(tmp_path):
    path = write_ztick(tmp_path / "log", job("a"))

    with following(path) as follower:
        assert names(follower, 1) == ["a"]
        append(path, b"\0\0\0")
        path.rename(tmp_path / "log.to_compress")
        write_ztick(path, job("new"))
        assert names(follower, 1) == ["new"]
        assert follower.stop() == (0, "warning: partial trailing frame (3 bytes) ignored\n")


def test_offline_compaction_is_followed_into_the_new_file(tmp_path):
    path = write_ztick(tmp_path / "log", job("a"), job("b"), ztick.JobRemoved("a"))

    with following(path) as follower:
        assert names(follower, 3) == ["a", "b", "a"]
        compact_offline(DISK, str(path))
        assert names(follower, 1) == ["b"]
        append(path, ztick.CODEC.encode(job("c")))
        assert names(follower, 1) == ["c"]
        assert follower.stop() == (0, "")


def test_a_file_that_was_cut_is_followed_from_its_new_end(tmp_path):
    path = write_ztick(tmp_path / "log", job("a"), job("b"))
    size = len(ztick.CODEC.encode(job("a")))

    with following(path) as follower:
        assert names(follower, 2) == ["a", "b"]
        os.truncate(path, size)
        assert follower.process.stderr is not None
        assert b"cut from" in follower.process.stderr.readline()
        append(path, ztick.CODEC.encode(job("c")))
        assert names(follower, 1) == ["c"]
        assert follower.stop() == (0, "")


def test_workq_is_followed_across_segments(tmp_path):
    directory = tmp_path / "cmdlog"
    with WorkqLog.open(DISK, CLOCK, str(directory), segment_bytes=200) as log:

        def add(number: int) -> None:
            log.append([added(number)])

        add(1)
        with following(directory) as follower:
            rows = [follower.next()]
            for number in range(2, 12):
                add(number)
                rows.append(follower.next())
            assert follower.stop() == (0, "")
    assert [row["id"].replace("-", "") for row in rows] == [job_id(n).hex() for n in range(1, 12)]
    segments = [row["segment"] for row in rows]
    assert segments == sorted(segments)
    assert len(set(segments)) > 3


def test_workq_segments_may_be_cleaned_away_behind_the_follower(tmp_path):
    directory = write_workq(tmp_path / "cmdlog", [added(1)], [added(2)])

    with following(directory) as follower:
        assert [follower.next()["segment"] for _ in range(2)] == ["000000001.log", "000000002.log"]
        (directory / "000000001.log").unlink()
        append(directory / "000000002.log", workq.CODEC.encode(added(3)))
        assert follower.next()["segment"] == "000000002.log"
        assert follower.stop() == (0, "")


def test_a_workq_file_is_followed_alone(tmp_path):
    directory = write_workq(tmp_path / "cmdlog", [added(1)])
    segment = directory / "000000001.log"

    with following(segment) as follower:
        assert follower.next()["cmd"] == "add"
        write_workq_segment_2(directory)
        append(segment, workq.CODEC.encode(event(1, workq.Command.START_ATTEMPT)))
        assert follower.next()["cmd"] == "start-attempt"
        append(segment, workq.CODEC.encode(event(1, workq.Command.DELETE)))
        assert follower.next()["cmd"] == "delete"
        assert follower.stop() == (0, "")


def test_workq_damage_is_a_warning_and_what_follows_is_printed(tmp_path):
    directory = write_workq(tmp_path / "cmdlog", [added(1), added(2), added(3)])
    segment = directory / "000000001.log"
    length = len(workq.CODEC.encode(added(1)))
    flip_bit(segment, 8 + length + 30)

    with following(directory) as follower:
        assert [follower.next()["offset"] for _ in range(2)] == [8, 8 + 2 * length]
        code, complaints = follower.stop()
    assert code == 0
    assert complaints.count("\n") == 1
    assert f"{segment}: damage at offset {8 + length}: " in complaints


def test_a_torn_workq_segment_is_a_warning_once_the_next_begins(tmp_path):
    directory = write_workq(tmp_path / "cmdlog", [added(1)])

    with following(directory) as follower:
        follower.next()
        append(directory / "000000001.log", workq.CODEC.encode(added(2))[:20])
        write_workq_segment_2(directory)
        assert follower.next()["segment"] == "000000002.log"
        code, complaints = follower.stop()
    assert code == 0
    assert "000000001.log: 20 bytes at offset" in complaints


def write_workq_segment_2(directory: Path) -> None:
    data = workq.HEADER + workq.CODEC.encode(added(3))
    (directory / "unfinished").write_bytes(data)
    (directory / "unfinished").rename(directory / "000000002.log")


def test_a_workq_header_may_come_in_pieces(tmp_path):
    directory = tmp_path / "cmdlog"
    directory.mkdir()
    segment = directory / "000000001.log"
    segment.write_bytes(workq.HEADER[:3])

    with following(directory) as follower:
        append(segment, workq.HEADER[3:])
        append(segment, workq.CODEC.encode(added(1)))
        assert follower.next()["offset"] == 8
        assert follower.stop() == (0, "")


def test_kestrel_is_followed_across_segments_and_checkpoints(tmp_path):
    with KestrelLog.open(DISK, CLOCK, str(tmp_path), "jobs", segment_bytes=100) as journal:

        def put_one() -> int:
            return journal.put(b"x" * 20).item_id

        ids = [put_one()]
        with following(tmp_path, "--queue", "jobs") as follower:
            rows = [follower.next() for _ in range(3)]  # the put and the new queue's checkpoint
            for _ in range(6):
                ids.append(put_one())
                rows.append(follower.next())
            journal.checkpoint("", Reader(4, {6}))
            checkpoint = [follower.next(), follower.next()]
            assert follower.stop() == (0, "")
    puts = [row for row in rows if row["command"] == "PUT"]
    assert [row["item_id"] for row in puts] == ids
    assert len({row["file"] for row in puts}) > 2
    assert [row["command"] for row in checkpoint] == ["READ_HEAD", "READ_DONE"]
    assert (checkpoint[0]["id"], checkpoint[1]["ids"]) == (4, [6])


def test_a_mapped_kestrel_segment_is_followed_into_its_zero_tail(tmp_path):
    segment = write_segment(tmp_path / "jobs.1", put(1))
    end = segment.stat().st_size
    append(segment, bytes(4096))

    with following(segment) as follower:
        assert follower.next()["item_id"] == 1
        with segment.open("r+b") as file:
            file.seek(end)
            file.write(kestrel.WRITER.encode(put(2)))
        assert follower.next()["item_id"] == 2
        assert follower.stop() == (0, "")


def test_kestrel_damage_is_a_warning_and_later_segments_are_printed(tmp_path):
    segment = write_segment(tmp_path / "jobs.1", put(1))
    end = segment.stat().st_size
    append(segment, b"\x80" + kestrel.WRITER.encode(put(2)))
    write_segment(tmp_path / "jobs.2", put(3))
    write_checkpoint(tmp_path / "jobs.read.", 0)

    with following(tmp_path) as follower:
        found = [follower.next() for _ in range(4)]
        code, complaints = follower.stop()
    assert [row.get("item_id") for row in found] == [1, 3, None, None]
    assert code == 0
    assert f"{segment}: damage at offset {end}: " in complaints


def test_an_entry_longer_than_one_read_is_printed(tmp_path, monkeypatch):
    monkeypatch.setattr(follow_module, "_READ_BYTES", 16)
    directory = write_workq(tmp_path / "cmdlog", [added(1), added(2)])

    class OneRound:
        def sleep(self, seconds: float) -> None:
            raise KeyboardInterrupt

    from journeyman.logs.detection import LogFinder

    lines: list[str] = []
    logs = LogFinder(DISK, warn).find([str(directory)])
    with pytest.raises(KeyboardInterrupt):
        follow_module.follow(DISK, OneRound(), logs, lines.append, json=True)  # type: ignore[arg-type]

    assert [json.loads(line)["offset"] for line in lines] == [
        8,
        8 + len(workq.CODEC.encode(added(1))),
    ]


@pytest.mark.parametrize(
    "options", [("--compact",), ("--as-of", "now"), ("--salvage",)], ids=lambda o: o[0]
)
def test_options_that_make_no_sense_while_following_are_refused(tmp_path, options):
    directory = write_workq(tmp_path / "cmdlog", [added(1)])

    assert_one_line_error(run("dump", "--follow", *options, directory), 2, "--follow", options[0])
