"""Jobs that wait without a lease, for a time, an event or other jobs; and what must hold of them.

    Waiter   leases jobs and parks them; looks at their steps; emits events and looks at them

    events       each is a register: once it has a value, it keeps it
    not early    no job is leased after its park before what it waits for has come
    recorded     a job that is leased after its wait has the step of it, with the value of its event
    woken        in the end every job has ended, so none was left parked

The step of a wait has a number of its own in the whole story. A job that was cancelled while it was
parked and requeued afterwards may be without it.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import NamedTuple

from journeyman.units import NS_PER_MS
from tests.simulation.clients import Notes
from tests.simulation.history import (
    DIFFERS,
    NOT_FOUND,
    OK,
    OVER,
    REFUSED,
    UNKNOWN,
    Operation,
)
from tests.simulation.work_clients import TTR_MS, WorkProcess

QUEUE = "waiting"
WAITED_FOR = ("limited", "keyed")  # queues of jobs that wait for nothing
TIMES_MS = (1, 300, 5_000)
LATE = "wait!timeout"


class Wait(NamedTuple):
    """What a job is parked for: ``within_ms`` alone, or at most so long for one of the others."""

    number: int
    within_ms: int = 0
    event: str = ""
    jobs: tuple[str, ...] = ()

    @property
    def free_ns(self) -> int:
        """It ends not before; 0: it may at once."""
        return 0 if self.event or self.jobs else self.within_ms * NS_PER_MS

    def encode(self) -> bytes:
        asked = {"step": "wait", **self._asdict()}
        return json.dumps({name: value for name, value in asked.items() if value}).encode()


class Waiter(WorkProcess):
    async def step(self) -> None:
        what, events = self.chance.random(), self.notes.events
        if events and what < 0.2:
            await self._emit(self.chance.choice(events[-30:]))
        elif events and what < 0.3:
            await self._look_at_event(self.chance.choice(events[-30:]))
        else:
            jobs = await self.lease((QUEUE,), self.chance.choice((0, 50, 2000)), many=True)
            for job_id, attempt in jobs.items():
                await self._go_on(job_id, attempt)

    async def emit_all(self) -> None:
        self.connect()
        for event in self.notes.events:
            await self._emit(event)
            await self._look_at_event(event)

    async def _go_on(self, job_id: str, attempt: int) -> None:
        await self._look_at_steps(job_id)
        if self.chance.random() < 0.2:
            await self.pause(self.chance.random() * 2 * TTR_MS / 1000)
        if self.chance.random() < 0.3:
            await self.finish((job_id, "complete"))
        elif self.chance.random() < 0.9:  # or it is forgotten
            await self._park(job_id, attempt)

    def _draw_wait(self) -> Wait:
        notes, chance = self.notes, self.chance
        number, within_ms = notes.next_number(), chance.choice(TIMES_MS)
        others = [each for each in notes.known_tasks[-50:] if notes.queue_of[each] in WAITED_FOR]
        what = chance.random()
        if what < 0.3:
            return Wait(number, within_ms)
        within_ms = within_ms if chance.random() < 0.3 else 0
        if what < 0.5 and others:
            return Wait(number, within_ms, jobs=(chance.choice(others), chance.choice(others)))
        if not notes.events or chance.random() < 0.5:
            notes.events.append(f"event-{number}")
        return Wait(number, within_ms, event=chance.choice(notes.events[-5:]))

    async def _park(self, job_id: str, attempt: int) -> None:
        wait = self._draw_wait()
        operation = self.history.begin(f"work/{job_id}", "park", wait, attempt)
        body = wait.encode()
        answer = await self.ask(f"park {job_id} {len(body)} -attempt={attempt}", body)
        if answer == "+OK 1":
            *_, size, _ = (await self.wire.read_line()).split()
            await self.wire.read_bytes(int(size) + 2)
            self.history.end(operation, OVER)
        else:
            self.history.end(operation, self.word(operation, answer))

    async def _emit(self, event: str) -> None:
        value = self.chance.choice((b"1", b"1", b"1", b"another"))
        operation = self.history.begin(f"event/{event}", "emit", value)
        answer = await self.ask(f"emit {event} {len(value)}", value)
        differs = answer == "-CLIENT-ERROR Event has another value"
        self.history.end(operation, DIFFERS if differs else self.word(operation, answer))

    async def _look_at_event(self, event: str) -> None:
        operation = self.history.begin(f"event/{event}", "look")
        answer = await self.ask(f"inspect event {event}")
        found: object = NOT_FOUND
        if answer == "+OK 1":
            *_, size, _ = (await self.wire.read_line()).split()
            found = (await self.wire.read_bytes(int(size) + 2))[:-2]
        elif answer != "-NOT-FOUND":
            self.complain(f"{operation}: {answer}")
        self.history.end(operation, found)

    async def _look_at_steps(self, job_id: str) -> None:
        operation = self.history.begin(f"waits/{job_id}", "look")
        answer = await self.ask(f"inspect steps {job_id}")
        steps: dict[int, tuple[str, bytes]] = {}
        if answer.startswith("+OK "):
            for _ in range(int(answer[4:])):
                name, number, size, _ = (await self.wire.read_line()).decode().split()
                steps[int(number)] = name, (await self.wire.read_bytes(int(size) + 2))[:-2]
        elif answer != "-NOT-FOUND":
            self.complain(f"{operation}: {answer}")
        self.history.end(operation, steps if answer.startswith("+OK ") else NOT_FOUND)


def event(state: Hashable, operation: Operation) -> Iterator[Hashable]:
    """A register that is set once: its value, or None."""
    verb, answer = operation.ask[0], operation.answer
    if verb == "look":
        if answer in (UNKNOWN, NOT_FOUND if state is None else state):
            yield state
    elif answer in (UNKNOWN, REFUSED):
        yield state
        if answer is UNKNOWN and state is None:
            yield operation.ask[1]
    else:
        value = operation.ask[1] if state is None else state
        if answer == (OK if value == operation.ask[1] else DIFFERS):
            yield value


def without_waits(notes: Notes) -> Iterator[str]:
    """What is wrong with the waits of all jobs."""
    work = {job_id: notes.history.of_key(f"work/{job_id}") for job_id in notes.tasks}
    for job_id, operations in work.items():
        if notes.queue_of[job_id] == QUEUE:
            looks = notes.history.of_key(f"waits/{job_id}")
            yield from _of_one(notes, work, operations, [each for each in looks if _is_told(each)])


def _is_told(look: Operation) -> bool:
    return look.answer is not UNKNOWN and look.answer != NOT_FOUND


def _of_one(
    notes: Notes,
    work: Mapping[str, Sequence[Operation]],
    operations: Sequence[Operation],
    looks: Sequence[Operation],
) -> Iterator[str]:
    waits = {each.ask[1].number: each for each in operations if each.ask[0] == "park"}
    for look in looks:
        for number, (name, value) in look.answer.items():
            if number in waits:
                yield from _wrong_step(notes, look, waits[number], name, value)
    cancelled = [each.invoked for each in operations if each.ask[0] == "cancel"]
    leases = [each for each in operations if each.ask[0] == "lease"]
    for park in waits.values():
        if park.answer != OK:
            continue
        for lease in leases:
            # A cancellation ends a wait as well, and the job may be requeued.
            if park.returned < lease.invoked and not any(
                park.invoked < at < lease.returned for at in cancelled
            ):
                if not _may_be_over(notes, work, park.ask[1], lease.returned):
                    yield f"{lease} was leased before the end of {park}"
                yield from _missing(park, lease, looks)


def _missing(park: Operation, lease: Operation, looks: Sequence[Operation]) -> Iterator[str]:
    for look in looks:
        if lease.returned < look.invoked and park.ask[1].number not in look.answer:
            yield f"{look} misses the wait of {park}, which had ended before {lease}"


def _wrong_step(
    notes: Notes, look: Operation, park: Operation, name: str, value: bytes
) -> Iterator[str]:
    wait: Wait = park.ask[1]
    emitted = [each for each in _emits(notes, wait) if each.invoked < look.returned]
    if name == LATE:
        is_right = bool(wait.within_ms and (wait.event or wait.jobs)) and not value
    elif wait.event:
        is_right = any(each.ask[1] == value for each in emitted)
    else:
        is_right = not value
    if not is_right or name not in ("wait", LATE):
        yield f"{look} has {name} {value!r} for {park}"


def _emits(notes: Notes, wait: Wait) -> list[Operation]:
    asked = notes.history.of_key(f"event/{wait.event}")
    return [each for each in asked if each.ask[0] == "emit" and each.answer in (OK, UNKNOWN)]


def _may_be_over(
    notes: Notes, work: Mapping[str, Sequence[Operation]], wait: Wait, before: int
) -> bool:
    if wait.within_ms:
        return True  # the register of the job knows when
    if wait.event:
        return any(each.invoked < before for each in _emits(notes, wait))
    ends = ("complete", "fail", "cancel")
    return all(
        any(
            each.ask[0] in ends and each.answer in (OK, UNKNOWN) and each.invoked < before
            for each in work[job_id]
        )
        for job_id in wait.jobs
    )
