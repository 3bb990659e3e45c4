"""A schedule's log and its ledger, written as a server does, with a clock in the hand."""

from __future__ import annotations

from journeyman.disk import Disk
from journeyman.formats.ztick import JobSet, Status
from journeyman.logs.ledger import LedgerLog, MarkWriter
from journeyman.logs.ztick.log import ZtickLog
from journeyman.testing import ManualClock


class MarkedSchedule:
    """The schedule's log and its ledger, as a server writes them: a batch a second."""

    def __init__(
        self, disk: Disk, clock: ManualClock, data: str = "data", *, seal: bool = True
    ) -> None:
        self.clock = clock
        self.ledger = LedgerLog.open(disk, clock, f"{data}/ledger")
        self.log = ZtickLog.open(disk, clock, f"{data}/schedule.log", seal=seal)
        write = self.ledger.append
        self.marks = MarkWriter(
            disk, clock, self.log.appender, lambda records: write(records, sync=False)
        )
        self.marks.note()

    def batch(self, *names: str, status: Status = Status.PLANNED) -> int:
        """When it was written."""
        self.clock.advance(1)
        self.log.append([JobSet(name, 0, status) for name in names])
        self.marks.note()
        self.marks.flush()
        return self.clock.now_ns()

    def compact(self) -> int:
        self.clock.advance(1)
        self.log.compact()
        self.marks.note()
        return self.clock.now_ns()

    def stop(self) -> None:
        self.marks.flush()
        self.log.close()
        self.ledger.close()
