"""Jobs onto a server, without doubles: the part of the server sink that knows no Spark.

    rows --> jobs --batches, paced--> client --> counts: put, already there, refused
                                                 and the first few refusals

Sent again means the same again. A SET of ztick that is repeated changes nothing. Jobs of workq have
ids that do not depend on the attempt: their own, or one made of ``job_key`` and the run; the server
answers ``Duplicate job`` to the second, which is counted as already there.

    ztick    identifier, execution_ns
    workq    name, and job_id (16 bytes or a UUID as text) or job_key; payload, ttr_ms, ttl_ms,
             priority, max_attempts, max_fails, time_ns if they are there
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Protocol
from uuid import UUID

from journeyman.client.errors import ConnectionFailed, InvalidRequest, Refused
from journeyman.client.service import Tls
from journeyman.client.workq import DEFAULT_TTL_MS, DEFAULT_TTR_MS, NewJob, WorkQueue
from journeyman.client.ztick import Schedule
from journeyman.clock import Clock
from journeyman.errors import UsageError
from journeyman.protocols.workq.commands import Complaint
from journeyman.protocols.workq.salts import salted_id
from journeyman.spark.sinks.server_options import ServerOptions

MAX_SHOWN = 5  # refusals that are told in words
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0

Row = Mapping[str, Any]


@dataclass(slots=True)
class Sent:
    """The outcomes of the jobs, counted."""

    put: int = 0
    already_there: int = 0
    refused: int = 0
    first_refused: list[tuple[str, str]] = field(default_factory=list)  # the job, and why

    def note(self, job: str, refusal: Refused | None) -> None:
        if refusal is None:
            self.put += 1
        elif is_there_already(refusal):
            self.already_there += 1
        else:
            self.refused += 1
            if len(self.first_refused) < MAX_SHOWN:
                self.first_refused.append((job, str(refusal)))

    def add(self, other: Sent) -> None:
        self.put += other.put
        self.already_there += other.already_there
        self.refused += other.refused
        room = MAX_SHOWN - len(self.first_refused)
        self.first_refused += other.first_refused[:room]


def is_there_already(refusal: Refused) -> bool:
    """Return whether the server has a job of this very id."""
    return refusal.reason == Complaint.DUPLICATE_JOB


def check_columns(dialect: str, columns: Iterable[str]) -> None:
    """Raises UsageError when jobs cannot be made of such rows."""
    there = set(columns)
    needed = {"identifier", "execution_ns"} if dialect == "ztick" else {"name"}
    if missing := sorted(needed - there):
        raise UsageError(f"jobs for {dialect} need the column {', '.join(missing)}")
    if dialect == "workq" and not there & {"job_id", "job_key"}:
        raise UsageError(
            "jobs for workq need the column job_id, or job_key from which ids are made:"
            " without it a task that is repeated would add them twice"
        )


def job_uuid(run_id: str, job_key: str, salt: bytes = b"") -> UUID:
    """The id of a job in a run, of the form of a UUID of version 4. The same for the same."""
    digest = hashlib.sha256(f"{len(run_id)}:{run_id}:{job_key}".encode()).digest()
    return UUID(bytes=salted_id(UUID(bytes=digest[:16], version=4).bytes, salt))


def send_rows(options: ServerOptions, rows: Iterable[Row], clock: Clock) -> Sent:
    """Put a job for each row. Raises ConnectionFailed when the server stays away."""
    check = _ztick_job if options.dialect == "ztick" else workq_job
    sender = open_sender(options)
    sent = Sent()
    pace = Pace(options, clock)
    try:
        waiting = iter(rows)
        while some := list(islice(waiting, pace.batch)):
            jobs = []
            for row in some:
                made = check(options, row, sender.salt)
                if isinstance(made, Refused):
                    sent.note(_named(row), made)
                else:
                    jobs.append(made)
            for name, refusal in put_all(options, sender, jobs, clock):
                sent.note(name, refusal)
            pace.keep(len(some))
    finally:
        sender.close()
    return sent


def put_all(
    options: ServerOptions, sender: JobSender, jobs: list[Any], clock: Clock
) -> Iterator[tuple[str, Refused | None]]:
    """Each job in order with its refusal, or None, however often the connection breaks.

    Raises ConnectionFailed when it breaks ``max_retries`` times without bringing one further.
    """
    done = 0
    failures, pause_s = 0, _FIRST_PAUSE_S
    while done < len(jobs):
        try:
            for outcome in sender.send(jobs[done:]):
                done += 1
                failures, pause_s = 0, _FIRST_PAUSE_S
                yield outcome
        except ConnectionFailed:
            failures += 1
            if failures > options.max_retries:
                raise
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


class JobSender(Protocol):
    """A connection to a server that takes jobs."""

    def send(self, jobs: list[Any]) -> Iterator[tuple[str, Refused | None]]:
        """Every job by its name, in order, with its refusal, or None."""
        ...

    def salt(self) -> bytes:
        """Return the salt of derived ids, which no other namespace can take then."""
        ...

    def close(self) -> None: ...


def open_sender(options: ServerOptions) -> JobSender:
    return ZtickSender(options) if options.dialect == "ztick" else _WorkqSender(options)


class ZtickSender:
    """Jobs are (identifier, execution_ns)."""

    def __init__(self, options: ServerOptions) -> None:
        token, tls = options.token, _tls(options)
        self.client = Schedule(options.host, options.port, token=token, tls=tls)
        self._batch = options.batch_size

    def send(self, jobs: list[tuple[str, int]]) -> Iterator[tuple[str, Refused | None]]:
        return self.client.set_many(jobs, batch=self._batch)

    def salt(self) -> bytes:
        """None is needed: names begin with the namespace."""
        return b""

    def close(self) -> None:
        self.client.close()


class _WorkqSender:
    """Jobs are NewJob."""

    def __init__(self, options: ServerOptions) -> None:
        token, tls = options.token, _tls(options)
        self._client = WorkQueue(options.host, options.port, token=token, tls=tls)
        self._salt: bytes | None = None if token else b""
        self._batch = options.batch_size

    def send(self, jobs: list[NewJob]) -> Iterator[tuple[str, Refused | None]]:
        for job, refusal in self._client.add_many(jobs, batch=self._batch):
            yield str(job.job_id), refusal

    def salt(self) -> bytes:
        if self._salt is None:
            self._salt = self._client.salt()
        return self._salt

    def close(self) -> None:
        self._client.close()


class Pace:
    """Never more than a task's share of the rate, counted from the start."""

    def __init__(self, options: ServerOptions, clock: Clock) -> None:
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._sent = 0
        self._share: float | None = None
        self.batch = options.batch_size
        if options.rate_limit is not None:
            self._share = options.rate_limit / (options.tasks or 1)
            # No burst longer than a second's worth.
            self.batch = max(1, min(self.batch, int(self._share)))

    def keep(self, count: int) -> None:
        """Count what was sent, and wait until that many are due."""
        self._sent += count
        if self._share is not None:
            passed_s = (self._clock.monotonic_ns() - self._started_ns) / 1e9
            early_s = self._sent / self._share - passed_s
            if early_s > 0:
                self._clock.sleep(early_s)


