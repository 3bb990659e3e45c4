"""The schedule over HTTP, version 1: jobs, rules and runs; timetables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any

import msgspec
from cronsim import CronSim, CronSimError

from journeyman.engines.ztick import messages
from journeyman.engines.ztick.browsing import PageJobs, PageRules, PageTimetables
from journeyman.errors import EncodeError, TimetableError
from journeyman.formats.ztick import CODEC, JobSet, Record, RuleSet, Status
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.grammar import (
    read_run_options,
    read_runner,
    read_timetable,
    runner_words,
    runners_of,
)
from journeyman.servers.http.fields import cursor_of, moment_of_query, read_cursor, read_moment
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.ztick.runs import EndedRun
from journeyman.timetables.run_options import RunOptions
from journeyman.units import NS_PER_MS, NS_PER_S

_STATUSES = {status.word: status for status in Status}
_NO_ID = b""
_route = partial(Route, tag="schedule")

_ANY = datetime(2026, 1, 1)  # noqa: DTZ001 - words depend on no moment, and no zone
_timed = partial(Route, tag="timetables")


class ScheduleRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        jobs, rules = "/v1/schedule/jobs", "/v1/schedule/rules"
        return [
            _route("GET", jobs, self.jobs, "Jobs by time", values.ScheduledJobs,
                   query=values.ScheduledJobsQuery, errors=(422,)),
            _route("PUT", f"{jobs}/{{id}}", self.set_job, "Plan a job", values.ScheduledJob,
                   body=values.SetJob, is_traffic=True),
            _route("GET", f"{jobs}/{{id}}", self.job, "A job", values.ScheduledJob,
                   query=values.MomentQuery, errors=(404, 422)),
            _route("DELETE", f"{jobs}/{{id}}", self.remove_job, "Remove a job", errors=(404,)),
            _route("GET", rules, self.rules, "Rules by id", values.Rules,
                   query=values.NamesAtQuery, errors=(422,)),
            _route("PUT", f"{rules}/{{id}}", self.set_rule, "Set a rule", values.Rule,
                   body=values.SetRuleBody, has_secrets=True, errors=(409, 422)),
            _route("GET", f"{rules}/{{id}}", self.rule, "A rule", values.Rule,
                   query=values.MomentQuery, errors=(404, 422)),
            _route("DELETE", f"{rules}/{{id}}", self.remove_rule, "Remove a rule", errors=(404,)),
            _route("GET", "/v1/schedule/runs", self.runs, "The last runs, newest first",
                   values.RunsPage, query=values.RunsQuery),
        ]  # fmt: skip

    # -- jobs --

    async def jobs(self, call: RouteCall) -> values.ScheduledJobs:
        query: values.ScheduledJobsQuery = call.query
        page = await self._backend.page_jobs(
            call,
            PageJobs(
                query.prefix,
                (_STATUSES[query.status],) if query.status else tuple(Status),
                query.limit,
                read_cursor(query.cursor),
                query.order.startswith("-"),
                query.text,
            ),
            moment_of_query(query.at),
        )
        jobs = [values.ScheduledJob(id_, status.word, ns) for id_, status, ns in page.jobs]
        return values.ScheduledJobs(jobs, cursor_of(page.after))

    async def set_job(self, call: RouteCall) -> values.ScheduledJob:
        identifier = call.path["id"]
        execution_ns = read_moment(call.body.execution, "execution")
        _check(JobSet(identifier, execution_ns, Status.PLANNED))
        await self._backend.ask_schedule(call, commands.Set(_NO_ID, identifier, execution_ns))
        return values.ScheduledJob(identifier, Status.PLANNED.word, execution_ns)

    async def job(self, call: RouteCall) -> values.ScheduledJob:
        asked = commands.Get(_NO_ID, call.path["id"])
        state = await self._backend.ask_schedule(call, asked, moment_of_query(call.query.at))
        return values.ScheduledJob(call.path["id"], state.status.word, state.execution_ns)

    async def remove_job(self, call: RouteCall) -> None:
        await self._backend.ask_schedule(call, commands.Remove(_NO_ID, call.path["id"]))

    # -- rules --

    async def rules(self, call: RouteCall) -> values.Rules:
        query: values.NamesAtQuery = call.query
        after = (read_cursor(query.cursor) or b"").decode(errors="replace")
        asked = PageRules(query.prefix, after, query.limit + 1)
        at_ns = moment_of_query(query.at)
        listing: messages.RuleListing = await self._backend.ask_schedule(call, asked, at_ns)
        found = listing.rules
        shown = found[: query.limit]
        last = shown[-1].identifier.encode() if len(found) > len(shown) else None
        rows = [rule_seen(rule, listing.options.get(rule.identifier)) for rule in shown]
        return values.Rules(rows, cursor_of(last))

    async def set_rule(self, call: RouteCall) -> values.Rule:
        body: values.SetRuleBody = call.body
        runner = read_runner([body.runner, *body.args])
        if isinstance(runner, str):
            raise ApiError(422, runner, "invalid_runner")
        try:
            options = read_run_options(body.options, runner)
        except TimetableError as error:
            raise ApiError(422, str(error), "invalid_options") from None
        rule = RuleSet(call.path["id"], body.pattern, runner)
        command = commands.SetRule(_NO_ID, rule.identifier, rule.pattern, runner, options)
        _check_runners(call, command)
        _check(rule)
        reply = await self._backend.ask_schedule(call, command)
        if isinstance(reply, messages.TimetableRefused):
            raise ApiError(409, reply.reason, "options_refused")
        return rule_seen(rule, options)

    async def rule(self, call: RouteCall) -> values.Rule:
        identifier = call.path["id"]  # the first of those that begin with it
        asked = PageRules(identifier, limit=1)
        at_ns = moment_of_query(call.query.at)
        listing: messages.RuleListing = await self._backend.ask_schedule(call, asked, at_ns)
        if listing.rules and listing.rules[0].identifier == identifier:
            return rule_seen(listing.rules[0], listing.options.get(identifier))
        raise ApiError(404, f"there is no rule {json.dumps(call.path['id'])}", "rule_not_found")

    async def remove_rule(self, call: RouteCall) -> None:
        await self._backend.ask_schedule(call, commands.RemoveRule(_NO_ID, call.path["id"]))

    # -- runs --

    async def runs(self, call: RouteCall) -> values.RunsPage:
        """The cursor is how many were passed; newer runs move the pages on."""
        query: values.RunsQuery = call.query
        begin = int.from_bytes((read_cursor(query.cursor) or b"")[:4])
        until_ns = moment_of_query(query.at)
        since_ns = read_moment(query.since, "since") if query.since else None

        def is_asked_for(run: EndedRun) -> bool:
            return (
                run.identifier.startswith(query.prefix)
                and run.identifier.startswith(call.prefix)
                and query.success in (None, run.success)
                and (until_ns is None or run.started_ns <= until_ns)
                and (since_ns is None or run.started_ns >= since_ns)
            )

        def page_of(runs: Iterable[EndedRun]) -> list[EndedRun]:
            return list(islice(filter(is_asked_for, runs), begin, begin + query.limit + 1))

        older = None if since_ns is None else self._backend.schedule.runs_since(since_ns)
        if older is None:
            shown = page_of(self._backend.schedule.runs.latest())
        else:
            async with self._backend.histories.turn(call):
                shown = await asyncio.to_thread(page_of, older)
        more = (begin + query.limit).to_bytes(4) if len(shown) > query.limit else None
        return values.RunsPage([run_seen(run) for run in shown[: query.limit]], cursor_of(more))


def rule_seen(rule: RuleSet, options: RunOptions | None) -> values.Rule:
    name, *args = runner_words(rule.runner)
    fields = {} if options is None else options.fields()
    return values.Rule(rule.identifier, rule.pattern, name, args, fields)


def _check_runners(call: RouteCall, command: commands.SetRule | commands.SetTimetable) -> None:
    """A token may not be allowed to use some of them."""
    for runner in () if call.token is None else runners_of(command):
        if call.token is not None and (reason := call.token.refuses(runner)):
            raise ApiError(403, reason, "runner_not_allowed")


def run_seen(run: EndedRun) -> values.Run:
    return values.Run(
        run.identifier,
        run.execution_ns,
        run.started_ns,
        run.duration_ns / NS_PER_MS,
        run.success,
        run.reason,
        run.output.decode(errors="backslashreplace"),
    )


def _check(record: Record) -> None:
    """Refuse a record that no log can hold, before it is decided."""
    try:
        CODEC.encode(record)
    except EncodeError as error:
        raise ApiError(400, str(error), "invalid_body") from None


class TimetableRoutes:
    def __init__(self, backend: HttpBackend) -> None:
        self._backend = backend

    def routes(self) -> list[Route]:
        all_, one = "/v1/timetables", "/v1/timetables/{timetable}"
        return [
            _timed("GET", all_, self.timetables, "Timetables by id", values.Timetables,
                   query=values.NamesAtQuery, errors=(422,)),
            _timed("PUT", one, self.set, "Set a timetable", values.Timetable,
                   body=values.TimetableBody, has_secrets=True, errors=(409, 422)),
            _timed("GET", one, self.timetable, "A timetable", values.Timetable,
                   query=values.MomentQuery, errors=(404, 422)),
            _timed("DELETE", one, self.remove, "Remove a timetable", errors=(404, 409)),
            _timed("GET", f"{one}/next", self.next, "The next firings", values.Firings,
                   query=values.CountQuery, errors=(404,)),
            _timed("POST", f"{one}/pause", self.pause, "Pause a timetable",
                   errors=(404, 409, 422)),
            _timed("POST", f"{one}/resume", self.resume, "Resume a timetable",
                   errors=(404, 409, 422)),
            _timed("POST", f"{one}/run", self.run, "Run a timetable now, once",
                   values.RunPlanned, errors=(404, 409, 422)),
            _timed("POST", f"{one}/backfill", self.backfill,
                   "Run what has not succeeded of a span, or show it", values.BackfillAnswer,
                   body=values.BackfillBody, errors=(404, 409, 422)),
        ]  # fmt: skip

    async def timetables(self, call: RouteCall) -> values.Timetables:
        query: values.NamesAtQuery = call.query
        after = (read_cursor(query.cursor) or b"").decode(errors="replace")
        asked = PageTimetables(query.prefix, after, query.limit + 1)
        listing: messages.TimetableListing = await self._ask(call, asked, moment_of_query(query.at))
        found = [row for rows in listing.slices for row in rows]
        shown = found[: query.limit]
        last = shown[-1].identifier.encode() if len(found) > len(shown) else None
        return values.Timetables([timetable_seen(row) for row in shown], cursor_of(last))

    async def set(self, call: RouteCall) -> values.Timetable:
        name = call.path["timetable"]
        fields = {
            key: value
            for key, value in msgspec.to_builtins(call.body).items()
            if value not in (None, [])
        }
        try:
            timetable, runner = read_timetable(fields)
        except TimetableError as error:
            raise ApiError(422, str(error), "invalid_timetable") from None
        command = commands.SetTimetable(_NO_ID, name, timetable, runner)
        _check_runners(call, command)
        await self._ask(call, command)
        return timetable_seen(await self._ask(call, commands.GetTimetable(_NO_ID, name)))

    async def timetable(self, call: RouteCall) -> values.Timetable:
        asked = commands.GetTimetable(_NO_ID, call.path["timetable"])
        return timetable_seen(await self._ask(call, asked, moment_of_query(call.query.at)))

    async def remove(self, call: RouteCall) -> None:
        await self._ask(call, commands.RemoveTimetable(_NO_ID, call.path["timetable"]))

    async def pause(self, call: RouteCall) -> None:
        await self._ask(call, commands.PauseTimetable(_NO_ID, call.path["timetable"]))

    async def resume(self, call: RouteCall) -> None:
        await self._ask(call, commands.ResumeTimetable(_NO_ID, call.path["timetable"]))

    async def run(self, call: RouteCall) -> values.RunPlanned:
        reply: messages.TimetableRun = await self._ask(
            call, commands.RunTimetable(_NO_ID, call.path["timetable"])
        )
        return values.RunPlanned(reply.identifier)

    async def next(self, call: RouteCall) -> values.Firings:
        asked = commands.NextOfTimetable(_NO_ID, call.path["timetable"], call.query.count)
        reply: messages.NextFirings = await self._ask(call, asked)
        return values.Firings(
            [
                values.Firing(each.at_s * NS_PER_S, each.local, each.warning)
                for each in reply.firings
            ]
        )

    async def backfill(self, call: RouteCall) -> values.BackfillAnswer:
        body: values.BackfillBody = call.body
        from_s = read_moment(body.begin, "from") // NS_PER_S
        until_s = read_moment(body.until, "until") // NS_PER_S
        asked = commands.BackfillTimetable(
            _NO_ID, call.path["timetable"], from_s, until_s, body.preview
        )
        reply: messages.Backfilled = await self._ask(call, asked)
        rows = [
            values.BackfillRow(
                row.identifier,
                row.execution_ns,
                None if row.status is None else row.status.word,
                row.is_run,
            )
            for row in reply.rows
        ]
        return values.BackfillAnswer(body.preview, rows)

    async def _ask(self, call: RouteCall, command: Any, at_ns: int | None = None) -> Any:
        reply = await self._backend.ask_schedule(call, command, at_ns)
        if isinstance(reply, messages.TimetableNotFound):
            raise ApiError(
                404, f"there is no timetable {reply.identifier[:80]!r}", "timetable_not_found"
            )
        if isinstance(reply, messages.TimetableRefused):
            raise ApiError(409, reply.reason, "timetable_refused")
        return reply


def timetable_seen(view: messages.TimetableView) -> values.Timetable:
    return values.Timetable(
        view.identifier,
        view.state,
        view.fields,
        in_words(view.fields),
        view.next_ns,
        view.next,
        view.last,
        view.running,
        view.waiting,
    )


def in_words(fields: dict[str, Any]) -> str:
    """Return what a timetable says, for people."""
    zone = fields.get("tz", "UTC")
    if "every" in fields:
        return f"every {fields['every']}"
    if "at" in fields:
        return f"at {fields['at']} ({zone})"
    try:
        return f"{CronSim(fields['cron'], _ANY).explain()} ({zone})"
    except CronSimError:
        return f"{fields['cron']} ({zone})"
