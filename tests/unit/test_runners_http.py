"""One HTTP request a run: exactly the promised bytes, and every kind of answer."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from journeyman.config import Settings
from journeyman.formats.ztick import Http
from journeyman.runners import RunRequest, RunResult
from journeyman.runners.http import HttpRunner
from journeyman.runners.reach import Reach
from tests.support.ports import free_port
from tests.support.runner_world import Handler, in_loop, raw_server, say_nothing, settings

TLS = Path(__file__).parent / "data"
NS = 1_711_612_800_000_000_000


class Recorder:
    """A real HTTP server that remembers what it was asked."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections: set[object] = set()
        self.status = 200
        self.headers: dict[str, str] = {}
        self.body = b"ok"

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.requests.append(
            (request.method, request.path_qs, dict(request.headers), await request.read())
        )
        self.connections.add(request.transport)
        return web.Response(status=self.status, headers=self.headers, body=self.body)

    @property
    def only(self) -> tuple[str, str, dict[str, str], bytes]:
        [request] = self.requests
        return request


@contextlib.asynccontextmanager
async def recorder(tls: ssl.SSLContext | None = None) -> AsyncIterator[Recorder]:
    world = Recorder()
    runner = web.ServerRunner(web.Server(world.handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    world.port = runner.addresses[0][1]
    yield world
    await runner.cleanup()


@contextlib.asynccontextmanager
async def http_runner(
    limits: Settings | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HttpRunner]:
    runners = (limits or settings()).runners
    runner = HttpRunner(runners, Reach(runners), tls=tls)
    yield runner
    await runner.close()


async def ask(method: str, url: str, *, job_id: str = "a.b", **limits: int) -> RunResult:
    async with http_runner(settings(**limits)) as runner:
        return await runner.run(RunRequest(job_id, NS, Http(method, url)))


def answering(answer: bytes) -> Handler:
    """A server that reads one request and says just this."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()

    return handle


async def ask_raw(handler: Handler, method: str = "GET", **limits: int) -> RunResult:
    async with raw_server(handler) as server:
        url = f"http://127.0.0.1:{server.port}/"
        async with http_runner(settings(**limits)) as runner:
            result = await runner.run(RunRequest("a.b", NS, Http(method, url)))
        assert server.opened == 1, "asked more than once"
        return RunResult(
            result.success, result.reason.replace(str(server.port), "PORT"), result.output
        )


async def ask_slow(handler: Handler) -> tuple[RunResult, str]:
    """With the first limit in which a connection was made, and that limit: on a busy machine a
    short one may be over before."""
    for limit in ("0.2", "2", "20"):
        result = await ask_raw(handler, network_timeout_ms=int(float(limit) * 1000))
        if result.reason.startswith("no answer from"):
            break
    return result, limit


# -- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT"])
@in_loop
async def test_post_and_put_carry_the_job_as_json(method):
    async with recorder() as server:
        result = await ask(method, f"http://127.0.0.1:{server.port}/hook?x=1#part")
        assert result == RunResult(True, "", b"ok")
        sent, path, headers, body = server.only
        assert (sent, path) == (method, "/hook?x=1")
        assert body == b'{"job_id":"a.b","execution":1711612800000000000}'
        assert headers["Content-Type"] == "application/json"
        assert headers["Content-Length"] == str(len(body))
        assert headers["User-Agent"].startswith("journeyman/")


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@in_loop
async def test_get_and_delete_carry_no_body(method):
    async with recorder() as server:
        assert (await ask(method, f"http://127.0.0.1:{server.port}")).success
        sent, path, headers, body = server.only
        assert (sent, path, body) == (method, "/", b"")
        assert "Content-Type" not in headers
        assert headers.get("Content-Length", "0") == "0"


@in_loop
async def test_ids_are_escaped_as_json_and_otherwise_sent_as_utf8():
    async with recorder() as server:
        await ask("POST", f"http://127.0.0.1:{server.port}/", job_id='q" \\ \n \0 ü')
        expected = r'{"job_id":"q\" \\ \n \u0000 ü","execution":1711612800000000000}'
        assert server.only[3] == expected.encode()


@pytest.mark.parametrize(
    ("userinfo", "credentials"),
    [
        ("bob:pass", "bob:pass"),
        ("bob", "bob:"),
        (":pass", ":pass"),
        ("b%40b:p%3A%2F%25", "b@b:p:/%"),
        ("bob:p@ss", "bob:p@ss"),
        ("ü:ß", "ü:ß"),
    ],
)
@in_loop
async def test_userinfo_becomes_basic_authentication(userinfo, credentials):
    async with recorder() as server:
        await ask("GET", f"http://{userinfo}@127.0.0.1:{server.port}/x")
        _, path, headers, _ = server.only
        expected = base64.b64encode(credentials.encode()).decode()
        assert headers["Authorization"] == f"Basic {expected}"
        assert headers["Host"] == f"127.0.0.1:{server.port}"
        assert path == "/x"


@in_loop
async def test_without_userinfo_there_is_no_authentication():
    async with recorder() as server:
        await ask("GET", f"http://127.0.0.1:{server.port}/")
        assert "Authorization" not in server.only[2]


@in_loop
async def test_a_url_is_sent_as_it_stands():
    path = "/a%2Fb/%7Euser/x;y=1?sig=a%2Bb%3D&t=%41+1"
    asked = []
    answer = answering(b"HTTP/1.1 200 OK\r\n\r\n")

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        await answer(reader, writer)

    async with raw_server(listen) as server:
        assert (await ask("GET", f"http://127.0.0.1:{server.port}{path}")).success
    assert asked == [f"GET {path} HTTP/1.1\r\n".encode()]


@in_loop
async def test_every_run_has_its_own_connection_and_no_cookies():
    async with recorder() as server, http_runner() as runner:
        server.headers = {"Set-Cookie": "session=1"}
        for _ in range(3):
            url = f"http://127.0.0.1:{server.port}/"
            assert (await runner.run(RunRequest("a", NS, Http("POST", url)))).success
        assert len(server.requests) == 3
        assert len(server.connections) == 3
        assert all("Cookie" not in headers for _, _, headers, _ in server.requests)


@in_loop
async def test_proxies_of_the_environment_are_not_used(monkeypatch):
    async with recorder() as server, recorder() as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        assert (await ask("GET", f"http://127.0.0.1:{server.port}/")).success
        assert not proxy.requests


# -- how answers are judged ----------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_succeeds(status):
    answer = f"HTTP/1.1 {status} Fine\r\nContent-Length: 0\r\n\r\n".encode()
    assert asyncio.run(ask_raw(answering(answer))) == RunResult(True)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (301, "301 Moved Permanently, and redirects are not followed"),
        (302, "302 Found, and redirects are not followed"),
        (400, "400 Bad Request"),
        (401, "401 Unauthorized"),
        (404, "404 Not Found"),
        (500, "500 Internal Server Error"),
        (599, "599"),
    ],
)
@in_loop
async def test_anything_else_fails_and_redirects_are_not_followed(status, reason):
    async with recorder() as server:
        server.status = status
        server.headers = {"Location": f"http://127.0.0.1:{server.port}/elsewhere"}
        result = await ask("POST", f"http://127.0.0.1:{server.port}/")
        assert result.reason == f"http://127.0.0.1:{server.port} answered {reason}"
        assert result.output == b"ok"
        assert len(server.requests) == 1


@in_loop
async def test_provisional_answers_are_waited_out():
    answer = b"HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    assert (await ask_raw(answering(answer))).success


@in_loop
async def test_a_body_that_is_cut_short_does_not_turn_success_into_failure():
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"
    result = await ask_raw(answering(answer))
    assert (result.success, result.reason) == (True, "")


@in_loop
async def test_a_big_body_is_not_read_to_its_end():
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Oh\r\n\r\n")
        while True:
            writer.write(b"x" * 65536)
            sent += 65536
            await writer.drain()  # fails when the client hangs up

    result = await ask_raw(flood, output_bytes=100)
    assert result.reason == "http://127.0.0.1:PORT answered 500 Internal Server Error"
    assert len(result.output) < 200
    assert sent < 50_000_000


@in_loop
async def test_a_compressed_body_is_not_unpacked():
    packed = gzip.compress(b"0" * 10_000_000)
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(packed)}\r\n\r\n"
    result = await ask_raw(answering(head.encode() + packed), output_bytes=1_000_000)
    assert result.output == packed


@in_loop
async def test_a_body_that_drips_ends_at_the_limit_and_the_status_counts():
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not reader.at_eof():
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    for limit_ms in (200, 2_000, 20_000):  # a busy machine needs longer to get to the status
        result = await ask_raw(drip, network_timeout_ms=limit_ms)
        if result.success:
            break
    assert result.success


@in_loop
async def test_headers_that_drip_end_at_the_limit():
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while not reader.at_eof():
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.01)

    result, limit = await ask_slow(drip)
    assert result.reason == f"no answer from http://127.0.0.1:PORT within {limit} s"


@in_loop
async def test_silence_ends_at_the_limit():
    result, limit = await ask_slow(say_nothing)
    assert result.reason == f"no answer from http://127.0.0.1:PORT within {limit} s"


@pytest.mark.parametrize(
    "garbage",
    [b"SSH-2.0-OpenSSH_9.2\r\n", b"\x00\xff\x00\xff\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n"],
    ids=["ssh", "binary", "status"],
)
def test_garbage_is_told(garbage):
    result = asyncio.run(ask_raw(answering(garbage)))
    assert result.reason == "http://127.0.0.1:PORT answered with something that is not HTTP"


@in_loop
async def test_endless_headers_are_told():
    answer = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000
    result = await ask_raw(answering(answer))
    assert not result.success
    assert len(result.reason) < 200


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_a_connection_closed_without_an_answer_is_told_and_not_tried_again(method):
    result = asyncio.run(ask_raw(answering(b""), method))
    assert result.reason == "http://127.0.0.1:PORT closed the connection without an answer"


@in_loop
async def test_nobody_listening_is_told():
    port = free_port()
    result = await ask("GET", f"http://u:p@127.0.0.1:{port}/secret?token=1")
    assert result.reason == f"cannot connect to http://127.0.0.1:{port}: connection refused"


@in_loop
async def test_an_unknown_host_is_told():
    result = await ask("GET", "http://no-such-host.invalid/")
    assert result.reason == (
        "cannot connect to http://no-such-host.invalid: the host name cannot be resolved"
    )


@in_loop
async def test_a_connection_that_never_comes_is_told_apart_from_a_missing_answer(monkeypatch):
    async def never(*args: object, **kwargs: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    result = await ask("GET", "http://host.invalid/", network_timeout_ms=50)
    assert result.reason == "no connection to http://host.invalid within 0.05 s"


# -- TLS -----------------------------------------------------------------------------------------


def server_tls() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "localhost.pem")
    return context


@in_loop
async def test_a_trusted_certificate_is_accepted():
    trusting = ssl.create_default_context(cafile=str(TLS / "localhost.pem"))
    async with recorder(server_tls()) as server, http_runner(tls=trusting) as runner:
        url = f"https://localhost:{server.port}/"
        assert await runner.run(RunRequest("a", NS, Http("POST", url))) == RunResult(
            True, "", b"ok"
        )


@in_loop
async def test_a_certificate_nobody_vouches_for_is_refused():
    async with recorder(server_tls()) as server:
        result = await ask("GET", f"https://u:p@localhost:{server.port}/")
        assert result.reason == (
            f"cannot connect to https://localhost:{server.port}: "
            "the certificate is not trusted: self-signed certificate"
        )
        assert not server.requests


@in_loop
async def test_a_certificate_for_another_host_is_refused():
    trusting = ssl.create_default_context(cafile=str(TLS / "localhost.pem"))
    async with recorder(server_tls()) as server, http_runner(tls=trusting) as runner:
        url = f"https://127.0.0.1:{server.port}/"
        result = await runner.run(RunRequest("a", NS, Http("GET", url)))
        assert "the certificate is not trusted" in result.reason


@in_loop
async def test_a_server_without_tls_is_told():
    async with recorder() as server:
        result = await ask("GET", f"https://localhost:{server.port}/")
        assert result.reason.endswith("the TLS handshake failed")
