"""The work of an ingest in this process instead of tasks of Spark: the same code, no Java.

    monkeypatch.setattr(work, "spread", spread_here)
    ingest(session, ...)

Packets travel as bytes, as they do between tasks. Not a test itself.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from journeyman.spark.lakes import delta, storage, work
from journeyman.spark.lakes.storage import Lake

SLOTS = {"spark.default.parallelism": "2", "spark.master": "local[2]"}
SPARK: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default=None: SLOTS[name]))


def session() -> Any:
    """What stands for a session of Spark."""
    return SPARK


def spread_here(
    _spark: object, units: Sequence[Any], take: Any, fold: Any = None
) -> list[work.Packet]:
    """As ``work.spread``."""
    told = pickle.dumps((units, take, fold))  # what the tasks are told has to travel
    units, take, fold = pickle.loads(told)
    packets = [_travelled(packet) for unit in units for packet in take(unit)]
    if fold is None:
        return packets
    ordered = sorted(packets, key=lambda packet: packet.group)
    groups = groupby(ordered, key=lambda packet: packet.group)
    return list(map(_travelled, fold((group, _joined(list(each))) for group, each in groups)))


def _joined(packets: Sequence[work.Packet]) -> dict[str, pa.Table]:
    return work._joined(packets)


def _travelled(packet: work.Packet) -> work.Packet:
    (row,) = work._packed(packet).to_pylist()
    return work.Packet(row["group"], row["what"], work._unpacked(row["rows"]))


class Killed(BaseException):
    """What a kill looks like from inside."""


def kill_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Let an ingest end after so many commits of tables and snapshots."""
    made: list[int] = []
    real_commit, real_append = delta.commit, Lake._append

    def step(do: Any, *args: Any) -> Any:
        found = do(*args)
        made.append(1)
        if len(made) == steps:
            raise Killed
        return found

    patch.setattr(delta, "commit", lambda *args: step(real_commit, *args))
    patch.setattr(Lake, "_append", lambda *args: step(real_append, *args))
    patch.setattr(storage, "at_once", lambda do, each: list(map(do, each)))
