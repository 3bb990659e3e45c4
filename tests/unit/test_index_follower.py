"""The archive of the index: rows of jobs whose TTL is over, which a log may have no more."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest

from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import CODEC, HEADER, Command, JobAdded, JobEvent, JobFinished, Record
from journeyman.logs.segments import numbered_name
from journeyman.servers.index.follower import Follower
from journeyman.storage import Storage
from journeyman.storage.memory import MemoryBackend
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk

START_NS = 1_700_000_000 * 10**9
LOG = "/log"
FIRST = f"{LOG}/{numbered_name(1)}"
TTL_MS, RETENTION_MS = 1_000, 5_000
IDS = [bytes.fromhex(f"0000000a00004000800000000000000{n}") for n in range(3)]


class Killed(BaseException):
    """The process has ended in the middle of something."""


class Index:
    """A log with one segment, and the store that is its index."""

    def __init__(self) -> None:
        self.disk, self.clock = SimulatedDisk(), ManualClock(START_NS)
        self.backend = MemoryBackend()
        self.storage = Storage(self.backend, "memory")
        self.told: list[str] = []
        self.disk.make_dirs(LOG)
        self.write(IDS)
        self.begin()

    def delete(self, job_id: bytes) -> None:
        with closing(self.disk.open_append(FIRST)) as file:
            file.write(CODEC.encode(JobEvent(Instant(START_NS), job_id, Command.DELETE)))

    def write(self, ids: list[bytes]) -> None:
        """The whole log, as cleaning may leave it: these jobs, and that they were completed."""
        at = Instant(START_NS)
        records: list[Record] = []
        for job_id in ids:
            job = JobAdded(at, job_id, "q", 1_000, TTL_MS, 0, 0, 0, b"", None, at, Command.ADD)
            records += [job, JobFinished(at, job_id, Command.COMPLETE, b"done")]
        if self.disk.exists(FIRST):
            self.disk.remove(FIRST)
        with closing(self.disk.open_append(FIRST)) as file:
            file.write(HEADER + b"".join(CODEC.encode(record) for record in records))

    def begin(self) -> None:
        """A process that follows the log begins."""
        self.follower = Follower(
            self.disk, self.clock, self.storage, LOG,
            ledger=None, retention_ms=RETENTION_MS, say=self.told.append,
        )  # fmt: skip

    def rows(self, after_ms: int = 0) -> set[bytes]:
        """The jobs that the index has so much later."""
        self.clock.advance_ns(after_ms * 1_000_000)
        while self.follower.step():
            pass
        rows = list(self.storage.all_jobs())
        return {row.job_uuid.bytes for row in rows if isinstance(row, JobRecord)}


@pytest.fixture
def index() -> Index:
    return Index()


def test_jobs_whose_ttl_is_over_stay_until_their_retention_ends(index: Index):
    assert index.rows() == set(IDS)
    assert index.rows(after_ms=TTL_MS + 1) == set(IDS)
    assert index.rows(after_ms=RETENTION_MS - 100) == set(IDS)
    assert index.rows(after_ms=200) == set()


def test_a_deleted_job_has_no_row(index: Index):
    assert index.rows() == set(IDS)
    index.delete(IDS[0])
    assert index.rows(after_ms=TTL_MS + 1) == set(IDS[1:])


def test_a_rebuild_keeps_the_archive_of_jobs_that_cleaning_took_from_the_log(index: Index):
    assert index.rows(after_ms=TTL_MS + 1) == set(IDS)
    index.write([])
    index.follower.rebuild("asked for")
    assert index.rows() == set(IDS)


def test_a_rebuild_drops_jobs_that_the_log_does_not_have(index: Index):
    assert index.rows() == set(IDS)
    index.write(IDS[:1])
    index.follower.rebuild("asked for")
    assert index.rows() == set(IDS[:1])


def test_a_rebuild_that_was_interrupted_is_begun_again(
    index: Index, monkeypatch: pytest.MonkeyPatch
):
    assert index.rows() == set(IDS)
    with monkeypatch.context() as patched:

        def die(*_: object) -> None:
            raise Killed

        patched.setattr(Follower, "_put_lives", die)
        with suppress(Killed):
            index.follower.rebuild("asked for")
    index.begin()
    index.told.clear()
    assert index.rows() == set(IDS)
    assert any("it has no position in the log" in line for line in index.told)
