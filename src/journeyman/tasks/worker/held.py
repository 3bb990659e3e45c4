"""``Held``: a job that a worker has leased and not yet reported, or a batch of such jobs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from journeyman.tasks.running import Prepared
from journeyman.tasks.worker.notes import JobWords
from journeyman.tasks.worker.threads import Work


@dataclass(slots=True)
class Held:
    """A job in hand: leased ahead, or running."""

    prepared: Prepared
    lease_ns: int  # when its lease was renewed last
    started: float = 0.0
    work: Work | None = None
    running: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None
    is_over: bool = False
    is_cancelled: bool = False  # by a client
    words: JobWords | None = None  # that the task says while it runs
    members: tuple[Held, ...] = ()  # the jobs of a batch; the batch itself is no job
    is_member: bool = False

    @property
    def job_id(self) -> str:
        return self.prepared.delivery.job_id
