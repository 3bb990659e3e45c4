"""Every call of the work queue, over the workq protocol: checks, requests, replies.

The client chooses the ids, so a job is added once however often it is sent: ``add`` is sent again
when the connection breaks, and ``Duplicate job`` then means that it is there. Queries, ``pause``
and ``resume`` are sent again too. ``lease``, ``run``, ``complete``, ``fail``, ``delete`` and
``requeue`` are not: AnswerLost.

The original workq understands all but what docs/protocols/workq.md marks as new.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TypeVar
from uuid import UUID, uuid4

import msgspec

from journeyman.client import checks, conversation
from journeyman.client.errors import InvalidRequest, NotFound, Refused
from journeyman.client.service import ServiceKind
from journeyman.client.workq import lines
from journeyman.protocols import LINE_END
from journeyman.protocols.workq import commands
from journeyman.protocols.workq.readers import RATE
from journeyman.protocols.workq.replies import JobProgress, RecordedStep, reply_bytes

T = TypeVar("T")

DEFAULT_PORT = 9922
DEFAULT_TTR_MS = 60_000
DEFAULT_TTL_MS = 24 * 3_600_000
DEFAULT_BATCH = 200
RESULTS_AT_ONCE = 100


def _greet(secret: bytes) -> conversation.Greeting:
    return conversation.greeting(
        b"auth " + secret + b"\r\n", b"+OK", b"-CLIENT-ERROR", b"-SERVER-ERROR"
    )


PROBE = conversation.Probe(
    b"inspect job 00000000-0000-0000-0000-000000000000\r\n",
    reply_bytes(commands.RefusedLine(commands.Complaint.AUTH_REQUIRED)).removesuffix(LINE_END),
)
SERVICE = ServiceKind("the work queue", "work_queue", DEFAULT_PORT, _greet, PROBE)


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
    retry_delay_ms: int = 0
    key: str = ""
    replace_finished: bool = False
    after: tuple[lines.JobId, ...] = ()
    even_failed: bool = False
    unique_ms: int = 0
    unless_same: bool = False
    has_followers: bool = False
    follows: lines.JobId | None = None
    replace_unstarted: bool = False
    unless: lines.JobId | None = None

    def request(self) -> bytes:
        """The command that adds it. Raises InvalidRequest."""
        words = [
            "add" if self.time is None else "schedule",
            str(lines.as_id(self.job_id)),
            lines.checked_name(self.name),
            lines.number(self.ttr_ms, "ttr_ms", 1, commands.MAX_TTR_MS),
            lines.number(self.ttl_ms, "ttl_ms", 1, commands.MAX_TTL_MS),
        ]
        if self.time is not None:
            words.append(lines.time_text(self.time))
        payload = lines.checked_data(self.payload, "payload")
        words.append(str(len(payload)))
        if _priority(self.priority):
            words.append(f"-priority={self.priority}")
        if checks.whole_number(self.max_attempts, "max_attempts", 0, commands.MAX_COUNT):
            words.append(f"-max-attempts={self.max_attempts}")
        if checks.whole_number(self.max_fails, "max_fails", 0, commands.MAX_COUNT):
            words.append(f"-max-fails={self.max_fails}")
        if checks.whole_number(
            self.retry_delay_ms, "retry_delay_ms", 0, commands.MAX_RETRY_DELAY_MS
        ):
            words.append(f"-retry-delay={self.retry_delay_ms}")
        words += self._new_flags(payload)
        return lines.line(*words) + lines.block(payload)

    def _new_flags(self, payload: bytes) -> list[str]:
        """Return what the original does not know."""
        words = [f"-key={lines.checked_name(self.key, 'key')}"] if self.key else []
        if self.replace_unstarted:
            words.append("-replace=unstarted")
            if self.unless is not None:
                words.append(f"-unless={lines.as_id(self.unless)}")
            if self.after or len(payload) > commands.MAX_CHILD_BYTES:
                most = f"at most {commands.MAX_CHILD_BYTES} bytes and no after="
                raise InvalidRequest(f"a job with replace_unstarted has {most}")
        elif self.unless is not None:
            raise InvalidRequest("unless is for jobs with replace_unstarted=True")
        elif self.replace_finished:
            words.append(f"-replace={'different' if self.unless_same else 'finished'}")
        elif self.unless_same:
            raise InvalidRequest("unless_same is for jobs with replace_finished=True")
        if checks.whole_number(self.unique_ms, "unique_ms", 0, commands.MAX_TTL_MS):
            if not self.replace_finished:
                raise InvalidRequest("unique_ms is for jobs with replace_finished=True")
            words.append(f"-unique-for={self.unique_ms}")
        if self.has_followers:
            words.append("-then=1")
        if self.follows is not None:
            words.append(f"-follows={lines.as_id(self.follows)}")
        if not self.after:
            if self.even_failed:
                raise InvalidRequest("even_failed is for jobs with after=")
            return words
        checks.one_of(self.after, (tuple, list), "after", "a list of job ids")
        if self.time is not None:
            raise InvalidRequest("a job waits for a time or for jobs (after), not for both")
        if len(self.after) > commands.MAX_PARENTS or len(payload) > commands.MAX_CHILD_BYTES:
            most = f"{commands.MAX_PARENTS} ids and {commands.MAX_CHILD_BYTES} bytes"
            raise InvalidRequest(f"a job with after= has at most {most}")
        words.append("-after=" + ",".join(str(lines.as_id(each)) for each in self.after))
        return [*words, "-even-failed=1"] if self.even_failed else words


# -- producers -----------------------------------------------------------------------------------


def add(
    name: str,
    payload: bytes = b"",
    *,
    job_id: lines.JobId | None = None,
    ttr_ms: int = DEFAULT_TTR_MS,
    ttl_ms: int = DEFAULT_TTL_MS,
    priority: int = 0,
    max_attempts: int = 0,
    max_fails: int = 0,
    time: datetime | None = None,
    retry_delay_ms: int = 0,
    key: str = "",
    replace_finished: bool = False,
    after: Sequence[lines.JobId] = (),
    even_failed: bool = False,
    unique_ms: int = 0,
    unless_same: bool = False,
    has_followers: bool = False,
    follows: lines.JobId | None = None,
    replace_unstarted: bool = False,
    unless: lines.JobId | None = None,
) -> conversation.Call[UUID]:
    """Add a job, or schedule it for a ``time``; its id, yours or a new one.

    Jobs of the same ``key`` share the limits of keys of their queue. ``replace_finished``: a
    completed or failed job of the same id makes room; with ``unique_ms`` a completed one does so
    only that long after it was added, with ``unless_same`` none of the same payload.
    ``replace_unstarted``: so does one that no worker has begun; but if the job ``unless`` has not
    begun either, this one is refused as a duplicate. ``after``:
    wait until these jobs have completed; if one fails, so does this one, unless ``even_failed``.
    ``has_followers``: its worker adds further jobs, with its id as ``follows``; they may go where
    the token that added this job may add.

    Raises Refused with the reason ``Duplicate job``, or ``Unknown parent``.
    """
    given = uuid4() if job_id is None else lines.as_id(job_id)
    job = NewJob(
        given,
        name,
        payload,
        ttr_ms,
        ttl_ms,
        priority,
        max_attempts,
        max_fails,
        time,
        retry_delay_ms,
        key,
        replace_finished,
        tuple(after),
        even_failed,
        unique_ms,
        unless_same,
        has_followers,
        follows,
        replace_unstarted,
        unless,
    )
    ask = add_requests([job.request()])

    def converse(link: conversation.Link) -> conversation.Conversation[UUID]:
        (refused,) = yield from ask(link)
        if refused is not None:
            raise refused
        return given

    return converse


def schedule(
    name: str,
    time: datetime,
    payload: bytes = b"",
    *,
    job_id: lines.JobId | None = None,
    ttr_ms: int = DEFAULT_TTR_MS,
    ttl_ms: int = DEFAULT_TTL_MS,
    priority: int = 0,
    max_attempts: int = 0,
    max_fails: int = 0,
    retry_delay_ms: int = 0,
    key: str = "",
    replace_finished: bool = False,
) -> conversation.Call[UUID]:
    """Add a job that is ready at ``time``; as ``add``."""
    return add(
        name,
        payload,
        job_id=job_id,
        ttr_ms=ttr_ms,
        ttl_ms=ttl_ms,
        priority=priority,
        max_attempts=max_attempts,
        max_fails=max_fails,
        time=checks.zoned(time),
        retry_delay_ms=retry_delay_ms,
        key=key,
        replace_finished=replace_finished,
    )


def batches_of(jobs: Iterable[NewJob], batch: int) -> Iterator[list[NewJob]]:
    """The jobs in lists. Raises InvalidRequest at once."""
    checks.one_of(jobs, (Iterable,), "jobs", "an iterable of NewJob")
    checks.batch(batch)

    def batches(waiting: Iterator[NewJob]) -> Iterator[list[NewJob]]:
        while some := list(islice(waiting, batch)):
            for job in some:
                checks.one_of(job, (NewJob,), "each job", "a NewJob")
            yield some

    return batches(iter(jobs))


def add_all(jobs: Sequence[NewJob]) -> conversation.Call[list[tuple[NewJob, Refused | None]]]:
    """Add these jobs: each with its refusal, or None. An invalid one is a refusal as well."""
    requests = [_request(job) for job in jobs]
    ask = add_requests([request for request in requests if isinstance(request, bytes)])

    def converse(
        link: conversation.Link,
    ) -> conversation.Conversation[list[tuple[NewJob, Refused | None]]]:
        replies = iter((yield from ask(link)))
        return [
            (job, next(replies) if isinstance(request, bytes) else request)
            for job, request in zip(jobs, requests, strict=True)
        ]

    return converse


def run(
    name: str,
    payload: bytes = b"",
    *,
    wait_ms: int,
    job_id: lines.JobId | None = None,
    ttr_ms: int = DEFAULT_TTR_MS,
    priority: int = 0,
) -> conversation.Call[lines.Result | None]:
    """Run a job that is not recorded; returns its result, or None if none arrives in time."""
    payload = lines.checked_data(payload, "payload")
    words = [
        "run",
        str(uuid4() if job_id is None else lines.as_id(job_id)),
        lines.checked_name(name),
        lines.number(ttr_ms, "ttr_ms", 1, commands.MAX_TTR_MS),
        _wait(wait_ms),
        str(len(payload)),
    ]
    if _priority(priority):
        words.append(f"-priority={priority}")
    # The server waits for a leased job until its time to run ends.
    extra_ms = wait_ms + ttr_ms
    return conversation.once(lines.line(*words) + lines.block(payload), lines.read_result, extra_ms)


def result(job_id: lines.JobId, *, wait_ms: int = 0) -> conversation.Call[lines.Result | None]:
    """How a job ended; None if it has not within ``wait_ms``. Raises NotFound."""
    request = lines.line("result", str(lines.as_id(job_id)), _wait(wait_ms))
    return conversation.twice(request, lines.read_result, wait_ms)


def results(job_ids: Sequence[lines.JobId]) -> conversation.Call[list[lines.Result | None]]:
    """How each of these jobs ended, or None; many in one request."""
    requests = [lines.line("result", str(lines.as_id(each)), _wait(0)) for each in job_ids]

    def read(
        link: conversation.Link, _place: int, _may_be_there: bool
    ) -> conversation.Conversation[lines.Result | None]:
        try:
            return (yield from lines.read_result(link))
        except NotFound:
            return None

    def converse(link: conversation.Link) -> conversation.Conversation[list[lines.Result | None]]:
        found: list[lines.Result | None] = []
        while len(found) < len(requests):
            some = requests[len(found) : len(found) + RESULTS_AT_ONCE]
            ask = conversation.pipelined(len(some), partial(_joined, some), read)
            found += yield from ask(link)
        return found

    return converse


def delete(job_id: lines.JobId) -> conversation.Call[bool]:
    """Delete a job in any state; returns whether it existed."""
    ask = conversation.once(lines.line("delete", str(lines.as_id(job_id))), lines.read_done)

    def converse(link: conversation.Link) -> conversation.Conversation[bool]:
        try:
            yield from ask(link)
        except NotFound:
            return False
        return True

    return converse


# -- workers -------------------------------------------------------------------------------------


def lease(*names: str, wait_ms: int, worker: str = "") -> conversation.Call[lines.LeasedJob | None]:
    """The next job of one of these queues; None if none is ready within ``wait_ms``.

    ``worker`` is shown by ``inspect_job`` while the job is leased.
    """
    return conversation.once(_lease(names, wait_ms, 0, worker), lines.read_lease, wait_ms)


def lease_many(
    *names: str, wait_ms: int, max_jobs: int, worker: str = ""
) -> conversation.Call[list[lines.LeasedJob]]:
    """Up to ``max_jobs`` jobs that are ready; with ``wait_ms`` at least one, or none in time."""
    number = checks.whole_number(max_jobs, "max_jobs", 1, commands.MAX_LEASED)
    return conversation.once(_lease(names, wait_ms, number, worker), lines.read_leases, wait_ms)


def touch(job_id: lines.JobId, *, ttr_ms: int | None = None) -> conversation.Call[None]:
    """The lease ends ``ttr_ms`` from now; None: the job's own TTR.

    Raises NotFound, or Refused with the reason ``Job is not leased``.
    """
    words = ["touch", str(lines.as_id(job_id))]
    if ttr_ms is not None:
        words.append(lines.number(ttr_ms, "ttr_ms", 1, commands.MAX_TTR_MS))
    return conversation.twice(lines.line(*words), lines.read_done)


def complete(
    job_id: lines.JobId, result: bytes = b"", *, attempt: int = 0
) -> conversation.Call[None]:
    """The job is done. Raises NotFound, or Refused with the reason ``Duplicate result``.

    With the ``attempt`` of ``lease_many``: refused as ``Job was leased again`` if it was.
    """
    return _finish("complete", job_id, result, attempt)


def fail(
    job_id: lines.JobId,
    result: bytes = b"",
    *,
    delay_ms: int | None = None,
    attempt: int = 0,
    final: bool = False,
) -> conversation.Call[None]:
    """The job failed: it is retried if attempts and fails are left. Raises as ``complete``.

    With an ``attempt`` that has ended, unless ``final``: refused as ``Job is not leased``.

    ``delay_ms`` is the time before this retry, instead of the job's own delay. ``final``: the job
    is dead now, whatever is left.
    """
    flags = ["-final=1"] if final else []
    if delay_ms is not None:
        flags.append(f"-delay={lines.number(delay_ms, 'delay_ms', 0, commands.MAX_RETRY_DELAY_MS)}")
    return _finish("fail", job_id, result, attempt, *flags)


# -- administration ------------------------------------------------------------------------------


def note_progress(
    job_id: lines.JobId,
    *,
    done: float | None = None,
    total: float | None = None,
    note: str | None = None,
    log: Sequence[str] = (),
) -> conversation.Call[None]:
    """Say how far a leased job has come, and add lines to its log. Raises NotFound, or Refused with
    the reason ``Job is not leased``."""
    notes = msgspec.json.encode(commands.WorkerNotes(done, total, note, tuple(log)))
    head = lines.line("progress", str(lines.as_id(job_id)), str(len(notes)))
    return conversation.once(head + lines.block(notes), lines.read_done)


def progress(job_id: lines.JobId) -> conversation.Call[JobProgress]:
    """Return what the workers of a job have said about it. Raises NotFound."""
    return conversation.once(
        lines.line("inspect", "progress", str(lines.as_id(job_id))), lines.read_progress
    )


def record_step(
    job_id: lines.JobId, name: str, number: int, value: bytes, *, attempt: int
) -> conversation.Call[None]:
    """Record a step of a leased job: the ``number``-th of this name, once for all attempts. Raises
    NotFound, or Refused."""
    lines.checked_event(name, "a step")
    lines.number(number, "number", 1, 2**32 - 1)
    lines.number(attempt, "attempt", 1, 2**32 - 1)
    words = (
        "step",
        str(lines.as_id(job_id)),
        name,
        str(number),
        str(len(value)),
        f"-attempt={attempt}",
    )
    return conversation.twice(lines.line(*words) + lines.block(value), lines.read_done)


def steps(job_id: lines.JobId) -> conversation.Call[list[RecordedStep]]:
    """Return the recorded steps of a job, in their order. Raises NotFound."""
    return conversation.twice(
        lines.line("inspect", "steps", str(lines.as_id(job_id))), lines.read_steps
    )


def emit(event: str, value: bytes = b"") -> conversation.Call[None]:
    """An event has happened, with this value: jobs that wait for it go on. The same again changes
    nothing. Raises Refused if it had happened with another value."""
    words = lines.line("emit", lines.checked_event(event), str(len(value)))
    return conversation.twice(words + lines.block(value), lines.read_done)


def event(name: str) -> conversation.Call[RecordedStep]:
    """Return the value of an event that has happened, and when. Raises NotFound."""
    return conversation.twice(
        lines.line("inspect", "event", lines.checked_event(name)), lines.read_event
    )


def fork(
    job_id: lines.JobId, step: str, number: int = 1, *, new_id: lines.JobId | None = None
) -> conversation.Call[UUID]:
    """Add a job like this one that goes on from the ``number``-th step of this name, with what was
    recorded before it; return its id. Raises NotFound, or Refused if there is no such step."""
    added = uuid4() if new_id is None else lines.as_id(new_id)
    lines.checked_event(step, "a step")
    lines.number(number, "number", 1, 2**32 - 1)
    ask = conversation.twice(
        lines.line("fork", str(lines.as_id(job_id)), str(added), step, str(number)),
        lines.read_done,
    )

    def converse(link: conversation.Link) -> conversation.Conversation[UUID]:
        yield from ask(link)
        return added

    return converse


def cancel(job_id: lines.JobId) -> conversation.Call[bool]:
    """An unfinished job ends as cancelled, and its worker stops it; returns whether it did. Raises
    NotFound."""
    ask = conversation.once(lines.line("cancel", str(lines.as_id(job_id))), lines.read_done)

    def converse(link: conversation.Link) -> conversation.Conversation[bool]:
        try:
            yield from ask(link)
        except Refused as refused:
            if refused.reason != commands.Complaint.DUPLICATE_RESULT:
                raise
            return False
        return True

    return converse


def requeue(job_id: lines.JobId) -> conversation.Call[None]:
    """A dead job starts over. Raises NotFound, or Refused with the reason ``Job is not dead``."""
    return conversation.once(lines.line("requeue", str(lines.as_id(job_id))), lines.read_done)


def requeue_all(name: str, *, limit: int = 100) -> conversation.Call[int]:
    """Start over up to ``limit`` dead jobs of a queue; returns how many. Raises NotFound."""
    number = lines.number(limit, "limit", 1, commands.MAX_REQUEUED)
    request = lines.line("requeue-all", lines.checked_name(name), number)
    return conversation.once(request, lines.read_requeued)


def limit(
    name: str,
    *,
    rate: str = "",
    concurrency: int = 0,
    key_rate: str = "",
    key_concurrency: int = 0,
    fair: bool = False,
    weights: Mapping[str, int] | None = None,
) -> conversation.Call[None]:
    """Limit how a queue is leased, instead of all limits it had; without any: no limits.

    ``rate`` "10/m" or "1/30s": so many starts in that time. ``concurrency``: leased at the same
    time. ``key_rate``, ``key_concurrency``: the same of each key. ``fair``: keys take turns, each
    of one job or as many as ``weights`` says.
    """
    words = ["limit", lines.checked_name(name)]
    for flag, text in (("rate", rate), ("key_rate", key_rate)):
        if checks.text(text, flag):
            if not RATE.fullmatch(text.encode(errors="replace")):
                raise InvalidRequest(f"{flag} must be like '10/m' or '1/30s', not {text!r}")
            words.append(f"-{flag.replace('_', '-')}={text}")
    for flag, value in (("concurrency", concurrency), ("key_concurrency", key_concurrency)):
        if checks.whole_number(value, flag, 0, commands.MAX_CONCURRENCY):
            words.append(f"-{flag.replace('_', '-')}={value}")
    if fair:
        words.append("-fair=1")
    pairs = [
        f"{lines.checked_name(key)}:{lines.number(weight, 'weight', 1, commands.MAX_WEIGHT)}"
        for key, weight in (weights or {}).items()
    ]
    if pairs:
        words.append(f"-weights={','.join(pairs)}")
    return conversation.twice(lines.line(*words), lines.read_done)


def pause(name: str) -> conversation.Call[None]:
    """Lease nothing from this queue until ``resume``, also after a restart."""
    return conversation.twice(lines.line("pause", lines.checked_name(name)), lines.read_done)


def resume(name: str) -> conversation.Call[None]:
    """Lease from this queue again."""
    return conversation.twice(lines.line("resume", lines.checked_name(name)), lines.read_done)


# -- queries -------------------------------------------------------------------------------------


def inspect_job(job_id: lines.JobId) -> conversation.Call[lines.JobInfo | None]:
    """The job, or None."""
    return _first(
        conversation.twice(lines.line("inspect", "job", str(lines.as_id(job_id))), lines.read_jobs)
    )


def inspect_jobs(
    name: str, *, offset: int = 0, limit: int = 100
) -> conversation.Call[list[lines.JobInfo]]:
    """The ready jobs of a queue, in their order. Raises NotFound."""
    return _jobs("jobs", name, offset, limit)


def inspect_scheduled_jobs(
    name: str, *, offset: int = 0, limit: int = 100
) -> conversation.Call[list[lines.JobInfo]]:
    """The jobs of a queue that wait for their time or a retry. Raises NotFound."""
    return _jobs("scheduled-jobs", name, offset, limit)


def inspect_dead_jobs(
    name: str, *, offset: int = 0, limit: int = 100
) -> conversation.Call[list[lines.JobInfo]]:
    """The failed jobs of a queue that ``requeue`` accepts. Raises NotFound."""
    return _jobs("dead-jobs", name, offset, limit)


def inspect_queue(name: str) -> conversation.Call[lines.QueueInfo | None]:
    """The queue, or None."""
    request = lines.line("inspect", "queue", lines.checked_name(name))
    return _first(conversation.twice(request, lines.read_queues))


def inspect_queues(
    *, offset: int = 0, limit: int = 100, counts: bool = False
) -> conversation.Call[list[lines.QueueInfo]]:
    """All queues, by name. ``counts``: with ``leased``, ``dead`` and ``paused``."""
    flags = ("-counts=1",) if counts else ()
    request = lines.line("inspect", "queues", *_page(offset, limit), *flags)
    return conversation.twice(request, lines.read_queues)


def inspect_paused_queues(
    *, offset: int = 0, limit: int = 100
) -> conversation.Call[list[lines.QueueInfo]]:
    """The paused queues, by name."""
    return conversation.twice(
        lines.line("inspect", "paused-queues", *_page(offset, limit)), lines.read_queues
    )


def inspect_server() -> conversation.Call[dict[str, str]]:
    """Return active-clients, evicted-jobs and started."""
    return conversation.twice(lines.line("inspect", "server"), lines.read_server)


def salt() -> conversation.Call[bytes]:
    """Return the salt for ids that are derived from what a job is for: mixed in, no other namespace
    can take them.

    Empty if the token is for all namespaces, if there are no tokens, or if the server is older.
    """
    return conversation.twice(lines.line("inspect", "token"), lines.read_salt)


# -- requests and replies ------------------------------------------------------------------------


def add_requests(requests: Sequence[bytes]) -> conversation.Call[list[Refused | None]]:
    """Add jobs by their ``request()``: one reply for each.

    What may be there already is not refused as its own duplicate.
    """

    def read(
        link: conversation.Link, _place: int, may_be_there: bool
    ) -> conversation.Conversation[Refused | None]:
        try:
            yield from lines.read_head(link)
        except Refused as refused:
            is_there = may_be_there and refused.reason == commands.Complaint.DUPLICATE_JOB
            return None if is_there else refused
        return None

    return conversation.pipelined(len(requests), partial(_joined, requests), read)


def _joined(requests: Sequence[bytes], _link: conversation.Link, some: range) -> bytes:
    return b"".join(requests[some.start : some.stop])


def _finish(
    word: str, job_id: lines.JobId, result: bytes, attempt: int, *flags: str
) -> conversation.Call[None]:
    result = lines.checked_data(result, "result")
    if checks.whole_number(attempt, "attempt", 0, 2**32 - 1):
        flags += (f"-attempt={attempt}",)
    head = lines.line(word, str(lines.as_id(job_id)), str(len(result)), *flags)
    return conversation.once(head + lines.block(result), lines.read_done)


def _lease(names: tuple[str, ...], wait_ms: int, max_jobs: int, worker: str) -> bytes:
    if not names:
        raise InvalidRequest("lease needs the name of a queue")
    words = ["lease", *map(lines.checked_name, names), _wait(wait_ms)]
    if max_jobs:
        words.append(f"-max={max_jobs}")
    if worker:
        words.append(f"-worker={lines.checked_name(worker, 'worker')}")
    return lines.line(*words)


def _jobs(kind: str, name: str, offset: int, limit: int) -> conversation.Call[list[lines.JobInfo]]:
    request = lines.line("inspect", kind, lines.checked_name(name), *_page(offset, limit))
    return conversation.twice(request, lines.read_jobs)


def _first(ask: conversation.Call[list[T]]) -> conversation.Call[T | None]:
    def converse(link: conversation.Link) -> conversation.Conversation[T | None]:
        try:
            found = yield from ask(link)
        except NotFound:
            return None
        return found[0] if found else None

    return converse


def _priority(priority: int) -> int:
    return checks.whole_number(priority, "priority", commands.MIN_PRIORITY, commands.MAX_PRIORITY)


def _wait(wait_ms: int) -> str:
    return lines.number(wait_ms, "wait_ms", 0, commands.MAX_WAIT_MS)


def _page(offset: int, limit: int) -> tuple[str, str]:
    first = lines.number(offset, "offset", 0, commands.MAX_CURSOR_OFFSET)
    return first, lines.number(limit, "limit", 1, commands.MAX_LISTED)


def _request(job: NewJob) -> bytes | Refused:
    try:
        return job.request()
    except InvalidRequest as error:
        return Refused("invalid_request", str(error))
