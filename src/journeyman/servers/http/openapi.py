"""The OpenAPI 3.1 documents of the HTTP port, made from the declarations of its routes.

    /v1/openapi.json   the routes of version 1 (v1/all_routes.py)
    /openapi.json      the paths of ztick (ztick_paths.py)

The types that a route declares become schemas, so what is documented is what is read and sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from journeyman import __version__
from journeyman.servers.http import wire
from journeyman.servers.http.fields import whole_text
from journeyman.servers.http.routes import IDEMPOTENCY_KEY

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
    422: "it fits this document and cannot be done: see the code",
    503: "it could not be recorded, or the server is stopping",
}
_PATH_PARAMETERS = {
    "event": "the name of the event",
    "id": "the id, which may contain slashes",
    "job": "the id of the job, a UUID",
    "name": "the name of the queue or task, the id of the rule or timetable",
    "of": "what it is: queue, task, rule or timetable",
    "queue": "the name of the queue",
    "read": "the `read` of the open item",
    "reader": "the name of the reader",
    "timetable": "the id of the timetable",
}
_KEY = "a repeated request with the same key and body is done once and gets the same answer"
_VERBS = {"GET": "get", "PUT": "set", "DELETE": "delete"}
_REF = "#/components/schemas/{name}"


class DescribedRoute(Protocol):
    """The part of a route that its description needs; see journeyman.servers.http.routes.Route."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def rights(self) -> str: ...
    @property
    def answer(self) -> Any: ...
    @property
    def query(self) -> type[msgspec.Struct] | None: ...
    @property
    def body(self) -> type[msgspec.Struct] | None: ...
    @property
    def status(self) -> int: ...
    @property
    def is_public(self) -> bool: ...
    @property
    def media_type(self) -> str: ...
    @property
    def errors(self) -> tuple[int, ...]: ...
    @property
    def tag(self) -> str: ...
    @property
    def writes(self) -> bool: ...
    @property
    def has_etag(self) -> bool: ...
    @property
    def names(self) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class ErrorAnswers:
    """How the routes of one document answer errors, and which statuses all of them have."""

    body: type[msgspec.Struct]
    media_type: str
    always: tuple[int, ...]
    with_body: tuple[int, ...] = ()


def describe(routes: Sequence[DescribedRoute], errors: ErrorAnswers) -> dict[str, Any]:
    """The document of these routes."""
    types: list[Any] = [errors.body]
    for route in routes:
        types += [each for each in (route.answer, route.body) if each not in (None, str)]
    schemas, components = msgspec.json.schema_components(dict.fromkeys(types), ref_template=_REF)
    # Bodies are read as their types say; fields of answers are written in other ways.
    wire.describe_fields(
        {name: each for name, each in components.items() if "additionalProperties" not in each}
    )
    for body in (route.body for route in routes if route.body is not None):
        if rules := getattr(body, "RULES", ()):
            components[body.__name__]["allOf"] = list(rules)
        if example := getattr(body, "EXAMPLE", {}):
            components[body.__name__]["examples"] = [example]
    schema_of = dict(zip(dict.fromkeys(types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    ids = _operation_ids(routes)
    for route in routes:
        operation = _operation(route, errors, schema_of)
        operation["operationId"] = ids[route.method, route.path]
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


def _operation(
    route: DescribedRoute, errors: ErrorAnswers, schema_of: dict[Any, Any]
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": route.summary,
        "description": route.rights,
        "tags": [route.tag],
        "responses": _responses(route, errors, schema_of),
    }
    parameters = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "description": _PATH_PARAMETERS[name],
            "schema": {"type": "string"} | _pattern_of(route.names.get(name, "")),
        }
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]
    parameters += _query_parameters(route)
    if route.method == "POST":
        key = {"type": "string", "pattern": whole_text(IDEMPOTENCY_KEY.pattern)}
        named = {"name": "Idempotency-Key", "in": "header", "required": False}
        parameters.append({**named, "description": _KEY, "schema": key})
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        content = {"application/json": {"schema": schema_of[route.body]}}
        operation["requestBody"] = {"required": True, "content": content}
    if route.is_public:
        operation["security"] = []
    return operation


def _pattern_of(names: str) -> dict[str, Any]:
    return {"pattern": whole_text(names)} if names else {"minLength": 1}


def _query_parameters(route: DescribedRoute) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    (schema,), components = msgspec.json.schema_components([route.query], ref_template=_REF)
    fields = components[schema["$ref"].rpartition("/")[2]]
    required = fields.get("required", [])
    described = ((name, _without_null(each)) for name, each in fields["properties"].items())
    return [
        {
            "name": name,
            "in": "query",
            "required": name in required,
            "description": schema["description"],
            "schema": {key: value for key, value in schema.items() if key != "description"},
        }
        for name, schema in described
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query cannot say null: left out is what that means."""
    choices = [each for each in schema.get("anyOf", []) if each != {"type": "null"}]
    if len(choices) != 1:
        return schema
    kept = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return kept | dict(choices[0])


def _responses(
    route: DescribedRoute, errors: ErrorAnswers, schema_of: dict[Any, Any]
) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    if route.answer is None:
        responses["204"] = {"description": "done"}
    else:
        schema = {"type": "string"} if route.answer is str else schema_of[route.answer]
        content = {route.media_type: {"schema": schema}}
        responses[str(route.status)] = {"description": "done", "content": content}
        if route.has_etag:
            responses["304"] = {"description": "as the client has it (If-None-Match)"}
    with_body = errors.with_body if route.writes else ()
    for status in sorted({*errors.always, *route.errors, *with_body}):
        content = {errors.media_type: {"schema": schema_of[errors.body]}}
        responses[str(status)] = {"description": _ERRORS[status], "content": content}
    return responses


def _operation_ids(routes: Sequence[DescribedRoute]) -> dict[tuple[str, str], str]:
    """The name of each operation, by method and path: ``jobs.list``, ``jobs.complete``.

    The work queue's own things need no prefix: ``jobs`` are its jobs, ``schedule_jobs`` others.
    """
    lists = {route.path for route in routes if route.method == "GET"}
    return {(route.method, route.path): _operation_id(route, lists) for route in routes}


def _operation_id(route: DescribedRoute, lists: set[str]) -> str:
    parts = route.path.removeprefix("/v1").strip("/").replace("-", "_").replace(".", "_").split("/")
    first = next((at for at, part in enumerate(parts) if part.startswith("{")), len(parts))
    head, tail = parts[:first], [part for part in parts[first:] if not part.startswith("{")]
    verb = _VERBS.get(route.method, "")
    if tail:  # something of one of them
        if parts[-1].startswith("{"):
            tail[-1] = tail[-1].removesuffix("s")
        action = "_".join([verb, *tail]).strip("_")
    elif first < len(parts):
        action = verb or "add"
    elif route.method == "POST" and route.path not in lists:  # a command
        *head, action = head
    else:
        is_list = "next" in getattr(route.answer, "__struct_fields__", ())
        is_list |= any(path.startswith(f"{route.path}/{{") for path in lists)
        action = "list" if verb == "get" and is_list else verb or "add"
    if len(head) > 1 and head[0] == "work" and f"/v1/{head[1]}" not in lists:
        head = head[1:]
    return f"{'_'.join(head)}.{action}"
