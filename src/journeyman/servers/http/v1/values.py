"""What the routes of version 1 take and give, as types: checked, documented and encoded by them.

See routes.py. A list has ``next``: the cursor of the next page, or null on the last one.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from journeyman.protocols.workq.commands import (
    MAX_CONCURRENCY,
    MAX_LEASED,
    MAX_PARENTS,
    MAX_RATE,
    MAX_RATE_PERIOD_MS,
    MAX_TTL_MS,
)
from journeyman.protocols.workq.replies import JobView, QueueView, WorkerView
from journeyman.servers.http.routes import At, Cursor, Moment, Text

Limit = Annotated[int, Meta(ge=1, le=500)]
STATE_WORDS = {"running": "leased", "done": "completed"}  # of people -> of the protocols
WorkState = Annotated[
    str,
    Meta(
        pattern=r"^(ready|scheduled|leased|running|completed|done|dead|cancelled)$(?!\n)",
        description="running and leased are the same, and so are done and completed",
    ),
]
TtrMs = Annotated[int, Meta(ge=1, le=86_400_000)]
RetryDelay = Annotated[
    int, Meta(ge=0, le=86_400_000, description="before the retry, instead of the job's own")
]
# A $ alone lets a line end follow in Python, and such a name would break replies of other ports.
QueueName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,255}$(?!\n)")]
NameOrNone = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{0,255}$(?!\n)")]


class Body(Struct, forbid_unknown_fields=True):
    """A body; a field that is not known is refused, because it may be a typing error."""


# -- the schedule --


class ScheduledJob(Struct):
    id: str
    status: str
    execution_ns: int


class ScheduledJobs(Struct):
    jobs: list[ScheduledJob]
    next: str | None


class ScheduledJobsQuery(Struct):
    prefix: Text = ""
    status: Annotated[str, Meta(pattern=r"^(planned|triggered|executed|failed)$(?!\n)")] | None = (
        None
    )
    text: Text = ""
    order: Annotated[str, Meta(pattern=r"^(time|-time)$(?!\n)")] = "time"
    limit: Limit = 50
    cursor: Cursor = ""
    at: At = ""


class SetJob(Body):
    execution: Moment


class Rule(Struct):
    """``options`` are those of docs/runners.md: on_failure, timeout and others."""

    id: str
    pattern: str
    runner: str
    args: list[str]
    options: dict[str, Any] = {}


class Rules(Struct):
    rules: list[Rule]
    next: str | None


class CursorQuery(Struct):
    limit: Limit = 50
    cursor: Cursor = ""


class NamesQuery(Struct):
    prefix: Text = ""
    limit: Limit = 50
    cursor: Cursor = ""


class NamesAtQuery(NamesQuery):
    at: At = ""


class MomentQuery(Struct):
    at: At = ""


class SetRuleBody(Body):
    pattern: str
    runner: str
    args: list[str] = []
    options: dict[str, str | list[str]] = {}


class Run(Struct):
    id: str
    execution_ns: int
    started_ns: int
    duration_ms: float
    success: bool
    reason: str
    output: str


class RunsPage(Struct):
    runs: list[Run]
    next: str | None


class RunsQuery(Struct):
    prefix: Text = ""
    success: bool | None = None
    limit: Limit = 50
    cursor: Cursor = ""
    at: Annotated[Text, Meta(description="runs that had started by this moment")] = ""
    since: Annotated[Text, Meta(description="runs that have started since this moment")] = ""


# -- timetables --


class TimetableBody(Body, rename={"begin": "from"}):
    """One of cron, every and at; see docs/timetables.md for the rest."""

    cron: Text | None = None
    every: Text | None = None
    at: Text | None = None
    tz: Text | None = None
    anchor: Text | None = None
    begin: Text | None = None
    until: Text | None = None
    calendar: Text | None = None
    exclude: list[Text] = []
    jitter: Text | None = None
    catch_up: Text | None = None
    catch_up_limit: int | None = None
    grace: Text | None = None
    overlap: Text | None = None
    retries: int | None = None
    backoff: Text | None = None
    expect: Text | None = None
    check_in: Text | None = None
    on_failure: list[Text] = []
    timeout: Text | None = None
    directory: Text | None = None
    environment: list[Text] = []
    user: Text | None = None
    runner: list[str] = []


class Timetable(Struct):
    """``next`` has the jitter in it; ``next_local`` and ``last_local`` are times of its zone."""

    id: str
    state: str
    fields: dict[str, Any]
    words: str
    next_ns: int | None
    next_local: str
    last_local: str
    running: int
    waiting: int


class Timetables(Struct):
    timetables: list[Timetable]
    next: str | None


class CountQuery(Struct):
    count: Annotated[int, Meta(ge=1, le=100)] = 5


class Firing(Struct):
    time_ns: int
    local: str
    warning: str


class Firings(Struct):
    firings: list[Firing]


class RunPlanned(Struct):
    job: str


class BackfillBody(Body, rename={"begin": "from"}):
    begin: Moment
    until: Moment
    preview: bool = True


class BackfillRow(Struct):
    job: str
    execution_ns: int
    status: str | None
    runs: bool


class BackfillAnswer(Struct):
    preview: bool
    rows: list[BackfillRow]


# -- the work queue --


class WorkJobs(Struct):
    jobs: list[JobView]
    next: str | None


class WorkJobsQuery(Struct):
    queue: Text = ""
    state: WorkState | None = None
    text: Annotated[Text, Meta(description="in an id or a payload")] = ""
    error: Annotated[Text, Meta(description="in the result of a dead job")] = ""
    since: Annotated[Text, Meta(description="created at this moment or later")] = ""
    limit: Limit = 50
    cursor: Cursor = ""
    at: At = ""

    def __post_init__(self) -> None:
        self.state = STATE_WORDS.get(self.state or "", self.state)


class JobBody(Body):
    queue: QueueName
    payload: str = ""
    payload_base64: str | None = None
    id: str | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0


class AddJob(JobBody):
    ttr_ms: TtrMs = 60_000
    ttl_ms: Annotated[int, Meta(ge=1, le=2_592_000_000)] = 86_400_000
    max_attempts: Annotated[int, Meta(ge=0, le=255)] = 0
    max_fails: Annotated[int, Meta(ge=0, le=255)] = 0
    retry_delay_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    at: Moment | None = None
    key: Annotated[NameOrNone, Meta(description="for limits of jobs with the same key")] = ""
    replace: (
        Annotated[
            str,
            Meta(
                pattern=r"^(finished|different)$(?!\n)",
                description="a job of this id that has ended goes; or only one of another payload",
            ),
        ]
        | None
    ) = None
    unique_for_ms: Annotated[
        int, Meta(ge=0, le=MAX_TTL_MS, description="a completed one goes so long after its add")
    ] = 0
    after: Annotated[
        list[str], Meta(max_length=MAX_PARENTS, description="ids of the jobs it waits for")
    ] = []
    even_failed: Annotated[bool, Meta(description="it is added even if those fail")] = False
    has_followers: Annotated[
        bool, Meta(description="its worker adds jobs that follow it, with its id as follows")
    ] = False
    follows: Annotated[
        str | None, Meta(description="id of the job before it: its sender must be allowed to add")
    ] = None


class Added(Struct):
    id: str
    is_new: bool


class LeaseBody(Body):
    queues: Annotated[list[QueueName], Meta(min_length=1, max_length=100)]
    wait_ms: Annotated[int, Meta(ge=0, le=30_000)] = 0
    max: Annotated[int, Meta(ge=1, le=MAX_LEASED, description="that many jobs at most")] = 1
    worker: Annotated[NameOrNone, Meta(description="a name, shown with the job")] = ""


class LeasedJob(Struct):
    """``attempt`` 1 is the first; ``fails`` are those before it."""

    job_id: bytes
    queue: str
    ttr_ms: int
    attempt: int
    fails: int
    max_fails: int
    payload: bytes
    given_back: int = 0  # attempts before it that ended so


class LeaseAnswer(Struct):
    """``job`` is the first of ``jobs``."""

    job: LeasedJob | None
    jobs: list[LeasedJob]


class RunBody(JobBody):
    ttr_ms: TtrMs = 30_000
    wait_ms: Annotated[int, Meta(ge=0, le=30_000)] = 30_000


class FinishBody(Body):
    result: str = ""
    result_base64: str | None = None
    attempt: (
        Annotated[int, Meta(ge=1, le=2**32 - 1, description="only if no other one has begun since")]
        | None
    ) = None


class FailBody(FinishBody):
    delay_ms: RetryDelay | None = None
    final: Annotated[bool, Meta(description="no retry, whatever is left")] = False
    release: Annotated[bool, Meta(description="give the job back: no failure counts")] = False


class ProgressBody(Body):
    """What the worker of a job says about it; what is left out stays as it was."""

    done: float | None = None
    total: float | None = None
    note: Annotated[str, Meta(max_length=1000)] | None = None
    log: Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(max_length=200)] = []


class TouchBody(Body):
    ttr_ms: TtrMs | None = None


class ResultQuery(Struct):
    wait_ms: Annotated[int, Meta(ge=0, le=30_000)] = 0


class ResultAnswer(Struct):
    job_id: bytes
    success: bool
    result: bytes


class BulkBody(Body):
    """These jobs; or those of a queue and state that match, at most ``limit``."""

    ids: Annotated[list[str], Meta(max_length=1_000)] = []
    queue: str = ""
    error: Text = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000


class BulkAnswer(Struct):
    done: int
    refused: list[str]


Rate = Annotated[int, Meta(ge=0, le=MAX_RATE)]
RatePeriodMs = Annotated[int, Meta(ge=0, le=MAX_RATE_PERIOD_MS)]
Concurrency = Annotated[int, Meta(ge=0, le=MAX_CONCURRENCY)]


class QueueLimitsBody(Body):
    """Limits that are not named stay as they are; a rate is named with its period, or is 0."""

    rate: Rate | UnsetType = UNSET
    per_ms: RatePeriodMs | UnsetType = UNSET
    concurrency: Concurrency | UnsetType = UNSET
    key_concurrency: Concurrency | UnsetType = UNSET
    key_rate: Rate | UnsetType = UNSET
    key_per_ms: RatePeriodMs | UnsetType = UNSET


class WorkQueues(Struct):
    queues: list[QueueView]
    next: str | None


class Workers(Struct):
    workers: list[WorkerView]
    next: str | None


class PausedBody(Body):
    paused: bool


# -- the past --


class AtQuery(Struct):
    at: At


class SpanQuery(Struct, rename={"begin": "from"}):
    begin: Text
    until: Text


# -- the log --


class LogFile(Struct):
    """What is live, dead and damaged is known from the last verification; null: none yet."""

    service: str
    name: str
    path: str
    bytes: int
    modified_ns: int
    live_bytes: int | None = None
    dead_bytes: int | None = None
    damaged_bytes: int | None = None
    verified_ns: int | None = None


class LogFiles(Struct):
    files: list[LogFile]
    next: str | None


class LogRecord(Struct, omit_defaults=True):
    """A record where it stands; ``bytes_hex`` are its first raw bytes, 4096 at most."""

    service: str
    file: str
    offset: int
    length: int
    kind: str
    key: str
    text: str
    bytes_hex: str
    time_ns: int | None = None
    queue: str | None = None


class LiveRecord(Struct):
    """A record as it became durable; the time is that of the record, or of the server."""

    service: str
    kind: str
    key: str
    text: str
    time_ns: int
    queue: str | None


class KeyQuery(Struct):
    id: Text


class LogRecords(Struct):
    records: list[LogRecord]


class RecordsQuery(Struct):
    service: Annotated[str, Meta(pattern=r"^(schedule|work|fan-out)$(?!\n)")] = "work"
    limit: Limit = 50
    at: Annotated[Text, Meta(description="the last ones by this moment")] = ""


class ServiceBody(Body):
    service: Annotated[str, Meta(pattern=r"^(schedule|work)$(?!\n)")]


class VerifyAnswer(Struct):
    clean: bool
    reports: list[Any]


class UpkeepAnswer(Struct):
    service: str
    detail: str


# -- the server --


class Health(Struct):
    status: str


class Readiness(Struct):
    ready: bool
    services: dict[str, str]


class SettingView(Struct):
    name: str
    value: str | None
    origin: str
    meaning: str


class SettingsAnswer(Struct):
    settings: list[SettingView]


class TokenSeen(Struct):
    name: str
    namespace: str
    may_write: bool
    runners: list[str]


class OwnToken(TokenSeen):
    """``salt``: for ids that a client derives, in hexadecimal digits; see inspect token."""

    salt: str | None = None


class TokensSeen(Struct):
    required: bool
    tokens: list[TokenSeen]


class Sync(Struct):
    """The last sync of a log since the server started."""

    time_ns: int
    took_ms: float


class Figures(Struct):
    """The figures of the overview. None: the service is off."""

    time_ns: int
    uptime_s: float
    version: str
    connections: int
    schedule: dict[str, int]
    work: dict[str, int] | None
    fan_out: dict[str, int] | None
    disk: dict[str, dict[str, float]]
    rates: dict[str, float]
    syncs: dict[str, Sync]
