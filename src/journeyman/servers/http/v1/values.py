"""The types of the routes of version 1: requests are checked by them, and answers encoded.

See routes.py. A list has ``next``: the cursor of the next page, or null on the last one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from journeyman.formats.ztick.codec import RUNNER_WORDS
from journeyman.protocols.workq import commands
from journeyman.protocols.workq.replies import JobView, QueueView, WorkerView
from journeyman.servers.http import fields
from journeyman.timetables import timetable

Limit = Annotated[int, Meta(ge=1, le=500, description="how many at most")]
Prefix = Annotated[fields.Text, Meta(description="those whose name or id begins with this")]
OfQueue = Annotated[fields.Text, Meta(description="those of this queue")]
WaitMs = Annotated[int, Meta(ge=0, le=30_000, description="how long to wait, in milliseconds")]
STATE_WORDS = {
    "running": "leased",
    "done": "completed",
}  # from words for people to those of the protocols
WorkState = Annotated[
    str,
    fields.word_of(
        *("ready", "scheduled", "waiting", "leased", "running"),
        *("completed", "done", "dead", "cancelled"),
    ),
    Meta(description="running and leased are the same, and so are done and completed"),
]
TtrMs = Annotated[int, Meta(ge=1, le=86_400_000)]
RetryDelay = Annotated[
    int, Meta(ge=0, le=86_400_000, description="before the retry, instead of the job's own")
]
QUEUE_NAME: Final = "[A-Za-z0-9_.-]{1,255}"
QueueName = Annotated[str, Meta(pattern=fields.whole_text(QUEUE_NAME))]
NameOrNone = Annotated[str, Meta(pattern=fields.whole_text("[A-Za-z0-9_.-]{0,255}"))]
STEP_NAME: Final = f"[A-Za-z0-9_.:/@-]{{1,{commands.MAX_NAME_BYTES}}}"
StepName = Annotated[str, fields.documented(STEP_NAME)]
_HEX: Final = "[0-9A-Fa-f]"
JOB_ID: Final = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_NEW_ID: Final = f"{_HEX}{{8}}-{_HEX}{{4}}-4{_HEX}{{3}}-[89ABab]{_HEX}{{3}}-{_HEX}{{12}}"
JobId = Annotated[str, fields.documented(JOB_ID, format="uuid")]
NewJobId = Annotated[str, fields.documented(_NEW_ID, format="uuid")]
_TEXT: Final = {"type": "string"}
_SOME: Final = {"minItems": 1}
_TRUE: Final = {"const": True}
_POSITIVE: Final = {"minimum": 1}


def _having(**fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema: all of these fields are there, and like this."""
    return {"required": list(fields), "properties": fields}


def _not_both(**fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"not": _having(**fields)}


