"""How a worker leases the jobs of a batch task (tasks/batches.py), on a connection of its own.

    lease, wait for the first jobs --slot--> lease more until the size or the time --> one call

A slot is taken when the first job is there, so a busy worker leases no batch ahead. Jobs that a
client cancels meanwhile are left out. Jobs that have failed before run alone; so do jobs of other
tasks, which another app may have put into the queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from journeyman.client import BadAnswer
from journeyman.protocols.workq.commands import MAX_LEASED
from journeyman.tasks.batches import BatchTask
from journeyman.tasks.worker.held import Held
from journeyman.tasks.worker.link import AGAIN_S, LinkRefused, NothingReady, WorkerLink
from journeyman.units import MS_PER_S

logger = logging.getLogger("journeyman.worker")


class BatchHost(Protocol):
    """The worker, as far as its batches need it."""

    @property
    def is_stopping(self) -> bool: ...

    @property
    def is_idle(self) -> bool:
        """True if no job is in hand and every report was acknowledged."""
        ...

    async def open_lease_link(self) -> WorkerLink | None:
        """Open another connection for leases. None: the worker stops."""
        ...

    async def lease(
        self, link: WorkerLink, queue: str, most: int, wait_ms: int
    ) -> Sequence[Held]: ...

    async def take_slot(self) -> None: ...

    def release_slot(self) -> None: ...

    async def complete_arguments(self, held_job: Held) -> None:
        """Fetch the results that its first argument is made of."""
        ...

    def run_alone(self, held_job: Held) -> None: ...

    def run_batch(self, members: Sequence[Held]) -> None:
        """Run the batch in the slot that was taken."""
        ...

    async def pause(self, at_most_s: float) -> None: ...


class BatchLease:
    """Leases the jobs of one batch task until the worker stops; a burst until there are none."""

    def __init__(
        self, host: BatchHost, task: BatchTask[Any, Any, Any], *, wait_ms: int, is_burst: bool
    ) -> None:
        self._host = host
        self._task = task
        self._wait_ms = 0 if is_burst else wait_ms
        self._is_burst = is_burst
        self._members: list[Held] = []  # that wait for the rest of their batch; they have a slot

    async def run(self) -> None:
        """Raises as ``Worker.run``."""
        host = self._host
        link: WorkerLink | None = None
        while not host.is_stopping:
            link = link or await host.open_lease_link()
            if link is None:
                return
            try:
                await self._collect(link)
            except NothingReady:
                if self._is_burst and not self._members and not host.is_stopping:
                    if host.is_idle:
                        return
                    await host.pause(0.5)
            except LinkRefused as error:
                if not str(error).startswith("SERVER-ERROR"):
                    raise
                logger.warning("the server cannot lease (%s); trying again", error)
                await host.pause(AGAIN_S)
            except (ConnectionError, BadAnswer) as error:
                link.close()
                link = None
                if not host.is_stopping:
                    logger.warning("connection lost: %s; connecting again", error)
                    await host.pause(AGAIN_S)
            finally:
                members, self._members = self._members, []
                if members:  # complete, or what there was before the time or the connection ended
                    host.run_batch(members)

    async def _collect(self, link: WorkerLink) -> None:
        """Raises NothingReady if the time has passed."""
        loop, until = asyncio.get_running_loop(), 0.0
        wait_ms = self._wait_ms
        while len(self._members) < self._task.size:
            most = min(self._task.size - len(self._members), MAX_LEASED)
            leased = await self._host.lease(link, self._task.defaults.queue, most, wait_ms)
            until = until or loop.time() + self._task.within_s
            for held in leased:
                await self._add(held)
            wait_ms = max(0, round((until - loop.time()) * MS_PER_S))

    async def _add(self, held_job: Held) -> None:
        host = self._host
        await host.complete_arguments(held_job)
        if held_job.prepared.task is not self._task:
            host.run_alone(held_job)
        elif held_job.prepared.delivery.fails:
            await host.take_slot()
            host.run_batch([held_job])
        else:
            if not self._members:
                await host.take_slot()
            self._members.append(held_job)
