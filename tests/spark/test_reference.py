"""Plain DataFrames over the records agree with the fast state tables."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from pyspark.sql import DataFrame

from journeyman.formats import ztick
from journeyman.spark import read, states
from tests.support.spark import reference
from tests.support.spark.histories import random_log
from tests.support.spark.written_logs import planned, put, write_kestrel, write_workq, write_ztick


def rows(frame: DataFrame, columns: list[str]) -> list[str]:
    return sorted(map(repr, frame.select(*columns).collect()))


def ztick_log() -> list[ztick.Record]:
    chance = Random(4)
    names = [f"job.{number}" for number in range(9)]
    made: list[Callable[[str], ztick.Record]] = [
        lambda name: planned(name, chance.randrange(100)),
        lambda name: planned(name, 5, "executed"),
        ztick.JobRemoved,
        ztick.RuleRemoved,
        lambda name: ztick.RuleSet(name, "job.", ztick.Shell(f"echo {chance.random()}")),
    ]
    return [chance.choice(made)(chance.choice(names)) for _ in range(200)]


@pytest.mark.parametrize("table", ["ztick_jobs", "ztick_rules", "workq_jobs", "kestrel_items"])
def test_the_reference_is_the_fast_table(spark, tmp_path, table):
    dialect, _, name = table.partition("_")
    if dialect == "ztick":
        path = write_ztick(tmp_path / "logfile", ztick_log())
    elif dialect == "workq":
        path = write_workq(tmp_path / "wq", random_log(3, jobs=20, records=300))
    else:
        items = [put(number, number % 3) for number in (1, 2, 3, 2, 2, 4)]
        path = write_kestrel(tmp_path, "jobs", [items, [put(2, 7), put(5, 1)]], {"": (1, ())})
    records = read(spark, dialect, path, payloads=True)
    found = getattr(reference, table)(records)
    fast = states(spark, dialect, path)[name]
    assert rows(found, found.columns) == rows(fast, found.columns) != []
