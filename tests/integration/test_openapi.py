"""``GET /openapi.json`` describes what the HTTP port really offers."""

from __future__ import annotations

import html
import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
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
    routes = {(route.method, route.path) for route in VersionOne.of_backend(nothing).routes()}
    assert {row for row in rows_of_the_page() if row[1].startswith("/v1/")} == routes


@pytest.mark.parametrize("version", ["ztick", "1"])
def test_every_reference_of_a_document_leads_somewhere(version: str):
    nothing: Any = None
    document = (
        describe(PATHS, TEXT_ERRORS)
        if version == "ztick"
        else describe(VersionOne.of_backend(nothing).routes(), PROBLEMS)
    )
    names = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document))
    assert set(names) <= set(document["components"]["schemas"])
    assert names
    assert document["openapi"].startswith("3.1")


@pytest.mark.parametrize("version", ["ztick", "1"])
def test_every_operation_and_parameter_is_described(version: str):
    nothing: Any = None
    document = (
        describe(PATHS, TEXT_ERRORS)
        if version == "ztick"
        else describe(VersionOne.of_backend(nothing).routes(), PROBLEMS)
    )
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    assert len(operations) >= len(PATHS)
    for operation in operations:
        assert operation["summary"]
        assert operation["description"].endswith(".")
        parameters = operation.get("parameters", [])
        assert [each["name"] for each in parameters if not each.get("description")] == []


def test_every_schema_of_version_1_is_described_and_bodies_have_examples_that_fit():
    nothing: Any = None
    routes = VersionOne.of_backend(nothing).routes()
    schemas = describe(routes, PROBLEMS)["components"]["schemas"]
    assert [name for name, each in schemas.items() if not each.get("description")] == []
    for body in {route.body for route in routes if route.body is not None}:
        schema = schemas[body.__name__]
        whole = {**schema, "components": {"schemas": schemas}}
        assert schema["examples"], body
        for example in schema["examples"]:
            assert jsonschema_rs.is_valid(whole, example), body
            msgspec.convert(example, body)


def test_the_reference_for_people_has_everything_and_needs_no_token_and_no_script(tmp_path: Path):
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    settings = {"controller.auth_file": "tokens.toml", "http.listen": "127.0.0.1:0"}
    with ScheduleProcess(tmp_path, settings=settings) as server:
        address = f"http://127.0.0.1:{server.http_port}"
        with urllib.request.urlopen(f"{address}/v1/openapi.json") as response:
            document = json.load(response)
        with urllib.request.urlopen(f"{address}/console/api") as response:
            policy, page = response.headers["Content-Security-Policy"], response.read().decode()
            # It begins no session and has nothing of the state, such as the bar over time.
            assert response.headers["Set-Cookie"] is None
    assert "script-src 'self'; style-src 'self'" in policy
    assert re.findall(r"<script(?! src)|<style| style=| on[a-z]+=", page) == []
    assert re.findall(r"(?:src|href)=\"https?:", page) == []
    assert 'id="scrub"' not in page
    ids = set(re.findall(r'<article id="([^"]+)"', page))
    operations = [each for methods in document["paths"].values() for each in methods.values()]
    assert ids == {each["operationId"] for each in operations} | set(
        document["components"]["schemas"]
    )
    assert set(re.findall(r'href="#([^"]+)"', page)) <= ids | {"errors", "schemas", "main"}
    shown = html.unescape(page)
    for operation in operations:
        for each in (operation, *operation.get("parameters", [])):
            assert each["description"].replace("`", "") in shown


def rows_of_the_page() -> set[tuple[str, str]]:
    pattern = r"^\| `(GET|PUT|POST|DELETE) ([^`? ]+)"
    return set(re.findall(pattern, PAGE.read_text(), re.MULTILINE))