def needs(**fields: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema: the first of two fields, if it is there and like this, needs the second one."""
    (name, first), (other, second) = fields.items()
    return {"if": _having(**{name: first}), "then": _having(**{other: second})}


def not_text_and_base64(name: str) -> dict[str, Any]:
    either: dict[str, Any] = {name: {"minLength": 1}, f"{name}_base64": _TEXT}
    return _not_both(**either)


Schemas: TypeAlias = tuple[dict[str, Any], ...]


class Body(Struct, forbid_unknown_fields=True):
    """A body; a field that is not known is refused, because it may be a typing error.

    ``RULES`` are JSON Schemas of what its fields must be together, which other code checks.
    """

    EXAMPLE: ClassVar[dict[str, Any]] = {}
    RULES: ClassVar[Schemas] = ()


# -- the schedule --


class ScheduledJob(Struct):
    """A job of the schedule: an id, and the time at which it runs."""

    id: str
    status: str
    execution_ns: int


class ScheduledJobs(Struct):
    """A page of jobs of the schedule."""

    jobs: list[ScheduledJob]
    next: str | None


class ScheduledJobsQuery(Struct):
    prefix: Prefix = ""
    status: (
        Annotated[
            str,
            fields.word_of("planned", "triggered", "executed", "failed"),
            Meta(description="jobs with this status"),
        ]
        | None
    ) = None
    text: Annotated[fields.Text, Meta(description="in an id")] = ""
    order: Annotated[
        str, fields.word_of("time", "-time"), Meta(description="the earliest or the latest first")
    ] = "time"
    limit: Limit = 50
    cursor: fields.Cursor = ""
    at: fields.At = ""


class SetJob(Body):
    """The time at which a job is to run."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"execution": "2033-05-18T03:33:20Z"}

    execution: fields.Moment


class Rule(Struct):
    """``options`` are those of docs/runners.md: on_failure, timeout and others."""

    id: str
    pattern: str
    runner: str
    args: list[str]
    options: dict[str, Any] = {}


class Rules(Struct):
    """A page of rules."""

    rules: list[Rule]
    next: str | None


class CursorQuery(Struct):
    limit: Limit = 50
    cursor: fields.Cursor = ""


class NamesQuery(Struct):
    prefix: Prefix = ""
    limit: Limit = 50
    cursor: fields.Cursor = ""


class NamesAtQuery(NamesQuery):
    at: fields.At = ""


class MomentQuery(Struct):
    at: fields.At = ""


class SetRuleBody(Body):
    """The beginning of the ids of the jobs that run by it, and the runner (docs/runners.md)."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "pattern": "backup.",
        "runner": "shell",
        "args": ["make backup"],
        "options": {"timeout": "1h"},
    }

    pattern: str
    runner: Annotated[str, fields.documented("|".join(RUNNER_WORDS), enum=list(RUNNER_WORDS))]
    args: list[str] = []
    options: dict[str, str | list[str]] = {}


class Run(Struct):
    """A run of a job of the schedule, and how it ended."""

    id: str
    execution_ns: int
    started_ns: int
    duration_ms: float
    success: bool
    reason: str
    output: str


class RunsPage(Struct):
    """A page of runs, newest first."""

    runs: list[Run]
    next: str | None


class RunsQuery(Struct):
    prefix: Prefix = ""
    success: Annotated[bool, Meta(description="how the run ended")] | None = None
    limit: Limit = 50
    cursor: fields.Cursor = ""
    at: Annotated[fields.MomentOrNone, Meta(description="runs that had started by this moment")] = (
        ""
    )
    since: Annotated[fields.MomentOrNone, Meta(description="runs that have started since then")] = (
        ""
    )


# -- timetables --


Duration = Annotated[
    fields.Text,
    fields.documented("[0-9]{1,9}|(?=.)" + "".join(f"(?:[0-9]{{1,9}}{unit})?" for unit in "wdhms")),
]


class TimetableBody(Body, rename={"begin": "from"}):
    """One of cron, every and at; see docs/timetables.md for the rest."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "cron": "0 2 * * *",
        "tz": "Europe/Berlin",
        "retries": 2,
        "runner": ["shell", "make backup"],
    }

    RULES: ClassVar[Schemas] = (
        {"oneOf": [_having(cron=_TEXT), _having(every=_TEXT), _having(at=_TEXT)]},
    )

    cron: fields.Text | None = None
    every: Duration | None = None
    at: fields.Text | None = None
    tz: fields.Text | None = None
    anchor: fields.Text | None = None
    begin: fields.Text | None = None
    until: fields.Text | None = None
    calendar: Annotated[str, fields.word_of(*timetable.CALENDAR)] | None = None
    exclude: list[fields.Text] = []
    jitter: Duration | None = None
    catch_up: Annotated[str, fields.word_of(*timetable.CATCH_UP)] | None = None
    catch_up_limit: Annotated[int, Meta(ge=1, le=timetable.MAX_CATCH_UP)] | None = None
    grace: Duration | None = None
    overlap: Annotated[str, fields.word_of(*timetable.OVERLAP)] | None = None
    retries: Annotated[int, Meta(ge=0, le=timetable.MAX_RETRIES)] | None = None
    backoff: fields.Text | None = None
    expect: Duration | None = None
    check_in: fields.Text | None = None
    on_failure: list[fields.Text] = []
    timeout: Duration | None = None
    directory: fields.Text | None = None
    environment: list[fields.Text] = []
    user: fields.Text | None = None
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
    """A page of timetables."""

    timetables: list[Timetable]
    next: str | None


