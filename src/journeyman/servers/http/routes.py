"""A route of version 1, declared once: what it takes, what it gives, who may use it.

    Route("GET", "/v1/work/jobs", jobs, query=JobsQuery, answer=JobsPage)
      |                                   |
      +--> aiohttp: path, query and body are read by their types before the handler is called
      +--> OpenAPI 3.1 (v1/all_routes.py): the same types become schemas

Types are msgspec structs, so what is documented is what is checked. A handler gets a ``RouteCall``
and returns a value of its answer type, or a response of its own (a stream).

For every route, here and nowhere else:

    scope      a token must cover all namespaces (``for_all``), and may write (``writes``)
    errors     application/problem+json: {"type", "title", "status", "code", "detail"}
    ETag       of a GET; If-None-Match is answered 304
    audit      a change is in the ledger with the token's name before it is answered (Audits)
    gzip       if the client takes it and the answer is worth it
    Idempotency-Key   of a POST: the same key and body give the same answer again, done once

Errors are in problems.py, types of fields in fields.py.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from journeyman.config import ALL_NAMESPACES, Token
from journeyman.servers.http import wire
from journeyman.servers.http.problems import ApiError

EVENTS: Final = "text/event-stream"
VERSION_1: Final = "/v1"
_REFUSED: Final = re.compile(
    r"\s*q\s*=\s*0(?:\.0*)?\s*", re.IGNORECASE
)  # this coding is not accepted
VIA: Final = "http"  # how a request came, for the audit
MIN_GZIP_BYTES = 1024
MAX_GZIP_HERE_BYTES = 256 * 1024  # larger ones are compressed in a thread
KEY_OF_ANOTHER_BODY = "this Idempotency-Key was used with another body"
MAX_KEY_CHARS = 255
IDEMPOTENCY_KEY: Final = re.compile(f"[!-~](?:[ -~]{{0,{MAX_KEY_CHARS - 2}}}[!-~])?")
MAX_KEPT_ANSWERS = 1_000
MAX_TOLD_BYTES = 400  # the part of a body that the audit has
MAX_KEPT_BYTES = 64 * 1024  # the limit of an answer that is kept for its key


@dataclass(frozen=True, slots=True)
class RouteCall:
    """A request, read."""

    request: web.Request
    path: dict[str, str]
    query: Any
    body: Any

    @property
    def token(self) -> Token | None:
        token: Token | None = self.request["token"]
        return token

    @property
    def namespace(self) -> str:
        namespace: str = self.request["namespace"]
        return namespace

    @property
    def prefix(self) -> str:
        """Return what names must begin with."""
        return "" if self.namespace == ALL_NAMESPACES else self.namespace

    def narrowed(self, prefix: str) -> str | None:
        """Return what names must begin with if ``prefix`` is asked for as well; None: no name
        can.
        """
        longer = max(self.prefix, prefix, key=len)
        fits = longer.startswith(self.prefix) and longer.startswith(prefix)
        return longer if fits else None

    @property
    def who(self) -> str:
        """Whom the audit names."""
        return who_asks(self.request)


def who_asks(request: web.Request) -> str:
    token: Token | None = request["token"]
    return token.name if token is not None else "local"


Handler = Callable[[RouteCall], Awaitable[Any]]
Note = Callable[[str, str, str, str, str], Awaitable[None]]  # Audits.note


@dataclass(frozen=True, slots=True)
class Route:
    """See the module's docstring. ``answer`` None: 204 without a body."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any = None
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    status: int = 200
    for_all: bool = False
    is_public: bool = False
    media_type: str = "application/json"
    errors: tuple[int, ...] = ()
    waits: bool = False  # it ends when the client leaves; all else is done to its end
    is_traffic: bool = False  # not audited, since programs do this all day
    has_secrets: bool = False  # its body has secrets, so the audit has only the path
    tag: str = field(default="server")
    names: Mapping[str, str] = field(default_factory=dict)  # patterns of names in the path

    @property
    def writes(self) -> bool:
        return self.method not in ("GET", "HEAD")

    @property
    def rights(self) -> str:
        """Who may use it, and whether the audit has it, for the document."""
        if self.is_public:
            return "Needs no token."
        needed = "a token of all namespaces" if self.for_all else "a token"
        if not self.writes:
            seen = "" if self.for_all else ", and shows what its namespace covers"
            return f"Needs {needed}, which may be one that only reads{seen}."
        place = "" if self.for_all else ", within its namespace"
        audited = "" if self.is_traffic else " Recorded in the audit."
        return f"Needs {needed} that may write{place}.{audited}"

    @property
    def has_etag(self) -> bool:
        return self.method == "GET"

    @property
    def pattern(self) -> str:
        """The path for aiohttp: names may hold slashes and line breaks where they come last."""
        head, brace, last = self.path.rpartition("{")
        if brace and last.endswith("}") and last in ("id}", "name}", "reader}"):
            return f"{head}{{{last[:-1]}:(?s:.+)}}"
        return self.path


