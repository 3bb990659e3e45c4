"""The commands that pages show, safe to paste into a shell whatever names and payloads hold.

Each function gives the command of `journeyman`, where there is one, and that of curl.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from journeyman.protocols.workq.replies import JobView, QueueView
from journeyman.servers.http.v1 import values
from journeyman.servers.http.wire import text_or_base64, time_text
from journeyman.timetables.run_options import OPTION_FIELDS, option_text

_NO_VALUE: tuple[Any, ...] = (None, "", [], 0)
_TOKEN = '-H "Authorization: Bearer $TOKEN"'


class ServerPlace(NamedTuple):
    """Where the server is, for the reader of the page."""

    origin: str
    needs_token: bool


def add_job(job: JobView, place: ServerPlace) -> list[str]:
    """Again, as a new job. What is not text has no command of `journeyman`."""
    body: dict[str, Any] = {"queue": job.queue, "ttr_ms": job.ttr_ms, "ttl_ms": job.ttl_ms}
    given = text_or_base64("payload", job.payload) | {
        name: getattr(job, name)
        for name in ("priority", "max_attempts", "max_fails", "retry_delay_ms")
    }
    body |= {name: value for name, value in given.items() if value not in _NO_VALUE}
    found = [_curl("POST", place, "/v1/work/jobs", body)]
    if "payload_base64" in body:
        return found
    words = ["journeyman", "add", "--lease", _seconds(job.ttr_ms), "--ttl", _seconds(job.ttl_ms)]
    if job.priority:
        words += ["--priority", str(job.priority)]
    if job.max_fails > 1:
        words += ["--retries", str(job.max_fails - 1)]
    return [_line([*words, "--", job.queue, job.payload.decode()]), *found]


def see_job(job_id: str, place: ServerPlace) -> list[str]:
    return [
        _line(["journeyman", "jobs", "show", job_id]),
        _curl("GET", place, f"/v1/work/jobs/{job_id}"),
    ]


def find_jobs(search: Any, place: ServerPlace) -> list[str]:
    """The work queue's part of a search."""
    query = {"queue": search.queue, "state": search.work_state, "error": search.error,
             "task": search.task, "text": search.looked_for}  # fmt: skip
    asked = urlencode({name: value for name, value in query.items() if value})
    found = [_curl("GET", place, f"/v1/work/jobs?{asked}" if asked else "/v1/work/jobs")]
    is_listed = search.work_state in ("ready", "scheduled", "dead")
    if search.queue and is_listed and not search.narrows:
        words = ["journeyman", "jobs", "ls", "--state", search.work_state, "--", search.queue]
        found.insert(0, _line(words))
    return found


def queue(view: QueueView, place: ServerPlace) -> list[str]:
    change, path = "resume" if view.paused else "pause", f"/v1/work/queues/{_part(view.name)}"
    return [
        _line(["journeyman", "jobs", "ls", "--", view.name]),
        _line(["journeyman", "queues", change, "--", view.name]),
        _curl("GET", place, path),
        _curl("PUT", place, f"{path}/paused", {"paused": not view.paused}),
    ]


def rule(view: values.Rule, place: ServerPlace) -> list[str]:
    body: dict[str, Any] = {"pattern": view.pattern, "runner": view.runner, "args": view.args}
    words = ["journeyman", "rules", "add"]
    if view.options:
        body["options"] = view.options
        for name, value in view.options.items():
            words += [f"--{name.replace('_', '-')}", option_text(value)]
    words += ["--", view.id, view.pattern, view.runner, *view.args]
    return [_line(words), _curl("PUT", place, f"/v1/schedule/rules/{_part(view.id)}", body)]


def scheduled_job(job: values.ScheduledJob, place: ServerPlace) -> list[str]:
    path, body = f"/v1/schedule/jobs/{_part(job.id)}", {"execution": time_text(job.execution_ns)}
    return [_curl("PUT", place, path, body), _curl("GET", place, path)]


def timetable(view: values.Timetable, place: ServerPlace) -> list[str]:
    fields = view.fields
    runner = fields.get("runner", [])
    words = ["journeyman", "timetable", "add"]
    for name, value in fields.items():
        if name != "runner":
            is_option = name in OPTION_FIELDS
            text = ",".join(value) if isinstance(value, list) and not is_option else ""
            text = text or option_text(value)
            words += [f"--{name.replace('_', '-')}", text]
    path = f"/v1/timetables/{_part(view.id)}"
    return [_line([*words, "--", view.id, *runner]), _curl("PUT", place, path, fields)]


def _curl(method: str, place: ServerPlace, path: str, body: Any = None) -> str:
    words = [] if method == "GET" else ["-X", method]
    if body is not None:
        text = msgspec.json.encode(body).decode()
        words += ["-H", "Content-Type: application/json", "--data-raw", text]
    head = f"curl {_TOKEN}" if place.needs_token else "curl"
    return f"{head} {_line([*words, place.origin + path])}"


def _line(arguments: Iterable[str]) -> str:
    return " ".join(map(shlex.quote, arguments))


def _part(name: str) -> str:
    return quote(name, safe="")


def _seconds(ms: int) -> str:
    return f"{ms / 1000:g}" if ms % 1000 else str(ms // 1000)
