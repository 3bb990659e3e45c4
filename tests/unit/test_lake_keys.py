"""Jobs of a lake found by the hashes of their keys, wherever their records are.

Records of a job are in several units of one ingest, and come again in a later one; hashes of many
keys are the same; files have no hashes, as those of older lakes. Silver and gold are those of a
plain count all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from journeyman.columnar.kernels.key_table import hashes_of
from journeyman.formats import workq
from journeyman.spark.lake import bronze, columns, folding, parts, silver, upkeep
from journeyman.spark.lake.bronze import LakeSource, store_new
from journeyman.spark.lake.ingest import refresh
from journeyman.spark.lake.storage import Lake, change_lake
from tests.support.report_counts import count_workq
from tests.support.spark.histories import busy_log

GROUP_ROWS, UNIT_ROWS = 7, 20
NO_SPARK: Any = None  # so little is folded in this process


def few_at_a_time(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    whole = pa.Table.from_batches(list(batches))
    for begin in range(0, whole.num_rows, GROUP_ROWS):
        yield whole.slice(begin, GROUP_ROWS)


def few_hashes(real: Any) -> Any:
    return lambda *keys: real(*keys) % np.uint64(5)


def no_hashes(keys: Any) -> Any:
    return pa.nulls(len(keys), pa.int64())


@pytest.fixture(params=["hashes", "few hashes", "no hashes"])
def small_units(request, monkeypatch):
    monkeypatch.setattr(bronze, "_in_groups", few_at_a_time)
    monkeypatch.setattr(parts, "_UNIT_ROWS", UNIT_ROWS)
    if request.param == "few hashes":
        monkeypatch.setattr(columns, "hashes_of", few_hashes(hashes_of))
    if request.param == "no hashes":
        for module in (bronze, folding, parts):
            monkeypatch.setattr(module, "hash_column", no_hashes)


def append(directory: Path, number: int, records: list[workq.Record]) -> None:
    data = workq.HEADER + b"".join(map(workq.CODEC.encode, records))
    (directory / f"{number:09d}.log").write_bytes(data)


def bring_up_to_date(lake: Lake, directory: Path) -> None:
    store_new(NO_SPARK, lake, [LakeSource("workq", str(directory), "a")])
    refresh(NO_SPARK, lake)


def rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    return lake.read_arrow(table, lake.files(table)).to_pylist()


def check(lake: Lake, records: list[workq.Record]) -> None:
    tries = count_workq(records).tries
    found = [(row["ready_ns"], row["started_ns"], row["outcome"]) for row in attempts_in(lake)]
    expected = [(each.ready, each.started, each.outcome) for each in tries]
    assert sorted(found, key=str) == sorted(expected, key=str)
    started = sum(each.started is not None for each in tries)
    assert sum(row["started"] for row in rows(lake, "gold/throughput_daily")) == started
    assert sum(row["started"] for row in rows(lake, "gold/latency_daily")) == started
    assert sum(row["attempts"] for row in rows(lake, "silver/jobs")) == started


def attempts_in(lake: Lake) -> list[dict[str, Any]]:
    return rows(lake, "silver/attempts")


def test_jobs_are_whole_wherever_their_records_are(small_units, tmp_path):
    directory = tmp_path / "workq"
    directory.mkdir()
    records = busy_log(1, jobs=60)
    half, most = len(records) // 2, len(records) * 3 // 4
    with change_lake(str(tmp_path / "lake")) as lake:
        append(directory, 1, records[:half])
        bring_up_to_date(lake, directory)
        check(lake, records[:half])
        append(directory, 2, records[half:most])
        bring_up_to_date(lake, directory)
        check(lake, records[:most])
        upkeep.optimize(NO_SPARK, lake)
        append(directory, 3, records[most:])
        bring_up_to_date(lake, directory)
        check(lake, records)


def test_most_jobs_of_one_unit_do_not_travel(monkeypatch, tmp_path):
    directory = tmp_path / "workq"
    directory.mkdir()
    monkeypatch.setattr(bronze, "_in_groups", few_at_a_time)
    monkeypatch.setattr(parts, "_UNIT_ROWS", UNIT_ROWS)
    routed: list[str] = []
    real = silver._by_bucket

    def noted(what: str, table: pa.Table, *rest: Any) -> Any:
        routed.extend(map(str, table["key"].to_pylist()))
        return real(what, table, *rest)

    monkeypatch.setattr(silver, "_by_bucket", noted)
    records = sorted(busy_log(4, jobs=60), key=lambda each: each.job_id)
    *others, last = sorted({each.job_id for each in records})
    append(directory, 1, [each for each in records if each.job_id != last])
    with change_lake(str(tmp_path / "lake")) as lake:
        bring_up_to_date(lake, directory)
        # Only jobs at the edges of units, each of which has more rows than half of UNIT_ROWS.
        assert 0 < len(set(routed)) <= len(records) // (UNIT_ROWS // 2) < len(others)
        routed.clear()
        append(directory, 2, [each for each in records if each.job_id == last])
        bring_up_to_date(lake, directory)
        assert routed == []
        check(lake, records)