class CountQuery(Struct):
    count: Annotated[int, Meta(ge=1, le=100, description="how many firings")] = 5


class Firing(Struct):
    """A moment at which a timetable fires; ``warning`` is about changes of the clock then."""

    time_ns: int
    local: str
    warning: str


class Firings(Struct):
    """The next moments at which a timetable fires."""

    firings: list[Firing]


class RunPlanned(Struct):
    """The id of the job that was planned."""

    job: str


class BackfillBody(Body, rename={"begin": "from"}):
    """The span whose occurrences are run, or only listed."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "from": "2026-11-01",
        "until": "2026-11-08",
        "preview": True,
    }

    begin: fields.Moment
    until: fields.Moment
    preview: bool = True


class BackfillRow(Struct):
    """An occurrence of the span. ``status`` is that of its job, null if it has none."""

    job: str
    execution_ns: int
    status: str | None
    runs: bool


class BackfillAnswer(Struct):
    """The occurrences of a span, and which of them run."""

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
    """Counts of jobs. ``states`` and ``queues`` (those with most jobs) are exact; ``workers`` have
    so many running jobs, and none are known in the past. ``tasks`` and ``errors`` (those with most)
    count attempts that started, and failures, in the last day; null: figures over time are off."""

    states: dict[str, int]
    queues: dict[str, int]
    other_queues: int
    workers: dict[str, int]
    tasks: dict[str, int] | None
    errors: dict[str, int] | None


class FacetsQuery(Struct):
    queue: OfQueue = ""
    state: Annotated[
        WorkState | None, Meta(description="the state whose jobs are counted by queue")
    ] = None
    at: fields.At = ""

    def __post_init__(self) -> None:
        self.state = STATE_WORDS.get(self.state or "", self.state)


# The key of a job: a moment of 12 bytes, of which the first are nearly the same, and an id.
WorkJobsCursor = Annotated[
    str,
    fields.documented("(?:(?:QA[A-Z]|P_[l-z0-9_-])[A-Za-z0-9_-]{35}==)?"),
    Meta(max_length=4096, description="`next` of the previous page"),
]


class WorkJobsQuery(Struct):
    queue: OfQueue = ""
    state: WorkState | None = None
    text: Annotated[
        fields.Text,
        Meta(
            description="in an id or a payload, or in the call of a task as it is shown",
            examples=["acme.charge(4634"],
        ),
    ] = ""
    error: Annotated[fields.Text, Meta(description="in the result of a dead job")] = ""
    task: Annotated[fields.Text, Meta(description="the task that the payload calls")] = ""
    sort: Annotated[
        str,
        fields.word_of("-created", "-run", "-wait"),
        Meta(description="the newest first; or the longest of those looked at for the page"),
    ] = "-created"
    since: Annotated[fields.MomentOrNone, Meta(description="created at this moment or later")] = ""
    limit: Limit = 50
    cursor: WorkJobsCursor = ""
    at: fields.At = ""

    def __post_init__(self) -> None:
        self.state = STATE_WORDS.get(self.state or "", self.state)


class JobBody(Body):
    RULES: ClassVar[Schemas] = (not_text_and_base64("payload"),)

    queue: QueueName
    payload: str = ""
    payload_base64: fields.Base64 | None = None
    id: NewJobId | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] = 0


class AddJob(JobBody):
    """A job to add. Lengths are in milliseconds; see docs/protocols/workq.md for the options."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"queue": "mail", "payload": "hello", "max_fails": 3}

    RULES: ClassVar[Schemas] = (
        *JobBody.RULES,
        needs(unique_for_ms=_POSITIVE, replace=_TEXT),
        needs(unless=_TEXT, replace={"const": "unstarted"}),
        needs(even_failed=_TRUE, after=_SOME),
        _not_both(after=_SOME, replace={"const": "unstarted"}),
        _not_both(after=_SOME, at={"type": ["string", "integer"]}),
    )

    ttr_ms: TtrMs = 60_000
    ttl_ms: Annotated[int, Meta(ge=1, le=2_592_000_000)] = 86_400_000
    max_attempts: Annotated[int, Meta(ge=0, le=255)] = 0
    max_fails: Annotated[int, Meta(ge=0, le=255)] = 0
    retry_delay_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    at: fields.Moment | None = None
    key: Annotated[NameOrNone, Meta(description="for limits of jobs with the same key")] = ""
    replace: (
        Annotated[
            str,
            fields.word_of("finished", "different", "unstarted"),
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
        JobId | None, Meta(description="with replace unstarted: refused if this job has not begun")
    ] = None
    after: Annotated[
        list[JobId],
        Meta(max_length=commands.MAX_PARENTS, description="ids of the jobs it waits for"),
    ] = []
    even_failed: Annotated[bool, Meta(description="it is added even if those fail")] = False
    has_followers: Annotated[
        bool, Meta(description="its worker adds jobs that follow it, with its id as follows")
    ] = False
    follows: Annotated[
        JobId | None, Meta(description="id of the job before it: its sender must be allowed to add")
    ] = None


class Added(Struct):
    """The id of the job; ``is_new`` is false if the same Idempotency-Key added it before."""

    id: str
    is_new: bool


class LeaseBody(Body):
    """The queues that a worker leases from, the first one first."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "queues": ["mail"],
        "max": 10,
        "wait_ms": 30000,
        "worker": "web-1",
    }

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
    """A job that is not recorded; its result is waited for."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "queue": "thumbnails",
        "payload": "cat.png",
        "wait_ms": 5000,
    }

    ttr_ms: TtrMs = 30_000
    wait_ms: WaitMs = 30_000


