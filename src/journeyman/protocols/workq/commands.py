"""The commands of the workq protocol as values, one type per command.

    add ID NAME TTR TTL SIZE [flags]  + payload              Add
    schedule ID NAME TTR TTL TIME SIZE [flags]  + payload    ScheduleJob
    run ID NAME TTR WAIT SIZE [-priority=N]  + payload       RunJob
    result ID WAIT                                           AwaitResult
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
    inspect token                                            InspectToken
    requeue ID                                               Requeue
    cancel ID                                                Cancel
    worker NAME WAIT SIZE  + facts                           AwaitOrders
    progress ID SIZE  + notes                                NoteProgress
    inspect progress ID                                      InspectProgress
    step ID NAME NUMBER SIZE -attempt=N  + value             RecordStep
    inspect steps ID [-attempt=N]                            InspectSteps
    park ID SIZE -attempt=N  + what it waits for             Park
    emit NAME SIZE  + value                                  Emit
    inspect event NAME                                       InspectEvent
    fork ID NEW-ID NAME NUMBER                               Fork
    pause NAME | resume NAME                                 PauseQueue, ResumeQueue
    -retry-delay=MS on add and schedule                      their ``retry_delay_ms``
    auth SECRET, as the first line of a connection           Auth
    -key= -replace= -unique-for= -after= -even-failed= -then= -follows= on add  their ``options``
    lease NAME... WAIT [-max=N] [-worker=NAME]               Lease with ``max_jobs``, ``worker``
    touch ID [TTR]                                           Touch
    fail ID SIZE [-delay=MS] [-final=1]  + result            Fail with ``delay_ms``, ``is_final``
    fail ID SIZE -release=1 [-delay=MS]  + result            Fail with ``is_release``
    requeue-all NAME LIMIT                                   RequeueAll
    inspect queues OFFSET LIMIT -counts=1                    InspectQueues ``with_counts``
    limit NAME [-rate=] [-concurrency=] [-key-rate=] [-key-concurrency=] [-fair=] [-weights=]
                                                             SetLimits

Three more things can come out of a connection: ``RefusedLine`` (it only has to be answered),
``HangUp`` (close without an answer; what was asked before it is still answered) and ``Foreign``
(the same, because the client speaks HTTP). With tokens, anything but ``Auth`` in the
first line is ``AuthRequired``.

Everything that needs neither the state nor the time has been checked: the engine only decides
whether the TTL has already ended (``Invalid Time``) and whether the id is taken. An id
is 16 raw bytes, of a UUID version 4 where a job is made or finished, and any where one is looked
for: a log of the original may hold others, and those must be seen and deleted.

Jobs are named tuples, because they have many fields and one is made for every job.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple, TypeAlias

from msgspec import Struct

from journeyman.formats.workq import MAX_PAYLOAD_BYTES as MAX_PAYLOAD_BYTES
from journeyman.protocols import Auth, AuthRequired, Foreign

MAX_NAME_BYTES = 255
MAX_TTR_MS = 86_400_000  # a day
MAX_TTL_MS = 2_592_000_000  # thirty days
MAX_WAIT_MS = 86_400_000
MAX_RETRY_DELAY_MS = 86_400_000
MAX_COUNT = 255  # the limit for max-attempts and for max-fails
MIN_PRIORITY, MAX_PRIORITY = -(2**31), 2**31 - 1
MAX_CURSOR_OFFSET = 2**32 - 1
MAX_LISTED = 100
MAX_LEASED = 100  # jobs of one lease
MAX_REQUEUED = 1000  # jobs of one requeue-all
MAX_PARENTS = 1000  # jobs that one job can wait for
MAX_CHILD_BYTES = 512 * 1024  # payload of such a job: it waits in a record of the ledger
MAX_RATE = 10_000
MAX_RATE_PERIOD_MS = 86_400_000
MAX_CONCURRENCY = 1_000_000
MAX_WEIGHT = 1_000
MAX_WEIGHTS = 100  # keys of a queue that have one
MAX_FACTS_BYTES = 2048  # a worker's description of itself
MAX_NOTES_BYTES = 16 * 1024  # one message of a worker about a job
MAX_SLEEP_MS = 100 * 366 * 86_400_000
MAX_WAIT_BYTES = 64 * 1024  # the longest description of a wait
MAX_STEP_BYTES = 750 * 1024  # value of a step: as base64 it fits into a record of the ledger


class Complaint(StrEnum):
    """The text after ``-CLIENT-ERROR``. From TIME on they depend on the state, not on the line."""

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
    KEY = "Invalid Key"  # new, and so are the next fifteen
    WORKER = "Invalid Worker"
    FACTS = "Invalid Facts"
    NOTES = "Invalid Notes"
    DELAY = "Invalid Delay"
    ATTEMPT = "Invalid Attempt"
    MAX_JOBS = "Invalid Max"
    REPLACE = "Invalid Replace"
    PARENTS = "Invalid Parents"
    EVEN_FAILED = "Invalid Even Failed"
    THEN = "Invalid Then"
    FOLLOWS = "Invalid Follows"
    UNIQUE_FOR = "Invalid Unique For"
    RATE = "Invalid Rate"
    CONCURRENCY = "Invalid Concurrency"
    UNLESS = "Invalid Unless"
    FAIR = "Invalid Fair or Weights"
    STEP_NUMBER = "Invalid Step Number"  # new
    PARK = "Invalid Park"  # new
    TIME = "Invalid Time"
    DUPLICATE_JOB = "Duplicate job"
    DUPLICATE_RESULT = "Duplicate result"
    NOT_DEAD = "Job is not dead"  # new, of requeue
    NOT_LEASED = "Job is not leased"  # new, of touch, and of fail with an attempt
    LEASED_AGAIN = "Job was leased again"  # new, of complete and fail
    CANCELLED = "Job was cancelled"  # new, of touch, and of -follows
    NO_PARENT = "Unknown parent"  # new, of -after
    TOO_MANY_CHILDREN = "Too many jobs wait for others"  # new, of -after
    UNKNOWN_STEP = "Unknown step"  # new, of fork
    TOO_MANY_STEPS = "Too many steps, or too large together"  # new, of step
    HAS_MAX_ATTEMPTS = "Job has max-attempts"  # new, of park
    EVENT_DIFFERS = "Event has another value"  # new, of emit
    TOO_MANY_EVENTS = "Too many events, or too large together"  # new, of emit
    TOO_MANY_LIMITS = "Too many queues have limits"  # new, of limit
    TOO_MANY_WORKERS = "Too many workers"  # new, of worker
    NO_LEDGER = "Not available without a ledger"  # new
    AUTH_REQUIRED = "Authentication required"  # new, and so is the next
    AUTH_FAILED = "Authentication failed"
    SCOPE = "Insufficient namespace scope"  # new, of a token
    ID_TAKEN = "ID is taken"  # new, of a token: a job that it may not see has the id


class AddOptions(NamedTuple):
    """Options of an add that the original does not have."""

    key: str = ""  # jobs of the same key share a limit of their queue
    replaces_finished: bool = False  # a completed or failed job of the same id makes room
    after: tuple[bytes, ...] = ()  # ids of the jobs it waits for
    even_failed: bool = False  # the job is added even if they fail
    unique_ms: int = 0  # a completed one makes room only so long after it was added
    unless_same: bool = False  # one of the same payload makes no room: it is this add, sent again
    has_followers: bool = False  # its worker adds jobs that follow it
    follows: bytes = b""  # the job that it follows: what that one's sender may do counts
    namespace: str = ""  # that of the token that added it; the server fills it in
    begun_ns: int = 0  # when the steps of a requeued job were begun; no client sets it
    replaces_unstarted: bool = False  # one of the same id that no worker has begun makes room too
    first_ns: int = 0  # when a requeued job was first added; no client sets it
    unless: bytes = b""  # refused if no worker has begun the job of this id


class Limits(Struct, frozen=True):
    """How many jobs of a queue may start or run; 0: no limit."""

    rate: int = 0  # starts within ``per_ms``
    per_ms: int = 0
    concurrency: int = 0  # leased at the same time
    key_concurrency: int = 0  # the same, of each key
    key_rate: int = 0  # starts of each key within ``key_per_ms``
    key_per_ms: int = 0
    fair: bool = False  # keys take turns
    weights: dict[str, int] = {}  # jobs in one turn of a key; not to be changed


NO_LIMITS = Limits()


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
    options: AddOptions | None = None


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
    options: AddOptions | None = None


class RunJob(NamedTuple):
    """A foreground job: not recorded, and dropped when its client has its answer."""

    job_id: bytes
    name: str
    ttr_ms: int
    wait_ms: int
    payload: bytes
    priority: int = 0


class AwaitResult(Struct, frozen=True):
    job_id: bytes
    wait_ms: int


class Lease(Struct, frozen=True):
    """A job of one of these queues. A name may come twice, and then counts once.

    ``max_jobs`` 0: one job, answered as the original does; otherwise up to so many.
    """

    names: tuple[str, ...]  # at least one
    wait_ms: int
    max_jobs: int = 0
    worker: str = ""


class WorkerFacts(Struct, frozen=True, omit_defaults=True):
    """New: what a worker says about itself, for people who look at workers."""

    host: str = ""
    pid: int = 0
    version: str = ""
    queues: tuple[str, ...] = ()
    slots: int = 0  # jobs that it runs at once
    load: float | None = None  # load of its machine over the last minute
    memory: int | None = None  # bytes that its process uses


class WorkerNotes(Struct, frozen=True):
    """New: how far the worker of a job has come, and lines for its log. None: as before."""

    done: float | None = None
    total: float | None = None
    note: str | None = None
    log: tuple[str, ...] = ()


class NoteProgress(Struct, frozen=True):
    """New: the worker of a leased job says how far it has come."""

    job_id: bytes
    notes: WorkerNotes


class InspectProgress(Struct, frozen=True):
    """New: what the workers of a job have said."""

    job_id: bytes


class RecordStep(Struct, frozen=True):
    """New: the task of a leased job has done a step. ``attempt``: only if no other has begun."""

    job_id: bytes
    name: str
    number: int  # 1 is the first step of this name
    value: bytes
    attempt: int
    namespace: str = ""  # that of the client's token; the server fills it in


class InspectSteps(Struct, frozen=True):
    """New: the recorded steps of a job. ``attempt``: only for this one, if it has the lease."""

    job_id: bytes
    attempt: int = 0


class JobWait(Struct, frozen=True, omit_defaults=True):
    """A wait of a parked job: it ends when the first of these comes, and is a step of the job."""

    step: str
    number: int = 1
    until_ns: int = 0  # 0: for ever
    event: str = ""
    jobs: tuple[str, ...] = ()  # ids; until all have ended
    within_ms: int = 0  # the same as a length of time, in a request


class Park(Struct, frozen=True):
    """New: the task of a leased job waits, without a lease. ``attempt`` as of RecordStep."""

    job_id: bytes
    wait: JobWait
    attempt: int


class Emit(Struct, frozen=True):
    """New: an event has happened, and has this value for good."""

    name: str
    value: bytes
    namespace: str = ""  # that of the client's token; the server fills it in


class InspectEvent(Struct, frozen=True):
    name: str


class Fork(Struct, frozen=True):
    """New: a job like this one is added, and goes on from a step that this one has recorded."""

    job_id: bytes
    new_id: bytes
    name: str
    number: int = 1  # 1 is the first step of this name
    namespace: str = ""  # that of the client's token; the server fills it in


class AwaitOrders(Struct, frozen=True):
    """New: a worker says what it is, and waits until others end a job that it has leased."""

    worker: str
    wait_ms: int
    facts: WorkerFacts
    prefix: str = ""  # the namespace of its token; the server fills it in


class Complete(Struct, frozen=True):
    """``attempt``: only if no other one has begun since; 0: in any case."""

    job_id: bytes
    result: bytes
    attempt: int = 0


class Fail(Struct, frozen=True):
    """``delay_ms``: instead of the job's own delay before a retry. ``is_final``: no retry.
    ``is_release``: the lease ends as if its time were over, which is no failure.

    ``attempt``: as of Complete, and only while it has the lease, unless ``is_final``."""

    job_id: bytes
    result: bytes
    delay_ms: int | None = None
    attempt: int = 0
    is_final: bool = False
    is_release: bool = False


class Touch(Struct, frozen=True):
    """The lease ends ``ttr_ms`` from now; None: the job's own TTR."""

    job_id: bytes
    ttr_ms: int | None = None