def _tls(options: ServerOptions) -> Tls:
    if options.tls_ca is not None:
        return ssl.create_default_context(cafile=options.tls_ca)
    return options.tls


def _named(row: Row) -> str:
    for name in ("identifier", "job_id", "job_key", "name"):
        value = row.get(name)
        if value is not None:
            return value.hex() if isinstance(value, bytes) else str(value)
    return "a row without a name"


def _ztick_job(_: ServerOptions, row: Row, _salt: object) -> tuple[str, int] | Refused:
    if row.get("kind", "set") not in ("set", None):
        return Refused("invalid_request", f"kind is {row['kind']}, and only jobs that are set go")
    if row["identifier"] is None or row["execution_ns"] is None:
        missing = "identifier" if row["identifier"] is None else "execution_ns"
        return Refused("invalid_request", f"{missing} is null")
    return row["identifier"], row["execution_ns"]


def workq_job(options: ServerOptions, row: Row, salt: Callable[[], bytes]) -> NewJob | Refused:
    """``salt`` is asked for if the id is derived."""
    if row["name"] is None:
        return Refused("invalid_request", "name is null")
    payload = row.get("payload")
    if isinstance(payload, str):
        payload = payload.encode()
    if payload is None and row.get("payload_size"):
        why = "payload is null but payload_size is not 0; a lake keeps payloads with --payloads"
        return Refused("invalid_request", why)
    time_ns = row.get("time_ns")
    try:
        return NewJob(
            _job_id(options, row, salt),
            row["name"],
            payload or b"",
            _or(row.get("ttr_ms"), DEFAULT_TTR_MS),
            _or(row.get("ttl_ms"), DEFAULT_TTL_MS),
            _or(row.get("priority"), 0),
            _or(row.get("max_attempts"), 0),
            _or(row.get("max_fails"), 0),
            None if time_ns is None else _EPOCH + timedelta(microseconds=time_ns // 1000),
        )
    except (InvalidRequest, ValueError, OverflowError) as error:
        return Refused("invalid_request", str(error))


def _job_id(options: ServerOptions, row: Row, salt: Callable[[], bytes]) -> UUID:
    given = row.get("job_id")
    if isinstance(given, bytes):
        return UUID(bytes=given)
    if given is not None:
        return UUID(given)
    key = row.get("job_key")
    if key is None:
        raise ValueError("job_id and job_key are both null")
    return job_uuid(options.run_id, str(key), salt())


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
