"""The runner contract, kept by the runners that need no broker: programs and HTTP.

Also on uvloop where it is installed, because the server uses it there.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from journeyman.formats.ztick import Awf, Direct, Http, Shell
from journeyman.formats.ztick import Runner as RunnerRecord
from tests.support.runner_contract import EXECUTION_NS, PASSWORD, RunnerContract, World
from tests.support.runner_world import RawServer, is_running, raw_server, say_nothing, wait_until

# A file for each run: the name is the process's own, the content what it was told.
WRITE_ID = 'printf %s "$JOURNEYMAN_JOB_ID" > "{got}/$$"'
# A program with a child, neither of which ends or heeds SIGTERM.
HANG = 'trap "" TERM; echo $$ > "{pids}/$$"; sleep 1000 & echo $! > "{pids}/$!"; wait; sleep 1000'
REFUSE = f"echo http://user:{PASSWORD}@host/ >&2; exit 3"


class ProgramWorld(World):
    """A directory into which programs write what they were told and who they are."""

    def __init__(self, directory: Path) -> None:
        self.got = directory / "got"
        self.pids = directory / "pids"
        for each in (self.got, self.pids):
            each.mkdir(exist_ok=True)

    def record(self, command: str) -> RunnerRecord:
        return Shell(command)

    def succeeding(self) -> RunnerRecord:
        return self.record(WRITE_ID.format(got=self.got))

    def failing(self) -> RunnerRecord:
        return self.record(REFUSE)

    def hanging(self) -> RunnerRecord:
        return self.record(HANG.format(pids=self.pids))

    def impossible(self) -> list[RunnerRecord]:
        return [self.record("echo \0"), self.record("x" * 200_000)]

    async def received(self, count: int = 1) -> list[bytes]:
        del count  # the program has ended, so it has written
        return [path.read_bytes() for path in self.got.iterdir()]

    async def hanging_began(self) -> None:
        while len(self._hung()) < 2:
            await asyncio.sleep(0.01)

    async def nothing_left(self) -> None:
        wait_until(lambda: not any(map(is_running, self._hung())), "programs to end")

    def nul_id_is_refused(self) -> bool:
        return True

    def _hung(self) -> list[int]:
        return [int(path.name) for path in self.pids.iterdir() if path.stat().st_size]


class DirectWorld(ProgramWorld):
    def record(self, command: str) -> RunnerRecord:
        return Direct("sh", ("-c", command))

    def impossible(self) -> list[RunnerRecord]:
        missing = [Direct("no-such-program", ()), Direct("/no/such/program", ()), Direct("", ())]
        return [*super().impossible(), *missing, Direct("/", ()), Direct("/dev/null", ())]


class AwfWorld(ProgramWorld):
    """A stand-in for awf in the PATH, which runs its first input as a command."""

    def record(self, command: str) -> RunnerRecord:
        return Awf("workflow", (command,))


class ProgramContract(RunnerContract):
    kind: type[ProgramWorld]

    @pytest.fixture(autouse=True)
    def _prepare(self, tmp_path: Path) -> None:
        self.directory = tmp_path

    @contextlib.asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        yield self.kind(self.directory)


class TestShell(ProgramContract):
    kind = ProgramWorld


class TestDirect(ProgramContract):
    kind = DirectWorld


class TestAwf(ProgramContract):
    kind = AwfWorld

    @pytest.fixture(autouse=True)
    def _awf_in_path(self, tmp_path_factory, monkeypatch) -> None:
        directory = tmp_path_factory.mktemp("bin")
        program = directory / "awf"
        check = '[ "$1 $2 $3 $#" = "run workflow --input 4" ] || exit 64'
        program.write_text(f'#!/bin/sh\n{check}\nexec /bin/sh -c "$4"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{directory}{os.pathsep}{os.environ['PATH']}")


class HttpWorld(World):
    def __init__(self, port: int, hung: RawServer) -> None:
        self._port = port
        self._hung = hung
        self.bodies: asyncio.Queue[bytes] = asyncio.Queue()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        if request.path == "/refused":
            return web.Response(status=404, text=f"no: http://u:{PASSWORD}@host")
        self.bodies.put_nowait(await request.read())
        return web.Response()

    def succeeding(self) -> RunnerRecord:
        return Http("POST", f"http://127.0.0.1:{self._port}/hook")

    def failing(self) -> RunnerRecord:
        return Http("POST", f"http://user:{PASSWORD}@127.0.0.1:{self._port}/refused")

    def hanging(self) -> RunnerRecord:
        return Http("POST", f"http://user:{PASSWORD}@127.0.0.1:{self._hung.port}/")

    def impossible(self) -> list[RunnerRecord]:
        urls = ["", "http://", "ftp://host/", "host", "http://[::1", "http://host:99999/"]
        urls += [f"http://user:{PASSWORD}@", f"http://a b:{PASSWORD}@c d/", "http://h\nost/"]
        return [*(Http("GET", url) for url in urls), Http("BREW", "http://127.0.0.1/")]

    async def received(self, count: int = 1) -> list[bytes]:
        bodies = [json.loads(await self.bodies.get()) for _ in range(count)]
        assert self.bodies.empty()
        assert all(body["execution"] == EXECUTION_NS for body in bodies)
        return [body["job_id"].encode() for body in bodies]

    async def hanging_began(self) -> None:
        await self._hung.connected.wait()

    async def nothing_left(self) -> None:
        if self._hung.opened:
            await self._hung.wait_all_closed()


class TestHttp(RunnerContract):
    @contextlib.asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        async def handle(request: web.BaseRequest) -> web.Response:
            return await world.handle(request)

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with raw_server(say_nothing) as hung:
            world = HttpWorld(runner.addresses[0][1], hung)
            yield world
        await runner.cleanup()


if importlib.util.find_spec("uvloop"):
    import uvloop

    class TestShellOnUvloop(TestShell):
        loop_factory = staticmethod(uvloop.new_event_loop)

    class TestHttpOnUvloop(TestHttp):
        loop_factory = staticmethod(uvloop.new_event_loop)
