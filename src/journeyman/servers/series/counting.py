"""Records of a work queue and runs of a schedule are counted in cells.

    add ----> ready, or scheduled until its time     added
    start --> running                                started, wait
    end ----> gone from here                         completed, failed, cancelled, ..., run
    retry --> ready

Of each job that has not ended, its group (a key of cells and its limits of attempts) and a moment
are kept: since when it is ready, or running. A waiting job that was never tried, the usual case of
many, is one number. What counts when follows the views of the lake; a job that was leased by hand
out of order, as only logs of other programs have it, is counted as the log says it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from msgspec.msgpack import Decoder

from journeyman.formats import workq
from journeyman.formats.task_names import error_class_of, task_of
from journeyman.logs.ztick.run_history import CUT_OFF, EXECUTED, RunLine
from journeyman.servers.series.cells import OTHERS, Cell, Example, runs_key, work_key
from journeyman.servers.series.lengths import bucket_of
from journeyman.units import MINUTE_S, NS_PER_S, NS_PER_US

MINUTE_NS: Final = MINUTE_S * NS_PER_S
MAX_GROUPS: Final = 20_000  # groups of jobs that have names of their own
PART_JOBS: Final = 10_000  # in a part of what is saved
MAX_FAILED: Final = 10_000  # failed jobs whose retry may follow; it comes at once
ERROR_CHARS: Final = 200
OF_TIMETABLE: Final = "timetable "  # before the name, where the rule of a run is named
TIMED_OUT: Final = "timed-out"

_COMPLETE, _START = workq.Command.COMPLETE, workq.Command.START_ATTEMPT
_TIMEOUT, _DELETE, _EXPIRE = (
    workq.Command.TIMEOUT_ATTEMPT,
    workq.Command.DELETE,
    workq.Command.EXPIRE,
)
_GROUP_SHIFT: Final = 64
_IS_SCHEDULED: Final = 1 << 63
_MOMENT: Final = _IS_SCHEDULED - 1


class CountedGroup(NamedTuple):
    """The key of cells and the limits that many jobs have in common."""

    key: str
    max_attempts: int
    max_fails: int


class Life(NamedTuple):
    """A job that was tried. ``since_ns``: when it became ready again, or was leased."""

    group: int
    is_running: bool
    since_ns: int
    attempts: int
    fails: int


class SavedWork(NamedTuple):
    """The first part of what is saved of the work queue."""

    groups: list[CountedGroup]
    depths: dict[str, list[int]]
    due: dict[int, dict[str, int]]
    failed: list[tuple[bytes, tuple[Life, int]]]
    parked: list[tuple[bytes, Life]]


_HEAD_OF_SAVED: Final = Decoder(SavedWork)
_JOBS_OF_SAVED: Final = Decoder(tuple[list[tuple[bytes, int, int]], list[tuple[bytes, Life]]])

R = TypeVar("R")
Job: TypeAlias = int | Life  # a number: group, whether it is scheduled, since when it is ready


class OpenMinute:
    """The cells of the minute that the log has come to; time never goes back in it."""

    def __init__(self, begin_s: int = 0) -> None:
        self.begin_s = begin_s
        self.end_ns = (begin_s + MINUTE_S) * NS_PER_S
        self.cells: dict[str, Cell] = {}

    def cell(self, key: str) -> Cell:
        found = self.cells.get(key)
        if found is None:
            found = self.cells[key] = Cell()
        return found


class LaneCounts(ABC, Generic[R]):
    """The open minute of a lane, and what its records left behind before it."""

    def __init__(self) -> None:
        self.minute = OpenMinute()
        self.depths: dict[str, list[int]] = {}  # scheduled, ready, running, by key

    @abstractmethod
    def apply(self, record: R) -> None:
        """The minute of the record is open, or a later one is."""

    def next_due_s(self) -> int | None:
        """The next minute in which depths change without a record."""
        return None

    def close_minute(self, *, is_whole: bool) -> dict[str, Cell]:  # noqa: ARG002 - see WorkCounts
        """The cells of the open minute as it ended; the next is to be opened. ``is_whole``: with a
        cell for each key that has jobs."""
        return self.minute.cells

    def forget_unused_groups(self) -> None:
        """Give names that nothing has any more back."""

    def saved(self) -> Iterator[Any]:
        """All that is known beyond the minute, in parts that MessagePack can write."""
        yield from ()

    def load(self, parts: Iterator[bytes]) -> None:
        """Take over what was saved."""


class WorkCounts(LaneCounts[workq.Record]):
    """Jobs that have not ended, and how many of each key stand where."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[bytes, Job] = {}
        self.groups: list[CountedGroup] = []
        self.due: dict[int, dict[str, int]] = {}  # jobs that become ready in a minute, by key
        self.parked: dict[bytes, Life] = {}  # jobs that wait without a lease
        self.failed: OrderedDict[bytes, tuple[Life, int]] = OrderedDict()
        self._due_minutes: list[int] = []  # a heap of the keys of ``due``
        self._numbers: dict[CountedGroup, int] = {}

    # -- records --

    def apply(self, record: workq.Record) -> None:
        if isinstance(record, workq.JobAdded):
            self._add(record)
        elif isinstance(record, workq.UnknownCommand):
            return
        elif record.command == workq.Command.PARK:
            self._park(record.job_id, record.logged.unix_ns)
        elif record.command == _TIMEOUT and record.job_id in self.parked:
            return  # the first park is written with it, for the original
        elif record.job_id in self.parked:
            life = self.parked.pop(record.job_id)
            key = self.groups[life.group].key
            self.minute.cell(key)  # its depths change
            self._move(key, 1, 1)
            self.jobs[record.job_id] = life._replace(since_ns=record.logged.unix_ns)
            self.apply(record)
        elif isinstance(record, workq.JobFinished):
            self._finish(record)
        elif isinstance(record, workq.JobEvent):
            if record.command == _START:
                self._start(record.job_id, record.logged.unix_ns)
            elif record.command == _TIMEOUT:
                self._time_out(record.job_id, record.logged.unix_ns)
            elif record.command in (_DELETE, _EXPIRE):
                self.failed.pop(record.job_id, None)
                is_expired = record.command == _EXPIRE
                self._remove(record.job_id, record.logged.unix_ns, is_expired=is_expired)

    def _add(self, added: workq.JobAdded) -> None:
        created_ns = _fitting(added.created.unix_ns)
        ready_ns = created_ns if added.time is None else _fitting(added.time.unix_ns)
        ready_ns = max(created_ns, ready_ns)
        name = work_key(encodable(added.name), task_of(added.payload))
        group = self._number_of(CountedGroup(name, added.max_attempts, added.max_fails))
        before = self.jobs.get(added.job_id)
        if before is not None:
            if isinstance(before, int) and (group, ready_ns) == (
                before >> _GROUP_SHIFT,
                before & _MOMENT,
            ):
                return  # the same add, written again
            self._remove(added.job_id, created_ns, is_expired=False)
        key = self.groups[group].key
        job = group << _GROUP_SHIFT | ready_ns
        if ready_ns > _fitting(added.logged.unix_ns):
            job |= _IS_SCHEDULED
            self._plan(key, ready_ns, 1)
        self._move(key, 0 if job & _IS_SCHEDULED else 1, 1)
        self.jobs[added.job_id] = job
        self.minute.cell(key).added += 1

    def _start(self, job_id: bytes, now_ns: int) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            return
        life = self._taken_out(job)
        cell = self.minute.cell(self.groups[life.group].key)
        cell.started += 1
        if life.is_running:  # the timeout of that lease is not in the log
            self._end_run(cell, life, now_ns)
            cell.timed_out += 1
            cell.note_error(TIMED_OUT)
        else:
            bucket = bucket_of(now_ns - life.since_ns)
            cell.wait[bucket] = cell.wait.get(bucket, 0) + 1
        self._move(self.groups[life.group].key, 2, 1)
        self.jobs[job_id] = Life(life.group, True, now_ns, life.attempts + 1, life.fails)

    def _time_out(self, job_id: bytes, now_ns: int) -> None:
        job = self.jobs.get(job_id)
        if job is None:
            self._try_again(job_id, now_ns)
            return
        if isinstance(job, int) or not job.is_running:
            return
        group = self.groups[job.group]
        self._move(group.key, 2, -1)
        cell = self.minute.cell(group.key)
        cell.timed_out += 1
        cell.note_error(TIMED_OUT)
        run_us = self._end_run(cell, job, now_ns)
        cell.note_failed(Example(run_us, now_ns, job_id, TIMED_OUT))
        if 0 < group.max_attempts <= job.attempts:
            del self.jobs[job_id]
            return
        self._move(group.key, 1, 1)
        self.jobs[job_id] = Life(job.group, False, now_ns, job.attempts, job.fails)

    def _park(self, job_id: bytes, now_ns: int) -> None:
        """It waits without a lease: neither ready nor running, and no attempt has failed."""
        job = self.jobs.pop(job_id, None)
        if job is not None:
            life = self._taken_out(job)
            if life.is_running:
                self._end_run(self.minute.cell(self.groups[life.group].key), life, now_ns)
            self.parked[job_id] = life._replace(is_running=False)

    def _try_again(self, job_id: bytes, now_ns: int) -> None:
        """A job that failed just now is in its queue again."""
        life, failed_ns = self.failed.pop(job_id, (None, 0))
        if life is not None and failed_ns == now_ns:
            self._move(self.groups[life.group].key, 1, 1)
            self.jobs[job_id] = Life(life.group, False, now_ns, life.attempts, life.fails + 1)

    def _finish(self, record: workq.JobFinished) -> None:
        job = self.jobs.pop(record.job_id, None)
        if job is None:
            return
        now_ns = record.logged.unix_ns
        life = self._taken_out(job)
        group = self.groups[life.group]
        cell = self.minute.cell(group.key)
        run_us = self._end_run(cell, life, now_ns) if life.is_running else 0
        if record.command == _COMPLETE:
            cell.completed += 1
            if life.is_running:
                cell.note_slow(Example(run_us, now_ns, record.job_id))
            return
        if record.result == workq.CANCELLATION:
            cell.cancelled += 1
            return
        cell.failed += 1
        error = error_class_of(record.result)
        cell.note_error(error or "failed")
        cell.note_failed(Example(run_us, now_ns, record.job_id, error or "failed"))
        if life.fails + 1 < group.max_fails:
            self.failed[record.job_id] = life, now_ns
            if len(self.failed) > MAX_FAILED:
                self.failed.popitem(last=False)

    def _remove(self, job_id: bytes, now_ns: int, *, is_expired: bool) -> None:
        job = self.jobs.pop(job_id, None)
        if job is None:
            return
        life = self._taken_out(job)
        cell = self.minute.cell(self.groups[life.group].key)
        if life.is_running:
            self._end_run(cell, life, now_ns)
        if is_expired:
            cell.expired += 1
        else:
            cell.deleted += 1

    def _taken_out(self, job: Job) -> Life:
        """The job, which no longer counts among those that stand where it stood."""
        if isinstance(job, int):
            life = Life(job >> _GROUP_SHIFT, False, job & _MOMENT, 0, 0)
            key = self.groups[life.group].key
            minute_s = life.since_ns // MINUTE_NS * MINUTE_S
            is_planned = bool(job & _IS_SCHEDULED) and minute_s in self.due
            if is_planned:
                self._plan(key, life.since_ns, -1)
            self._move(key, 0 if is_planned else 1, -1)
            return life
        self._move(self.groups[job.group].key, 2 if job.is_running else 1, -1)
        return job

    def _end_run(self, cell: Cell, life: Life, now_ns: int) -> int:
        run_ns = max(0, now_ns - life.since_ns)
        bucket = bucket_of(run_ns)
        cell.run[bucket] = cell.run.get(bucket, 0) + 1
        return run_ns // NS_PER_US

    def _move(self, key: str, place: int, step: int) -> None:
        depth = self.depths.get(key)
        if depth is None:
            depth = self.depths[key] = [0, 0, 0]
        depth[place] += step

    def _plan(self, key: str, ready_ns: int, step: int) -> None:
        minute_s = ready_ns // MINUTE_NS * MINUTE_S
        keys = self.due.get(minute_s)
        if keys is None:
            keys = self.due[minute_s] = {}
            heappush(self._due_minutes, minute_s)
        keys[key] = keys.get(key, 0) + step

    def _number_of(self, group: CountedGroup) -> int:
        number = self._numbers.get(group)
        if number is None:
            if len(self.groups) >= MAX_GROUPS:
                group = CountedGroup(work_key(OTHERS, ""), group.max_attempts, group.max_fails)
                if group in self._numbers or len(self.groups) >= 2 * MAX_GROUPS:
                    return self._numbers.get(group, 0)
            number = self._numbers[group] = len(self.groups)
            self.groups.append(group)
        return number

    # -- minutes --

    def next_due_s(self) -> int | None:
        return self._due_minutes[0] if self._due_minutes else None

    def close_minute(self, *, is_whole: bool) -> dict[str, Cell]:
        while self._due_minutes and self._due_minutes[0] <= self.minute.begin_s:
            for key, count in self.due.pop(heappop(self._due_minutes)).items():
                self.minute.cell(key)
                self._move(key, 0, -count)
                self._move(key, 1, count)
        for key in [*self.depths] if is_whole else []:
            self.minute.cell(key)
        for key, cell in self.minute.cells.items():
            depth = self.depths.get(key, (0, 0, 0))
            cell.set_depth(depth)
            if not any(depth):
                self.depths.pop(key, None)
        return self.minute.cells

    # -- between two processes --

    def saved(self) -> Iterator[Any]:
        failed, parked = list(self.failed.items()), list(self.parked.items())
        yield self.groups, self.depths, self.due, failed, parked
        part: list[tuple[bytes, int, int]] = []
        lives: list[tuple[bytes, Life]] = []
        for job_id, job in self.jobs.items():
            if isinstance(job, int):
                part.append((job_id, job >> _GROUP_SHIFT, job & (_IS_SCHEDULED | _MOMENT)))
            else:
                lives.append((job_id, job))
            if len(part) + len(lives) >= PART_JOBS:
                yield part, lives
                part, lives = [], []
        yield part, lives

    def load(self, parts: Iterator[bytes]) -> None:
        groups, self.depths, self.due, failed, parked = _HEAD_OF_SAVED.decode(next(parts))
        self.groups = groups
        self.failed = OrderedDict(failed)
        self.parked = dict(parked)
        self._numbers = {group: number for number, group in enumerate(groups)}
        self._due_minutes = sorted(self.due)
        for data in parts:
            part, lives = _JOBS_OF_SAVED.decode(data)
            self.jobs.update((job_id, group << _GROUP_SHIFT | rest) for job_id, group, rest in part)
            self.jobs.update(lives)

    def forget_unused_groups(self) -> None:
        if len(self.groups) < MAX_GROUPS // 2:
            return
        used = {_group_of(job) for job in self.jobs.values()}
        used |= {life.group for life, _ in self.failed.values()}
        used |= {life.group for life in self.parked.values()}
        kept = sorted(used)
        moved = {old: new for new, old in enumerate(kept)}
        self.groups = [self.groups[number] for number in kept]
        self._numbers = {group: number for number, group in enumerate(self.groups)}
        for job_id, job in self.jobs.items():
            if isinstance(job, int):
                moment = job & (_IS_SCHEDULED | _MOMENT)
                self.jobs[job_id] = moved[job >> _GROUP_SHIFT] << _GROUP_SHIFT | moment
            else:
                self.jobs[job_id] = job._replace(group=moved[job.group])
        for job_id, (life, failed_ns) in self.failed.items():
            self.failed[job_id] = life._replace(group=moved[life.group]), failed_ns
        for job_id, life in self.parked.items():
            self.parked[job_id] = life._replace(group=moved[life.group])


