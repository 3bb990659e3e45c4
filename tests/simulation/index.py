"""The index of a simulated server's work queue: another process that follows the log.

It follows now and then, and is ended each time. It may read what a power cut takes back later. In
the end its rows are those of an index that is built from the log.
"""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from journeyman.clock import Clock
from journeyman.config import Settings
from journeyman.formats.keyspace.values import JobRecord
from journeyman.servers.index.follower import Follower
from journeyman.storage import Storage
from journeyman.storage.memory import MemoryBackend
from tests.simulation.checks import tell
from tests.support.simulated_disk import PowerCut, SimulatedDisk


class SimulatedIndex:
    """See the module."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._storage = Storage(MemoryBackend(), "/the index")

    def follow(self, disk: SimulatedDisk) -> None:
        """A process begins to follow, until it has read everything or the power is cut."""
        with suppress(PowerCut):
            self._rows(self._storage, disk)

    def check(self, disk: SimulatedDisk) -> None:
        """Compare with an index that is built from this log."""
        followed = self._rows(self._storage, disk)
        built = self._rows(Storage(MemoryBackend(), "/another index"), disk)
        jobs = sorted(followed.keys() | built.keys())
        tell(
            f"the index has {followed.get(job)}, and should have {built.get(job)}"
            for job in jobs
            if followed.get(job) != built.get(job)
        )

    def _rows(self, storage: Storage, disk: SimulatedDisk) -> dict[UUID, JobRecord]:
        follower = Follower(
            disk,
            self._clock,
            storage,
            self._settings.workq.cmdlog_path,
            ledger=self._settings.ledger.path,
            retention_ms=self._settings.storage.retention_ms,
            say=lambda _: None,
        )
        while follower.step():
            pass
        rows = storage.all_jobs()
        return {row.job_uuid: row for row in rows if isinstance(row, JobRecord)}
