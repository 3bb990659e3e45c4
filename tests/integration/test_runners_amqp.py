"""The amqp runner against a real RabbitMQ, and against servers that are none."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from urllib.parse import quote

import aiormq
import pamqp.commands
import pamqp.frame
import pytest
from aiormq.abc import AbstractChannel

from journeyman.formats.ztick import Amqp
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
from tests.support.servers.services import USERS


@pytest.fixture
def queue() -> str:
    """Workers share the broker: every test has a queue of its own."""
    return f"test-{uuid.uuid4()}"


@contextlib.asynccontextmanager
async def channel_to(port: int, vhost: str = "/") -> AsyncIterator[AbstractChannel]:
    url = f"amqp://guest:guest@127.0.0.1:{port}/{quote(vhost, safe='')}"
    async with aiormq.connect(url) as connection:
        yield await connection.channel()


async def fresh_queue(channel: AbstractChannel, queue: str) -> None:
    await channel.queue_delete(queue)
    await channel.queue_declare(queue)


async def bodies_in(channel: AbstractChannel, queue: str) -> list[bytes]:
    """What is in the queue; it is empty then."""
    bodies = []
    while (message := await channel.basic_get(queue, no_ack=True)).delivery_tag is not None:
        bodies.append(message.body)
    return bodies


async def run(dsn: str, exchange: str, routing_key: str, job_id: str = "job") -> RunResult:
    async with RunnerSet(settings()) as runners:
        return await runners.run(RunRequest(job_id, 5, Amqp(dsn, exchange, routing_key)))


class AmqpWorld(World):
    def __init__(self, port: int, channel: AbstractChannel, queue: str, hung: RawServer) -> None:
        self._address = f"127.0.0.1:{port}"
        self._channel = channel
        self._queue = queue
        self._hung = hung

    def succeeding(self) -> RunnerRecord:
        return Amqp(f"amqp://{self._address}", "", self._queue)

    def failing(self) -> RunnerRecord:
        return Amqp(f"amqp://guest:{PASSWORD}@{self._address}/", "", self._queue)

    def hanging(self) -> RunnerRecord:
        return Amqp(f"amqp://guest:{PASSWORD}@127.0.0.1:{self._hung.port}/", "", self._queue)

    def impossible(self) -> list[RunnerRecord]:
        dsns = ["", "amqp://", f"amqps://u:{PASSWORD}@h", f"amqp://u:{PASSWORD}@h:x", "host"]
        dsns += [f"amqp://u:{PASSWORD}@{'a' * 300}/", "amqp://h ost/", f"amqp://h/{'v' * 300}"]
        names = [Amqp("amqp://h", name, "") for name in ("x" * 128, "ü", "a\nb")]
        names.append(Amqp("amqp://h", "", "ü" * 128))
        return [*(Amqp(dsn, "", "k") for dsn in dsns), *names]

    async def received(self, count: int = 1) -> list[bytes]:
        bodies = await bodies_in(self._channel, self._queue)
        assert len(bodies) == count
        return bodies

    async def hanging_began(self) -> None:
        await self._hung.connected.wait()

    async def nothing_left(self) -> None:
        if self._hung.opened:
            await self._hung.wait_all_closed()


class TestAmqpContract(RunnerContract):
    @pytest.fixture(autouse=True)
    def _prepare(self, rabbit_port, queue) -> None:
        self.port, self.queue = rabbit_port, queue

    @contextlib.asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        async with channel_to(self.port) as channel, raw_server(say_nothing) as hung:
            await fresh_queue(channel, self.queue)
            yield AmqpWorld(self.port, channel, self.queue, hung)
            await channel.queue_delete(self.queue)


# -- where messages go ---------------------------------------------------------------------------


@in_loop
async def test_a_message_goes_through_its_exchange_by_its_key(rabbit_port, queue):
    async with channel_to(rabbit_port) as channel:
        exchange = f"to {queue}"
        await fresh_queue(channel, queue)
        await channel.exchange_declare(exchange, exchange_type="direct", auto_delete=True)
        await channel.queue_bind(queue, exchange, "the key")
        assert await run(f"amqp://127.0.0.1:{rabbit_port}", exchange, "the key") == RunResult(True)
        assert (await run(f"amqp://127.0.0.1:{rabbit_port}", exchange, "no key")).success
        assert await bodies_in(channel, queue) == [b"job"]
        await channel.queue_delete(queue)


@in_loop
async def test_a_message_is_persistent(rabbit_port, queue):
    async with channel_to(rabbit_port) as channel:
        await fresh_queue(channel, queue)
        assert (await run(f"amqp://127.0.0.1:{rabbit_port}", "", queue)).success
        message = await channel.basic_get(queue, no_ack=True)
        assert message.header.properties.delivery_mode == 2
        await channel.queue_delete(queue)


@pytest.mark.parametrize(
    ("path", "vhost"),
    [
        ("", "/"),
        ("/", "/"),
        ("/%2f", "/"),
        ("//", "/"),
        ("/orders", "orders"),
        ("/a%2Fb", "a/b"),
        ("/a/b", "a/b"),
        ("/%C3%BCbung", "übung"),
        ("/übung", "übung"),
    ],
)
@in_loop
async def test_the_vhost_of_the_address_is_used(rabbit_port, queue, path, vhost):
    async with channel_to(rabbit_port, vhost) as channel:
        await fresh_queue(channel, queue)
        result = await run(f"amqp://127.0.0.1:{rabbit_port}{path}", "", queue)
        assert result == RunResult(True)
        assert await bodies_in(channel, queue) == [b"job"]
        await channel.queue_delete(queue)


@in_loop
async def test_a_user_logs_in_with_its_password(rabbit_port):
    password = quote(USERS["bob"], safe="")
    dsn = f"amqp://bob:{password}@127.0.0.1:{rabbit_port}/orders"
    assert await run(dsn, "amq.topic", "any") == RunResult(True)


# -- what a broker refuses -----------------------------------------------------------------------


@in_loop
async def test_a_wrong_password_is_told(rabbit_port):
    result = await run(f"amqp://bob:{PASSWORD}@127.0.0.1:{rabbit_port}/", "", "k")
    assert result.reason == (
        f"the broker at 127.0.0.1:{rabbit_port} refused the user or the password"
    )


@in_loop
async def test_an_unknown_vhost_is_told(rabbit_port):
    result = await run(f"amqp://127.0.0.1:{rabbit_port}/nowhere", "", "k")
    assert result.reason == (
        f"the broker at 127.0.0.1:{rabbit_port} refused vhost 'nowhere': "
        "it does not exist, or the user may not use it"
    )


@in_loop
async def test_an_unknown_exchange_is_told(rabbit_port):
    result = await run(f"amqp://127.0.0.1:{rabbit_port}", "no such exchange", "k")
    assert result.reason == (
        f"the broker at 127.0.0.1:{rabbit_port} refused the message to exchange "
        "'no such exchange': NOT_FOUND - no exchange 'no such exchange' in vhost '/'"
    )


@in_loop
async def test_a_missing_right_is_told(rabbit_port):
    result = await run(f"amqp://reader:reader@127.0.0.1:{rabbit_port}/", "amq.topic", "k")
    assert "refused the message to exchange 'amq.topic': ACCESS_REFUSED" in result.reason


@in_loop
async def test_a_message_that_the_broker_does_not_take_is_a_failure(rabbit_port, queue):
    async with channel_to(rabbit_port) as channel:
        await channel.queue_delete(queue)
        await channel.queue_declare(
            queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
        assert (await run(f"amqp://127.0.0.1:{rabbit_port}", "", queue)).success
        result = await run(f"amqp://127.0.0.1:{rabbit_port}", "", queue)
        assert result.reason == (
            f"the broker at 127.0.0.1:{rabbit_port} could not take the message"
        )
        await channel.queue_delete(queue)


# -- servers that are no broker ------------------------------------------------------------------


async def run_raw(handler: Handler, user: str = f"u:{PASSWORD}", **limits: int) -> str:
    async with raw_server(handler) as server, RunnerSet(settings(**limits)) as runners:
        dsn = f"amqp://{user}@127.0.0.1:{server.port}/"
        result = await runners.run(RunRequest("job", 5, Amqp(dsn, "", "k")))
        assert not result.success
        assert server.opened == 1, "tried more than once"
        await server.wait_all_closed()
        return result.reason.replace(str(server.port), "PORT")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            b"",
            "could not connect to the broker at 127.0.0.1:PORT: the server closed the connection",
        ),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the broker at 127.0.0.1:PORT"),
        (b"AMQP\x00\x01\x00\x00", "the broker at 127.0.0.1:PORT does not speak AMQP 0-9-1"),
        (b"\x01\x00\x00\x00\x00\x00\x04\xff\xff\xff\xff\xce", "does not speak AMQP 0-9-1"),
        (b"\x08\x00\x00\x00\x00\x00\x00\xce", "does not speak AMQP 0-9-1"),
    ],
    ids=["closed", "http", "other version", "unknown method", "heartbeat"],
)
def test_what_is_answered_is_told(answer, told):
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(8)
        writer.write(answer)
        await writer.drain()

    reason = asyncio.run(run_raw(handle))
    assert told in reason
    assert "runner broke" not in reason


def real_until_published(port: int, then: Handler) -> Handler:
    """Everything up to the message is a real broker's; from there on ``then`` answers."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection("127.0.0.1", port)

        async def answers() -> None:
            while data := await from_broker.read(65536):
                writer.write(data)

        answering = asyncio.create_task(answers())
        while (data := await reader.read(65536)) and b"\x00\x3c\x00\x28" not in data:
            to_broker.write(data)  # 60, 40: basic.publish
        answering.cancel()
        to_broker.close()
        await then(reader, writer)

    return handle


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    del reader, writer


