"""All timetables of a schedule, one row of bytes each, and what is under way of each.

    name ──> i64 done_s | i32 offset | i64 planned_s | i32 offset | u8 paused | fields as JSON

    done       the last occurrence that was decided: run, missed or skipped
    planned    the one that stands in the schedule as a job, ``<name>@<local time with offset>``
    busy       runs that wait or run, and occurrences that wait to be tried again
    held       due jobs that wait until the timetable is no longer busy; they stay planned

A row is all that a timetable at rest takes: its fields are read when it fires, and what was read is
kept for the last few thousand. The offsets are those that the zone had when the occurrence was
planned: so its job is found again after the rules of the zone have changed.

Not here: what happens when an occurrence is due or a run has ended (occurrences.py).
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

from journeyman.engines.sharded_dict import SHARDS, ShardedDict
from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.ztick.job_table import Job
from journeyman.errors import TimetableError
from journeyman.formats import ledger
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.ztick import Runner
from journeyman.protocols.ztick.grammar import read_runner
from journeyman.timetables import Occurrences, Timetable, occurrences_of
from journeyman.timetables.run_options import RunOptions
from journeyman.timetables.zones import label_of, moment_of_label, zone_of

MAX_TIMETABLES = 1_000_000
MAX_NAME_BYTES = 512
AT = "@"

Row: TypeAlias = bytes
_HEAD = Struct(">qiqiB")
_NEVER = -(2**63)
_dumps = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode
_HOLD, _RELEASE = "hold", "release"  # one job of a name; the names may hold very many
_Change: TypeAlias = tuple[object, str, Any]  # table, key, what was there


class Occurrence(NamedTuple):
    """A moment, and the offset of its zone when it was planned."""

    at_s: int
    offset_s: int

    @property
    def label(self) -> str:
        return label_of(self.at_s, self.offset_s)

    def job(self, name: str) -> str:
        return f"{name}{AT}{self.label}"


class TimetableRow(NamedTuple):
    """A row, taken apart."""

    done: Occurrence | None
    planned: Occurrence | None
    paused: bool
    body: bytes

    def pack(self) -> Row:
        done = self.done or (_NEVER, 0)
        planned = self.planned or (_NEVER, 0)
        return _HEAD.pack(*done, *planned, self.paused) + self.body

    @classmethod
    def unpack(cls, row: Row) -> TimetableRow:
        done_s, done_offset_s, planned_s, planned_offset_s, paused = _HEAD.unpack_from(row)
        return cls(
            None if done_s == _NEVER else Occurrence(done_s, done_offset_s),
            None if planned_s == _NEVER else Occurrence(planned_s, planned_offset_s),
            bool(paused),
            row[_HEAD.size :],
        )

    @property
    def fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = json.loads(self.body)
        return fields


class Read(NamedTuple):
    """The decoded fields of a timetable."""

    timetable: Timetable
    occurrences: Occurrences
    runner: Runner | None


def name_of(job_identifier: str) -> str | None:
    """The timetable that a job of this identifier would belong to."""
    name, at, _ = job_identifier.rpartition(AT)
    return name if at else None


def body_of(fields: Mapping[str, Any]) -> bytes:
    return _dumps(fields).encode()


@lru_cache(maxsize=4096)
def read_body(body: bytes) -> Read | None:
    """Read a timetable of the ledger. None: it makes no sense here; its zone may be unknown."""
    try:
        timetable = Timetable.read(json.loads(body))
        runner = read_runner(timetable.runner) if timetable.runner else None
        if isinstance(runner, str):
            return None
        return Read(timetable, occurrences_of(timetable), runner)
    except (TimetableError, ValueError, TypeError, AttributeError, RecursionError):
        return None


class TimetableBook:
    """See the module's docstring."""

    __slots__ = (
        "_held",
        "_names",
        "_notices_of",
        "_orphans",
        "_retries",
        "_retrying",
        "_rows",
        "_runs",
        "_settled_notices",
        "catching_up",
        "changes",
        "clock_was_wrong",
        "is_kept",
        "latest_ns",
        "notices",
        "paused",
        "rule_options",
        "steps",
        "swept",
        "total",
    )

    def __init__(self) -> None:
        self.is_kept = True  # if not, there is no ledger to keep them in, so none can be set
        self._rows: ShardedDict[str, Row] = ShardedDict()
        self._names: SortedSet[str] = SortedSet()
        self._runs: dict[str, int] = {}  # by name: runs that wait or run
        self._held: dict[str, deque[Job]] = {}  # by name
        self._retries: dict[str, int] = {}  # by job: how often it was tried again
        self._retrying: dict[str, int] = {}  # by name: how many of these jobs
        self._orphans: dict[str, Occurrence | None] = {}  # planned by timetables that are gone
        self.notices: dict[str, Mapping[str, Any]] = {}  # by job; see notices.py
        self._notices_of: dict[str, int] = {}  # by owner
        self._settled_notices: list[str] = []  # their jobs may still be in the log
        self.rule_options: dict[str, RunOptions] = {}  # by rule, of those that have some
        self.catching_up: dict[str, int] = {}  # by name: run everything up to this moment
        self.total = 0
        self.paused = 0
        self.steps = 0  # occurrences that were looked for: a decision can stop after so many
        self.swept = SHARDS  # the shards below have been checked; all: nothing is to be checked
        self.clock_was_wrong = False  # planned occurrences must be checked more closely
        self.latest_ns = _NEVER  # the latest moment of a decision
        self.changes: list[_Change] = []  # since the batch began, which sets it

    def adopt(self, rows: ShardedDict[str, Row], orphans: dict[str, Occurrence | None]) -> None:
        """Load the entries of the ledger. ``Resume`` checks them against the jobs."""
        self._rows = rows
        self._orphans = orphans
        self._names = SortedSet(sorted(name for name, _ in rows.items()))
        for number in range(SHARDS):
            for row in rows.numbered(number).values():
                self._count(row, 1)

    # -- rows ------------------------------------------------------------------------------------

    def get(self, name: str) -> TimetableRow | None:
        row = self._rows.get(name)
        return None if row is None else TimetableRow.unpack(row)

    def has(self, name: str) -> bool:
        return self._rows.get(name) is not None

    def owner(self, job_identifier: str) -> str | None:
        """The timetable that this job belongs to."""
        if AT not in job_identifier or not self.total:
            return None
        name = name_of(job_identifier)
        return name if name is not None and self.has(name) else None

    def read(self, name: str) -> Read | None:
        """Its fields; None: there is no such timetable, or it cannot be read."""
        row = self.get(name)
        return None if row is None else read_body(row.body)

    def put(self, name: str, row: TimetableRow | None) -> None:
        """Create, replace or, with None, remove it."""
        self.changes.append((self._rows, name, self._rows.get(name)))
        self._replace(name, None if row is None else row.pack())

    def _replace(self, name: str, row: Row | None) -> None:
        shard = self._rows.shard_to_change(name)
        before = shard.pop(name, None)
        self._count(before, -1)
        self._count(row, 1)
        if before is None and row is not None:
            self._names.add(name)
        elif before is not None and row is None:
            self._names.remove(name)
        if row is not None:
            shard[name] = row

    def _count(self, row: Row | None, by: int) -> None:
        if row is not None:
            self.total += by
            self.paused += by * row[_HEAD.size - 1]

    def page(self, prefix: str, after: str, limit: int) -> list[str]:
        """Names in their order, those above ``after``."""
        return self._names.beginning_with(prefix, after, limit)

    def snapshot(self) -> Iterator[dict[str, Row]]:
        return self._rows.snapshot()

    @property
    def is_to_check(self) -> bool:
        return self.swept < SHARDS and self.total > 0

    def next_to_check(self, at_least: int) -> list[str]:
        """Names that a check has not come to; ``swept`` moves on."""
        names: list[str] = []
        self.changes.append((None, "swept", self.swept))
        while self.swept < SHARDS and len(names) < at_least:
            names += self._rows.numbered(self.swept)
            self.swept += 1
        return names

    def check_all(self) -> None:
        self.changes.append((None, "swept", self.swept))
        self.swept = 0

    def has_new_rules(self, row: TimetableRow) -> bool:
        """Return whether the zone has another offset now than when the occurrence was planned."""
        planned = row.planned
        if planned is None:
            return False
        try:
            return zone_of(row.fields.get("tz", "UTC")).offset_s(planned.at_s) != planned.offset_s
        except TimetableError:
            return False

    # -- under way -------------------------------------------------------------------------------

    def runs(self, name: str) -> int:
        return self._runs.get(name, 0)

    def held_runs(self, name: str) -> int:
        return len(self._held.get(name, ()))

    def is_busy(self, name: str) -> bool:
        return name in self._runs or name in self._retrying

    def counted(self, job_identifier: str) -> str | None:
        """The timetable whose runs those of this job count among."""
        name = name_of(job_identifier) if self._runs else None
        return name if name is not None and name in self._runs else None

    def add_run(self, name: str, by: int) -> None:
        self._set(self._runs, name, max(0, self.runs(name) + by) or None)

    def hold(self, name: str, job: Job) -> None:
        self.changes.append((_HOLD, name, None))
        self._held.setdefault(name, deque()).append(job)

    def release(self, name: str) -> Job | None:
        """The job that was held first."""
        held_runs = self._held.get(name)
        if not held_runs:
            return None
        job = held_runs.popleft()
        if not held_runs:
            del self._held[name]
        self.changes.append((_RELEASE, name, job))
        return job

    def retries(self, job_identifier: str) -> int:
        return self._retries.get(job_identifier, 0)

    def set_retries(self, job_identifier: str, attempt: int) -> None:
        """0: it is not to be tried again, or need not be."""
        before = self.retries(job_identifier)
        if bool(before) != bool(attempt) and (name := name_of(job_identifier)) is not None:
            jobs = self._retrying.get(name, 0) + (1 if attempt else -1)
            self._set(self._retrying, name, jobs or None)
        self._set(self._retries, job_identifier, attempt or None)

    def notices_of(self, owner: str) -> int:
        return self._notices_of.get(owner, 0)

    def set_notice(self, job_identifier: str, notice: Mapping[str, Any] | None) -> None:
        """Set the notice of a job. None: the notice has ended."""
        before = self.notices.get(job_identifier)
        if (before is None) != (notice is None):
            owner = (notice or before or {})["owner"]
            count = self.notices_of(owner) + (-1 if notice is None else 1)
            self._set(self._notices_of, owner, count or None)
        self._set(self.notices, job_identifier, notice)

    def adopt_settled_notices(self, jobs: list[str]) -> None:
        self._settled_notices = jobs

    def take_settled_notices(self) -> list[str]:
        """The jobs of notices that the ledger settled before the start; returned once."""
        settled, self._settled_notices = self._settled_notices, []
        return settled

    def set_rule_options(self, rule: str, options: RunOptions | None) -> None:
        self._set(self.rule_options, rule, options)

    def take_orphans(self) -> dict[str, Occurrence | None]:
        """The planned jobs of removed timetables, by name; returned once."""
        orphans, self._orphans = self._orphans, {}
        return orphans

    def all_retries(self) -> list[tuple[str, int]]:
        return list(self._retries.items())

    def retried(self, name: str) -> list[str]:
        """The jobs of this timetable that wait to be tried again, or are."""
        return [job for job in self._retries if name_of(job) == name]

    def _set(self, table: dict[str, Any], key: str, value: Any) -> None:
        self.changes.append((table, key, table.get(key)))
        self._assign(table, key, value)

    @staticmethod
    def _assign(table: dict[str, Any], key: str, value: Any) -> None:
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value

    # -- batches ---------------------------------------------------------------------------------

    def undo_batch(self) -> None:
        changes, self.changes = self.changes, []
        for table, key, before in reversed(changes):
            if table is None:
                self.swept = before
            elif table is self._rows:
                self._replace(key, before)
            elif table is _RELEASE:
                self._held.setdefault(key, deque()).appendleft(before)
            elif table is _HOLD:
                held_runs = self._held[key]
                held_runs.pop()
                if not held_runs:
                    del self._held[key]
            else:
                assert isinstance(table, dict)
                self._assign(table, key, before)
        self.catching_up.clear()  # is found out again


