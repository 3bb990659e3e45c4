"""An ingest killed -9, driver and Java, in the middle of a commit; the next one makes it good."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from journeyman.cli import journeyman
from journeyman.columnar import read_table
from tests.support.effort import DEEP
from tests.support.report_counts import count_workq
from tests.support.spark.histories import busy_log
from tests.support.spark.written_logs import write_workq

KILLS = 8 if DEEP else 1
PATIENCE_S = 300

pytestmark = pytest.mark.timeout(1200)


def start(log: Path, lake: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "journeyman", "pipeline", "ingest", str(log)]
    return subprocess.Popen(
        [*command, "--lake", str(lake), "--host", "a", "--quiet", "--master", "local[2]"],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
    )


def run(log: Path, lake: Path) -> None:
    """The same command, in the session of this lane."""
    words = ["pipeline", "ingest", str(log), "--lake", str(lake), "--host", "a", "--quiet"]
    done = CliRunner().invoke(journeyman, words)
    assert done.exit_code == 0, done.output


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_busy(lake: Path, has_bronze: bool) -> bool:
    """True if bronze is being written; or it is committed, and silver and gold are next."""
    if has_bronze:
        return any(lake.glob("snapshots/_delta_log/*1.json"))
    return any(lake.glob("bronze/workq/*.parquet"))


@pytest.mark.usefixtures("spark")
def test_a_lake_is_whole_after_kills(tmp_path):
    records = busy_log(8)
    half = len(records) // 2
    log, lake = tmp_path / "workq", tmp_path / "lake"
    write_workq(log, records[:half])
    for kill in range(KILLS):
        process = start(log, lake)
        wait_for(partial(is_busy, lake, has_bronze=kill % 2 == 1), process)
        with suppress(ProcessLookupError):  # it was faster
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    write_workq(log, records[:half], records[half:])
    run(log, lake)

    bronze = read_table(f"{lake}/bronze/workq").sort_by("_position")
    assert bronze["logged_ns"].to_pylist() == [record.logged.unix_ns for record in records]
    attempts = read_table(f"{lake}/silver/attempts")
    expected = [(t.ready, t.started, t.outcome) for t in count_workq(records).tries]
    columns = (attempts[name].to_pylist() for name in ("ready_ns", "started_ns", "outcome"))
    assert sorted(map(repr, zip(*columns, strict=True))) == sorted(map(repr, expected))
