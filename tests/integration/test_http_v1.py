"""Version 1 of the HTTP API against a real server: every service, errors, cursors, keys, tokens."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import signal
import time
from collections.abc import Iterator
from email.message import Message
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import just

from journeyman.disk import RealDisk
from journeyman.formats.ledger import CODEC, ActionAudited
from journeyman.logs.segments import ledger_files
from journeyman.servers.http.records import last_records
from tests.support.effort import cases
from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

TOKENS = """
[token.admin]
secret = "sk_admin"
namespace = "*"
[token.team]
secret = "sk_team"
namespace = "team."
[token.wallboard]
secret = "sk_look"
namespace = "*"
access = "read"
"""
JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(tmp_path_factory.mktemp("v1"), settings=ALL_SERVICES) as running:
        yield running


class Answer(NamedTuple):
    status: int
    headers: Message
    data: bytes


def raw(
    server: ScheduleProcess, method: str, path: str, body: str | bytes = b"", **headers: str
) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body or None, (JSON if body else {}) | named)
    response = connection.getresponse()
    answer = Answer(response.status, response.headers, response.read())
    connection.close()
    return answer


def refused(answer: tuple[int, Any]) -> tuple[int, str]:
    status, text = answer
    problem = json.loads(text)
    assert problem["status"] == status
    assert problem["detail"]
    return status, problem["code"]


# -- the schedule --


def test_a_job_keeps_every_nanosecond(server):
    body = {"execution": "2033-05-18T03:33:20.123456789Z"}
    status, job = ask(server, "PUT", "/v1/schedule/jobs/nano%2F1", body)
    assert (status, job) == (
        200,
        {
            "id": "nano/1",
            "status": "planned",
            "execution": "2033-05-18T03:33:20.123456789Z",
            "execution_ns": "2000000000123456789",
        },
    )
    assert ask(server, "GET", "/v1/schedule/jobs/nano/1") == (200, job)
    again = ask(server, "PUT", "/v1/schedule/jobs/nano%2F1", {"execution": job["execution_ns"]})
    assert again == (200, job)
    assert ask(server, "DELETE", "/v1/schedule/jobs/nano/1")[0] == 204
    assert refused(ask(server, "GET", "/v1/schedule/jobs/nano/1")) == (404, "job_not_found")
    kinds = ask(server, "GET", "/v1/schedule/records?id=nano/1")[1]["records"]
    assert [each["kind"] for each in kinds] == ["planned", "planned", "removed"]


def test_pages_are_walked_by_cursor(server):
    for number in range(12):
        body = {"execution": f"20{40 + number}-01-01T00:00:00Z"}
        assert ask(server, "PUT", f"/v1/schedule/jobs/page.{number:02}", body)[0] == 200
    seen, cursor = [], ""
    for _ in range(4):
        path = f"/v1/schedule/jobs?prefix=page.&limit=5&order=-time&cursor={cursor}"
        page = ask(server, "GET", path)[1]
        seen += [job["id"] for job in page["jobs"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [f"page.{number:02}" for number in reversed(range(12))]
    assert refused(ask(server, "GET", "/v1/schedule/jobs?cursor=!"))[1] == "invalid_cursor"


def test_rules_and_runs(server):
    options = {"timeout": "5m", "on_failure": ["shell", "true"]}
    rule = {"pattern": "run.", "runner": "shell", "args": ["echo out; exit 3"], "options": options}
    assert ask(server, "PUT", "/v1/schedule/rules/r1", rule) == (200, {"id": "r1", **rule})
    assert ask(server, "GET", "/v1/schedule/rules/r1")[1]["args"] == ["echo out; exit 3"]
    assert "r1" in [each["id"] for each in ask(server, "GET", "/v1/schedule/rules")[1]["rules"]]
    ask(server, "PUT", "/v1/schedule/jobs/run.1", {"execution": 1})
    server.wait_for_status("run.1", "failed")
    server.wait_until(
        lambda: bool(ask(server, "GET", "/v1/schedule/runs?prefix=run.")[1]["runs"]), "a run"
    )
    misfit = {**rule, "runner": "awf", "args": ["w"]}
    assert refused(ask(server, "PUT", "/v1/schedule/rules/r2", misfit)) == (422, "invalid_options")
    (run,) = ask(server, "GET", "/v1/schedule/runs?prefix=run.&success=false")[1]["runs"]
    assert (run["id"], run["success"], run["output"]) == ("run.1", False, "out\n")
    assert ask(server, "GET", "/v1/schedule/runs?prefix=run.&success=true")[1]["runs"] == []
    assert ask(server, "DELETE", "/v1/schedule/rules/r1")[0] == 204
    assert refused(ask(server, "GET", "/v1/schedule/rules/r1")) == (404, "rule_not_found")


# -- the work queue --


def add(server: ScheduleProcess, queue: str, **more: Any) -> str:
    status, added = ask(server, "POST", "/v1/work/jobs", {"queue": queue, **more})
    assert (status, added["is_new"]) == (201, True)
    return str(added["id"])


def test_a_job_is_added_leased_and_completed(server):
    job_id = add(server, "v1.life", payload="héllo")
    leased = ask(server, "POST", "/v1/work/lease", {"queues": ["v1.life"]})[1]["job"]
    assert (leased["id"], leased["payload"]) == (job_id, "héllo")
    assert ask(server, "POST", "/v1/work/lease", {"queues": ["v1.life"]})[1] == {
        "job": None,
        "jobs": [],
    }
    assert refused(ask(server, "GET", f"/v1/work/jobs/{job_id}/result")) == (408, "not_finished")
    done = ask(server, "POST", f"/v1/work/jobs/{job_id}/complete", {"result": "fine"})
    assert done[0] == 204
    result = ask(server, "GET", f"/v1/work/jobs/{job_id}/result")[1]
    assert result == {"id": job_id, "success": True, "result": "fine"}
    twice = ask(server, "POST", f"/v1/work/jobs/{job_id}/complete", {})
    assert refused(twice) == (409, "duplicate_result")
    job = ask(server, "GET", f"/v1/work/jobs/{job_id}")[1]
    assert (job["state"], job["attempts"], job["result"]) == ("completed", 1, "fine")
    records = ask(server, "GET", f"/v1/work/jobs/{job_id}/records")[1]["records"]
    assert [each["kind"] for each in records] == ["add", "start-attempt", "complete"]
    assert all(each["length"] * 2 == len(each["bytes_hex"]) for each in records)


def test_the_last_sync_of_a_log_is_known(server):
    def synced_ns() -> int:
        return int(ask(server, "GET", "/v1/figures")[1]["syncs"]["workq"]["time_ns"])

    add(server, "v1.sync")
    before_ns = synced_ns()
    add(server, "v1.sync")
    server.wait_until(lambda: synced_ns() > before_ns, "a sync")


def test_a_lease_waits_for_a_job(server):
    import threading

    answers: list[Any] = []
    body = {"queues": ["v1.wait"], "wait_ms": 20_000}
    worker = threading.Thread(
        target=lambda: answers.append(ask(server, "POST", "/v1/work/lease", body))
    )
    worker.start()
    server.wait_until(
        lambda: ask(server, "GET", "/v1/figures")[1]["work"]["waiting"] >= 1, "a worker waits"
    )
    job_id = add(server, "v1.wait")
    worker.join(30)
    assert answers[0][1]["job"]["id"] == job_id


def test_dead_jobs_are_found_by_their_error_and_requeued(server):
    ids = [add(server, "v1.dead", payload=f"p{number}") for number in range(5)]
    for number, job_id in enumerate(ids):
        reason = "Timeout after 5 s" if number % 2 else "bad address"
        assert ask(server, "POST", f"/v1/work/jobs/{job_id}/fail", {"result": reason})[0] == 204
    path = "/v1/work/jobs?queue=v1.dead&state=dead"
    assert len(ask(server, "GET", path)[1]["jobs"]) == 5
    found = ask(server, "GET", f"{path}&error=timeout")[1]["jobs"]
    assert [job["id"] for job in found] == [ids[3], ids[1]]
    body = {"queue": "v1.dead", "error": "timeout"}
    assert ask(server, "POST", "/v1/work/requeue", body)[1] == {"done": 2, "refused": []}
    assert ask(server, "POST", "/v1/work/requeue", {"ids": [ids[1], ids[0]]})[1] == {
        "done": 1,
        "refused": [ids[1]],
    }
    assert ask(server, "POST", "/v1/work/delete", {"ids": [ids[2]]})[1]["done"] == 1
    queue = ask(server, "GET", "/v1/work/queues/v1.dead")[1]
    assert (queue["ready"], queue["dead"]) == (3, 1)


def test_a_queue_says_how_much_goes_in_and_out(server):
    for _ in range(3):
        add(server, "v1.rates")
    ask(server, "POST", "/v1/work/lease", {"queues": ["v1.rates"]})

    def queue() -> Any:
        return ask(server, "GET", "/v1/work/queues/v1.rates")[1]

    assert (queue()["added"], queue()["started"], queue()["leased"]) == (3, 1, 1)
    server.wait_until(lambda: queue()["added_per_s"] is not None, "a second sample")


def test_queues_are_listed_paused_and_resumed(server):
    for name in ("v1.list.a", "v1.list.b", "v1.list.c"):
        add(server, name)
    page = ask(server, "GET", "/v1/work/queues?prefix=v1.list.&limit=2")[1]
    assert [queue["name"] for queue in page["queues"]] == ["v1.list.a", "v1.list.b"]
    rest = ask(server, "GET", f"/v1/work/queues?prefix=v1.list.&cursor={page['next']}")[1]
    assert [queue["name"] for queue in rest["queues"]] == ["v1.list.c"]
    paused = ask(server, "PUT", "/v1/work/queues/v1.list.a/paused", {"paused": True})[1]
    assert paused["paused"] is True
    lease = ask(server, "POST", "/v1/work/lease", {"queues": ["v1.list.a"]})[1]
    assert lease == {"job": None, "jobs": []}
    resumed = ask(server, "PUT", "/v1/work/queues/v1.list.a/paused", {"paused": False})[1]
    assert resumed["paused"] is False
    assert refused(ask(server, "GET", "/v1/work/queues/v1.none")) == (404, "queue_not_found")


def test_a_lease_is_prolonged_and_a_queue_limited(server):
    job_id = add(server, "v1.touch", max_fails=3)
    refusal = ask(server, "POST", f"/v1/work/jobs/{job_id}/touch", {})
    assert refused(refusal) == (409, "not_leased")
    ask(server, "POST", "/v1/work/lease", {"queues": ["v1.touch"]})
    before = ask(server, "GET", f"/v1/work/jobs/{job_id}")[1]["leased_until"]
    assert ask(server, "POST", f"/v1/work/jobs/{job_id}/touch", {"ttr_ms": 3_600_000})[0] == 204
    assert ask(server, "GET", f"/v1/work/jobs/{job_id}")[1]["leased_until"] > before
    later = {"result": "again", "delay_ms": 3_600_000}
    assert ask(server, "POST", f"/v1/work/jobs/{job_id}/fail", later)[0] == 204
    assert ask(server, "GET", f"/v1/work/jobs/{job_id}")[1]["state"] == "scheduled"
    limits = {"rate": 10, "per_ms": 60_000, "concurrency": 2}
    seen = ask(server, "PUT", "/v1/work/queues/v1.touch/limits", limits)[1]["limits"]
    none = {"key_concurrency": 0, "key_rate": 0, "key_per_ms": 0, "fair": False, "weights": {}}
    assert seen == limits | none
    per_key = {"key_rate": 5, "key_per_ms": 1_000}
    seen = ask(server, "PUT", "/v1/work/queues/v1.touch/limits", per_key)[1]["limits"]
    assert seen == none | limits | per_key
    seen = ask(server, "PUT", "/v1/work/queues/v1.touch/limits", {"weights": {"gold": 3}})[1]
    assert (seen["limits"]["fair"], seen["limits"]["weights"]) == (True, {"gold": 3})
    seen = ask(server, "PUT", "/v1/work/queues/v1.touch/limits", {"rate": 0})[1]["limits"]
    assert seen == none | per_key | {"concurrency": 2, "fair": True, "weights": {"gold": 3}} | {
        "rate": 0,
        "per_ms": 0,
    }
    seen = ask(server, "PUT", "/v1/work/queues/v1.touch/limits", {"fair": False})[1]["limits"]
    assert (seen["fair"], seen["weights"]) == (False, {})
    both = {"fair": False, "weights": {"gold": 3}}
    refusal = ask(server, "PUT", "/v1/work/queues/v1.touch/limits", both)
    assert refused(refusal) == (400, "invalid_body")
    for weights in ({"gold": 0}, {"gold": 1001}, {"": 1}, {"a b": 1}, {"gold": True}, [1]):
        refusal = ask(server, "PUT", "/v1/work/queues/v1.touch/limits", {"weights": weights})
        assert refused(refusal) == (400, "invalid_body")
    half = ask(server, "PUT", "/v1/work/queues/v1.touch/limits", {"rate": 10})
    assert refused(half) == (400, "invalid_body")


def test_an_unstarted_job_is_replaced_over_http(server):
    job_id, other = str(uuid4()), str(uuid4())
    at = "2099-01-01T00:00:00Z"
    body = {"queue": "v1.moved", "id": job_id, "payload": "one", "at": at}
    assert ask(server, "POST", "/v1/work/jobs", body)[0] == 201
    moved = body | {"payload": "two", "at": "2099-01-02T00:00:00Z", "replace": "unstarted"}
    assert ask(server, "POST", "/v1/work/jobs", moved)[0] == 201
    view = ask(server, "GET", f"/v1/work/jobs/{job_id}")[1]
    assert (view["payload"], view["scheduled"][:10]) == ("two", "2099-01-02")
    beside = body | {"id": other, "replace": "unstarted", "unless": job_id}
    assert refused(ask(server, "POST", "/v1/work/jobs", beside)) == (409, "duplicate_job")
    for wrong in (
        body | {"unless": job_id},
        moved | {"at": None, "after": [other]},
        moved | {"payload": "x" * 600_000},
    ):
        assert refused(ask(server, "POST", "/v1/work/jobs", wrong)) == (400, "invalid_body")


def test_an_idempotency_key_adds_one_job(server):
    body = json.dumps({"queue": "v1.once", "payload": "x"})
    answers = [raw(server, "POST", "/v1/work/jobs", body, Idempotency_Key="k") for _ in range(3)]
    assert {answer.status for answer in answers} == {201}
    assert len({json.loads(answer.data)["id"] for answer in answers}) == 1
    assert answers[1].headers["Idempotency-Replayed"] == "true"
    other = raw(server, "POST", "/v1/work/jobs", '{"queue":"v1.two"}', Idempotency_Key="k")
    assert refused((other.status, other.data)) == (422, "idempotency_mismatch")
    assert ask(server, "GET", "/v1/work/queues/v1.once")[1]["ready"] == 1


# -- the fan-out queues --


def test_items_are_put_read_confirmed_and_aborted(server):
    queue = "/v1/fan-out/queues/v1_events"
    for word in ("one", "two"):
        assert ask(server, "POST", f"{queue}/items", {"data": word})[0] == 204
    opened = ask(server, "POST", f"{queue}/read", {"open": True})[1]
    assert opened["data"] == "one"
    assert ask(server, "POST", f"/v1/fan-out/reads/{opened['read']}/abort")[0] == 204
    again = ask(server, "POST", f"{queue}/read", {"open": True})[1]
    assert again["data"] == "one"
    assert ask(server, "POST", f"/v1/fan-out/reads/{again['read']}/confirm")[0] == 204
    gone = ask(server, "POST", f"/v1/fan-out/reads/{again['read']}/confirm")
    assert refused(gone) == (404, "read_not_found")
    assert ask(server, "POST", f"{queue}/read", {"peek": True})[1]["data"] == "two"
    assert ask(server, "POST", f"{queue}/read", {})[1] == {"found": True, "data": "two"}
    assert ask(server, "POST", f"{queue}/read", {})[1] == {"found": False}
    (reader,) = ask(server, "GET", queue)[1]["readers"]
    assert (reader["items"], reader["open"]) == (0, 0)
    assert ask(server, "DELETE", queue)[0] == 204


def test_a_queue_with_named_readers_has_no_default_reader(server):
    queue = "/v1/fan-out/queues/v1_named"
    ask(server, "POST", f"{queue}/read", {"reader": "a"})
    assert refused(ask(server, "POST", f"{queue}/read", {})) == (409, "refused_by_queue")


def test_an_open_item_goes_back_by_itself(server):
    queue = "/v1/fan-out/queues/v1_hold"
    ask(server, "POST", f"{queue}/items", {"data": "x"})
    assert ask(server, "POST", f"{queue}/read", {"open": True, "hold_ms": 1})[1]["found"]
    second = ask(server, "POST", f"{queue}/read", {"wait_ms": 20_000})[1]
    assert second == {"found": True, "data": "x"}


# -- the log, the server --


def test_the_logs_are_listed_read_verified_and_compacted(server):
    add(server, "v1.log", payload="in the log")
    services = {file["service"] for file in ask(server, "GET", "/v1/log/files")[1]["files"]}
    assert {"schedule", "work"} <= services
    listed: list[dict[str, Any]] = []
    page: dict[str, Any] = {"next": ""}
    while page["next"] is not None:
        page = ask(server, "GET", f"/v1/log/files?limit=1&cursor={page['next']}")[1]
        listed += page["files"]
    own = [file["service"] for file in listed if file["service"] != "fan-out"]  # these come and go
    assert own == ["schedule", "work"]
    found = ask(server, "GET", "/v1/log/files?prefix=000000001")[1]["files"]
    assert [file["name"] for file in found] == ["000000001.log"]
    last = ask(server, "GET", "/v1/log/records?service=work&limit=1")[1]["records"]
    assert [(each["kind"], each["text"]) for each in last] == [("add", "in the log")]
    assert {file["live_bytes"] for file in ask(server, "GET", "/v1/log/files")[1]["files"]} == {
        None
    }
    assert ask(server, "POST", "/v1/log/verify")[1]["clean"] is True
    (file,) = [f for f in ask(server, "GET", "/v1/log/files")[1]["files"] if f["service"] == "work"]
    assert file["live_bytes"] > 0
    assert file["damaged_bytes"] == 0
    assert file["verified"]
    for service in ("schedule", "work"):
        told = ask(server, "POST", "/v1/log/compact", {"service": service})
        assert told[0] == 200
        assert told[1]["detail"]


def test_a_job_is_given_back_without_a_failure(server):
    job = add(server, "v1.release", max_fails=1)
    assert ask(server, "POST", "/v1/work/lease", {"queues": ["v1.release"]})[1]["job"]["id"] == job
    both = {"final": True, "release": True}
    assert ask(server, "POST", f"/v1/work/jobs/{job}/fail", both)[0] == 400
    assert ask(server, "POST", f"/v1/work/jobs/{job}/fail", {"release": True})[0] == 204
    seen = ask(server, "GET", f"/v1/work/jobs/{job}")[1]
    assert (seen["state"], seen["fails"]) == ("ready", 0)


def test_the_work_queue_is_shown_as_it_was(server):
    ids = [add(server, "v1.past", payload=f"p{number}") for number in range(3)]
    ask(server, "POST", f"/v1/work/jobs/{ids[0]}/fail", {"result": "Timeout"})
    (first, failed) = ask(server, "GET", f"/v1/work/jobs/{ids[0]}/records")[1]["records"]
    ask(server, "POST", "/v1/work/requeue", {"ids": [ids[0]]})
    ask(server, "DELETE", f"/v1/work/jobs/{ids[1]}")
    then = failed["time_ns"]
    counts = {each["queue"]: each for each in past(server, f"/v1/past/work?at={then}")["queues"]}
    assert (counts["v1.past"]["ready"], counts["v1.past"]["dead"]) == (2, 1)
    dead = past(server, f"/v1/work/jobs?queue=v1.past&state=dead&error=time&at={then}")["jobs"]
    assert [(job["id"], job["payload"], job["result"]) for job in dead] == [
        (ids[0], "p0", "Timeout")
    ]
    page = past(server, f"/v1/work/jobs?queue=v1.past&limit=2&at={then}")
    rest = past(server, f"/v1/work/jobs?queue=v1.past&at={then}&cursor={page['next']}")
    assert [job["id"] for job in page["jobs"] + rest["jobs"]] == ids[::-1]
    earlier = str(int(first["time_ns"]) - 1)
    changed = past(server, f"/v1/past/work/changes?from={earlier}&until={then}")
    found = {job["id"]: (job["before"], job["after"]) for job in changed["jobs"]}
    assert found[ids[0]] == (None, "dead")
    assert found[ids[2]] == (None, "ready")
    assert past(server, "/v1/schedule/jobs?at=2020-01-01T00:00:00Z")["jobs"] == []


def test_the_schedule_is_shown_as_it_was(tmp_path: Path):
    with ScheduleProcess(tmp_path, settings=ALL_SERVICES) as server:
        ask(server, "PUT", "/v1/schedule/jobs/was.1", {"execution": "2033-01-01T00:00:00Z"})

        def records() -> list[Any]:
            found: list[Any] = past(server, "/v1/schedule/records?id=was.1")["records"]
            return found

        server.wait_until(lambda: "time_ns" in records()[-1], "a mark in the ledger")
        then = records()[-1]["time_ns"]
        ask(server, "DELETE", "/v1/schedule/jobs/was.1")
        server.wait_until(lambda: "time_ns" in records()[-1], "a second mark in the ledger")
        now = records()[-1]["time_ns"]
        listed = past(server, f"/v1/schedule/jobs?prefix=was.&at={then}")["jobs"]
        assert [(job["id"], job["status"]) for job in listed] == [("was.1", "planned")]
        assert past(server, f"/v1/schedule/jobs?prefix=was.&at={now}")["jobs"] == []


# What no log says, so that the past leaves it out: who held a lease, what the process has counted.
ONLY_LIVE = {"worker", "added", "started", "added_per_s", "started_per_s"}
# The age of the oldest job runs on; cursors and texts are compared whole.
RUNS_ON = {"oldest_ready_ms"}


# Routes without a past: every other GET takes ``at`` and is compared below.
WITHOUT_PAST = {
    # The server itself, and not what a log holds.
    *("/v1/health", "/v1/ready", "/v1/figures", "/v1/events", "/v1/settings", "/v1/tokens"),
    *("/v1/me", "/v1/log/files", "/v1/log/tail"),
    # All records of a job or an id, with their times: its whole past.
    *("/v1/work/jobs/{job}/records", "/v1/schedule/records"),
    # The past is the only thing that they show.
    *("/v1/past/work", "/v1/past/work/changes", "/v1/past/schedule"),
    # The time machine shows the schedule and the work queue; no log says who the workers were.
    *("/v1/fan-out/queues", "/v1/fan-out/queues/{queue}", "/v1/fan-out/status"),
    "/v1/work/workers",
    # The store keeps ended jobs; it states its place in the log.
    *("/v1/work/archive", "/v1/work/archive/counts", "/v1/work/archive/{job}"),
    # Figures over time have a range of time of their own.
    *("/v1/series", "/v1/summaries", "/v1/summaries/{of}/{name}", "/v1/tasks", "/v1/tasks/{name}"),
    # A result and the next firings are waited for or computed from now on.
    *("/v1/work/jobs/{job}/result", "/v1/timetables/{timetable}/next"),
}


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        left_out = RUNS_ON | (ONLY_LIVE if "name" in value else {"worker", "workers"})
        return {key: comparable(each) for key, each in value.items() if key not in left_out}
    return [comparable(each) for each in value] if isinstance(value, list) else value


def test_the_past_at_now_is_the_present_route_by_route(tmp_path: Path):
    """Every route that takes ``at`` is asked, for jobs in every state."""
    with ScheduleProcess(tmp_path, settings=ALL_SERVICES) as server:
        job = {"queue": "now.jobs", "payload": "p", "max_fails": 2, "max_attempts": 5}
        ids = [ask(server, "POST", "/v1/work/jobs", job)[1]["id"] for _ in range(6)]
        ask(server, "POST", f"/v1/work/jobs/{ids[0]}/complete", {"result": "done"})
        ask(server, "POST", f"/v1/work/jobs/{ids[1]}/fail", {"result": "no", "final": True})
        ask(server, "POST", f"/v1/work/jobs/{ids[2]}/fail", {"result": "no", "delay_ms": 3600000})
        leased = ask(server, "POST", "/v1/work/lease", {"queues": ["now.jobs"]})[1]["job"]["id"]
        step = {"name": "charge", "attempt": 1, "value": "42"}
        assert ask(server, "POST", f"/v1/work/jobs/{leased}/steps", step)[0] == 204
        assert ask(server, "PUT", "/v1/work/events/now.paid", {"value": "42"})[0] == 200
        later = job | {"at": "2050-01-01T00:00:00Z", "key": "k"}
        ids.append(ask(server, "POST", "/v1/work/jobs", later)[1]["id"])
        child = job | {"after": [ids[5]]}
        ids.append(ask(server, "POST", "/v1/work/jobs", child)[1]["id"])
        limits = {"rate": 5, "per_ms": 1000, "concurrency": 3}
        ask(server, "PUT", "/v1/work/queues/now.jobs/limits", limits)
        ask(server, "PUT", "/v1/work/queues/now.empty/paused", {"paused": True})
        for number in range(3):
            plan = {"execution": f"2033-01-0{number + 1}T00:00:00Z"}
            ask(server, "PUT", f"/v1/schedule/jobs/now.{number}", plan)
        ask(server, "PUT", "/v1/timetables/now.daily", {"cron": "30 2 * * *"})
        ask(server, "PUT", "/v1/timetables/now.paused", {"every": "1h"})
        ask(server, "POST", "/v1/timetables/now.paused/pause", {})
        rule = {"pattern": "now.", "runner": "shell", "args": ["true"]}
        ask(server, "PUT", "/v1/schedule/rules/now.rule", rule)
        told = rule | {"options": {"timeout": "5s"}}
        for name in ("told", "removed"):
            assert ask(server, "PUT", f"/v1/schedule/rules/now.{name}", told)[0] == 200
        ask(server, "DELETE", "/v1/schedule/rules/now.removed")
        ask(server, "DELETE", "/v1/schedule/jobs/now.2")
        server.wait_until(lambda: has_marks(server, "now.2"), "the marks are in the ledger")
        paths = ["/v1/work/jobs", "/v1/work/jobs?limit=3", "/v1/work/jobs?text=p&state=ready"]
        paths += [f"/v1/work/jobs?state={state}" for state in STATES_OF_JOBS]
        paths += ["/v1/work/queues", "/v1/work/queues?limit=1", "/v1/work/jobs?error=no"]
        paths += ["/v1/work/facets", "/v1/work/facets?queue=now.jobs&state=dead"]
        paths += [f"/v1/work/jobs/{each}" for each in ids]
        paths += [f"/v1/work/jobs/{leased}/steps", "/v1/work/events/now.paid"]
        paths += ["/v1/schedule/jobs", "/v1/schedule/jobs?order=-time&limit=1&prefix=now."]
        paths += ["/v1/schedule/jobs/now.1", "/v1/schedule/jobs/now.2", "/v1/schedule/runs"]
        paths += ["/v1/timetables", "/v1/timetables?prefix=now.&limit=1"]
        paths += ["/v1/timetables/now.daily", "/v1/timetables/now.paused", "/v1/timetables/no"]
        paths += ["/v1/schedule/rules", "/v1/schedule/rules?prefix=now.&limit=1"]
        paths += [f"/v1/schedule/rules/now.{name}" for name in ("rule", "told", "removed")]
        paths += [f"/v1/work/queues/now.{name}" for name in ("jobs", "empty", "no")]
        paths += ["/v1/log/records?service=work&limit=5", "/v1/log/records?service=schedule"]
        asked = {path.partition("?")[0] for path in paths}
        document = ask(server, "GET", "/v1/openapi.json")[1]["paths"]
        for path, methods in document.items():
            if "get" in methods and path not in WITHOUT_PAST:
                names = {each["name"] for each in methods["get"].get("parameters", [])}
                assert "at" in names, f"{path} takes no `at`, and WITHOUT_PAST does not explain why"
                pattern = re.sub(r"\{\w+\}", "[^/]+", path)
                assert any(re.fullmatch(pattern, each) for each in asked), path
        assert document.keys() >= WITHOUT_PAST
        at_ns = time.time_ns()
        for path in paths:
            then = ask(server, "GET", f"{path}{'&' if '?' in path else '?'}at={at_ns}")
            live = ask(server, "GET", path)
            assert then[0] == live[0], path
            if live[0] == 200:
                assert comparable(then[1]) == comparable(live[1]), path
            else:
                assert then == live, path


STATES_OF_JOBS = ("ready", "scheduled", "leased", "completed", "dead")


def has_marks(server: ScheduleProcess, job: str) -> bool:
    records = ask(server, "GET", f"/v1/schedule/records?id={job}")[1]["records"]
    return "time_ns" in records[-1]


def past(server: ScheduleProcess, path: str) -> Any:
    status, found = ask(server, "GET", path)
    assert status == 200, found
    return found


def test_timetables_are_set_run_paused_and_backfilled(server):
    one = "/v1/timetables/v1.nightly"
    body = {"cron": "30 2 * * *", "tz": "Europe/Berlin", "runner": ["shell", "true"]}
    seen = ask(server, "PUT", one, body)[1]
    assert (seen["state"], seen["words"]) == ("active", "At 02:30 every day (Europe/Berlin)")
    assert ask(server, "GET", one)[1]["fields"] == body
    assert len(ask(server, "GET", f"{one}/next?count=3")[1]["firings"]) == 3
    job = ask(server, "POST", f"{one}/run")[1]["job"]
    server.wait_for_status(job, "executed")
    assert ask(server, "POST", f"{one}/pause")[0] == 204
    assert ask(server, "GET", one)[1]["state"] == "paused"
    assert ask(server, "POST", f"{one}/resume")[0] == 204
    span = {"from": "2026-01-01T00:00:00Z", "until": "2026-01-04T00:00:00Z"}
    rows = ask(server, "POST", f"{one}/backfill", span)[1]["rows"]
    assert [(row["execution"][:16], row["runs"]) for row in rows] == [
        ("2026-01-01T01:30", True),
        ("2026-01-02T01:30", True),
        ("2026-01-03T01:30", True),
    ]
    listed = ask(server, "GET", "/v1/timetables?prefix=v1.")[1]["timetables"]
    assert [each["id"] for each in listed] == ["v1.nightly"]
    wrong = ask(server, "PUT", one, {"cron": "99 2 * * *"})
    assert refused(wrong) == (422, "invalid_timetable")
    assert ask(server, "DELETE", one)[0] == 204
    assert refused(ask(server, "GET", one)) == (404, "timetable_not_found")


def test_the_tail_shows_records_as_they_become_durable(server):
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    connection.request("GET", "/v1/log/tail")
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream"
    add(server, "v1.tail", payload="seen live")
    for line in response:
        if line.startswith(b"data: ") and b"seen live" in line:
            break
    connection.close()
    told = json.loads(line.removeprefix(b"data: "))
    assert "v1.tail" in [record["queue"] for record in told["records"]]


def test_a_server_that_stops_ends_its_streams(tmp_path: Path):
    with ScheduleProcess(tmp_path, settings=ALL_SERVICES) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        connection.request("GET", "/v1/events")
        stream = connection.getresponse()
        assert stream.readline() == b"retry: 2000\n"
        assert b"event: figures\n" in iter(stream.readline, b"")
        assert server.stop() == 0
        stream.read()  # to its end
        connection.close()


def test_settings_come_with_their_origin(server):
    settings_ = {each["name"]: each for each in ask(server, "GET", "/v1/settings")[1]["settings"]}
    assert settings_["workq.enabled"]["origin"] == "command line"
    assert settings_["shell.path"]["origin"] == "default"
    assert ask(server, "GET", "/v1/tokens")[1] == {"required": False, "tokens": []}
    assert ask(server, "GET", "/v1/ready")[1]["ready"] is True
    assert ask(server, "GET", "/v1/health")[1] == {"status": "ok"}


def test_answers_have_etags_and_are_compressed(server):
    first = raw(server, "GET", "/v1/settings", Accept_Encoding="gzip")
    assert first.headers["Content-Encoding"] == "gzip"
    assert first.headers["Server"] == "Journeyman"
    assert json.loads(gzip.decompress(first.data))["settings"]
    again = raw(server, "GET", "/v1/settings", If_None_Match=first.headers["ETag"])
    assert (again.status, again.data) == (304, b"")


@pytest.mark.parametrize(
    ("method", "path", "body", "problem"),
    [
        ("GET", "/v1/nothing", "", (404, "not_found")),
        ("PATCH", "/v1/work/jobs", "", (405, "method_not_allowed")),
        ("GET", "/v1/work/jobs?colour=red", "", (400, "invalid_parameter")),
        ("GET", "/v1/work/jobs?limit=501", "", (400, "invalid_parameter")),
        ("GET", "/v1/work/jobs?limit=", "", (400, "invalid_parameter")),
        ("GET", "/v1/work/jobs?since=2026-02-30", "", (400, "invalid_time")),
        ("GET", "/v1/work/jobs/17", "", (400, "invalid_id")),
        (
            "POST",
            "/v1/work/requeue",
            '{"ids": ["d452bd23-1a87-5d84-92e3-190ba883e444*"]}',
            (400, "invalid_id"),
        ),
        ("POST", "/v1/work/jobs", "{", (400, "invalid_body")),
        ("POST", "/v1/work/jobs", "[" * 100_000, (400, "invalid_body")),
        ("POST", "/v1/work/jobs", '{"queue":"a b"}', (400, "invalid_body")),
        ("POST", "/v1/work/jobs", '{"queue":"a\\n"}', (400, "invalid_body")),
        ("POST", "/v1/work/jobs", '{"queue":"a","ttr_ms":0}', (400, "invalid_body")),
        ("POST", "/v1/work/lease", '{"queues":["a\\n"]}', (400, "invalid_body")),
        ("GET", "/v1/schedule/jobs?status=planned%0a", "", (400, "invalid_parameter")),
        ("POST", "/v1/work/jobs", '{"queue":"a","colour":1}', (400, "invalid_body")),
        ("POST", "/v1/work/jobs", '{"queue":"a","payload_base64":"?"}', (400, "invalid_body")),
        ("PUT", "/v1/schedule/jobs/a", '{"execution":"soon"}', (400, "invalid_time")),
        ("PUT", "/v1/schedule/jobs/a", '{"execution":1e400}', (400, "invalid_body")),
        ("PUT", "/v1/schedule/rules/a", '{"pattern":"","runner":"x"}', (422, "invalid_runner")),
    ],
)
def test_problems_have_stable_codes(server, method, path, body, problem):
    answer = raw(server, method, path, body)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert refused((answer.status, answer.data)) == problem


def test_tokens_have_namespaces_and_access(tmp_path: Path):
    (tmp_path / "tokens.toml").write_text(TOKENS)
    (tmp_path / "tokens.toml").chmod(0o600)
    own = ALL_SERVICES | {"controller.auth_file": "tokens.toml"}
    with ScheduleProcess(tmp_path, settings=own) as server:

        def said(secret: str, method: str, path: str, body: Any = None) -> Any:
            status, told = ask(server, method, path, body, secret)
            return refused((status, told)) if status >= 400 else (status, told)

        assert said("", "GET", "/v1/work/jobs") == (401, "auth_required")
        assert said("wrong", "GET", "/v1/work/jobs") == (401, "auth_failed")
        assert said("", "GET", "/v1/health")[0] == 200
        for name in ("team.mail", "other.mail"):
            assert said("sk_admin", "POST", "/v1/work/jobs", {"queue": name})[0] == 201
        job = {"execution": 2 * 10**18}
        assert said("sk_admin", "PUT", "/v1/schedule/jobs/other.1", job)[0] == 200
        shown = said("sk_team", "GET", "/v1/work/jobs")[1]["jobs"]
        assert [each["queue"] for each in shown] == ["team.mail"]
        queues = said("sk_team", "GET", "/v1/work/queues")[1]["queues"]
        assert [each["name"] for each in queues] == ["team.mail"]
        assert said("sk_team", "GET", "/v1/schedule/jobs")[1]["jobs"] == []
        outside = (403, "outside_namespace")
        assert said("sk_team", "PUT", "/v1/schedule/jobs/other.1", job) == outside
        assert said("sk_team", "POST", "/v1/work/jobs", {"queue": "other.mail"}) == outside
        assert said("sk_team", "POST", "/v1/work/lease", {"queues": ["other.mail"]}) == outside
        assert said("sk_team", "POST", "/v1/fan-out/queues/x/items", {"data": ""}) == outside
        assert said("sk_team", "GET", "/v1/log/files") == outside
        assert said("sk_team", "GET", "/v1/settings") == outside
        tokens = said("sk_look", "GET", "/v1/tokens")[1]["tokens"]
        assert [each["may_write"] for each in tokens] == [True, True, False]
        assert "sk_" not in json.dumps(tokens)
        read_only = (403, "read_only")
        assert said("sk_look", "POST", "/v1/work/jobs", {"queue": "a"}) == read_only
        assert said("sk_look", "PUT", "/v1/schedule/jobs/a", job) == read_only
        # Nor by the paths of ztick: a rule there can run programs.
        rule = {"pattern": "a", "runner": "shell", "args": ["true"]}
        for method, path, body in (
            ("PUT", "/rules/a", rule), ("PUT", "/jobs/a", job), ("DELETE", "/jobs/other.1", None),
        ):  # fmt: skip
            answer = ask(server, method, path, body, "sk_look")
            assert answer == (403, {"error": "token wallboard may only read"})
        assert ask(server, "GET", "/rules", None, "sk_look")[1] == []
        assert server.ask("AUTH sk_look").startswith("ERROR")
        _check_a_session_of_the_console(server, tmp_path / "tokens.toml")
        rule = {"pattern": "team.", "runner": "shell", "args": ["echo hidden"]}
        assert said("sk_admin", "PUT", "/v1/schedule/rules/r", rule)[0] == 200
        assert ask(server, "DELETE", "/rules/r", None, "sk_admin")[0] == 204
        pause = {"paused": True}
        assert said("sk_team_2", "PUT", "/v1/work/queues/team.mail/paused", pause)[0] == 200
        assert said("sk_team_2", "PUT", "/v1/work/queues/other/paused", pause) == outside
    assert audits_of(tmp_path) == [
        ("admin", "PUT /v1/schedule/rules/{id}", "/v1/schedule/rules/r", "done"),
        ("admin", "DELETE /rules/{identifier}", "/rules/r", "done"),
        (
            *("team", "PUT /v1/work/queues/{queue}/paused"),
            *('/v1/work/queues/team.mail/paused {"paused": true}', "done"),
        ),
    ]


def audits_of(directory: Path) -> list[tuple[str, ...]]:
    """Of the API: who, what, to what, how it ended; oldest first."""
    disk = RealDisk()
    (path,) = ledger_files(disk, str(directory / "ledger"))
    found = [each.entry.record for each in last_records(disk, CODEC, path, 1_000)]
    audits = [each for each in reversed(found) if isinstance(each, ActionAudited)]
    return [
        (each.who, each.what, each.target, each.outcome) for each in audits if each.via == "http"
    ]


def _check_a_session_of_the_console(server: ScheduleProcess, tokens: Path) -> None:
    """It has the rights of its token, and ends when the secret is another."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}

    def send(path: str, **fields: str) -> Answer:
        return raw(server, "POST", path, urlencode(fields), **form, **cookie)

    cookie: dict[str, str] = {}
    login = send("/console/login", secret="sk_team")
    cookie["Cookie"] = login.headers["Set-Cookie"].partition(";")[0]
    page = raw(server, "GET", "/console/jobs", **cookie).data.decode()
    code = re.findall(r'name="code" value="(\w+)"', page)[0]
    for action in ("verify", "compact", "clean"):
        assert send("/console/act", action=action, code=code).status == 403
    tokens.write_text(TOKENS.replace("sk_team", "sk_team_2"))
    server.process.send_signal(signal.SIGHUP)
    server.wait_for_line("SIGHUP: reloaded .*")
    assert raw(server, "GET", "/console/jobs", **cookie).status == 303


