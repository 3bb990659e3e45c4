r"""The lines of the workq protocol as a client writes and reads them.

    add ID NAME TTR TTL SIZE [-flag=N]...     +OK                    every line ends with \r\n
    <SIZE bytes>
    lease NAME... WAIT                        +OK 1
                                              ID NAME TTR SIZE
                                              <SIZE bytes>
    inspect job ID                            +OK 1
                                              ID 12
                                              key value              so many times
    anything                                  -NOT-FOUND | -TIMEOUT | -CLIENT-ERROR text

What goes into a line is checked first: a name with a line break would be a command of its own, and
a payload over the limit is read as commands by the original.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import IntEnum
from typing import TypeAlias
from uuid import UUID

import msgspec

from journeyman.client import checks
from journeyman.client.conversation import Conversation, Link
from journeyman.client.errors import AccessDenied, BadAnswer, InvalidRequest, NotFound, Refused
from journeyman.protocols import LINE_END
from journeyman.protocols.workq.commands import MAX_PAYLOAD_BYTES, Complaint
from journeyman.protocols.workq.readers import read_name, read_step_name
from journeyman.protocols.workq.replies import JobProgress, RecordedStep

JobId: TypeAlias = UUID | str

_DENIED = (Complaint.AUTH_REQUIRED, Complaint.SCOPE)


class WorkJobState(IntEnum):
    """State of a job; the numbers are those of the protocol."""

    NEW = 0
    COMPLETED = 1
    FAILED = 2
    PENDING = 3
    LEASED = 4


class TimedOutWaiting(Exception):
    """The server waited as long as requested: an outcome, which becomes None."""


@dataclass(frozen=True, slots=True)
class LeasedJob:
    """A job to be done within ``ttr_ms``. ``attempt`` and what follows: of ``lease_many``."""

    job_id: UUID
    name: str
    ttr_ms: int
    payload: bytes
    attempt: int = 0
    fails: int = 0
    max_fails: int = 0
    given_back: int = 0  # attempts before this one that ended so


@dataclass(frozen=True, slots=True)
class Result:
    """How a job ended."""

    job_id: UUID
    succeeded: bool
    result: bytes


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue; ``leased`` only if it has limits, or with ``counts=True``; then the rest too."""

    name: str
    ready: int
    scheduled: int
    leased: int | None = None
    rate: str = ""
    concurrency: int = 0
    key_concurrency: int = 0
    key_rate: str = ""
    dead: int | None = None
    paused: bool | None = None
    fair: bool = False
    weights: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobInfo:
    """The result of ``inspect`` for a job. ``time`` is when a scheduled job is due."""

    job_id: UUID
    name: str
    ttr_ms: int
    ttl_ms: int
    payload: bytes
    max_attempts: int
    attempts: int
    max_fails: int
    fails: int
    priority: int
    state: WorkJobState
    created: datetime
    time: datetime | None
    worker: str = ""  # that has leased it
    key: str = ""
    after: int = 0  # jobs it waits for
    is_cancelled: bool = False
    given_back: int = 0  # attempts that ended so, or in a park
    wait: str = ""  # JSON of what it waits for, if it is parked


# -- requests ------------------------------------------------------------------------------------


def as_id(job_id: JobId) -> UUID:
    """A job's id. Raises InvalidRequest: it must be a UUID of version 4."""
    checks.one_of(job_id, (UUID, str), "job_id", "a UUID, or one as a str")
    try:
        found = job_id if isinstance(job_id, UUID) else UUID(job_id)
    except ValueError:
        raise InvalidRequest(f"job_id must be a UUID, not {checks.describe(job_id)}") from None
    if found.version != 4:
        raise InvalidRequest(f"{found} is not a UUID of version 4, the only kind that workq takes")
    return found


def checked_name(name: str, what: str = "name") -> str:
    if read_name(checks.text(name, what).encode(errors="replace")) is None:
        raise InvalidRequest(f"a {what} is 1 to 255 of A-Z a-z 0-9 _ . -, not {name!r}")
    return name


def checked_event(name: str, what: str = "an event") -> str:
    if read_step_name(checks.text(name, what).encode(errors="replace")) is None:
        raise InvalidRequest(
            f"the name of {what} is 1 to 255 of A-Z a-z 0-9 _ . - : / @, not {name!r}"
        )
    return name


def number(value: int, what: str, low: int, high: int) -> str:
    return str(checks.whole_number(value, what, low, high))


