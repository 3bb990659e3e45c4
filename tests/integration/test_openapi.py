"""``GET /openapi.json`` describes what the HTTP port really offers."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from journeyman import __version__
from journeyman.servers.http import openapi
from journeyman.servers.http.api import Api, add_routes
from journeyman.servers.http.openapi import describe, routes_of
from journeyman.servers.http.queues import add_fan_out_routes, add_work_routes
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.all_routes import describe as describe_version_1
from tests.support.servers.schedule_process import ScheduleProcess

TOKENS = '[token.admin]\nsecret = "sk_admin"\nnamespace = "*"\n'
PAGE = Path(__file__).parents[2] / "docs" / "protocols" / "http.md"


def document_of(server: ScheduleProcess) -> dict[str, Any]:
    address = f"http://127.0.0.1:{server.http_port}/openapi.json"
    with urllib.request.urlopen(address) as response:
        assert response.headers["Content-Type"].startswith("application/json")
        document: dict[str, Any] = json.load(response)
    return document


def test_document_is_served_without_a_token(tmp_path: Path):
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    settings = {"controller.auth_file": "tokens.toml", "http.listen": "127.0.0.1:0"}
    with ScheduleProcess(tmp_path, settings=settings) as server:
        document = document_of(server)
    assert document["openapi"].startswith("3.")
    assert document["info"]["version"] == __version__
    assert set(document["paths"]["/jobs/{id}"]) == {"get", "put", "delete"}
    assert "/queues" not in document["paths"]  # the work queue is off


@pytest.fixture
def every_route() -> set[tuple[str, str]]:
    nothing: Any = None
    app = web.Application()
    add_routes(app, Api(nothing, nothing))
    add_work_routes(app, nothing)
    add_fan_out_routes(app, nothing)
    return routes_of(app) | {("GET", path) for path in ("/health", "/metrics", "/openapi.json")}


def test_every_route_is_described(every_route: set[tuple[str, str]]):
    paths = describe(every_route)["paths"]
    described = {(word.upper(), path) for path, each in paths.items() for word in each}
    assert described == every_route


def test_page_and_document_name_the_same_routes(every_route: set[tuple[str, str]]):
    assert {row for row in rows_of_the_page() if not row[1].startswith("/v1/")} == every_route


def test_page_and_routes_of_version_1_are_the_same():
    nothing: Any = None
    routes = {(route.method, route.path) for route in VersionOne.of(nothing).routes()}
    assert {row for row in rows_of_the_page() if row[1].startswith("/v1/")} == routes


def test_document_of_version_1_leads_nowhere_else():
    nothing: Any = None
    document = describe_version_1(VersionOne.of(nothing).routes())
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))
    assert set(names) <= set(document["components"]["schemas"])
    assert document["openapi"].startswith("3.1")


def rows_of_the_page() -> set[tuple[str, str]]:
    pattern = r"^\| `(GET|PUT|POST|DELETE) ([^`? ]+)"
    return set(re.findall(pattern, PAGE.read_text(), re.MULTILINE))


def test_every_reference_leads_somewhere(every_route: set[tuple[str, str]]):
    text = json.dumps(describe(every_route))
    schemas = json.loads(text)["components"]["schemas"]
    names = re.findall(r'"#/components/schemas/(\w+)"', text)
    assert set(names) == set(schemas)
    assert openapi.OPENAPI_PATH in text
