"""A WorkQueue with a clock of its own, for tests that tell a story."""

from __future__ import annotations

from typing import Any

from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.messages import WorkqDue, WorkqGone, WorkqOutcome
from journeyman.formats.framing import DecodedRecords
from journeyman.formats.workq import CODEC, Command, Record
from journeyman.protocols.workq.commands import (
    Add,
    AwaitResult,
    Complete,
    Delete,
    Fail,
    InspectJob,
    Lease,
    PauseQueue,
    Requeue,
    ResumeQueue,
    RunJob,
    ScheduleJob,
)
from journeyman.protocols.workq.replies import JobList, JobView, Leased
from journeyman.units import DAY_MS
from tests.support.loaded_engines import load_work_queue

START_NS = 1_700_000_000 * 10**9
MS = 1_000_000


def job_id(number: int) -> bytes:
    return bytes.fromhex("0000000a000040008000") + number.to_bytes(6)


def decide_fast(
    queue: WorkqEngine, command: Decidable, now_ns: int, client: Any = None
) -> tuple[WorkqOutcome, bool]:
    """As the writer does: by the fast path if that takes the command, and whether it did."""
    encoded: list[Any] = []
    reply = queue.usual_at(now_ns, encoded)(command)
    if reply is None:
        assert encoded == []
        return queue.decide(command, now_ns, client), False
    return WorkqOutcome(tuple(DecodedRecords(CODEC, encoded)), reply, ()), True


class Story:
    """Commands by number of job and in plain words. ``log`` is what was written so far."""

    def __init__(self, seed: int = 0) -> None:
        self.now_ns = START_NS
        self.queue = WorkqEngine(seed=seed)
        self.log: list[Record] = []
        self.answers: list[tuple[Any, Any]] = []  # (client, reply) of those who waited
        self.last: WorkqOutcome

    def decide(self, command: Decidable, client: Any = None) -> Any:
        """The reply."""
        self.last = self.queue.decide(command, self.now_ns, client)
        self.now_ns = self.queue._state.now_ns  # every add has a nanosecond of its own
        self.log += self.last.records
        self.queue.take_ledger()  # there is none here; what waits for it would stay due
        self.answers += [(e.client, e.reply) for e in self.last.effects]
        return self.last.reply

    def words(self) -> list[str]:
        """What the last decision wrote."""
        return [record.command.word for record in self.last.records]

    def add(self, number: int, name: str = "q", **settings: Any) -> Any:
        values: dict[str, Any] = {"ttr_ms": 1000, "ttl_ms": DAY_MS}
        values |= {"payload": b"job %d" % number} | settings
        return self.decide(Add(job_id(number), name, **values))

    def schedule(self, number: int, in_ms: int, name: str = "q", **settings: Any) -> Any:
        values: dict[str, Any] = {"ttr_ms": 1000, "ttl_ms": DAY_MS}
        values |= {"payload": b"job %d" % number} | settings
        time_ns = self.now_ns + in_ms * MS
        return self.decide(ScheduleJob(job_id(number), name, time_ns=time_ns, **values))

    def run(self, number: int, client: Any, wait_ms: int = 500, **settings: Any) -> Any:
        values: dict[str, Any] = {"ttr_ms": 1000, "payload": b""} | settings
        return self.decide(RunJob(job_id(number), "q", wait_ms=wait_ms, **values), client)

    def lease(self, *names: str, wait_ms: int = 0, client: Any = None) -> Any:
        """The number of the job; any other reply as it is."""
        reply = self.decide(Lease(names or ("q",), wait_ms), client)
        return number_of(reply) if isinstance(reply, Leased) else reply

    def complete(self, number: int, result: bytes = b"done") -> Any:
        return self.decide(Complete(job_id(number), result))

    def fail(self, number: int, result: bytes = b"oops") -> Any:
        return self.decide(Fail(job_id(number), result))

    def result(self, number: int, client: Any = None, wait_ms: int = 0) -> Any:
        return self.decide(AwaitResult(job_id(number), wait_ms), client)

    def delete(self, number: int) -> Any:
        return self.decide(Delete(job_id(number)))

    def requeue(self, number: int) -> Any:
        return self.decide(Requeue(job_id(number)))

    def pause(self, name: str = "q") -> Any:
        return self.decide(PauseQueue(name))

    def resume(self, name: str = "q") -> Any:
        return self.decide(ResumeQueue(name))

    def gone(self, client: Any) -> Any:
        return self.decide(WorkqGone(client))

    def view(self, number: int) -> JobView | None:
        reply = self.decide(InspectJob(job_id(number)))
        return reply.jobs[0] if isinstance(reply, JobList) else None

    def later(self, ms: float) -> list[str]:
        """Let time go by, as the ticker does: what was due on the way; the words written."""
        end_ns = self.now_ns + round(ms * MS)
        words = []
        while (due_ns := self.queue.next_due_ns()) is not None and due_ns <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.decide(WorkqDue())
            words += self.words()
        self.now_ns = end_ns
        return words

    def restart(self, after_ms: float = 0) -> None:
        self.now_ns += round(after_ms * MS)
        self.queue = load_work_queue(self.log, now_ns=self.now_ns, paused=self.queue.paused)
        self.answers = []

    def times_of(self, command: Command) -> list[int]:
        return [r.logged.unix_ns for r in self.log if r.command == command]


def number_of(reply: Leased) -> int:
    return int.from_bytes(reply.job_id[10:])
