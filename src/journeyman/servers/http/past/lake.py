"""The days of a lake: what came, started and ended, from its gold tables. No Spark is needed."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

Day = tuple[str, str, int, int, int, int]  # date, dialect, added, started, completed, failed

_TABLE = ("gold", "throughput_daily")
_COUNTS = ("added", "started", "completed", "failed")


class PastLake:
    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, *_TABLE)

    def lake_days(self, limit: int) -> list[Day]:
        """Of all queues and hosts together, the newest first; empty if nothing was ingested."""
        if not os.path.isdir(self._path):
            return []
        wanted = ["date", "dialect", *_COUNTS]
        table: Any
        if os.path.isdir(os.path.join(self._path, "_delta_log")):  # not every file is part of it
            deltalake: Any = import_module("deltalake")
            table = deltalake.DeltaTable(self._path).to_pyarrow_table(columns=wanted)
        else:
            dataset: Any = import_module("pyarrow.dataset")
            found = dataset.dataset(self._path, format="parquet", partitioning="hive")
            table = found.to_table(columns=wanted)
        sums = table.group_by(["date", "dialect"]).aggregate([(name, "sum") for name in _COUNTS])
        columns = ["date", "dialect", *(f"{name}_sum" for name in _COUNTS)]
        rows = sorted(zip(*(sums.column(name).to_pylist() for name in columns), strict=True))
        return [(str(date), *counts) for date, *counts in rows[: -limit - 1 : -1]]
