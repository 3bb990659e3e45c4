"""An idle worker: two waiting commands and nothing else on the wire; little memory."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import journeyman as jm
from journeyman.client import Refused
from journeyman.tasks.worker import QueueShare, Worker

MORE_KB = 20 * 1024  # than what it imports, which depends on the machine
PROGRAM = """
import asyncio, re, sys
import journeyman as jm
from journeyman.tasks.worker import Worker

print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0], flush=True)
app = jm.App(f"journeyman://127.0.0.1:{sys.argv[1]}")
app.task(name="nothing")(lambda: None)
asyncio.run(Worker(app, concurrency=16).run())
"""


async def watched(port_ready, seconds: float) -> list[bytes]:
    """What connections send that are never answered, from the first command on."""
    heard: list[bytes] = []
    first = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            heard.append(line)
            first.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    end = await port_ready(server.sockets[0].getsockname()[1])
    await asyncio.wait_for(first.wait(), 60)
    await asyncio.sleep(seconds)
    await end()
    server.close()
    return heard


def test_an_idle_worker_leases_and_waits_for_orders_and_then_sends_nothing():
    async def run() -> list[bytes]:
        async def begin(port: int):
            app = jm.App(f"journeyman://127.0.0.1:{port}")
            app.task(name="nothing")(lambda: None)
            worker = Worker(app, [QueueShare("a", 3), QueueShare("b", 3)], concurrency=7, name="w")
            running = asyncio.ensure_future(worker.run())

            async def end() -> None:
                worker.stop()
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

            return end

        return await watched(begin, seconds=1.0)

    second, first, facts = sorted(asyncio.run(run()))
    assert (first.split()[:3], second) == (
        [b"worker", b"w", b"30000"], b"lease a b 3600000 -max=7 -worker=w\r\n"
    )  # fmt: skip
    assert json.loads(facts)["slots"] == 7


def test_an_idle_worker_takes_little_memory():
    async def run() -> int:
        used = 0

        async def begin(port: int):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", PROGRAM, str(port)), stdout=asyncio.subprocess.PIPE
            )

            async def end() -> None:
                nonlocal used
                status = Path(f"/proc/{process.pid}/status").read_text()
                assert process.stdout is not None
                imported = int(await process.stdout.readline())
                used = int(status.partition("VmHWM:")[2].split()[0]) - imported
                process.kill()
                await process.wait()

            return end

        await watched(begin, seconds=0.2)
        return used

    assert 0 < asyncio.run(run()) < MORE_KB


def test_limits_that_the_server_cannot_take_now_are_set_later(monkeypatch):
    """A full disk has passed when the next attempt comes; the worker must not run without them."""
    app = jm.App("journeyman://127.0.0.1:1")

    @app.task(name="mail", queue="mail", concurrency=1)
    def mail() -> None: ...

    worker = Worker(app)
    answers: list[Exception | None] = [Refused("SERVER-ERROR", "Read-only mode"), None]
    tried = []

    async def set_limits(limits: object) -> None:
        tried.append(limits)
        if (error := answers.pop(0)) is not None:
            raise error

    async def begin() -> None:
        worker._loop = asyncio.get_running_loop()
        await worker._set_limits()

    monkeypatch.setattr(app.broker, "set_limits", set_limits)
    asyncio.run(begin())
    assert len(tried) == 2
    app.close()