# -- clients that leave --


@pytest.mark.parametrize(
    ("wait", "body", "look"),
    [
        ("/v1/work/lease", {"queues": ["left"]}, "/v1/work/queues/left"),
        ("/v1/fan-out/queues/left/read", {}, "/v1/fan-out/queues/left"),
    ],
)
def test_a_client_that_left_while_it_waited_gets_nothing(server, wait, body, look):
    def waiting() -> int:
        found = ask(server, "GET", look)[1]
        if not isinstance(found, dict):  # a queue that only the waiting client knew
            return 0
        return sum(each["waiting"] for each in found.get("readers", [found]))

    def begin() -> http.client.HTTPConnection:
        before = waiting()
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
        connection.request("POST", wait, json.dumps(body | {"wait_ms": 30_000}), JSON)
        server.wait_until(lambda: waiting() == before + 1)
        return connection

    add, added = "/v1/work/jobs", {"queue": "left", "payload": "an item"}
    if "fan-out" in wait:
        add, added = "/v1/fan-out/queues/left/items", {"data": "an item"}
        ask(server, "POST", add, added)
        ask(server, "POST", wait, body)  # the queue is there, and empty
    # One that stays began first: were it not for the leaving, it would be the first to end.
    stays, leaves = begin(), begin()
    leaves.close()
    server.wait_until(lambda: waiting() == 1)
    ask(server, "POST", add, added)
    assert b"an item" in stays.getresponse().read()
    stays.close()


