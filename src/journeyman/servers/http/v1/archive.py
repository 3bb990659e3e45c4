"""The store over HTTP, version 1: jobs by queue and status, also those whose TTL has ended.

The process that keeps the store answers (servers/index/process.py). Every answer names the position
of the work queue's log that it is true of. Only for tokens of all namespaces.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from journeyman.errors import StorageError, UsageError
from journeyman.protocols.workq.replies import id_text
from journeyman.servers.http.routes import ApiError, Cursor, Route, RouteCall, Text
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.values import Limit
from journeyman.servers.http.v1.work import parse_id

_route = partial(Route, tag="work queue", for_all=True)


class StoredRow(Struct, omit_defaults=True):
    """A job of the store. Times are nanoseconds since 1970."""

    id: str
    queue: str
    status: str
    is_archived: bool
    created_ns: int
    execution_start_ns: int
    attempts: int
    max_attempts: int | None = None
    fails: int | None = None
    priority: int | None = None
    ttr_ms: int | None = None
    ttl_ms: int | None = None
    started_ns: int | None = None
    finished_ns: int | None = None
    payload: str | None = None
    payload_base64: str | None = None
    result: str | None = None
    result_base64: str | None = None
    unreadable: str | None = None


class UnreadableRow(Struct):
    key: str
    reason: str


class ArchivePage(Struct):
    jobs: list[StoredRow]
    next: str | None
    unreadable: list[UnreadableRow]
    position: str | None


class StatusCount(Struct):
    queue: str
    status: str
    count: int


class StatusCounts(Struct):
    counts: list[StatusCount]
    position: str | None


class ArchiveQuery(Struct):
    status: Annotated[Text, Meta(description="new, waiting, delayed, active, completed, failed")]
    queue: Text = ""
    limit: Limit = 50
    cursor: Cursor = ""
    page: Annotated[int, Meta(ge=0, description="by number from 1; needs a queue")] = 0


class CountsQuery(Struct):
    queue: Text = ""


class ArchiveRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        path = "/v1/work/archive"
        return [
            _route("GET", path, self.jobs, "Stored jobs of a status, oldest first", ArchivePage,
                   query=ArchiveQuery, errors=(404, 422)),
            _route("GET", f"{path}/counts", self.counts, "Stored jobs by queue and status",
                   StatusCounts, query=CountsQuery, errors=(404,)),
            _route("GET", f"{path}/{{job}}", self.job, "A stored job", StoredRow, errors=(404,)),
        ]  # fmt: skip

    async def jobs(self, call: RouteCall) -> ArchivePage:
        query: ArchiveQuery = call.query
        asked = {"queue": query.queue or None, "status": query.status, "limit": query.limit}
        more = {"cursor": query.cursor or None, "page": query.page or None}
        return msgspec.convert(await self._ask("list", **asked, **more), ArchivePage)

    async def counts(self, call: RouteCall) -> StatusCounts:
        found = await self._ask("counts", queue=call.query.queue or None)
        return msgspec.convert(found, StatusCounts)

    async def job(self, call: RouteCall) -> StoredRow:
        found = await self._ask("job", job=id_text(parse_id(call.path["job"])))
        if found is None:
            raise ApiError(404, "there is no such job in the store", "not_found")
        return msgspec.convert(found, StoredRow)

    async def _ask(self, what: str, **arguments: Any) -> Any:
        index = self._backend.index
        if index is None:
            raise ApiError(404, "there is no store: set storage.engine", "service_off")
        try:
            return await index.ask(what, **arguments)
        except UsageError as error:
            raise ApiError(400, str(error), "invalid_query") from None
        except StorageError as error:
            raise ApiError(503, f"the store: {error.reason}") from None