class Delete(Struct, frozen=True):
    job_id: bytes


class Cancel(Struct, frozen=True):
    """New: an unfinished job fails for good; its worker stops it if it is leased."""

    job_id: bytes


class InspectToken(Struct, frozen=True):
    """New: what the client's token brings, as far as the client must know it."""


class InspectServer(Struct, frozen=True):
    pass


class InspectQueues(Struct, frozen=True):
    """A list of queues by name, in the order of their bytes, of those that begin with
    ``prefix``."""

    offset: int
    limit: int
    prefix: str = ""
    with_counts: bool = False  # also of jobs that are leased or dead, and whether it is paused


class InspectQueue(Struct, frozen=True):
    name: str  # any text: what no queue can be called is not found


class InspectJobs(Struct, frozen=True):
    """The ready ones, in the order in which they will be leased."""

    name: str
    offset: int
    limit: int


class InspectScheduledJobs(Struct, frozen=True):
    name: str
    offset: int
    limit: int


class InspectJob(Struct, frozen=True):
    job_id: bytes


class InspectDeadJobs(Struct, frozen=True):
    """The failed ones: out of attempts, or of fails."""

    name: str
    offset: int
    limit: int


class InspectPausedQueues(Struct, frozen=True):
    offset: int
    limit: int
    prefix: str = ""


