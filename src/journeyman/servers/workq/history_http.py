"""Jobs of the store over HTTP: every job that is kept, also those that have left memory.

    GET /stored-jobs?queue=mail&status=completed&limit=50&after=CURSOR
                               {"jobs": [...], "next": CURSOR or null, "unreadable": [...]}
    GET /stored-jobs/{id}      one of them                                                    404
    GET /stored-jobs/counts    [{"queue": "mail", "status": "completed", "count": 7}, ...]

Without ``queue`` the jobs of all queues are listed. Oldest first; ``after`` is the ``next`` of the
page before, and jobs that come and go meanwhile neither repeat nor hide others. A page costs what
it holds. Payload and result are text where they are UTF-8, else ``payload_base64`` and
``result_base64`` are there instead; times are nanoseconds since 1970.

The store is read in threads of its own, a few at a time, so nobody else waits for it. For tokens of
all namespaces, like everything about the work queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar
from uuid import UUID

from aiohttp import web

from journeyman.errors import InvalidData, StorageError, UnreadableRecord, UsageError
from journeyman.folds.keyspace import Defaults, workq_of_record
from journeyman.formats.keyspace.values import JobRecord
from journeyman.servers.http.api import ApiError, read_number
from journeyman.servers.workq.http import (
    all_namespaces,
    json_answer,
    path_id,
    query_name,
    text_or_base64,
)
from journeyman.storage import Page, Storage

MAX_LISTED: Final = 1000
LISTED: Final = 50
READERS: Final = 2
STATUSES: Final = ("new", "waiting", "delayed", "active", "completed", "failed")

T = TypeVar("T")


def add_history_routes(app: web.Application, storage: Storage) -> None:
    api = _HistoryApi(storage)
    app.router.add_route("GET", "/stored-jobs", api.jobs)
    app.router.add_route("GET", "/stored-jobs/counts", api.counts)
    app.router.add_route("GET", "/stored-jobs/{id}", api.job)
    app.on_cleanup.append(api.close)


class _HistoryApi:
    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._threads = ThreadPoolExecutor(READERS, thread_name_prefix="journeyman-history")

    async def close(self, _: web.Application) -> None:
        self._threads.shutdown(wait=True)

    async def jobs(self, request: web.Request) -> web.Response:
        all_namespaces(request)
        status = request.query.get("status", "")
        if status not in STATUSES:
            raise ApiError(400, f"status must be one of {', '.join(STATUSES)}")
        size = read_number(request, "limit", LISTED, 1, MAX_LISTED)
        after = request.query.get("after")
        queue = query_name(request, "queue")

        def listed() -> Page:
            if queue is None:
                return self._storage.list_jobs_by_status(status, size=size, after=after)
            return self._storage.list_jobs(queue, status, size=size, after=after)

        page = await self._read(listed)
        unreadable = [
            {"key": each.key.decode("utf-8", "backslashreplace"), "reason": each.reason}
            for each in page.unreadable
        ]
        shown = [_job(record) for record in page.jobs]
        return json_answer({"jobs": shown, "next": page.next_cursor, "unreadable": unreadable})

    async def counts(self, request: web.Request) -> web.Response:
        all_namespaces(request)
        queue = query_name(request, "queue")
        counts = await self._read(lambda: self._storage.queue_status_counts(queue))
        return json_answer(
            [{"queue": n.queue, "status": n.status, "count": n.count} for n in counts]
        )

    async def job(self, request: web.Request) -> web.Response:
        all_namespaces(request)
        job_uuid = UUID(bytes=path_id(request))
        record = await self._read(lambda: self._storage.get_job(job_uuid))
        if record is None:
            raise ApiError(404, "not found")
        return json_answer(_job(record))

    async def _read(self, read: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, read)
        except UsageError as error:
            raise ApiError(400, str(error)) from None
        except UnreadableRecord as error:
            raise ApiError(500, f"the record cannot be read: {error.reason}") from None
        except StorageError as error:
            raise ApiError(503, f"internal: {error.reason}") from None


def _job(record: JobRecord) -> dict[str, Any]:
    """A record of another program is shown with what the work queue would make of it."""
    shown: dict[str, Any] = {
        "id": str(record.job_uuid),
        "queue": record.queue,
        "status": record.status,
        "created": record.created_at_ns,
        "execution_start": record.execution_start_ns,
        "attempts": record.attempts_so_far,
    }
    try:
        job = workq_of_record(record, Defaults())
    except InvalidData as error:
        return shown | {"unreadable": error.reason}
    added = job.added
    shown |= {
        "max_attempts": added.max_attempts,
        "fails": job.fails,
        "priority": added.priority,
        "ttr_ms": added.ttr_ms,
        "ttl_ms": added.ttl_ms,
    }
    if job.started is not None:
        shown["started"] = job.started.unix_ns
    if job.finished is not None:
        shown["finished"] = job.finished.unix_ns
    shown |= text_or_base64("payload", added.payload)
    return shown if job.result is None else shown | text_or_base64("result", job.result)