class FinishBody(Body):
    """The result of a job."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"result": "sent", "attempt": 1}

    RULES: ClassVar[Schemas] = (not_text_and_base64("result"),)

    result: str = ""
    result_base64: fields.Base64 | None = None
    attempt: (
        Annotated[int, Meta(ge=1, le=2**32 - 1, description="only if no other one has begun since")]
        | None
    ) = None


class FailBody(FinishBody):
    """The result of a failed attempt, and what becomes of the job."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"result": "timeout", "attempt": 1, "delay_ms": 5000}

    RULES: ClassVar[Schemas] = (*FinishBody.RULES, _not_both(final=_TRUE, release=_TRUE))

    delay_ms: RetryDelay | None = None
    final: Annotated[bool, Meta(description="no retry, whatever is left")] = False
    release: Annotated[bool, Meta(description="give the job back: no failure counts")] = False


class ProgressBody(Body):
    """The progress of a job from its worker; fields that are left out stay as they were."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "done": 120,
        "total": 500,
        "note": "rows",
        "log": ["chunk 3 is done"],
    }

    done: float | None = None
    total: float | None = None
    note: Annotated[str, Meta(max_length=1000)] | None = None
    log: Annotated[list[Annotated[str, Meta(max_length=1000)]], Meta(max_length=200)] = []


class StepBody(Body):
    """A step that the task of a leased job has done."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"name": "charge", "attempt": 1, "value": "ch_42"}

    RULES: ClassVar[Schemas] = (not_text_and_base64("value"),)

    name: StepName
    attempt: Annotated[int, Meta(ge=1, le=2**32 - 1, description="only if no other one has begun")]
    number: Annotated[
        int, Meta(ge=1, le=2**32 - 1, description="1 is the first step of this name")
    ] = 1
    value: str = ""
    value_base64: fields.Base64 | None = None


class StepsQuery(MomentQuery):
    attempt: Annotated[
        int, Meta(ge=0, le=2**32 - 1, description="only if this attempt has the lease")
    ] = 0
    limit: Limit = 500
    cursor: fields.Cursor = ""


