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
from journeyman.servers.http.openapi import describe
from journeyman.servers.http.v1.all_routes import PROBLEMS, VersionOne
from journeyman.servers.http.ztick_paths import PATHS, TEXT_ERRORS, ZtickPaths, add_paths
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
    assert set(document["paths"]["/jobs"]) == {"get"}


@pytest.fixture
def every_path() -> set[tuple[str, str]]:
    """What the application answers; what its paths call an identifier is an id outside."""
    nothing: Any = None
    app = web.Application()
    add_paths(app, ZtickPaths(nothing))
    return {("GET", "/metrics")} | {
        (route.method, route.resource.canonical.replace("{identifier}", "{id}"))
        for route in app.router.routes()
        if route.resource is not None
    }


def test_every_path_of_ztick_is_described(every_path: set[tuple[str, str]]):
    assert {(path.method, path.path) for path in PATHS} == every_path


def test_page_and_document_name_the_same_paths(every_path: set[tuple[str, str]]):
    assert {row for row in rows_of_the_page() if not row[1].startswith("/v1/")} == every_path


def test_page_and_routes_of_version_1_are_the_same():
    nothing: Any = None
    routes = {(route.method, route.path) for route in VersionOne.of(nothing).routes()}
    assert {row for row in rows_of_the_page() if row[1].startswith("/v1/")} == routes


@pytest.mark.parametrize("version", ["ztick", "1"])
def test_every_reference_of_a_document_leads_somewhere(version: str):
    nothing: Any = None
    document = (
        describe(PATHS, TEXT_ERRORS)
        if version == "ztick"
        else describe(VersionOne.of(nothing).routes(), PROBLEMS)
    )
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))
    assert set(names) <= set(document["components"]["schemas"])
    assert names
    assert document["openapi"].startswith("3.1")


def rows_of_the_page() -> set[tuple[str, str]]:
    pattern = r"^\| `(GET|PUT|POST|DELETE) ([^`? ]+)"
    return set(re.findall(pattern, PAGE.read_text(), re.MULTILINE))
