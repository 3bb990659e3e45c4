"""What can be done from the console: read from a form, previewed, done, and audited; reports.

    confirm page --signed form--> carry_out --handlers of /v1--> the writers --> ledger: who, what

Every action is one that the API has; the console only asks first. HTML reports about the logs are
made by a child process and kept in the cache:

    begin() --> journeyman pipeline report LOGS... -o CACHE/.unfinished.html --> report-MOMENT.html

A lake that reads these logs has left its name beside them; a report can be made from it instead.
One at a time, on one core, for at most TIMEOUT_S; the newest MOST_KEPT are kept. The server itself
never imports Spark. A report is served under the policy that it carries (the digests of its own
style and script), in a sandbox: its script reaches neither the console nor the session.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import os
import re
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from journeyman.disk import disk_of
from journeyman.logs.holders import names_of_holders
from journeyman.protocols.workq.salts import salted_id
from journeyman.servers.http.console.shown import error_line
from journeyman.servers.http.routes import ApiError, Handler, RouteCall, check_for_all
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.all_routes import VersionOne
from journeyman.servers.http.v1.backend import Audits, HttpBackend
from journeyman.servers.http.wire import text_or_base64, time_text

MOST_IDS = 500
VIA = "console"
SHOWN_TARGETS = 10

TIMEOUT_S: Final = 900.0
MOST_KEPT: Final = 10
KEPT_ERROR_BYTES: Final = 2000
COMMAND: Final = (
    *(sys.executable, "-m", "journeyman", "pipeline", "report", "--quiet"),
    *("--master", "local[1]", "--force"),
)
_LAKE: Final = "lake "  # what a lake calls itself beside a log
_UNFINISHED: Final = ".unfinished.html"
_NAME: Final = re.compile(r"report-\d{8}T\d{6}Z\.html")
_POLICY: Final = re.compile(
    r"<meta http-equiv=\"Content-Security-Policy\" content=\"([-\w ;:'+/=]+)\">"
)
_NO_SCRIPT: Final = "default-src 'none'"
_SANDBOX: Final = "; frame-ancestors 'none'; sandbox allow-scripts"


@dataclass(frozen=True, slots=True)
class Action:
    """``ids`` are what it is done to; the rest is what it needs beside."""

    name: str
    ids: list[str]
    title: str
    danger: bool = False
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Kind:
    title: str
    danger: bool
    do: Callable[[RouteCall, Action], Awaitable[str]]
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
        self._kinds = {
            "requeue": _Kind("Requeue dead jobs", False, self._requeue),
            "requeue-all": _Kind(
                "Requeue all dead jobs of a queue", False, self._requeue_all, ("queue", "error")
            ),
            "cancel": _Kind("Cancel jobs", True, self._cancel),
            "delete": _Kind("Delete jobs", True, self._delete),
            "add": _Kind(
                "Add a job", False, self._add,
                ("queue", "payload", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails"),
            ),
            "pause": _Kind("Pause queues", False, self._pause),
            "resume": _Kind("Resume queues", False, self._resume),
            "run-now": _Kind("Run scheduled jobs now", False, self._run_now),
            "unschedule": _Kind("Remove scheduled jobs", True, self._unschedule),
            "remove-rule": _Kind("Remove rules", True, self._remove_rule),
            "plan": _Kind("Plan a job", False, self._plan, ("execution",)),
            "run-timetable": _Kind("Run timetables now", False, self._run_timetable),
            "pause-timetable": _Kind("Pause timetables", False, self._pause_timetable),
            "resume-timetable": _Kind("Resume timetables", False, self._resume_timetable),
            "remove-timetable": _Kind("Remove timetables", True, self._remove_timetable),
            "backfill": _Kind("Backfill a timetable", False, self._backfill, ("from", "until")),
            "redrive": _Kind(
                "Send dead jobs of the past again", False, self._redrive, ("at", "queue", "error")
            ),
            "delete-reader": _Kind("Delete readers", True, self._delete_reader),
            "delete-queue": _Kind("Delete fan-out queues", True, self._delete_queue),
            "verify": _Kind("Verify all logs", False, self._verify, for_all=True),
            "compact": _Kind("Compact the schedule's log", False, self._compact, for_all=True),
            "report": _Kind("Make a report", False, self._report, ("lake",), for_all=True),
            "clean": _Kind("Clean the work queue's log", False, self._clean, for_all=True),
        }  # fmt: skip

    def read(self, given: Mapping[str, Any]) -> Action:
        """From a query or a form."""
        name = str(given.get("action", ""))
        kind = self._kinds.get(name)
        if kind is None:
            raise ApiError(400, f"there is no action {name[:40]!r}", "unknown_action")
        get_all = getattr(given, "getall", None)
        ids = get_all("id", []) if get_all is not None else given.get("id", [])
        if len(ids) > MOST_IDS:
            raise ApiError(400, f"at most {MOST_IDS} at once", "too_many")
        fields = {key: str(given[key]) for key in kind.fields if given.get(key)}
        return Action(name, [str(each) for each in ids], kind.title, kind.danger, fields)

    async def preview(self, call: RouteCall, action: Action) -> list[str]:
        """Return what it would be done to, in words."""
        if action.name == "redrive":
            jobs = await self._dead_then(call, action, MOST_IDS)
            return [f"{job.id}  {job.queue}  {error_line(job.result)}"[:120] for job in jobs.jobs]
        if action.name != "requeue-all":
            return action.ids
        query = values.WorkJobsQuery(
            queue=action.fields.get("queue", ""), state="dead",
            error=action.fields.get("error", ""), limit=SHOWN_TARGETS,
        )  # fmt: skip
        page = await self._v1.work.jobs(RouteCall(call.request, {}, query, None))
        shown = [f"{job.id}  {error_line(job.result)}"[:120] for job in page.jobs]
        return [*shown, "… and all others that match"] if page.next else shown

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

    async def _requeue(self, call: RouteCall, action: Action) -> str:
        body = values.BulkBody(ids=action.ids)
        return _said("requeued", await self._v1.work.requeue_many(_with(call, body)))

    async def _cancel(self, call: RouteCall, action: Action) -> str:
        body = values.BulkBody(ids=action.ids)
        return _said("cancelled", await self._v1.work.cancel_many(_with(call, body)))

    async def _requeue_all(self, call: RouteCall, action: Action) -> str:
        body = values.BulkBody(
            queue=action.fields.get("queue", ""), error=action.fields.get("error", "")
        )
        return _said("requeued", await self._v1.work.requeue_many(_with(call, body)))

    async def _delete(self, call: RouteCall, action: Action) -> str:
        body = values.BulkBody(ids=action.ids)
        return _said("deleted", await self._v1.work.delete_many(_with(call, body)))

    async def _add(self, call: RouteCall, action: Action) -> str:
        numbers = ("ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails")
        given: dict[str, Any] = {
            name: _whole(text) for name, text in action.fields.items() if name in numbers
        }
        body = values.AddJob(
            queue=action.fields.get("queue", ""), payload=action.fields.get("payload", ""), **given
        )
        self._v1.work.check_add(body)
        added = await self._v1.work.add(_with(call, body))
        return f"added {added.id}"

    async def _pause(self, call: RouteCall, action: Action) -> str:
        return await self._set_paused(call, action, True)

    async def _resume(self, call: RouteCall, action: Action) -> str:
        return await self._set_paused(call, action, False)

    async def _set_paused(self, call: RouteCall, action: Action, paused: bool) -> str:
        body = values.PausedBody(paused=paused)
        paths = [{"queue": name} for name in action.ids]
        await _for_each(call, self._v1.work.pause, paths, body)
        return f"{'paused' if paused else 'resumed'} {', '.join(action.ids)}"

    async def _run_now(self, call: RouteCall, action: Action) -> str:
        body = values.SetJob(execution=self._backend.clock.now_ns())
        await _for_each(call, self._v1.schedule.set_job, _by_id(action), body)
        return f"{len(action.ids)} planned to run now"

    async def _plan(self, call: RouteCall, action: Action) -> str:
        body = values.SetJob(execution=action.fields.get("execution", ""))
        await _for_each(call, self._v1.schedule.set_job, _by_id(action), body)
        return f"planned {', '.join(action.ids)}"

    async def _unschedule(self, call: RouteCall, action: Action) -> str:
        await _for_each(call, self._v1.schedule.remove_job, _by_id(action))
        return f"removed {len(action.ids)}"

    async def _remove_rule(self, call: RouteCall, action: Action) -> str:
        await _for_each(call, self._v1.schedule.remove_rule, _by_id(action))
        return f"removed {', '.join(action.ids)}"

    async def _run_timetable(self, call: RouteCall, action: Action) -> str:
        jobs = [(await self._v1.timetables.run(_of(call, each))).job for each in action.ids]
        return f"planned {', '.join(jobs)}"

    async def _pause_timetable(self, call: RouteCall, action: Action) -> str:
        for each in action.ids:
            await self._v1.timetables.pause(_of(call, each))
        return f"paused {', '.join(action.ids)}"

    async def _resume_timetable(self, call: RouteCall, action: Action) -> str:
        for each in action.ids:
            await self._v1.timetables.resume(_of(call, each))
        return f"resumed {', '.join(action.ids)}"

    async def _remove_timetable(self, call: RouteCall, action: Action) -> str:
        for each in action.ids:
            await self._v1.timetables.remove(_of(call, each))
        return f"removed {', '.join(action.ids)}"

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
        """As new jobs, whose ids follow from the old ones: sent twice, they are there once."""
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

    async def _delete_queue(self, call: RouteCall, action: Action) -> str:
        for queue in action.ids:
            await self._v1.fan_out.delete(RouteCall(call.request, {"queue": queue}, None, None))
        return f"deleted queue {', '.join(action.ids)}"

    async def _verify(self, call: RouteCall, action: Action) -> str:  # noqa: ARG002 - as all of them
        found = await self._v1.log.verify(call)
        logs = [log for report in found.reports for log in report.get("logs", [])]
        count = sum(log.get("records", 0) for log in logs)
        damaged = sum(log.get("damaged_bytes", 0) for log in logs)
        live = sum(log.get("live_bytes", 0) for log in logs)
        dead = sum(log.get("dead_bytes", 0) for log in logs)
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


async def _for_each(
    call: RouteCall, do: Handler, paths: list[dict[str, str]], body: Any = None
) -> None:
    """All at once, so that they share a batch and its sync; the first refusal is reported."""
    calls = [do(RouteCall(call.request, path, None, body)) for path in paths]
    for reply in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(reply, BaseException):
            raise reply


def _by_id(action: Action) -> list[dict[str, str]]:
    return [{"id": each} for each in action.ids]


def _of(call: RouteCall, timetable: str) -> RouteCall:
    return RouteCall(call.request, {"timetable": timetable}, None, None)


def _with(call: RouteCall, body: Any) -> RouteCall:
    return RouteCall(call.request, {}, None, body)


def _said(what: str, answer: values.BulkAnswer) -> str:
    if not answer.refused:
        return f"{what} {answer.done}"
    return f"{what} {answer.done}, refused {len(answer.refused)}: not in the state that this needs"


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ApiError(400, f"{text[:40]!r} is not a whole number", "invalid_body") from None


class KeptReport(NamedTuple):
    name: str
    made_ns: int
    size: int


def lakes_of(places: Mapping[str, str]) -> list[str]:
    """Lakes that read these logs, in directories of this machine or at URIs. Blocks."""
    found = set()
    for place in places.values():
        disk = disk_of(place)
        with suppress(OSError):
            directory = place if disk.is_dir(place) else os.path.dirname(place)
            found |= set(names_of_holders(disk, directory))
    lakes = {who.removeprefix(_LAKE) for who in found if who.startswith(_LAKE)}
    return sorted(lake for lake in lakes if "://" in lake or os.path.isdir(lake))


class ReportRuns:
    def __init__(self, directory: str, command: tuple[str, ...] = COMMAND) -> None:
        self.directory = directory
        self._command = command
        self._task: asyncio.Task[None] | None = None
        self.error = ""  # why the last one was not made

    @property
    def can_make(self) -> bool:
        return importlib.util.find_spec("pyspark") is not None

    @property
    def is_making(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, places: Mapping[str, str], moment: str, lake: str = "") -> str:
        """The name that it will have. ``moment``: RFC 3339. ApiError: one is being made."""
        if lake and lake not in lakes_of(places):
            raise ApiError(404, "no lake of this name reads these logs")
        if self.is_making:
            raise ApiError(409, "a report is being made; wait for it", "busy")
        if not self.can_make:
            raise ApiError(409, "Spark is not installed: pip install 'journeyman[spark]'")
        name = f"report-{re.sub('[-:]', '', moment[:19])}Z.html"
        logs = [place for place in places.values() if disk_of(place).exists(place)]
        source = ["--lake", lake] if lake else logs
        self._task = asyncio.get_running_loop().create_task(self._make(source, name))
        return name

    async def _make(self, source: list[str], name: str) -> None:
        self.error = ""
        unfinished = os.path.join(self.directory, _UNFINISHED)
        try:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            self.error = await self._run([*source, "--output", unfinished])
            if not self.error:
                os.replace(unfinished, os.path.join(self.directory, name))
                for old in self.kept()[MOST_KEPT:]:
                    os.remove(os.path.join(self.directory, old.name))
        except TimeoutError:
            self.error = f"not finished within {TIMEOUT_S:.0f} s"
        except OSError as error:
            self.error = f"{self.directory}: {error.strerror or error}"

    async def _run(self, arguments: list[str]) -> str:
        """Empty: it went well."""
        process = await asyncio.create_subprocess_exec(
            *self._command, *arguments, start_new_session=True,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        said = b""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while chunk := await process.stderr.read(4096):
                    said = (said + chunk)[-KEPT_ERROR_BYTES:]
                status = await process.wait()
        finally:  # Spark's own process as well
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        words = said.decode(errors="replace").strip()
        return "" if status == 0 else words or f"ended with status {status}"

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    # -- what there is --

    def kept(self) -> list[KeptReport]:
        """Newest first. Blocks."""
        found = []
        with suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for each in entries:
                if _NAME.fullmatch(each.name):
                    facts = each.stat()
                    found.append(KeptReport(each.name, facts.st_mtime_ns, facts.st_size))
        return sorted(found, reverse=True)

    def read(self, name: str) -> tuple[str, str]:
        """Its text, and the policy to serve it under. Blocks."""
        if not _NAME.fullmatch(name):
            raise ApiError(404, "there is no such report")
        try:
            with open(os.path.join(self.directory, name), encoding="utf-8") as file:
                text = file.read()
        except FileNotFoundError:
            raise ApiError(404, "there is no such report") from None
        policy = _POLICY.search(text, 0, 4096)
        return text, (_NO_SCRIPT if policy is None else policy[1]) + _SANDBOX
