"""Clients and workers of the work queue that use what the original does not have.

    TaskProducer  adds jobs with keys, parents and ids that finished jobs make room for; requeues
    TaskWorker    leases them; touches, delays retries, fails for good, names the attempt that ended
    Foreman       sets limits; pauses and resumes a queue; requeues all dead jobs of a queue

    limited    no more than so many at a time, and starts a second
    keyed      the same for each key
    chained    jobs that wait for others
    unique     a few ids, used again and again

Jobs of one kind have a queue of their own, and task_checks.py checks each queue. Each job is a
register as well: see models.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import NamedTuple

from journeyman.testing.simulation.clients import FEW, TTL_MS
from journeyman.testing.simulation.history import UNKNOWN, Operation
from journeyman.testing.simulation.models import OK
from journeyman.testing.simulation.work_clients import WorkProcess
from journeyman.units import NS_PER_MS

TTR_MS, MAX_FAILS = 2_000, 2
TASK_QUEUES = ("limited", "keyed", "chained", "unique")
KEYS = ("red", "green", "blue")
MAX_PARENTS = 2
REQUEUED_AT_ONCE = 1_000


class TaskLimit(NamedTuple):
    """At most so many jobs at a time, and so many starts in ``rate_ms``; of each key, or in all."""

    concurrency: int
    rate: int
    rate_ms: int
    by_key: bool

    def __str__(self) -> str:
        key = "key-" if self.by_key else ""
        return f"-{key}concurrency={self.concurrency} -{key}rate={self.rate}/{self.rate_ms}ms"


LIMITS: Mapping[str, TaskLimit] = {
    "limited": TaskLimit(4, 8, 1_000, by_key=False),
    "keyed": TaskLimit(1, 3, 1_000, by_key=True),
}


class TaskProducer(WorkProcess):
    async def step(self) -> None:
        what, tasks = self.chance.random(), self.notes.tasks
        if tasks and what < 0.15:
            job_id = self.chance.choice(tasks[-200:])
            operation = self.history.begin(f"work/{job_id}", "requeue")
            self.history.end(operation, self.word(operation, await self.ask(f"requeue {job_id}")))
        elif tasks and what < 0.25:
            await self.look_at(self.chance.choice(tasks[-200:]))
        else:
            queue = self.chance.choice(TASK_QUEUES)
            count = self.chance.randint(1, max(1, self.pace.burst // FEW // 2))
            await self.ask_all([self._add(queue) for _ in range(count)])

    def _add(self, queue: str) -> tuple[Operation, str, bytes]:
        notes, verb, flags = self.notes, "add", ""
        job_id, parents, known = self.new_job_id(), tuple[str, ...](), notes.known_tasks
        if queue == "unique":
            number = self.chance.randint(1, self.pace.burst)  # so many have the same id seldom
            job_id = str(uuid.UUID(int=number << 64, version=4))
            verb, flags = "replace", " -replace=finished"
        elif queue == "keyed":
            notes.key_of[job_id] = self.chance.choice(KEYS)
            flags = f" -key={notes.key_of[job_id]}"
        elif queue == "chained" and known:
            count = self.chance.randint(1, MAX_PARENTS)
            parents = tuple({self.chance.choice(known[-50:]): None for _ in range(count)})
            notes.parents[job_id] = parents
            flags = f" -after={','.join(parents)}"
            if self.chance.random() < 0.5:
                notes.even_failed.add(job_id)
                flags += " -even-failed=1"
        if job_id not in notes.queue_of:
            notes.queue_of[job_id] = queue
            notes.tasks.append(job_id)
        ask = (verb, MAX_FAILS, TTR_MS * NS_PER_MS, parents, job_id in notes.even_failed)
        operation = self.history.begin(f"work/{job_id}", *ask)
        payload = f"of {job_id}".encode()
        line = f"add {job_id} {queue} {TTR_MS} {TTL_MS} {len(payload)} -max-fails={MAX_FAILS}"
        return operation, line + flags, payload

    def word(self, operation: Operation, answer: str) -> object:
        if answer == "+OK" and operation.ask[0] == "add":
            self.notes.known_tasks.append(operation.key.removeprefix("work/"))
        return super().word(operation, answer)


class TaskWorker(WorkProcess):
    async def step(self) -> None:
        names = self.chance.sample(TASK_QUEUES, self.chance.randint(1, len(TASK_QUEUES)))
        wait_ms = self.chance.choice((0, 50, 2000))
        jobs = await self.lease(tuple(names), wait_ms, many=True)
        left = {job_id: jobs[job_id] for job_id in jobs if self.chance.random() > 0.1}
        if left and self.chance.random() < 0.4:
            await self._pause_a_while()
            await self.ask_all([self._touch(job_id) for job_id in left])
        await self._pause_a_while()
        if left:
            await self.ask_all([self._finish(job_id, attempt) for job_id, attempt in left.items()])

    async def _pause_a_while(self) -> None:
        """Sometimes longer than the lease."""
        if self.chance.random() < 0.4:
            await self.pause(self.chance.random() * 2 * TTR_MS / 1000)

    def _touch(self, job_id: str) -> tuple[Operation, str, None]:
        ttr_ms = self.chance.choice((0, 200, 2 * TTR_MS))
        operation = self.history.begin(f"work/{job_id}", "touch", ttr_ms * NS_PER_MS)
        return operation, f"touch {job_id} {ttr_ms or ''}".rstrip(), None

    def _finish(self, job_id: str, attempt: int) -> tuple[Operation, str, bytes]:
        result = b"r%d" % self.notes.next_number()
        key, line = f"work/{job_id}", f"{job_id} {len(result)} -attempt={attempt}"
        if self.chance.random() < 0.7:
            return self.history.begin(key, "complete", result, attempt), f"complete {line}", result
        delay_ms, is_final = self.chance.choice((0, 500, 20_000)), self.chance.random() < 0.2
        line += f" -delay={delay_ms}" if delay_ms else ""
        line += " -final=1" if is_final else ""
        delay_ns = delay_ms * NS_PER_MS
        operation = self.history.begin(key, "fail", result, attempt, delay_ns, is_final)
        return operation, f"fail {line}", result


class Foreman(WorkProcess):
    """There is one, so what it does to a queue is done in order."""

    async def set_limits(self) -> None:
        for queue, limit in LIMITS.items():
            answer = await self.ask(f"limit {queue} {limit}")
            assert answer == "+OK", answer

    async def step(self) -> None:
        if self.chance.random() < 0.1:
            await self._requeue_all("limited")
        else:
            await self._tell(self.chance.choice(("pause", "resume")), "keyed")

    async def resume_all(self) -> None:
        self.connect()
        await self._tell("resume", "keyed")

    async def _tell(self, verb: str, queue: str) -> None:
        operation = self.history.begin(f"queue/{queue}", verb)
        self.history.end(operation, self.word(operation, await self.ask(f"{verb} {queue}")))

    async def _requeue_all(self, queue: str) -> None:
        operation = self.history.begin(f"queue/{queue}", "requeue-all")
        try:
            answer = await self.ask(f"requeue-all {queue} {REQUEUED_AT_ONCE}")
            if answer == "+OK 1":
                await self.wire.read_lines(1)
                await self.wire.read_lines(1)
                self.history.end(operation, OK)
            else:
                self.history.end(operation, self.word(operation, answer))
        finally:  # which ones is not known
            if operation.answer in (OK, UNKNOWN):
                for job_id in self.notes.tasks:
                    if self.notes.queue_of[job_id] == queue:
                        self.history.put(
                            f"work/{job_id}", "requeue", like=operation, answer=UNKNOWN
                        )
