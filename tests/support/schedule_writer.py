"""A writer of the schedule with everything around it under control."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.engines.ztick.messages import Reply, StartRun
from journeyman.errors import JourneymanError
from journeyman.formats.ztick import Record
from journeyman.logs.ledger import MarkWriter
from journeyman.logs.ztick.log import ZtickLog
from journeyman.protocols.ztick.commands import Set, SetRule
from journeyman.servers.core.contract import Recorder
from journeyman.servers.core.group_commit import GroupCommit
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.ztick.writer import Request, ZtickDialect, ZtickRecorder
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk
from tests.support.writer_client import WriterClient

FAR_NS = 4_000_000_000_000_000_000


class Journal(Recorder):
    """Keeps what is written; waits and fails when told to."""

    def __init__(self) -> None:
        self.writes: list[list[Record]] = []
        self.errors: list[BaseException] = []
        self.gate = threading.Event()
        self.gate.set()
        self.take_time: Callable[[], None] = lambda: None

    def write(self, records: Sequence[Record]) -> None:
        assert self.gate.wait(30)
        self.take_time()
        if self.errors:
            raise self.errors.pop(0)
        self.writes.append(list(records))

    @property
    def records(self) -> list[Record]:
        return [record for write in self.writes for record in write]


class NotingRecorder(ZtickRecorder):
    """A log, and which thread wrote to it."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        """``ledger``: has the times of the log."""
        disk, clock = SimulatedDisk(), ManualClock()
        self.log = ZtickLog.open(disk, clock, "log")
        self.marks: MarkWriter | None = None
        if ledger is not None:
            self.marks = MarkWriter(
                disk, clock, self.log.appender, partial(ledger.write, sync=False)
            )
        super().__init__(self.log, self.marks)
        self.threads: list[str] = []

    def write(self, records: Sequence[Record | bytes]) -> None:
        self.threads.append(threading.current_thread().name)
        super().write(records)


class Caller(WriterClient):
    def __init__(self, namespace: str = "*") -> None:
        super().__init__()
        self.namespace = namespace

    def denies(self, rule: SetRule) -> None:
        """This one may have any rule."""

    def render(self, request: Request, reply: Reply | None) -> Any:
        return (request.request_id, reply if reply is not None else request)

    def render_failure(self, request: Request) -> Any:
        return (request.request_id, "failed")


class Bench:
    """A writer with everything around it under control."""

    def __init__(
        self,
        *,
        memory: bool = False,
        max_waiting: int = 10_000,
        recorder: ZtickRecorder | None = None,
    ) -> None:
        """``recorder``: instead of the journal."""
        self.clock = ManualClock()
        self.schedule = ZtickEngine()
        self.journal = Journal()
        self.started: list[StartRun] = []
        self.records_at_start: list[int] = []
        self.troubles: list[JourneymanError | None] = []
        self.failures: list[BaseException] = []
        self.replies: list[Reply] = []
        self.batches = 0
        self.writer = GroupCommit(
            self,
            asyncio.get_running_loop(),
            self.clock,
            ZtickDialect(self.schedule, self.clock, self),
            None if memory else recorder or self.journal,
            max_waiting=max_waiting,
        )

    def on_trouble(self, error: JourneymanError | None) -> None:
        self.troubles.append(error)

    def on_failure(self, error: BaseException) -> None:
        self.failures.append(error)

    def on_reply(self, reply: Reply) -> None:
        self.replies.append(reply)

    def on_answered(self, *_: object) -> None:
        """Nobody counts here."""

    def start_runs(self, effects: Sequence[StartRun]) -> None:
        self.records_at_start.append(len(self.journal.records))
        self.started += effects

    def on_batch(self) -> None:
        self.batches += 1

    async def settle(self) -> None:
        await asyncio.wait_for(self.writer.idle(), 30)


def sets(*names: str) -> list[Request]:
    return [Set(name.encode(), name, FAR_NS) for name in names]