def time_text(when: datetime) -> str:
    utc = checks.zoned(when).astimezone(UTC)
    return utc.strftime("%Y-%m-%dT%H:%M:%S.%fZ").replace(".000000Z", "Z")


def line(*words: str) -> bytes:
    return " ".join(words).encode("ascii") + LINE_END


def block(data: bytes) -> bytes:
    """A payload or result that ``checked_data`` has let through."""
    return data + LINE_END


def checked_data(data: bytes, what: str) -> bytes:
    found = checks.data(data, what)
    if len(found) > MAX_PAYLOAD_BYTES:
        raise InvalidRequest(f"{what} has {len(found)} bytes, and at most {MAX_PAYLOAD_BYTES} fit")
    return found


# -- replies -------------------------------------------------------------------------------------


def read_head(link: Link) -> Conversation[int]:
    """How many blocks follow a ``+OK``. Raises what a ``-`` means."""
    line = link.line_here(LINE_END)
    if line is None:
        line = yield from link.line(LINE_END)
    if line == b"+OK":  # nearly always
        return 0
    head = line.decode("utf-8", "replace")
    if head.startswith("+OK ") and head[4:].isdecimal():
        return int(head[4:])
    if head == "-TIMEOUT":
        raise TimedOutWaiting
    if head.startswith("-NOT-FOUND"):
        raise NotFound("NOT-FOUND", head[len("-NOT-FOUND") :].strip())
    if head.startswith(("-CLIENT-ERROR ", "-SERVER-ERROR ")):
        code, _, reason = head[1:].partition(" ")
        raise AccessDenied(code, reason) if reason in _DENIED else Refused(code, reason)
    raise link.unexpected(head)


def read_done(link: Link) -> Conversation[None]:
    """A reply that says only that it was done."""
    yield from read_head(link)


def read_lease(link: Link) -> Conversation[LeasedJob | None]:
    try:
        yield from read_head(link)
    except TimedOutWaiting:
        return None
    job_id, name, ttr, size = yield from _read_words(link, 4)
    payload = yield from _block(link, size)
    return LeasedJob(_id(link, job_id), name, _count(link, ttr), payload)


def read_leases(link: Link) -> Conversation[list[LeasedJob]]:
    try:
        count = yield from read_head(link)
    except TimedOutWaiting:
        return []
    found = []
    for _ in range(count):
        job_id, name, ttr, size, *more = yield from _read_words(link, 7, 8)
        payload = yield from _block(link, size)
        numbers = (_count(link, text) for text in more)
        found.append(LeasedJob(_id(link, job_id), name, _count(link, ttr), payload, *numbers))
    return found


def read_requeued(link: Link) -> Conversation[int]:
    yield from read_head(link)
    yield from _read_words(link, 2)
    _, count = yield from _read_words(link, 2)
    return _count(link, count)


def read_result(link: Link) -> Conversation[Result | None]:
    try:
        yield from read_head(link)
    except TimedOutWaiting:
        return None
    job_id, succeeded, size = yield from _read_words(link, 3)
    result = yield from _block(link, size)
    return Result(_id(link, job_id), succeeded == "1", result)


def read_progress(link: Link) -> Conversation[JobProgress]:
    yield from read_head(link)
    _, size = yield from _read_words(link, 2)
    data = yield from _block(link, size)
    try:
        return msgspec.json.decode(data, type=JobProgress)
    except msgspec.MsgspecError as error:
        link.drop()
        raise BadAnswer(f"{link.where} answers {data[:200]!r} for progress") from error


def read_steps(link: Link) -> Conversation[list[RecordedStep]]:
    found = []
    for _ in range((yield from read_head(link))):
        name, number, size, done_ns = yield from _read_words(link, 4)
        value = yield from _block(link, size)
        found.append(RecordedStep(name, _count(link, number), value, _count(link, done_ns)))
    return found


def read_event(link: Link) -> Conversation[RecordedStep]:
    (event,) = yield from read_steps(link)
    return event


def read_jobs(link: Link) -> Conversation[list[JobInfo]]:
    found = []
    for _ in range((yield from read_head(link))):
        job = yield from _job(link)
        found.append(job)
    return found


_COUNTS = (
    *("ready-len", "scheduled-len", "leased-len", "dead-len", "paused"),
    *("concurrency", "key-concurrency"),
)


