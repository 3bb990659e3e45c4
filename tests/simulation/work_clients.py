"""Clients and workers of the work queue. See clients.py for what a process is.

    Producer, QueueWorker   the commands that the original has, and leases of many

    TaskProducer  adds jobs with keys, parents and ids that finished jobs make room for; requeues,
                  cancels
    TaskWorker    leases them; touches, delays retries, fails for good, gives back, names the
                  attempt that ended; records steps, and looks at those of former attempts
    OrderTaker    waits to hear which jobs of a TaskWorker were ended by others
    Foreman       sets limits; pauses and resumes a queue; requeues all dead jobs of a queue

    limited    no more than so many at a time, and starts a second
    keyed      the same for each key
    chained    jobs that wait for others
    unique     a few ids, used again and again
    waiting    jobs that wait without a lease: waits.py
    moved      the same; the last that was sent takes the place of one that no worker has begun
    fair       its keys take turns; one of them has most of the jobs

Jobs of one kind have a queue of their own, and checks.py checks each queue. Each job is a register
as well: see history.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, NamedTuple

from journeyman.units import NS_PER_MS
from tests.simulation.clients import (
    FEW,
    MAX_LEASED,
    TTL_MS,
    WORK_PORT,
    WORK_QUEUES,
    Process,
)
from tests.simulation.history import (
    DUPLICATE,
    LEASED_AGAIN,
    NOT_DEAD,
    NOT_FOUND,
    NOT_LEASED,
    OK,
    REFUSED,
    UNKNOWN,
    Operation,
)

_REFUSALS = {
    "-CLIENT-ERROR Job was leased again": LEASED_AGAIN,
    "-CLIENT-ERROR Job is not leased": NOT_LEASED,
    "-CLIENT-ERROR Job was cancelled": NOT_LEASED,
    "-CLIENT-ERROR Job is not dead": NOT_DEAD,
}


class WorkProcess(Process):
    port = WORK_PORT

    async def ask(self, line: str, payload: bytes | None = None) -> str:
        body = b"" if payload is None else payload + b"\r\n"
        self.wire.send(line.encode() + b"\r\n" + body)
        return (await self.wire.read_line()).decode()

    async def ask_all(self, asked: list[tuple[Operation, str, bytes | None]]) -> None:
        """Many changes at once, with their payloads."""
        sent = []
        for _, line, data in asked:
            sent += (
                [line.encode(), b"\r\n"]
                if data is None
                else [line.encode(), b"\r\n", data, b"\r\n"]
            )
        self.wire.send(b"".join(sent))
        await self.end_all([operation for operation, _, _ in asked], self.word)

    def word(self, operation: Operation, answer: str) -> object:
        """The answer to a change."""
        if answer == "+OK":
            return OK
        if answer == "-NOT-FOUND":
            return NOT_FOUND
        if answer.startswith("-CLIENT-ERROR Duplicate"):
            return DUPLICATE
        if answer in _REFUSALS:
            return _REFUSALS[answer]
        if not answer.startswith("-SERVER-ERROR Read-only"):
            self.complain(f"{operation}: {answer}")
        return REFUSED

    async def finish(self, *jobs: tuple[str, str]) -> None:
        """Jobs, and whether each is to complete or to fail."""
        asked: list[tuple[Operation, str, bytes | None]] = []
        for job_id, verb in jobs:
            result = b"r%d" % self.notes.next_number()
            kind = "work" if job_id in self.notes.queue_of else "ruled"  # added by a rule
            operation = self.history.begin(f"{kind}/{job_id}", verb, result, 0)
            asked.append((operation, f"{verb} {job_id} {len(result)}", result))
        await self.ask_all(asked)

    async def look_at(self, *job_ids: str) -> None:
        """Ask for results, many at once."""
        asked = [self.history.begin(f"work/{job_id}", "look") for job_id in job_ids]
        self.wire.send("".join(f"result {job_id} 0\r\n" for job_id in job_ids).encode())
        for operation in asked:
            await self._read_result(operation)

    async def _read_result(self, operation: Operation) -> None:
        answer = (await self.wire.read_line()).decode()
        found: object = NOT_FOUND if answer == "-NOT-FOUND" else None
        if answer == "+OK 1":
            _, success, size = (await self.wire.read_line()).split()
            result = await self.wire.read_bytes(int(size) + 2)
            found = success == b"1", result[:-2]
        elif answer not in ("-NOT-FOUND", "-TIMEOUT"):
            self.complain(f"{operation}: {answer}")
        self.history.end(operation, found)

    async def lease(
        self, names: tuple[str, ...], wait_ms: int, *, many: bool | None = None, flags: str = ""
    ) -> dict[str, int]:
        """The ids of the jobs that it got, each with the number of the attempt; 0: not known."""
        operation = self.history.begin("lease/" + ",".join(names), "lease")
        is_many = self.chance.random() < 0.5 if many is None else many
        most = f" -max={min(MAX_LEASED, self.pace.burst)}" if is_many else ""
        answer = await self.ask(f"lease {' '.join(names)} {wait_ms}{most}{flags}")
        jobs: dict[str, tuple[Any, ...]] = {}  # by id: attempt, fails; of a moved one its payload
        if answer.startswith("+OK "):
            for _ in range(int(answer[4:])):
                words = (await self.wire.read_line()).decode().split()
                job_id, name, _, size, *counts = words
                payload = await self.wire.read_bytes(int(size) + 2)
                if job_id in jobs:
                    self.complain(f"{job_id} was leased twice by one command")
                jobs[job_id] = tuple(map(int, counts[:2])) or (0, 0)
                if self.notes.queue_of.get(job_id, name) != name:
                    self.complain(f"{job_id} is of another queue than {name}")
                self._check_payload(job_id, payload[:-2])
                if name == "moved":
                    jobs[job_id] += (payload[:-2],)
        elif answer != "-TIMEOUT" and not answer.startswith("-SERVER-ERROR Read-only"):
            self.complain(f"lease: {answer}")
        self.history.end(operation, tuple(jobs))
        for job_id, attempt_and_fails in jobs.items():
            if job_id in self.notes.queue_of:
                self.history.put(f"work/{job_id}", "lease", *attempt_and_fails, like=operation)
        return {job_id: its[0] for job_id, its in jobs.items()}

    def _check_payload(self, job_id: str, payload: bytes) -> None:
        queue, expected = self.notes.queue_of.get(job_id), f"of {job_id}".encode()
        if queue == "moved":
            payload, _, _ = payload.rpartition(b" ")
        if queue is not None and payload != expected:
            self.complain(f"{job_id} has another payload: {payload!r}")


class Producer(WorkProcess):
    async def step(self) -> None:
        jobs = self.notes.jobs
        what = self.chance.random()
        if jobs and what < 0.25:
            await self.look_at(self.chance.choice(jobs[-200:]))
        elif jobs and what < 0.3:
            job_id = self.chance.choice(jobs[-200:])
            operation = self.history.begin(f"work/{job_id}", "delete")
            self.history.end(operation, self.word(operation, await self.ask(f"delete {job_id}")))
        elif jobs and what < 0.33:
            await self.add(self.chance.choice(jobs[-50:]))
        else:
            count = self.chance.randint(1, max(1, self.pace.burst // FEW))
            await self.add(*(self.new_job_id() for _ in range(count)))

    async def add(self, *job_ids: str) -> None:
        asked: list[tuple[Operation, str, bytes | None]] = []
        for job_id in job_ids:
            operation, name, ttr_ms, max_fails, payload = self.begin_add(job_id)
            line = f"add {job_id} {name} {ttr_ms} {TTL_MS} {len(payload)} -max-fails={max_fails}"
            asked.append((operation, line, payload.encode()))
        await self.ask_all(asked)


class QueueWorker(WorkProcess):
    async def step(self) -> None:
        names = self.chance.sample(list(WORK_QUEUES), self.chance.randint(1, len(WORK_QUEUES)))
        names += ["ruled"] if self.chance.random() < 0.2 else []
        jobs = await self.lease(tuple(names), self.chance.choice((0, 0, 50, 2000)))
        # One in ten is forgotten: it is leased again when its lease has ended.
        done = [
            (job_id, "fail" if self.chance.random() < 0.2 else "complete")
            for job_id in jobs
            if self.chance.random() > 0.1
        ]
        size = 1 if self.pace.burst == FEW else max(1, len(done))
        for begin in range(0, len(done), size):
            if self.chance.random() < 0.3:
                await self.pause(self.chance.random())
            await self.finish(*done[begin : begin + size])

    async def drain(self, wait_ms: int, *queues: str) -> None:
        """Until nothing is left that any worker could do; then look at every job."""
        self.connect()
        names = (*WORK_QUEUES, *queues, "ruled")
        while jobs := await self.lease(names, wait_ms, many=True):
            await self.finish(*((job_id, "complete") for job_id in jobs))
        all_jobs = [*self.notes.jobs, *self.notes.tasks]
        for begin in range(0, len(all_jobs), self.pace.burst):
            await self.look_at(*all_jobs[begin : begin + self.pace.burst])


TTR_MS, MAX_FAILS = 2_000, 2
TASK_QUEUES = ("limited", "keyed", "chained", "unique", "waiting", "moved", "fair")
KEYS = ("red", "green", "blue")
WEIGHTS: Mapping[str, int] = {"red": 3, "green": 1, "blue": 1}  # of the keys of the fair queue
FAIR_AT_ONCE = 12  # jobs, so that some wait for their turns
MAX_PARENTS = 2
REQUEUED_AT_ONCE = 1_000
CHANGES = ("requeue", "requeue", "cancel")


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
            verb = self.chance.choice(CHANGES)
            # Those that were just added are leased now, or soon.
            job_id = self.chance.choice(tasks[-10:] if verb == "cancel" else tasks[-200:])
            operation = self.history.begin(f"work/{job_id}", verb)
            self.history.end(operation, self.word(operation, await self.ask(f"{verb} {job_id}")))
        elif tasks and what < 0.25:
            await self.look_at(self.chance.choice(tasks[-200:]))
        else:
            queue = self.chance.choice(TASK_QUEUES)
            count = self.chance.randint(1, max(1, self.pace.burst // FEW // 2))
            count = max(count, FAIR_AT_ONCE) if queue == "fair" else count
            await self.ask_all([self._add(queue) for _ in range(count)])

    def _add(self, queue: str) -> tuple[Operation, str, bytes]:
        notes, verb, flags = self.notes, "add", ""
        job_id, parents, known = self.new_job_id(), tuple[str, ...](), notes.known_tasks
        if queue == "moved":
            return self._move()
        if queue == "unique":
            number = self.chance.randint(1, self.pace.burst)  # so many have the same id seldom
            job_id = str(uuid.UUID(int=number << 64, version=4))
            verb, flags = "replace", " -replace=finished"
        elif queue in ("keyed", "fair"):
            keys = KEYS if queue == "keyed" else ("red",) * 8 + KEYS
            notes.key_of[job_id] = self.chance.choice(keys)
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

    def _move(self) -> tuple[Operation, str, bytes]:
        notes, number = self.notes, self.chance.randint(1, self.pace.burst)
        job_id = str(uuid.UUID(int=number << 80, version=4))
        if job_id not in notes.queue_of:
            notes.queue_of[job_id] = "moved"
            notes.tasks.append(job_id)
        payload = f"of {job_id} {notes.next_number()}".encode()
        ask = ("move", MAX_FAILS, TTR_MS * NS_PER_MS, payload)
        operation = self.history.begin(f"work/{job_id}", *ask)
        numbers = f"{TTR_MS} {TTL_MS} {len(payload)} -max-fails={MAX_FAILS}"
        return operation, f"add {job_id} moved {numbers} -replace=unstarted", payload

    def word(self, operation: Operation, answer: str) -> object:
        if answer == "+OK" and operation.ask[0] == "add":
            self.notes.known_tasks.append(operation.key.removeprefix("work/"))
        return super().word(operation, answer)


class TaskWorker(WorkProcess):
    async def step(self) -> None:
        names = self.chance.sample(TASK_QUEUES, self.chance.randint(1, len(TASK_QUEUES)))
        wait_ms = self.chance.choice((0, 50, 2000))
        flags = f" -worker=worker.{self.number}"
        jobs = await self.lease(tuple(names), wait_ms, many=True, flags=flags)
        left = {job_id: jobs[job_id] for job_id in jobs if self.chance.random() > 0.1}
        await self._do_steps(left)
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

    async def _do_steps(self, jobs: Mapping[str, int]) -> None:
        queue_of, chance = self.notes.queue_of, self.chance
        its = [each for each in jobs if queue_of[each] == "limited" and chance.random() < 0.3]
        if its:
            await self.ask_all([self._step(job_id, jobs[job_id]) for job_id in its])
            for job_id in its:
                await self._look_at_steps(job_id)

    def _step(self, job_id: str, attempt: int) -> tuple[Operation, str, bytes]:
        number, value = self.chance.randint(1, 3), b"s%d" % self.notes.next_number()
        operation = self.history.begin(f"steps/{job_id}", "step", number, value)
        line = f"step {job_id} count {number} {len(value)} -attempt={attempt}"
        return operation, line, value

    async def _look_at_steps(self, job_id: str) -> None:
        operation = self.history.begin(f"steps/{job_id}", "look")
        answer = await self.ask(f"inspect steps {job_id}")
        found: object = NOT_FOUND
        if answer.startswith("+OK "):
            steps = []
            for _ in range(int(answer[4:])):
                _, number, size, _ = (await self.wire.read_line()).decode().split()
                value = await self.wire.read_bytes(int(size) + 2)
                steps.append((int(number), value[:-2]))
            found = tuple(steps)
        elif answer != "-NOT-FOUND":
            self.complain(f"{operation}: {answer}")
        self.history.end(operation, found)

    def _touch(self, job_id: str) -> tuple[Operation, str, None]:
        ttr_ms = self.chance.choice((0, 200, 2 * TTR_MS))
        operation = self.history.begin(f"work/{job_id}", "touch", ttr_ms * NS_PER_MS)
        return operation, f"touch {job_id} {ttr_ms or ''}".rstrip(), None

    def _finish(self, job_id: str, attempt: int) -> tuple[Operation, str, bytes]:
        result = b"r%d" % self.notes.next_number()
        key, line = f"work/{job_id}", f"{job_id} {len(result)} -attempt={attempt}"
        if self.chance.random() < 0.7:
            return self.history.begin(key, "complete", result, attempt), f"complete {line}", result
        if self.chance.random() < 0.2:
            operation = self.history.begin(key, "release", b"", attempt, 0)
            return operation, f"fail {job_id} 0 -attempt={attempt} -release=1", b""
        delay_ms, is_final = self.chance.choice((0, 500, 20_000)), self.chance.random() < 0.2
        line += f" -delay={delay_ms}" if delay_ms else ""
        line += " -final=1" if is_final else ""
        delay_ns = delay_ms * NS_PER_MS
        operation = self.history.begin(key, "fail", result, attempt, delay_ns, is_final)
        return operation, f"fail {line}", result


class OrderTaker(WorkProcess):
    """The other connection of a task worker: it hears which of its jobs others have ended."""

    async def step(self) -> None:
        facts = b'{"pid":%d}' % self.number
        wait_ms = self.chance.choice((0, 2_000, 20_000))
        operation = self.history.begin(f"orders/{self.number}", "await")
        answer = await self.ask(f"worker worker.{self.number} {wait_ms} {len(facts)}", facts)
        ended = []
        if answer.startswith("+OK "):
            for _ in range(int(answer[4:])):
                job_id, _, size = (await self.wire.read_line()).decode().split()
                await self.wire.read_bytes(int(size) + 2)
                ended.append(job_id)
        elif answer != "-TIMEOUT" and not answer.startswith("-SERVER-ERROR Read-only"):
            self.complain(f"{operation}: {answer}")
        self.history.end(operation, tuple(ended))


class Foreman(WorkProcess):
    """There is one, so what it does to a queue is done in order."""

    async def set_limits(self) -> None:
        for queue, limit in LIMITS.items():
            answer = await self.ask(f"limit {queue} {limit}")
            assert answer == "+OK", answer
        weights = ",".join(f"{key}:{weight}" for key, weight in WEIGHTS.items())
        answer = await self.ask(f"limit fair -fair=1 -weights={weights}")
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
