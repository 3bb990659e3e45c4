"""Workers and server killed again and again while jobs are sent: what was promised must hold.

    cycle: send jobs --> kill -9 a worker or the server, at a random moment --> start it again

Every run of a job is a line ``number attempt`` in a file. At the end:

- every job that was sent has a line, and a result; none has failed for good
- no attempt runs the step of a job after an earlier attempt has got its value
- no job has a line of an attempt that it did not have when its result was seen: it was not leased
  again. One leased before may run late: its worker may have been slow, and lost its lease.

Not a test itself; tests/kills/tasks.py runs as many cycles as it is asked to.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from uuid import UUID

import journeyman as jm
from journeyman.client import ClientError, WorkQueue
from tests.support.ports import free_port
from tests.support.servers.task_worker import WorkerProcess
from tests.support.servers.workq_process import WorkqProcess

PATIENCE_S = 120.0
TASKS = """
import os, random, time
import journeyman as jm

app = jm.App(lease=1)
_runs = os.open("runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_steps = os.open("steps", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_children = os.open("children", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

@app.task(name="child", retries=2)
def child(number: int) -> int:
    os.write(_children, b"%d %s\\n" % (number, jm.job().id.encode()))
    return number

def mark(number: int) -> int:
    os.write(_steps, b"run %d %d\\n" % (number, jm.job().attempt))
    return -number

@app.task(name="count", retries=2, backoff=0.05)
def count(number: int) -> int:
    os.write(_runs, b"%d %d\\n" % (number, jm.job().attempt))
    assert jm.step(mark, number) == -number
    os.write(_steps, b"done %d %d\\n" % (number, jm.job().attempt))
    if number % 3 == 0:
        jm.sleep(seconds=0.05)
        assert jm.wait_for(f"event-{number % 2}") == number % 2
        assert jm.gather(child.send(each) for each in (number, number)) == [number, number]
    time.sleep(random.choice((0, 0, 0.01, 0.1)))
    if number % 7 == 0 and jm.job().attempt == 1:
        raise ValueError("once")
    return number
"""


class TaskCycles:
    """A world to be broken. ``run(cycles)`` raises AssertionError if a promise was."""

    def __init__(self, directory: Path, *, workers: int = 2, seed: int = 0) -> None:
        self._directory = directory
        self._chance = random.Random(seed)
        (directory / "shop.py").write_text(TASKS)
        self._port = free_port()  # the same for each server: no connection may get it meanwhile
        self._server = self._start()
        self._url = f"journeyman://127.0.0.1:{self._port}?timeout_s=5"
        self._workers = [self._worker() for _ in range(workers)]
        self._app = jm.App(self._url, lease=1)
        self._task = self._app.task(name="count", retries=2)(lambda number: number)
        self.sent: dict[int, str] = {}
        self.acknowledged: dict[int, int] = {}  # how many attempts it had when its result was seen
        self.failed: dict[int, bytes] = {}
        self.kills = {"server": 0, "worker": 0}

    def run(self, cycles: int, jobs_per_cycle: int = 30) -> None:
        try:
            watcher = threading.Thread(target=self._watch, daemon=True)
            watcher.start()
            for cycle in range(cycles):
                if cycle in (0, cycles // 2):  # a half of the jobs waits for the other half's time
                    self._emit(0 if cycle == 0 else 1)
                self._send(jobs_per_cycle)
                time.sleep(self._chance.uniform(0, 0.15))
                self._kill()
            self._emit(1)
            deadline = time.monotonic() + PATIENCE_S
            while len(self.acknowledged) < len(self.sent):
                assert not self.failed, f"failed for good: {self.failed}"
                assert time.monotonic() < deadline, f"not done: {self._missing()}"
                time.sleep(0.05)
        finally:
            self._close()
        self.check()

    def check(self) -> None:
        runs: dict[int, list[int]] = {}
        for line in (self._directory / "runs").read_text().splitlines():
            number, attempt = map(int, line.split())
            runs.setdefault(number, []).append(attempt)
        assert sorted(runs) == sorted(self.sent), "a job was never run"
        again = {
            number: attempts
            for number, attempts in runs.items()
            if max(attempts) > self.acknowledged[number]
        }
        assert not again, f"run after their completion was acknowledged: {again}"

        self._check_steps()

    def _check_steps(self) -> None:
        done: dict[int, int] = {}  # the first attempt that has got the value
        for line in (self._directory / "steps").read_text().splitlines():
            word, number, attempt = line.split()
            if word == "done":
                done.setdefault(int(number), int(attempt))
            # A park does not count as an attempt; one whose lease ran out may run on.
            is_early = int(number) not in done or int(attempt) < done[int(number)]
            assert word == "done" or is_early, f"a recorded step ran again: {line}"
        children = set((self._directory / "children").read_text().splitlines())
        assert len(children) == 2 * sum(number % 3 == 0 for number in self.sent), "sent twice"
        assert sorted(done) == sorted(self.sent), "a job has no step"

    # -- details -----------------------------------------------------------------------------------

    def _start(self) -> WorkqProcess:
        own: dict[str, object] = {
            "data.directory": self._directory / "data",
            "workq.listen": f"127.0.0.1:{self._port}",
        }
        own["workq.cmdlog_sync"] = "always"
        return WorkqProcess(self._directory, settings=own).start()

    def _worker(self) -> WorkerProcess:
        return WorkerProcess(self._directory, "shop:app", "-c", "4", url=self._url).__enter__()

    def _send(self, count: int) -> None:
        """Until it is acknowledged: a send that failed is repeated under another number."""
        for _ in range(count):
            number = len(self.sent)
            deadline = time.monotonic() + PATIENCE_S
            call = self._task.call(number)
            order = call.order()
            while True:  # the same id: it is added once
                try:
                    self._app.broker.add(order)
                    break
                except ClientError:
                    assert time.monotonic() < deadline
                    time.sleep(0.02)
            self.sent[number] = str(order.job_id)

    def _emit(self, number: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._app.emit(f"event-{number}", number)
                return
            except ClientError:
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def _kill(self) -> None:
        if self._chance.random() < 0.4:
            self.kills["server"] += 1
            self._server.kill()
            self._server = self._start()
        else:
            self.kills["worker"] += 1
            place = self._chance.randrange(len(self._workers))
            self._workers[place].__exit__(None, None, None)  # kill -9
            self._workers[place] = self._worker()

    def _watch(self) -> None:
        """Note how many attempts each job had when its result was first seen."""
        app = jm.App(self._url)
        while not self._is_closed:
            for number, job_id in list(self.sent.items()):
                if number in self.acknowledged:
                    continue
                try:
                    ending = app.broker.ending(UUID(job_id), 0)
                    if ending is not None and not ending.succeeded:
                        self.failed[number] = ending.result
                    elif ending is not None:
                        self.acknowledged[number] = self._attempts(job_id)
                except ClientError:
                    time.sleep(0.02)
            time.sleep(0.01)
        app.close()

    def _attempts(self, job_id: str) -> int:
        with WorkQueue(port=self._port) as queue:
            found = queue.inspect_job(job_id)
        assert found is not None
        return found.attempts

    _is_closed = False

    def _missing(self) -> list[int]:
        return [number for number in self.sent if number not in self.acknowledged]

    def _close(self) -> None:
        self._is_closed = True
        for worker in self._workers:
            worker.__exit__(None, None, None)
        self._server.kill()
        self._app.close()
