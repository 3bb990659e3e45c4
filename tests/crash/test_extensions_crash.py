"""Cutting the power at every step of a work queue that uses all that the original does not have.

Each job, and the limits of the queue, must be afterwards as they were after the last acknowledged
command, or after the one that was under way. So no job is lost, none loses its key, its parents,
its delay or its attempts, and none has what was never said of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

import pytest
from msgspec import structs

from journeyman.config import LogLevel, WorkqSettings, WorkqSync
from journeyman.disk import RealDisk
from journeyman.engines.workq.adding import ADD_LIMIT
from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
from journeyman.logs.ledger import LedgerLog
from journeyman.protocols.workq.commands import (
    Add,
    AddOptions,
    Cancel,
    Complete,
    Delete,
    Fail,
    InspectJob,
    InspectQueue,
    InspectScheduledJobs,
    Lease,
    Limits,
    Requeue,
    RequeueAll,
    SetLimits,
    Touch,
)
from journeyman.protocols.workq.replies import CANCELLED, JobList, QueueList
from journeyman.servers.core.ledger import Ledger
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.workq.persistence import open_kept_queue
from journeyman.testing import ManualClock
from tests.support.crash.cuts import crashes
from tests.support.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("kind_of_disk")

IDS = tuple(bytes.fromhex(f"0000000a00004000800000000000000{number}") for number in range(9))
PLAIN, KEYED, CHILD, EVEN, DEAD, ALSO_DEAD, WAITS, RUNS, WAITS_FOR_IT = IDS
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
    add(RUNS),
    Lease(("q",), 0, 10, "worker"),
    add(WAITS, AddOptions("w")),
    add(WAITS_FOR_IT, AddOptions("c", after=(WAITS,))),
    Cancel(WAITS_FOR_IT),
    WorkqDue(),
    Cancel(WAITS),
    Cancel(RUNS),
    Requeue(WAITS),
)
REPLACED = STORY.index(add(PLAIN, AddOptions("k", True))) + 1  # views before that command
DELAYED = STORY.index(Fail(KEYED, b"not yet", 50_000)) + 1  # then one waits for it, and one is dead


@dataclass
class World:
    """A work queue on a disk, and its ledger; ``views``: what it showed after each command."""

    disk: SimulatedDisk | RealDisk
    views: list[dict[str, object]] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)
    place: str = "data"

    @property
    def quiet(self) -> ServerLog:
        return ServerLog(self.clock, lambda _: None, level=LogLevel.OFF)

    def open(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def do(self, command: Decidable) -> None:
        raise NotImplementedError

    def look(self) -> dict[str, object]:
        raise NotImplementedError

    def tell(self, story: Iterable[Decidable] = STORY, pause_ns: int = 1_000_003) -> None:
        self.views.append(self.look())
        for command in story:
            self.clock.advance_ns(pause_ns)
            self.do(command)
            self.views.append(self.look())


class InLog(World):
    def open(self) -> None:
        log = LedgerLog.open(self.disk, self.clock, f"{self.place}/ledger")
        self.ledger = Ledger(log, self.disk, self.clock, self.quiet)
        settings = WorkqSettings(cmdlog_path=f"{self.place}/workq", cmdlog_sync=WorkqSync.ALWAYS)
        self.kept = open_kept_queue(settings, self.disk, self.clock, self.quiet, self.ledger)

    def close(self) -> None:
        self.kept.log.close()
        self.ledger.close()

    def look(self) -> dict[str, object]:
        return view_of(self.kept.queue, self.clock.now_ns())

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


def disk_of(world: World) -> SimulatedDisk:
    assert isinstance(world.disk, SimulatedDisk)
    return world.disk


def view_of(queue: WorkqEngine, now_ns: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for job_id in IDS:
        reply = queue.decide(InspectJob(job_id), now_ns).reply
        found[job_id.hex()] = "none"
        if isinstance(reply, JobList):
            (job,) = reply.jobs
            key = "" if job.number_of_state == DONE else job.key
            counts = job.attempts, job.fails, job.waits_for
            found[job_id.hex()] = job.number_of_state, *counts, key, job.state == CANCELLED
    reply = queue.decide(InspectScheduledJobs("q", 0, 9), now_ns).reply
    jobs = reply.jobs if isinstance(reply, JobList) else ()
    found["scheduled"] = [structs.replace(job, worker="") for job in jobs]  # a name is not kept
    reply = queue.decide(InspectQueue("q"), now_ns).reply
    found["limits"] = reply.queues[0].limits if isinstance(reply, QueueList) else Limits()
    return found


def begin(kind: type[World]) -> World:
    world = kind(SimulatedDisk())
    world.open()
    return world


def test_every_job_is_as_last_acknowledged_or_as_then_asked_wherever_the_power_fails():
    coming_after = all_views(InLog)
    steps = 0
    for crash in crashes(lambda: begin(InLog), disk_of, World.tell, seeds=1):
        steps += 1
        shown = crash.run.views
        again = InLog(crash.disk, clock=crash.run.clock)
        again.open()
        found, last = again.look(), shown[-1]
        coming = coming_after[len(shown)]
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
    assert steps > 40


def test_nothing_is_lost_by_a_stop():
    world = begin(InLog)
    world.tell()
    last = world.views[-1]
    world.close()
    world.open()
    assert world.look() == last
    world.close()


@pytest.mark.parametrize("last", [None, Delete(PLAIN)])
def test_children_that_could_not_be_added_at_once_are_added_after_a_crash(
    last: Delete | None,
):
    """Their parent is not in memory then, or gone; how it ended counts."""
    world = InLog(SimulatedDisk())
    world.open()
    ids = [bytes.fromhex(f"0000000b000040008000{n:012x}") for n in range(2 * ADD_LIMIT + 5)]
    world.do(add(PLAIN))
    for job_id in ids:
        world.do(add(job_id, AddOptions(after=(PLAIN,))))
    world.do(Complete(PLAIN, b"yes"))
    if last is not None:
        world.do(last)
    assert world.kept.queue.stats().ready < len(ids)
    world.close()
    world.open()
    for _ in range(3):
        world.do(WorkqDue())
    assert world.kept.queue.stats().ready == len(ids)
    world.close()


@pytest.mark.parametrize(
    "ends",
    [
        (Fail(PLAIN, b"no"), Delete(PLAIN)),
        (Delete(PLAIN),),
        (Fail(PLAIN, b"no"), add(EVEN, AddOptions(after=(PLAIN, KEYED), even_failed=True))),
    ],
    ids=["failed and deleted", "deleted", "failed and named again"],
)
def test_children_that_could_not_fail_at_once_fail_after_a_crash(
    ends: tuple[Decidable, ...],
):
    """Their parent failed, or never ran: they must not run."""
    world = InLog(SimulatedDisk())
    world.open()
    world.do(add(PLAIN, max_fails=1))
    world.do(add(KEYED))
    for n in range(2 * ADD_LIMIT + 5):
        job_id = bytes.fromhex(f"0000000b000040008000{n:012x}")
        world.do(add(job_id, AddOptions(after=(PLAIN,))))
    for end in ends:
        world.do(end)
    assert world.kept.queue.stats().failed < 2 * ADD_LIMIT + 5
    world.close()
    world.open()
    for _ in range(3):
        world.do(WorkqDue())
    stats = world.kept.queue.stats()
    assert (stats.ready, stats.failed) == (1, 2 * ADD_LIMIT + 5 + world.kept.queue.has(PLAIN))
    world.close()


def all_views(kind: type[World]) -> list[dict[str, object]]:
    world = begin(InLog)
    world.tell()
    world.close()
    return world.views
