"""Answers of the workq protocol: the values that an engine replies with, and their bytes.

    +OK                                          DONE
    -TIMEOUT                                     TIMED_OUT
    -NOT-FOUND                                   NOT_FOUND
    -CLIENT-ERROR text                           RefusedLine (also what an engine refuses)
    -SERVER-ERROR text                           READ_ONLY
    +OK 1 / ID NAME TTR SIZE / payload           Leased
    +OK 1 / ID 1|0 SIZE / result                 Finished
    +OK N / ID 0 SIZE / result ...               EndedJobs (new)
    +OK N / ID 12|13 / key value ...             JobList of JobView
    +OK N / NAME 2 / key value ...               QueueList of QueueView
    +OK 1 / server 3 / key value ...             ServerView
    +OK 1 / token 1 / salt HEX                   TokenView; token 0 without a salt
    +OK N / ID NAME TTR SIZE ATTEMPT FAILS MAX-FAILS [GIVEN-BACK] / payload ...  LeasedJobs (new)
    +OK 1 / NAME 1 / requeued N                  Requeued (new)
    +OK 1 / progress SIZE / JSON                 JobProgress (new)
    +OK N / NAME NUMBER SIZE DONE_NS / value ... StepList (new)

Blocks of jobs and queues have more keys if they have what the original does not know.

Every line ends with CR LF. Payloads and results are raw, after their size.
``reply_bytes`` words any of them. A time is shown in whole seconds, as the original does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias, overload

import msgspec
from msgspec import Struct

from journeyman.protocols.workq.commands import (
    NO_LIMITS,
    JobWait,
    Limits,
    RefusedLine,
    WorkerFacts,
)
from journeyman.units import NS_PER_S

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_S, _LAST_S = -62_135_596_800, 253_402_300_799  # the years 1 to 9999
_JOB_KEYS = 12
_QUEUE_KEYS = 2
_SERVER_KEYS = 3
READY, SCHEDULED, LEASED, COMPLETED, DEAD, CANCELLED = STATES = (
    *("ready", "scheduled", "leased", "completed", "dead", "cancelled"),
)
FINISHED = (COMPLETED, DEAD, CANCELLED)
WAITING = "waiting"  # for other jobs
# The numbers of folds.workq.JobState, which ``inspect`` shows.
_STATE_NUMBERS = {
    READY: 0, SCHEDULED: 0, WAITING: 0, COMPLETED: 1, DEAD: 2, CANCELLED: 2, LEASED: 4,
}  # fmt: skip
_PENDING = 3

READ_ONLY = b"-SERVER-ERROR Read-only mode triggered by cmdlog circuit breaker\r\n"


class Done(Struct, frozen=True):
    pass


class WaitTimedOut(Struct, frozen=True):
    pass


class JobMissing(Struct, frozen=True):
    pass


DONE = Done()
TIMED_OUT = WaitTimedOut()
NOT_FOUND = JobMissing()


class Leased(NamedTuple):
    """The reply to a lease: a job for the client."""

    job_id: bytes
    name: str
    ttr_ms: int
    payload: bytes | memoryview  # a view of the job's own bytes if it is large


class LeasedMore(NamedTuple):
    """A job of ``LeasedJobs``: as ``Leased``, and what a worker likes to know."""

    job_id: bytes
    name: str
    ttr_ms: int
    payload: bytes | memoryview
    attempt: int  # 1 is the first
    fails: int  # before this attempt
    max_fails: int
    given_back: int = 0  # attempts before this one that ended so


class LeasedJobs(Struct, frozen=True):
    """The reply to a lease of several: at least one job."""

    jobs: tuple[LeasedMore, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(len(job.payload) for job in self.jobs)


class Requeued(NamedTuple):
    name: str
    jobs: int  # how many


class Finished(NamedTuple):
    """The reply to run and result: how the job went."""

    job_id: bytes
    success: bool
    result: bytes


class EndedJobs(NamedTuple):
    """The reply to a worker: jobs that it has leased, and that others have ended."""

    jobs: tuple[Finished, ...]


class LogLine(Struct, frozen=True):
    """A line that the worker of a job has written."""

    at_ns: int
    text: str


class JobProgress(Struct, frozen=True):
    """Progress and log lines that workers reported for a job, while the server remembers them."""

    done: float | None = None
    total: float | None = None
    note: str = ""
    said_ns: int | None = None  # when that was
    log: tuple[LogLine, ...] = ()  # the last lines

    def json(self) -> bytes:
        return msgspec.json.encode(self)


class RecordedStep(NamedTuple):
    """A step of a job, which the job's task has recorded."""

    name: str
    number: int  # 1 is the first step of this name
    value: bytes
    done_ns: int


