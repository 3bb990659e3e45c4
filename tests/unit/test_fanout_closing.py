"""The fan-out queues stop: what was confirmed last is in the last checkpoint."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable

from journeyman.config import LogLevel, load
from journeyman.config.settings import LimitSettings
from journeyman.engines.kestrel.messages import SaveCheckpoint
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.protocols.kestrel.commands import GetItem, Key, Put
from journeyman.servers.core.access import Access
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.service import ServiceContext
from journeyman.servers.core.shared import Shared
from journeyman.servers.core.writes import WriteWatch
from journeyman.servers.kestrel.service import KestrelServer
from journeyman.testing import ManualClock
from tests.support.fanout_caller import Caller
from tests.support.simulated_disk import SimulatedDisk

FOLDER = "/q"


def test_checkpoint_that_is_written_while_the_server_stops_is_not_the_last(tmp_path, monkeypatch):
    file = tmp_path / "c.toml"
    file.write_text(
        f'[kestrel]\nlisten = "127.0.0.1:0"\nqueue_path = "{FOLDER}"\n'
        "checkpoint_interval_ms = 3_600_000\n"
    )
    disk, clock = SimulatedDisk(), ManualClock()
    lines: list[str] = []

    async def scenario() -> None:
        mistakes: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: mistakes.append(context))
        server = KestrelServer(
            ServiceContext(
                load(str(file), environ={}, options={}).settings,
                disk,
                clock,
                ServerLog(clock, lines.append, level=LogLevel.INFO),
                Shared.create(loop, ServerLog(clock, lines.append), 64 * 1024 * 1024),
                Access(),
                failed=mistakes.append,
                writes=WriteWatch(clock, ServerLog(clock, lines.append), LimitSettings()),
            )
        )
        await server.start()
        client = Caller()
        server.writer.submit(client, [Put("q", 0, b"a"), Put("q", 0, b"b"), GetItem(Key("q"))])
        await server.writer.idle()

        is_saving, may_go_on = threading.Event(), threading.Event()
        save = server._logs.save

        def slow_save(checkpoints: Iterable[SaveCheckpoint]) -> list[str]:
            is_saving.set()
            assert may_go_on.wait(30)
            return save(list(checkpoints))

        monkeypatch.setattr(server._logs, "save", slow_save)
        server._checkpoint()
        assert await loop.run_in_executor(None, is_saving.wait, 30)
        server.writer.submit(client, [GetItem(Key("q"))])
        await server.stop()
        closing = asyncio.create_task(server.close())
        await asyncio.sleep(0.1)  # it waits for the save that is under way
        assert not closing.done()
        may_go_on.set()
        await closing
        assert [told[:5] for told in client.told] == [b"STORE", b"STORE", b"VALUE", b"VALUE"]
        assert mistakes == []

    asyncio.run(scenario())
    with KestrelLog.open(disk, clock, FOLDER, "q") as journal:
        assert journal.readers[""].head == 2
