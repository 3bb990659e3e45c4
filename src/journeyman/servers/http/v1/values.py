"""The types of the routes of version 1: requests are checked by them, and answers encoded.

See routes.py. A list has ``next``: the cursor of the next page, or null on the last one.
"""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType

from journeyman.protocols.workq import commands
from journeyman.protocols.workq.replies import JobView, QueueView, WorkerView
from journeyman.servers.http.fields import At, Cursor, Moment, Text, word_of

Limit = Annotated[int, Meta(ge=1, le=500, description="how many at most")]
Prefix = Annotated[Text, Meta(description="those whose name or id begins with this")]
OfQueue = Annotated[Text, Meta(description="those of this queue")]
WaitMs = Annotated[int, Meta(ge=0, le=30_000, description="how long to wait, in milliseconds")]
STATE_WORDS = {
    "running": "leased",
    "done": "completed",
}  # from words for people to those of the protocols
WorkState = Annotated[
    str,
    word_of(
        *("ready", "scheduled", "waiting", "leased", "running"),
        *("completed", "done", "dead", "cancelled"),
    ),
    Meta(description="running and leased are the same, and so are done and completed"),
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
    prefix: Prefix = ""
    status: (
        Annotated[
            str,
            word_of("planned", "triggered", "executed", "failed"),
            Meta(description="jobs with this status"),
        ]
        | None
    ) = None
    text: Annotated[Text, Meta(description="in an id")] = ""
    order: Annotated[
        str, word_of("time", "-time"), Meta(description="the earliest or the latest first")
    ] = "time"
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
    prefix: Prefix = ""
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
    prefix: Prefix = ""
    success: Annotated[bool, Meta(description="how the run ended")] | None = None
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
    count: Annotated[int, Meta(ge=1, le=100, description="how many firings")] = 5


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
    """``looked`` jobs were looked at for this page, down to those created at ``looked_until_ns``;
    null: all that there are. If there is a ``next``, the search goes on from there."""

    jobs: list[JobView]
    next: str | None
    looked: int
    looked_until_ns: int | None


class WorkFacets(Struct):
    """Counts of jobs. ``states`` and ``queues`` (those with most jobs) are of this moment and
    exact; ``workers`` have so many running jobs. ``tasks`` and ``errors`` count attempts that
    started, and failures, in the last day; null: figures over time are off."""

    states: dict[str, int]
    queues: dict[str, int]
    other_queues: int
    workers: dict[str, int]
    tasks: dict[str, int] | None
    errors: dict[str, int] | None


class FacetsQuery(Struct):
    queue: OfQueue = ""


class WorkJobsQuery(Struct):
    queue: OfQueue = ""
    state: WorkState | None = None
    text: Annotated[
        Text,
        Meta(
            description="in an id or a payload, or in the call of a task as it is shown",
            examples=["acme.charge(4634"],
        ),
    ] = ""
    error: Annotated[Text, Meta(description="in the result of a dead job")] = ""
    task: Annotated[Text, Meta(description="the task that the payload calls")] = ""
    sort: Annotated[
        str,
        word_of("-created", "-run", "-wait"),
        Meta(description="the newest first; or the longest of those looked at for the page"),
    ] = "-created"
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
            word_of("finished", "different", "unstarted"),
            Meta(
                description="a job of this id that has ended goes; or only one of another payload; "
                "or also one that no worker has begun",
            ),
        ]
        | None
    ) = None
    unique_for_ms: Annotated[
        int,
        Meta(
            ge=0, le=commands.MAX_TTL_MS, description="a completed one goes so long after its add"
        ),
    ] = 0
    unless: Annotated[
        str | None, Meta(description="with replace unstarted: refused if this job has not begun")
    ] = None
    after: Annotated[
        list[str], Meta(max_length=commands.MAX_PARENTS, description="ids of the jobs it waits for")
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
    wait_ms: WaitMs = 0
    max: Annotated[
        int, Meta(ge=1, le=commands.MAX_LEASED, description="that many jobs at most")
    ] = 1
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
    wait_ms: WaitMs = 30_000


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
    """The progress of a job from its worker; fields that are left out stay as they were."""

    done: float | None = None
    total: float | None = None
    note: Annotated[str, Meta(max_length=1000)] | None = None
    log: Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(max_length=200)] = []