class StepList(Struct, frozen=True):
    """The recorded steps of a job, in their order."""

    steps: tuple[RecordedStep, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(len(step.value) for step in self.steps)


class RunningJob(Struct, frozen=True):
    """A job that is leased, of the worker that has it."""

    job_id: bytes
    queue: str
    started_ns: int


class WorkerView(Struct, frozen=True):
    """A worker as people and programs see it. ``connected``: it waits for orders just now."""

    name: str
    connected: bool
    since_ns: int
    seen_ns: int
    facts: WorkerFacts
    jobs: tuple[RunningJob, ...]  # at most a hundred


class JobView(Struct, frozen=True, omit_defaults=True):
    """A job as people and programs see it: in ``inspect``, the HTTP API, the console, the past.

    A job in state ``waiting`` waits for ``waits_for`` others, and is created after them; or it is
    parked. Jobs of ``run`` have a TTL of 0 and do not expire.
    """

    job_id: bytes
    queue: str
    state: str  # one of STATES
    attempts: int
    max_attempts: int
    fails: int
    max_fails: int
    priority: int
    ttr_ms: int
    ttl_ms: int
    retry_delay_ms: int
    created_ns: int | None
    expires_ns: int | None  # not of a run, nor of a job that is parked
    payload: bytes
    result: bytes | None = None
    key: str = ""
    worker: str = ""  # the worker of its last attempt, while that is known; lists over HTTP omit it
    waits_for: int = 0
    is_retry: bool = False  # it was leased or failed before, and is queued again
    given_back: int = 0  # attempts that ended so; lists over HTTP leave it out
    scheduled_ns: int | None = None  # its time, of a job that was scheduled
    ready_ns: int | None = None  # in state scheduled: its time, or the end of a retry's delay
    started_ns: int | None = None
    leased_until_ns: int | None = None
    finished_ns: int | None = None
    progress: JobProgress | None = None  # set only when a single job is inspected
    parks: int = 0  # how often it was parked
    wait: JobWait | None = None  # the wait of a parked job, whose state is ``waiting``
    # Lists leave these out. A fork is a new job that goes on from a step of another one.
    forked_from: str = ""  # the id of the job of which it is a fork
    forked_at: str = ""  # the step of that job from which it goes on, as name#number
    forks: tuple[str, ...] = ()  # the ids of its own forks

    @property
    def id(self) -> str:
        return id_text(self.job_id)

    @property
    def number_of_state(self) -> int:
        """The state as ``inspect`` shows it: folds.workq.JobState."""
        number = _STATE_NUMBERS[self.state]
        return _PENDING if self.is_retry and not number else number


class JobViews(Sequence[JobView]):
    """Views that are made when they are looked at, because each holds a copy of its payload."""

    def __init__(self, makers: Sequence[Callable[[], JobView]], payload_bytes: int) -> None:
        """``payload_bytes``: of all of them."""
        self._makers = makers
        self.payload_bytes = payload_bytes

    def __len__(self) -> int:
        return len(self._makers)

    def __iter__(self) -> Iterator[JobView]:
        return (make() for make in self._makers)  # views are made one at a time and not kept

    @overload
    def __getitem__(self, at: int) -> JobView: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[JobView, ...]: ...

    def __getitem__(self, at: int | slice) -> JobView | tuple[JobView, ...]:
        if isinstance(at, slice):
            return tuple(make() for make in self._makers[at])
        return self._makers[at]()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class JobList(Struct, frozen=True):
    jobs: Sequence[JobView]

    @property
    def payload_bytes(self) -> int:
        if isinstance(self.jobs, JobViews):
            return self.jobs.payload_bytes
        return sum(len(job.payload) for job in self.jobs)


class QueueView(Struct, frozen=True):
    """A queue as people and programs see it: in ``inspect``, the HTTP API, the console, the past.

    ``added`` jobs and ``started`` leases are counted since the server started; the rates are of
    the last seconds. None: not known, as of a moment in the past.
    """

    name: str
    ready: int = 0
    scheduled: int = 0
    leased: int = 0
    dead: int = 0
    oldest_ready_ms: int | None = None  # for how long the oldest ready job has been ready
    paused: bool = False
    limits: Limits = NO_LIMITS
    waiting: int = 0  # clients that wait for a job of it
    added: int | None = None
    started: int | None = None
    added_per_s: float | None = None
    started_per_s: float | None = None


class QueueList(Struct, frozen=True):
    """``with_counts``: all counts are shown, not only those of the original."""

    queues: tuple[QueueView, ...]
    with_counts: bool = False


class ServerView(NamedTuple):
    active_clients: int
    evicted_jobs: int
    started_ns: int


class TokenView(NamedTuple):
    """New: what the token of a client brings."""

    salt: bytes = b""  # for ids that it derives; empty: none


Reply: TypeAlias = (
    Done
    | WaitTimedOut
    | JobMissing
    | RefusedLine
    | Leased
    | LeasedJobs
    | Requeued
    | Finished
    | EndedJobs
    | JobProgress
    | StepList
    | JobList
    | QueueList
    | ServerView
    | TokenView
)


def reply_bytes(reply: Reply) -> bytes:
    """Return what the client is sent."""
    if type(reply) is Done:
        return b"+OK\r\n"
    if type(reply) is Leased:
        job_id, name, ttr_ms, payload = reply
        head = f"+OK 1\r\n{id_text(job_id)} {name} {ttr_ms} {len(payload)}\r\n"
        return b"".join((_encoded(head), payload, b"\r\n"))
    if type(reply) is Finished:
        job_id, success, result = reply
        head = f"+OK 1\r\n{id_text(job_id)} {success:d} {len(result)}\r\n"
        return b"%b%b\r\n" % (head.encode(), result)
    return _rarer_reply_bytes(reply)


def _rarer_reply_bytes(reply: Reply) -> bytes:
    if isinstance(reply, WaitTimedOut):
        return b"-TIMEOUT\r\n"
    if isinstance(reply, JobMissing):
        return b"-NOT-FOUND\r\n"
    if isinstance(reply, RefusedLine):
        return b"-CLIENT-ERROR %b\r\n" % reply.complaint.encode()
    if isinstance(reply, JobList):
        return b"".join(job_list_parts(reply))
    if isinstance(reply, QueueList):
        return b"+OK %d\r\n" % len(reply.queues) + b"".join(
            _queue_block(queue, reply.with_counts) for queue in reply.queues
        )
    if isinstance(reply, LeasedJobs):
        return b"".join(leased_parts(reply))
    if isinstance(reply, EndedJobs):
        rows = (f"{id_text(job.job_id)} {job.success:d} {len(job.result)}\r\n".encode()
                + job.result + b"\r\n" for job in reply.jobs)  # fmt: skip
        return b"+OK %d\r\n" % len(reply.jobs) + b"".join(rows)
    if isinstance(reply, JobProgress):
        data = reply.json()
        return b"+OK 1\r\nprogress %d\r\n%b\r\n" % (len(data), data)
    if isinstance(reply, StepList):
        return b"".join(step_parts(reply))
    if isinstance(reply, Requeued):
        return f"+OK 1\r\n{reply.name} 1\r\nrequeued {reply.jobs}\r\n".encode()
    if isinstance(reply, TokenView):
        salt = f"1\r\nsalt {reply.salt.hex()}" if reply.salt else "0"
        return f"+OK 1\r\ntoken {salt}\r\n".encode()
    assert isinstance(reply, ServerView)
    return _server_block(reply)


def job_list_parts(reply: JobList) -> Iterator[bytes]:
    """Yield the reply in pieces: a hundred jobs may have a megabyte each."""
    yield b"+OK %d\r\n" % len(reply.jobs)
    for job in reply.jobs:
        yield _job_block(job)


def leased_parts(reply: LeasedJobs) -> Iterator[bytes]:
    """Yield the reply in pieces."""
    yield b"+OK %d\r\n" % len(reply.jobs)
    for job_id, name, ttr_ms, payload, attempt, fails, max_fails, given_back in reply.jobs:
        head = f"{id_text(job_id)} {name} {ttr_ms} {len(payload)} {attempt} {fails} {max_fails}"
        head += f" {given_back}\r\n" if given_back else "\r\n"
        yield b"".join((_encoded(head), payload, b"\r\n"))


def step_parts(reply: StepList) -> Iterator[bytes]:
    """Yield the reply in pieces."""
    yield b"+OK %d\r\n" % len(reply.steps)
    for name, number, value, done_ns in reply.steps:
        head = f"{name} {number} {len(value)} {done_ns}\r\n"
        yield b"".join((head.encode(), value, b"\r\n"))


def id_text(job_id: bytes) -> str:
    """The canonical form: lower case, with dashes."""
    text = job_id.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def time_text(unix_ns: int) -> str:
    """Whole seconds, UTC. What is outside the calendar is shown as its nearest end."""
    seconds = min(max(unix_ns // NS_PER_S, _FIRST_S), _LAST_S)
    moment = _EPOCH + timedelta(seconds=seconds)
    return moment.replace(tzinfo=None).isoformat() + "Z"


def _job_block(job: JobView) -> bytes:
    more = {
        "worker": job.worker, "key": job.key, "after": job.waits_for,
        "cancelled": int(job.state == CANCELLED), "given-back": job.given_back + job.parks,
        "parked": "" if job.wait is None else msgspec.json.encode(job.wait).decode(),
        "forked-from": f"{job.forked_from} {job.forked_at}".strip(),
    }  # fmt: skip
    more = {key: value for key, value in more.items() if value}
    keys = _JOB_KEYS + (job.scheduled_ns is not None) + len(more)
    head = (
        f"{id_text(job.job_id)} {keys}\r\nname {job.queue}\r\nttr {job.ttr_ms}\r\n"
        f"ttl {job.ttl_ms}\r\npayload-size {len(job.payload)}\r\npayload "
    )
    tail = (
        f"\r\nmax-attempts {job.max_attempts}\r\nattempts {job.attempts}\r\n"
        f"max-fails {job.max_fails}\r\nfails {job.fails}\r\npriority {job.priority}\r\n"
        f"state {job.number_of_state}\r\ncreated {time_text(job.created_ns or 0)}\r\n"
    )
    if job.scheduled_ns is not None:
        tail += f"time {time_text(job.scheduled_ns)}\r\n"
    tail += "".join(f"{key} {value}\r\n" for key, value in more.items())
    return _encoded(head) + job.payload + tail.encode()


def _queue_block(queue: QueueView, with_counts: bool) -> bytes:
    has_limits = queue.limits != NO_LIMITS
    more = f"leased-len {queue.leased}\r\n" if with_counts or has_limits else ""
    if with_counts:
        more += f"dead-len {queue.dead}\r\npaused {queue.paused:d}\r\n"
    more += _limit_lines(queue.limits)
    return _encoded(
        f"{queue.name} {_QUEUE_KEYS + more.count(' ')}\r\nready-len {queue.ready}\r\n"
        f"scheduled-len {queue.scheduled}\r\n{more}"
    )


def _limit_lines(limits: Limits) -> str:
    lines = ""
    if limits.rate:
        lines += f"rate {limits.rate}/{limits.per_ms}ms\r\n"
    if limits.concurrency:
        lines += f"concurrency {limits.concurrency}\r\n"
    if limits.key_concurrency:
        lines += f"key-concurrency {limits.key_concurrency}\r\n"
    if limits.key_rate:
        lines += f"key-rate {limits.key_rate}/{limits.key_per_ms}ms\r\n"
    if limits.fair:
        lines += "fair 1\r\n"
    if limits.weights:
        pairs = ",".join(f"{key}:{weight}" for key, weight in limits.weights.items())
        lines += f"weights {pairs}\r\n"
    return lines


def _server_block(server: ServerView) -> bytes:
    return (
        f"+OK 1\r\nserver {_SERVER_KEYS}\r\nactive-clients {server.active_clients}\r\n"
        f"evicted-jobs {server.evicted_jobs}\r\nstarted {time_text(server.started_ns)}\r\n"
    ).encode()


def _encoded(text: str) -> bytes:
    """A log of the original may hold names that are not text; they are sent unchanged."""
    return text.encode("utf-8", "surrogateescape")
