"""All routes of version 1, and the document that describes them, which is made from them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import msgspec
from aiohttp import web

from journeyman import __version__
from journeyman.servers.http.routes import PROBLEM, Problem, Route, Routes
from journeyman.servers.http.v1.backend import Audits, HttpBackend
from journeyman.servers.http.v1.fan_out import FanOutRoutes
from journeyman.servers.http.v1.log import LogRoutes
from journeyman.servers.http.v1.past import PastRoutes
from journeyman.servers.http.v1.schedule import ScheduleRoutes, TimetableRoutes
from journeyman.servers.http.v1.server import ServerRoutes
from journeyman.servers.http.v1.work import WorkRoutes

V1_DOCUMENT_PATH = "/v1/openapi.json"

_ERRORS = {
    400: "a parameter, the path or the body is wrong",
    401: "no token, or a wrong one",
    403: "outside the scope of the token, or sent by a page of another site",
    404: "there is none",
    405: "wrong method",
    408: "it took too long",
    409: "not in the state that this needs",
    413: "the body is too large",
    415: "the body is not application/json",
    421: "Host does not name this server",
    422: "an Idempotency-Key with another body, or a moment that cannot be read",
    503: "it could not be recorded, or the server is stopping",
}
_ALWAYS = (400, 401, 403, 405, 408, 421, 503)
_WITH_BODY = (413, 415)
_REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True)
class VersionOne:
    """The handlers, for the console as well."""

    schedule: ScheduleRoutes
    work: WorkRoutes
    fan_out: FanOutRoutes
    timetables: TimetableRoutes
    past: PastRoutes
    log: LogRoutes
    server: ServerRoutes

    @classmethod
    def of(cls, backend: HttpBackend) -> VersionOne:
        past = PastRoutes(backend)
        return cls(
            ScheduleRoutes(backend, past),
            WorkRoutes(backend, past),
            FanOutRoutes(backend),
            TimetableRoutes(backend, past),
            past,
            LogRoutes(backend, past),
            ServerRoutes(backend),
        )

    def routes(self) -> list[Route]:
        parts = (
            *(
                self.server,
                self.schedule,
                self.timetables,
                self.work,
                self.fan_out,
                self.log,
                self.past,
            ),
        )
        return [route for part in parts for route in part.routes()]


def add_version_1(app: web.Application, version: VersionOne, audits: Audits) -> None:
    routes = version.routes()

    @cache
    def document() -> bytes:
        """Made when it is asked for: few ask, and it takes a megabyte."""
        return msgspec.json.encode(describe(routes))

    async def openapi(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp asks so
        return web.Response(body=document(), content_type="application/json")

    app.router.add_get(V1_DOCUMENT_PATH, openapi, allow_head=False)
    Routes(routes, audits.note).add_to(app)

    async def close(_: web.Application) -> None:
        version.past.close()
        version.log.tail.close()
        version.server.figures_live.close()

    app.on_shutdown.append(close)


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The document of these routes."""
    types: list[Any] = [Problem]
    for route in routes:
        types += [each for each in (route.answer, route.body) if each not in (None, str)]
    schemas, components = msgspec.json.schema_components(dict.fromkeys(types), ref_template=_REF)
    schema_of = dict(zip(dict.fromkeys(types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operation = _operation(route, schema_of)
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Journeyman",
            "version": __version__,
            "description": "A durable job scheduler, work queue and fan-out queues.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _operation(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": _name_of(route),
        "tags": [route.tag],
        "responses": _responses(route, schema_of),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    parameters += _query_parameters(route)
    if route.method == "POST":
        key = {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"}
        parameters.append({"name": "Idempotency-Key", "in": "header", "schema": key})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schema_of[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.is_public:
        operation["security"] = []
    return operation


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    (schema,), components = msgspec.json.schema_components([route.query], ref_template=_REF)
    fields = components[schema["$ref"].rpartition("/")[2]]
    required = fields.get("required", [])
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "schema": _without_null(each),
        }
        for name, each in fields["properties"].items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null: left out is what that means."""
    choices = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(choices) != 1:
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return kept | dict(choices[0])


def _responses(route: Route, schema_of: dict[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if route.answer is None:
        responses["204"] = {"description": "done"}
    else:
        schema = {"type": "string"} if route.answer is str else schema_of[route.answer]
        content = {route.media_type: {"schema": schema}}
        responses[str(route.status)] = {"description": "done", "content": content}
        if route.method == "GET":
            responses["304"] = {"description": "as the client has it (If-None-Match)"}
    statuses = {*_ALWAYS, *route.errors, *(_WITH_BODY if route.writes else ())}
    for status in sorted(statuses):
        content = {PROBLEM: {"schema": schema_of[Problem]}}
        responses[str(status)] = {"description": _ERRORS[status], "content": content}
    return responses


def _name_of(route: Route) -> str:
    words = re.findall(r"\w+", route.path.removeprefix("/v1/"))
    return "_".join((route.method.lower(), *words))
