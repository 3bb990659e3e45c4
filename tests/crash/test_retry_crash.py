"""A fail that is retried is two records in one write; a power cut may leave the first alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from journeyman.engines.workq.engine import WorkqEngine
from journeyman.formats.workq import CODEC, Command, JobAdded, JobFinished
from journeyman.logs.appender import SyncPolicy
from journeyman.protocols.workq.commands import InspectJob
from journeyman.protocols.workq.replies import JobList
from journeyman.servers.workq.persistence import open_log
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_logs import DIRECTORY, added, as_of, at, job_id, path_of, planted, started

pytestmark = pytest.mark.usefixtures("kind_of_disk")

PENDING, FAILED = 3, 2
CAREFULLY, IN_BULK = 1 << 60, 0


def opened(disk: SimulatedDisk, bulk_bytes: int) -> WorkqEngine:
    found = open_log(
        disk,
        ManualClock(as_of(10)),
        DIRECTORY,
        sync=SyncPolicy.ALWAYS,
        segment_bytes=1 << 20,
        bulk_bytes=bulk_bytes,
    )
    found.log.close()
    return found.queue


def state_of(queue: WorkqEngine, number: int) -> int:
    reply = queue.decide(InspectJob(job_id(number)), as_of(10)).reply
    assert isinstance(reply, JobList)
    return reply.jobs[0].number_of_state


@pytest.mark.parametrize("bulk_bytes", [CAREFULLY, IN_BULK])
@pytest.mark.parametrize("torn", [b"", b"\x01\x02"])
def test_a_fail_without_its_retry_leaves_the_job_to_be_done(bulk_bytes: int, torn: bytes):
    job = added(1)
    assert isinstance(job, JobAdded)
    fail = JobFinished(at(2), job_id(1), Command.FAIL, b"why", hidden=True)
    disk = planted([replace(job, max_fails=3), started(1, 1), fail])
    disk.plant(path_of(1), disk.read_bytes(path_of(1)) + torn)
    assert state_of(opened(disk, bulk_bytes), 1) == PENDING
    after = disk.after_crash("lose_all_unsynced")
    assert state_of(opened(after, bulk_bytes), 1) == PENDING
    assert after.files()[f"/{path_of(1)}".replace("//", "/")].count(CODEC.encode(fail)) == 1


def test_a_fail_of_the_original_stays_final():
    job = added(1)
    assert isinstance(job, JobAdded)
    fail = JobFinished(at(2), job_id(1), Command.FAIL, b"why")
    disk = planted([replace(job, max_fails=3), started(1, 1), fail])
    assert state_of(opened(disk, CAREFULLY), 1) == FAILED
