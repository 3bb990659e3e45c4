"""A client that is made from the document of the API alone takes a job through its life."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from journeyman.servers.http.openapi import describe
from journeyman.servers.http.v1.all_routes import PROBLEMS, VersionOne
from journeyman.servers.http.ztick_paths import PATHS, TEXT_ERRORS
from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

SETTINGS = ALL_SERVICES | {"series.enabled": "true"}


class GeneratedClient:
    """``client("jobs.complete", job=..., result=...)``: path, query and body by the document."""

    def __init__(self, server: ScheduleProcess) -> None:
        self._server = server
        status, self.document = ask(server, "GET", "/v1/openapi.json")
        assert status == 200
        self.operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def __call__(self, name: str, **given: Any) -> Any:
        method, path, operation = self.operations[name]
        places = {each["name"]: each["in"] for each in operation.get("parameters", [])}
        for each, place in places.items():
            if place == "path":
                path = path.replace(f"{{{each}}}", quote(str(given.pop(each)), safe=""))
        query = {each: given.pop(each) for each in [*given] if places.get(each) == "query"}
        body = None
        if "requestBody" in operation:
            body, known = given, self._members(operation["requestBody"])
            assert given.keys() <= known, f"{name} takes {sorted(known)}"
        else:
            assert not given, f"{name} does not take {sorted(given)}"
        status, answer = ask(
            self._server, method, f"{path}?{urlencode(query)}" if query else path, body
        )
        assert str(status) in operation["responses"], (status, answer)
        assert status < 300, answer
        return answer

    def _members(self, body: dict[str, Any]) -> set[str]:
        schema = body["content"]["application/json"]["schema"]
        name = schema["$ref"].rpartition("/")[2]
        return set(self.document["components"]["schemas"][name]["properties"])


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GeneratedClient]:
    with ScheduleProcess(tmp_path_factory.mktemp("client"), settings=SETTINGS) as server:
        yield GeneratedClient(server)


def test_a_job_is_taken_through_its_life(client: GeneratedClient):
    payload = json.dumps({"v": 1, "task": "shop.send", "args": ["a@b.c"], "kwargs": {}})
    added = client("jobs.add", queue="mail", payload=payload, max_fails=2)
    assert client("jobs.get", job=added["id"])["state"] == "ready"
    (job,) = client("work.lease", queues=["mail"], max=1)["jobs"]
    client("jobs.progress", job=job["id"], done=1, total=2, note="half")
    client("jobs.touch", job=job["id"], ttr_ms=5_000)
    client("jobs.complete", job=job["id"], result='"sent"', attempt=job["attempt"])
    assert client("jobs.get_result", job=job["id"])["result"] == '"sent"'
    found = client("jobs.list", queue="mail", state="done", text="send(", sort="-run")
    assert [each["id"] for each in found["jobs"]] == [added["id"]]
    assert client("facets.get", queue="mail")["states"]["completed"] == 1
    client("queues.set_paused", queue="mail", paused=True)
    assert client("queues.get", queue="mail")["paused"]
    assert [each["name"] for each in client("queues.list")["queues"]] == ["mail"]
    client("jobs.delete", job=added["id"])


def test_rules_timetables_items_and_figures_are_reached(client: GeneratedClient):
    client("schedule_rules.set", id="backup", pattern="backup.", runner="shell", args=["true"])
    assert client("schedule_rules.get", id="backup")["pattern"] == "backup."
    client("timetables.set", timetable="nightly", cron="0 2 * * *", runner=["shell", "true"])
    assert len(client("timetables.get_next", timetable="nightly", count=3)["firings"]) == 3
    client("fan_out_queues.items", queue="news", data="an item")
    assert client("fan_out_queues.read", queue="news")["data"] == "an item"
    assert client("series.get", of="work", figure="added,run_p99")["figures"].keys() == {
        "added", "run_p99",
    }  # fmt: skip
    assert client("tasks.list")["by"] == "task"


def test_operations_have_names_of_their_own():
    nothing: Any = None
    for document in (
        describe(VersionOne.of_backend(nothing).routes(), PROBLEMS),
        describe(PATHS, TEXT_ERRORS),
    ):
        names = [
            each["operationId"] for path in document["paths"].values() for each in path.values()
        ]
        assert len(set(names)) == len(names)
        assert all(name.replace(".", "").replace("_", "").isalpha() for name in names)


def test_words_of_parameters_are_listed_in_the_document():
    nothing: Any = None
    document = describe(VersionOne.of_backend(nothing).routes(), PROBLEMS)
    parameters = document["paths"]["/v1/work/jobs"]["get"]["parameters"]
    (state,) = (each["schema"] for each in parameters if each["name"] == "state")
    assert {"ready", "running", "dead"} <= set(state["enum"])
