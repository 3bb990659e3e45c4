"""Engines of whole logs, given as records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.loading import WorkqLoader
from journeyman.engines.ztick.engine import MAX_RUNS, ZtickEngine
from journeyman.engines.ztick.loading import ZtickLoader, notes
from journeyman.engines.ztick.messages import Resume, Resumed, StartRun
from journeyman.formats import workq
from journeyman.formats.ztick import Record


@dataclass(frozen=True, slots=True)
class Loaded:
    """An engine that has resumed: write ``records``, then start ``effects``."""

    schedule: ZtickEngine
    records: tuple[Record, ...]
    effects: tuple[StartRun, ...]
    notes: tuple[str, ...]  # for the server's log


def load_schedule(
    records: Iterable[Record],
    *,
    interrupted: Literal["run", "fail"] = "run",
    max_runs: int = MAX_RUNS,
) -> Loaded:
    """The engine of a whole log, with its interrupted jobs seen to."""
    loader = ZtickLoader()
    for record in records:
        loader.add(record)
    schedule = loader.finish(max_runs=max_runs)
    outcome = schedule.decide(Resume(rerun=interrupted == "run"), now_ns=0)
    assert isinstance(outcome.reply, Resumed)
    return Loaded(schedule, outcome.records, outcome.effects, notes(outcome.reply))


def load_work_queue(
    records: Iterable[workq.Record], *, now_ns: int, paused: Iterable[str] = (), seed: int = 0
) -> WorkqEngine:
    """The engine of a whole log."""
    loader = WorkqLoader(now_ns=now_ns, paused=paused, seed=seed)
    for record in records:
        loader.add(record)
    return loader.finish()
