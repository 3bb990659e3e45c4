"""The redis runner against a real Redis, and against servers that are none."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from journeyman.formats.ztick import Redis
from journeyman.formats.ztick import Runner as RunnerRecord
from journeyman.runners import RunnerSet, RunRequest, RunResult
from tests.support.ports import free_port
from tests.support.runner_contract import PASSWORD, RunnerContract, World
from tests.support.runner_world import (
    Handler,
    RawServer,
    in_loop,
    raw_server,
    say_nothing,
    settings,
)


@pytest.fixture
def client(redis_port) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_port, protocol=2, decode_responses=False) as client:
        yield client


@pytest.fixture
def key() -> str:
    """Workers share the server: every test has a key of its own."""
    return f"{uuid.uuid4()} ü \r\n"


async def run(url: str, command: str, key: str, job_id: str = "job") -> RunResult:
    async with RunnerSet(settings()) as runners:
        return await runners.run(RunRequest(job_id, 5, Redis(url, command, key)))


class RedisWorld(World):
    def __init__(self, port: int, client: redis.Redis, key: str, hung: RawServer) -> None:
        self._url = f"redis://127.0.0.1:{port}"
        self._client = client
        self._key = key
        self._hung = hung

    def succeeding(self) -> RunnerRecord:
        return Redis(self._url, "RPUSH", self._key)

    def failing(self) -> RunnerRecord:
        return Redis(self._url.replace("//", f"//user:{PASSWORD}@"), "RPUSH", self._key)

    def hanging(self) -> RunnerRecord:
        return Redis(f"redis://user:{PASSWORD}@127.0.0.1:{self._hung.port}", "SET", self._key)

    def impossible(self) -> list[RunnerRecord]:
        urls = ["", "redis://", f"rediss://:{PASSWORD}@host", f"redis://:{PASSWORD}@h:x", "host"]
        urls += ["redis://h/999", f"redis://:{PASSWORD}@{'a' * 300}/", "redis://h ost/"]
        return [*(Redis(url, "SET", "k") for url in urls), Redis(self._url, "FLUSHALL", "k")]

    async def received(self, count: int = 1) -> list[bytes]:
        values = self._client.lrange(self._key, 0, -1)
        assert isinstance(values, list)
        assert len(values) == count
        return [value for value in values if isinstance(value, bytes)]

    async def hanging_began(self) -> None:
        await self._hung.connected.wait()

    async def nothing_left(self) -> None:
        if self._hung.opened:
            await self._hung.wait_all_closed()


class TestRedisContract(RunnerContract):
    @pytest.fixture(autouse=True)
    def _prepare(self, redis_port, client, key) -> None:
        self.port, self.client, self.key = redis_port, client, key

    @contextlib.asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        self.client.delete(self.key)
        async with raw_server(say_nothing) as hung:
            yield RedisWorld(self.port, self.client, self.key, hung)


# -- the commands --------------------------------------------------------------------------------


@in_loop
async def test_rpush_and_lpush_add_at_their_ends(redis_port, client, key):
    for command, job_id in (("RPUSH", "b"), ("RPUSH", "c"), ("LPUSH", "a")):
        result = await run(f"redis://127.0.0.1:{redis_port}", command, key, job_id)
        assert result == RunResult(True)
    assert client.lrange(key, 0, -1) == [b"a", b"b", b"c"]


@in_loop
async def test_set_replaces(redis_port, client, key):
    for job_id in ("first", "second"):
        assert (await run(f"redis://127.0.0.1:{redis_port}/0", "SET", key, job_id)).success
    assert client.get(key) == b"second"


@in_loop
async def test_publish_reaches_who_listens(redis_port, client, key):
    with client.pubsub() as listener:
        listener.subscribe(key)
        assert listener.get_message(timeout=60)
        assert (await run(f"redis://127.0.0.1:{redis_port}", "PUBLISH", key)).success
        message = await asyncio.to_thread(listener.get_message, timeout=60)
        assert message is not None
        assert message["data"] == b"job"


@in_loop
async def test_publishing_to_nobody_succeeds(redis_port, client, key):
    assert await run(f"redis://127.0.0.1:{redis_port}", "PUBLISH", key) == RunResult(True)


@in_loop
async def test_the_database_of_the_url_is_used(redis_port, client, key):
    assert (await run(f"redis://127.0.0.1:{redis_port}/7", "SET", key)).success
    assert client.get(key) is None
    with redis.Redis(port=redis_port, protocol=2, db=7) as other:
        assert other.get(key) == b"job"


# -- who may -------------------------------------------------------------------------------------


@in_loop
async def test_a_user_logs_in_with_its_password(redis_port, client, key):
    client.execute_command("ACL", "SETUSER", "bob", "on", ">p@ss/w:rd%", "~*", "&*", "+@all")
    url = f"redis://bob:p%40ss%2Fw:rd%25@127.0.0.1:{redis_port}/1"
    assert await run(url, "SET", key) == RunResult(True)


@in_loop
async def test_a_wrong_password_is_told(redis_port, client, key):
    result = await run(f"redis://nobody:{PASSWORD}@127.0.0.1:{redis_port}", "SET", key)
    assert result.reason == (
        f"redis at 127.0.0.1:{redis_port} refused access: "
        "invalid username-password pair or user is disabled"
    )


@in_loop
async def test_a_missing_right_is_told(redis_port, client, key):
    client.execute_command("ACL", "SETUSER", "reader", "on", f">{PASSWORD}", "~*", "+get")
    result = await run(f"redis://reader:{PASSWORD}@127.0.0.1:{redis_port}", "SET", key)
    assert "refused access" in result.reason
    assert "'set'" in result.reason
    assert PASSWORD not in result.reason


# -- what Redis refuses --------------------------------------------------------------------------


@in_loop
async def test_a_key_of_another_kind_is_told(redis_port, client, key):
    client.set(key, "a string")
    result = await run(f"redis://127.0.0.1:{redis_port}", "RPUSH", key)
    assert result.reason == (
        f"redis at 127.0.0.1:{redis_port} refused RPUSH: "
        "WRONGTYPE Operation against a key holding the wrong kind of value"
    )


@in_loop
async def test_a_database_that_does_not_exist_is_told(redis_port, client, key):
    result = await run(f"redis://127.0.0.1:{redis_port}/200", "SET", key)
    assert result.reason == (
        f"redis at 127.0.0.1:{redis_port} refused SET: DB index is out of range"
    )


# -- servers that are no Redis -------------------------------------------------------------------


async def run_raw(handler: Handler, **limits: int) -> str:
    async with raw_server(handler) as server, RunnerSet(settings(**limits)) as runners:
        url = f"redis://127.0.0.1:{server.port}"
        result = await runners.run(RunRequest("job", 5, Redis(url, "SET", "k")))
        assert not result.success
        assert server.opened == 1, "tried more than once"
        return result.reason.replace(str(server.port), "PORT")


def answering(answer: bytes) -> Handler:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(answer)
        await writer.drain()

    return handle


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"", "could not get an answer from redis at 127.0.0.1:PORT: Connection closed by server"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "could not get an answer from redis"),
        (b"-NOAUTH Authentication required.\r\n", "refused access: Authentication required"),
        (b"-LOADING Redis is loading\r\n", "could not get an answer from redis"),
        (b"-OOM command not allowed\r\n", "refused SET: command not allowed"),
        (b"-READONLY You can't write\r\n", "refused SET: You can't write"),
        (b"-ERR a http://u:p@host b\r\n", "refused SET: a http://***@host b"),
        (b":not a number\r\n", "could not get an answer from redis"),
    ],
    ids=["closed", "http", "noauth", "loading", "oom", "readonly", "password", "number"],
)
def test_what_is_answered_is_told(answer, told):
    assert told in asyncio.run(run_raw(answering(answer)))


@in_loop
async def test_an_answer_that_drips_ends_at_the_limit():
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            writer.write(b"+")
            await writer.drain()
            await asyncio.sleep(0.01)

    for limit in ("0.2", "2", "20"):  # a busy machine needs longer to connect
        reason = await run_raw(drip, network_timeout_ms=int(float(limit) * 1000))
        if "connect" not in reason:
            break
    assert reason == f"could not get an answer from redis at 127.0.0.1:PORT within {limit} s"


@in_loop
async def test_nobody_listening_is_told():
    port = free_port()
    result = await run(f"redis://u:{PASSWORD}@127.0.0.1:{port}", "SET", "k")
    assert result.reason == (f"could not connect to redis at 127.0.0.1:{port}: connection refused")


@in_loop
async def test_an_unknown_host_is_told():
    result = await run("redis://no-such-host.invalid", "SET", "k")
    assert result.reason == (
        "could not connect to redis at no-such-host.invalid:6379: the host name cannot be resolved"
    )