class StepBody(Body):
    """A step that the task of a leased job has done."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    attempt: Annotated[int, Meta(ge=1, le=2**32 - 1, description="only if no other one has begun")]
    number: Annotated[
        int, Meta(ge=1, le=2**32 - 1, description="1 is the first step of this name")
    ] = 1
    value: str = ""
    value_base64: str | None = None


class StepsQuery(MomentQuery):
    attempt: Annotated[
        int, Meta(ge=0, le=2**32 - 1, description="only if this attempt has the lease")
    ] = 0


class JobStep(Struct):
    name: str
    number: int
    value: bytes
    done_ns: int


class JobSteps(Struct):
    """The recorded steps of a job, in their order."""

    steps: list[JobStep]


class ForkBody(Body):
    """The step from which a new job goes on."""

    step: Annotated[str, Meta(min_length=1, max_length=255)]
    number: Annotated[
        int, Meta(ge=1, le=2**32 - 1, description="1 is the first step of this name")
    ] = 1
    id: Annotated[str | None, Meta(description="of the new job: a UUID of version 4")] = None


class ParkBody(Body):
    """The wait of a leased job."""

    wait: commands.JobWait
    attempt: Annotated[int, Meta(ge=1, le=2**32 - 1, description="only if no other one has begun")]


class EventBody(Body):
    value: str = ""
    value_base64: str | None = None


class EventAnswer(Struct):
    name: str
    value: bytes
    set_ns: int


class TouchBody(Body):
    ttr_ms: TtrMs | None = None


class ResultQuery(Struct):
    wait_ms: WaitMs = 0


class ResultAnswer(Struct):
    job_id: bytes
    success: bool
    result: bytes


class BulkBody(Body):
    """These jobs; or those of a queue and state that match, at most ``limit``.

    Only dead jobs are requeued. Of a queue without a state, jobs in any state are tried.
    """

    ids: Annotated[list[str], Meta(max_length=1_000)] = []
    queue: str = ""
    state: WorkState | None = None
    error: Text = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000

    def __post_init__(self) -> None:
        self.state = STATE_WORDS.get(self.state or "", self.state)


class BulkAnswer(Struct):
    done: int
    refused: list[str]


Rate = Annotated[int, Meta(ge=0, le=commands.MAX_RATE)]
RatePeriodMs = Annotated[int, Meta(ge=0, le=commands.MAX_RATE_PERIOD_MS)]
Concurrency = Annotated[int, Meta(ge=0, le=commands.MAX_CONCURRENCY)]


Weight = Annotated[int, Meta(ge=1, le=commands.MAX_WEIGHT)]
Weights = Annotated[
    dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,255}$(?!\n)")], Weight],
    Meta(max_length=commands.MAX_WEIGHTS, description="jobs in one turn of a key of a fair queue"),
]


class QueueLimitsBody(Body):
    """Limits that are not named stay as they are; a rate is named with its period, or is 0."""

    rate: Rate | UnsetType = UNSET
    per_ms: RatePeriodMs | UnsetType = UNSET
    concurrency: Concurrency | UnsetType = UNSET
    key_concurrency: Concurrency | UnsetType = UNSET
    key_rate: Rate | UnsetType = UNSET
    key_per_ms: RatePeriodMs | UnsetType = UNSET
    fair: Annotated[bool, Meta(description="keys take turns")] | UnsetType = UNSET
    weights: Weights | UnsetType = UNSET


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
    begin: Annotated[Text, Meta(description="the earlier time")]
    until: Annotated[Text, Meta(description="the later time")]


# -- the log --


class LogFile(Struct):
    """A file of a log. Live, dead and damaged are as of the last verification; null without one."""

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
    """A record where it stands; ``bytes_hex`` are its first raw bytes, 4096 at most.

    ``worker``, of a start-attempt of the work queue: who leased the job, if the ledger says so.
    """

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
    worker: str | None = None


class LiveRecord(Struct):
    """A record as it became durable; the time is that of the record, or of the server."""

    service: str
    kind: str
    key: str
    text: str
    time_ns: int
    queue: str | None


class KeyQuery(Struct):
    id: Annotated[Text, Meta(description="the id of the job")]


class LogRecords(Struct):
    records: list[LogRecord]


class RecordsQuery(Struct):
    service: Annotated[
        str, word_of("schedule", "work", "fan-out"), Meta(description="whose log")
    ] = "work"
    limit: Limit = 50
    at: Annotated[Text, Meta(description="the last ones by this moment")] = ""


class ServiceBody(Body):
    service: Annotated[str, word_of("schedule", "work")]


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
