"""The runner ``amqp <dsn> <exchange> <routing_key>``: one confirmed message with the job id.

    broker                                           a refusal means
    connection.start .. tune .. open vhost           the user or the password; the vhost
    channel.open, confirm.select
    basic.publish exchange routing_key, body         no such exchange, or no right to it
    basic.ack                                        basic.nack: it could not be taken
    connection.close

- Each run has a connection of its own, AMQP 0-9-1 without TLS.
- The run succeeds when the broker has confirmed the message. ztick does not ask for that: there a
  message to an exchange that does not exist counts as sent. A message that no queue is bound for
  is confirmed and dropped by the broker; that is the broker's configuration and not an error.
- The message is marked persistent, so that a durable queue has it on disk before it is confirmed.
- The empty exchange is the default one, where the routing key is the name of a queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from typing import Any

import aiormq
from aiormq.exceptions import (
    AMQPError,
    ChannelClosed,
    ChannelInvalidStateError,
    ConnectionClosed,
    DeliveryError,
    ProbableAuthenticationError,
    ProtocolSyntaxError,
)
from yarl import URL

from journeyman.config import RunnerSettings
from journeyman.formats.ztick import Amqp
from journeyman.runners.contract import RunRequest, RunResult, failed_run, limit_text, quote_name
from journeyman.runners.network import AmqpDsn, address, parse_amqp_dsn, why
from journeyman.runners.reach import Gate, Reach, open_socket

MAX_ROUTING_KEY_BYTES = 255
MAX_VHOST_CHARS = 127
EXCHANGE_NAME = re.compile(r"[A-Za-z0-9_.:@#,/+ -]{0,127}")  # the library takes these
PERSISTENT = 2  # delivery mode
CLOSE_LIMIT_S = 1.0

_CONNECTING = "connect to"
# Reported by the library when connection.open is answered with anything else.
_VHOST_REFUSED = "Expected one of ['Connection.OpenOk']"


class AmqpRunner:
    def __init__(self, settings: RunnerSettings, reach: Reach) -> None:
        self._settings = settings
        self._reach = reach
        # It would log the same as our reasons, with tracebacks.
        logging.getLogger("aiormq").setLevel(logging.CRITICAL)

    async def run(self, request: RunRequest[Amqp]) -> RunResult:
        runner = request.runner
        dsn = parse_amqp_dsn(runner.dsn)
        if isinstance(dsn, str):
            return failed_run(dsn)
        problem = _bad_name(dsn.vhost, runner)
        if problem:
            return failed_run(problem)
        transport = _Transport(dsn.host, dsn.port, self._reach.gate(request.rule, dsn.host))
        return await self._publish(dsn, transport, runner, request.item())

    async def close(self) -> None:
        """Runs share nothing."""

    async def _publish(
        self, dsn: AmqpDsn, transport: _Transport, runner: Amqp, body: bytes
    ) -> RunResult:
        limit_ms = self._settings.network_timeout_ms
        name = f"the broker at {address(dsn.host, dsn.port)}"
        doing = _CONNECTING
        try:
            connection = _connection(dsn, transport)
        except ValueError:
            return failed_run("the address is not valid")
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await connection.connect()
                doing = "get a confirmation from"
                channel = await connection.channel(publisher_confirms=True)
                await channel.basic_publish(
                    body,
                    exchange=runner.exchange,
                    routing_key=runner.routing_key,
                    properties=aiormq.spec.Basic.Properties(delivery_mode=PERSISTENT),
                )
        except TimeoutError:
            return failed_run(f"could not {doing} {name} within {limit_text(limit_ms)}")
        except (AMQPError, ChannelInvalidStateError, OSError, ValueError) as error:
            return failed_run(_reason(error, name, doing, dsn, runner))
        finally:
            await transport.end(connection)
        return RunResult(True)


class _Transport(aiormq.TransportFactory):
    """Opens the socket for the library, and makes sure that it is closed in the end."""

    def __init__(self, host: str, port: int, gate: Gate | None) -> None:
        self._host = host
        self._port = port
        self._gate = gate
        self._writer: asyncio.StreamWriter | None = None

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        del url, kwargs  # the address is known, and there is no TLS
        place: dict[str, Any] = {"host": self._host, "port": self._port}
        if self._gate is not None:
            place = {"sock": await open_socket(self._gate, self._host, self._port)}
        reader, self._writer = await asyncio.open_connection(**place)
        return reader, self._writer

    async def end(self, connection: aiormq.Connection) -> None:
        """Say goodbye if the broker listens, and hang up in any case."""
        try:
            if connection.is_opened:
                with contextlib.suppress(TimeoutError, AMQPError, OSError):
                    async with asyncio.timeout(CLOSE_LIMIT_S):
                        await connection.close()
        finally:
            if self._writer is not None:
                self._writer.transport.abort()


def _connection(dsn: AmqpDsn, transport: _Transport) -> aiormq.Connection:
    """Not connected yet."""
    connection = aiormq.Connection(
        # The library takes the credentials from a url, and from nowhere else.
        URL.build(scheme="amqp", host="broker", user=dsn.user, password=dsn.password),
        transport_factory=transport,
        client_properties={"connection_name": "journeyman"},
    )
    connection.vhost = dsn.vhost  # as it is: through the url `%2F` in a name would become `/`
    return connection


def _bad_name(vhost: str, runner: Amqp) -> str:
    """Return what is wrong with a name, before a broker is bothered with it; empty if nothing
    is.
    """
    if len(vhost) > MAX_VHOST_CHARS:
        return f"the name of the vhost has more than {MAX_VHOST_CHARS} characters"
    if not EXCHANGE_NAME.fullmatch(runner.exchange):
        return (
            f"the exchange {quote_name(runner.exchange)} cannot be used: its name may have up to "
            "127 letters, digits, spaces and - _ . : @ # , / +"
        )
    if len(runner.routing_key.encode()) > MAX_ROUTING_KEY_BYTES:
        return f"the routing key has more than {MAX_ROUTING_KEY_BYTES} bytes"
    return ""


def _reason(error: Exception, name: str, doing: str, dsn: AmqpDsn, runner: Amqp) -> str:
    if isinstance(error, ProbableAuthenticationError):
        return f"{name} refused the user or the password"
    if isinstance(error, DeliveryError):
        return f"{name} could not take the message"
    if isinstance(error, ChannelClosed):
        exchange = quote_name(runner.exchange)
        return f"{name} refused the message to exchange {exchange}: {_answer(error)}"
    if isinstance(error, ConnectionClosed) and doing != _CONNECTING:
        return f"{name} closed the connection: {_answer(error)}"
    if isinstance(error, ConnectionClosed) or _VHOST_REFUSED in str(error):
        # The library does not pass on what the broker says here.
        vhost = quote_name(dsn.vhost)
        return f"{name} refused vhost {vhost}: it does not exist, or the user may not use it"
    if isinstance(error, ProtocolSyntaxError):
        return f"{name} does not speak AMQP 0-9-1"
    return f"could not {doing} {name}: {why(error)}"


def _answer(error: Exception) -> str:
    """The broker's own words: the last argument of the library's exceptions."""
    return str(error.args[-1]) if error.args else type(error).__name__
