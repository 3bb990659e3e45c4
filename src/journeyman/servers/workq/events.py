"""Every end of a job as an item of a fan-out queue: for webhooks, alerts, other programs.

    batch durable --watch--> events, waiting --one after another--> put on workq.events_to

    {"event":"completed","job":"<id>","queue":"mail","time_ns":...,"attempts":1}

``event`` is completed, failed (for good), deleted or expired; the last two are without ``queue``
and ``attempts``: the job is gone. An event is put after the job's record is durable, so a server
that is killed in between does not put it: the command log is the history, this is news.

What cannot be put is dropped and reported once until one is put again; so is what waits beyond
MAX_WAITING. Nothing waits for this.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeAlias

from journeyman.engines.workq.engine import WorkqEngine
from journeyman.folds.workq import JobState
from journeyman.formats.workq import Command, JobFinished, Record
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.core.server_log import ServerLog

PutItem: TypeAlias = Callable[[str, bytes], Awaitable[str]]

MAX_WAITING: Final = 10_000
_GONE: dict[object, str] = {Command.DELETE: "deleted", Command.EXPIRE: "expired"}


class JobEvents:
    """See the module. ``put`` answers why an item could not be put, or ""."""

    def __init__(
        self,
        queue: str,
        put: PutItem,
        engine: WorkqEngine,
        messages: ServerLog,
    ) -> None:
        self._queue = queue
        self._put = put
        self._engine = engine
        self._messages = messages
        self._waiting: deque[bytes] = deque()
        self._putting: asyncio.Task[None] | None = None
        self._has_trouble = False

    def watch(self, records: Iterable[Record]) -> None:
        """These records are durable."""
        for record in records:
            event = self._event(record)
            if event is None:
                continue
            if len(self._waiting) >= MAX_WAITING:
                self._trouble("too many events wait")
                continue
            self._waiting.append(json.dumps(event, separators=(",", ":")).encode())
        if self._waiting and self._putting is None:
            self._putting = asyncio.get_running_loop().create_task(self._put_all())

    async def close(self) -> None:
        """Put what waits."""
        if self._putting is not None:
            await self._putting

    async def _put_all(self) -> None:
        try:
            while self._waiting:
                reason = await self._put(self._queue, self._waiting.popleft())
                if reason:
                    self._trouble(reason)
                else:
                    self._has_trouble = False
        finally:
            self._putting = None

    def _trouble(self, reason: str) -> None:
        if not self._has_trouble:
            self._has_trouble = True
            self._messages.warn("events of jobs are dropped", queue=self._queue, reason=reason)

    def _event(self, record: Record) -> dict[str, Any] | None:
        base = {"job": id_text(record.job_id)}
        time_ns = record.logged.unix_ns
        if record.command in _GONE:
            return {"event": _GONE[record.command], **base, "time_ns": time_ns}
        if isinstance(record, JobFinished):
            if record.hidden:  # it is retried
                return None
            word = "completed" if record.command == Command.COMPLETE else "failed"
        elif record.command == Command.TIMEOUT_ATTEMPT:
            word = "failed"
        else:
            return None
        found = self._engine.job(record.job_id)
        if found is None:
            return None if word == "failed" else {"event": word, **base, "time_ns": time_ns}
        job = found[0]
        if record.command == Command.TIMEOUT_ATTEMPT and not (
            job.state == JobState.FAILED and job.exhausted
        ):
            return None
        facts = {"queue": job.added.name, "time_ns": time_ns, "attempts": job.attempts}
        return {"event": word, **base, **facts}
