"""Percentiles of a report of a lake, from lengths of which few are kept."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from journeyman.spark.lake.columns import shaped
from journeyman.spark.lake.storage import change_lake, open_lake
from journeyman.spark.report.lake import report_of_lake
from journeyman.spark.report.lake_counts import _KEPT_LENGTHS, _Ranks

SHARES = (0.5, 0.9, 0.99, 0.999)


def ranks_of_parts(parts: list[np.ndarray]) -> _Ranks:
    """Each part counted by a task of its own, which hands back a table."""
    merged = _Ranks()
    for part in parts:
        task = _Ranks()
        for piece in np.array_split(part, 3):
            task.add("workq", "wait all", piece)
        merged.merge("workq", task.table("workq"))
    return merged


def test_percentiles_of_few_lengths_are_exact():
    values = np.random.default_rng(1).integers(0, 10**12, 1001)
    found = ranks_of_parts([values[:400], values[400:]]).of("workq", "wait all")
    for share in SHARES:
        assert found.at(share) == np.sort(values)[int(np.ceil(share * len(values))) - 1]
    assert ranks_of_parts([]).of("workq", "wait all").at(0.5) is None


@pytest.mark.parametrize("spread", [1, 10**9])
def test_percentiles_of_many_lengths_are_off_by_few_ranks(spread):
    chance = np.random.default_rng(2)
    parts = [chance.exponential(spread, 60_000).astype(np.int64) + at for at in range(4)]
    found = ranks_of_parts(parts).of("workq", "wait all")
    every = np.sort(np.concatenate(parts))
    for share in SHARES:
        value = found.at(share)
        assert value is not None
        assert value in every
        least = np.searchsorted(every, value, "left") / len(every)
        most = np.searchsorted(every, value, "right") / len(every)
        assert least - 3 / _KEPT_LENGTHS <= share <= most + 3 / _KEPT_LENGTHS


@pytest.mark.parametrize("jobs", [0, 1])
def test_a_lake_without_starts_has_a_report(tmp_path, jobs):
    row = {
        "dialect": "workq",
        "log": "/log",
        "key": "k",
        "queue": "mail",
        "outcome": "waiting",
        "life": 1,
        "attempt": 1,
        "first": True,
        "created_ns": 5,
        "ready_ns": 5,
        "date": date(1970, 1, 1),
        "host": "a",
    }
    with change_lake(str(tmp_path / "lake")) as lake:
        rows = shaped({name: pa.array([value]) for name, value in row.items()}, "silver/attempts")
        lake.commit([lake.stage_arrow(rows.slice(0, jobs), "silver/attempts")], {})
    no_spark: Any = None  # of so few rows it takes none
    report = report_of_lake(no_spark, open_lake(lake.path), made_ns=10, title="t")
    assert [each.title for each in report.sections] == [
        *("Week on week", *["Work queue"] * jobs, "Damage"),
    ]
    assert report.verdict == "No failures."
