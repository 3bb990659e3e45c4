"""Logs in PostgreSQL through Spark: the same rows as of the same logs in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from journeyman.disk.postgres import PostgresDisk
from journeyman.spark import lake, read, register
from journeyman.spark.lakes.ingest import ingest
from journeyman.spark.replay import states
from tests.support.spark.stream_driver import ztick_bytes
from tests.support.specimens import KESTREL, WORKQ, ZTICK

SPECIMENS = {"ztick": ZTICK, "workq": WORKQ, "kestrel": KESTREL}
NAMES = {"ztick": ["jobs.compressed", "jobs"], "workq": ["000000001.log", "000000002.log"],
         "kestrel": ["q.1", "q.2"]}  # fmt: skip


@pytest.fixture
def places(data_address: str, tmp_path: Path) -> tuple[str, str]:
    """The same logs in a database and in files, one of them damaged."""
    disk = PostgresDisk(data_address)
    for dialect, specimen in SPECIMENS.items():
        records = specimen.records(60)
        parts = [specimen.encode(records[:20]), specimen.encode(records[20:])]
        if dialect == "ztick":
            parts[1] += b"\xff\xff\xff\xffdamage"
        (tmp_path / dialect).mkdir()
        disk.make_dirs(f"{data_address}/{dialect}")
        for name, part in zip(NAMES[dialect], parts, strict=True):
            (tmp_path / dialect / name).write_bytes(part)
            file = disk.open_append(f"{data_address}/{dialect}/{name}")
            file.write(part)
            file.sync()
            file.close()
    disk.close()
    return data_address, str(tmp_path)


def rows(frame: DataFrame, place: str) -> list[dict[str, Any]]:
    found = [row.asDict() for row in frame.collect()]
    return sorted(
        (
            {name: str(value).replace(place, "PLACE") for name, value in row.items()}
            for row in found
        ),
        key=repr,
    )


@pytest.mark.parametrize("dialect", SPECIMENS)
def test_records_and_state_are_the_same(spark: SparkSession, places, dialect: str):
    records, state = [], []
    for place in places:
        path = f"{place}/{dialect}"
        records.append(rows(read(spark, dialect, path), place))
        tables = states(spark, dialect, path)
        state.append({name: rows(table, place) for name, table in tables.items()})
    assert records[0] == records[1]
    assert len(records[0]) >= 60
    assert state[0] == state[1]


def test_a_stream_reads_on_where_it_was(spark: SparkSession, data_address: str, tmp_path: Path):
    register(spark)
    disk = PostgresDisk(data_address)
    disk.make_dirs(f"{data_address}/logs")
    file = disk.open_append(f"{data_address}/logs/logfile")
    writer = (
        spark.readStream.format("ztick")
        .load(f"{data_address}/logs")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .option("path", str(tmp_path / "out"))
        .trigger(availableNow=True)
    )
    for begin, end in ((1000, 1300), (1300, 1301)):
        file.write(ztick_bytes(*range(begin, end)))
        file.sync()
        query = writer.start()
        query.awaitTermination()
        assert sum(each.numInputRows for each in query.recentProgress) == end - begin
    (holder,) = disk.list_dir(f"{data_address}/logs/_held")
    assert holder.startswith("holder.")
    file.close()
    disk.close()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 301


def test_a_lake_of_them_holds_the_same(spark: SparkSession, places, tmp_path: Path):
    found = []
    for number, place in enumerate(places):
        target = str(tmp_path / f"lake{number}")
        logs = {dialect: [f"{place}/{dialect}"] for dialect in ("ztick", "workq", "kestrel")}
        for _ in range(2):  # the second time nothing is new
            done = ingest(lambda: spark, target, logs, host="a")
        assert not done.files
        tables = lake(spark, target)
        found.append({name: rows(tables[name], place) for name in ("attempts", "jobs")})
    assert all(found[0].values())
    assert found[0] == found[1]
