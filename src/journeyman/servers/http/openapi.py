"""``GET /openapi.json``: what the HTTP port offers, in the words of OpenAPI 3.1.

The table below describes every route; the document holds those that this server has. A route that
is missing in the table fails the tests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from journeyman import __version__

OPENAPI_PATH = "/openapi.json"

_ERRORS = {
    400: "the body, a number, the time, the runner or the identifier is wrong",
    401: "no token, or a wrong one",
    403: "outside the namespace of the token",
    404: "there is none",
    409: "the job is not dead",
    503: "the change could not be recorded, or the server is stopping",
}

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_YES_OR_NO = {"type": "boolean"}
_OBJECT = {"type": "object"}
_EXECUTION = {
    "oneOf": [{"type": "string", "format": "date-time"}, _WHOLE],
    "description": "ISO 8601, or nanoseconds since 1970",
}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


_SCHEMAS = {
    "Error": _object(error=_TEXT),
    "Job": _object(
        id=_TEXT,
        status={"enum": ["planned", "triggered", "executed", "failed"]},
        execution=_WHOLE,
    ),
    "JobRequest": _object(execution=_EXECUTION),
    "Rule": _object(
        id=_TEXT,
        pattern=_TEXT,
        runner={
            "enum": ["shell", "direct", "http", "awf", "amqp", "redis", "queue", "journal"],
        },
        args=_array(_TEXT),
    ),
    "RuleRequest": _object(pattern=_TEXT, runner=_TEXT, args=_array(_TEXT)),
    "Run": _object(
        id=_TEXT,
        execution=_WHOLE,
        started=_WHOLE,
        duration_ns=_WHOLE,
        success=_YES_OR_NO,
        reason=_TEXT,
        output=_TEXT,
    ),
    "Queue": _object(name=_TEXT, ready=_WHOLE, scheduled=_WHOLE, paused=_YES_OR_NO),
    "Paused": _object(name=_TEXT, paused=_YES_OR_NO),
    "PausedRequest": _object(paused=_YES_OR_NO),
    "FanOutQueue": _object(
        name=_TEXT, created=_WHOLE, puts=_WHOLE, stored_bytes=_WHOLE, readers=_array(_OBJECT)
    ),
}


def _named(name: str) -> dict[str, str]:
    assert name in _SCHEMAS
    return {"$ref": f"#/components/schemas/{name}"}


@dataclass(frozen=True, slots=True)
class _Operation:
    method: str
    path: str
    summary: str
    answer: dict[str, Any] | None = None  # None: 204, without a body
    body: dict[str, Any] | None = None
    query: tuple[str, ...] = ()
    errors: tuple[int, ...] = (400, 401, 403, 503)
    is_public: bool = False
    is_text: bool = False


_PAGE = ("offset", "limit")
_NUMBERS = frozenset(_PAGE)
_OPERATIONS = (
    _Operation(
        "GET", "/health", "Whether the server is running", _object(status=_TEXT), is_public=True
    ),
    _Operation("GET", OPENAPI_PATH, "This document", _OBJECT, is_public=True),
    _Operation("GET", "/metrics", "Metrics for Prometheus", _TEXT, is_text=True),
    _Operation("GET", "/jobs", "Jobs", _array(_named("Job")), query=("prefix",)),
    _Operation("GET", "/jobs/{id}", "A job", _named("Job"), errors=(400, 401, 403, 404)),
    _Operation("PUT", "/jobs/{id}", "Plan a job", _named("Job"), _named("JobRequest")),
    _Operation("DELETE", "/jobs/{id}", "Remove a job", errors=(400, 401, 403, 404, 503)),
    _Operation("GET", "/rules", "Rules", _array(_named("Rule")), query=("prefix",)),
    _Operation("GET", "/rules/{id}", "A rule", _named("Rule"), errors=(400, 401, 403, 404)),
    _Operation("PUT", "/rules/{id}", "Set a rule", _named("Rule"), _named("RuleRequest")),
    _Operation("DELETE", "/rules/{id}", "Remove a rule", errors=(400, 401, 403, 404, 503)),
    _Operation(
        "GET", "/runs", "The last runs, newest first", _array(_named("Run")), query=("prefix",)
    ),
    _Operation("GET", "/queues", "Queues of the work queue", _array(_named("Queue")), query=_PAGE),
    _Operation("GET", "/queues/{name}", "A queue", _named("Queue"), errors=(400, 401, 403, 404)),
    _Operation(
        "GET",
        "/queues/{name}/jobs",
        "Jobs of a queue: list is ready, scheduled or dead",
        _array(_OBJECT),
        query=("list", *_PAGE),
        errors=(400, 401, 403, 404),
    ),
    _Operation(
        "PUT",
        "/queues/{name}/paused",
        "Pause or resume a queue",
        _named("Paused"),
        _named("PausedRequest"),
    ),
    _Operation(
        "GET", "/work-jobs/{id}", "A job of the work queue", _OBJECT, errors=(401, 403, 404)
    ),
    _Operation(
        "POST",
        "/work-jobs/{id}/requeue",
        "Queue a dead job again",
        errors=(401, 403, 404, 409, 503),
    ),
    _Operation("GET", "/fan-out", "Fan-out queues", _array(_named("FanOutQueue")), query=_PAGE),
    _Operation(
        "GET", "/fan-out/{name}", "A fan-out queue", _named("FanOutQueue"), errors=(401, 403, 404)
    ),
)


def add_openapi_route(app: web.Application) -> None:
    """Describe the routes that the application has now, and serve that."""
    document: dict[str, Any] = {}

    async def openapi(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp asks so
        return web.json_response(document)

    app.router.add_get(OPENAPI_PATH, openapi, allow_head=False)
    document.update(describe(routes_of(app)))


def routes_of(app: web.Application) -> set[tuple[str, str]]:
    """Method and path of every route; what a path calls an identifier is an id outside."""
    return {
        (route.method, route.resource.canonical.replace("{identifier}", "{id}"))
        for route in app.router.routes()
        if route.resource is not None
    }


def describe(routes: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """The document of these routes."""
    present = set(routes)
    paths: dict[str, dict[str, Any]] = {}
    for each in _OPERATIONS:
        if (each.method, each.path) in present:
            paths.setdefault(each.path, {})[each.method.lower()] = _written(each)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Journeyman", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _written(operation: _Operation) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    parameters += [
        {"name": name, "in": "query", "schema": _WHOLE if name in _NUMBERS else _TEXT}
        for name in operation.query
    ]
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": _responses(operation),
    }
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        content = {"application/json": {"schema": operation.body}}
        described["requestBody"] = {"required": True, "content": content}
    if operation.is_public:
        described["security"] = []
    return described


def _responses(operation: _Operation) -> dict[str, Any]:
    if operation.answer is None:
        responses: dict[str, Any] = {"204": {"description": "done"}}
    else:
        kind = "text/plain" if operation.is_text else "application/json"
        content = {kind: {"schema": operation.answer}}
        responses = {"200": {"description": "done", "content": content}}
    for status in () if operation.is_public else operation.errors:
        content = {"application/json": {"schema": _named("Error")}}
        responses[str(status)] = {"description": _ERRORS[status], "content": content}
    return responses
