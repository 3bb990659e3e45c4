"""Everything that version 1 of the HTTP API can do, done once, through a client of any making.

A client has one function: it calls an operation by its id. A test makes one out of the API's own
document; a client that a generator made takes the same trip:

    openapi-python-client generate --url http://127.0.0.1:5679/v1/openapi.json
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

STREAMS = {"events.get", "log_tail.get"}  # they never end


class ApiClient(Protocol):
    def call(self, operation: str, body: Any = None, /, **parameters: Any) -> Any:
        """The answer of a call that must succeed; parameters are those of path and query."""


def go_round(client: ApiClient) -> None:
    look_at_the_server(client)
    plan_and_run(client)
    repeat_by_timetables(client)
    do_jobs(client)
    record_steps(client)
    change_many(client)
    fan_out(client)
    look_at_logs_and_figures(client)


def look_at_the_server(client: ApiClient) -> None:
    for operation in ("health.get", "ready.get", "figures.get", "settings.get", "tokens.get"):
        assert client.call(operation)
    assert client.call("me.get")["may_write"] is True


def plan_and_run(client: ApiClient) -> None:
    rule = {"pattern": "trip.", "runner": "shell", "args": ["true"]}
    assert client.call("schedule_rules.set", rule, id="trip-rule")["runner"] == "shell"
    assert client.call("schedule_rules.get", id="trip-rule")["pattern"] == "trip."
    [listed] = client.call("schedule_rules.list", prefix="trip-")["rules"]
    assert listed["args"] == ["true"]
    when = {"execution": "2039-05-18T03:33:20Z"}
    client.call("schedule_jobs.set", when, id="trip.job")
    assert client.call("schedule_jobs.get", id="trip.job")["status"] == "planned"
    [job] = client.call("schedule_jobs.list", prefix="trip.", status="planned", limit=5)["jobs"]
    assert job["execution"].startswith("2039-05-18T03:33:20")
    assert client.call("schedule_records.get", id="trip.job")["records"]
    client.call("schedule_jobs.delete", id="trip.job")
    client.call("schedule_rules.delete", id="trip-rule")
    assert client.call("schedule_runs.list", limit=5)["runs"] == []


def repeat_by_timetables(client: ApiClient) -> None:
    fields = {"every": "1d", "runner": ["shell", "true"]}
    client.call("timetables.set", fields, timetable="trip-daily")
    assert client.call("timetables.get", timetable="trip-daily")["state"] == "active"
    [listed] = client.call("timetables.list", prefix="trip-")["timetables"]
    assert listed["fields"]["every"] == "1d"
    assert len(client.call("timetables.get_next", timetable="trip-daily", count=3)["firings"]) == 3
    client.call("timetables.pause", timetable="trip-daily")
    client.call("timetables.resume", timetable="trip-daily")
    planned = client.call("timetables.run", timetable="trip-daily")["job"]
    assert planned.startswith("trip-daily@")
    span = {"from": "2026-01-01", "until": "2026-01-02", "preview": True}
    assert client.call("timetables.backfill", span, timetable="trip-daily")["preview"] is True
    client.call("timetables.delete", timetable="trip-daily")


def do_jobs(client: ApiClient) -> None:
    payload = '{"v":1,"task":"trip.task","args":[1],"kwargs":{}}'
    job = add(client, payload=payload, max_fails=3)
    leased = client.call("work.lease", {"queues": ["trip"], "worker": "trip-1"})["job"]
    assert (leased["id"], leased["payload"]) == (job, payload)
    assert client.call("workers.list", limit=5)["workers"] == []  # it said nothing about itself
    client.call("jobs.touch", {"ttr_ms": 60_000}, job=job)
    client.call("jobs.progress", {"done": 1, "total": 2, "log": ["half"]}, job=job)
    client.call("jobs.fail", {"result": "no", "delay_ms": 0}, job=job)
    client.call("work.lease", {"queues": ["trip"]})
    client.call("jobs.complete", {"result": "yes"}, job=job)
    assert client.call("jobs.get_result", job=job, wait_ms=0)["result"] == "yes"
    assert client.call("jobs.get", job=job)["state"] == "completed"
    [found] = client.call("jobs.list", queue="trip", state="done", text="trip.task(1")["jobs"]
    assert found["id"] == job
    assert client.call("facets.get", queue="trip")["states"]["completed"] == 1
    assert client.call("jobs.get_records", job=job)["records"][-1]["kind"] == "complete"
    cancelled = add(client)
    client.call("jobs.cancel", job=cancelled)
    client.call("jobs.requeue", job=cancelled)
    client.call("jobs.delete", job=cancelled)
    client.call("queues.set_paused", {"paused": True}, queue="trip")
    client.call("queues.set_paused", {"paused": False}, queue="trip")
    client.call("queues.set_limits", {"concurrency": 9}, queue="trip")
    assert client.call("queues.get", queue="trip")["limits"]["concurrency"] == 9
    assert client.call("queues.list", prefix="trip")["queues"][0]["name"] == "trip"
    with ThreadPoolExecutor(1) as other:
        body = {"queue": "trip-run", "payload": "p", "wait_ms": 30_000}
        running = other.submit(client.call, "work.run", body)
        asked = {"queues": ["trip-run"], "wait_ms": 30_000}
        job = client.call("work.lease", asked)["job"]["id"]
        client.call("jobs.complete", {"result": "ran"}, job=job)
        assert running.result()["result"] == "ran"


def record_steps(client: ApiClient) -> None:
    job = add(client, queue="trip-steps")
    client.call("work.lease", {"queues": ["trip-steps"]})
    client.call("jobs.steps", {"name": "charge", "attempt": 1, "value": "42"}, job=job)
    [step] = client.call("jobs.get_steps", job=job)["steps"]
    assert (step["name"], step["value"]) == ("charge", "42")
    wait = {"wait": {"step": "paid", "event": "trip.paid", "within_ms": 60_000}, "attempt": 1}
    client.call("jobs.park", wait, job=job)
    client.call("work_events.set", {"value": "paid"}, event="trip.paid")
    assert client.call("work_events.get", event="trip.paid")["value"] == "paid"
    client.call("work.lease", {"queues": ["trip-steps"]})
    client.call("jobs.complete", {}, job=job)
    assert client.call("jobs.fork", {"step": "charge"}, job=job)["id"] != job


def change_many(client: ApiClient) -> None:
    dead = [add(client, queue="trip-many") for _ in range(2)]
    for job in dead:
        client.call("jobs.fail", {"result": "no", "final": True}, job=job)
    chosen = {"queue": "trip-many", "state": "dead"}
    assert client.call("work.requeue", chosen)["done"] == 2
    assert client.call("work.cancel", {"ids": dead[:1]})["done"] == 1
    assert client.call("work.delete", {"ids": dead})["done"] == 2


def fan_out(client: ApiClient) -> None:
    asked = {"reader": "late", "open": True}
    client.call("fan_out_queues.read", asked, queue="trip_fan")
    for text in ("one", "two"):
        client.call("fan_out_queues.items", {"data": text}, queue="trip_fan")
    read = client.call("fan_out_queues.read", asked, queue="trip_fan")
    client.call("fan_out_reads.abort", read=read["read"])
    read = client.call("fan_out_queues.read", asked, queue="trip_fan")
    assert read["data"] == "one"
    client.call("fan_out_reads.confirm", read=read["read"])
    [reader] = client.call("fan_out_queues.get", queue="trip_fan")["readers"]
    assert (reader["name"], reader["items"]) == ("late", 1)
    assert client.call("fan_out_queues.list", prefix="trip_")["queues"][0]["name"] == "trip_fan"
    client.call("fan_out_queues.flush", {"reader": "late"}, queue="trip_fan")
    client.call("fan_out.flush", {"expired": True})
    client.call("fan_out_queues.delete_reader", queue="trip_fan", reader="late")
    client.call("fan_out_queues.delete", queue="trip_fan")
    status = client.call("fan_out_status.get")["status"]
    client.call("fan_out_status.set", {"status": status})


def look_at_logs_and_figures(client: ApiClient) -> None:
    assert client.call("log_files.list", limit=5)["files"]
    assert client.call("log_records.get", service="work", limit=5)["records"]
    assert client.call("log.verify")["clean"] is True
    assert client.call("log.compact", {"service": "schedule"})["service"] == "schedule"
    now = client.call("figures.get")["time"]
    assert client.call("past_work.get", at=now)["queues"]
    span = {"from": "2026-01-01T00:00:00Z", "until": now}
    assert client.call("past_work_changes.get", **span)["changed"] > 0
    assert client.call("past_schedule.get", at=now)
    job = client.call("archive.list", status="completed", limit=1)["jobs"][0]["id"]
    assert client.call("archive_counts.get")
    assert client.call("archive.get", job=job)
    assert client.call("series.get", of="task:trip.task", figure="completed,run_p99")["times_s"]
    assert client.call("summaries.list", by="queue", sort="-run_p99", limit=5)["rows"]
    assert client.call("tasks.list")["rows"][0]["name"] == "trip.task"
    assert client.call("tasks.get", name="trip.task")["summary"]["completed"] == 1
    assert client.call("summaries.get", of="queue", name="trip")["summary"]["completed"] == 1


def add(client: ApiClient, *, queue: str = "trip", **more: Any) -> str:
    return str(client.call("jobs.add", {"queue": queue, **more})["id"])