class Requeue(Struct, frozen=True):
    """Give a dead job a new life, with no attempts and no fails counted."""

    job_id: bytes


class RequeueAll(Struct, frozen=True):
    """A requeue of up to ``limit`` dead jobs of a queue."""

    name: str
    limit: int


class SetLimits(Struct, frozen=True):
    """Instead of all limits that the queue had but those in ``kept``. It need not exist yet."""

    name: str
    limits: Limits
    kept: frozenset[str] = frozenset()  # fields of Limits


class PauseQueue(Struct, frozen=True):
    """Lease nothing from this queue until it is resumed. It need not exist yet."""

    name: str


class ResumeQueue(Struct, frozen=True):
    name: str


Command: TypeAlias = (
    Add
    | ScheduleJob
    | RunJob
    | AwaitResult
    | AwaitOrders
    | NoteProgress
    | InspectProgress
    | RecordStep
    | InspectSteps
    | Park
    | Emit
    | InspectEvent
    | Fork
    | Lease
    | Complete
    | Fail
    | Delete
    | Cancel
    | InspectServer
    | InspectToken
    | InspectQueues
    | InspectQueue
    | InspectJobs
    | InspectScheduledJobs
    | InspectJob
    | InspectDeadJobs
    | InspectPausedQueues
    | Requeue
    | RequeueAll
    | SetLimits
    | Touch
    | PauseQueue
    | ResumeQueue
)


class RefusedLine(Struct, frozen=True):
    """A line that is wrong in itself: nothing to decide, only to answer."""

    complaint: Complaint


class HangUp(Struct, frozen=True):
    """The bytes no longer make sense as lines: close, and read nothing more."""


Event: TypeAlias = Command | RefusedLine | HangUp | Foreign | Auth | AuthRequired
