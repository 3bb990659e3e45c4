"""The reference of version 1 for people: its OpenAPI document as a page.

It is as public as the document and shows nothing of the server's state. It is made once, in a
thread, when it is first asked for.
"""

from __future__ import annotations

import asyncio
import json
import re
from functools import cached_property
from typing import Any, Final, NamedTuple

from aiohttp import web

from journeyman.servers.http.console.drawing import Drawing
from journeyman.servers.http.openapi import describe
from journeyman.servers.http.problems import Problem
from journeyman.servers.http.v1.all_routes import PROBLEMS, VersionOne

PATH: Final = "/console/api"


class Field(NamedTuple):
    """A parameter, or a member of a body or an answer."""

    name: str
    kind: str
    about: str
    is_required: bool
    schema: str  # the name of the one that its kind refers to, or empty


class Operation(NamedTuple):
    id: str
    method: str
    path: str
    summary: str
    rights: str
    parameters: list[Field]
    body: Field | None
    answers: list[Field]  # by status


class Schema(NamedTuple):
    name: str
    about: str
    fields: list[Field]


class Reference:
    def __init__(self, version: VersionOne, drawing: Drawing) -> None:
        self._version = version
        self._drawing = drawing

    @cached_property
    def _described(self) -> tuple[dict[str, list[Operation]], list[Schema]]:
        document = describe(self._version.routes(), PROBLEMS)
        groups: dict[str, list[Operation]] = {}
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                group = groups.setdefault(operation["tags"][0], [])
                group.append(_operation(method.upper(), path, operation))
        schemas = document["components"]["schemas"].items()
        return groups, [_schema(name, schema) for name, schema in sorted(schemas)]

    async def page(self, request: web.Request) -> web.StreamResponse:
        groups, schemas = await asyncio.to_thread(lambda: self._described)
        answers = [each for group in groups.values() for made in group for each in made.answers]
        errors = sorted({each for each in answers if each.schema == Problem.__name__})
        return await self._drawing.page(
            request, "api.html", "", groups=groups, errors=errors, schemas=schemas
        )


def _operation(method: str, path: str, operation: dict[str, Any]) -> Operation:
    parameters = [
        _field(each["name"], each["schema"], each["description"], is_required=each["required"])
        for each in operation.get("parameters", [])
    ]
    sent = operation.get("requestBody")
    return Operation(
        operation["operationId"],
        method,
        path,
        operation["summary"],
        operation["description"],
        parameters,
        None if sent is None else _field("body", _content(sent), "", is_required=True),
        [
            _field(status, _content(answer), answer["description"])
            for status, answer in operation["responses"].items()
        ],
    )


def _schema(name: str, schema: dict[str, Any]) -> Schema:
    required = schema.get("required", ())
    fields = [
        _field(each, kind, kind.get("description", ""), is_required=each in required)
        for each, kind in schema.get("properties", {}).items()
    ]
    return Schema(name, _plain(schema.get("description", "")), fields)


def _content(described: dict[str, Any]) -> dict[str, Any]:
    """The schema of a body; {} if there is none."""
    for content in described.get("content", {}).values():
        return dict(content["schema"])
    return {}


def _field(name: str, schema: dict[str, Any], about: str, *, is_required: bool = False) -> Field:
    kind = _kind(schema)
    if schema.get("default") not in (None, "", [], {}):
        kind += f", default {json.dumps(schema['default'])}"
    referred = re.search(r"#/components/schemas/(\w+)", json.dumps(schema))
    return Field(name, kind, _plain(about), is_required, referred[1] if referred else "")


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(map(_kind, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "items" in schema:
        return f"array of {_kind(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_kind(schema['additionalProperties'])}"
    kind = schema.get("type", "")
    if "minimum" in schema and "maximum" in schema:
        kind += f", {schema['minimum']} to {schema['maximum']}"
    return str(kind)


def _plain(text: str) -> str:
    return re.sub(r"`+", "", text)