# -- what its document says --


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
def test_the_server_keeps_to_its_own_document(server, method):
    """Requests made up from the document, and others: no 5xx, no answer that it does not describe,
    none refused that fits the document, and none accepted that does not."""
    # Not above: every worker that only collects this file would pay a second for it.
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    conforms = [
        not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
        checks.negative_data_rejection,
    ]
    address = f"http://127.0.0.1:{server.http_port}"
    schema = schemathesis.openapi.from_url(f"{address}/v1/openapi.json")
    chosen = schema.include(method=method).exclude(
        path_regex="tail|events|verify|compact|past|fan-out/status"
    )
    tried = 0
    modes = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
    for found, mode in product(chosen.get_all_operations(), modes):
        operation: Any = found.ok()
        if mode is GenerationMode.NEGATIVE and cannot_be_wrong(operation):
            continue

        fits = mode is GenerationMode.POSITIVE

        def keep_to_it(case: Any, *, fits: bool) -> None:
            body = case.body
            waits = isinstance(body, dict) and ("wait_ms" in body or case.path.endswith("work/run"))
            if fits and waits:
                body["wait_ms"] = 0
            if fits and "wait_ms" in (case.query or {}):
                case.query["wait_ms"] = 0
            (case.query or {}).pop("at", None)  # the past has tests of its own
            response = case.call(base_url=address, timeout=30)
            case.validate_response(response, checks=conforms)
            assert not fits or is_accepted(response), (response.text, case.as_curl_command())

        made_up = given(case=operation.as_strategy(generation_mode=mode), fits=just(fits))
        few = settings(max_examples=cases(6), phases=[Phase.generate], deadline=None, database=None,
                       derandomize=True, suppress_health_check=list(HealthCheck))  # fmt: skip
        few(made_up(keep_to_it))()
        tried += 1
    assert tried >= 3


def cannot_be_wrong(operation: Any) -> bool:
    """Nothing can be given; or only a name that may be any text."""
    parameters = operation.definition.raw.get("parameters", [])
    has_any_text = all(each["schema"] == {"type": "string", "minLength": 1} for each in parameters)
    return has_any_text and "requestBody" not in operation.definition.raw


def is_accepted(response: Any) -> bool:
    """It was done, or cannot be done just now. A document cannot say everything: which words a
    runner takes, which of two times is the later one, or that a key is used for one body alone."""
    return response.status_code < 300 or response.status_code in (404, 408, 409, 422)
