"""Runs of triggered jobs: which wait, which are under way.

    triggered --add--> waiting --start, in order, as slots are free--> running --finish--> gone
                          |
                          +--withdraw: the job was SET or removed--> gone

A run has a number of its own, counted from 1, because a job may get a new plan while a run of it
is under way: the run keeps its slot until it ends, but its end no longer concerns the job. At most
``max_runs`` run at a time.

Waiting runs start in the order of their numbers. ``_first`` is the smallest number that can still
be waiting, so a withdrawn run costs a look-up when its turn comes, and nothing is searched.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from journeyman.engines.ztick.job import Job, order_of
from journeyman.engines.ztick.messages import StartRun

_Waiting: TypeAlias = tuple[Job, StartRun]
_Change: TypeAlias = tuple[dict[int, Any], int, object]  # which table, run id, what was there


class RunQueue:
    """Waiting and running runs by their ids."""

    __slots__ = ("_changes", "_first", "_max_runs", "_next", "_running", "_saved", "_waiting")

    def __init__(self, max_runs: int) -> None:
        assert max_runs > 0
        self._max_runs = max_runs
        self._waiting: dict[int, _Waiting] = {}
        self._running: dict[int, Job] = {}
        self._first = 1
        self._next = 1
        self._changes: list[_Change] | None = None  # of the open batch
        self._saved = (1, 1)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def next_id(self) -> int:
        """The id of the run that is added next."""
        return self._next

    def add(self, job: Job, effect: StartRun) -> None:
        """Queue a run of a job that was triggered with ``next_id``."""
        run_id = self._next
        assert run_id == effect.run_id == order_of(job)
        self._note(self._waiting, run_id)
        self._waiting[run_id] = (job, effect)
        self._next = run_id + 1

    def start(self) -> tuple[StartRun, ...]:
        """Give the free slots to the runs that have waited longest."""
        started = []
        while self._waiting and len(self._running) < self._max_runs:
            run_id = self._first
            self._first += 1
            if run_id not in self._waiting:
                continue
            self._note(self._waiting, run_id)
            self._note(self._running, run_id)
            self._running[run_id], effect = self._waiting.pop(run_id)
            started.append(effect)
        return tuple(started)

    def withdraw(self, run_id: int) -> None:
        """The job of this run was SET or removed: it shall not start. Once started it goes on."""
        self._note(self._waiting, run_id)
        self._waiting.pop(run_id, None)

    def finish(self, run_id: int) -> Job | None:
        """Free the slot; the job as it was triggered. None if there is no such run."""
        self._note(self._running, run_id)
        return self._running.pop(run_id, None)

    def _note(self, table: dict[int, Any], run_id: int) -> None:
        if self._changes is not None:
            self._changes.append((table, run_id, table.get(run_id)))

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._changes = []
        self._saved = (self._first, self._next)

    def commit_batch(self) -> None:
        self._changes = None

    def undo_batch(self) -> None:
        for table, run_id, before in reversed(self._changes or ()):
            if before is None:
                table.pop(run_id, None)
            else:
                table[run_id] = before
        self._changes = None
        self._first, self._next = self._saved
