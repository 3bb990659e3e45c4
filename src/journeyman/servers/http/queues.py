"""The work queue and the fan-out queues over HTTP, on paths without a version.

    GET  /queues?offset=0&limit=100           [{"name", "ready", "scheduled", "paused"}, ...]
    GET  /queues/{name}                       {"name", "ready", "scheduled", "paused"}        404
    GET  /queues/{name}/jobs?list=ready&...   [{"id", "name", "state", ...}, ...]             404
    PUT  /queues/{name}/paused                {"paused": true}: pause, or resume
    GET  /work-jobs/{id}                      {"id", "name", "state", ...}                    404
    POST /work-jobs/{id}/requeue              204: a dead job is queued again            404, 409

``list`` is ready, scheduled or dead. ``payload`` is text where it is UTF-8, else ``payload_base64``
is there instead. Times are nanoseconds since 1970.

    GET /fan-out?offset=0&limit=100    [{"name", "created", "puts", "stored_bytes", "readers"}, ...]
    GET /fan-out/{name}                the same shape                                         404

Each of ``readers`` is {"name", "items", "bytes", "open", "waiting", "expired", "discarded",
"given_back", "age_ms"}; the default reader has an empty name.

Queues know no namespaces, so all of this is for tokens of all namespaces: others get 403.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from aiohttp import web

from journeyman.config import ALL_NAMESPACES
from journeyman.protocols.kestrel.replies import ServerLines
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.readers import read_id, read_name
from journeyman.protocols.workq.replies import (
    JobList,
    JobMissing,
    JobView,
    QueueList,
    QueueView,
    Reply,
    id_text,
)
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.http.api import read_body, read_number, send_list
from journeyman.servers.http.routes import ApiError, text_or_base64
from journeyman.servers.kestrel.metrics import Described
from journeyman.servers.kestrel.writer import KestrelWriter
from journeyman.servers.workq.writer import WorkqWriter

_LISTS: dict[str, Callable[[str, int, int], ask.Command]] = {
    "ready": ask.InspectJobs,
    "scheduled": ask.InspectScheduledJobs,
    "dead": ask.InspectDeadJobs,
}
_STATES = ("new", "completed", "failed", "pending", "leased")
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")

MAX_STORED_LISTED: Final = 1000
STORED_LISTED: Final = 50
READERS: Final = 2  # threads that read the store
STATUSES: Final = ("new", "waiting", "delayed", "active", "completed", "failed")
MAX_LISTED = 100  # fan-out queues
MAX_OFFSET = 2**31 - 1


def add_work_routes(app: web.Application, writer: WorkqWriter) -> None:
    api = _WorkApi(writer)
    routes: tuple[tuple[str, str, _Handler], ...] = (
        ("GET", "/queues", api.queues),
        ("GET", "/queues/{name}", api.queue),
        ("GET", "/queues/{name}/jobs", api.jobs),
        ("PUT", "/queues/{name}/paused", api.pause),
        ("GET", "/work-jobs/{id}", api.job),
        ("POST", "/work-jobs/{id}/requeue", api.requeue),
    )
    for method, path, handler in routes:
        app.router.add_route(method, path, handler)


class _WorkApi:
    def __init__(self, writer: WorkqWriter) -> None:
        self._writer = writer

    async def queues(self, request: web.Request) -> web.Response:
        listing = await self._ask(request, ask.InspectQueues(*_page(request)))
        assert isinstance(listing, QueueList)
        return json_answer([_queue(queue) for queue in listing.queues])

    async def queue(self, request: web.Request) -> web.Response:
        listing = await self._ask(request, ask.InspectQueue(_name(request)))
        assert isinstance(listing, QueueList)
        return json_answer(_queue(listing.queues[0]))

    async def jobs(self, request: web.Request) -> web.StreamResponse:
        which = request.query.get("list", "ready")
        if which not in _LISTS:
            raise ApiError(400, f"list must be one of {', '.join(_LISTS)}")
        listing = await self._ask(request, _LISTS[which](_name(request), *_page(request)))
        assert isinstance(listing, JobList)
        return await send_list(request, map(_one_text, listing.jobs))

    async def pause(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        paused = body.get("paused")
        if not isinstance(paused, bool):
            raise ApiError(400, "paused must be true or false")
        name = _name(request)
        await self._ask(request, ask.PauseQueue(name) if paused else ask.ResumeQueue(name))
        return json_answer({"name": name, "paused": paused})

    async def job(self, request: web.Request) -> web.Response:
        listing = await self._ask(request, ask.InspectJob(path_id(request)))
        assert isinstance(listing, JobList)
        await request["sender"].turn()  # it may be large: it is made when it can be sent
        return json_answer(_job(listing.jobs[0]))

    async def requeue(self, request: web.Request) -> web.Response:
        await self._ask(request, ask.Requeue(path_id(request)))
        return web.Response(status=204)

    async def _ask(self, request: web.Request, command: ask.Command) -> Reply:
        check_all_namespaces(request)
        reply: Reply | NotDone = await self._writer.ask(command)
        if isinstance(reply, NotDone):
            raise ApiError(503, f"internal: {reply.reason}")
        if isinstance(reply, JobMissing):
            raise ApiError(404, "not found")
        if isinstance(reply, ask.RefusedLine):
            raise ApiError(409, reply.complaint)
        return reply


def check_all_namespaces(request: web.Request) -> None:
    """Refuse tokens of one: queues know no namespaces."""
    if request["namespace"] != ALL_NAMESPACES:
        raise ApiError(403, "insufficient namespace scope")


def _name(request: web.Request) -> str:
    return _checked_name(request.match_info["name"])


def query_name(request: web.Request, key: str) -> str | None:
    """The name of a queue in the query, None if it is not given."""
    text = request.query.get(key)
    return None if text is None else _checked_name(text)


def _checked_name(text: str) -> str:
    name = read_name(text.encode(errors="surrogateescape"))
    if name is None:
        raise ApiError(400, "a name is 1 to 255 of A-Z a-z 0-9 _ . -")
    return name


def path_id(request: web.Request) -> bytes:
    job_id = read_id(request.match_info["id"].encode(errors="surrogateescape"))
    if job_id is None:
        raise ApiError(400, "an id is a UUID")
    return job_id


def _page(request: web.Request) -> tuple[int, int]:
    offset = read_number(request, "offset", 0, 0, ask.MAX_CURSOR_OFFSET)
    return offset, read_number(request, "limit", ask.MAX_LISTED, 1, ask.MAX_LISTED)


def _queue(queue: QueueView) -> dict[str, Any]:
    return {
        "name": queue.name,
        "ready": queue.ready,
        "scheduled": queue.scheduled,
        "paused": queue.paused,
    }


def _job(job: JobView) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": id_text(job.job_id),
        "name": job.name,
        "state": _STATES[job.state],
        "attempts": job.attempts,
        "max_attempts": job.max_attempts,
        "fails": job.fails,
        "max_fails": job.max_fails,
        "priority": job.priority,
        "ttr_ms": job.ttr_ms,
        "ttl_ms": job.ttl_ms,
        "created": job.created_ns,
    }
    if job.time_ns is not None:
        shown["time"] = job.time_ns
    return shown | text_or_base64("payload", job.payload)


def json_answer(value: Any) -> web.Response:
    return web.Response(text=_dumps(value), content_type="application/json")


def _one_text(job: JobView) -> tuple[str]:
    return (_dumps(_job(job)),)


def _dumps(value: Any) -> str:
    # A log of the original may hold names that are not text; JSON can hold those only escaped.
    return json.dumps(value, separators=(",", ":"))


def add_fan_out_routes(app: web.Application, writer: KestrelWriter) -> None:
    async def queues(request: web.Request) -> web.Response:
        offset = read_number(request, "offset", 0, 0, MAX_OFFSET)
        limit = read_number(request, "limit", MAX_LISTED, 1, MAX_LISTED)
        return await _reply(request, writer, Described(None, offset, limit))

    async def queue(request: web.Request) -> web.Response:
        return await _reply(request, writer, Described(request.match_info["name"]))

    app.router.add_route("GET", "/fan-out", queues)
    app.router.add_route("GET", "/fan-out/{name}", queue)


async def _reply(request: web.Request, writer: KestrelWriter, asked: Described) -> web.Response:
    check_all_namespaces(request)
    reply = await writer.ask(asked)
    if isinstance(reply, NotDone):
        raise ApiError(503, f"internal: {reply.reason}")
    if not isinstance(reply, ServerLines) or not reply.data:
        raise ApiError(404, "not found")
    return web.Response(body=reply.data, content_type="application/json")
