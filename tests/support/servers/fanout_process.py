"""A real `journeyman serve` with its fan-out queues open, and a client that speaks kestrel.

Not a test itself. The client is a plain one, of its own making, so that it shares no mistake with
the server or with journeyman's own client.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.servers.queue_socket import QueueSocket
from tests.support.servers.schedule_process import ScheduleProcess

_LISTENS = re.compile(r"the fan-out queues listen on [^\s\"]+?:(\d+)")


class FanOutProcess(ScheduleProcess):
    """``with FanOutProcess(tmp_path) as server: ...``; its journals are in ``queues``."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        program: str = "",
        config: str = "",
        **more_settings: object,
    ) -> None:
        own: dict[str, object] = {
            "kestrel.enabled": "true",
            "kestrel.listen": "127.0.0.1:0",
            "kestrel.queue_path": "queues",
            "database.persistence": "memory",
        }
        more = {name.replace("__", "."): value for name, value in more_settings.items()}
        given = {**own, **(settings or {}), **more}
        super().__init__(directory, program=program, config=config, settings=given)
        self.fanout_port = 0

    @property
    def queues(self) -> Path:
        return self.directory / "queues"

    def start(self, *, wait: bool = True) -> Self:
        super().start(wait=wait)
        if wait:
            self.fanout_port = int(self.wait_for_line(_LISTENS)[1])
        return self

    def reader(self) -> FanOutClient:
        return FanOutClient(self.fanout_port)


class FanOutClient(QueueSocket):
    """A blocking client; every wait has an end."""

    def ask(self, line: str) -> str:
        """The first line of the answer."""
        self.send(line + "\r\n")
        return self.read_line()

    def put(self, queue: str, data: bytes | str, *, expiry: int = 0) -> str:
        data = data.encode() if isinstance(data, str) else data
        self.send(b"set %b 0 %d %d\r\n%b\r\n" % (queue.encode(), expiry, len(data), data))
        return self.read_line()

    def get(self, key: str) -> bytes | None:
        """The item; None: END."""
        self.send(f"get {key}\r\n")
        return self.read_item()

    def read_item(self) -> bytes | None:
        head = self.read_line()
        if head == "END":
            return None
        word, _, flags, size = head.split(" ")
        assert (word, flags) == ("VALUE", "0"), head
        item = self.read_exactly(int(size) + 2)
        assert item.endswith(b"\r\n")
        assert self.read_line() == "END"
        return item[:-2]

    def stats(self) -> dict[str, str]:
        self.send("stats\r\n")
        figures = {}
        while (line := self.read_line()) != "END":
            _, name, value = line.split(" ", 2)
            figures[name] = value
        return figures
