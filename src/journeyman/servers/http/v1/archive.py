"""The store over HTTP, version 1: jobs by queue and status, also those whose TTL has ended.

The process that keeps the store answers (servers/index/child.py). Every answer names the position
of the work queue's log that it is true of. Only for tokens of all namespaces.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

from msgspec import Meta, Struct

from journeyman.errors import UsageError
from journeyman.servers.core.helper_process import HelperFailed
from journeyman.servers.http.fields import Cursor, word_of
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.values import JOB_ID, Limit, OfQueue
from journeyman.servers.http.v1.work import parse_id
from journeyman.servers.index.views import StatusCounts, StoredJob, StoredPage

STATUSES: Final = ("new", "waiting", "delayed", "active", "completed", "failed")
_route = partial(Route, tag="work queue", for_all=True, names={"job": JOB_ID})


class ArchiveQuery(Struct):
    status: Annotated[str, word_of(*STATUSES), Meta(description="of the store")]
    queue: OfQueue = ""
    limit: Limit = 50
    cursor: Cursor = ""
    page: Annotated[int, Meta(ge=0, description="by number from 1; needs a queue")] = 0


class CountsQuery(Struct):
    queue: OfQueue = ""


class ArchiveRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        path = "/v1/work/archive"
        return [
            _route("GET", path, self.jobs, "Stored jobs of a status, oldest first", StoredPage,
                   query=ArchiveQuery, errors=(404, 422)),
            _route("GET", f"{path}/counts", self.counts, "Stored jobs by queue and status",
                   StatusCounts, query=CountsQuery, errors=(404,)),
            _route("GET", f"{path}/{{job}}", self.job, "A stored job", StoredJob, errors=(404,)),
        ]  # fmt: skip

    async def jobs(self, call: RouteCall) -> StoredPage:
        query: ArchiveQuery = call.query
        places = query.cursor or None, query.page or None
        page: StoredPage = await self._ask(
            "list_jobs", query.queue or None, query.status, query.limit, *places
        )
        return page

    async def counts(self, call: RouteCall) -> StatusCounts:
        counts: StatusCounts = await self._ask("count_jobs", call.query.queue or None)
        return counts

    async def job(self, call: RouteCall) -> StoredJob:
        found: StoredJob | None = await self._ask("get_job", UUID(bytes=parse_id(call.path["job"])))
        if found is None:
            raise ApiError(404, "there is no such job in the store", "not_found")
        return found

    async def _ask(self, function: str, *arguments: Any) -> Any:
        index = self._backend.index
        if index is None:
            raise ApiError(404, "there is no store: set storage.engine", "service_off")
        try:
            return await index.ask(function, *arguments)
        except UsageError as error:
            raise ApiError(400, str(error), "invalid_query") from None
        except HelperFailed as error:
            raise ApiError(503, f"the store: {error}") from None
