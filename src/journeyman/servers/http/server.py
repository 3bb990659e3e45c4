"""HTTP: who may come in, how long they may take, and how errors look.

    /v1/...            the API; see routes.py and v1/
    /console/...       the console; see console/
    /metrics           the figures of STAT and some more, as Prometheus reads them:
                       ``jobs.scheduled`` is journeyman_jobs_scheduled_total
    /jobs, /rules      what the real ztick serves; see ztick_paths.py
    /health            200 {"status":"ok"}; for everyone

With an auth file every request but /health needs ``Authorization: Bearer <secret>``; wrong ones
wait, as on the other ports, and one that cannot be checked in time is answered 503. An error is
``{"error": "..."}`` with a status that fits.

With a certificate (controller.tls_cert) it is HTTPS, as the other ports are inside TLS then.

Bounded like the rest: connections, the size of a body, the time a connection may take without a
whole request, whether it sends nothing or a byte now and then, and what clients do not fetch: that
counts against the budget of all ports (core/shared.py). If all connections are taken, the one that
has waited longest without a request makes room.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import web, web_response
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from journeyman.config import ALL_NAMESPACES, Address, Token
from journeyman.servers.core.connection import peer_of
from journeyman.servers.core.metrics import BOUNDS_MS, Family, Histogram, of_queues
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.http.console.drawing import Sessions, all_assets, is_console
from journeyman.servers.http.console.pages import PUBLIC, Console
from journeyman.servers.http.console.shown import link
from journeyman.servers.http.cross_site import PREFLIGHT, READING, CrossSite
from journeyman.servers.http.problems import ApiError, problem
from journeyman.servers.http.routes import VERSION_1, VIA, check_may_write, who_asks
from journeyman.servers.http.sending import HttpSender
from journeyman.servers.http.shares import WaitingRequests
from journeyman.servers.http.v1.all_routes import V1_DOCUMENT_PATH, VersionOne, add_version_1
from journeyman.servers.http.v1.audits import Audits
from journeyman.servers.http.v1.backend import HttpBackend
from journeyman.servers.http.ztick_paths import (
    OPENAPI_PATH,
    ZtickPaths,
    add_paths,
    json_response,
)
from journeyman.servers.ztick.metrics import ServerMetrics
from journeyman.servers.ztick.session import ZtickContext

SWEEP_S = 0.5
SPARED_S = 1.0  # a connection may wait so long for its first request, even if all places are taken
MAX_WAITING_LOGINS = 200  # requests whose secret waits to be checked: others need connections too
MAX_REASON = 200  # characters; it may repeat what the client sent
_PUBLIC_PATHS = ("/health", OPENAPI_PATH, "/v1/health", "/v1/ready", V1_DOCUMENT_PATH)

CONTINUE = "100-continue"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_RawHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_BOUNDS_S = (*(f"{bound_ms / 1000:g}" for bound_ms in BOUNDS_MS), "+Inf")


@dataclass(slots=True)
class HttpServing:
    """The application and its connections. ``close`` lets requests under way end first."""

    connections: _Connections
    _runner: web.AppRunner

    async def close(self) -> None:
        self.connections.close()
        await self._runner.cleanup()


async def build_http(
    context: ZtickContext,
    figures: ServerMetrics,
    backend: HttpBackend,
    address: Address,
    *,
    max_connections: int,
    timeout_s: float,
    body_bytes: int,
    allowed_hosts: tuple[str, ...] = (),
    allowed_origins: tuple[str, ...] = (),
) -> HttpServing:
    """``address`` is where the port listens (port.py)."""
    # Read and compressed once; before all else, for a stop may come meanwhile: nothing runs yet.
    await context.loop.run_in_executor(None, all_assets)
    sessions = Sessions(backend.clock, is_secure=context.access.tls is not None)
    cross_site = CrossSite(address, allowed_hosts, allowed_origins)
    gate = _Gate(context, cross_site, sessions)
    app = web.Application(client_max_size=body_bytes, middlewares=[gate.pass_through])
    connections = _Connections(context, max_connections, timeout_s)
    app.middlewares.insert(0, connections.note)
    paths = ZtickPaths(context.writer)

    async def metrics(request: web.Request) -> web.Response:
        namespace = request["namespace"]
        prefix = "" if namespace == ALL_NAMESPACES else namespace
        families = figures.families(context.metrics(backend.schedule.stats()))
        text = exposition_of(of_queues(family, prefix) for family in families)
        return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4"})

    app.router.add_get("/metrics", metrics, allow_head=False)
    add_paths(app, paths)
    version = VersionOne.of_backend(backend)
    audits = Audits(backend)
    add_version_1(app, version, audits)
    console = Console(backend, version, sessions, audits)
    console.add_to(app)
    gate.console, gate.audits = console, audits
    app.on_shutdown.append(_closing(console))
    app.on_response_prepare.append(cross_site.name_origin)
    vars(web_response)["SERVER_SOFTWARE"] = "Journeyman"  # versions are not for everyone
    runner = web.AppRunner(
        app,
        handle_signals=False,
        handler_cancellation=True,  # a client that left waits no longer: it must get no job
        shutdown_timeout=5,
    )
    await runner.setup()
    assert runner.server is not None
    runner.server.request_handler = _refusing_expectations(runner.server.request_handler)
    connections.make = partial(
        _Connection,
        runner.server,
        loop=context.loop,
        access_log=None,  # type: ignore[arg-type]  # it means none, as for the runner
        logger=_logger(context.messages),
        keepalive_timeout=timeout_s,
        auto_decompress=False,  # compressed bodies are refused (cross_site.py)
    )
    console.history.start()
    return HttpServing(connections, runner)


def _refusing_expectations(handle: _RawHandler) -> _RawHandler:
    """Refuse an unknown Expect as a problem: the answer of aiohttp would be text."""

    async def check(request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", CONTINUE).lower() != CONTINUE:
            return _refusal(request, ApiError(417, f"only {CONTINUE} can be expected"))
        return await handle(request)

    return check


def _closing(console: Console) -> Callable[[web.Application], Awaitable[None]]:
    async def close(_: web.Application) -> None:
        console.close()

    return close


def _is_old_change(request: web.Request) -> bool:
    """Return whether the request is a change by a path of ztick, which is to be audited; version 1
    and the console see to theirs."""
    path = request.path
    is_old = not path.startswith(f"{VERSION_1}/") and not is_console(path)
    is_planning = request.method == "PUT" and path.startswith("/jobs/")
    return is_old and request.method not in READING and not is_planning


def _refusal(request: web.BaseRequest, error: ApiError) -> web.Response:
    if request.path.startswith(f"{VERSION_1}/"):
        return problem(error)
    return json_response({"error": error.message}, error.status)


def _logger(messages: ServerLog) -> logging.Logger:
    """Return a logger that turns what aiohttp says into lines among the messages."""
    logger = logging.Logger("journeyman.http", logging.WARNING)
    logger.addHandler(_Complaints(messages))
    return logger


class _Complaints(logging.Handler):
    def __init__(self, messages: ServerLog) -> None:
        super().__init__()
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            client = record.args[0] if isinstance(record.args, tuple) and record.args else ""
            self._messages.info(
                "an HTTP request cannot be read", reason=_reason(error), client=client
            )
            return
        trace = "".join(traceback.format_exception(error)) if error is not None else ""
        self._messages.error(f"HTTP: {record.getMessage()}", trace=trace)


class _Connection(RequestHandler):
    """A connection whose requests that cannot be read are answered in JSON as well."""

    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # it logs the error
        is_unread = isinstance(exc, HttpProcessingError)
        reason = _reason(exc) if isinstance(exc, HttpProcessingError) else ""
        # The path of an unreadable request is not known either.
        if is_unread or request.path.startswith(f"{VERSION_1}/"):
            response = problem(ApiError(status, reason))
        else:
            response = json_response({"error": HTTPStatus(status).phrase.lower()}, status)
        response.force_close()
        return response


def _reason(error: HttpProcessingError) -> str:
    return error.message.partition("\n")[0].rstrip(":")[:MAX_REASON]


@dataclass(slots=True, eq=False)
class _Visitor:
    """A request that is being answered."""

    token: Token | None
    _request: web.Request

    def drop(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


class _Gate:
    """Every request passes here: where it comes from, the token, and errors made into JSON."""

    console: Console
    audits: Audits

    def __init__(self, context: ZtickContext, cross_site: CrossSite, sessions: Sessions) -> None:
        self._context = context
        self._cross_site = cross_site
        self._sessions = sessions
        self._waiting: dict[asyncio.Future[Token | None], None] = {}  # secrets, the oldest first

    @web.middleware
    async def pass_through(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            is_preflight = self._cross_site.is_preflight(request)
            if is_preflight or request.path not in _PUBLIC_PATHS:
                self._check_site(request)
            if is_preflight:  # it has no token: browsers send none with it
                return web.Response(status=204, headers=PREFLIGHT)
            if request.path not in _PUBLIC_PATHS:
                is_page = is_console(request.path)
                token = self._visitor(request) if is_page else await self._token(request)
                # The console looks by itself: who may only read may log out.
                if token is not None and not is_page and request.method not in READING:
                    check_may_write(token)
                request["token"] = token
                request["namespace"] = ALL_NAMESPACES if token is None else token.namespace
                request["is_active"] = self._is_active
                self._check_lease()
            with self._admitted(request):
                response = await handler(request)
            if request.path not in _PUBLIC_PATHS and not response.prepared:
                self._check_lease()  # again: the answer may have taken its time
            if response.status < 400 and _is_old_change(request):
                await asyncio.shield(self._audit(request))
            return response
        except ApiError as error:
            response = await self._refusal(request, error)
            if error.status == 503:
                response.headers["Retry-After"] = "1"
            return response
        except web.HTTPRedirection as error:
            return web.Response(
                status=error.status, headers={"Location": error.headers["Location"]}
            )
        except web.HTTPRequestEntityTooLarge:
            return await self._refusal(request, ApiError(413, "body too large"))
        except web.HTTPException as error:
            words = {404: "not found", 405: "method not allowed"}
            code = error.reason if error.status == 401 else ""
            told = ApiError(error.status, words.get(error.status, error.reason), code)
            response = await self._refusal(request, told)
            if "Allow" in error.headers:
                response.headers["Allow"] = error.headers["Allow"]
            if error.status == 401:
                response.headers["WWW-Authenticate"] = "Bearer"
            return response

    def _is_active(self) -> bool:
        lease = self._context.writer.lease
        return lease is None or lease.is_valid

    def _check_lease(self) -> None:
        if not self._is_active():
            reason = "another server may be active: the database has not confirmed that this one is"
            raise ApiError(503, reason, "not_ready")

    def _wait_in_line(self, checked: asyncio.Future[Token | None]) -> None:
        """Make room: of too many requests, the one that has waited longest is refused."""
        self._waiting[checked] = None
        if len(self._waiting) > MAX_WAITING_LOGINS:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            if not longest.done():
                longest.set_exception(TimeoutError())

    @contextmanager
    def _admitted(self, request: web.Request) -> Iterator[None]:
        """While it is answered, which a stream may be for ever, its token must stay."""
        token = request.get("token")
        if token is None:
            yield
            return
        visitor = _Visitor(token, request)
        self._context.access.visitors.add(visitor)
        try:
            yield
        finally:
            self._context.access.visitors.discard(visitor)

    async def _audit(self, request: web.Request) -> None:
        assert request.match_info.route.resource is not None
        what = f"{request.method} {request.match_info.route.resource.canonical}"
        await self.audits.note(who_asks(request), VIA, what, request.path, "done")

    async def _refusal(self, request: web.Request, error: ApiError) -> web.Response:
        if is_console(request.path) and error.status != 421:
            return await self.console.drawing.problem(request, error)
        return _refusal(request, error)

    def _visitor(self, request: web.Request) -> Token | None:
        """The token of a session of the console; who has none is sent to the login."""
        request["find_token"] = lambda secret: self._find_token(request, secret)
        tokens = self._context.access.tokens
        session = self._sessions.find(request)
        if session is not None and tokens is not None:
            token = session.token
            if token is None or token not in tokens:  # it was removed, or changed
                self._sessions.end(session)
                session = None
        if session is None and tokens is None:
            session = self._sessions.begin(None)
            request["session_is_new"] = True
        request["session"] = session
        if session is not None:
            return session.token
        if not request.path.startswith(PUBLIC):
            raise web.HTTPSeeOther(link("/console/login", back=request.path_qs))
        return None

    def _check_site(self, request: web.Request) -> None:
        try:
            # Forms of the console are signed (console/drawing.py).
            self._cross_site.check(request, takes_forms=is_console(request.path))
        except ApiError as error:
            self._context.messages.warn(
                f"HTTP request refused: {error.message}", client=self._client(request)
            )
            raise

    def _client(self, request: web.Request) -> str:
        """Its address, also if a trusted proxy stands between."""
        forwarded = request.headers.getall("X-Forwarded-For", [])
        peer = request.remote or ("" if request.transport is None else peer_of(request.transport))
        return self._context.access.proxies.client_of(peer, forwarded)

    async def _token(self, request: web.Request) -> Token | None:
        """Return the token of the request. None: no token is needed."""
        if self._context.access.tokens is None:
            return None
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secret.strip():
            raise web.HTTPUnauthorized(reason="auth_required")
        token = await self._find_token(request, secret.strip())
        if token is None:
            raise web.HTTPUnauthorized(reason="auth_failed")
        return token

    async def _find_token(self, request: web.Request, secret: str) -> Token | None:
        """Check a secret; a wrong one delays the next. Raises ApiError: not checked in time."""
        context, access = self._context, self._context.access
        if access.tokens is None or not secret:
            return None
        host, key = self._client(request), secret.encode(errors="surrogateescape")
        checked: asyncio.Future[Token | None] = context.loop.create_future()
        attempt = access.log_in(
            context.loop,
            host,
            key,
            lambda token: None if checked.done() else checked.set_result(token),
            to_write=False,
        )
        if attempt.is_waiting:
            self._wait_in_line(checked)
        try:
            async with asyncio.timeout(access.auth_timeout_s):
                token = await checked
        except TimeoutError:
            raise ApiError(503, "the token could not be checked in time", "login_busy") from None
        finally:
            attempt.give_up()
            self._waiting.pop(checked, None)
        if token is None:
            context.messages.warn("authentication failed", client=host, over="http")
        return token


class _Connections:
    """Makes the protocol of each connection, counts them, and closes those that only wait."""

    def __init__(self, context: ZtickContext, max_connections: int, timeout_s: float) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._since: dict[Any, float] = {}  # protocol -> since when it has had no request
        self._senders: dict[Any, HttpSender] = {}
        self._asked: set[Any] = set()  # those that had a request: without a transport they are gone
        self._max_connections = max_connections
        self._waits = WaitingRequests(max_connections)
        self.make: Callable[[], Any]
        self._timer: asyncio.TimerHandle | None = None  # while there are connections

    def __len__(self) -> int:
        return len(self._since)

    def __call__(self) -> asyncio.Protocol:
        if self._is_full() and not self._make_room():
            self._context.messages.warn("HTTP connection refused: too many are open")
            return _Refusal()
        if self._context.shared.is_short_of_files():
            self._context.messages.warn(
                "HTTP connection refused: the remaining file descriptors are reserved for logs"
            )
            return _Refusal()
        protocol = self.make()
        self._since[protocol] = self._context.loop.time()
        self._sweep_later()
        self._senders[protocol] = HttpSender(protocol, self._context.loop, self._context.shared)
        assert isinstance(protocol, asyncio.Protocol)
        return protocol

    def _is_full(self) -> bool:
        """Return whether too many connections are open. Closed ones do not count, because clients
        may take a connection for each request."""
        if len(self._since) >= self._max_connections:
            gone = [each for each in self._asked if each.transport is None]
            for protocol in gone:
                if self._since[protocol] < float("inf"):  # its request has ended too
                    self._forget(protocol)
        return len(self._since) >= self._max_connections

    def _forget(self, protocol: Any) -> None:
        del self._since[protocol]
        self._asked.discard(protocol)
        self._senders.pop(protocol).close()

    def _make_room(self) -> bool:
        """Close the one that has waited longest: a client that sends requests in time gets in,
        however many connections others hold open without one."""
        waiting = [each for each in self._since if each.transport is not None]
        longest = min(waiting, key=self._since.__getitem__, default=None)
        if longest is None or self._since[longest] > self._context.loop.time() - SPARED_S:
            return False
        self._forget(longest)
        longest.transport.abort()
        return True

    @web.middleware
    async def note(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The handler reads the body, so the time for that counts as well."""
        if request.protocol not in self._senders:  # closed by _make_room, with a request on its way
            return _refusal(request, ApiError(503, "the connection is closed"))
        sender = request["sender"] = self._senders[request.protocol]
        request["waits"] = self._waits
        self._waits.answering += 1
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                request["body_is_in"] = lambda: limit.reschedule(None)
                if not request.can_read_body:
                    limit.reschedule(None)
                self._since[request.protocol] = float("inf")
                response = await handler(request)
                sender.wrote_body(response)
                return response
        except TimeoutError:
            return _refusal(request, ApiError(408, "request took too long to arrive"))
        except ConnectionError:
            if request.transport is not None and not request.transport.is_closing():
                raise
            return web.Response()  # the client has left: nothing is sent
        finally:
            self._waits.answering -= 1
            self._since[request.protocol] = self._context.loop.time()
            self._asked.add(request.protocol)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        oldest = self._context.loop.time() - self._timeout_s
        for protocol, since in list(self._since.items()):
            if protocol.transport is None or protocol.transport.is_closing():
                # Also true for one that is not connected yet, but not for longer than a sweep.
                if since < self._context.loop.time() - SWEEP_S:
                    self._forget(protocol)
            elif since < oldest:
                protocol.transport.abort()
        self._timer = None
        self._sweep_later()

    def _sweep_later(self) -> None:
        if self._timer is None and self._since:
            self._timer = self._context.loop.call_later(SWEEP_S, self._sweep)


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.abort()  # type: ignore[attr-defined]  # every stream transport has it


def exposition_of(families: Iterable[Family]) -> bytes:
    """The text format, version 0.0.4."""
    return generate_latest(_Collected(families))


class _Collected(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return map(_metric, self._families)


def _metric(family: Family) -> Metric:
    name = "journeyman_" + family.name.replace(".", "_")
    if family.kind == "histogram":
        name = name.removesuffix("_ms") + "_seconds"
    metric = Metric(name, family.meaning, family.kind)
    sample_name = name + "_total" if family.kind == "counter" else name
    for point in family.points:
        labels = {key: _word(value) for key, value in point.labels.items()}
        if isinstance(point.value, Histogram):
            _add_histogram(metric, labels, point.value)
        else:
            metric.add_sample(sample_name, labels, point.value)
    return metric


def _add_histogram(metric: Metric, labels: dict[str, str], histogram: Histogram) -> None:
    total = 0
    for bound, count in zip(_BOUNDS_S, histogram.counts, strict=True):
        total += count
        metric.add_sample(f"{metric.name}_bucket", {**labels, "le": bound}, total)
    metric.add_sample(f"{metric.name}_sum", labels, histogram.sum_ms / 1000)
    metric.add_sample(f"{metric.name}_count", labels, total)


def _word(value: str | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else value