T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Do the work even if the client leaves meanwhile. A refusal is for no one then; a mistake is
    still one."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_end_unheard)
        raise


async def _counted(
    request: web.Request, answer: Coroutine[Any, Any, web.StreamResponse]
) -> web.StreamResponse:
    """Count the request as long as the work goes on, also if the client has left: so its end is
    bounded."""
    try:
        with request["waits"].share_of(request):
            return await answer
    finally:
        answer.close()  # one that was refused was never begun


def _end_unheard(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, ApiError | web.HTTPException):
        context = {"message": "after the client had left", "exception": error}
        task.get_loop().call_exception_handler(context)


class Routes:
    """The routes of an application, and the answers that are kept for idempotency keys."""

    def __init__(self, routes: list[Route], note: Note | None = None) -> None:
        """``note`` writes the audit of a change."""
        self.routes = routes
        self._note = note
        self._kept_for: dict[str, OrderedDict[tuple[str, str], _Kept]] = {}  # by token

    def add_to(self, app: web.Application) -> None:
        # Paths with more after a name before those that end with it.
        for route in sorted(self.routes, key=lambda each: each.path.endswith("}")):
            app.router.add_route(route.method, route.pattern, self._handle(route))

    def _handle(self, route: Route) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            _check_scope(route, request)
            data = await request.read() if route.writes else b""
            request["body_is_in"]()
            key = request.headers.get("Idempotency-Key") if route.method == "POST" else None
            if key is None:
                answer = self._answer(route, request, data)
            else:
                answer = self._answer_once(route, request, data, key)
            if route.waits:
                answer = _counted(request, answer)
            is_left = key is None and (route.waits or route.media_type == EVENTS)
            return await (answer if is_left else to_the_end(answer))

        return handle

    async def _answer(self, route: Route, request: web.Request, data: bytes) -> web.StreamResponse:
        made = await self._make(route, request, data)
        return made if isinstance(made, web.StreamResponse) else await _response(request, made)

    async def _make(
        self, route: Route, request: web.Request, data: bytes
    ) -> _Answer | web.StreamResponse:
        call = RouteCall(request, _path(request), _query(route, request), _body(route, data))
        value = await self._done(route, call, data)
        if isinstance(value, web.StreamResponse):
            return value
        if route.answer is None:
            return _Answer(204)
        return _Answer(route.status, wire.encode_json(value), route.media_type)

    async def _done(self, route: Route, call: RouteCall, data: bytes) -> Any:
        """A refused change is no change; of one that failed on the way a part may be done."""
        is_preview = getattr(call.body, "preview", False)
        if self._note is None or not route.writes or route.is_traffic or is_preview:
            return await route.handler(call)
        outcome = "failed"
        try:
            value = await route.handler(call)
            outcome = "done"
        except ApiError as error:
            outcome = f"failed: {error.message}" if error.status >= 500 else ""
            raise
        finally:
            if outcome:
                told = "" if route.has_secrets else data[:MAX_TOLD_BYTES].decode(errors="replace")
                target = f"{call.request.path} {told}".rstrip()
                await self._note(call.who, VIA, f"{route.method} {route.path}", target, outcome)
        return value

    async def _answer_once(
        self, route: Route, request: web.Request, data: bytes, key: str
    ) -> web.StreamResponse:
        """The first request of a key is done; the others wait for it and get its answer."""
        if not IDEMPOTENCY_KEY.fullmatch(key):
            reason = f"Idempotency-Key must have 1 to {MAX_KEY_CHARS} printable characters of ASCII"
            raise ApiError(400, reason)
        token: Token | None = request["token"]
        place, digest = (request.path, key), hashlib.blake2b(data).digest()
        # Each token has its own room: one that fills its own does not empty that of others.
        own = self._kept_for.setdefault("" if token is None else token.name, OrderedDict())
        kept = own.get(place)
        if kept is not None:
            if kept.digest != digest:
                raise ApiError(422, KEY_OF_ANOTHER_BODY, "idempotency_mismatch")
            response = await _response(request, await asyncio.shield(kept.answer))
            response.headers["Idempotency-Replayed"] = "true"
            return response
        kept = _Kept(digest, asyncio.get_running_loop().create_future())
        kept.answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        own[place] = kept
        if len(own) > MAX_KEPT_ANSWERS:
            own.popitem(last=False)
        try:
            made = await self._make(route, request, data)
        except BaseException as error:
            if own.get(place) is kept:  # else others have taken its place
                del own[place]  # it was not done: it may be tried again
            kept.answer.set_exception(
                error if isinstance(error, ApiError) else ApiError(503, "the first request failed")
            )
            raise
        if isinstance(made, web.StreamResponse):
            kept.answer.set_result(_Answer(made.status))
            return made
        is_small = len(made.body) <= MAX_KEPT_BYTES
        # A large answer is sent once; a repeated request gets that it was done.
        kept.answer.set_result(made if is_small else _Answer(made.status))
        return await _response(request, made)


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer before it is encoded for a client, which may take gzip or not."""

    status: int
    body: bytes = b""
    media_type: str = ""


@dataclass(frozen=True, slots=True)
class _Kept:
    digest: bytes
    answer: asyncio.Future[_Answer]


def check_may_write(token: Token | None) -> None:
    if token is not None and not token.may_write:
        raise ApiError(403, f"token {token.name} may only read", "read_only")


def covers_all(token: Token | None) -> bool:
    return token is None or token.namespace == ALL_NAMESPACES


def check_for_all(token: Token | None) -> None:
    if not covers_all(token):
        raise ApiError(403, "this is for tokens of all namespaces", "outside_namespace")


def _check_scope(route: Route, request: web.Request) -> None:
    if route.is_public:
        return
    if route.for_all:
        check_for_all(request["token"])


def _path(request: web.Request) -> dict[str, str]:
    try:
        unquote_to_bytes(request.rel_url.raw_path).decode()
    except UnicodeDecodeError:
        raise ApiError(400, "the path is not valid UTF-8", "invalid_parameter") from None
    return dict(request.match_info)


def _query(route: Route, request: web.Request) -> Any:
    """Read the parameters of a query; the last counts of one that comes twice."""
    if route.query is None:
        return None
    given = dict(request.query)
    known = {each.encode_name for each in msgspec.structs.fields(route.query)}
    for name in given:
        if name not in known:
            raise ApiError(400, f"unknown query parameter {name!r}", "invalid_parameter")
    try:
        return msgspec.convert(given, route.query, strict=False)
    except msgspec.ValidationError as error:
        said = f"query: {error}{_known_words(route.query, str(error))}"
        raise ApiError(400, said, "invalid_parameter") from None


def _body(route: Route, data: bytes) -> Any:
    if route.body is None:
        if data.strip() not in (b"", b"{}"):
            raise ApiError(400, "this request takes no body", "invalid_body")
        return None
    if not data.strip():
        # An empty one may be a client's mistake, and would set everything to its default.
        raise ApiError(400, "a body is required; {} takes the defaults", "invalid_body")
    try:
        try:
            return msgspec.json.decode(data, type=route.body)
        except msgspec.ValidationError:  # In JSON 1.0 is a whole number too.
            return msgspec.convert(_with_whole_numbers(msgspec.json.decode(data)), route.body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        said = f"body: {error}{_known_words(route.body, str(error))}"
        raise ApiError(400, said, "invalid_body") from None


def _with_whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _with_whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    return value


def _known_words(kind: type[msgspec.Struct], error: str) -> str:
    """The words that a field takes, if the error is that it has another one."""
    found = re.search(r"matching regex .* - at `\$\.(\w+)`", error, re.DOTALL)
    if found is None:
        return ""
    (schema,), components = msgspec.json.schema_components([kind])
    of_field = components[schema["$ref"].rpartition("/")[2]]["properties"][found[1]]
    words = [each.get("enum", []) for each in (of_field, *of_field.get("anyOf", []))]
    known = ", ".join(chain.from_iterable(words))
    return f"; known are {known}" if known else ""


def takes_gzip(request: web.Request) -> bool:
    """Return whether the client's Accept-Encoding names it, or everything, without the quality
    0.
    """
    taken = {}
    for part in request.headers.get("Accept-Encoding", "").split(","):
        coding, _, quality = part.partition(";")
        taken[coding.strip().lower()] = _REFUSED.fullmatch(quality) is None
    return taken.get("gzip", taken.get("*", False))


async def _response(request: web.Request, answer: _Answer) -> web.Response:
    body = answer.body
    if not body:
        return web.Response(status=answer.status)
    headers = {
        "Content-Type": answer.media_type, "Vary": "Accept-Encoding", "Cache-Control": "no-cache",
    }  # fmt: skip
    if request.method == "GET":
        tag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
        headers["ETag"] = tag
        if tag in request.headers.get("If-None-Match", ""):
            return web.Response(status=304, headers={"ETag": tag})
    if len(body) >= MIN_GZIP_BYTES and takes_gzip(request):
        headers["Content-Encoding"] = "gzip"
        if len(body) > MAX_GZIP_HERE_BYTES:
            body = await asyncio.to_thread(gzip.compress, body, 5, mtime=0)
        else:
            body = gzip.compress(body, 5, mtime=0)
    return web.Response(body=body, status=answer.status, headers=headers)
