"""A schedule with timetables, its log and its ledger in memory, a clock to be set, and crashes.

Every decision is a batch: ledger first, then log, as the server writes them. ``crash`` loses what
was not written and loads everything from the two; ``cut`` stops a batch at any record of the two.
``DiskWorld`` keeps them on a disk whose power can be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from journeyman.engines.ztick.engine import Decidable, ZtickEngine
from journeyman.engines.ztick.loading import ZtickLoader
from journeyman.engines.ztick.messages import (
    NotRun,
    Reply,
    Resume,
    RunFinished,
    StartRun,
    TimetableView,
    TriggerDue,
)
from journeyman.engines.ztick.timetables import TimetableLoader
from journeyman.formats.ledger import CODEC as LEDGER_CODEC
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.ledger import UnparsedRecord, UnparsingLedger
from journeyman.formats.ztick import JobRemoved, JobSet, Record, RuleSet, Shell, Status
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.protocols.ztick.commands import (
    GetTimetable,
    PauseTimetable,
    RemoveTimetable,
    RunTimetable,
    SetTimetable,
)
from journeyman.protocols.ztick.grammar import read_timetable
from journeyman.testing import ManualClock
from journeyman.units import NS_PER_S
from tests.support.simulated_disk import SimulatedDisk


class Crash(Exception):
    """The process has ended in the middle of a batch."""


NOON = "2026-11-16T12:00:00+00:00"


class TimetableWorld:
    def __init__(self, now: str = NOON) -> None:
        self.now_ns = int(datetime.fromisoformat(now).timestamp()) * NS_PER_S
        self.log: list[Record] = [RuleSet("all", "n", Shell("true"))]
        self.ledger: list[LedgerRecord | UnparsedRecord] = []
        self._codec = UnparsingLedger(TimetableLoader.unparsed_kinds)
        self.running: dict[int, StartRun] = {}
        self.started: list[StartRun] = []
        self.missed: list[tuple[str, str]] = []
        self.cut: int | None = None  # records that are still written before the process ends
        self.resume = Resume()
        self.engine = ZtickEngine()
        self.load()

    # -- process --

    def load(self) -> None:
        self._read()
        loader = ZtickLoader()
        for record in self.log:
            loader.add(record)
        self.engine = loader.finish()
        timetables = TimetableLoader()
        for kept in self.ledger:
            assert timetables.absorb(kept)
        timetables.fill(self.engine.timetables)
        self.running = {}
        self.decide(self.resume)

    def crash(self) -> None:
        self.cut = None
        self.load()

    def decide(self, command: Decidable) -> Reply | None:
        engine = self.engine
        engine.begin_batch()
        outcome = engine.decide(command, self.now_ns)
        ledger = engine.take_ledger()
        self._write(ledger, outcome.records)
        engine.commit_batch()
        for effect in outcome.effects:
            self.running[effect.run_id] = effect
            self.started.append(effect)
        if isinstance(outcome.reply, NotRun):
            self.missed += [(each.job.identifier, each.reason) for each in outcome.reply.missed]
        return outcome.reply

    def decide_and_undo(self, name: str, fields: dict[str, Any]) -> None:
        """A batch with a bit of everything that cannot be written."""
        commands: list[Decidable] = [
            SetTimetable(b"", name, *read_timetable(fields)),
            RunTimetable(b"", name),
            TriggerDue(),
            *(RunFinished(run_id, False) for run_id in self.running),
            PauseTimetable(b"", name),
            TriggerDue(),
            RemoveTimetable(b"", name),
        ]
        self.engine.begin_batch()
        for command in commands:
            self.engine.decide(command, self.now_ns + NS_PER_S)
        self.engine.take_ledger()
        self.engine.undo_batch()

    def _read(self) -> None:
        """``log`` and ``ledger`` as they are kept."""

    def _write(self, ledger: Sequence[LedgerRecord], records: Sequence[Record]) -> None:
        for record in ledger:
            self._may_end()
            entry = self._codec.decode(LEDGER_CODEC.encode(record), 0)
            assert entry is not None
            self.ledger.append(entry.record)
        for each in records:
            self._may_end()
            self.log.append(each)
        self._may_end()

    def _may_end(self) -> None:
        if self.cut is not None:
            if not self.cut:
                raise Crash
            self.cut -= 1

    # -- time --

    def tick(self) -> None:
        """Everything that is due now."""
        for _ in range(10_000):
            due_ns = self.engine.next_due_ns()
            if due_ns is None or due_ns > self.now_ns:
                return
            self.decide(TriggerDue())
        raise AssertionError("it is never done")

    def to(self, moment: str, *, succeed: bool = False) -> None:
        """Step from one due time to the next, up to this moment; runs end at once, or not."""
        end_ns = int(datetime.fromisoformat(moment).timestamp()) * NS_PER_S
        self.tick()
        while (due_ns := self.engine.next_due_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.tick()
            if succeed:
                self.finish()
        self.now_ns = end_ns

    def jump(self, moment: str) -> None:
        """The clock shows this, all at once; the ticker notices, then everything that is due."""
        self.now_ns = int(datetime.fromisoformat(moment).timestamp()) * NS_PER_S
        self.decide(TriggerDue())
        self.tick()

    # -- runs --

    def finish(self, success: bool = True) -> None:
        """End every run that is under way now."""
        for run_id in list(self.running):
            del self.running[run_id]
            self.decide(RunFinished(run_id, success))

    # -- timetables --

    def set(self, name: str, **fields: Any) -> Reply | None:
        named = {key.rstrip("_"): value for key, value in fields.items()}
        return self.decide(SetTimetable(b"r", name, *read_timetable(named)))

    def view(self, name: str) -> TimetableView:
        reply = self.decide(GetTimetable(b"r", name))
        assert isinstance(reply, TimetableView)
        return reply

    @property
    def names(self) -> list[str]:
        """Of the jobs whose runs have begun, without what all of them begin with."""
        return [effect.identifier.partition("@")[2] for effect in self.started]

    def statuses(self) -> dict[str, Status]:
        """Of all jobs, as the log has them."""
        found: dict[str, Status] = {}
        for record in self.log:
            if isinstance(record, JobSet):
                found[record.identifier] = record.status
            elif isinstance(record, JobRemoved):
                found.pop(record.identifier, None)
        return found


class DiskWorld(TimetableWorld):
    def __init__(self, disk: SimulatedDisk, now: str = NOON) -> None:
        self.disk = disk
        self._files: tuple[LedgerLog, ZtickLog] | None = None
        super().__init__(now)

    def _read(self) -> None:
        rule, self.log = self.log[:1], []
        ledger = LedgerLog.open(self.disk, ManualClock(), "data/ledger", segment_bytes=600)
        log = ZtickLog.open(
            self.disk, ManualClock(), "data/schedule.log", on_record=self.log.append
        )
        self.ledger = list(ledger.states.values())
        self._files = ledger, log
        if not self.log:
            log.append(rule)
            self.log = rule

    def _write(self, ledger: Sequence[LedgerRecord], records: Sequence[Record]) -> None:
        assert self._files is not None
        side, log = self._files

        def write_log() -> None:
            if records:
                log.append(records)

        if ledger:
            side.append(ledger, then=write_log)
        else:
            write_log()
        self.log += records
        self.ledger += ledger
