"""A server on files and one on PostgreSQL, given the same commands, give the same answers to every
GET of the API, as they are and for a past moment."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.servers.database_process import DatabaseProcess
from tests.support.servers.http_client import ask

FAR_AWAY_NS = 4_000_000_000_000_000_000
JOBS = [f"{number:08x}-0000-4000-8000-000000000000" for number in range(1, 9)]
# Values of the parameters in paths and of those that must be given.
GIVEN = {
    "/v1/schedule/jobs/{id}": {"id": "job.1"},
    "/v1/schedule/rules/{id}": {"id": "rule"},
    "/v1/timetables/{timetable}": {"timetable": "nightly"},
    "/v1/timetables/{timetable}/next": {"timetable": "nightly"},
    "/v1/work/jobs/{job}": {"job": JOBS[0]},
    "/v1/work/jobs/{job}/result": {"job": JOBS[0]},
    "/v1/work/jobs/{job}/records": {"job": JOBS[0]},
    "/v1/work/jobs/{job}/steps": {"job": JOBS[0]},
    "/v1/work/events/{event}": {"event": "paid"},
    "/v1/work/queues/{queue}": {"queue": "mail"},
    "/v1/fan-out/queues/{queue}": {"queue": "items"},
    "/v1/schedule/records": {"id": "job.1"},
    "/v1/work/archive": {"status": "completed"},
    "/v1/work/archive/{job}": {"job": JOBS[0]},
}
MARKED_BY_THEN_S = 30.0
STREAMS = {"/v1/events", "/v1/log/tail"}
# They depend on the minute in which a server was filled, and on when its helper process counted.
FIGURES_OVER_TIME = {
    *("/v1/series", "/v1/summaries", "/v1/summaries/{of}/{name}", "/v1/tasks", "/v1/tasks/{name}"),
    "/v1/work/facets",
}
# What cannot be the same: processes, ports, paths, times, and what depends on them.
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?|\b1\d{12,18}\b")
_OTHER = {
    *("uptime_s", "rates", "syncs", "free_bytes", "connections", "batches", "settings", "origin"),
    *("age_ms", "oldest_ms", "took_ms", "duration_ms", "oldest_ready_ms"),
    *("added_per_s", "started_per_s"),
    *("log_bytes", "bytes", "bytes_hex", "size", "offset", "length"),
}


@pytest.fixture(scope="module")
def servers(postgres_port: int, tmp_path_factory) -> Iterator[list[DatabaseProcess]]:
    from tests.support.databases import new_database

    place = tmp_path_factory.mktemp("servers")
    with new_database(postgres_port) as name:
        address = f"postgresql://journeyman@127.0.0.1:{postgres_port}/{name}"
        found = [
            DatabaseProcess(place / kind, where)
            for kind, where in (("files", str(place / "data")), ("database", address))
        ]
        for server in found:
            server.start(wait=False)
            server.wait_for_answer()
            _fill(server)
        yield found
        for server in found:
            server.kill()


def _fill(server: DatabaseProcess) -> None:
    with server.schedule() as schedule, server.work() as work, server.fan_out() as fan_out:
        assert schedule.ask("r RULE SET rule run. shell true") == "r OK"
        for number in range(5):
            assert schedule.ask(f"r SET job.{number} {FAR_AWAY_NS}") == "r OK"
        assert schedule.ask("r SET run.now 1") == "r OK"
        assert schedule.ask('r TIMETABLE SET nightly cron "0 2 * * *" run shell "true"') == "r OK"
        assert work.ask("limit mail -concurrency=5") == "+OK"
        for job in JOBS:
            assert work.ask(f"add {job} mail 60000 600000 2", b"ok") == "+OK"
        leased = work.lease("mail")
        assert leased is not None
        assert work.finish(leased.job_id, b"done") == "+OK"
        for number in range(4):
            assert fan_out.put("items", f"{number}") == "STORED"
        assert fan_out.get("items") == b"0"
    assert ask(server, "PUT", "/v1/work/events/paid", {"value": "42"})[0] == 200
    server.wait_for_status("run.now", "executed")


def _routes(server: DatabaseProcess) -> list[tuple[str, dict[str, Any]]]:
    status, document = ask(server, "GET", "/v1/openapi.json")
    assert status == 200
    return [
        (path, methods["get"]) for path, methods in document["paths"].items() if "get" in methods
    ]


def _plain(value: Any, place: str) -> Any:
    """Without what cannot be the same."""
    if isinstance(value, dict):
        return {name: _plain(each, place) for name, each in value.items() if name not in _OTHER}
    if isinstance(value, list):
        return [_plain(each, place) for each in value]
    if isinstance(value, str):
        return _TIME.sub("TIME", value.replace(place, "PLACE"))
    if isinstance(value, int) and value > 10**12:
        return "TIME"
    return value


def _answer(server: DatabaseProcess, path: str, values: dict[str, Any]) -> Any:
    inner = {name: value for name, value in values.items() if f"{{{name}}}" in path}
    query = {name: value for name, value in values.items() if name not in inner}
    for name, value in inner.items():
        path = path.replace(f"{{{name}}}", value)
    status, found = ask(server, "GET", f"{path}?{urlencode(query)}" if query else path)
    if isinstance(found, str) and found.startswith("{"):
        found = json.loads(found)
    return status, _plain(found, str(server._settings["data.directory"]))


def _answers(servers: list[DatabaseProcess], path: str, values: dict[str, Any]) -> list[Any]:
    """When records of the schedule were written is in the ledger a second later."""
    deadline = time.monotonic() + MARKED_BY_THEN_S
    while True:
        found = [_answer(server, path, values) for server in servers]
        if found[0] == found[1] or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def test_every_answer_is_the_same(servers: list[DatabaseProcess]):
    files, database = servers
    routes = _routes(files)
    assert [path for path, _ in routes] == [path for path, _ in _routes(database)]
    compared = 0
    for path, route in routes:
        if path in STREAMS | FIGURES_OVER_TIME:
            continue
        at = {"at": "2100-01-01T00:00:00Z"}
        span = {"from": "2020-01-01T00:00:00Z", "until": "2100-01-01T00:00:00Z"}
        needed = {each["name"] for each in route.get("parameters", ()) if each.get("required")}
        known = {each["name"] for each in route.get("parameters", ())}
        values = GIVEN.get(path, {}) | {
            name: value for name, value in (at | span).items() if name in needed
        }
        assert needed <= values.keys(), path
        asked = [values]
        if "at" in known - needed:
            asked.append(values | at)
        if "service" in known:
            asked = [each | {"service": name} for each in asked for name in
                     ("schedule", "work", "fan-out")]  # fmt: skip
        for each in asked:
            first, second = _answers(servers, path, each)
            assert first == second, (path, each)
            is_off = path.startswith("/v1/work/archive")  # without a store
            assert first[0] == 200 or "at" in each or is_off, (path, each, first)
            compared += 1
    assert compared > 35


def test_verifying_over_http_reads_the_database(servers: list[DatabaseProcess]):
    answers = []
    for server in servers:
        status, found = ask(server, "POST", "/v1/log/verify", {})
        assert status == 200
        assert found["clean"]
        answers.append([(len(line["logs"]), line["clean"]) for line in found["reports"]])
        _, listed = ask(server, "GET", "/v1/log/files")
        assert sum(file["live_bytes"] or 0 for file in listed["files"]) > 0
    assert answers[0] == answers[1]
