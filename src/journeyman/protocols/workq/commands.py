"""What a line of the workq protocol can ask for, as values.

    add ID NAME TTR TTL SIZE [flags]  + payload              Add
    schedule ID NAME TTR TTL TIME SIZE [flags]  + payload    Schedule
    run ID NAME TTR WAIT SIZE [-priority=N]  + payload       Run
    result ID WAIT                                           Result
    lease NAME... WAIT                                       Lease
    complete ID SIZE  + result                               Complete
    fail ID SIZE  + result                                   Fail
    delete ID                                                Delete
    inspect server | job ID | queue NAME                     InspectServer, InspectJob, InspectQueue
    inspect queues OFFSET LIMIT                              InspectQueues
    inspect jobs | scheduled-jobs NAME OFFSET LIMIT          InspectJobs, InspectScheduledJobs

    new, unknown to the original:
    inspect dead-jobs NAME OFFSET LIMIT                      InspectDeadJobs
    inspect paused-queues OFFSET LIMIT                       InspectPausedQueues
    requeue ID                                               Requeue
    pause NAME | resume NAME                                 PauseQueue, ResumeQueue
    -retry-delay=MS on add and schedule                      their ``retry_delay_ms``
    auth SECRET, as the first line of a connection           Auth

Three more things can come out of a connection: ``RefusedLine`` (it only has to be answered),
``Hangup`` (close without an answer; what was asked before it is still answered) and ``Foreign``
(the same, because the client speaks HTTP). With tokens, anything but ``Auth`` in the
first line is ``AuthRequired``.

Everything that needs neither the state nor the time has been checked: the engine only decides
whether the TTL has already ended (``Invalid Time``) and whether the id is taken. An id
is 16 raw bytes, of a UUID version 4 where a job is made or finished, and any where one is looked
for: a log of the original may hold others, and those must be seen and deleted.

Jobs are named tuples, because they have many fields and one is made for every job.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from journeyman.protocols.events import Auth, AuthRequired, Foreign

MAX_PAYLOAD_BYTES = 1_048_576  # of a job, and of a result
MAX_NAME_BYTES = 255
MAX_TTR_MS = 86_400_000  # a day
MAX_TTL_MS = 2_592_000_000  # thirty days
MAX_WAIT_MS = 86_400_000
MAX_RETRY_DELAY_MS = 86_400_000
MAX_COUNT = 255  # of max-attempts and max-fails
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
MAX_CURSOR_OFFSET = 2**32 - 1
MAX_LISTED = 100


class Complaint(StrEnum):
    """The text after ``-CLIENT-ERROR``. The last four depend on the state, not on the line."""

    UNKNOWN_COMMAND = "Unknown command"
    ARGS = "Invalid command args"
    FLAGS = "Invalid command flags"
    PAYLOAD_SIZE = "Invalid payload size"
    RESULT_SIZE = "Invalid result size"
    ID = "Invalid ID"
    NAME = "Invalid Name"
    TTR = "Invalid TTR"
    TTL = "Invalid TTL"
    WAIT = "Invalid wait timeout"
    PRIORITY = "Invalid Priority"
    MAX_ATTEMPTS = "Invalid Max Attempts"
    MAX_FAILS = "Invalid Max Fails"
    RETRY_DELAY = "Invalid Retry Delay"  # new
    CURSOR_OFFSET = "Invalid cursor offset"
    LIMIT = "Invalid limit"
    TIME = "Invalid Time"
    DUPLICATE_JOB = "Duplicate job"
    DUPLICATE_RESULT = "Duplicate result"
    NOT_DEAD = "Job is not dead"  # new, of requeue
    SCOPE = "Insufficient namespace scope"  # new, of a token


class Add(NamedTuple):
    """A job that is ready at once.

    ``max_attempts`` 0: no limit. ``max_fails`` 0 or 1: the first fail is final.
    """

    job_id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    payload: bytes
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    retry_delay_ms: int = 0


class ScheduleJob(NamedTuple):
    """A job that is ready at ``time_ns``, unix time; its TTL begins then."""

    job_id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    time_ns: int
    payload: bytes
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    retry_delay_ms: int = 0


class Run(NamedTuple):
    """A foreground job: not recorded, and dropped when its client has its answer."""

    job_id: bytes
    name: str
    ttr_ms: int
    wait_ms: int
    payload: bytes
    priority: int = 0


@dataclass(frozen=True, slots=True)
class AwaitResult:
    job_id: bytes
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A job of one of these queues. A name may come twice, and then counts once."""

    names: tuple[str, ...]  # at least one
    wait_ms: int


@dataclass(frozen=True, slots=True)
class Complete:
    job_id: bytes
    result: bytes


@dataclass(frozen=True, slots=True)
class Fail:
    job_id: bytes
    result: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    job_id: bytes


@dataclass(frozen=True, slots=True)
class InspectServer:
    pass


@dataclass(frozen=True, slots=True)
class InspectQueues:
    """By name, in the order of their bytes; those that begin with ``prefix``."""

    offset: int
    limit: int
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class InspectQueue:
    name: str  # any text: what no queue can be called is not found


@dataclass(frozen=True, slots=True)
class InspectJobs:
    """The ready ones, in the order in which they will be leased."""

    name: str
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class InspectScheduledJobs:
    name: str
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class InspectJob:
    job_id: bytes


@dataclass(frozen=True, slots=True)
class InspectDeadJobs:
    """The failed ones: out of attempts, or of fails."""

    name: str
    offset: int
    limit: int


@dataclass(frozen=True, slots=True)
class InspectPausedQueues:
    offset: int
    limit: int
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Give a dead job a new life, with no attempts and no fails counted."""

    job_id: bytes


@dataclass(frozen=True, slots=True)
class PauseQueue:
    """Lease nothing from this queue until it is resumed. It need not exist yet."""

    name: str


@dataclass(frozen=True, slots=True)
class ResumeQueue:
    name: str


Command: TypeAlias = (
    Add
    | ScheduleJob
    | Run
    | AwaitResult
    | Lease
    | Complete
    | Fail
    | Delete
    | InspectServer
    | InspectQueues
    | InspectQueue
    | InspectJobs
    | InspectScheduledJobs
    | InspectJob
    | InspectDeadJobs
    | InspectPausedQueues
    | Requeue
    | PauseQueue
    | ResumeQueue
)


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line that is wrong in itself: nothing to decide, only to answer."""

    complaint: Complaint


@dataclass(frozen=True, slots=True)
class Hangup:
    """The bytes no longer make sense as lines: close, and read nothing more."""


Event: TypeAlias = Command | RefusedLine | Hangup | Foreign | Auth | AuthRequired
