"""What tests of runners need around them: an event loop, rude servers, a look at processes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from journeyman.config import RunnerSettings, Settings

WAIT_LIMIT_S = 60.0
POLL_S = 0.01

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test in an event loop of its own, with asyncio's own checks on.

    A class of tests may have a ``loop_factory`` for another kind of loop.
    """

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        factory = getattr(args[0], "loop_factory", None) if args else None
        with asyncio.Runner(debug=True, loop_factory=factory) as runner:
            runner.run(test(*args, **kwargs))

    return run


def settings(
    *,
    process_timeout_ms: int = 0,
    network_timeout_ms: int = 30_000,
    kill_grace_ms: int = 5000,
    output_bytes: int = 4096,
) -> Settings:
    return Settings(
        runners=RunnerSettings(process_timeout_ms, network_timeout_ms, kill_grace_ms, output_bytes)
    )


def is_running(pid: int) -> bool:
    """Whether the process does anything still. One that is dead and not buried does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """For what other processes do, where nobody tells us."""
    deadline = time.monotonic() + WAIT_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain: {what}"
        time.sleep(POLL_S)


async def wait_for_pids(path: Path, count: int) -> list[int]:
    """The process ids that a program writes into a file, once all of them are there."""
    deadline = time.monotonic() + WAIT_LIMIT_S
    while True:
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        if len(lines) >= count:
            return [int(line) for line in lines]
        assert time.monotonic() < deadline, "the program did not start"
        await asyncio.sleep(POLL_S)


class RawServer:
    """A TCP server that does what the test says, and knows who is connected."""

    def __init__(self) -> None:
        self.port = 0
        self.opened = 0
        self.open = 0
        self.connected = asyncio.Event()
        self._all_closed = asyncio.Event()

    async def wait_all_closed(self) -> None:
        async with asyncio.timeout(WAIT_LIMIT_S):
            await self._all_closed.wait()

    def enter(self) -> None:
        self.opened += 1
        self.open += 1
        self.connected.set()
        self._all_closed.clear()

    def leave(self) -> None:
        self.open -= 1
        if not self.open:
            self._all_closed.set()


@contextlib.asynccontextmanager
async def raw_server(handler: Handler) -> AsyncIterator[RawServer]:
    world = RawServer()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        world.enter()
        try:
            with contextlib.suppress(OSError):
                await handler(reader, writer)
        finally:
            world.leave()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    world.port = server.sockets[0].getsockname()[1]
    try:
        yield world
    finally:
        server.close()
        await server.wait_closed()
        if world.opened:
            await world.wait_all_closed()


async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take everything and answer nothing, until the client hangs up."""
    del writer
    while await reader.read(65536):
        pass
