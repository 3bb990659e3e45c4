"""A client of the work queue, over the workq protocol: ``WorkQueue``.

    with WorkQueue("queue.internal") as queue:
        job_id = queue.add("mail", b"to: ...", ttl_ms=3_600_000)
        queue.result(job_id, wait_ms=60_000)          Result(...), or None if it took longer

    with WorkQueue("queue.internal") as worker:
        while (job := worker.lease("mail", wait_ms=30_000)) is not None:
            worker.complete(job.job_id, do(job.payload))

Every call waits for its answer, at most ``timeout_s`` beyond what it asks the server to wait. Ids
are given by the client, so a job is added once however often it is sent: ``add`` and ``schedule``
are sent again when the connection breaks, and a ``Duplicate job`` is then what was hoped for. So
are questions. ``lease``, ``run``, ``complete``, ``fail`` and ``delete`` are not: AnswerLost.

It talks to the original workq too. One thread, one WorkQueue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar
from uuid import UUID, uuid4

from journeyman.client import checks
from journeyman.client import workq_lines as lines
from journeyman.client.connection import Caller, ClientConnection
from journeyman.client.errors import (
    CannotConnect,
    ConnectionFailed,
    InvalidRequest,
    NotFound,
    Refused,
    TimedOut,
)
from journeyman.client.workq_lines import (
    JobId,
    JobInfo,
    LeasedJob,
    QueueInfo,
    Result,
    TimedOutWaiting,
    as_id,
)

DEFAULT_PORT = 9922
DEFAULT_TTR_MS = 60_000
DEFAULT_TTL_MS = 24 * 3_600_000
MAX_WAIT_MS = 86_400_000
_MAX_TTR_MS = 86_400_000
_MAX_TTL_MS = 2_592_000_000
_INT32 = -(2**31), 2**31 - 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to be added; with a ``time``, to be scheduled."""

    job_id: UUID
    name: str
    payload: bytes = b""
    ttr_ms: int = DEFAULT_TTR_MS
    ttl_ms: int = DEFAULT_TTL_MS
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    time: datetime | None = None

    def request(self) -> bytes:
        """The bytes that add it. Raises InvalidRequest."""
        words = [
            "add" if self.time is None else "schedule",
            str(as_id(self.job_id)),
            lines.checked_name(self.name),
            lines.number(self.ttr_ms, "ttr_ms", 1, _MAX_TTR_MS),
            lines.number(self.ttl_ms, "ttl_ms", 1, _MAX_TTL_MS),
        ]
        if self.time is not None:
            words.append(lines.time_text(self.time))
        payload = lines.checked_data(self.payload, "payload")
        words.append(str(len(payload)))
        flags = {
            "priority": lines.number(self.priority, "priority", *_INT32),
            "max-attempts": lines.number(self.max_attempts, "max_attempts", 0, 255),
            "max-fails": lines.number(self.max_fails, "max_fails", 0, 255),
        }
        words += [f"-{name}={value}" for name, value in flags.items() if value != "0"]
        return lines.line(*words) + lines.block(payload)