class JobStep(Struct):
    """A step that the task of a job has done, and its value."""

    name: str
    number: int
    value: bytes
    done_ns: int


class JobSteps(Struct):
    """The recorded steps of a job, in their order: a page has about a megabyte of values."""

    steps: list[JobStep]
    next: str | None = None


class ForkBody(Body):
    """The step from which a new job goes on."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"step": "charge"}

    step: StepName
    number: Annotated[
        int, Meta(ge=1, le=2**32 - 1, description="1 is the first step of this name")
    ] = 1
    id: Annotated[NewJobId | None, Meta(description="of the new job: a UUID of version 4")] = None


class WaitBody(Body):
    """A time, an event or jobs that a job waits for; the wait is recorded as a step of it."""

    step: StepName
    number: Annotated[int, Meta(ge=1, le=2**32 - 1)] = 1
    until_ns: Annotated[int, Meta(ge=0, le=2**63 - 1, description="0: for ever")] = 0
    event: Annotated[str, fields.documented(f"(?:{STEP_NAME})?")] = ""
    jobs: Annotated[
        list[JobId], Meta(max_length=commands.MAX_PARENTS, description="ids; until all have ended")
    ] = []
    within_ms: Annotated[
        int,
        Meta(ge=0, le=commands.MAX_SLEEP_MS, description="until_ns as a length of time from now"),
    ] = 0


_WAIT_RULES: Final = [
    {
        "anyOf": [
            _having(until_ns=_POSITIVE),
            _having(within_ms=_POSITIVE),
            _having(event={"minLength": 1}),
            _having(jobs=_SOME),
        ]
    },
    _not_both(until_ns=_POSITIVE, within_ms=_POSITIVE),
    _not_both(event={"minLength": 1}, jobs=_SOME),
]


class ParkBody(Body):
    """The wait of a leased job."""

    EXAMPLE: ClassVar[dict[str, Any]] = {
        "wait": {"step": "paid", "event": "order.42.paid", "within_ms": 86400000},
        "attempt": 1,
    }

    wait: Annotated[WaitBody, Meta(extra_json_schema={"allOf": _WAIT_RULES})]
    attempt: Annotated[int, Meta(ge=1, le=2**32 - 1, description="only if no other one has begun")]


class EventBody(Body):
    """The value of an event."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"value": "paid"}

    RULES: ClassVar[Schemas] = (not_text_and_base64("value"),)

    value: str = ""
    value_base64: fields.Base64 | None = None


class EventAnswer(Struct):
    """An event that has happened."""

    name: str
    value: bytes
    set_ns: int


class TouchBody(Body):
    """How long the lease lasts from now on; without it, as long as at first."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"ttr_ms": 60000}

    ttr_ms: TtrMs | None = None


class ResultQuery(Struct):
    wait_ms: WaitMs = 0


class ResultAnswer(Struct):
    """The result of a job that has ended."""

    job_id: bytes
    success: bool
    result: bytes


class BulkBody(Body):
    """These jobs; or those of a queue and state that match, at most ``limit``.

    Only dead jobs are requeued. Of a queue without a state, jobs in any state are tried.
    """

    EXAMPLE: ClassVar[dict[str, Any]] = {"queue": "mail", "state": "dead", "limit": 100}

    RULES: ClassVar[Schemas] = ({"anyOf": [_having(ids=_SOME), _having(queue={"minLength": 1})]},)

    ids: Annotated[list[JobId], Meta(max_length=1_000)] = []
    queue: str = ""
    state: WorkState | None = None
    error: fields.Text = ""
    limit: Annotated[int, Meta(ge=1, le=1_000)] = 1_000

    def __post_init__(self) -> None:
        self.state = STATE_WORDS.get(self.state or "", self.state)


class BulkAnswer(Struct):
    """How many jobs were changed, and the ids of those that were not."""

    done: int
    refused: list[str]


Rate = Annotated[int, Meta(ge=0, le=commands.MAX_RATE)]
RatePeriodMs = Annotated[int, Meta(ge=0, le=commands.MAX_RATE_PERIOD_MS)]
Concurrency = Annotated[int, Meta(ge=0, le=commands.MAX_CONCURRENCY)]


Weight = Annotated[int, Meta(ge=1, le=commands.MAX_WEIGHT)]
Weights = Annotated[
    dict[QueueName, Weight],
    Meta(max_length=commands.MAX_WEIGHTS, description="jobs in one turn of a key of a fair queue"),
]


class QueueLimitsBody(Body):
    """Limits that are not named stay as they are; a rate is named with its period, or is 0."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"rate": 100, "per_ms": 1000, "concurrency": 20}

    RULES: ClassVar[Schemas] = (
        needs(rate=_POSITIVE, per_ms=_POSITIVE),
        needs(per_ms=_POSITIVE, rate=_POSITIVE),
        needs(key_rate=_POSITIVE, key_per_ms=_POSITIVE),
        needs(key_per_ms=_POSITIVE, key_rate=_POSITIVE),
        _not_both(fair={"const": False}, weights={"minProperties": 1}),
    )

    rate: Rate | UnsetType = UNSET
    per_ms: RatePeriodMs | UnsetType = UNSET
    concurrency: Concurrency | UnsetType = UNSET
    key_concurrency: Concurrency | UnsetType = UNSET
    key_rate: Rate | UnsetType = UNSET
    key_per_ms: RatePeriodMs | UnsetType = UNSET
    fair: Annotated[bool, Meta(description="keys take turns")] | UnsetType = UNSET
    weights: Weights | UnsetType = UNSET


