"""The steps of one job, over the worker's connection for reports: sent until they are answered.

A step that was recorded and whose answer was lost is recorded once all the same: the server takes
the first value of a step, and only from the attempt that has the lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from journeyman.protocols.workq.commands import JobWait
from journeyman.tasks.errors import error_of_step
from journeyman.tasks.steps import Place, Recorded
from journeyman.tasks.worker.link import LinkRefused, Reports, Row

T = TypeVar("T")
_SIZE_AT = 2  # the word of a line of ``inspect steps`` that is the size of the value


class WorkerJournal:
    """A tasks.steps.Journal. The blocking methods are for threads of jobs."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        reports: Reports,
        job_id: str,
        attempt: int,
        before_park: Callable[[], None],
    ) -> None:
        """``before_park``, called on the loop, sends what only the attempt with the lease may."""
        self._loop = loop
        self._reports = reports
        self._job_id = job_id
        self._attempt = attempt
        self._before_park = before_park

    def read(self) -> Recorded:
        return self._wait_for(self.aread())

    async def aread(self) -> Recorded:
        rows = await self._ask(
            f"inspect steps {self._job_id} -attempt={self._attempt}\r\n".encode(), _SIZE_AT
        )
        return _recorded(rows)

    def record(self, place: Place, value: bytes) -> None:
        self._wait_for(self.arecord(place, value))

    async def arecord(self, place: Place, value: bytes) -> None:
        name, number = place
        head = f"step {self._job_id} {name} {number} {len(value)} -attempt={self._attempt}\r\n"
        await self._ask(head.encode() + value + b"\r\n")

    def park(self, wait: JobWait) -> Recorded:
        return self._wait_for(self.apark(wait))

    async def apark(self, wait: JobWait) -> Recorded:
        self._before_park()
        data = msgspec.json.encode(wait)
        head = f"park {self._job_id} {len(data)} -attempt={self._attempt}\r\n"
        rows = await self._ask(head.encode() + data + b"\r\n", _SIZE_AT)
        return _recorded(rows)

    async def _ask(self, request: bytes, size_at: int = -1) -> list[Row]:
        try:
            return await self._reports.ask(request, size_at)
        except LinkRefused as error:
            raise error_of_step(self._job_id, str(error)) from None

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _recorded(rows: list[Row]) -> Recorded:
    return {(row.words[0], int(row.words[1])): row.payload for row in rows}
