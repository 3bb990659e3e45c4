"""Batches have exactly the schema that was asked for, and say what the codec says."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from journeyman.errors import LogError, UsageError
from journeyman.formats import kestrel, ledger
from journeyman.formats.timed_frame import CRC_BYTES, Instant
from journeyman.spark import data_sources
from journeyman.spark.data_sources import LogReader, full_schema
from journeyman.spark.files import find_source_logs
from journeyman.spark.source import packets
from journeyman.spark.source.options import (
    DIALECTS,
    SourceOptions,
    arrow_schema,
    base_schema,
    narrowed,
)
from journeyman.spark.source.pieces import SplitContext
from journeyman.spark.source.splits import plan_partitions
from journeyman.spark.source.task import read_partition
from tests.support.spark.local_rows import local_rows, options_for
from tests.support.spark.rows import Row
from tests.support.specimens import DIALECTS as SPECIMENS
from tests.support.specimens import KESTREL
from tests.support.specimens import LEDGER as LEDGER_SPECIMEN
from tests.support.specimens import WORKQ as WORKQ_SPECIMEN
from tests.support.specimens import ZTICK as ZTICK_SPECIMEN

GOLDEN = Path(__file__).parents[1] / "golden" / "data"


def batches(options: SourceOptions, schema: StructType | None = None) -> list[pa.RecordBatch]:
    schema = schema or full_schema(options)
    reader = LogReader(options, schema)
    return [batch for part in reader.partitions() for batch in reader.read(part)]


def rows(dialect: str, path: Path | str, **options: object) -> list[Row]:
    parsed = options_for(dialect, path, **options)
    return [row for batch in batches(parsed) for row in batch.to_pylist()]


GOLDEN_LOGS = [
    *(("ztick", path) for path in sorted(GOLDEN.glob("ztick/*.log"))),
    *(("workq", path) for path in sorted(GOLDEN.glob("workq/*/cmdlog"))),
    *(("kestrel", path) for path in sorted(GOLDEN.glob("kestrel/*/"))),
]


@pytest.mark.parametrize(
    ("dialect", "path"),
    [pytest.param(d, p, id=f"{d}-{p.parent.name}-{p.name}") for d, p in GOLDEN_LOGS],
)
def test_rows_of_golden_logs_are_the_records_of_the_codec(dialect, path):
    for payloads in (False, True):
        expected = local_rows(dialect, path, payloads=payloads)
        assert rows(dialect, path, payloads=payloads) == expected
        assert rows(dialect, path, payloads=payloads, splitBytes=40) == expected


def test_the_golden_lane_is_not_empty():
    assert len(GOLDEN_LOGS) > 60


@pytest.fixture
def log(tmp_path):
    """A ztick log with a compacted file and damage in it; host=a."""
    directory = tmp_path / "host=a"
    directory.mkdir()
    records = ZTICK_SPECIMEN.records(10)
    (directory / "jobs.compressed").write_bytes(ZTICK_SPECIMEN.encode(records[:4]))
    good = ZTICK_SPECIMEN.encode(records[4:])
    (directory / "jobs").write_bytes(good + b"\xff\xff\xff\xff damage")
    return directory


@pytest.mark.parametrize("dialect", DIALECTS)
def test_batches_have_the_schema_that_spark_checks(dialect, tmp_path):
    every = [*SPECIMENS, LEDGER_SPECIMEN]
    specimen = next(each for each in every if each.name == dialect)
    name, data = specimen.file, specimen.encode(specimen.records(3))
    (tmp_path / name).write_bytes(data)
    options = options_for(dialect, tmp_path)
    found = batches(options)
    assert found
    for batch in found:
        batch.validate(full=True)
        assert batch.schema == arrow_schema(full_schema(options))


def test_columns_are_envelope_dialect_host_and_damage_in_this_order(log):
    names = full_schema(options_for("ztick", log.parent)).fieldNames()
    assert names[:9] == [
        "_log", "_file", "_segment", "_offset", "_length", "_position", "kind", "key", "time",
    ]  # fmt: skip
    assert names[9] == "identifier"
    assert names[-3:] == ["host", "_corrupt_record", "_damage"]
    names = full_schema(options_for("ztick", log, mode="FAILFAST")).fieldNames()
    assert names[-1] == "host"


def test_permissive_makes_a_row_of_damage(log):
    found = rows("ztick", log, columnNameOfCorruptRecord="bad")
    assert len(found) == 11
    assert {row["host"] for row in found} == {"a"}
    damage = found[-1]
    assert damage["kind"] == "damage"
    assert damage["bad"] == b"\xff\xff\xff\xff damage"
    assert damage["_damage"].startswith("corrupt: ")
    assert damage["_position"] == 2**44 + damage["_offset"]
    assert [row["_segment"] for row in found] == [0] * 4 + [1] * 7


def test_dropmalformed_leaves_damage_out(log):
    found = rows("ztick", log, mode="DROPMALFORMED")
    assert [row["kind"] for row in found].count("damage") == 0
    assert len(found) == 10


def test_failfast_raises_and_says_where(log):
    with pytest.raises(LogError, match=r"jobs: 11 bytes from offset \d+ on are damaged"):
        rows("ztick", log, mode="FAILFAST")


def test_only_the_first_bytes_of_a_long_damage_are_shown(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff" * 100_000)
    (row,) = rows("ztick", tmp_path / "log")
    assert row["_length"] == 100_000
    assert len(row["_corrupt_record"]) == 65_536


def test_a_narrower_schema_gives_only_its_columns_in_its_order(log):
    schema = StructType([StructField("host", StringType()), StructField("_offset", LongType())])
    found = batches(options_for("ztick", log), schema)
    assert found[0].schema == arrow_schema(schema)
    assert sum(batch.num_rows for batch in found) == 11


def test_a_column_that_is_not_there_or_of_another_type_is_an_error(log):
    wrong = StructType([StructField("keys", StringType())])
    with pytest.raises(UsageError, match="no column 'keys' here"):
        batches(options_for("ztick", log), wrong)
    with pytest.raises(UsageError, match="column key is of type string, not bigint"):
        narrowed(base_schema("ztick"), StructType([StructField("key", LongType())]))


def test_a_directory_may_not_be_named_like_a_column(tmp_path):
    directory = tmp_path / "kind=x"
    directory.mkdir()
    (directory / "log").write_bytes(b"")
    with pytest.raises(UsageError, match="two columns would be called kind"):
        full_schema(options_for("ztick", directory))


def test_a_directory_named_like_a_column_of_another_dialect_is_a_column(tmp_path):
    directory = tmp_path / "queue=mail" / "reader=me"
    directory.mkdir(parents=True)
    (directory / "log").write_bytes(ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(1)))
    (row,) = rows("ztick", directory)
    assert (row["queue"], row["reader"]) == ("mail", "me")


def test_logs_of_hosts_with_and_without_a_column_are_read_together(tmp_path):
    for name in ("host=a", "host=b/zone=1"):
        (tmp_path / name).mkdir(parents=True)
        data = ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(1))
        (tmp_path / name / "log").write_bytes(data)
    found = [(row["host"], row["zone"]) for row in rows("ztick", tmp_path)]
    assert found == [("a", None), ("b", "1")]


def test_kinds_select_records_and_keep_damage(log):
    found = rows("ztick", log, kinds="set,remove")
    kinds = [row["kind"] for row in found]
    assert set(kinds) == {"set", "remove", "damage"}
    assert len(kinds) == 9


def workq_log(directory: Path) -> Path:
    """Ten records, one a second from 1970-01-01T00:00:00 on."""
    directory.mkdir(exist_ok=True)
    records = [
        replace(record, logged=Instant(number * 1_000_000_000))
        for number, record in enumerate(WORKQ_SPECIMEN.records(10))
    ]
    for sequence, some in enumerate((records[:4], records[4:]), 1):
        data = WORKQ_SPECIMEN.encode(some)
        (directory / f"{sequence:09d}.log").write_bytes(data)
    return directory


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"startTime": "1970-01-01T00:00:03Z"}, range(3, 10)),
        ({"startTime": "3000000001"}, range(4, 10)),
        ({"endTime": "1970-01-01T00:00:03Z"}, range(3)),
        ({"startTime": "2000000000", "endTime": "4000000000"}, range(2, 4)),
        ({"asOf": "1970-01-01T00:00:03Z"}, range(4)),
        ({"asOf": "2999999999"}, range(3)),
        ({"asOf": "000000002.log:8"}, range(4)),
        ({"asOf": "000000002.log:9"}, range(5)),
        ({"asOf": "000000001.log:0"}, range(0)),
        ({"kinds": "start-attempt", "startTime": "2000000000"}, [4, 7]),
    ],
)
def test_times_and_positions_cut_a_log(options, seconds, tmp_path):
    found = rows("workq", workq_log(tmp_path / "log"), **options)
    assert [row["logged_ns"] // 1_000_000_000 for row in found] == list(seconds)
    assert rows("workq", tmp_path / "log", splitBytes=50, **options) == found


def test_a_position_is_one_of_one_log(tmp_path):
    workq_log(tmp_path / "host=a")
    workq_log(tmp_path / "host=b")
    with pytest.raises(UsageError, match="several are read"):
        rows("workq", tmp_path, asOf="000000001.log:8")
    with pytest.raises(UsageError, match="is not one of the files of the log"):
        rows("workq", tmp_path / "host=a", asOf="000000009.log:8")


def test_kestrel_readers_have_no_time_and_stay_as_of_any(tmp_path):
    (tmp_path / "jobs.1").write_bytes(KESTREL.encode(KESTREL.records(3)))
    head = kestrel.READER.encode(kestrel.ReadHead(2))
    (tmp_path / "jobs.read.").write_bytes(kestrel.READER.header + head)
    kinds = [row["kind"] for row in rows("kestrel", tmp_path, asOf="2000-01-01")]
    assert kinds == ["READ_HEAD"]
    kinds = [row["kind"] for row in rows("kestrel", tmp_path, startTime="2000-01-01")]
    assert kinds == ["PUT"] * 3
    position = rows("kestrel", tmp_path, asOf="jobs.1:10")
    assert [row["kind"] for row in position] == ["PUT", "READ_HEAD"]


def test_a_time_beyond_the_calendar_is_null_and_its_number_is_kept(tmp_path):
    last_ms = 253_402_300_799_999
    times_ms = (0, 2**63 - 1, -(2**63), last_ms, last_ms + 1)
    puts = [kestrel.ItemPut(number, ms, None, 0, b"") for number, ms in enumerate(times_ms)]
    (tmp_path / "jobs.1").write_bytes(KESTREL.encode(puts))
    found = rows("kestrel", tmp_path)
    assert [row["time"] is None for row in found] == [False, True, True, False, True]
    assert [row["add_time_ms"] for row in found] == list(times_ms)


# -- tables in a catalog -------------------------------------------------------------------------


def test_what_spark_says_of_a_table_is_no_option(log):
    """As Spark 4.3.0 hands it over for CREATE TABLE, and then nothing when the table is read."""
    given = {
        "owner": "root",
        "provider": "ztick",
        "comment": "jobs",
        "location": f"file:{log}",
        "path": f"file:{log}",
        "kinds": "set",
        "option.kinds": "set",
        "delta.x": "y",
    }
    created = data_sources.ZtickSource(given).schema()
    kept = StructType.fromJson(json.loads(created.json()))
    reader = data_sources.ZtickSource({}).reader(kept)
    assert read_by(reader) == rows("ztick", f"file:{log}", kinds="set")
    assert read_by(reader)
    other = data_sources.ZtickSource({"kinds": "remove"}).reader(kept)
    assert read_by(other) == rows("ztick", f"file:{log}", kinds="remove")


def read_by(reader: Any) -> list[Row]:
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def test_an_unknown_option_of_a_table_is_still_an_error(log):
    given = {"provider": "ztick", "path": str(log), "kindz": "set", "option.kindz": "set"}
    with pytest.raises(UsageError, match="no option 'kindz': did you mean kinds"):
        data_sources.ZtickSource(given).schema()


def test_damage_alone_is_read_without_rows(log):
    every = rows("ztick", log)
    damages = [row for row in every if row["kind"] == "damage"]
    for split_bytes in (30, 1000):
        assert rows("ztick", log, damageOnly=True, splitBytes=split_bytes) == damages
    assert damages


def test_content_of_a_ledger_that_cannot_be_read_is_damage_for_everyone(tmp_path):
    """Its frame is sound: only the codec can tell."""
    good = ledger.CODEC.encode(ledger.QueueResumed(Instant(10**18), "mail"))
    content = good[:-CRC_BYTES].replace(b'"mail"', b'"mai""')
    spoilt = content + google_crc32c.value(content).to_bytes(CRC_BYTES, "big")
    (tmp_path / "000000001.ledger").write_bytes(ledger.HEADER + good + spoilt + good)
    found = rows("ledger", tmp_path)
    assert [row["kind"] for row in found].count("damage") == 1
    assert len(found) == 3
    damages = [row for row in found if row["kind"] == "damage"]
    assert rows("ledger", tmp_path, damageOnly=True) == damages


# -- reducers ------------------------------------------------------------------------------------


class Counting:
    """One row a log: how many records it has in this partition, be it none."""

    def __init__(self, context: SplitContext) -> None:
        self._source = packets.PacketSource(context.log)

    def take(self, context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        assert context.log == self._source.log
        self._source.records += batch.num_rows
        return iter(())

    def finish(self) -> Iterator[pa.RecordBatch]:
        yield packets.presence(self._source, "counts")


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(packets, "combiner_class", lambda _dialect: Counting)


@pytest.mark.usefixtures("counting")
def test_a_reducer_sees_the_records_of_a_partition_and_damage_is_put_behind(log):
    found = rows("ztick", log, reduce="latest")
    told = {"kind": "packet", "table": "counts", "records": 10, "host": "a", "packet": None}
    assert told.items() <= found[0].items()
    assert (found[0]["_corrupt_record"], found[0]["_damage"]) == (None, None)
    assert [row["kind"] for row in found] == ["packet", "damage"]
    assert found[1]["source"] is None
    assert found[1]["_log"] == found[0]["_log"]
    assert found[1]["host"] == "a"
    assert rows("ztick", log, reduce="latest", mode="DROPMALFORMED")[0]["records"] == 10
    assert rows("ztick", log, reduce="latest", kinds="set")[0]["records"] == 6
    split = rows("ztick", log, reduce="latest", splitBytes=60)
    assert sum(row["records"] or 0 for row in split) == 10


@pytest.mark.usefixtures("counting")
def test_a_reducer_is_shown_files_without_a_record(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "one").write_bytes(ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(1)))
    for split_bytes in (1, 1000):
        found = rows("ztick", tmp_path, reduce="latest", splitBytes=split_bytes)
        by_log: dict[str, int] = {}
        for row in found:
            name = Path(row["_log"]).name
            by_log[name] = by_log.get(name, 0) + row["records"]
        assert by_log == {"empty": 0, "one": 1}
    assert len(rows("ztick", tmp_path)) == 1


def test_an_unknown_reducer_is_an_error(log):
    with pytest.raises(UsageError, match="ztick has no reducer nonsense; it has latest"):
        rows("ztick", log, reduce="nonsense")


def test_readers_and_partitions_are_pickled_and_read_the_same(log):
    options = options_for("ztick", log, splitBytes=50)
    schema = full_schema(options)
    reader = pickle.loads(pickle.dumps(LogReader(options, schema)))
    partitions = plan_partitions(find_source_logs(options), options)
    assert len(partitions) > 3
    pickled = [pickle.dumps(part) for part in partitions]
    assert max(map(len, pickled)) < 2000
    found = [
        row
        for raw in pickled
        for batch in reader.read(pickle.loads(raw))
        for row in batch.to_pylist()
    ]
    assert found == rows("ztick", log)


def test_no_partition_at_all_reads_nothing():
    options = options_for("ztick", "/nowhere", ignoreMissingFiles=True)
    assert list(read_partition([], options, base_schema("ztick"))) == []