def read_queues(link: Link) -> Conversation[list[QueueInfo]]:
    found = []
    for _ in range((yield from read_head(link))):
        name, count = yield from _read_words(link, 2)
        pairs = yield from _pairs(link, _count(link, count))
        of = {key: _count(link, pairs[key]) for key in _COUNTS if key in pairs}
        found.append(
            QueueInfo(
                *(name, of.get("ready-len", 0), of.get("scheduled-len", 0), of.get("leased-len")),
                *(pairs.get("rate", ""), of.get("concurrency", 0), of.get("key-concurrency", 0)),
                *(pairs.get("key-rate", ""), of.get("dead-len")),
                bool(of["paused"]) if "paused" in of else None,
                pairs.get("fair") == "1",
                _weights(link, pairs.get("weights", "")),
            )
        )
    return found


def _weights(link: Link, text: str) -> dict[str, int]:
    pairs = (pair.rpartition(":") for pair in text.split(",") if pair)
    return {key: _count(link, weight) for key, _, weight in pairs}


def read_server(link: Link) -> Conversation[dict[str, str]]:
    yield from read_head(link)
    _, count = yield from _read_words(link, 2)
    figures = yield from _pairs(link, _count(link, count))
    if "started" not in figures:  # the original announces two keys and sends three
        figures |= yield from _pairs(link, 1)
    return figures


def read_salt(link: Link) -> Conversation[bytes]:
    """A server that does not know the question has no salts."""
    try:
        yield from read_head(link)
    except Refused as refused:
        if refused.reason == Complaint.UNKNOWN_COMMAND:
            return b""
        raise
    _, count = yield from _read_words(link, 2)
    salt = (yield from _pairs(link, _count(link, count))).get("salt", "")
    try:
        return bytes.fromhex(salt)
    except ValueError as error:
        link.drop()
        raise BadAnswer(f"{link.where} answers {salt[:200]!r} for a salt") from error


def _job(link: Link) -> Conversation[JobInfo]:
    """A job block of ``inspect``, its payload taken by its size."""
    job_id, count = yield from _read_words(link, 2)
    values: dict[str, str] = {}
    payload = b""
    for _ in range(_count(link, count)):
        if "payload-size" in values and "payload" not in values:
            yield from link.exactly(len(b"payload "))
            payload = yield from _block(link, values["payload-size"])
            values["payload"] = ""
            continue
        key, value = yield from _read_words(link, 2)
        values[key] = value
    try:
        return _job_info(UUID(job_id), values, payload)
    except (KeyError, ValueError) as error:
        link.drop()
        raise BadAnswer(f"{link.where} describes a job without {error}") from error


def _job_info(job_id: UUID, values: dict[str, str], payload: bytes) -> JobInfo:
    due = values.get("time")
    return JobInfo(
        job_id,
        values["name"],
        int(values["ttr"]),
        int(values["ttl"]),
        payload,
        int(values["max-attempts"]),
        int(values["attempts"]),
        int(values["max-fails"]),
        int(values["fails"]),
        int(values["priority"]),
        WorkJobState(int(values["state"])),
        datetime.fromisoformat(values["created"]),
        None if due is None else datetime.fromisoformat(due),
        values.get("worker", ""),
        values.get("key", ""),
        int(values.get("after", "0")),
        values.get("cancelled") == "1",
        int(values.get("given-back", "0")),
        values.get("parked", ""),
    )


def _read_words(link: Link, *counts: int) -> Conversation[list[str]]:
    words = (yield from link.line(LINE_END)).decode("utf-8", "replace").split(" ")
    if len(words) not in counts:
        raise link.unexpected(" ".join(words))
    return words


def _pairs(link: Link, count: int) -> Conversation[dict[str, str]]:
    pairs: dict[str, str] = {}
    for _ in range(count):
        key, value = yield from _read_words(link, 2)
        pairs[key] = value
    return pairs


def _block(link: Link, size: str) -> Conversation[bytes]:
    data = yield from link.exactly(_count(link, size))
    if (yield from link.exactly(len(LINE_END))) != LINE_END:
        link.drop()
        raise BadAnswer(f"{link.where} sends more than the {size} bytes it speaks of")
    return data


def _id(link: Link, text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError as error:
        link.drop()
        raise BadAnswer(f"{link.where} answers {text[:200]!r} for an id") from error


def _count(link: Link, text: str) -> int:
    if not text.isdecimal():
        link.drop()
        raise BadAnswer(f"{link.where} answers {text[:200]!r} for a number")
    return int(text)
