"""A log of millions of rows -> a WorkQueue, without making a record of each.

    add_ready(queue, jobs, keys)   new jobs that are ready at once: nearly all of a long backlog
    add_job(job_id, spec)          any other new job
    add_event(...)                 what happened to a job later
    odd                            ids of which something was told that needs the fold's judgement
    finish(fold)                   -> WorkQueue; ``fold`` is a Loader that was given all records
                                   of the odd ids

A job's usual life is applied here at once: add, start, timeout, start, complete, expire. For
whatever is not part of such a life (a second add, a start while leased, a record without an add)
the fold has rules with reasons; instead of having them twice, the whole id is left to the fold.
So both ways of loading agree (tests/property/test_workq_loading.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from journeyman.engines.workq.engine import WorkQueueEngine
from journeyman.engines.workq.job import (
    COMPLETED,
    EXHAUSTED,
    FAILED,
    LEASED,
    NEW,
    PENDING,
    Entry,
    Progress,
    Spec,
    id_in,
    job_id_of,
    lease_fields_of,
    limits_of,
    opened,
)
from journeyman.engines.workq.loading import Assembly, WorkqLoader
from journeyman.formats.workq import Command
from journeyman.units import NS_PER_MS

_COMPLETE, _FAIL = int(Command.COMPLETE), int(Command.FAIL)
_START, _TIMEOUT = int(Command.START_ATTEMPT), int(Command.TIMEOUT_ATTEMPT)
_ENDS = (int(Command.DELETE), int(Command.EXPIRE))
_UNFINISHED = (NEW, PENDING, LEASED)


class BulkLoader:
    """Takes the rows of a log in order; ``finish`` ends it."""

    def __init__(self, *, now_ns: int, paused: Iterable[str] = (), seed: int = 0) -> None:
        self._assembly = Assembly(now_ns, paused, seed)
        self._jobs = self._assembly.jobs
        self._ready: dict[int, list[Spec]] = {}
        self._keys: list[bytes] = []
        self._touched: set[bytes] = set()  # ids that are, or were, more than ready
        self.odd: set[bytes] = set()

    @property
    def now_ns(self) -> int:
        return self._assembly.now_ns

    def number_of(self, name: str) -> int:
        """The number of the queue with this name."""
        return self._assembly.number_of(name)

    def note_latest(self, created_ns: int) -> None:
        self._assembly.note_latest(created_ns)

    def add_ready(
        self, queue: int, jobs: Iterable[tuple[bytes, Spec]], expiries: Sequence[bytes]
    ) -> None:
        """Jobs of one queue, not expired, and the keys of their expiries."""
        added = list(jobs)
        for job_id in self._jobs.lay_all(added):
            self.mark_odd(job_id)
        self._ready.setdefault(queue, []).extend([spec for _, spec in added])
        self._keys += expiries

    def add_job(self, job_id: bytes, spec: Spec) -> None:
        self._touched.add(job_id)
        if self._jobs.lay_all(((job_id, spec),)):
            self.mark_odd(job_id)

    def add_event(self, job_id: bytes, command: int, logged_ns: int, result: bytes | None) -> None:
        """A row that is no add; ``result`` of complete and fail."""
        if job_id in self.odd:
            return
        entry = self._jobs.get(job_id)
        after = None if entry is None else _after(entry, command, logged_ns, result)
        self._touched.add(job_id)
        if after is not None:
            self._jobs.lay(job_id, after)
        elif entry is not None and command in _ENDS:
            self._jobs.lift(job_id)
        else:
            self.mark_odd(job_id)

    def mark_odd(self, job_id: bytes) -> None:
        self.odd.add(job_id)
        self._touched.add(job_id)

    def finish(self, fold: WorkqLoader) -> WorkQueueEngine:
        assembly, touched = self._assembly, self._touched
        for job_id in touched:
            entry = self._jobs.lift(job_id)
            if entry is not None and job_id not in self.odd:
                assembly.put(job_id, entry)
        for queue, specs in self._ready.items():
            if touched:
                specs[:] = [spec for spec in specs if job_id_of(spec) not in touched]
            assembly.put_ready(queue, specs)
        if touched:
            self._keys = [key for key in self._keys if id_in(key) not in touched]
        assembly.put_expiries(self._keys)
        self._ready, self._keys, self._touched = {}, [], set()
        fold.give(assembly)
        return assembly.finish()


def _after(entry: Entry, command: int, logged_ns: int, result: bytes | None) -> Progress | None:
    """The state after the row; None if it ends the job, or is not part of a usual life."""
    spec, stage, attempts, fails, started_ns, moment_ns, _ = opened(entry)
    if command == _START and stage in (NEW, PENDING):
        deadline_ns = logged_ns + lease_fields_of(spec)[2] * NS_PER_MS
        return spec, LEASED, attempts + 1, fails, logged_ns, deadline_ns, None
    if command in (_COMPLETE, _FAIL) and stage in _UNFINISHED:
        finished = COMPLETED if command == _COMPLETE else FAILED
        return spec, finished, attempts, fails, started_ns, logged_ns, result
    if command == _TIMEOUT and stage == LEASED:
        if 0 < limits_of(spec)[0] <= attempts:
            return spec, EXHAUSTED, attempts, fails, started_ns, logged_ns, b""
        return spec, PENDING, attempts, fails, started_ns, logged_ns, None
    is_retry = command == _TIMEOUT and stage == FAILED and moment_ns == logged_ns
    if is_retry and fails + 1 < limits_of(spec)[1]:
        return spec, PENDING, attempts, fails + 1, started_ns, logged_ns, None
    return None