@in_loop
async def test_a_broker_that_goes_away_is_told(rabbit_port):
    assert await run_raw(real_until_published(rabbit_port, hang_up), user="guest:guest") == (
        "could not get a confirmation from the broker at 127.0.0.1:PORT: "
        "the server closed the connection"
    )


async def shut_down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What a broker says when its operator stops it."""
    text = "CONNECTION_FORCED - broker forced connection closure"
    writer.write(pamqp.frame.marshal(pamqp.commands.Connection.Close(320, text, 0, 0), 0))
    await say_nothing(reader, writer)


@in_loop
async def test_a_broker_that_is_shut_down_is_told(rabbit_port):
    assert await run_raw(real_until_published(rabbit_port, shut_down), user="guest:guest") == (
        "the broker at 127.0.0.1:PORT closed the connection: "
        "CONNECTION_FORCED - broker forced connection closure"
    )


@in_loop
async def test_a_broker_that_falls_silent_is_told_and_hung_up_on(rabbit_port):
    """It does not answer the goodbye either, and is not waited for."""
    silent = real_until_published(rabbit_port, say_nothing)
    for limit_s in (1, 10, 60):  # a busy machine needs longer to get so far
        reason = await run_raw(silent, user="guest:guest", network_timeout_ms=limit_s * 1000)
        if "confirmation" in reason:
            break
    assert reason == (
        f"could not get a confirmation from the broker at 127.0.0.1:PORT within {limit_s} s"
    )


@in_loop
async def test_nobody_listening_is_told():
    port = free_port()
    result = await run(f"amqp://u:{PASSWORD}@127.0.0.1:{port}", "", "k")
    assert result.reason == (
        f"could not connect to the broker at 127.0.0.1:{port}: connection refused"
    )


@in_loop
async def test_an_unknown_host_is_told():
    result = await run("amqp://no-such-host.invalid", "", "k")
    assert result.reason == (
        "could not connect to the broker at no-such-host.invalid:5672: "
        "the host name cannot be resolved"
    )
