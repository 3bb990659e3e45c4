"""The runner ``redis <url> <command> <key>``: one command with the job id on its own connection.

    AUTH [user] password      if the url has a password
    SELECT db                 if it is not 0
    <command> <key> <job id>  PUBLISH, RPUSH, LPUSH or SET

Every answer that is not an error succeeds: a message without subscribers is published. Nothing
else may be sent by a rule: other commands take other arguments, or none that would make sense.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

from redis.asyncio import Connection
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from journeyman.config import RunnerSettings
from journeyman.formats.ztick import Redis
from journeyman.runners.contract import RunRequest, RunResult, failed_run, limit_text, quote_name
from journeyman.runners.network import RedisDsn, address, parse_redis_dsn, why
from journeyman.runners.reach import Gate, Reach, open_socket

COMMANDS = ("PUBLISH", "RPUSH", "LPUSH", "SET")


class RedisRunner:
    def __init__(self, settings: RunnerSettings, reach: Reach) -> None:
        self._settings = settings
        self._reach = reach

    async def run(self, request: RunRequest[Redis]) -> RunResult:
        runner = request.runner
        if runner.command not in COMMANDS:
            return failed_run(f"{quote_name(runner.command)} is not a command of the redis runner")
        dsn = parse_redis_dsn(runner.url)
        if isinstance(dsn, str):
            return failed_run(dsn)
        connection = _Connection(dsn, self._reach.gate(request.rule, dsn.host))
        key, value = runner.key.encode(), request.item()
        return await self._send(connection, dsn, runner.command, key, value)

    async def close(self) -> None:
        """Runs share nothing."""

    async def _send(
        self, connection: _Connection, dsn: RedisDsn, command: str, key: bytes, value: bytes
    ) -> RunResult:
        limit_ms = self._settings.network_timeout_ms
        name = f"redis at {address(dsn.host, dsn.port)}"
        doing = f"connect to {name}"
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await connection.connect()  # type: ignore[no-untyped-call]
                doing = f"get an answer from {name}"
                await connection.send_command(command, key, value)
                await connection.read_response()
        except TimeoutError:
            return failed_run(f"could not {doing} within {limit_text(limit_ms)}")
        except (AuthenticationError, NoPermissionError) as error:
            return failed_run(f"{name} refused access: {_answer(error)}")
        except ResponseError as error:
            return failed_run(f"{name} refused {command}: {_answer(error)}")
        except (RedisError, OSError, ValueError) as error:
            return failed_run(f"could not {doing}: {why(error)}")
        finally:
            await connection.disconnect(nowait=True)
        return RunResult(True)


class _Connection(Connection):
    """Not connected yet. The run's own limit is the only one, and nothing is tried twice."""

    def __init__(self, dsn: RedisDsn, gate: Gate | None) -> None:
        super().__init__(
            host=dsn.host,
            port=dsn.port,
            db=dsn.db,
            username=dsn.user,
            password=dsn.password,
            socket_timeout=None,
            socket_connect_timeout=None,
            protocol=2,
            driver_info=None,  # no CLIENT SETINFO: it costs a round trip and may be forbidden
        )
        self._gate = gate
        self._socket: socket.socket | None = None

    async def _connect(self) -> None:
        if self._gate is not None:
            self._socket = await open_socket(self._gate, self.host, self.port)
        try:
            await super()._connect()  # type: ignore[no-untyped-call]
        except BaseException:
            if self._socket is not None:
                self._socket.close()
            raise

    def _connection_arguments(self) -> Mapping[str, Any]:
        """The library hands these to ``asyncio.open_connection``."""
        return super()._connection_arguments() if self._socket is None else {"sock": self._socket}


def _answer(error: RedisError) -> str:
    return str(error).rstrip(".")
