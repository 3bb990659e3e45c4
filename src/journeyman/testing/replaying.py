"""Runs one attempt at a recorded job in memory, with the steps that the job has recorded.

    replay_job(app, delivery, recorded, endings)  the code between recorded steps runs; the first
                                                  step without a value is not called: it ends there
    replay_job(..., runs_steps=True)              steps without a value are called

Nothing is sent anywhere: the app has no server meanwhile, so jobs that the function sends are
dropped. A wait that is not recorded ends the attempt too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from journeyman.protocols.workq.commands import JobWait
from journeyman.tasks import outcomes, running
from journeyman.tasks.app import App
from journeyman.tasks.batches import BatchTask
from journeyman.tasks.broker import JobEnding
from journeyman.tasks.durations import Backoff
from journeyman.tasks.steps import Parked, Place, Plan, Recorded, StepBook
from journeyman.testing.in_memory import InMemory, InThread, batch_outcomes, outcome_of, run_here


@dataclass(frozen=True, slots=True)
class Replayed:
    """How an attempt would end: ``passes``, ``fails``, ``stops`` before a step, ``waits``."""

    outcome: str
    detail: str = ""


class _Memory:
    """A tasks.steps.Journal that begins with what was recorded."""

    def __init__(self, recorded: Recorded) -> None:
        self._recorded = dict(recorded)
        self.wait: JobWait | None = None

    def read(self) -> Recorded:
        return self._recorded

    async def aread(self) -> Recorded:
        return self._recorded

    def record(self, place: Place, value: bytes) -> None:
        self._recorded[place] = value

    async def arecord(self, place: Place, value: bytes) -> None:
        self.record(place, value)

    def park(self, wait: JobWait) -> Recorded:
        self.wait = wait
        return {}

    async def apark(self, wait: JobWait) -> Recorded:
        return self.park(wait)


class _ReplayBook(StepBook):
    """Steps without a value are called only if that was asked for, and once."""

    def __init__(self, app: App, journal: _Memory, job_id: str, *, runs_steps: bool) -> None:
        super().__init__(app, journal, job_id)
        self._runs_steps = runs_steps
        self.stopped_at = ""

    def step(self, name: str, call: Callable[[], Any], retries: int, backoff: Backoff) -> Plan[Any]:  # noqa: ARG002 - there is no time to try again
        return super().step(name, call, 0, backoff)

    def before_call(self, place: Place) -> None:
        if not self._runs_steps:
            self.stopped_at, self.is_parked = place[0], True
            raise Parked


def replay_job(
    app: App,
    delivery: running.Delivery,
    recorded: Recorded,
    endings: Mapping[UUID, JobEnding],
    *,
    runs_steps: bool = False,
) -> Replayed:
    """``endings``: how the jobs ended whose results it takes."""
    prepared = running.prepare(app, delivery)
    journal = _Memory(recorded)
    book = _ReplayBook(app, journal, delivery.job_id, runs_steps=runs_steps)
    prepared.current.steps = book
    if prepared.envelope.gather and prepared.task is not None:
        results = [endings.get(UUID(each)) for each in prepared.envelope.gather]
        prepared = running.gathered(app, prepared, results)

    async def attempt(in_thread: InThread) -> outcomes.Outcome:
        if isinstance(prepared.task, BatchTask):
            return (await batch_outcomes(app, [prepared], in_thread))[0]
        return await outcome_of(app, prepared, in_thread)

    with InMemory(app):
        outcome = run_here(attempt)
    if isinstance(outcome, outcomes.TaskDone):
        return Replayed("passes")
    if not isinstance(outcome, outcomes.AttemptParked):
        return Replayed("fails", str(outcome.failure))
    if journal.wait is None:
        return Replayed("stops", f"before {book.stopped_at}, which is not recorded")
    return Replayed("waits", f"in {journal.wait.step}")
