"""Producers and workers who keep the book, until the server is killed under them.

    producer   a burst of adds, some deletes of its own jobs, answers read later
    worker     lease, then: complete | fail | forget it | hang up and come back

Jobs are of four kinds, each in a queue of its own:

    work     long TTR, done by whoever leases it
    retry    long TTR, up to three fails
    slow     short TTR: workers forget most of them, so they are leased again
    brief    short TTL: they end by themselves, which gives cleaning something to do
"""

from __future__ import annotations

import random
import time
import uuid

from tests.support.crash.kill_loop import LoadThread
from tests.support.crash.work_ledger import Line, WorkBook
from tests.support.servers.workq_process import WorkqClient

__all__ = ["QUEUES", "Producer", "WorkWire", "Worker"]

MAX_BURST = 40
MAX_UNANSWERED = 120
LONG_S = 24 * 3600.0
BRIEF_S = 0.05
QUEUES = ("work", "retry", "slow")
# name: TTR in seconds, max-fails, part of all jobs
KINDS = {"work": (30.0, 0, 30), "retry": (30.0, 3, 15), "slow": (0.3, 0, 5), "brief": (30.0, 0, 50)}


class WorkWire(WorkqClient):
    """A connection that may end at any moment: then EOFError is raised."""

    def _receive(self) -> bytes:
        data = super()._receive()
        if not data:
            raise EOFError
        return data


class _Loader(LoadThread):
    client: WorkWire

    def __init__(self, port: int, number: int, book: WorkBook, life: int) -> None:
        super().__init__(f"{type(self).__name__} {number}")
        self.number = number
        self.random = random.Random(f"{life}.{self.name}")
        self.port = port
        self.book = book
        self.client = WorkWire(port)


class Producer(_Loader):
    def __init__(self, port: int, number: int, book: WorkBook, life: int) -> None:
        super().__init__(port, number, book, life)
        self._waiting: list[tuple[str, str]] = []  # "add" or "delete", id: not answered yet
        self._own: list[str] = []

    def step(self) -> None:
        burst = [self._command() for _ in range(self.random.randint(1, MAX_BURST))]
        self.client.send("".join(burst))
        self._read_answers(self.random.randint(0, MAX_UNANSWERED))
        time.sleep(self.random.uniform(0, 0.01))

    def finish(self) -> None:
        self._read_answers(0)

    def _command(self) -> str:
        if self._own and self.random.random() < 0.1:
            job_id = self._own.pop(self.random.randrange(len(self._own)))
            self._waiting.append(("delete", job_id))
            self.book.delete_sent(job_id)
            return f"delete {job_id}\r\n"
        names = list(KINDS)
        name = self.random.choices(names, [KINDS[each][2] for each in names])[0]
        ttr_s, max_fails, _ = KINDS[name]
        ttl_s = BRIEF_S if name == "brief" else LONG_S
        job_id, payload = str(uuid.uuid4()), f"{name} {self.random.random()}"
        line = Line(self.number, payload, ttr_s, max_fails, time.time() + ttl_s)
        self.book.add_sent(job_id, line)
        self._waiting.append(("add", job_id))
        flags = f"-max-fails={max_fails} -priority={self.random.randint(-2, 2)}"
        head = f"add {job_id} {name} {ttr_s * 1000:.0f} {ttl_s * 1000:.0f} {len(payload)} {flags}"
        return f"{head}\r\n{payload}\r\n"

    def _read_answers(self, leave: int) -> None:
        while len(self._waiting) > leave:
            answer = self.client.read_line()
            command, job_id = self._waiting.pop(0)
            if command == "add":
                assert answer == "+OK", answer
                self.book.add_answered(job_id)
                if not self.book.line(job_id).payload.startswith("brief"):
                    self._own.append(job_id)
            else:
                assert answer == "+OK", f"delete of {job_id}: {answer}"
                self.book.delete_answered(job_id, time.time())


class Worker(_Loader):
    def step(self) -> None:
        names = self.random.sample(QUEUES, self.random.randint(1, len(QUEUES)))
        wait_ms = self.random.choice((0, 20, 300))
        sent_s = time.time()
        self.book.lease_sent()
        self.client.send_lease(*names, wait=wait_ms)
        if wait_ms and self.random.random() < 0.05:
            self.client.close()
            self.client = WorkWire(self.port)
            return
        job = self.client.read_leased()
        self.book.lease_answered()
        if job is not None:
            self.book.leased(job.job_id, job.payload.decode(), sent_s, time.time())
            self._work_on(job.job_id, job.name)

    def _work_on(self, job_id: str, name: str) -> None:
        if name == "slow" and self.random.random() < 0.7:
            return  # forgotten: its TTR ends it
        success = name != "retry" or self.random.random() < 0.5
        result = str(self.random.random()).encode()
        self.book.finish_sent(job_id, success, result)
        answer = self.client.finish(job_id, result, command="complete" if success else "fail")
        self.book.finish_answered(job_id, success, result, answer, time.time())
