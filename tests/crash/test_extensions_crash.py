"""Cutting the power at every step of a work queue that uses all that the original does not have.

Each job, and the limits of the queue, must be afterwards as they were after the last acknowledged
command, or after the one that was under way. So no job is lost, none loses its key, its parents,
its delay or its attempts, and none has what was never said of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial

from journeyman.config import LogLevel, WorkqSettings, WorkqSync
from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
from journeyman.logs.ledger.log import LedgerLog
from journeyman.protocols.workq.commands import (
    Add,
    AddOptions,
    Complete,
    Fail,
    InspectJob,
    InspectQueue,
    Lease,
    Limits,
    Requeue,
    RequeueAll,
    SetLimits,
    Touch,
)
from journeyman.protocols.workq.replies import JobList, QueueList
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.workq.persistence import LogKeeping, PersistenceContext
from journeyman.testing import ManualClock, SimulatedDisk
from tests.support.crash.cuts import crashes

IDS = tuple(bytes.fromhex(f"0000000a00004000800000000000000{number}") for number in range(6))
PLAIN, KEYED, CHILD, EVEN, DEAD, ALSO_DEAD = IDS
SETTINGS = replace(WorkqSettings(), cmdlog_sync=WorkqSync.ALWAYS)
DAY_MS = 86_400_000
DONE = 1  # its key says nothing any more


def add(job_id: bytes, options: AddOptions | None = None, *, max_fails: int = 3) -> Add:
    return Add(job_id, "q", DAY_MS, DAY_MS, b"work", max_fails=max_fails, options=options)


STORY: tuple[Decidable, ...] = (
    SetLimits("q", Limits(100, 60_000, 5, 1)),
    add(PLAIN),
    add(KEYED, AddOptions("k")),
    add(DEAD, max_fails=1),
    add(ALSO_DEAD, AddOptions("l"), max_fails=1),
    add(CHILD, AddOptions(after=(PLAIN, KEYED))),
    add(EVEN, AddOptions("e", after=(DEAD,), even_failed=True)),
    Lease(("q",), 0, 4, "worker"),
    Touch(KEYED),
    Fail(DEAD, b"no", None, 1),
    WorkqDue(),  # what always follows it is added
    Fail(ALSO_DEAD, b"no"),
    Fail(KEYED, b"not yet", 50_000),
    Complete(PLAIN, b"yes", 1),
    Requeue(DEAD),
    Fail(DEAD, b"no"),
    RequeueAll("q", 10),
    Lease(("q",), 0, 10),
    SetLimits("q", Limits()),
    Complete(KEYED, b"yes"),
    WorkqDue(),  # the child is added
    add(PLAIN, AddOptions("k", True)),
    Fail(CHILD, b"no", 0),
)
REPLACED = len(STORY) - 1  # views before the last command but one


@dataclass
class World:
    """A work queue and its ledger on a disk; ``views``: what it showed after each command."""

    disk: SimulatedDisk
    views: list[dict[str, object]] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)

    def open(self) -> None:
        quiet = ServerLog(self.clock, lambda _: None, level=LogLevel.OFF)
        log = LedgerLog.open(self.disk, self.clock, "data/ledger")
        self.ledger = Ledger(log, self.disk, self.clock, quiet)
        around = PersistenceContext(self.disk, self.clock, quiet, self.ledger)
        self.keeping = LogKeeping(SETTINGS, "data/workq", around)

    def close(self) -> None:
        self.keeping.close()
        self.ledger.close()

    def look(self) -> dict[str, object]:
        return view_of(self.keeping.queue, self.clock.now_ns())

    def tell(self) -> None:
        self.views.append(self.look())
        for command in STORY:
            self.clock.advance_ns(1_000_003)
            self.do(command)
            self.views.append(self.look())

    def do(self, command: Decidable) -> None:
        """As the writer does it: the ledger, then the log, then the answer."""
        queue, recorder = self.keeping.queue, self.keeping.recorder
        queue.begin_batch()
        records = queue.decide(command, self.clock.now_ns(), "client").records
        ledger = queue.take_ledger()
        if ledger:
            then = partial(recorder.write, records) if records else None
            self.ledger.write(ledger, then=then)
        elif records:
            recorder.write(records)
        queue.commit_batch()


def view_of(queue: WorkqEngine, now_ns: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for job_id in IDS:
        reply = queue.decide(InspectJob(job_id), now_ns).reply
        found[job_id.hex()] = "none"
        if isinstance(reply, JobList):
            (job,) = reply.jobs
            key = "" if job.state == DONE else job.key
            found[job_id.hex()] = job.state, job.attempts, job.fails, key, job.after
    reply = queue.decide(InspectQueue("q"), now_ns).reply
    found["limits"] = reply.queues[0].limits if isinstance(reply, QueueList) else Limits()
    return found


def begin() -> World:
    world = World(SimulatedDisk())
    world.open()
    return world


def test_every_job_is_as_last_acknowledged_or_as_then_asked_wherever_the_power_fails():
    steps = 0
    for crash in crashes(begin, lambda world: world.disk, World.tell, seeds=1):
        steps += 1
        shown = crash.run.views
        again = World(crash.disk, clock=crash.run.clock)
        again.open()
        found, last = again.look(), shown[-1]
        coming = NEXT[len(shown)]
        allowed = {each: [last[each], coming[each]] for each in found}
        if len(shown) == REPLACED:  # the finished job may be gone before the new one is there
            allowed[PLAIN.hex()].append("none")
        wrong = {
            each: (value, allowed[each])
            for each, value in found.items()
            if value not in allowed[each]
        }
        assert not wrong, (crash, STORY[len(shown) - 1], wrong)
        again.close()
    assert steps > 100


def test_nothing_is_lost_by_a_stop():
    world = begin()
    world.tell()
    last = world.views[-1]
    world.close()
    world.open()
    assert world.look() == last


def _all_views() -> list[dict[str, object]]:
    world = begin()
    world.tell()
    return world.views


NEXT = _all_views()
