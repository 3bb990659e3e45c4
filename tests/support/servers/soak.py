"""Unruly workers for the soak: each does its work well, badly, late, or not at all.

    complete, fail     most of the time
    late               finishes after the TTR is over, when another may have the job already
    abandon            never finishes; the TTR brings the job back
    hang up            closes the connection with a job in hand, or while it waits for one

Everything that the server said to any of them is noted in a ``Ledger``. Not a test itself.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from tests.support.servers.workq_process import LeasedJob, WorkqClient, WorkqProcess

QUEUES = ("red", "green", "blue")
WAIT_MS = 100
TTR_MS = 60


@dataclass
class Ledger:
    """What clients were told, by id of the job. Lists are appended to by many threads."""

    leases: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    completed: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    failed: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    refused: Counter[str] = field(default_factory=Counter)
    hung_up: list[int] = field(default_factory=list)  # workers that closed while they asked
    errors: list[BaseException] = field(default_factory=list)

    def note_result(self, job: str, command: str, result: bytes, answer: str) -> None:
        if answer == "+OK":
            (self.completed if command == "complete" else self.failed)[job].append(result)
        else:
            assert answer in ("-CLIENT-ERROR Duplicate result", "-NOT-FOUND"), answer
            self.refused[answer] += 1


class UnrulyWorker(threading.Thread):
    """Works until ``stop`` is set."""

    def __init__(self, server: WorkqProcess, ledger: Ledger, stop: threading.Event, seed: int):
        super().__init__(daemon=True)
        self._server = server
        self._ledger = ledger
        self._stop_event = stop
        self._chance = random.Random(seed)
        self._number = seed

    def run(self) -> None:
        try:
            client = self._server.worker()
            while not self._stop_event.is_set():
                client = self._turn(client)
            client.close()
        except BaseException as error:  # noqa: BLE001 - told by the test
            self._ledger.errors.append(error)

    def _turn(self, client: WorkqClient) -> WorkqClient:
        """Ask for a job and do something with it; the connection to go on with."""
        names = self._chance.sample(QUEUES, self._chance.randint(1, len(QUEUES)))
        if self._chance.random() < 0.03:
            client.send_lease(*names, wait=WAIT_MS)
            client.close()
            self._ledger.hung_up.append(self._number)
            return self._server.worker()
        job = client.lease(*names, wait=WAIT_MS)
        if job is None:
            return client
        assert job.name in names
        self._ledger.leases[job.job_id].append(time.monotonic())
        way = self._chance.choices(
            ("complete", "fail", "late", "abandon", "hang up"), (70, 10, 5, 10, 5)
        )[0]
        if way == "hang up":
            client.close()
            return self._server.worker()
        if way == "late":
            time.sleep(1.5 * TTR_MS / 1000)
        if way != "abandon":
            self._finish(client, job, "fail" if way == "fail" else "complete")
        return client

    def _finish(self, client: WorkqClient, job: LeasedJob, command: str) -> None:
        result = b"%s by %d" % (job.job_id[:8].encode(), self._number)
        answer = client.finish(job.job_id, result, command=command)
        self._ledger.note_result(job.job_id, command, result, answer)
