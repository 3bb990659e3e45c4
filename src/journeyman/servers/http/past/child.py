"""The helper process of the past: loads engines up to a moment, and has them answer.

The server calls the functions below there (core/helper_process.py), because loading a million
records takes the interpreter for a while, and the libraries that make it quick stay in memory. Its
memory is bounded (limits.past_bytes): a log that does not fit is refused, and the server ends the
process.

Of a lake it reads the days: what came, started and ended, from its gold tables. That needs no
Spark.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from journeyman.engines.sorted_set import StillSorting
from journeyman.servers.http.past.engines import Counts, PastScheduleEngines, PastWork
from journeyman.servers.workq.writer import REFUSALS, in_scope


class LakeDay(NamedTuple):
    """The counts of a day of one dialect in a lake."""

    date: str
    dialect: str
    added: int
    started: int
    completed: int
    failed: int


_TABLE = ("gold", "throughput_daily")
_COUNTS = ("added", "started", "completed", "failed")

_work = cache(PastWork)
_schedule = cache(PastScheduleEngines)


def ask_work(log: str, ledger: str, at_ns: int, command: Any, prefix: str) -> Any:
    """The reply to a command that only looks, from a client of this namespace."""
    engine = _work(log, ledger).at(at_ns)
    request = in_scope(engine, command, prefix)
    if type(request) in REFUSALS:
        return request
    reply: Any = StillSorting()
    while isinstance(reply, StillSorting):
        reply = engine.decide(request, at_ns).reply
    return reply


def ask_schedule(log: str, ledger: str, at_ns: int, command: Any, namespace: str) -> Any:
    engine = _schedule(log, ledger).at(at_ns)
    reply: Any = StillSorting()
    while isinstance(reply, StillSorting):
        reply = engine.decide(command, at_ns, namespace).reply
    return reply


def count_work(log: str, ledger: str, at_ns: int, prefix: str) -> Counts:
    return _work(log, ledger).counts(at_ns, prefix)


def count_schedule(log: str, ledger: str, at_ns: int, prefix: str) -> dict[str, int]:
    return _schedule(log, ledger).counts(at_ns, prefix)


def compare_work(
    log: str, ledger: str, from_ns: int, until_ns: int, limit: int, prefix: str
) -> dict[str, Any]:
    return _work(log, ledger).changes(from_ns, until_ns, limit, prefix)


def last_of_work(log: str, ledger: str, at_ns: int, limit: int) -> list[tuple[str, int]]:
    return _work(log, ledger).last(at_ns, limit)


def lake_days(lake: str, limit: int) -> list[LakeDay]:
    """The days of all queues and hosts together, newest first; empty if nothing was ingested."""
    path, wanted = os.path.join(lake, *_TABLE), ["date", "dialect", *_COUNTS]
    delta: Any = import_module("journeyman.columnar.delta")
    opened = delta.open_delta(path)
    if opened is None:
        return []
    table: Any = opened.to_pyarrow_table(columns=wanted)
    sums = table.group_by(["date", "dialect"]).aggregate([(name, "sum") for name in _COUNTS])
    columns = ["date", "dialect", *(f"{name}_sum" for name in _COUNTS)]
    rows = sorted(zip(*(sums.column(name).to_pylist() for name in columns), strict=True))
    return [LakeDay(str(date), *counts) for date, *counts in rows[: -limit - 1 : -1]]
