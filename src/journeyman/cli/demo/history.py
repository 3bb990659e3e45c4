r"""The past of the demo: two days of a shop's jobs, written into its logs before the server starts.

    workloads --simulate, seeded--> records in the order of their times --> log of the work queue
                                                                        \-> ledger: who ran what

The charges of the last 40 minutes fail often, and nobody resized a picture for 20: an overview has
something to find. Four weeks of a nightly backup are in the schedule; its last two runs failed.
"""

from __future__ import annotations

import math
import posixpath
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from journeyman.cli.demo.workloads import WORKLOADS, Workload
from journeyman.clock import Clock
from journeyman.data_directory import (
    KESTREL_DIRECTORY,
    LEDGER_DIRECTORY,
    SCHEDULE_LOG,
    WORKQ_DIRECTORY,
)
from journeyman.disk import Disk
from journeyman.folds.kestrel import Reader
from journeyman.formats import workq, ztick
from journeyman.formats.ledger import AttemptsBegun
from journeyman.formats.timed_frame import Instant
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.logs.ztick.run_history import EXECUTED, FAILED, RunFiles, RunLine, encode_run
from journeyman.protocols.workq.replies import id_text
from journeyman.tasks.envelope import Envelope, Failure, JsonCodec
from journeyman.units import NS_PER_MS, NS_PER_S

FAILING_S: Final = 40 * 60
SILENT_S: Final = 20 * 60
FAILING_SHARE: Final = 0.12
BACKOFF_S: Final = 10
LEASE_MS: Final = 90_000
TTL_MS: Final = 30 * 24 * 3600 * 1000
RECORDS_AT_ONCE: Final = 2_000
NIGHTS: Final = 28
ITEMS: Final = 240
TIMETABLE: Final = "nightly-backup"
ZONE: Final = "Europe/Berlin"
_CODEC = JsonCodec()


class TimedRecord(NamedTuple):
    time_ns: int
    number: int  # records of the same time stay in this order
    record: workq.Record


class PastAttempt(NamedTuple):
    time_ns: int
    worker: str
    job_id: bytes
    number: int


def write_history(disk: Disk, clock: Clock, directory: str, hours: int, seed: int) -> int:
    """Write all logs of a new data directory; returns the number of jobs."""
    random = Random(seed)
    now_ns = clock.now_ns()
    past = _ShopHistory(random, now_ns)
    for workload in WORKLOADS:
        past.simulate(workload, hours)
    _write_work(disk, clock, directory, past)
    _write_nights(disk, clock, directory, random, now_ns)
    _write_orders(disk, clock, directory, now_ns)
    return past.jobs


class _ShopHistory:
    """Records and attempts up to now; what would come later has not happened."""

    def __init__(self, random: Random, now_ns: int) -> None:
        self._random = random
        self._now_ns = now_ns
        self.records: list[TimedRecord] = []
        self.attempts: list[PastAttempt] = []
        self.jobs = 0

    def simulate(self, workload: Workload, hours: int) -> None:
        random = self._random
        time_s = -hours * 3600.0
        while True:
            busy = _share_of_day(self._now_ns + int(time_s * NS_PER_S))
            time_s += random.expovariate(workload.per_minute * busy / 60)
            if time_s >= 0:
                return
            self._simulate_job(workload, time_s)

    def _simulate_job(self, workload: Workload, time_s: float) -> None:
        random, is_billing = self._random, workload.queue == "billing"
        job_id = uuid.UUID(bytes=random.randbytes(16), version=4).bytes
        args, kwargs = workload.make_call(random)
        payload = Envelope(workload.task, args, kwargs).encode(_CODEC)
        created = self._instant(time_s)
        added = workq.JobAdded(
            created, job_id, workload.queue, LEASE_MS, TTL_MS, 0, 0,
            workq.pack_max_fails(workload.max_fails, BACKOFF_S * 1000), payload, None, created,
        )  # fmt: skip
        self._note(time_s, added)
        self.jobs += 1
        is_late = is_billing and time_s > -FAILING_S
        fails_always = random.random() < (FAILING_SHARE if is_late else workload.failure)
        if workload.queue == "images" and time_s > -SILENT_S:
            return
        worker = f"{workload.queue}-{random.randint(1, 3)}"
        for number in range(1, workload.max_fails + 1):
            time_s += workload.wait_time_s(random) * (3 if is_late else 1)
            if time_s >= 0:
                return
            self._note(time_s, self._event(time_s, job_id, workq.Command.START_ATTEMPT))
            self.attempts.append(PastAttempt(self._instant(time_s).unix_ns, worker, job_id, number))
            time_s += workload.run_time_s(random) * (4 if fails_always else 1)
            if not fails_always and random.random() >= workload.hiccup:
                done = workq.JobFinished(
                    self._instant(time_s), job_id, workq.Command.COMPLETE, b'"done"'
                )
                self._note(time_s, done)
                return
            is_final = number == workload.max_fails
            error, message = random.choice(workload.errors)
            result = Failure(error, message, _traceback(workload, error, message)).encode()
            failed = workq.JobFinished(
                self._instant(time_s), job_id, workq.Command.FAIL, result, hidden=not is_final
            )
            self._note(time_s, failed)
            if is_final:
                return
            self._note(time_s, self._event(time_s, job_id, workq.Command.TIMEOUT_ATTEMPT))
            time_s += BACKOFF_S

    def _event(self, time_s: float, job_id: bytes, command: workq.Command) -> workq.JobEvent:
        return workq.JobEvent(self._instant(time_s), job_id, command)

    def _instant(self, time_s: float) -> Instant:
        return Instant(self._now_ns + int(time_s * NS_PER_S))

    def _note(self, time_s: float, record: workq.Record) -> None:
        if time_s < 0:
            time_ns = self._instant(time_s).unix_ns
            self.records.append(TimedRecord(time_ns, len(self.records), record))