class WorkQueues(Struct):
    """A page of queues."""

    queues: list[QueueView]
    next: str | None


class Workers(Struct):
    """A page of workers."""

    workers: list[WorkerView]
    next: str | None


class PausedBody(Body):
    """The state that the queue is to have: a paused one gives out no jobs."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"paused": True}

    paused: bool


# -- the past --


class AtQuery(Struct):
    at: Annotated[
        fields.MomentText, Meta(description="show the state at this time, read from the log")
    ]


class SpanQuery(Struct, rename={"begin": "from"}):
    begin: Annotated[fields.MomentText, Meta(description="the earlier time")]
    until: Annotated[fields.MomentText, Meta(description="the later time")]


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
    """A page of files."""

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
    id: Annotated[fields.Text, Meta(description="the id of the job")]


class LogRecords(Struct):
    """Records of a log."""

    records: list[LogRecord]


class RecordsQuery(Struct):
    service: Annotated[
        str, fields.word_of("schedule", "work", "fan-out"), Meta(description="whose log")
    ] = "work"
    limit: Limit = 50
    at: Annotated[fields.MomentOrNone, Meta(description="the last ones by this moment")] = ""


class ServiceBody(Body):
    """The service whose log is compacted or cleaned."""

    EXAMPLE: ClassVar[dict[str, Any]] = {"service": "schedule"}

    service: Annotated[str, fields.word_of("schedule", "work")]


class VerifyAnswer(Struct):
    """The report of each log; ``clean`` if none is damaged."""

    clean: bool
    reports: list[dict[str, Any]]


class UpkeepAnswer(Struct):
    """The outcome of a compaction or cleaning."""

    service: str
    detail: str


# -- the server --


class Health(Struct):
    """The state of the process."""

    status: str


class Readiness(Struct):
    """The state of each service; ``ready`` if every one takes commands."""

    ready: bool
    services: dict[str, str]


class SettingView(Struct):
    """A setting in effect; ``origin`` is where its value comes from."""

    name: str
    value: str | None
    origin: str
    meaning: str


class SettingsAnswer(Struct):
    """All settings in effect."""

    settings: list[SettingView]


class TokenSeen(Struct):
    """A token without its secret."""

    name: str
    namespace: str
    may_write: bool
    runners: list[str]


class OwnToken(TokenSeen):
    """``salt``: for ids that a client derives, in hexadecimal digits; see inspect token."""

    salt: str | None = None


class TokensSeen(Struct):
    """All tokens. ``required`` is false if the server has none and takes every request."""

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
