"""Jobs of a lake found by the hashes of their keys, wherever their records are.

Records of a job are in several row groups and files and come again in a later ingest; hashes of
many keys are the same. Silver and gold are those of a plain count all the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from journeyman.columnar.kernels.key_table import hashes_of
from journeyman.formats import workq
from journeyman.spark import vectors
from journeyman.spark.lakes import bronze, silver, upkeep, work
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.lakes.storage import Lake, change_lake, open_lake
from tests.support.report_counts import count_workq
from tests.support.spark.histories import busy_log
from tests.support.spark.local_work import session, spread_here


def few_hashes(real: Any) -> Any:
    return lambda *keys: real(*keys) % np.uint64(5)


@pytest.fixture(params=["hashes", "few hashes"])
def small_units(request, monkeypatch):
    monkeypatch.setattr(work, "spread", spread_here)
    monkeypatch.setattr(bronze, "_CHUNK_ROWS", 20)
    monkeypatch.setattr(bronze, "_UNSPLIT_ROWS", 4)
    monkeypatch.setattr(silver, "_TASK_ROWS", 10)
    monkeypatch.setattr(silver, "_GROUP_ROWS", 7)
    if request.param == "few hashes":
        monkeypatch.setattr(vectors, "hashes_of", few_hashes(hashes_of))


def append(directory: Path, number: int, records: list[workq.Record]) -> None:
    data = workq.HEADER + b"".join(map(workq.CODEC.encode, records))
    (directory / f"{number:09d}.log").write_bytes(data)


def check(lake: Lake, records: list[workq.Record]) -> None:
    tries = count_workq(records).tries
    rows = lake.read_arrow("silver/attempts").to_pylist()
    found = [(row["ready_ns"], row["started_ns"], row["outcome"]) for row in rows]
    expected = [(each.ready, each.started, each.outcome) for each in tries]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert all(row["is_open"] == (row["outcome"] in ("waiting", "leased")) for row in rows)
    started = sum(each.started is not None for each in tries)
    for table, column in (
        ("gold/throughput_daily", "started"),
        ("gold/latency_daily", "started"),
        ("silver/jobs", "attempts"),
    ):
        assert pc.sum(lake.read_arrow(table)[column]).as_py() == started, table


@pytest.mark.slow
def test_jobs_are_whole_wherever_their_records_are(small_units, tmp_path):
    directory, path = tmp_path / "workq", str(tmp_path / "lake")
    directory.mkdir()
    records = busy_log(1, jobs=30)
    half, most = len(records) // 2, len(records) * 3 // 4
    for number, (begin, end) in enumerate(((0, half), (half, most), (most, len(records))), 1):
        append(directory, number, records[begin:end])
        ingest(session, path, {"workq": [str(directory)]}, host="a")
        check(open_lake(path), records[:end])
        if number == 2:
            with change_lake(path) as lake:
                assert upkeep.optimize(session, lake) > 0
            check(open_lake(path), records[:end])