def _share_of_day(time_ns: int) -> float:
    """Few orders come at night: from 0.35 at three in the morning to 1.65 in the afternoon."""
    hour = time_ns / NS_PER_S / 3600 % 24
    return 1 - 0.65 * math.cos((hour - 3) / 24 * 2 * math.pi)


def _traceback(workload: Workload, error: str, message: str) -> str:
    file = workload.task.partition(".")[0]
    return (
        "Traceback (most recent call last):\n"
        f'  File "{file}.py", line 88, in {workload.task.partition(".")[2]}\n'
        f"    reply = gateway.ask(order, timeout=5)\n{error}: {message}\n"
    )


def _write_work(disk: Disk, clock: Clock, directory: str, past: _ShopHistory) -> None:
    past.records.sort(key=lambda each: each[:2])
    path = posixpath.join(directory, WORKQ_DIRECTORY)
    log = WorkqLog.open(disk, clock, path, sync=SyncPolicy.OS)
    try:
        records = [each.record for each in past.records]
        for begin in range(0, len(records), RECORDS_AT_ONCE):
            log.append(records[begin : begin + RECORDS_AT_ONCE])
    finally:
        log.close()
    past.attempts.sort()
    with LedgerLog.open(disk, clock, posixpath.join(directory, LEDGER_DIRECTORY)) as ledger:
        for begin in range(0, len(past.attempts), RECORDS_AT_ONCE):
            some = past.attempts[begin : begin + RECORDS_AT_ONCE]
            ledger.append([_begun(each) for each in some], sync=False)
        ledger.sync()


def _begun(attempt: PastAttempt) -> AttemptsBegun:
    jobs = {id_text(attempt.job_id): attempt.number}
    return AttemptsBegun(Instant(attempt.time_ns), attempt.worker, jobs)


def _write_nights(disk: Disk, clock: Clock, directory: str, random: Random, now_ns: int) -> None:
    """The occurrences of the timetable that the demo sets when the server has started."""
    path = posixpath.join(directory, SCHEDULE_LOG)
    nights = list(_nights(now_ns))
    with ZtickLog.open(disk, clock, path, sync=SyncPolicy.OS) as log:
        for number, night in enumerate(nights, start=1):
            is_failed = number > len(nights) - 2
            status = ztick.Status.FAILED if is_failed else ztick.Status.EXECUTED
            execution_ns = int(night.timestamp()) * NS_PER_S
            log.append([ztick.JobSet(f"{TIMETABLE}@{night.isoformat()}", execution_ns, status)])
    runs = RunFiles(disk, clock, f"{path}.runs", 16 * 1024 * 1024, 100, 0)
    for number, night in enumerate(nights, start=1):
        is_failed = number > len(nights) - 2
        due_ns = int(night.timestamp()) * NS_PER_S
        began_ns = due_ns + random.randint(20, 400) * NS_PER_MS
        line = RunLine(
            f"{TIMETABLE}@{night.isoformat()}", TIMETABLE, "shell", due_ns, began_ns,
            began_ns + random.randint(480, 720) * NS_PER_S, FAILED if is_failed else EXECUTED,
            "exited with status 3" if is_failed else "",
            "pg_dump: no space left on device\n" if is_failed else "",
        )  # fmt: skip
        runs.append([encode_run(line)])
    runs.close()


def _nights(now_ns: int) -> Iterator[datetime]:
    today = datetime.fromtimestamp(now_ns / NS_PER_S, UTC).astimezone(ZoneInfo(ZONE)).date()
    for days in range(NIGHTS - 1, -1, -1):
        day = today - timedelta(days=days)
        night = datetime(day.year, day.month, day.day, 2, tzinfo=ZoneInfo(ZONE))
        if night.timestamp() * NS_PER_S < now_ns:
            yield night


def _write_orders(disk: Disk, clock: Clock, directory: str, now_ns: int) -> None:
    """One fan-out queue with readers of which one is far behind."""
    path = posixpath.join(directory, KESTREL_DIRECTORY)
    with KestrelLog.open(disk, clock, path, "orders", sync=SyncPolicy.OS) as log:
        readers = {"audit": ITEMS, "mailer": ITEMS - 4, "search": ITEMS - 90}
        for name in readers:
            log.add_reader(name)
        for number in range(ITEMS):
            age_ms = (ITEMS - number) * 30_000
            log.put(f'{{"order": {80_000 + number}}}'.encode(),
                    add_time_ms=now_ns // NS_PER_MS - age_ms)  # fmt: skip
        for name, head in readers.items():
            log.checkpoint(name, Reader(head))
