"""A real `journeyman serve` with its work queue open, and a client that speaks workq.

Not a test itself. Both doors listen on ports that the system chooses; the client is a plain one, of
its own making, so that it shares no mistake with the server.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self

from tests.support.servers.queue_socket import QueueSocket
from tests.support.servers.schedule_process import ScheduleProcess

_LISTENS = re.compile(r"the work queue listens on [^\s\"]+?:(\d+)")


class WorkqProcess(ScheduleProcess):
    """``with WorkqProcess(tmp_path) as server: ...``; its command log is in ``cmdlog``."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        memory: bool = False,
        program: str = "",
        patch: str = "",
        **more_settings: object,
    ) -> None:
        own: dict[str, object] = {
            "workq.enabled": "true",
            "workq.listen": "127.0.0.1:0",
            "database.persistence": "memory",
        }
        if memory:
            own["workq.persistence"] = "memory"
        else:
            own |= {"workq.cmdlog_path": "cmdlog", "workq.cmdlog_sync": "interval"}
        more = {name.replace("__", "."): value for name, value in more_settings.items()}
        given = {**own, **(settings or {}), **more}
        super().__init__(directory, program=program, patch=patch, settings=given)
        self.workq_port = 0

    @property
    def cmdlog(self) -> Path:
        return self.directory / "cmdlog"

    def start(self, *, wait: bool = True) -> Self:
        super().start(wait=wait)
        if wait:
            self.workq_port = int(self.wait_for_line(_LISTENS)[1])
        return self

    def worker(self) -> WorkqClient:
        return WorkqClient(self.workq_port)


class LeasedJob(NamedTuple):
    job_id: str
    name: str
    ttr_ms: int
    payload: bytes


class WorkqClient(QueueSocket):
    """A blocking client; every wait has an end."""

    def ask(self, line: str, payload: bytes | None = None) -> str:
        """The first line of the answer."""
        self.send(line.encode() + b"\r\n" + (b"" if payload is None else payload + b"\r\n"))
        return self.read_line()

    def add(
        self,
        name: str,
        payload: bytes = b"",
        *,
        ttr: int = 60_000,
        ttl: int = 600_000,
        flags: str = "",
    ) -> str:
        """A new job; its id."""
        job_id = str(uuid.uuid4())
        line = f"add {job_id} {name} {ttr} {ttl} {len(payload)} {flags}"
        assert self.ask(line, payload) == "+OK"
        return job_id

    def lease(self, *names: str, wait: int = 0) -> LeasedJob | None:
        """None: -TIMEOUT."""
        self.send_lease(*names, wait=wait)
        return self.read_leased()

    def send_lease(self, *names: str, wait: int) -> None:
        self.send(f"lease {' '.join(names)} {wait}\r\n")

    def read_leased(self) -> LeasedJob | None:
        head = self.read_line()
        if head == "-TIMEOUT":
            return None
        assert head == "+OK 1", head
        job_id, name, ttr, size = self.read_line().split(" ")
        return LeasedJob(job_id, name, int(ttr), self._read_block(int(size)))

    def finish(self, job_id: str, result: bytes = b"", *, command: str = "complete") -> str:
        return self.ask(f"{command} {job_id} {len(result)}", result)

    def result(self, job_id: str, *, wait: int = 0) -> tuple[bool, bytes] | str:
        """The error line if there is no result."""
        return self.read_result(self.ask(f"result {job_id} {wait}"))

    def read_result(self, head: str | None = None) -> tuple[bool, bytes] | str:
        head = self.read_line() if head is None else head
        if head != "+OK 1":
            return head
        _, success, size = self.read_line().split(" ")
        return success == "1", self._read_block(int(size))

    def inspect(self, what: str) -> list[dict[str, str]] | str:
        """The blocks, each with its first word as ``id``; the error line if there is one."""
        self.send(f"inspect {what}\r\n")
        return self.read_blocks()

    def read_blocks(self) -> list[dict[str, str]] | str:
        head = self.read_line()
        if not head.startswith("+OK "):
            return head
        return [self._read_keys() for _ in range(int(head.removeprefix("+OK ")))]

    def blocks(self, what: str) -> list[dict[str, str]]:
        found = self.inspect(what)
        assert not isinstance(found, str), found
        return found

    def job(self, job_id: str) -> dict[str, str]:
        return self.blocks(f"job {job_id}")[0]

    def _read_keys(self) -> dict[str, str]:
        name, count = self.read_line().split(" ")
        block = {"id": name}
        for _ in range(int(count)):
            key = self._read_until_space()
            if key == "payload":
                block[key] = self._read_block(int(block["payload-size"])).decode("latin-1")
            else:
                block[key] = self.read_line()
        return block

    def _read_until_space(self) -> str:
        while b" " not in self._buffer:
            self._buffer += self._receive()
        key, _, self._buffer = self._buffer.partition(b" ")
        return key.decode()

    def _read_block(self, size: int) -> bytes:
        block = self.read_exactly(size + 2)
        assert block[size:] == b"\r\n", block[-20:]
        return block[:size]
