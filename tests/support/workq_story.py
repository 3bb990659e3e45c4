"""A work queue whose commands are told one after another, with the log and ledger it writes."""

from __future__ import annotations

from typing import Any

from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.ledger_entries import FAMILIES, LoadedExtensions
from journeyman.engines.workq.loading import WorkqLoader
from journeyman.engines.workq.messages import WorkqDue
from journeyman.folds import ledger as ledger_fold
from journeyman.formats import ledger, workq
from journeyman.protocols.workq import commands as ask
from journeyman.protocols.workq.replies import StepList
from journeyman.units import NS_PER_S

NOW_NS = 1_700_000_000 * 10**9
DAY_MS = 86_400_000
A, B = (bytes.fromhex(f"0000000d00004000800000000000000{number}") for number in range(2))
NOT_LEASED = ask.RefusedLine(ask.Complaint.NOT_LEASED)
LEASED_AGAIN = ask.RefusedLine(ask.Complaint.LEASED_AGAIN)


class Story:
    """An engine, the log and the ledger that it writes, and a clock."""

    def __init__(self) -> None:
        self.engine = WorkqEngine()
        self.now_ns = NOW_NS
        self.log: list[workq.Record] = []
        self.ledger: list[ledger.Record] = []

    def decide(self, command: Any) -> Any:
        self.now_ns += 1
        self.engine.begin_batch()
        outcome = self.engine.decide(command, self.now_ns)
        self.log += outcome.records
        self.ledger += self.engine.take_ledger()
        self.engine.commit_batch()
        return outcome.reply

    def start(self, job_id: bytes = A, *, max_fails: int = 3) -> None:
        self.decide(ask.Add(job_id, "q", DAY_MS, DAY_MS, b"", max_fails=max_fails))
        self.decide(ask.Lease(("q",), 0, 1, "w"))

    def step(self, name: str, value: bytes, *, attempt: int = 1, number: int = 1) -> Any:
        return self.decide(ask.RecordStep(A, name, number, value, attempt))

    def steps(self, job_id: bytes = A) -> dict[tuple[str, int], bytes]:
        reply = self.decide(ask.InspectSteps(job_id))
        assert isinstance(reply, StepList)
        return {(step.name, step.number): step.value for step in reply.steps}

    def wait(self, seconds: float) -> None:
        self.now_ns += int(seconds * NS_PER_S)
        self.decide(WorkqDue())

    def restart(self, log: list[workq.Record] | None = None) -> None:
        """Load what was written, as a start does."""
        loaded = LoadedExtensions()
        for (family, _), record in ledger_fold.replay(self.ledger).items():
            if family in FAMILIES:
                assert loaded.add(record)
        loader = WorkqLoader(now_ns=self.now_ns, extensions=loaded)
        for written in self.log if log is None else log:
            loader.add(written)
        self.engine = loader.finish()

    def kept(self) -> list[str]:
        """The steps that the ledger has."""
        return [key for family, key in ledger_fold.replay(self.ledger) if family == "step"]