class TimetableLoader:
    """Takes the ledger's records about timetables in order (logs/ledger: Absorbing); ``fill`` ends
    it. The two kinds of which there is one for each timetable are not parsed."""

    unparsed_kinds: Collection[str] = ("timetable-set", "timetable-planned")

    def __init__(self) -> None:
        # With an empty body: not, or not yet, set.
        self._rows: ShardedDict[str, Row] = ShardedDict()
        self._retries: dict[str, int] = {}
        self._notices: dict[str, Mapping[str, Any]] = {}
        self._settled_notices: dict[str, None] = {}
        self._rule_options: dict[str, RunOptions] = {}
        self._live = 0

    @property
    def live_records(self) -> int:
        """An upper bound: two for each timetable that was ever set."""
        return self._live + len(self._retries) + len(self._notices) + len(self._rule_options)

    def absorb(self, record: LedgerRecord | ledger.UnparsedRecord) -> bool:
        if isinstance(record, ledger.UnparsedRecord):
            name, *members = record.members
            if record.kind == "timetable-set":
                self._set(name.decode(), members[0])
            else:
                self._plan(name.decode(), *(_moment(label.decode()) for label in members))
        elif isinstance(record, ledger.TimetableSet):
            self._set(record.timetable, body_of(record.body))
        elif isinstance(record, ledger.TimetableRemoved):
            self._set(record.timetable, b"")
        elif isinstance(record, ledger.TimetablePlanned):
            self._plan(record.timetable, _moment(record.done), _moment(record.planned))
        elif isinstance(record, ledger.TimetableUnplanned):
            self._plan(record.timetable, _NO_MOMENT, _NO_MOMENT)
        elif isinstance(record, ledger.TimetablePaused | ledger.TimetableResumed):
            row = self._row(record.timetable)
            paused = bytes([isinstance(record, ledger.TimetablePaused)])
            row = row[: _HEAD.size - 1] + paused + row[_HEAD.size :]
            self._rows.shard_of(record.timetable)[record.timetable] = row
        elif isinstance(record, ledger.RunRetried):
            self._retries[record.job] = record.attempt
        elif isinstance(record, ledger.RunSettled):
            self._retries.pop(record.job, None)
        elif isinstance(record, ledger.NoticeSet):
            if _is_notice(record.body):
                self._notices[record.job] = record.body
                self._settled_notices.pop(record.job, None)
        elif isinstance(record, ledger.NoticeSettled):
            self._notices.pop(record.job, None)
            self._settled_notices[record.job] = None
        elif isinstance(record, ledger.RuleOptionsSet):
            with suppress(TimetableError):  # written by a newer version
                self._rule_options[record.rule] = RunOptions.read(record.body)
        elif isinstance(record, ledger.RuleOptionsRemoved):
            self._rule_options.pop(record.rule, None)
        else:
            return False
        return True

    def _row(self, name: str) -> Row:
        return self._rows.shard_of(name).get(name, _NO_ROW)

    def _set(self, name: str, body: bytes) -> None:
        shard = self._rows.shard_of(name)
        row = shard.get(name)
        if row is None:
            row = _NO_ROW
            self._live += 2
        shard[name] = row[: _HEAD.size] + body

    def _plan(self, name: str, done: tuple[int, int], planned: tuple[int, int]) -> None:
        row = self._row(name)
        head = _HEAD.pack(*done, *planned, row[_HEAD.size - 1])
        self._rows.shard_of(name)[name] = head + row[_HEAD.size :]

    def fill(self, book: TimetableBook) -> None:
        """Fill the book; removed timetables with a plan may still have a job in the log."""
        gone = [name for name, row in self._rows.items() if len(row) == _HEAD.size]
        orphans: dict[str, Occurrence | None] = {}
        for name in gone:
            planned = TimetableRow.unpack(self._rows.shard_of(name).pop(name)).planned
            if planned is not None:
                orphans[name] = planned
        book.adopt(self._rows, orphans)
        for job, attempt in self._retries.items():
            book.set_retries(job, attempt)
        for job, notice in self._notices.items():
            book.set_notice(job, notice)
        book.rule_options.update(self._rule_options)
        book.adopt_settled_notices([*self._settled_notices])


_NO_MOMENT = (_NEVER, 0)
_NO_ROW = _HEAD.pack(*_NO_MOMENT, *_NO_MOMENT, 0)


def _moment(label: str) -> tuple[int, int]:
    """Return what a row holds of it."""
    return (moment_of_label(label) if label else None) or _NO_MOMENT


def _is_notice(body: Mapping[str, Any]) -> bool:
    """Return whether the body of a record is a notice as this version writes them."""
    facts, words = body.get("facts"), body.get("runner")
    return (
        isinstance(body.get("owner"), str)
        and type(body.get("due")) is int
        and isinstance(words, list)
        and all(isinstance(word, str) for word in words)
        and isinstance(facts, dict)
        and isinstance(facts.get("event"), str)
        and isinstance(facts.get("job"), str)
    )
