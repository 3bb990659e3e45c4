"""The fan-out queues over HTTP: what is in them.

    GET /fan-out?offset=0&limit=100    [{"name", "created", "puts", "stored_bytes", "readers"}, ...]
    GET /fan-out/{name}                the same shape                                         404

Each of ``readers`` is {"name", "items", "bytes", "open", "waiting", "expired", "discarded",
"given_back", "age_ms"}; the default reader has an empty name.

Queues know no namespaces, so this is for tokens of all namespaces: others hear 403.
"""

from __future__ import annotations

from aiohttp import web

from journeyman.config import ALL_NAMESPACES
from journeyman.protocols.kestrel.replies import ServerLines
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.http.api import read_number
from journeyman.servers.http.errors import ApiError
from journeyman.servers.kestrel.stats import Described
from journeyman.servers.kestrel.writer import KestrelWriter

MAX_LISTED = 100
MAX_OFFSET = 2**31 - 1


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
    if request["namespace"] != ALL_NAMESPACES:
        raise ApiError(403, "insufficient namespace scope")
    reply = await writer.ask(asked)
    if isinstance(reply, NotDone):
        raise ApiError(503, f"internal: {reply.reason}")
    if not isinstance(reply, ServerLines) or not reply.data:
        raise ApiError(404, "not found")
    return web.Response(body=reply.data, content_type="application/json")
