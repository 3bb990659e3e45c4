"""The actions of the console: read from a form, previewed, carried out, and audited.

    confirm page --signed form--> carry_out --handlers of /v1--> the writers --> ledger: who, what

Every action is one that the API has; the console only asks first.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import shlex
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from journeyman.protocols.workq.salts import salted_id
from journeyman.servers.http.console.reports import ReportRuns
from journeyman.servers.http.console.shown import error_line, payload_line
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import Handler, RouteCall, check_for_all
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.audits import Audits
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.fan_out import FlushBody
from journeyman.servers.http.wire import text_or_base64, time_text

MOST_IDS = 500
VIA = "console"
SHOWN_TARGETS = 10
AT_ONCE = 1_000  # jobs of a bulk command
MOST_ROUNDS = 1_000
MOST_NUMBER = 1e9
_WAITING = ("ready", "scheduled")
SHOWN_FIRINGS = 5
LIMIT_FIELDS = ("rate", "per_s", "concurrency", "key_rate", "key_per_s", "key_concurrency")
TIMETABLE_FIELDS = (
    *("cron", "every", "at_time", "tz", "retries", "overlap", "catch_up", "exclude", "runner"),
)
# The form shows these as chosen although the timetable does not say so.
_USUAL = {"overlap": "skip", "catch_up": "once"}


@dataclass(frozen=True, slots=True)
class Action:
    """``ids`` are what it is done to; the rest is what it needs beside."""

    name: str
    ids: list[str]
    title: str
    danger: bool = False
    fields: dict[str, str] = field(default_factory=dict)


Deed: TypeAlias = Callable[[RouteCall, Action], Awaitable[str]]  # it returns what was done


@dataclass(frozen=True, slots=True)
class _Kind:
    title: str
    danger: bool
    do: Deed
    fields: tuple[str, ...] = ()
    for_all: bool = False  # for tokens of all namespaces


class Actions:
    def __init__(
        self, backend: HttpBackend, version: VersionOne, audits: Audits, reports: ReportRuns
    ) -> None:
        self._backend = backend
        self._reports = reports
        self._audits = audits
        self._v1 = version
        work, schedule, timetables, fan_out = (
            *(version.work, version.schedule, version.timetables, version.fan_out),
        )
        paused, resumed = values.PausedBody(paused=True), values.PausedBody(paused=False)
        self._kinds = {
            "requeue": _Kind("Requeue dead jobs", False, _bulk(work.requeue_many, "requeued")),
            "requeue-all": _Kind(
                "Requeue all dead jobs of a queue", False,
                _bulk(work.requeue_many, "requeued", ("dead",)), ("queue", "error"),
            ),
            "delete-dead": _Kind(
                "Delete all dead jobs of a queue", True,
                _bulk(work.delete_many, "deleted", ("dead",)), ("queue", "error"),
            ),
            "drain": _Kind(
                "Drain a queue: cancel all jobs that wait in it", True,
                _bulk(work.cancel_many, "cancelled", _WAITING), ("queue",),
            ),
            "limit": _Kind("Set the limits of a queue", False, self._limit, LIMIT_FIELDS),
            "cancel": _Kind("Cancel jobs", True, _bulk(work.cancel_many, "cancelled")),
            "delete": _Kind("Delete jobs", True, _bulk(work.delete_many, "deleted")),
            "add": _Kind(
                "Add a job", False, self._add,
                ("queue", "payload", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails"),
            ),
            "fork": _Kind("Run again from a step, as a new job", False, self._fork, ("step",)),
            "pause": _Kind("Pause queues", False, _for_each(work.pause, "queue", "paused", paused)),
            "resume": _Kind(
                "Resume queues", False, _for_each(work.pause, "queue", "resumed", resumed)
            ),
            "run-now": _Kind("Run scheduled jobs now", False, self._run_now),
            "unschedule": _Kind(
                "Remove scheduled jobs", True, _for_each(schedule.remove_job, "id", "removed")
            ),
            "remove-rule": _Kind(
                "Remove rules", True, _for_each(schedule.remove_rule, "id", "removed")
            ),
            "plan": _Kind("Plan a job", False, self._plan, ("execution",)),
            "run-timetable": _Kind("Run timetables now", False, self._run_timetable),
            "pause-timetable": _Kind(
                "Pause timetables", False, _for_each(timetables.pause, "timetable", "paused")
            ),
            "resume-timetable": _Kind(
                "Resume timetables", False, _for_each(timetables.resume, "timetable", "resumed")
            ),
            "remove-timetable": _Kind(
                "Remove timetables", True, _for_each(timetables.remove, "timetable", "removed")
            ),
            "set-timetable": _Kind("Set a timetable", False, self._set_timetable, TIMETABLE_FIELDS),
            "backfill": _Kind("Backfill a timetable", False, self._backfill, ("from", "until")),
            "redrive": _Kind(
                "Send dead jobs of the past again", False, self._redrive, ("at", "queue", "error")
            ),
            "flush": _Kind("Flush readers: drop all that is unread", True, self._flush),
            "delete-reader": _Kind("Delete readers", True, self._delete_reader),
            "delete-queue": _Kind(
                "Delete fan-out queues", True, _for_each(fan_out.delete, "queue", "deleted queue")
            ),
            "verify": _Kind("Verify all logs", False, self._verify, for_all=True),
            "compact": _Kind("Compact the schedule's log", False, self._compact, for_all=True),
            "report": _Kind("Make a report", False, self._report, ("lake",), for_all=True),
            "clean": _Kind("Clean the work queue's log", False, self._clean, for_all=True),
        }  # fmt: skip

    def read(self, form: Mapping[str, Any]) -> Action:
        """Read an action from a query or a form."""
        name = str(form.get("action", ""))
        kind = self._kinds.get(name)
        if kind is None:
            raise ApiError(400, f"there is no action {name[:40]!r}", "unknown_action")
        get_all = getattr(form, "getall", None)
        ids = get_all("id", []) if get_all is not None else form.get("id", [])
        if len(ids) > MOST_IDS:
            raise ApiError(400, f"at most {MOST_IDS} at once", "too_many")
        fields = {key: str(form[key]) for key in kind.fields if form.get(key)}
        return Action(name, [str(each) for each in ids], kind.title, kind.danger, fields)

    async def preview(self, call: RouteCall, action: Action) -> list[str]:
        """Return what it would be done to, in words."""
        if action.name == "redrive":
            jobs = await self._dead_then(call, action, MOST_IDS)
            return [f"{job.id}  {job.queue}  {error_line(job.result)}"[:120] for job in jobs.jobs]
        if action.name == "set-timetable":
            return await self._preview_timetable(call, action)
        states = {"requeue-all": ("dead",), "delete-dead": ("dead",), "drain": _WAITING}
        if action.name not in states:
            return action.ids
        shown, queue = list[str](), action.fields.get("queue", "")
        counts = await self._v1.work.queue(_on(call, {"queue": queue}, values.MomentQuery()))
        for state in states[action.name]:
            query = values.WorkJobsQuery(
                queue=queue, state=state, error=action.fields.get("error", ""), limit=SHOWN_TARGETS
            )
            page = await self._v1.work.jobs(RouteCall(call.request, {}, query, None))
            shown += [f"{job.id}  {payload_line(job.payload)}"[:120] for job in page.jobs]
            if page.next:
                count = getattr(counts, state)
                all_ = "all that match" if action.fields.get("error") else f"{count} jobs"
                shown.append(f"… {all_} that are {state}")
        return shown

    async def _preview_timetable(self, call: RouteCall, action: Action) -> list[str]:
        """Say what changes, and when it would run next."""
        name, fields = await self._timetable_fields(call, action)
        before = await self._fields_of(call, name)
        shown = [
            f"{key}: {before.get(key, 'not set')} → {fields.get(key, 'not set')}"
            for key in sorted(before.keys() | fields.keys())
            if before.get(key) != fields.get(key)
        ]
        now = time_text(self._backend.clock.now_ns())
        firings = self._v1.past.firings(fields, now, SHOWN_FIRINGS)
        if not firings:
            shown.append("no further runs, or not a valid timetable")
        return shown + [f"runs {each.local}" for each in firings]

    async def _fields_of(self, call: RouteCall, name: str) -> dict[str, Any]:
        """Return the fields of a timetable as it is; nothing if there is none."""
        asked = _on(call, {"timetable": name}, values.MomentQuery())
        try:
            return dict((await self._v1.timetables.timetable(asked)).fields)
        except ApiError as error:
            if error.status != 404:
                raise
        return {}

    async def _timetable_fields(
        self, call: RouteCall, action: Action
    ) -> tuple[str, dict[str, Any]]:
        """The fields as the form has them; what it does not show stays as it is."""
        if len(action.ids) != 1 or not action.ids[0]:
            raise ApiError(400, "name: missing", "invalid_name")
        [name] = action.ids
        before = await self._fields_of(call, name)
        given: dict[str, Any] = dict(action.fields)
        if "at_time" in given:
            given["at"] = given.pop("at_time")
        if "retries" in given:
            given["retries"] = _whole_number(given["retries"])
        for key, split in (("exclude", str.split), ("runner", _shell_words)):
            if key in given:
                given[key] = split(given[key])
        for key, usual in _USUAL.items():
            if given.get(key) == usual and key not in before:
                del given[key]
        shown = {*TIMETABLE_FIELDS, "at"} - {"at_time"}
        if "runner" not in given:
            shown.discard("runner")
        return name, {key: each for key, each in before.items() if key not in shown} | given

    async def carry_out(self, call: RouteCall, action: Action) -> str:
        outcome = "failed"
        kind = self._kinds[action.name]
        try:
            if kind.for_all:
                check_for_all(call.token)
            outcome = await kind.do(call, action)
        except ApiError as error:
            outcome = f"refused: {error.message}"
            raise
        finally:
            await self._audit(call, action, outcome)
        return outcome

    # -- doing --

    async def _add(self, call: RouteCall, action: Action) -> str:
        numbers = ("ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails")
        given: dict[str, Any] = {
            name: _whole_number(text) for name, text in action.fields.items() if name in numbers
        }
        body = values.AddJob(
            queue=action.fields.get("queue", ""), payload=action.fields.get("payload", ""), **given
        )
        self._v1.work.check_body(body)
        added = await self._v1.work.add(_with(call, body))
        return f"added {added.id}"

    async def _fork(self, call: RouteCall, action: Action) -> str:
        name, _, number = action.fields.get("step", "").partition("#")
        body = values.ForkBody(name, _whole_number(number or "1"))
        self._v1.work.check_body(body)
        added = [
            await self._v1.work.fork(_on(call, {"job": each}, None, body)) for each in action.ids
        ]
        return f"added {', '.join(each.id for each in added)}"

    async def _limit(self, call: RouteCall, action: Action) -> str:
        numbers = {name: _number(action.fields.get(name, "0")) for name in LIMIT_FIELDS}
        body = values.QueueLimitsBody(
            rate=int(numbers["rate"]), per_ms=round(numbers["per_s"] * 1000),
            concurrency=int(numbers["concurrency"]), key_rate=int(numbers["key_rate"]),
            key_per_ms=round(numbers["key_per_s"] * 1000),
            key_concurrency=int(numbers["key_concurrency"]),
        )  # fmt: skip
        if not body.rate:
            body.per_ms = 0
        if not body.key_rate:
            body.key_per_ms = 0
        try:
            msgspec.convert(msgspec.to_builtins(body), values.QueueLimitsBody)
        except msgspec.ValidationError as error:
            raise ApiError(400, str(error), "invalid_body") from None
        return await _for_each(self._v1.work.limit, "queue", "limits set of", body)(call, action)

    async def _set_timetable(self, call: RouteCall, action: Action) -> str:
        name, fields = await self._timetable_fields(call, action)
        try:
            body = msgspec.convert(fields, values.TimetableBody)
        except msgspec.ValidationError as error:
            raise ApiError(400, str(error), "invalid_body") from None
        await self._v1.timetables.set(_on(call, {"timetable": name}, None, body))
        return f"set {name}"

    async def _flush(self, call: RouteCall, action: Action) -> str:
        for each in action.ids:
            queue, _, reader = each.partition("+")
            await self._v1.fan_out.flush(
                _on(call, {"queue": queue}, None, FlushBody(reader=reader))
            )
        return f"flushed {', '.join(action.ids)}"

    async def _run_now(self, call: RouteCall, action: Action) -> str:
        body = values.SetJob(execution=self._backend.clock.now_ns())
        planned = _for_each(self._v1.schedule.set_job, "id", "planned to run now:", body)
        return await planned(call, action)

    async def _plan(self, call: RouteCall, action: Action) -> str:
        body = values.SetJob(execution=action.fields.get("execution", ""))
        return await _for_each(self._v1.schedule.set_job, "id", "planned", body)(call, action)

    async def _run_timetable(self, call: RouteCall, action: Action) -> str:
        planned = []
        for each in action.ids:
            asked = RouteCall(call.request, {"timetable": each}, None, None)
            planned.append((await self._v1.timetables.run(asked)).job)
        return f"planned {', '.join(planned)}"

    async def _backfill(self, call: RouteCall, action: Action) -> str:
        done = 0
        body = values.BackfillBody(
            begin=action.fields.get("from", ""), until=action.fields.get("until", ""), preview=False
        )
        for each in action.ids:
            asked = RouteCall(call.request, {"timetable": each}, None, body)
            done += sum(row.runs for row in (await self._v1.timetables.backfill(asked)).rows)
        return f"{done} occurrences run again"

    async def _redrive(self, call: RouteCall, action: Action) -> str:
        """Send jobs again as new ones. Their ids follow from the old ones, so jobs that are sent
        twice are there once."""
        jobs = await self._dead_then(call, action, MOST_IDS)
        sent, salt = 0, self._backend.access.salt_of(call.prefix)
        for job in jobs.jobs:
            payload: dict[str, Any] = text_or_base64("payload", job.payload)
            body = values.AddJob(
                queue=job.queue, **payload,
                id=_id_of_redrive(job.id, action.fields.get("at", ""), salt), ttr_ms=job.ttr_ms,
                ttl_ms=job.ttl_ms, priority=job.priority, max_attempts=job.max_attempts,
                max_fails=job.max_fails,
            )  # fmt: skip
            try:
                await self._v1.work.add(_with(call, body))
                sent += 1
            except ApiError as error:
                if error.code != "duplicate_job":
                    raise
        return f"sent {sent} of {len(jobs.jobs)}; the others had been sent before"

    async def _dead_then(self, call: RouteCall, action: Action, limit: int) -> values.WorkJobs:
        if not action.fields.get("at"):
            raise ApiError(400, "at: missing time", "invalid_time")
        query = values.WorkJobsQuery(
            at=action.fields.get("at", ""), state="dead", queue=action.fields.get("queue", ""),
            error=action.fields.get("error", ""), limit=limit,
        )  # fmt: skip
        return await self._v1.work.jobs(RouteCall(call.request, {}, query, None))

    async def _delete_reader(self, call: RouteCall, action: Action) -> str:
        for each in action.ids:
            queue, _, reader = each.partition("+")
            path = {"queue": queue, "reader": reader}
            await self._v1.fan_out.delete_reader(RouteCall(call.request, path, None, None))
        return f"deleted reader {', '.join(action.ids)}"

    async def _verify(self, call: RouteCall, action: Action) -> str:  # noqa: ARG002 - as all of them
        found = await self._v1.log.verify(call)
        logs = [log for report in found.reports for log in report.get("logs", [])]
        count, live, dead, damaged = (
            sum(log.get(name, 0) for log in logs)
            for name in ("records", "live_bytes", "dead_bytes", "damaged_bytes")
        )
        state = "clean" if found.clean else "DAMAGED"
        return (
            f"{state}: {count} records in {len(logs)} logs; "
            f"{live} bytes live, {dead} dead, {damaged} damaged"
        )

    async def _compact(self, call: RouteCall, action: Action) -> str:  # noqa: ARG002 - as all of them
        return (await self._v1.log.compact(_with(call, values.ServiceBody("schedule")))).detail

    async def _clean(self, call: RouteCall, action: Action) -> str:  # noqa: ARG002 - as all of them
        return (await self._v1.log.compact(_with(call, values.ServiceBody("work")))).detail

    async def _report(self, call: RouteCall, action: Action) -> str:  # noqa: ARG002 - as all of them
        now, lake = time_text(self._backend.clock.now_ns()), action.fields.get("lake", "")
        return f"making {self._reports.begin(self._v1.log.places(), now, lake)}"

    async def _audit(self, call: RouteCall, action: Action, outcome: str) -> None:
        target = " ".join((*action.ids, *(f"{k}={v}" for k, v in action.fields.items())))
        await self._audits.note(call.who, VIA, action.name, target, outcome)


def _id_of_redrive(job_id: str, at: str, salt: bytes) -> str:
    digest = hashlib.blake2b(f"redrive {job_id} {at}".encode(), digest_size=16).digest()
    return str(uuid.UUID(bytes=salted_id(uuid.UUID(bytes=digest, version=4).bytes, salt)))


def _for_each(handler: Handler, key: str, done: str, body: Any = None) -> Deed:
    """Do this to every id, which is ``key`` of the path."""

    async def do(call: RouteCall, action: Action) -> str:
        # All at once, so that they share a batch and its sync; the first refusal is reported.
        calls = [handler(RouteCall(call.request, {key: each}, None, body)) for each in action.ids]
        for reply in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(reply, BaseException):
                raise reply
        return f"{done} {', '.join(action.ids)}"

    return do


def _bulk(handler: Handler, done: str, states: tuple[str, ...] = ("",)) -> Deed:
    """Do this to jobs by their ids, or to all of a queue and these states that match."""

    async def do(call: RouteCall, action: Action) -> str:
        queue, error = action.fields.get("queue", ""), action.fields.get("error", "")
        count, refused = 0, 0
        for state in states:
            for _ in range(MOST_ROUNDS):
                answer: values.BulkAnswer = await handler(
                    _with(
                        call,
                        values.BulkBody(
                            ids=action.ids, queue=queue, error=error, state=state or None
                        ),
                    )
                )
                count, refused = count + answer.done, refused + len(answer.refused)
                if action.ids or answer.done < AT_ONCE:
                    break
        note = f", refused {refused}: not in the state that this needs"
        return f"{done} {count}{note if refused else ''}"

    return do


def _on(call: RouteCall, path: dict[str, str], query: Any, body: Any = None) -> RouteCall:
    return RouteCall(call.request, path, query, body)


def _with(call: RouteCall, body: Any) -> RouteCall:
    return RouteCall(call.request, {}, None, body)


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ApiError(400, f"{text[:40]!r} is not a whole number", "invalid_body") from None


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= MOST_NUMBER:
        raise ApiError(400, f"{text[:40]!r} is not a number", "invalid_body")
    return number


def _shell_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ApiError(400, f"runner: {error}", "invalid_body") from None
