"""Clients and workers of the work queue: the commands that the original has, and leases of many.

See clients.py for what a process is.
"""

from __future__ import annotations

from journeyman.testing.simulation.clients import (
    FEW,
    MAX_LEASED,
    TTL_MS,
    WORK_PORT,
    WORK_QUEUES,
    Process,
)
from journeyman.testing.simulation.history import Operation
from journeyman.testing.simulation.models import (
    DUPLICATE,
    LEASED_AGAIN,
    NOT_DEAD,
    NOT_FOUND,
    NOT_LEASED,
    OK,
    REFUSED,
)

_REFUSALS = {
    "-CLIENT-ERROR Job was leased again": LEASED_AGAIN,
    "-CLIENT-ERROR Job is not leased": NOT_LEASED,
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
        self, names: tuple[str, ...], wait_ms: int, *, many: bool | None = None
    ) -> dict[str, int]:
        """The ids of the jobs that it got, each with the number of the attempt; 0: not known."""
        operation = self.history.begin("lease/" + ",".join(names), "lease")
        is_many = self.chance.random() < 0.5 if many is None else many
        most = f" -max={min(MAX_LEASED, self.pace.burst)}" if is_many else ""
        answer = await self.ask(f"lease {' '.join(names)} {wait_ms}{most}")
        jobs: dict[str, tuple[int, ...]] = {}  # by id: attempt, fails
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
                if job_id in self.notes.queue_of and payload != f"of {job_id}\r\n".encode():
                    self.complain(f"{job_id} has another payload: {payload!r}")
        elif answer != "-TIMEOUT" and not answer.startswith("-SERVER-ERROR Read-only"):
            self.complain(f"lease: {answer}")
        self.history.end(operation, tuple(jobs))
        for job_id, attempt_and_fails in jobs.items():
            if job_id in self.notes.queue_of:
                self.history.put(f"work/{job_id}", "lease", *attempt_and_fails, like=operation)
        return {job_id: its[0] for job_id, its in jobs.items()}


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
            await self._add(self.chance.choice(jobs[-50:]))
        else:
            count = self.chance.randint(1, max(1, self.pace.burst // FEW))
            await self._add(*(self.new_job_id() for _ in range(count)))

    async def _add(self, *job_ids: str) -> None:
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
