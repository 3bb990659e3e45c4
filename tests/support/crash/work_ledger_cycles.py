"""Kill a server with a loaded work queue, start it again, compare with the book; again and again.

    life 1  start ... load ... kill -9      at a random moment of the load,
    life 2  start, compare, load ... kill   or while the log is being cleaned,
    ...                                     or before the server has even started
    the end start, do all that is left, compare; stop in order, start, compare

A kill of the process takes nothing that was written, so all policies must hold: each life has
another one. With a store instead of a log nothing is cleaned; there, after each kill, every index
and counter must follow from the records.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.crash.kill_loop import KillLoop
from tests.support.crash.work_ledger import Found, WorkBook
from tests.support.crash.work_ledger_load import QUEUES, Producer, Worker, WorkWire
from tests.support.servers.workq_process import WorkqProcess

__all__ = ["KILLS", "WorkCycles"]

KILLS = ("load", "cleaning", "start")
POLICIES = ("always", "interval", "os")
PRODUCERS, WORKERS = 2, 4
MAX_LOAD_S = 0.8
MAX_START_S = 0.2  # servers of tests begin with everything imported: see servers/nursery.py
CLEANING_LIMIT_S = 60.0
SEGMENT_BYTES = 20_000
ASKED_AHEAD = 50  # jobs of one round trip, when all are compared
DRAINED_S = 1.0  # longer than the longest TTR of a job that may be leased in the end

# Jobs that live for a day put cleaning off for hours; here every segment is cleaned every time.
THOROUGH = """
from journeyman.logs.workq.log import WorkqLog
clean = WorkqLog.clean
WorkqLog.clean = lambda self, as_of_ns, *, thorough: clean(self, as_of_ns, thorough=True)
"""


@dataclass(slots=True)
class WorkTally:
    """What the cycles came across."""

    kills: Counter[str] = field(default_factory=Counter)
    cleanings_cut: int = 0  # kills that left a rewritten segment unfinished
    jobs: int = 0
    survived: int = 0  # adds that were not answered and are there
    finished: int = 0
    slowest_start_s: float = 0.0

    def __str__(self) -> str:
        kills = ", ".join(f"{self.kills[kind]} {kind}" for kind in KILLS)
        return (
            f"{self.kills.total()} kills ({kills}; {self.cleanings_cut} cleanings cut off), "
            f"{self.jobs} jobs compared, {self.survived} of them not answered; "
            f"{self.finished} finished; slowest start {self.slowest_start_s:.2f} s"
        )


class WorkCycles(KillLoop[WorkTally, WorkqProcess]):
    """The loop, over one command log. AssertionError: the book does not agree."""

    def __init__(self, directory: Path, *, seed: int) -> None:
        self.kinds = KILLS
        self.directory = directory
        self.tally = WorkTally()
        self._random = random.Random(seed)
        self._book = WorkBook()
        self._life = 0
        self._server = self._start()

    def soak(self, seconds: float, *, workers: int, adds: int) -> WorkTally:
        """No kill: many workers for so long and so many jobs, then each job is accounted for."""
        try:
            loaders = self._load(workers=workers)
            time.sleep(seconds)
            self._wait_for_load(lambda: self._book.added, adds)
            for loader in loaders:
                loader.stopping.set()
            for loader in loaders:
                loader.join()
            self._no_errors(loaders)
            self._end()
        finally:
            if self._server.process.poll() is None:
                self._server.kill()
        return self.tally

    def _cycle(self, kind: str) -> None:
        loaders = self._load()
        self._wait_for_load(lambda: self._book.added)
        if kind == "cleaning":
            self._wait_for_cleaning()
        else:
            time.sleep(self._random.uniform(0, MAX_LOAD_S))
        self._server.kill()
        for loader in loaders:
            loader.join()
        self.tally.cleanings_cut += any(self._server.cmdlog.glob("*.rw"))
        if kind == "start":
            self._server = self._new_life(wait=False)
            time.sleep(self._random.uniform(0, MAX_START_S))
            self._server.kill()
        self.tally.kills[kind] += 1
        self._no_errors(loaders)
        self._server = self._start()
        self._compare()

    def _load(self, workers: int = WORKERS) -> list[Producer | Worker]:
        port = self._server.workq_port
        loaders: list[Producer | Worker] = [
            Producer(port, number, self._book, self._life) for number in range(PRODUCERS)
        ]
        loaders += [Worker(port, number, self._book, self._life) for number in range(workers)]
        for loader in loaders:
            loader.start()
        return loaders

    def _wait_for_cleaning(self) -> None:
        """Return when a segment is being rewritten, or has been."""
        deadline = time.monotonic() + CLEANING_LIMIT_S
        while not any(self._server.cmdlog.glob("*.rw")):
            if any("was cleaned" in line for line in self._server.lines):
                return
            assert time.monotonic() < deadline, f"no cleaning: {self._server.lines[-20:]}"
            time.sleep(0.0005)

    # -- processes --

    def _new_life(self, *, wait: bool) -> WorkqProcess:
        self._life += 1
        process = WorkqProcess(
            self.directory,
            patch=THOROUGH,
            settings={
                "workq.cmdlog_sync": POLICIES[self._life % len(POLICIES)],
                "workq.cmdlog_seg_size": SEGMENT_BYTES,
                "workq.cmdlog_clean_int": 50,
                "log.level": "info",
            },
        )
        return process.start(wait=wait)

    def _start(self) -> WorkqProcess:
        begin = time.monotonic()
        process = self._new_life(wait=True)
        took_s = time.monotonic() - begin
        self.tally.slowest_start_s = max(self.tally.slowest_start_s, took_s)
        return process

    # -- comparing --

    def _compare(self) -> None:
        client = WorkWire(self._server.workq_port)
        found: dict[str, Found | None] = {}
        every_id = self._book.ids()
        for first in range(0, len(every_id), ASKED_AHEAD):
            ids = every_id[first : first + ASKED_AHEAD]
            asked = (f"inspect job {job_id}\r\nresult {job_id} 0\r\n" for job_id in ids)
            client.send("".join(asked))
            found |= {job_id: _read_found(client) for job_id in ids}
        client.close()
        self.tally.jobs += len(found)
        self.tally.survived += self._book.settle(found, time.time())

    def _end(self) -> None:
        self._drain()
        self._compare()
        left = [i for i in self._book.ids() if self._is_left(i)]
        assert not left, f"{len(left)} jobs were never done: {left[:5]}"
        self.tally.finished = len(self._book)
        assert self._server.stop() == 0
        self._server = self._start()
        self._compare()
        assert self._server.stop() == 0

    def _is_left(self, job_id: str) -> bool:
        line = self._book.line(job_id)
        return line.result is None and not line.payload.startswith("brief")

    def _drain(self) -> None:
        """Do everything that anybody could still do: leases of the last life end, too."""
        client = WorkWire(self._server.workq_port)
        for job_id in self._book.ids():
            line = self._book.line(job_id)
            if line.result is None and line.ttr_s > DRAINED_S:
                self._finish(client, job_id)  # it may be leased for longer than we want to wait
        sent_s = time.time()
        while (job := client.lease(*QUEUES, wait=int(DRAINED_S * 1000))) is not None:
            self._book.leased(job.job_id, job.payload.decode(), sent_s, time.time())
            self._finish(client, job.job_id)
            sent_s = time.time()
        client.close()

    def _finish(self, client: WorkWire, job_id: str) -> None:
        result = f"at last {job_id}".encode()
        self._book.finish_sent(job_id, True, result)
        answer = client.finish(job_id, result)
        if answer == "-NOT-FOUND" and self._book.line(job_id).payload.startswith("brief"):
            return
        self._book.finish_answered(job_id, True, result, answer, time.time())


def _read_found(client: WorkWire) -> Found | None:
    """The answers to ``inspect job`` and ``result``."""
    blocks = client.read_blocks()
    result = client.read_result()
    if isinstance(blocks, str):
        assert blocks == "-NOT-FOUND", blocks
        return None
    block = blocks[0]
    return Found(
        int(block["state"]),
        int(block["attempts"]),
        int(block["fails"]),
        block["payload"],
        None if isinstance(result, str) else result,
    )
