"""What the ledger records: facts that the three logs have no place for. One class per kind.

    {"v":1,"kind":"queue-paused","queue":"mail"}
           kind             record class       family        key

To add a kind, add a class here and a row to docs/formats/ledger.md. Its fields after ``logged`` are
the members of the payload, in this order; their types are ``str``, ``int``, ``Body`` (any JSON
object) or ``Pairs``. The decorator says what the record does to the state:

    family, key            the last record of the key is its state
    family, key, removes   the key has no state any more
    family, no key         each record stands by itself: a history

A record of another version, of an unknown kind, or with other members is a ``NewerRecord``. It is
kept as it is and passed through.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, TypeAlias, TypeVar

from journeyman.formats.workq.records import Instant
from journeyman.values import value

VERSION = 1

Body: TypeAlias = dict[str, Any]  # a JSON object; not to be changed
Pairs: TypeAlias = tuple[tuple[int, int], ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table in docs/formats/ledger.md."""

    name: str
    make: Callable[..., Any]
    family: str
    key: str | None  # the field with the key; None: each record stands by itself
    removes: bool
    members: tuple[tuple[str, str], ...]  # name and type of each field after ``logged``


KINDS: dict[str, Kind] = {}
_KIND_OF: dict[type, Kind] = {}


def kind_of(record: Any) -> Kind:
    return _KIND_OF[type(record)]


def is_state(record: Any) -> bool:
    """Whether it is the state of a key, or ends it; else it stands by itself."""
    kind = _KIND_OF.get(type(record))
    return kind is not None and kind.key is not None


def _kind(
    name: str, *, family: str, key: str | None = None, removes: bool = False
) -> Callable[[type[T]], type[T]]:
    def register(cls: type[T]) -> type[T]:
        members = tuple((each.name, str(each.type)) for each in fields(cls)[1:])  # type: ignore[arg-type]
        KINDS[name] = _KIND_OF[cls] = Kind(name, cls, family, key, removes, members)
        return cls

    return register


@_kind("timetable-set", family="timetable", key="timetable")
@value
class TimetableSet:
    logged: Instant
    timetable: str
    body: Body


@_kind("timetable-removed", family="timetable", key="timetable", removes=True)
@value
class TimetableRemoved:
    logged: Instant
    timetable: str


@_kind("timetable-paused", family="timetable-pause", key="timetable")
@value
class TimetablePaused:
    logged: Instant
    timetable: str


@_kind("timetable-resumed", family="timetable-pause", key="timetable", removes=True)
@value
class TimetableResumed:
    logged: Instant
    timetable: str


@_kind("timetable-planned", family="timetable-plan", key="timetable")
@value
class TimetablePlanned:
    """Where a timetable stands: its last occurrence that was decided, and the one in the schedule.

    Both are local times with their offset, ``2026-11-17T02:00:00+01:00``; empty: there is none.
    """

    logged: Instant
    timetable: str
    done: str
    planned: str


@_kind("timetable-unplanned", family="timetable-plan", key="timetable", removes=True)
@value
class TimetableUnplanned:
    logged: Instant
    timetable: str


@_kind("run-retried", family="run-retry", key="job")
@value
class RunRetried:
    """A run of this job of the schedule has failed and is planned again, for the n-th time."""

    logged: Instant
    job: str
    attempt: int


@_kind("run-settled", family="run-retry", key="job", removes=True)
@value
class RunSettled:
    logged: Instant
    job: str


@_kind("rule-options-set", family="rule-options", key="rule")
@value
class RuleOptionsSet:
    """Retries and backoff of the runs by a rule of the schedule."""

    logged: Instant
    rule: str
    body: Body


@_kind("rule-options-removed", family="rule-options", key="rule", removes=True)
@value
class RuleOptionsRemoved:
    logged: Instant
    rule: str


@_kind("queue-paused", family="queue-pause", key="queue")
@value
class QueuePaused:
    """A queue of the work queue gives out no jobs."""

    logged: Instant
    queue: str


@_kind("queue-resumed", family="queue-pause", key="queue", removes=True)
@value
class QueueResumed:
    logged: Instant
    queue: str


@_kind("queue-limits-set", family="queue-limits", key="queue")
@value
class QueueLimitsSet:
    """Rate and concurrency of a queue of the work queue."""

    logged: Instant
    queue: str
    body: Body


@_kind("queue-limits-removed", family="queue-limits", key="queue", removes=True)
@value
class QueueLimitsRemoved:
    logged: Instant
    queue: str


@_kind("job-options-set", family="job-options", key="job")
@value
class JobOptionsSet:
    """What a job of the work queue has beyond its add: delay, concurrency key, parents."""

    logged: Instant
    job: str  # the id, as the protocol writes it
    body: Body


@_kind("job-options-removed", family="job-options", key="job", removes=True)
@value
class JobOptionsRemoved:
    logged: Instant
    job: str


@_kind("parent-ended", family="parent", key="job")
@value
class ParentEnded:
    """The job has completed for all that wait for it and whose records stand before this one.
    Written by earlier versions."""

    logged: Instant
    job: str


@_kind("parent-outcome", family="parent", key="job")
@value
class ParentOutcome:
    """The same, of the job that was added then, and how it ended; 0: it never was in the log."""

    logged: Instant
    job: str
    created_ns: int
    failed: int  # 0 or 1


@_kind("parent-forgotten", family="parent", key="job", removes=True)
@value
class ParentForgotten:
    logged: Instant
    job: str


@_kind("lease-counted", family="lease", key="lease")
@value
class LeaseCounted:
    """A lease of a work queue that is in the store, where no log has it: its rates count it."""

    logged: Instant
    lease: str  # a number
    queue: str
    key: str  # of the job; empty: it has none


@_kind("lease-forgotten", family="lease", key="lease", removes=True)
@value
class LeaseForgotten:
    logged: Instant
    lease: str


@_kind("times-marked", family="times")
@value
class TimesMarked:
    """When records of the schedule's log were written; logs/ledger/times.py reads it.

    ``marks`` are (end, time): all bytes of the file before ``end`` were in it at ``time``, in ns
    since 1970. Each number is the difference to that of the pair before; the first pair is whole.
    The file is the one whose first ``head_bytes`` bytes have the CRC-32C ``head_crc``.
    """

    logged: Instant
    head_bytes: int
    head_crc: int
    marks: Pairs


@_kind("ended-marked", family="ended", key="job")
@value
class EndedMarked:
    """The job of the schedule, and all whose last records stand before its own, had ended then."""

    logged: Instant
    job: str


@_kind("action-audited", family="audit")
@value
class ActionAudited:
    """A person or program changed something by HTTP, console or command line."""

    logged: Instant
    who: str
    via: str
    what: str
    target: str
    outcome: str


@value
class NewerRecord:
    """A record that is not known here: kept byte for byte, without a meaning."""

    logged: Instant
    version: int
    kind: str
    payload: bytes


KnownRecord: TypeAlias = (
    TimetableSet
    | TimetableRemoved
    | TimetablePaused
    | TimetableResumed
    | TimetablePlanned
    | TimetableUnplanned
    | RunRetried
    | RunSettled
    | RuleOptionsSet
    | RuleOptionsRemoved
    | QueuePaused
    | QueueResumed
    | QueueLimitsSet
    | QueueLimitsRemoved
    | JobOptionsSet
    | JobOptionsRemoved
    | ParentEnded
    | ParentOutcome
    | ParentForgotten
    | LeaseCounted
    | LeaseForgotten
    | TimesMarked
    | EndedMarked
    | ActionAudited
)
Record: TypeAlias = KnownRecord | NewerRecord