class RunCounts(LaneCounts[RunLine]):
    """The runs of a schedule. They are known once they have ended."""

    def apply(self, run: RunLine) -> None:
        """A timetable may run by a rule, or have a runner of its own."""
        rule, timetable = run.rule, _timetable_of(run.job)
        if rule.startswith(OF_TIMETABLE):
            rule, timetable = "", rule.removeprefix(OF_TIMETABLE)
        cell = self.minute.cell(runs_key(encodable(rule), encodable(timetable)))
        cell.started += 1
        bucket = bucket_of(run.started_ns - run.execution_ns)
        cell.wait[bucket] = cell.wait.get(bucket, 0) + 1
        run_ns = max(0, run.ended_ns - run.started_ns)
        bucket = bucket_of(run_ns)
        cell.run[bucket] = cell.run.get(bucket, 0) + 1
        key = encodable(run.job).encode()
        if run.outcome == EXECUTED:
            cell.completed += 1
            cell.note_slow(Example(run_ns // NS_PER_US, run.ended_ns, key))
            return
        if run.outcome == CUT_OFF:
            cell.cut_off += 1
        else:
            cell.failed += 1
        error = encodable(run.detail[:ERROR_CHARS]) or run.outcome
        cell.note_error(error)
        cell.note_failed(Example(run_ns // NS_PER_US, run.ended_ns, key, error))


def _group_of(job: Job) -> int:
    return job >> _GROUP_SHIFT if isinstance(job, int) else job.group


def encodable(text: str) -> str:
    """The name as any JSON can have it, without zero bytes."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def _timetable_of(job: str) -> str:
    """The timetable that planned a job of the schedule, by its name; empty: none did."""
    name, _, label = job.rpartition("@")
    is_label = label[:4].isdigit() and label[4:5] == "-" and "T" in label
    return name if is_label else ""


def _fitting(moment_ns: int) -> int:
    return min(max(moment_ns, 0), _MOMENT)
