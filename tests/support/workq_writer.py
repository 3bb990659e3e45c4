"""A writer of the work queue with everything around it under control."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from journeyman.engines.workq.engine import WorkqEngine
from journeyman.errors import JourneymanError
from journeyman.formats.framing import DecodedRecords
from journeyman.formats.workq import CODEC, Command, NewerCommand, Record
from journeyman.protocols.workq.commands import Add
from journeyman.protocols.workq.replies import Leased, Reply
from journeyman.servers.core.contract import Recorder, WriteWait
from journeyman.servers.core.group_commit import GroupCommit
from journeyman.servers.workq.writer import WorkqDialect, wait_for_sync_of
from journeyman.testing import ManualClock
from tests.support.writer_client import WriterClient

FAILED = "not recorded"


def job_id(number: int) -> bytes:
    return bytes.fromhex(f"00000000000040008000{number:012x}")


def add(number: int, name: str = "q", payload: bytes = b"work") -> Add:
    return Add(job_id(number), name, 1000, 60_000, payload)


def leased(number: int, name: str = "q") -> Leased:
    return Leased(job_id(number), name, 1000, b"work")


class Journal(Recorder):
    """Keeps what is written; waits and fails when told to."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.errors: list[BaseException] = []
        self.threads: list[str] = []
        self.wait = WriteWait.MORE
        self.gate = threading.Event()
        self.gate.set()
        self.take_time: Callable[[], None] = lambda: None

    def wait_of(self, records: Sequence[Record | bytes]) -> WriteWait:
        return self.wait if self.wait is not WriteWait.SYNC else wait_for_sync_of(records)

    def write(self, records: Sequence[Record | bytes]) -> None:
        assert self.gate.wait(30)
        self.take_time()
        self.threads.append(threading.current_thread().name)
        if self.errors:
            raise self.errors.pop(0)
        self.records += DecodedRecords(CODEC, records)

    @property
    def commands(self) -> list[Command | NewerCommand]:
        return [record.command for record in self.records]


class Caller(WriterClient):
    def __init__(self) -> None:
        super().__init__()
        self.is_leaving = False
        self.is_lost = False
        self.gives_up = lambda request: self.is_leaving
        self.prefix = ""

    def render(self, reply: Reply) -> Any:
        return reply

    def render_failure(self) -> Any:
        return FAILED


class Bench:
    """A writer with everything around it under control."""

    def __init__(self, *, memory: bool = False, max_waiting: int = 10_000) -> None:
        self.clock = ManualClock()
        self.queue = WorkqEngine(seed=1)
        self.journal = Journal()
        self.troubles: list[JourneymanError | None] = []
        self.failures: list[BaseException] = []
        self.outcomes: list[object] = []
        self.writer = GroupCommit(
            self,
            asyncio.get_running_loop(),
            self.clock,
            WorkqDialect(self.queue, self.clock),
            None if memory else self.journal,
            max_waiting=max_waiting,
        )

    def on_batch(self) -> None:
        """There is no ticker here."""

    def on_trouble(self, error: JourneymanError | None) -> None:
        self.troubles.append(error)

    def on_failure(self, error: BaseException) -> None:
        self.failures.append(error)

    def on_answered(self, _: object, outcomes: Sequence[object], begun_ns: int) -> None:
        assert begun_ns <= self.clock.now_ns()
        self.outcomes.extend(outcomes)

    async def settle(self) -> None:
        await asyncio.wait_for(self.writer.idle(), 30)

    async def ask(self, caller: Caller, *requests: Any) -> list[Any]:
        """What the caller is told because of these."""
        before = len(caller.told)
        self.writer.submit(caller, requests)
        await self.settle()
        return caller.told[before:]


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())
