"""The store, as the writer of the work queue sees it: a batch of records goes in, and is durable.

    records of a batch --> the ids in them --engine: how each job is now--> one commit of the store

    the job is there             its record is written, and all index keys that follow from it
    deleted                      its record is removed
    TTL over, finished before    nothing: its record is history, until its retention is over
    TTL over, never finished     its record says failed, with an empty result, at the end of its TTL

A record holds where a job stands, not what happened to it, so nothing is read to write it. The
engine decides nothing while a batch is written, and may be looked at meanwhile.

That a job is due is not a record (it is a matter of time), but a status of the store: ``promote``
turns delayed into waiting, between two batches. Which ones are delayed is remembered here.

Pauses are the states of the queues. They are in the same commit as the records, and so is what the
ledger says: keys, delays of single retries, limits, jobs that wait for others.

One key more is kept, LONGEST_LIFE_KEY: no job of the queue has more time from its creation to the
end of its TTL. It bounds how far back a start looks for failed jobs (store_loading.py). Any other
program that writes jobs must delete this key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias
from uuid import UUID

from journeyman import errors
from journeyman.folds.keyspace import (
    LONGEST_LIFE_KEY,
    Defaults,
    queue_record,
    record_of_workq,
    wakes_ns_of,
    workq_of_record,
)
from journeyman.folds.workq import (
    FoldedJob,
    JobState,
    State,
    apply,
    expires_ns,
)
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, Record
from journeyman.servers.core.group_commit import Wait
from journeyman.servers.core.store import as_log_errors
from journeyman.storage import (
    Operation,
    PutEntries,
    PutQueue,
    RemoveJob,
    SetStatus,
    Storage,
    Upsert,
)
from journeyman.storage.folded import FoldedRecords, folded_ledger
from journeyman.units import NS_PER_MS

Look: TypeAlias = Callable[[bytes], tuple[FoldedJob, int, int] | None]  # WorkqEngine.job

PROMOTED_AT_ONCE: Final = 1000
UNWRITTEN_AT_ONCE: Final = 1000
MAX_U64: Final = 2**64 - 1
_FINISHED: Final = (JobState.COMPLETED, JobState.FAILED)


def ended(job: FoldedJob) -> FoldedJob:
    """How a job is remembered whose TTL is over: as it was finished, or else as failed then."""
    if job.state not in _FINISHED:
        job.state, job.result, job.finished = JobState.FAILED, b"", Instant(expires_ns(job))
    return job


class StoreRecorder:
    """``write`` and ``promote`` never run at the same time: the writer sees to that."""

    keeps_pauses: Final = True
    wait: Final = Wait.MORE  # a commit waits for the disk, under every policy

    def __init__(
        self,
        storage: Storage,
        look: Look,
        delayed: Iterable[tuple[int, bytes]] = (),
        *,
        ledger: FoldedRecords[LedgerRecord] | None = None,
        longest_life_ms: int = 0,
        unwritten: Sequence[Operation] = (),
    ) -> None:
        """``delayed``: when these jobs become ready, and their ids. ``ledger``: that of the store,
        loaded. ``longest_life_ms`` is what LONGEST_LIFE_KEY says. ``unwritten`` is made before
        anything else: a start on a full disk leaves it."""
        self._storage = storage
        self._ledger = ledger or folded_ledger(storage)
        self._look = look
        self._longest_life_ms = longest_life_ms
        self._unwritten = list(unwritten)
        self._delayed = {job_id: wakes_ns for wakes_ns, job_id in delayed}
        self._wakings = [(wakes_ns, job_id) for job_id, wakes_ns in self._delayed.items()]
        heapify(self._wakings)

    def write(
        self,
        records: Sequence[Record],
        paused: Iterable[str] | None = None,
        ledger: Sequence[LedgerRecord] = (),
    ) -> None:
        """Durable when it returns. JourneymanError: nothing was written, unless it is final."""
        operations, delayed = self._changes(records)
        if ledger:
            operations.append(PutEntries(self._ledger.changes(ledger)))
        if paused is not None:
            operations += self._pauses(frozenset(paused))
        if operations:
            with as_log_errors():
                self._keep_longest_life(records)
                self._apply(operations)
        for job_id, wakes_ns in delayed.items():
            self._remember(job_id, wakes_ns)

    def promote(self, now_ns: int) -> bool:
        """Delayed jobs that are due are waiting ones. Whether there may be more."""
        due: list[tuple[int, bytes]] = []
        while self._wakings and self._wakings[0][0] <= now_ns and len(due) < PROMOTED_AT_ONCE:
            wakes_ns, job_id = heappop(self._wakings)
            if self._delayed.get(job_id) == wakes_ns:  # else it has left or been put off meanwhile
                due.append((wakes_ns, job_id))
        if due:
            try:
                with as_log_errors():
                    self._apply([SetStatus(UUID(bytes=job_id), "waiting") for _, job_id in due])
            except errors.JourneymanError:
                self._wakings += due
                heapify(self._wakings)
                raise
        for _, job_id in due:
            del self._delayed[job_id]
        return len(due) == PROMOTED_AT_ONCE

    def has_due(self, now_ns: int) -> bool:
        """Whether ``promote`` may have something to do."""
        return bool(self._wakings) and self._wakings[0][0] <= now_ns

    # -- jobs --

    def _changes(
        self, records: Sequence[Record]
    ) -> tuple[list[Operation], dict[bytes, int | None]]:
        """What to do to the store; and for each job touched when it wakes, None if it is awake."""
        operations: list[Operation] = []
        delayed: dict[bytes, int | None] = {}
        over: list[bytes] = []
        for job_id, record in {record.job_id: record for record in records}.items():
            found = self._look(job_id)
            delayed[job_id] = None
            if found is not None:
                job, *waits = found
                kept = record_of_workq(job, record.logged.unix_ns, *waits)
                if kept.status == "delayed":
                    delayed[job_id] = wakes_ns_of(*found)
                operations.append(Upsert(kept))
            elif record.command == Command.EXPIRE:
                over.append(job_id)
            else:
                operations.append(RemoveJob(UUID(bytes=job_id)))
        if over:
            operations += self._endings(over, records)
        return operations, delayed

    def _endings(self, over: list[bytes], records: Sequence[Record]) -> list[Operation]:
        """The engine has dropped the jobs: what they were is in the store, and in the batch."""
        stored, _ = self._storage.get_jobs([UUID(bytes=job_id) for job_id in over])
        states: dict[bytes, State] = dict.fromkeys(over)
        states |= {record.job_uuid.bytes: _job_of(record) for record in stored}
        changed = {job_id for job_id, job in states.items() if not _is_finished(job)}
        for record in records:
            job_id = record.job_id
            if job_id in states and record.command != Command.EXPIRE:
                states[job_id] = apply(states[job_id], record)
                changed.add(job_id)
        return [
            Upsert(record_of_workq(ended(job), expires_ns(job)))
            for job_id in over
            if job_id in changed and isinstance(job := states[job_id], FoldedJob)
        ]

    def _remember(self, job_id: bytes, wakes_ns: int | None) -> None:
        if wakes_ns is None:
            self._delayed.pop(job_id, None)
        elif self._delayed.get(job_id) != wakes_ns:
            self._delayed[job_id] = wakes_ns
            heappush(self._wakings, (wakes_ns, job_id))

    # -- queues --

    def _pauses(self, names: frozenset[str]) -> list[Operation]:
        """What makes these queues the paused ones."""
        queues = {queue.name: queue for queue in self._storage.load_queues().queues}
        wanted = {name: queues.get(name) or queue_record(name) for name in queues.keys() | names}
        states = {name: "paused" if name in names else "active" for name in wanted}
        return [
            PutQueue(replace(queue, state=states[name]))
            for name, queue in sorted(wanted.items())
            if name not in queues or queue.state != states[name]
        ]

    # -- the store --

    def _apply(self, operations: list[Operation]) -> None:
        while self._unwritten:
            self._storage.apply(self._unwritten[:UNWRITTEN_AT_ONCE])
            del self._unwritten[:UNWRITTEN_AT_ONCE]
        self._storage.apply(operations)

    def _keep_longest_life(self, records: Sequence[Record]) -> None:
        """Before the jobs themselves: it may be too long, never too short."""
        longest_ms = max((life_ms_of(r) for r in records if isinstance(r, JobAdded)), default=0)
        if longest_ms > self._longest_life_ms:
            self._storage.backend.put(LONGEST_LIFE_KEY, longest_ms.to_bytes(8))
            self._longest_life_ms = longest_ms


def life_ms_of(added: JobAdded) -> int:
    """From the creation of a job to the end of its TTL, or a little more."""
    time = added.created if added.time is None else added.time
    waits_ns = max(time.unix_ns - added.created.unix_ns, 0)
    return min(added.ttl_ms + waits_ns // NS_PER_MS + 1, MAX_U64)


def _job_of(record: JobRecord) -> FoldedJob | None:
    try:
        return workq_of_record(record, Defaults())
    except errors.InvalidData:
        return None  # reported when it was loaded; `storage check` names it


def _is_finished(state: State) -> bool:
    return isinstance(state, FoldedJob) and state.state in _FINISHED
