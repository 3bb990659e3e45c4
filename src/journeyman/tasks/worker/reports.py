"""How jobs ended, on the way to the server: each report is sent until it is acknowledged.

    send(job, outcome)    the next job of a chain first, acknowledged; then complete or fail
    touch(job)            renew a lease; not repeated

All reports of one turn of the event loop leave in one write. After a lost connection every open
report is sent again: a job that is already finished answers ``Duplicate result``, a next job that
is already there ``Duplicate job``; both are what was asked for.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable

from journeyman.tasks.broker import Order
from journeyman.tasks.running import Again, Outcome, TaskDone
from journeyman.tasks.worker.link import LinkRefused, Row, WorkerLink

logger = logging.getLogger("journeyman.worker")

_DELAY = re.compile(rb" -delay=\d+")
AGAIN_S = 1.0  # after a refusal that may pass, like a full disk


class Reports:
    """See the module. ``connect`` gives a new link, however long that takes; None: too late."""

    def __init__(self, connect: Callable[[], Awaitable[WorkerLink | None]]) -> None:
        self._connect = connect
        self._link: WorkerLink | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._open: dict[str, list[bytes]] = {}  # what is still to be sent, by job
        self._loop = asyncio.get_running_loop()

    @property
    def is_busy(self) -> bool:
        return bool(self._open)

    def send(self, job_id: str, attempt: int, outcome: Outcome) -> None:
        self._open[job_id] = _requests(job_id, attempt, outcome)
        self._next(job_id)

    def touch(self, job_id: str, told: Callable[[str], None]) -> None:
        """``told`` gets the refusal of the server, if there is one."""
        if self._link is None:
            self._reconnect()
            return

        def answered(future: asyncio.Future[list[Row]]) -> None:
            error = None if future.cancelled() else future.exception()
            if isinstance(error, LinkRefused):
                told(str(error))

        self._link.ask(f"touch {job_id}\r\n".encode()).add_done_callback(answered)

    def check(self) -> None:
        """Raises why no connection is tried any more."""
        if self._connecting is not None and self._connecting.done():
            self._connecting.result()

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._link is not None:
            self._link.close()

    # -- details -----------------------------------------------------------------------------------

    def _next(self, job_id: str) -> None:
        """Send the next request of a job; nothing while there is no connection."""
        if self._link is None:
            self._reconnect()
            return
        future = self._link.ask(self._open[job_id][0])
        future.add_done_callback(lambda done: self._answered(job_id, done))

    def _answered(self, job_id: str, future: asyncio.Future[list[Row]]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, ConnectionError):
            self._reconnect()
            return
        if isinstance(error, LinkRefused):
            text = str(error)
            if text.startswith("SERVER-ERROR"):
                logger.warning("the server cannot take a report (%s); trying again", text)
                self._loop.call_later(AGAIN_S, self._again, job_id)
                return
            if text.endswith("without a ledger") and job_id in self._open:
                self._open[job_id][0] = _DELAY.sub(b"", self._open[job_id][0], count=1)
                self._next(job_id)  # the job is tried again at once, rather than not at all
                return
            if text.endswith("Job was leased again"):
                logger.warning("job %s: its lease ran out and another worker has it;"
                               " the outcome is dropped", job_id)  # fmt: skip
            elif not text.endswith(("Duplicate job", "Duplicate result")):
                logger.warning("job %s: the server refused its report: %s", job_id, text)
        requests = self._open.get(job_id)
        if requests is None:
            return
        requests.pop(0)
        if requests:
            self._next(job_id)
        else:
            del self._open[job_id]

    def _again(self, job_id: str) -> None:
        if job_id in self._open:
            self._next(job_id)

    def _reconnect(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        if self._connecting is None or self._connecting.done():
            self._connecting = self._loop.create_task(self._begin_again())

    async def _begin_again(self) -> None:
        self._link = await self._connect()
        for job_id in list(self._open) if self._link is not None else ():
            self._next(job_id)


def _requests(job_id: str, attempt: int, outcome: Outcome) -> list[bytes]:
    """With the number of the attempt: if the lease ran out meanwhile and another worker has the
    job, that one is right. Otherwise it could begin a job whose completion was acknowledged."""
    flags = f" -attempt={attempt}"
    if isinstance(outcome, TaskDone):
        last = _finish("complete", job_id, outcome.result, flags)
        return [last] if outcome.following is None else [_add(outcome.following), last]
    if isinstance(outcome, Again):
        flags += f" -delay={outcome.delay_ms}"
    elif outcome.is_early:
        flags += " -final=1"
    return [_finish("fail", job_id, outcome.failure.encode(), flags)]


def _finish(word: str, job_id: str, result: bytes, flags: str) -> bytes:
    return b"%b %b %d%b\r\n%b\r\n" % (
        word.encode(), job_id.encode(), len(result), flags.encode(), result,
    )  # fmt: skip


def _add(order: Order) -> bytes:
    options = order.options
    line = (
        f"add {order.job_id} {options.queue} {options.lease_ms} {options.ttl_ms}"
        f" {len(order.payload)} -priority={options.priority}"
        f" -max-attempts={options.max_attempts} -max-fails={options.max_fails}"
        f"{f' -key={order.limit_key}' if order.limit_key else ''}"
    )
    return line.encode() + b"\r\n" + order.payload + b"\r\n"