class WorkQueue(Caller):
    """See the module. Connects at the first call."""

    default_port = DEFAULT_PORT
    service = "the work queue"

    def _authentication(self, secret: bytes) -> tuple[bytes, bytes]:
        return b"auth " + secret + b"\r\n", b"+OK"

    # -- producers ---------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        payload: bytes = b"",
        *,
        job_id: JobId | None = None,
        ttr_ms: int = DEFAULT_TTR_MS,
        ttl_ms: int = DEFAULT_TTL_MS,
        priority: int = 0,
        max_attempts: int = 0,
        max_fails: int = 0,
        time: datetime | None = None,
    ) -> UUID:
        """Add a job, or schedule it for a ``time``; its id. Refused: ``Duplicate job``."""
        given = uuid4() if job_id is None else as_id(job_id)
        job = NewJob(given, name, payload, ttr_ms, ttl_ms, priority, max_attempts, max_fails, time)
        (refused,) = self._add_all([job.request()])
        if refused is not None:
            raise refused
        return given

    def schedule(self, name: str, time: datetime, payload: bytes = b"", **options: Any) -> UUID:
        """Add a job that is ready at ``time``; options as for ``add``."""
        checks.zoned(time)
        return self.add(name, payload, time=time, **options)

    def add_many(
        self, jobs: Iterable[NewJob], *, batch: int = 200
    ) -> Iterator[tuple[NewJob, Refused | None]]:
        """Add many jobs, ``batch`` on the way at a time: each with its refusal, or None.

        What cannot be sent is a refusal like any other.
        """
        checks.one_of(jobs, (Iterable,), "jobs", "an iterable of NewJob")
        return self._add_many(iter(jobs), checks.batch(batch))

    def _add_many(
        self, waiting: Iterator[NewJob], batch: int
    ) -> Iterator[tuple[NewJob, Refused | None]]:
        while some := list(islice(waiting, batch)):
            for job in some:
                checks.one_of(job, (NewJob,), "each job", "a NewJob")
            requests = [_request(job) for job in some]
            answers = iter(self._add_all([each for each in requests if isinstance(each, bytes)]))
            for job, request in zip(some, requests, strict=True):
                yield job, next(answers) if isinstance(request, bytes) else request

    def run(
        self,
        name: str,
        payload: bytes = b"",
        *,
        wait_ms: int,
        job_id: JobId | None = None,
        ttr_ms: int = DEFAULT_TTR_MS,
        priority: int = 0,
    ) -> Result | None:
        """Add a job that is not kept, and wait for its result; None if none came in time."""
        payload = lines.checked_data(payload, "payload")
        words = [
            "run",
            str(uuid4() if job_id is None else as_id(job_id)),
            lines.checked_name(name),
            lines.number(ttr_ms, "ttr_ms", 1, _MAX_TTR_MS),
            lines.number(wait_ms, "wait_ms", 0, MAX_WAIT_MS),
            str(len(payload)),
        ]
        if (urgency := lines.number(priority, "priority", *_INT32)) != "0":
            words.append(f"-priority={urgency}")
        # A leased one is waited for until its time to run is over.
        extra_ms = wait_ms + ttr_ms
        request = lines.line(*words) + lines.block(payload)
        return self._waiting(lambda: self._once(request, self._read_result, extra_ms))

    def result(self, job_id: JobId, *, wait_ms: int = 0) -> Result | None:
        """How a job ended; None if it has not within the time. Raises NotFound."""
        wait = lines.number(wait_ms, "wait_ms", 0, MAX_WAIT_MS)
        request = lines.line("result", str(as_id(job_id)), wait)
        return self._waiting(lambda: self._twice(request, self._read_result, wait_ms))

    def delete(self, job_id: JobId) -> bool:
        """Whether there was such a job."""
        try:
            self._once(lines.line("delete", str(as_id(job_id))), lines.read_head)
        except NotFound:
            return False
        return True

    # -- workers -----------------------------------------------------------------------------------

    def lease(self, *names: str, wait_ms: int) -> LeasedJob | None:
        """The next job of one of these queues; None if there was none within the time."""
        if not names:
            raise InvalidRequest("lease needs the name of a queue")
        checked = map(lines.checked_name, names)
        wait = lines.number(wait_ms, "wait_ms", 0, MAX_WAIT_MS)
        request = lines.line("lease", *checked, wait)
        return self._waiting(lambda: self._once(request, self._read_lease, wait_ms))

    def complete(self, job_id: JobId, result: bytes = b"") -> None:
        """Raises NotFound, or Refused: ``Duplicate result``."""
        self._finish("complete", job_id, result)

    def fail(self, job_id: JobId, result: bytes = b"") -> None:
        """As ``complete``."""
        self._finish("fail", job_id, result)

    # -- questions ---------------------------------------------------------------------------------

    def inspect_job(self, job_id: JobId) -> JobInfo | None:
        try:
            (job,) = self._jobs("job", str(as_id(job_id)))
        except NotFound:
            return None
        return job

    def inspect_jobs(self, name: str, *, offset: int = 0, limit: int = 100) -> list[JobInfo]:
        """The ready jobs of a queue. Raises NotFound."""
        return self._jobs("jobs", lines.checked_name(name), *_page(offset, limit))

    def inspect_scheduled_jobs(
        self, name: str, *, offset: int = 0, limit: int = 100
    ) -> list[JobInfo]:
        """The jobs of a queue that are not due yet. Raises NotFound."""
        return self._jobs("scheduled-jobs", lines.checked_name(name), *_page(offset, limit))

    def inspect_queue(self, name: str) -> QueueInfo | None:
        try:
            (queue,) = self._queues("queue", lines.checked_name(name))
        except NotFound:
            return None
        return queue

    def inspect_queues(self, *, offset: int = 0, limit: int = 100) -> list[QueueInfo]:
        return self._queues("queues", *_page(offset, limit))

    def inspect_server(self) -> dict[str, str]:
        """active-clients, evicted-jobs and started."""

        def read(connection: ClientConnection) -> dict[str, str]:
            lines.read_head(connection)
            # The original speaks of two keys and sends three.
            return lines.read_pairs(connection, also=lambda found: int("started" not in found))[1]

        return self._twice(lines.line("inspect", "server"), read)

    # -- exchanges ---------------------------------------------------------------------------------

    def _waiting(self, exchange: Callable[[], T]) -> T | None:
        try:
            return exchange()
        except TimedOutWaiting:
            return None

    def _add_all(self, requests: list[bytes]) -> list[Refused | None]:
        """One answer for each. One that may have been added before is not refused as its double."""
        answers: list[Refused | None] = []
        sent = 0  # how many may have reached the server
        at_a_time = len(requests)
        while (before := len(answers)) < len(requests):
            some = requests[before : before + at_a_time]
            try:
                self._connection.open()
                self._connection.allow()
                perhaps_there = sent
                sent = max(sent, before + len(some))
                self._connection.send(b"".join(some))
                for place in range(before, before + len(some)):
                    answer = self._read_added(may_be_there=place < perhaps_there)
                    answers.append(answer)  # kept if the next one fails
            except (CannotConnect, TimedOut):
                raise
            except ConnectionFailed:
                if at_a_time == 1 and before == len(answers):
                    raise
                at_a_time = max(1, at_a_time // 4)
        return answers

    def _read_added(self, *, may_be_there: bool) -> Refused | None:
        try:
            lines.read_head(self._connection)
        except Refused as refused:
            is_there = may_be_there and refused.reason == lines.DUPLICATE_JOB
            return None if is_there else refused
        return None

    def _finish(self, word: str, job_id: JobId, result: bytes) -> None:
        result = lines.checked_data(result, "result")
        request = lines.line(word, str(as_id(job_id)), str(len(result))) + lines.block(result)
        self._once(request, lines.read_head)

    def _read_lease(self, connection: ClientConnection) -> LeasedJob:
        lines.read_head(connection)
        job_id, name, ttr, size = lines.read_words(connection, 4)
        payload = lines.read_block(connection, size)
        return LeasedJob(lines.read_id(connection, job_id), name, int(ttr), payload)

    def _read_result(self, connection: ClientConnection) -> Result:
        lines.read_head(connection)
        job_id, succeeded, size = lines.read_words(connection, 3)
        result = lines.read_block(connection, size)
        return Result(lines.read_id(connection, job_id), succeeded == "1", result)

    def _jobs(self, *words: str) -> list[JobInfo]:
        def read(connection: ClientConnection) -> list[JobInfo]:
            return [lines.read_job(connection) for _ in range(lines.read_head(connection))]

        return self._twice(lines.line("inspect", *words), read)

    def _queues(self, *words: str) -> list[QueueInfo]:
        def read(connection: ClientConnection) -> list[QueueInfo]:
            found = []
            for _ in range(lines.read_head(connection)):
                name, pairs = lines.read_pairs(connection, also=lambda _: 0)
                ready, scheduled = pairs.get("ready-len", "0"), pairs.get("scheduled-len", "0")
                found.append(QueueInfo(name, int(ready), int(scheduled)))
            return found

        return self._twice(lines.line("inspect", *words), read)


def _page(offset: int, limit: int) -> tuple[str, str]:
    return lines.number(offset, "offset", 0, 2**32 - 1), lines.number(limit, "limit", 1, 100)


def _request(job: NewJob) -> bytes | Refused:
    try:
        return job.request()
    except InvalidRequest as error:
        return Refused("invalid_request", str(error))
