"""The schedule over HTTP, version 1: jobs, rules and runs."""

from __future__ import annotations

import json
from functools import partial
from itertools import islice

from journeyman.engines.ztick.browsing import PageJobs, PageRules
from journeyman.errors import EncodeError
from journeyman.formats.ztick import CODEC, JobSet, Record, RuleSet, Status
from journeyman.protocols.ztick.commands import Get, Remove, RemoveRule, Set, SetRule
from journeyman.protocols.ztick.grammar import read_runner, runner_words
from journeyman.servers.http.errors import ApiError
from journeyman.servers.http.fields import cursor_of, read_cursor, read_moment, time_text
from journeyman.servers.http.routes import Route, RouteCall
from journeyman.servers.http.v1 import values
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.v1.past import PastRoutes
from journeyman.servers.ztick.runs import EndedRun
from journeyman.units import NS_PER_MS

_STATUSES = {status.word: status for status in Status}
_NO_ID = b""
_route = partial(Route, tag="schedule")


class ScheduleRoutes:
    def __init__(self, backend: HttpBackend, past: PastRoutes) -> None:
        self._backend = backend
        self._past = past

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
            _route("GET", rules, self.rules, "Rules by id", values.Rules, query=values.NamesQuery),
            _route("PUT", f"{rules}/{{id}}", self.set_rule, "Set a rule", values.Rule,
                   body=values.SetRuleBody, has_secrets=True),
            _route("GET", f"{rules}/{{id}}", self.rule, "A rule", values.Rule, errors=(404,)),
            _route("DELETE", f"{rules}/{{id}}", self.remove_rule, "Remove a rule", errors=(404,)),
            _route("GET", "/v1/schedule/runs", self.runs, "The last runs, newest first",
                   values.RunsPage, query=values.RunsQuery),
        ]  # fmt: skip

    # -- jobs --

    async def jobs(self, call: RouteCall) -> values.ScheduledJobs:
        query: values.ScheduledJobsQuery = call.query
        if query.at:
            return await self._past.scheduled(call, query)
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
        )
        jobs = [job_seen(*row) for row in page.jobs]
        return values.ScheduledJobs(jobs, cursor_of(page.after))

    async def set_job(self, call: RouteCall) -> values.ScheduledJob:
        identifier = call.path["id"]
        execution_ns = read_moment(call.body.execution, "execution")
        _check(JobSet(identifier, execution_ns, Status.PLANNED))
        await self._backend.ask_schedule(call, Set(_NO_ID, identifier, execution_ns))
        return job_seen(identifier, Status.PLANNED, execution_ns)

    async def job(self, call: RouteCall) -> values.ScheduledJob:
        if call.query.at:
            return await self._past.scheduled_job(call, call.path["id"], call.query.at)
        state = await self._backend.ask_schedule(call, Get(_NO_ID, call.path["id"]))
        return job_seen(call.path["id"], state.status, state.execution_ns)

    async def remove_job(self, call: RouteCall) -> None:
        await self._backend.ask_schedule(call, Remove(_NO_ID, call.path["id"]))

    # -- rules --

    async def rules(self, call: RouteCall) -> values.Rules:
        query: values.NamesQuery = call.query
        after = (read_cursor(query.cursor) or b"").decode(errors="replace")
        asked = PageRules(query.prefix, after, query.limit + 1)
        found = (await self._backend.ask_schedule(call, asked)).rules
        shown = found[: query.limit]
        last = shown[-1].identifier.encode() if len(found) > len(shown) else None
        return values.Rules([rule_seen(rule) for rule in shown], cursor_of(last))

    async def set_rule(self, call: RouteCall) -> values.Rule:
        body: values.SetRuleBody = call.body
        runner = read_runner([body.runner, *body.args])
        if isinstance(runner, str):
            raise ApiError(400, runner, "invalid_runner")
        if call.token is not None and (reason := call.token.refuses(runner)):
            raise ApiError(403, reason, "runner_not_allowed")
        rule = RuleSet(call.path["id"], body.pattern, runner)
        _check(rule)
        await self._backend.ask_schedule(
            call, SetRule(_NO_ID, rule.identifier, rule.pattern, runner)
        )
        return rule_seen(rule)

    async def rule(self, call: RouteCall) -> values.Rule:
        identifier = call.path["id"]  # the first of those that begin with it
        found = (await self._backend.ask_schedule(call, PageRules(identifier, limit=1))).rules
        if found and found[0].identifier == identifier:
            return rule_seen(found[0])
        raise ApiError(404, f"there is no rule {json.dumps(call.path['id'])}", "rule_not_found")

    async def remove_rule(self, call: RouteCall) -> None:
        await self._backend.ask_schedule(call, RemoveRule(_NO_ID, call.path["id"]))

    # -- runs --

    async def runs(self, call: RouteCall) -> values.RunsPage:
        """The cursor is how many were passed; newer runs move the pages on."""
        query: values.RunsQuery = call.query
        begin = int.from_bytes((read_cursor(query.cursor) or b"")[:4])
        until_ns = read_moment(query.at, "at") if query.at else None
        found = (
            run
            for run in self._backend.schedule.runs.latest()
            if run.identifier.startswith(query.prefix)
            and run.identifier.startswith(call.prefix)
            and query.success in (None, run.success)
            and (until_ns is None or run.started_ns <= until_ns)
        )
        shown = list(islice(found, begin, begin + query.limit + 1))
        more = (begin + query.limit).to_bytes(4) if len(shown) > query.limit else None
        return values.RunsPage([run_seen(run) for run in shown[: query.limit]], cursor_of(more))


def job_seen(identifier: str, status: Status, execution_ns: int) -> values.ScheduledJob:
    return values.ScheduledJob(identifier, status.word, time_text(execution_ns), str(execution_ns))


def rule_seen(rule: RuleSet) -> values.Rule:
    name, *args = runner_words(rule.runner)
    return values.Rule(rule.identifier, rule.pattern, name, args)


def run_seen(run: EndedRun) -> values.RunSeen:
    return values.RunSeen(
        run.identifier,
        time_text(run.execution_ns),
        str(run.execution_ns),
        time_text(run.started_ns),
        str(run.started_ns),
        run.duration_ns / NS_PER_MS,
        run.success,
        run.reason,
        run.output.decode(errors="backslashreplace"),
    )


def _check(record: Record) -> None:
    """What no log can hold is refused before it is decided."""
    try:
        CODEC.encode(record)
    except EncodeError as error:
        raise ApiError(400, str(error), "invalid_body") from None
