"""Streams into Parquet with the driver, its JVM and its workers killed -9 again and again.

A program writes a ztick log, a workq log and a kestrel queue all the while; segments rotate, and
the ztick log is compacted both while the driver runs and while it is dead. In the end every record
is in Parquet once, in order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest

from journeyman.spark import register
from tests.support.effort import DEEP
from tests.support.spark.stream_program import LOGS, query

KILLS = 5 if DEEP else 1
PATIENCE_S = 300
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1200)
def test_nothing_is_lost_or_doubled_by_kills_rotation_and_compaction(spark, tmp_path):
    with _running("stream_writer", tmp_path) as writer:
        assert _pipes(writer)[1].readline()
        for kill in range(KILLS):
            with _running("stream_program", tmp_path) as driver:
                # Far enough to be in the middle of something new, another time each.
                _wait(lambda: _knows_active_file(tmp_path), driver)
                _tell(writer, "compact")
                _wait(lambda: _knows_active_file(tmp_path), driver)
                enough = _batches(tmp_path) + 1 + kill % 3
                _wait(partial(_has_batches, tmp_path, enough), driver)
                _kill_all(driver.pid)
            _tell(writer, "compact")
        _tell(writer, "stop")
    # What is left is read in the session of this lane.
    register(spark)
    last = query(spark, tmp_path).trigger(availableNow=True).start()
    assert last.awaitTermination(PATIENCE_S)

    rows = sorted(_committed(tmp_path / "out"), key=lambda row: (row["_log"], row["_position"]))
    assert {row["_damage"] for row in rows} == {None}
    for dialect in LOGS:
        ours = [row for row in rows if row["_log"].startswith(str(tmp_path / dialect))]
        assert [row["key"] for row in ours] == (tmp_path / f"{dialect}.ledger").read_text().split()
        assert len({row["_position"] for row in ours}) == len(ours)
        files = {row["_segment"] for row in ours}
        assert len(files) == 2 * KILLS + 1 if dialect == "ztick" else len(files) > 3
    assert _batches(tmp_path) > KILLS


@contextmanager
def _running(module: str, *arguments: Path | str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", f"tests.support.spark.{module}", *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        _kill_all(process.pid)
        process.communicate()


def _tell(writer: subprocess.Popen[str], word: str) -> None:
    stdin, stdout = _pipes(writer)
    stdin.write(word + "\n")
    stdin.flush()
    assert stdout.readline()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def _wait(condition: Callable[[], bool], driver: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if driver.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"the driver did not get there; its exit code is {driver.poll()}")
        time.sleep(0.02)


def _knows_active_file(directory: Path) -> bool:
    """Whether the stream has seen the file that is written now; then it may be compacted."""
    inode = (directory / "ztick" / "logfile").stat().st_ino
    last = _batches(directory) - 1
    if last < 0:
        return False
    return f'"inode": {inode},' in (directory / "checkpoint" / "offsets" / str(last)).read_text()


def _has_batches(where: Path, enough: int) -> bool:
    return _batches(where) >= enough


def _batches(directory: Path) -> int:
    offsets = directory / "checkpoint" / "offsets"
    names = os.listdir(offsets) if offsets.exists() else []
    return max((int(name) for name in names if name.isdecimal()), default=-1) + 1


def _kill_all(pid: int) -> None:
    """The process and everything below it: the JVM, and the workers it has started."""
    for each in [*_below(pid), pid]:
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it went with its parent


def _below(pid: int) -> list[int]:
    """Threads and processes may end while we look: then they have no children any more."""
    children: set[int] = set()
    with suppress(FileNotFoundError, ProcessLookupError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                path = Path(f"/proc/{pid}/task/{thread}/children")
                children |= set(map(int, path.read_text().split()))
    return [*(each for child in children for each in _below(child)), *children]


def _committed(out: Path) -> list[dict[str, Any]]:
    """The rows of the files that Spark's own list of them names: others are left-overs of kills."""
    lists = {int(path.stem): path for path in (out / "_spark_metadata").glob("[0-9]*")}
    compacted = max((number for number, path in lists.items() if path.suffix), default=-1)
    rows: list[dict[str, Any]] = []
    for number, path in lists.items():
        if number >= compacted:
            for line in path.read_text().splitlines()[1:]:  # the first one is a version
                file = unquote(urlparse(json.loads(line)["path"]).path)
                rows += pq.read_table(file).to_pylist()
    return rows
