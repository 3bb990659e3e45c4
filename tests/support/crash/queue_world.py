"""A work queue with its ledger on a simulated disk, to cut the power at each of its steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from journeyman.config import LogLevel, WorkqSettings, WorkqSync
from journeyman.disk import RealDisk
from journeyman.engines.workq.engine import Decidable
from journeyman.logs.ledger import LedgerLog
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.workq.persistence import open_kept_queue
from journeyman.testing import ManualClock
from tests.support.simulated_disk import SimulatedDisk


@dataclass
class QueueWorld(ABC):
    """A work queue on a disk, and its ledger; ``views``: what it showed after each command."""

    disk: SimulatedDisk | RealDisk
    views: list[dict[str, object]] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)
    place: str = "data"

    @property
    def quiet(self) -> ServerLog:
        return ServerLog(self.clock, lambda _: None, level=LogLevel.OFF)

    def open(self) -> None:
        log = LedgerLog.open(self.disk, self.clock, f"{self.place}/ledger")
        self.ledger = Ledger(log, self.disk, self.clock, self.quiet)
        settings = WorkqSettings(cmdlog_path=f"{self.place}/workq", cmdlog_sync=WorkqSync.ALWAYS)
        self.kept = open_kept_queue(settings, self.disk, self.clock, self.quiet, self.ledger)

    def close(self) -> None:
        self.kept.log.close()
        self.ledger.close()

    def do(self, command: Decidable) -> None:
        """As the writer does it: the ledger, then the log, then the answer."""
        queue, recorder = self.kept.queue, self.kept.recorder
        queue.begin_batch()
        records = queue.decide(command, self.clock.now_ns(), "client").records
        ledger = queue.take_ledger()
        if ledger:
            then = partial(recorder.write, records) if records else None
            self.ledger.write(ledger, then=then)
        elif records:
            recorder.write(records)
        queue.commit_batch()

    @abstractmethod
    def look(self) -> dict[str, object]:
        """Return what the queue shows now."""

    def tell(self, story: Iterable[Decidable], pause_ns: int = 1_000_003) -> None:
        self.views.append(self.look())
        for command in story:
            self.clock.advance_ns(pause_ns)
            self.do(command)
            self.views.append(self.look())
