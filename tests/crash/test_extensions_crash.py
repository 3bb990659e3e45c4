"""Cutting the power at every step of a work queue that uses all that the original does not have.

Each job, and the limits of the queue, must be afterwards as they were after the last acknowledged
command, or after the one that was under way. So no job is lost, none loses its key, its parents,
its delay or its attempts, and none has what was never said of it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from msgspec import structs

from journeyman.engines.workq.adding import ADD_LIMIT
from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
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
from tests.support.crash.cuts import crashes
from tests.support.crash.queue_world import QueueWorld
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


class StoryWorld(QueueWorld):
    def look(self) -> dict[str, object]:
        return view_of(self.kept.queue, self.clock.now_ns())

    def tell(self, story: Iterable[Decidable] = STORY, pause_ns: int = 1_000_003) -> None:
        super().tell(story, pause_ns)


def disk_of(world: StoryWorld) -> SimulatedDisk:
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


def begin() -> StoryWorld:
    world = StoryWorld(SimulatedDisk())
    world.open()
    return world


def test_every_job_is_as_last_acknowledged_or_as_then_asked_wherever_the_power_fails():
    coming_after = all_views()
    steps = 0
    for crash in crashes(begin, disk_of, StoryWorld.tell, seeds=1):
        steps += 1
        shown = crash.run.views
        again = StoryWorld(crash.disk, clock=crash.run.clock)
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
    world = begin()
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
    world = StoryWorld(SimulatedDisk())
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
    world = StoryWorld(SimulatedDisk())
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


def all_views() -> list[dict[str, object]]:
    world = begin()
    world.tell()
    world.close()
    return world.views
