"""Large logs are read in a process of its own: the same state, and none of its libraries stay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.formats.workq import Command, JobEvent
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.workq.log import WorkqLog
from journeyman.servers.core import bulk_loading
from journeyman.servers.core.helper_process import HelperFailed, HelperLost
from journeyman.servers.workq import persistence
from tests.support.workq_logs import added, at, job_id

LONG_S = 100 * 365 * 86400

LOAD = """
import sys
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.logs.appender import SyncPolicy
from journeyman.servers.workq.persistence import open_log
found = open_log(
    RealDisk(), SystemClock(), sys.argv[1], sync=SyncPolicy.OS, segment_bytes=2**26, bulk_bytes=1
)
heavy = [name for name in ("numpy", "pyarrow", "numba") if name in sys.modules]
print(found.in_bulk, found.queue.stats().ready, heavy)
"""


def write_log(directory: Path, jobs: int) -> None:
    with WorkqLog.open(RealDisk(), SystemClock(), str(directory), sync=SyncPolicy.OS) as log:
        log.append([added(number, ttl_s=LONG_S) for number in range(jobs)])
        # A second add, which is left to the fold, and an end.
        log.append([added(1, 1, ttl_s=LONG_S), JobEvent(at(1), job_id(2), Command.DELETE)])


def test_libraries_of_the_bulk_reader_do_not_stay_in_the_process(tmp_path: Path):
    write_log(tmp_path / "cmdlog", 1000)
    command = [sys.executable, "-c", LOAD, str(tmp_path / "cmdlog")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert said.stdout == "True 999 []\n"


def test_log_is_read_the_careful_way_if_the_other_process_dies(tmp_path, monkeypatch):
    write_log(tmp_path / "cmdlog", 10)
    monkeypatch.setattr(persistence, "WORKQ_READER", "journeyman.servers.no_such_module")
    found = persistence.open_log(
        RealDisk(),
        SystemClock(),
        str(tmp_path / "cmdlog"),
        sync=SyncPolicy.OS,
        segment_bytes=2**26,
        bulk_bytes=1,
    )
    assert not found.in_bulk
    assert found.queue.stats().ready == 9
    found.log.close()


def test_process_that_ends_early_is_told():
    with pytest.raises(HelperLost, match="has ended"):
        list(bulk_loading.read("journeyman.no_such_module", []))


def test_failure_of_a_function_is_reported():
    with pytest.raises(HelperFailed, match="FileNotFoundError"):
        list(bulk_loading.read(bulk_loading.ZTICK_READER, ["missing"]))


def test_process_that_was_prepared_is_asked_and_one_too_many_is_ended(tmp_path, monkeypatch):
    write_log(tmp_path / "cmdlog", 10)
    monkeypatch.setattr(bulk_loading, "BULK_BYTES", 1)
    for path in (tmp_path / "cmdlog", tmp_path / "missing"):
        bulk_loading.prepare_reader(bulk_loading.WORKQ_READER, str(path))
    child = bulk_loading._prepared[bulk_loading.WORKQ_READER]
    bulk_loading.prepare_reader(bulk_loading.ZTICK_READER, str(tmp_path / "cmdlog"))
    unasked = bulk_loading._prepared[bulk_loading.ZTICK_READER]
    files = [str(path) for path in (tmp_path / "cmdlog").glob("*.log")]
    pieces = bulk_loading.read(bulk_loading.WORKQ_READER, files, 0, set(), set())
    (report,) = [piece[1] for piece in pieces if piece and piece[0] == bulk_loading.REPORT]
    assert report.records == 12
    assert child.returncode is not None
    bulk_loading.end_idle_helpers()
    assert unasked.returncode is not None
    assert bulk_loading._prepared == {}
