"""Logs that workq itself wrote, also those it cannot load itself, as the server loads them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from journeyman.disk import RealDisk
from journeyman.folds.workq import FoldedJob, replay
from journeyman.formats.workq import Record
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.workq.log import WorkqLog
from journeyman.servers.core import bulk_loading
from journeyman.servers.workq import bulk
from journeyman.servers.workq.persistence import OpenedWorkq, open_log
from journeyman.testing import ManualClock
from tests.support.bulk_here import read_here
from tests.support.workq_views import expected_orders, folded, jobs_of, orders_of

DATA = Path(__file__).parent / "data" / "workq"
LOGS = sorted(path.name for path in DATA.iterdir() if path.is_dir())
WHOLE = ("a-all-types", "b-segments", "c-clean-0-before", "c-live-1-after", "f-never-expires")
IN_A_PROCESS = "a-all-types"  # as a server does it; the others in this one, which has its libraries


def records_of(directory: Path, now_ns: int) -> list[Record]:
    records: list[Record] = []
    WorkqLog.open(RealDisk(), ManualClock(now_ns), str(directory), on_record=records.append).close()
    return records


def opened(name: str, directory: Path, now_ns: int, *, bulk_bytes: int) -> OpenedWorkq:
    shutil.copytree(DATA / name / "cmdlog", directory)
    found = open_log(
        RealDisk(),
        ManualClock(now_ns),
        str(directory),
        sync=SyncPolicy.OS,
        segment_bytes=1 << 30,
        bulk_bytes=bulk_bytes,
    )
    found.log.close()
    return found


def moments(name: str, directory: Path) -> list[int]:
    """When its youngest job was created, and a day later."""
    shutil.copytree(DATA / name / "cmdlog", directory)
    states = replay(records_of(directory, 0)).values()
    created = [job.added.created.unix_ns for job in states if isinstance(job, FoldedJob)]
    latest_ns = max(created, default=0)
    return [latest_ns + 1, latest_ns + 86_400 * 10**9]


@pytest.mark.kernels
@pytest.mark.parametrize("name", LOGS)
def test_both_ways_of_loading_agree_with_the_fold(tmp_path, monkeypatch, name):
    if name != IN_A_PROCESS:
        monkeypatch.setattr(bulk_loading, "read", read_here)
        monkeypatch.setattr(bulk, "CHUNK_ROWS", 2)  # with many borders between chunks
    for number, now_ns in enumerate(moments(name, tmp_path / "first")):
        careful = opened(name, tmp_path / f"careful{number}", now_ns, bulk_bytes=1 << 60)
        quick = opened(name, tmp_path / f"bulk{number}", now_ns, bulk_bytes=0)
        assert jobs_of(careful.queue) == jobs_of(quick.queue)
        assert jobs_of(careful.queue) == folded(
            records_of(tmp_path / f"careful{number}", now_ns), now_ns
        )
        for each in (careful, quick):
            orders, expected = orders_of(each.queue), expected_orders(each.queue)
            assert {kind: orders[kind] for kind in expected} == expected


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_log_is_read_in_bulk_and_holds_jobs(tmp_path, monkeypatch, name):
    monkeypatch.setattr(bulk_loading, "read", read_here)
    now_ns = moments(name, tmp_path / "first")[0]
    found = opened(name, tmp_path / "bulk", now_ns, bulk_bytes=0)
    assert found.in_bulk
    assert jobs_of(found.queue)
