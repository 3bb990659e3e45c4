"""Cutting the power at every step of jobs that record steps, wait for events, times and other jobs.

What was acknowledged is there afterwards, or what was under way. A job that has gone on after its
wait has the step of it; and whatever is left, each wait comes to its end once.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pytest

from journeyman.engines.workq.engine import Decidable
from journeyman.engines.workq.messages import WorkqDue
from journeyman.formats.workq import Command
from journeyman.protocols.workq.commands import (
    Add,
    Cancel,
    Complete,
    Delete,
    Emit,
    Fail,
    InspectEvent,
    InspectJob,
    InspectServer,
    InspectSteps,
    JobWait,
    Lease,
    Park,
    RecordStep,
    Requeue,
)
from journeyman.protocols.workq.replies import JobList, RecordedStep, StepList, id_text
from journeyman.units import DAY_MS, NS_PER_S
from tests.support.crash.cuts import crashes
from tests.support.crash.queue_world import QueueWorld
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_extension_machine import check_parks

pytestmark = pytest.mark.usefixtures("kind_of_disk")

IDS = tuple(bytes.fromhex(f"0000000b00004000800000000000000{number}") for number in range(5))
ORDER, SLEEPER, PARENT, CHILD, FORGOTTEN = IDS
EVENTS = ("paid", "shipped", "late")
PAUSE_NS = 300_000_000  # so that what a start need not know is forgotten within the story
LARGE = bytes(range(256)) * 40


def lease() -> Lease:
    return Lease(("q",), 0, 10, "worker")


STORY: tuple[Decidable, ...] = (
    *(Add(job_id, "q", DAY_MS, DAY_MS, b"work", max_fails=3) for job_id in IDS),
    lease(),
    RecordStep(ORDER, "charge", 1, b"receipt", 1),
    RecordStep(ORDER, "charge", 2, LARGE, 1),
    Park(ORDER, JobWait("wait", event="paid"), 1),
    Park(SLEEPER, JobWait("sleep", within_ms=2_000), 1),
    Park(PARENT, JobWait("gather", jobs=(id_text(CHILD), id_text(ORDER))), 1),
    Emit("paid", b"yes"),  # the order is woken
    lease(),
    RecordStep(ORDER, "pack", 1, b"", 2),
    Emit("shipped", b"0"),
    Park(ORDER, JobWait("wait", 2, event="shipped"), 2),  # which is over at once
    Park(ORDER, JobWait("late", event="late", within_ms=600), 2),
    Fail(CHILD, b"no", None, 1),
    WorkqDue(),  # the sleeper is woken, and the order, too late for its event
    lease(),
    Emit("late", b"!"),
    Complete(CHILD, b"done"),
    Fail(ORDER, b"no", None, 3, is_final=True),  # the last that the parent has waited for
    Requeue(ORDER),
    lease(),
    Complete(ORDER, b"done"),
    Park(PARENT, JobWait("wait", event="never"), 2),
    Cancel(PARENT),
    Park(SLEEPER, JobWait("sleep", 2, within_ms=60_000), 2),
    Delete(SLEEPER),
    WorkqDue(),
    WorkqDue(),
    WorkqDue(),
    WorkqDue(),
    WorkqDue(),  # the steps of jobs that have ended are forgotten
    RecordStep(FORGOTTEN, "last", 1, b"1", 1),
)


class StepsWorld(QueueWorld):
    def look(self) -> dict[str, object]:
        """Of each job what the log has of it, and its steps; and the events."""
        found: dict[str, object] = {}
        queue, now_ns = self.kept.queue, self.clock.now_ns()
        self.do(InspectServer())  # writes what a start has found to be over
        for job_id in IDS:
            reply = queue.decide(InspectJob(job_id), now_ns).reply
            views = reply.jobs if isinstance(reply, JobList) else ()
            found[f"job {job_id.hex()}"] = [
                (view.state, view.attempts, view.fails, view.parks) for view in views
            ]
            found[f"steps {job_id.hex()}"] = steps_in(queue.decide(InspectSteps(job_id), now_ns))
        for event in EVENTS:
            found[event] = steps_in(queue.decide(InspectEvent(event), now_ns))
        return found

    def tell(self, story: Iterable[Decidable] = STORY, pause_ns: int = PAUSE_NS) -> None:
        super().tell(story, pause_ns)


def steps_in(outcome: object) -> list[tuple[str, int, bytes]]:
    reply = getattr(outcome, "reply", None)
    steps: tuple[RecordedStep, ...] = reply.steps if isinstance(reply, StepList) else ()
    return [(step.name, step.number, step.value) for step in steps]


def begin() -> StepsWorld:
    world = StepsWorld(SimulatedDisk())
    world.open()
    return world


def disk_of(world: StepsWorld) -> SimulatedDisk:
    assert isinstance(world.disk, SimulatedDisk)
    return world.disk


def test_steps_waits_and_events_are_as_last_acknowledged_wherever_the_power_fails():
    whole = begin()
    whole.tell()
    whole.close()
    cuts = 0
    for crash in crashes(begin, disk_of, StepsWorld.tell, seeds=1):
        cuts += 1
        shown = crash.run.views
        again = StepsWorld(crash.disk, clock=crash.run.clock)
        again.open()
        found, last, coming = again.look(), shown[-1], whole.views[len(shown)]
        told = crash, STORY[len(shown) - 1]
        wrong = {key: its for key, its in found.items() if its not in (last[key], coming[key])}
        assert not wrong, (told, wrong)
        for job_id in IDS:
            job, steps = f"job {job_id.hex()}", f"steps {job_id.hex()}"
            assert found[job] == last[job] or found[steps] == coming[steps], (told, found[job])
        check_end(again)
    assert cuts > 30


def check_end(world: StepsWorld) -> None:
    """Whatever is left of the story: every wait comes to its end, once."""
    for event in EVENTS:
        world.do(Emit(event, b"in the end"))
    for job_id in (CHILD, ORDER):
        world.do(Fail(job_id, b"", is_final=True))
    world.clock.advance_ns(100 * NS_PER_S)
    for _ in range(3):
        world.do(WorkqDue())
    views = map(partial(view_of, world), (ORDER, SLEEPER, PARENT))
    assert not any(view.state == "waiting" and not awaits_never(view) for view in views if view)
    records = [entry.record for entry in world.kept.log.entries()]
    check_parks(records)
    world.close()


def view_of(world: StepsWorld, job_id: bytes):
    reply = world.kept.queue.decide(InspectJob(job_id), world.clock.now_ns()).reply
    return reply.jobs[0] if isinstance(reply, JobList) else None


def awaits_never(view) -> bool:
    return view.wait is not None and view.wait.event == "never"


def test_nothing_is_lost_by_a_stop_at_any_time():
    world = begin()
    for command in STORY:
        world.tell((command,))
        before = world.look()
        world.close()
        world.open()
        assert world.look() == before, command
    woken = sum(entry.record.command == Command.WAKE for entry in world.kept.log.entries())
    assert woken == 4
    world.close()
