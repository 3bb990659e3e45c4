"""The paths of ztick: jobs and rules over HTTP, the same commands through the same writer.

    PUT    /jobs/{id}       {"execution": "2026-03-30T14:00:00+02:00" or nanoseconds}
    GET    /jobs/{id}       {"id", "status", "execution"}            404 if there is none
    DELETE /jobs/{id}       204                                      404
    GET    /jobs?prefix=p   [{"id", "status", "execution"}, ...]
    PUT    /rules/{id}      {"pattern": "app.", "runner": "shell", "args": ["echo hello"]}
    GET    /rules/{id}      {"id", "pattern", "runner", "args"}      404
    DELETE /rules/{id}      204                                      404
    GET    /rules?prefix=p  [{"id", "pattern", "runner", "args"}, ...]
    GET    /health          {"status": "ok"}
    GET    /openapi.json    these paths, described

``execution`` is nanoseconds since 1970 in answers. ``runner`` and ``args`` are the words of RULE
SET, for all eight runners. Identifiers in paths are percent-decoded and may hold slashes.

    400 the request is wrong   401 no or a wrong token   403 outside the token's namespace
    404 not there              413 body too large        503 could not be recorded; try again
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator
from itertools import starmap
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web
from msgspec import Meta

from journeyman.config import Token
from journeyman.engines.ztick import messages
from journeyman.engines.ztick.job_table import JobListing
from journeyman.errors import EncodeError, SnapshotGivenUp
from journeyman.formats.ztick import CODEC, JobSet, Record, RuleSet, Status
from journeyman.protocols.ztick import commands
from journeyman.protocols.ztick.grammar import read_runner, runner_words
from journeyman.protocols.ztick.parser import MAX_NS, MIN_NS, read_timestamp
from journeyman.servers.core.connection import LIST_STALL_S
from journeyman.servers.core.group_commit import GroupCommit
from journeyman.servers.core.internal_call import NotDone
from journeyman.servers.http.openapi import ErrorAnswers, describe
from journeyman.servers.http.problems import ApiError
from journeyman.servers.http.sending import HttpSender
from journeyman.servers.ztick.writer import Request

_NO_ID = b""  # over HTTP there is one answer a request
_JSON = {"Content-Type": "application/json; charset=utf-8"}


class ErrorText(msgspec.Struct):
    error: str


class PlannedJob(msgspec.Struct):
    id: str
    status: Literal["planned", "triggered", "executed", "failed"]
    execution: Annotated[int, Meta(description="nanoseconds since 1970")]


class PlanRequest(msgspec.Struct):
    execution: Annotated[str | int, Meta(description="ISO 8601, or nanoseconds since 1970")]


class RuleRequest(msgspec.Struct):
    pattern: str
    runner: Literal["shell", "direct", "http", "awf", "amqp", "redis", "queue", "journal"]
    args: list[str]


class Rule(msgspec.Struct):
    id: str
    pattern: str
    runner: str
    args: list[str]


class PrefixQuery(msgspec.Struct):
    prefix: Annotated[str, Meta(description="ids that begin with this")] = ""


class ServerHealth(msgspec.Struct):
    status: str


class _Path(NamedTuple):
    """A path as the document describes it."""

    method: str
    path: str
    summary: str
    answer: Any = None
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    errors: tuple[int, ...] = ()
    status: int = 200
    is_public: bool = False
    media_type: str = "application/json"
    tag: str = "ztick"
    has_etag: bool = False

    @property
    def names(self) -> dict[str, str]:
        """Ids may be any text."""
        return {}

    @property
    def rights(self) -> str:
        """Who may use it, for the document."""
        if self.is_public:
            return "Needs no token."
        needed = " that may write" if self.writes else ""
        return f"Needs a token{needed}; covers what its namespace does."

    @property
    def writes(self) -> bool:
        return self.method != "GET"


OPENAPI_PATH = "/openapi.json"
TEXT_ERRORS = ErrorAnswers(ErrorText, "application/json", always=(400, 401, 403, 503))
PATHS = (
    _Path("GET", "/health", "Whether the server is running", ServerHealth, is_public=True),
    _Path("GET", OPENAPI_PATH, "This document", dict[str, Any], is_public=True),
    _Path("GET", "/metrics", "Metrics for Prometheus", str, media_type="text/plain"),
    _Path("GET", "/jobs", "Jobs", list[PlannedJob], PrefixQuery),
    _Path("GET", "/jobs/{id}", "A job", PlannedJob, errors=(404,)),
    _Path("PUT", "/jobs/{id}", "Plan a job", PlannedJob, body=PlanRequest),
    _Path("DELETE", "/jobs/{id}", "Remove a job", errors=(404,)),
    _Path("GET", "/rules", "Rules", list[Rule], PrefixQuery),
    _Path("GET", "/rules/{id}", "A rule", Rule, errors=(404,)),
    _Path("PUT", "/rules/{id}", "Set a rule", Rule, body=RuleRequest),
    _Path("DELETE", "/rules/{id}", "Remove a rule", errors=(404,)),
)


class ZtickPaths:
    """Turns requests into commands, and replies into answers."""

    def __init__(self, writer: GroupCommit) -> None:
        self._writer = writer

    async def ask(self, request: web.Request, command: Request) -> messages.Reply | None:
        reply = await self._ask(command, request["namespace"])
        if isinstance(reply, messages.OutOfScope):
            raise ApiError(403, "insufficient namespace scope")
        if isinstance(reply, messages.Reserved):
            raise ApiError(400, f"job {json.dumps(reply.identifier)}: the identifier is reserved")
        if isinstance(reply, messages.JobNotFound | messages.RuleNotFound):
            kind = "job" if isinstance(reply, messages.JobNotFound) else "rule"
            raise ApiError(404, f"{kind} {json.dumps(reply.identifier)} does not exist")
        return reply

    async def _ask(self, command: Request, namespace: str) -> messages.Reply | None:
        reply: messages.Reply | NotDone | None = await self._writer.ask(
            command, namespace=namespace
        )
        if isinstance(reply, NotDone):
            raise ApiError(503, f"internal: {reply.reason}")
        return reply

    # -- jobs --

    async def put_job(self, request: web.Request) -> web.Response:
        identifier = _identifier(request)
        body = await read_body(request)
        execution_ns = _execution(body.get("execution"))
        _check(JobSet(identifier, execution_ns, Status.PLANNED))
        await self.ask(request, commands.Set(_NO_ID, identifier, execution_ns))
        return json_response(_job(identifier, Status.PLANNED, execution_ns))

    async def get_job(self, request: web.Request) -> web.Response:
        identifier = _identifier(request)
        state = await self.ask(request, commands.Get(_NO_ID, identifier))
        assert isinstance(state, messages.ScheduledJobState)
        return json_response(_job(identifier, state.status, state.execution_ns))

    async def delete_job(self, request: web.Request) -> web.Response:
        await self.ask(request, commands.Remove(_NO_ID, _identifier(request)))
        return web.Response(status=204)

    async def list_jobs(self, request: web.Request) -> web.StreamResponse:
        listing = await self.ask(request, commands.Query(_NO_ID, request.query.get("prefix", "")))
        assert isinstance(listing, JobListing)
        return await send_list(request, (map(_encode, starmap(_job, rows)) for rows in listing))

    # -- rules --

    async def put_rule(self, request: web.Request) -> web.Response:
        identifier = _identifier(request)
        body = await read_body(request)
        pattern, name, args = body.get("pattern"), body.get("runner"), body.get("args", [])
        if not isinstance(pattern, str):
            raise ApiError(400, "pattern must be a string")
        if not isinstance(name, str):
            raise ApiError(400, "runner must be a string")
        if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
            raise ApiError(400, "args must be a list of strings")
        runner = read_runner([name, *args])
        if isinstance(runner, str):
            raise ApiError(400, runner)
        token: Token | None = request["token"]
        if token is not None and (reason := token.refuses(runner)):
            raise ApiError(403, reason)
        rule = RuleSet(identifier, pattern, runner)
        _check(rule)
        await self.ask(request, commands.SetRule(_NO_ID, identifier, pattern, runner))
        return json_response(_rule(rule))

    async def get_rule(self, request: web.Request) -> web.Response:
        identifier = _identifier(request)
        for rule in await self._rules(request):
            if rule.identifier == identifier:
                return json_response(_rule(rule))
        raise ApiError(404, f"rule {json.dumps(identifier)} does not exist")

    async def delete_rule(self, request: web.Request) -> web.Response:
        await self.ask(request, commands.RemoveRule(_NO_ID, _identifier(request)))
        return web.Response(status=204)

    async def list_rules(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        rules = await self._rules(request)
        return json_response([_rule(rule) for rule in rules if rule.identifier.startswith(prefix)])

    async def _rules(self, request: web.Request) -> Iterator[RuleSet]:
        listing = await self.ask(request, commands.ListRules(_NO_ID))
        assert isinstance(listing, messages.RuleListing)
        return iter(listing.rules)


def add_paths(app: web.Application, paths: ZtickPaths) -> None:
    router = app.router
    router.add_get("/health", _health, allow_head=False)
    router.add_get(OPENAPI_PATH, _openapi, allow_head=False)
    router.add_get("/jobs", paths.list_jobs, allow_head=False)
    router.add_get("/rules", paths.list_rules, allow_head=False)
    for kind, put, get, delete in (
        ("jobs", paths.put_job, paths.get_job, paths.delete_job),
        ("rules", paths.put_rule, paths.get_rule, paths.delete_rule),
    ):
        path = f"/{kind}/{{identifier:(?s:.*)}}"  # line breaks as well
        router.add_put(path, put)
        router.add_get(path, get, allow_head=False)
        router.add_delete(path, delete)


async def _health(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp asks so
    return json_response(ServerHealth("ok"))


async def _openapi(request: web.Request) -> web.Response:  # noqa: ARG001 - aiohttp asks so
    return json_response(describe(PATHS, TEXT_ERRORS))


# -- requests ------------------------------------------------------------------------------------


def _identifier(request: web.Request) -> str:
    identifier = request.match_info["identifier"]
    if not identifier:
        raise ApiError(400, "missing resource id")
    try:
        unquote_to_bytes(request.rel_url.raw_path).decode()
    except UnicodeDecodeError:
        # It would be taken as it is written, percent signs and all.
        raise ApiError(400, "the identifier is not valid UTF-8") from None
    return identifier


async def send_list(request: web.Request, slices: Iterable[Iterable[bytes]]) -> web.StreamResponse:
    """A JSON array of these texts, sent slice by slice: each is made when it can be sent."""
    sender: HttpSender = request["sender"]
    response = web.StreamResponse(headers=_JSON)
    await response.prepare(request)
    separator = b"["
    remaining = iter(slices)
    try:
        while True:
            await sender.turn()  # others have theirs between two slices
            data = _encoded(next(remaining, None))  # nothing else is kept of it while it is sent
            if data is None:
                break
            if data:
                async with asyncio.timeout(LIST_STALL_S):
                    await sender.write(response, separator)
                    await sender.write(response, data)
                separator = b","
    except (TimeoutError, SnapshotGivenUp):  # no other answer can follow the half of one
        sender.close_unread()
        return response
    await sender.write(response, b"]" if separator == b"," else b"[]")
    await response.write_eof()
    return response


def _encoded(texts: Iterable[bytes] | None) -> bytes | None:
    return None if texts is None else b",".join(texts)


async def read_body(request: web.Request) -> dict[str, Any]:
    data = await request.read()
    request["body_is_in"]()
    try:
        # Unlike json.loads it refuses text that no log can hold: halves of a surrogate pair.
        body = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        raise ApiError(400, "invalid json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "invalid json: expected an object")
    return body


def _execution(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if MIN_NS <= value <= MAX_NS:
            return value
        raise ApiError(400, "execution is outside the range of 64-bit nanoseconds")
    if not isinstance(value, str):
        raise ApiError(400, "execution must be an ISO 8601 time or nanoseconds since 1970")
    moment = read_timestamp([value.encode(errors="surrogatepass")])
    if isinstance(moment, str):
        raise ApiError(400, f"execution {json.dumps(value)}: {moment}")
    return moment


def _check(record: Record) -> None:
    """A body may be larger than a line: what no log can hold is refused before it is decided."""
    try:
        CODEC.encode(record)
    except EncodeError as error:
        raise ApiError(400, str(error)) from None


# -- answers -------------------------------------------------------------------------------------


def _job(identifier: str, status: Status, execution_ns: int) -> PlannedJob:
    return PlannedJob(identifier, status.word, execution_ns)  # type: ignore[arg-type]


def _rule(rule: RuleSet) -> Rule:
    name, *args = runner_words(rule.runner)
    return Rule(rule.identifier, rule.pattern, name, args)


_encode = msgspec.json.encode


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=_encode(value), status=status, content_type="application/json")
