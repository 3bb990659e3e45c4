"""The runner ``http <method> <url>``: one request, which succeeds if it is answered with 2xx.

    POST /hook HTTP/1.1                              GET and DELETE have no body;
    Content-Type: application/json                   POST and PUT have exactly this one
    Authorization: Basic ...      (user:password@ in the url)

    {"job_id":"backup.daily","execution":1711612800000000000}

- Each run has a connection of its own and sends one request. A connection kept from an earlier
  run may be dead without our knowing, and nothing must be sent twice to find out.
- The status decides. The body is read for the report only, as far as it fits; that it is late,
  endless or cut short changes nothing.
- Redirects are answers like any other and not followed. Cookies are not kept. Proxies named in
  the environment are not used. https is checked against the system's certificates.
- Reasons name scheme, host and port. Paths and queries hold tokens too often.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace

import aiohttp
from yarl import URL

from journeyman import __version__
from journeyman.config import RunnerSettings
from journeyman.errors import UsageError
from journeyman.formats.ztick import Http
from journeyman.runners import contract
from journeyman.runners.network import address, why
from journeyman.runners.reach import Reach, current_gate, make_socket

METHODS = ("GET", "POST", "PUT", "DELETE")
METHODS_WITH_BODY = ("POST", "PUT")
DEFAULT_PORTS = {"http": 80, "https": 443}

READ_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class _Target:
    url: URL
    headers: dict[str, str] = field(repr=False)
    name: str  # scheme, host and port


class HttpRunner:
    def __init__(
        self,
        settings: RunnerSettings,
        reach: Reach,
        sign: Callable[[str, int, bytes], dict[str, str]] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``tls`` instead of the system's certificates, where these are not the ones to trust."""
        self._settings = settings
        self._sign = sign
        self._reach = reach
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def run(self, request: contract.RunRequest[Http]) -> contract.RunResult:
        method = request.runner.method
        if method not in METHODS:
            return contract.failed_run(
                f"{contract.quote_name(method)} is not a method of the http runner"
            )
        target = _read_url(request.runner.url)
        if isinstance(target, str):
            return contract.failed_run(target)
        body = None
        if method in METHODS_WITH_BODY:
            body = request.message()
            target.headers["Content-Type"] = "application/json"
            if request.facts is not None and self._sign is not None:
                try:
                    signed = self._sign(request.rule, request.execution_ns, body)
                except UsageError as error:
                    return contract.failed_run(str(error))
                target.headers.update(signed)
        held = current_gate.set(self._reach.gate(request.rule, target.url.raw_host or ""))
        try:
            return await self._exchange(method, target, body)
        finally:
            current_gate.reset(held)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(
        self, method: str, target: _Target, body: bytes | None
    ) -> contract.RunResult:
        limit_ms = self._settings.network_timeout_ms
        output = contract.BoundedOutput(self._settings.output_bytes)
        progress = SimpleNamespace(connected=False)
        status = None
        try:
            async with (
                asyncio.timeout(limit_ms / 1000),
                self._shared_session().request(
                    method,
                    target.url,
                    headers=target.headers,
                    data=body,
                    allow_redirects=False,
                    trace_request_ctx=progress,
                ) as response,
            ):
                status = response.status
                await _read_body(response, output)
        except TimeoutError:
            if status is None:
                missing = "no answer from" if progress.connected else "no connection to"
                return contract.failed_run(
                    f"{missing} {target.name} within {contract.limit_text(limit_ms)}"
                )
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if status is None:
                return contract.failed_run(_failure(target.name, error, progress.connected))
        return _judge(target.name, status, output.text())

    def _shared_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            trace = aiohttp.TraceConfig()
            trace.on_connection_create_end.append(_note_connected)
            self._session = aiohttp.ClientSession(
                # The caller decides how many run at once.
                connector=aiohttp.TCPConnector(
                    limit=0, force_close=True, ssl=self._tls or True, socket_factory=make_socket
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                # A small answer must not unfold into a huge one.
                auto_decompress=False,
                headers={"User-Agent": f"journeyman/{__version__}", "Accept-Encoding": "identity"},
                skip_auto_headers=("Content-Type",),
                middlewares=(_only_once,),
                trace_configs=[trace],
            )
        return self._session


class _LostError(aiohttp.ClientError):
    """The connection failed; the cause says how."""


async def _only_once(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Lost is lost. By itself aiohttp sends all but POST once more; here it cannot know."""
    try:
        return await send(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _LostError from error


async def _note_connected(
    session: aiohttp.ClientSession,  # noqa: ARG001 - aiohttp's signature
    context: SimpleNamespace,
    params: aiohttp.TraceConnectionCreateEndParams,  # noqa: ARG001
) -> None:
    context.trace_request_ctx.connected = True


async def _read_body(response: aiohttp.ClientResponse, output: contract.BoundedOutput) -> None:
    while not output.full:
        chunk = await response.content.read(READ_BYTES)
        if not chunk:
            return
        output.feed(chunk)
    # More than is kept: hang up.
    response.close()


def _read_url(text: str) -> _Target | str:
    """The url as it is asked for, or one phrase that says why it cannot be."""
    try:
        # An ASCII url is sent as it stands: a signed url must not be rewritten.
        url = URL(text, encoded=text.isascii())
        user, password = url.user, url.password
        host, port = url.host, url.port
        url = url.with_fragment(None)
        if user is not None or password is not None:
            url = url.with_user(None)
    except (ValueError, UnicodeError):
        return "the url is not valid"
    if url.scheme not in DEFAULT_PORTS or not host or not port:
        return "the url is not of the form http://host[:port][/path] or https://..."
    headers = {}
    if user is not None or password is not None:
        credentials = f"{user or ''}:{password or ''}".encode(errors="surrogateescape")
        headers["Authorization"] = f"Basic {base64.b64encode(credentials).decode()}"
    place = host if port == DEFAULT_PORTS[url.scheme] else address(host, port)
    return _Target(url, headers, f"{url.scheme}://{place}")


def _failure(name: str, error: Exception, connected: bool) -> str:
    if isinstance(error, aiohttp.ClientResponseError):
        return f"{name} answered with something that is not HTTP"
    if isinstance(error.__cause__, aiohttp.ServerDisconnectedError):
        return f"{name} closed the connection without an answer"
    verb = "lost the connection to" if connected else "cannot connect to"
    return f"{verb} {name}: {why(error)}"


def _judge(name: str, status: int | None, output: bytes) -> contract.RunResult:
    assert status is not None
    if 200 <= status < 300:
        return contract.RunResult(True, output=output)
    try:
        phrase = f" {HTTPStatus(status).phrase}"
    except ValueError:
        phrase = ""
    note = ", and redirects are not followed" if 300 <= status < 400 else ""
    return contract.failed_run(f"{name} answered {status}{phrase}{note}", output)
