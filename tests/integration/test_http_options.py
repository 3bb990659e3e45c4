"""What the three ports can do, over HTTP: every command and option, and that none is forgotten."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args
from uuid import UUID, uuid4

import msgspec
import pytest

from journeyman.protocols.kestrel import commands as kestrel
from journeyman.protocols.workq import commands as workq
from journeyman.protocols.ztick import commands as ztick
from journeyman.servers.http.openapi import describe
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import PROBLEMS, VersionOne
from journeyman.timetables.timetable import FIELDS
from tests.support.servers.http_client import ask
from tests.support.servers.schedule_process import ALL_SERVICES, ScheduleProcess

NOTHING: Any = None
DOCUMENT = describe(VersionOne.of_backend(NOTHING).routes(), PROBLEMS)
# Fields of a command that no client chooses, or that pages take the place of.
NOT_GIVEN = {
    *("request_id", "offset", "with_counts", "namespace"),
    *("options.namespace", "options.begun_ns", "options.first_ns"),
}
ADD = {
    "job_id": "id", "name": "queue", "payload": "payload", "ttr_ms": "ttr_ms", "ttl_ms": "ttl_ms",
    "priority": "priority", "max_attempts": "max_attempts", "max_fails": "max_fails",
    "retry_delay_ms": "retry_delay_ms", "options.key": "key", "options.after": "after",
    "options.replaces_finished": "replace", "options.even_failed": "even_failed",
    "options.unique_ms": "unique_for_ms", "options.unless_same": "replace",
    "options.has_followers": "has_followers", "options.follows": "follows",
    "options.replaces_unstarted": "replace", "options.unless": "unless",
}  # fmt: skip
LIST = {"name": "queue", "limit": "limit"}
NAMED = {"name": "queue"}
KEY = {"key.queue": "queue", "key.reader": "reader"}
JOB = "/v1/work/jobs/{job}"
QUEUE, FAN_OUT = "/v1/work/queues/{queue}", "/v1/fan-out/queues/{queue}"
TIMETABLE = "/v1/timetables/{timetable}"
ONE = {"identifier": "timetable"}


class Over(NamedTuple):
    """Where a command is, and which of its fields is which parameter."""

    method: str
    path: str
    parameters: dict[str, str]


SAME_BY_OTHERS = {
    ztick.SetMany: "SETs that came together",
    workq.AwaitOrders: "a lease names the worker, and a renewal tells of a cancelled job",
    kestrel.PutTooLarge: "a body that is too large",
    kestrel.Reload: "the port refuses it as well",
    kestrel.Shutdown: "the port refuses it as well",
}
OVER_HTTP: dict[type, Over] = {
    workq.Add: Over("POST", "/v1/work/jobs", ADD),
    workq.ScheduleJob: Over("POST", "/v1/work/jobs", ADD | {"time_ns": "at"}),
    workq.RunJob: Over("POST", "/v1/work/run", {
        "job_id": "id", "name": "queue", "ttr_ms": "ttr_ms", "wait_ms": "wait_ms",
        "payload": "payload", "priority": "priority"}),
    workq.AwaitResult: Over("GET", f"{JOB}/result", {"job_id": "job", "wait_ms": "wait_ms"}),
    workq.Lease: Over("POST", "/v1/work/lease", {
        "names": "queues", "wait_ms": "wait_ms", "max_jobs": "max", "worker": "worker"}),
    workq.Complete: Over("POST", f"{JOB}/complete", {
        "job_id": "job", "result": "result", "attempt": "attempt"}),
    workq.Fail: Over("POST", f"{JOB}/fail", {
        "job_id": "job", "result": "result", "attempt": "attempt", "delay_ms": "delay_ms",
        "is_final": "final", "is_release": "release"}),
    workq.Touch: Over("POST", f"{JOB}/touch", {"job_id": "job", "ttr_ms": "ttr_ms"}),
    workq.Delete: Over("DELETE", JOB, {"job_id": "job"}),
    workq.Cancel: Over("POST", f"{JOB}/cancel", {"job_id": "job"}),
    workq.NoteProgress: Over("POST", f"{JOB}/progress", {
        "job_id": "job", "notes.done": "done", "notes.total": "total", "notes.note": "note",
        "notes.log": "log"}),
    workq.RecordStep: Over("POST", f"{JOB}/steps", {
        "job_id": "job", "name": "name", "number": "number", "value": "value",
        "attempt": "attempt"}),
    workq.InspectSteps: Over("GET", f"{JOB}/steps", {"job_id": "job", "attempt": "attempt"}),
    workq.Park: Over("POST", f"{JOB}/park", {
        "job_id": "job", "wait": "wait", "attempt": "attempt"}),
    workq.Emit: Over("PUT", "/v1/work/events/{event}", {"name": "event", "value": "value"}),
    workq.InspectEvent: Over("GET", "/v1/work/events/{event}", {"name": "event"}),
    workq.Fork: Over("POST", f"{JOB}/fork", {
        "job_id": "job", "new_id": "id", "name": "step", "number": "number"}),
    workq.InspectProgress: Over("GET", JOB, {"job_id": "job"}),
    workq.InspectServer: Over("GET", "/v1/figures", {}),
    workq.InspectToken: Over("GET", "/v1/me", {}),
    workq.InspectQueues: Over("GET", "/v1/work/queues", {"limit": "limit", "prefix": "prefix"}),
    workq.InspectPausedQueues: Over("GET", "/v1/work/queues", {
        "limit": "limit", "prefix": "prefix"}),
    workq.InspectQueue: Over("GET", QUEUE, NAMED),
    workq.InspectJobs: Over("GET", "/v1/work/jobs", LIST),
    workq.InspectScheduledJobs: Over("GET", "/v1/work/jobs", LIST),
    workq.InspectDeadJobs: Over("GET", "/v1/work/jobs", LIST),
    workq.InspectJob: Over("GET", JOB, {"job_id": "job"}),
    workq.Requeue: Over("POST", f"{JOB}/requeue", {"job_id": "job"}),
    workq.RequeueAll: Over("POST", "/v1/work/requeue", LIST),
    workq.SetLimits: Over("PUT", f"{QUEUE}/limits", NAMED | {
        f"limits.{each}": each for each in workq.Limits.__struct_fields__} | {
        "kept": "rate"}),  # and the others: those that the body does not name
    workq.PauseQueue: Over("PUT", f"{QUEUE}/paused", NAMED),
    workq.ResumeQueue: Over("PUT", f"{QUEUE}/paused", NAMED),
    kestrel.Put: Over("POST", f"{FAN_OUT}/items", {
        "queue": "queue", "expiry": "expire_s", "data": "data"}),
    kestrel.GetItem: Over("POST", f"{FAN_OUT}/read", KEY | {
        "wait_ms": "wait_ms", "open": "open", "peek": "peek",
        "close": "open", "abort": "open"}),  # then confirm and abort name what is open
    kestrel.Monitor: Over("POST", f"{FAN_OUT}/read", KEY | {
        "wait_ms": "wait_ms", "max_items": "max"}),
    kestrel.Confirm: Over("POST", "/v1/fan-out/reads/{read}/confirm", {
        "key.queue": "read", "key.reader": "read", "items": "read"}),  # one by one
    kestrel.DeleteQueue: Over("DELETE", f"{FAN_OUT}/readers/{{reader}}", KEY),
    kestrel.Flush: Over("POST", f"{FAN_OUT}/flush", KEY),
    kestrel.FlushExpired: Over("POST", f"{FAN_OUT}/flush", KEY),
    kestrel.FlushAll: Over("POST", "/v1/fan-out/flush", {
        "is_memcached": "expired"}),  # of the reply alone
    kestrel.FlushAllExpired: Over("POST", "/v1/fan-out/flush", {}),
    kestrel.ShowStats: Over("GET", "/v1/fan-out/queues", {"prefix": "prefix"}),
    kestrel.DumpStats: Over("GET", "/v1/fan-out/queues", {"prefix": "prefix", "queues": "prefix"}),
    kestrel.Version: Over("GET", "/v1/figures", {}),
    kestrel.ServerStatus: Over("PUT", "/v1/fan-out/status", {"word": "status"}),
    ztick.Set: Over("PUT", "/v1/schedule/jobs/{id}", {
        "identifier": "id", "execution_ns": "execution"}),
    ztick.Get: Over("GET", "/v1/schedule/jobs/{id}", {"identifier": "id"}),
    ztick.Query: Over("GET", "/v1/schedule/jobs", {"prefix": "prefix"}),
    ztick.Remove: Over("DELETE", "/v1/schedule/jobs/{id}", {"identifier": "id"}),
    ztick.ListRules: Over("GET", "/v1/schedule/rules", {}),
    ztick.SetRule: Over("PUT", "/v1/schedule/rules/{id}", {
        "identifier": "id", "pattern": "pattern", "runner": "runner", "options": "options"}),
    ztick.RemoveRule: Over("DELETE", "/v1/schedule/rules/{id}", {"identifier": "id"}),
    ztick.Stat: Over("GET", "/v1/figures", {}),
    ztick.SetTimetable: Over("PUT", TIMETABLE, ONE | {
        "timetable": "cron", "runner": "runner"}),
    ztick.GetTimetable: Over("GET", TIMETABLE, ONE),
    ztick.ListTimetables: Over("GET", "/v1/timetables", {"prefix": "prefix"}),
    ztick.PauseTimetable: Over("POST", f"{TIMETABLE}/pause", ONE),
    ztick.ResumeTimetable: Over("POST", f"{TIMETABLE}/resume", ONE),
    ztick.RemoveTimetable: Over("DELETE", TIMETABLE, ONE),
    ztick.RunTimetable: Over("POST", f"{TIMETABLE}/run", ONE),
    ztick.NextOfTimetable: Over("GET", f"{TIMETABLE}/next", ONE | {"count": "count"}),
    ztick.BackfillTimetable: Over("POST", f"{TIMETABLE}/backfill", ONE | {
        "from_s": "from", "until_s": "until", "is_preview": "preview"}),
}  # fmt: skip
GROUPS: dict[tuple[type, str], Any] = {
    (workq.Add, "options"): workq.AddOptions,
    (workq.ScheduleJob, "options"): workq.AddOptions,
    (workq.SetLimits, "limits"): workq.Limits,
    (workq.NoteProgress, "notes"): workq.WorkerNotes,
    **{
        (each, "key"): kestrel.Key
        for each in get_args(kestrel.Command)
        if "key" in getattr(each, "_fields", ())
    },
}


def names_of(command: Any) -> list[str]:
    is_struct = hasattr(command, "__struct_fields__")
    return list(command.__struct_fields__ if is_struct else command._fields)


def fields_of(command: type) -> set[str]:
    """With those of a group inside it: ``options.key``."""
    found: set[str] = set()
    for name in names_of(command):
        group = GROUPS.get((command, name))
        found |= {name} if group is None else {f"{name}.{each}" for each in names_of(group)}
    return found - NOT_GIVEN


def parameters_of(method: str, path: str) -> set[str]:
    operation = DOCUMENT["paths"][path][method.lower()]
    found = {each["name"] for each in operation.get("parameters", [])}
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        body = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        found |= set(body["properties"])
    return found


@pytest.mark.parametrize("port", [ztick, workq, kestrel])
def test_every_command_of_a_port_is_over_http_with_all_its_options(port):
    for command in get_args(port.Command):
        if command in SAME_BY_OTHERS:
            continue
        over = OVER_HTTP[command]
        assert set(over.parameters) == fields_of(command), command
        assert set(over.parameters.values()) <= parameters_of(over.method, over.path), command


def test_a_timetable_has_the_same_fields_on_the_port_and_over_http():
    own = {each.encode_name for each in msgspec.structs.fields(values.TimetableBody)}
    assert own == set(FIELDS)


# -- the options do over HTTP what they do on the port --


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(tmp_path_factory.mktemp("options"), settings=ALL_SERVICES) as running:
        yield running


def code(answer: tuple[int, Any]) -> tuple[int, str]:
    status, text = answer
    return status, json.loads(text)["code"]


def add(server: ScheduleProcess, queue: str, **more: Any) -> tuple[int, Any]:
    return ask(server, "POST", "/v1/work/jobs", {"queue": queue, "payload": "x"} | more)


def lease(server: ScheduleProcess, queue: str, **more: Any) -> Any:
    status, told = ask(server, "POST", "/v1/work/lease", {"queues": [queue]} | more)
    assert status == 200, told
    return told


def finish(server: ScheduleProcess, job: str, how: str = "complete", **body: Any) -> Any:
    return ask(server, "POST", f"/v1/work/jobs/{job}/{how}", body)


def test_several_jobs_are_leased_and_a_key_keeps_others_back(server):
    ask(server, "PUT", "/v1/work/queues/keyed/limits", {"key_concurrency": 1})
    for key in ("a", "a", "b", ""):
        assert add(server, "keyed", key=key)[0] == 201
    jobs = lease(server, "keyed", max=10, worker="me")["jobs"]
    assert len(jobs) == 3
    seen = [ask(server, "GET", f"/v1/work/jobs/{job['id']}")[1] for job in jobs]
    assert sorted(job.get("key", "") for job in seen) == ["", "a", "b"]
    assert {job["worker"] for job in seen} == {"me"}
    assert lease(server, "keyed") == {"job": None, "jobs": []}
    (job,) = [each["id"] for each in seen if each.get("key") == "a"]
    assert finish(server, job)[0] == 204
    assert lease(server, "keyed")["job"]["attempt"] == 1


def test_a_late_completion_of_an_earlier_attempt_is_refused(server):
    job = add(server, "attempts", max_fails=3)[1]["id"]
    first = lease(server, "attempts")["job"]
    assert finish(server, job, "fail", attempt=first["attempt"])[0] == 204
    second = lease(server, "attempts")["job"]
    assert (first["attempt"], second["attempt"], second["fails"]) == (1, 2, 1)
    for how in ("complete", "fail"):
        assert code(finish(server, job, how, attempt=1)) == (409, "leased_again")
    assert finish(server, job, attempt=2)[0] == 204


def test_a_finished_job_is_replaced_but_not_within_its_time(server):
    job = str(uuid4())
    assert add(server, "unique", id=job)[0] == 201
    assert code(add(server, "unique", id=job, replace="finished")) == (409, "duplicate_job")
    finish(server, lease(server, "unique")["job"]["id"])
    unique = {"replace": "finished", "unique_for_ms": 3_600_000}
    assert code(add(server, "unique", id=job, **unique)) == (409, "duplicate_job")
    same = {"payload": "1", "replace": "different"}
    assert add(server, "unique", id=job, **same)[0] == 201
    finish(server, lease(server, "unique")["job"]["id"])
    assert code(add(server, "unique", id=job, **same)) == (409, "duplicate_job")
    assert add(server, "unique", id=job, replace="finished")[0] == 201


def test_a_job_waits_for_others(server):
    parent = add(server, "parents")[1]["id"]
    child = add(server, "children", after=[parent])[1]["id"]
    seen = ask(server, "GET", f"/v1/work/jobs/{child}")[1]
    assert (seen["state"], seen["waits_for"], seen["created"]) == ("waiting", 1, None)
    page = ask(server, "GET", f"/console/work/{child}")
    assert page[0] == 200
    assert "for 1 other job." in str(page[1])
    assert lease(server, "children")["job"] is None
    finish(server, lease(server, "parents")["job"]["id"])
    assert lease(server, "children")["job"]["id"] == child
    failing = add(server, "parents")[1]["id"]
    for even_failed in (True, False):
        assert add(server, "children", after=[failing], even_failed=even_failed)[0] == 201
    finish(server, lease(server, "parents")["job"]["id"], "fail")
    assert len(lease(server, "children", max=5)["jobs"]) == 1
    assert code(add(server, "children", after=[str(uuid4())])) == (409, "unknown_parent")


@pytest.mark.parametrize(
    "body",
    [
        {"unique_for_ms": 5},
        {"even_failed": True},
        {"after": ["00000000-0000-4000-8000-000000000000"], "at": "2033-01-01T00:00:00Z"},
        {"after": ["00000000-0000-4000-8000-000000000000"], "payload": "x" * (512 * 1024 + 1)},
        {"id": str(UUID(int=1 << 78 | 2 << 62)), "after": [str(UUID(int=1 << 78 | 2 << 62))]},
        {"after": ["mail"]},
        {"replace": "always"},
        {"key": "two words"},
    ],
)
def test_options_that_contradict_each_other_are_refused(server, body):
    assert add(server, "wrong", **body)[0] == 400


def test_a_job_is_run_and_its_result_waited_for(server):
    def work() -> None:
        finish(server, lease(server, "asked", wait_ms=30_000)["job"]["id"], result="done")

    worker = threading.Thread(target=work)
    worker.start()
    status, told = ask(server, "POST", "/v1/work/run", {"queue": "asked", "payload": "p"})
    worker.join(60)
    assert (status, told["success"], told["result"]) == (200, True, "done")
    nothing = ask(server, "POST", "/v1/work/run", {"queue": "asked", "wait_ms": 1})
    assert code(nothing) == (408, "not_finished")


def test_several_items_are_read_at_once(server):
    queue = "/v1/fan-out/queues/many"
    for number in range(5):
        ask(server, "POST", f"{queue}/items", {"data": str(number)})
    assert code(ask(server, "POST", f"{queue}/read", {"max": 3})) == (400, "invalid_body")
    told = ask(server, "POST", f"{queue}/read", {"max": 3, "open": True})[1]
    assert [each["data"] for each in told["items"]] == ["0", "1", "2"]
    assert (told["read"], told["data"]) == (told["items"][0]["read"], "0")
    ends = ("confirm", "abort", "abort")
    for item, end in zip(told["items"], ends, strict=True):
        assert ask(server, "POST", f"/v1/fan-out/reads/{item['read']}/{end}")[0] == 204
    left = ask(server, "POST", f"{queue}/read", {"max": 100, "open": True})[1]["items"]
    assert sorted(each["data"] for each in left) == ["1", "2", "3", "4"]
    empty = ask(server, "POST", f"{queue}/read", {"max": 1, "open": True})[1]
    assert empty == {"found": False, "items": []}


def test_fan_out_queues_are_flushed_and_their_status_is_set(server):
    queue = "/v1/fan-out/queues/flushed"

    def items() -> int:
        return int(ask(server, "GET", queue)[1]["readers"][0]["items"])

    for _ in range(2):
        ask(server, "POST", f"{queue}/items", {"data": "x"})
    assert ask(server, "POST", f"{queue}/flush", {"expired": True})[0] == 204
    assert ask(server, "POST", "/v1/fan-out/flush", {"expired": True})[0] == 204
    assert items() == 2
    assert ask(server, "POST", "/v1/fan-out/flush", {})[0] == 204
    assert items() == 0
    assert ask(server, "GET", "/v1/fan-out/status")[1] == {"status": "UP"}
    assert ask(server, "PUT", "/v1/fan-out/status", {"status": "READONLY"})[0] == 200
    assert ask(server, "POST", f"{queue}/items", {"data": "x"})[0] == 503
    assert ask(server, "PUT", "/v1/fan-out/status", {"status": "UP"})[0] == 200
    assert ask(server, "POST", f"{queue}/items", {"data": "x"})[0] == 204


def test_steps_are_read_in_pages_of_about_a_megabyte(server):
    """All of a job's could be sixteen: clients that do not read would fill the server's memory."""
    assert add(server, "paged")[0] == 201
    job = lease(server, "paged")["job"]
    path = f"/v1/work/jobs/{job['id']}/steps"
    sizes = [1, 400_000, 400_000, 700_000, 700_000, 1, 1]
    for number, size in enumerate(sizes, 1):
        step = {"name": "s", "attempt": 1, "number": number, "value": "v" * size}
        assert ask(server, "POST", path, step)[0] == 204
    pages: list[list[int]] = []
    cursor: str | None = ""
    while cursor is not None:
        status, page = ask(server, "GET", f"{path}?limit=4&cursor={cursor}")
        assert status == 200
        pages.append([step["number"] for step in page["steps"]])
        cursor = page["next"]
    assert pages == [[1, 2, 3], [4], [5, 6, 7]]
    assert [len(ask(server, "GET", f"{path}?limit=2")[1]["steps"][1]["value"])] == [400_000]
    assert code(ask(server, "GET", f"{path}?cursor=!")) == (400, "invalid_cursor")
    finish(server, job["id"], attempt=1)


def test_steps_of_a_leased_job_are_recorded_once_and_shown(server):
    assert add(server, "stepped")[0] == 201
    job = lease(server, "stepped")["job"]
    path = f"/v1/work/jobs/{job['id']}/steps"
    charge = {"name": "charge", "attempt": 1, "value": "42"}
    binary = {"name": "charge", "attempt": 1, "number": 2, "value_base64": "/w=="}
    for step in (charge, charge | {"value": "43"}, binary):
        assert ask(server, "POST", path, step)[0] == 204
    steps = ask(server, "GET", path)[1]["steps"]
    assert [(step["name"], step["number"]) for step in steps] == [("charge", 1), ("charge", 2)]
    assert [steps[0]["value"], steps[1]["value_base64"]] == ["42", "/w=="]
    for wrong in ({"name": "a b"}, {"number": 0}, {"value_base64": "!"}):
        assert code(ask(server, "POST", path, charge | wrong)) == (400, "invalid_body"), wrong
    assert ask(server, "POST", path, charge | {"attempt": 2, "number": 3})[0] == 409
    assert finish(server, job["id"])[0] == 204
    assert ask(server, "POST", path, charge | {"number": 3})[0] in {404, 409}
