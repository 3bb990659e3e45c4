"""The sources through Spark itself: found, planned, read in parallel, and refused in one line."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import spark_partition_id

from journeyman.errors import UsageError
from journeyman.formats import kestrel
from journeyman.formats.ztick import JobSet, RuleSet, Shell, Status
from journeyman.spark import read, register
from journeyman.spark.data_sources import forget_reads, measure_damage
from journeyman.spark.replay import states
from journeyman.spark.source.options import base_schema
from tests.support.spark.local_rows import local_rows
from tests.support.specimens import KESTREL, WORKQ, ZTICK

GOLDEN = Path(__file__).parents[1] / "golden" / "data"


def collected(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts, in the order of the logs; moments with their zone."""
    rows = [row.asDict() for row in frame.collect()]
    for row in rows:
        if row.get("time") is not None:
            row["time"] = row["time"].astimezone(UTC)
    return sorted(rows, key=lambda row: (row["_log"], row["_position"]))


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["_log"], row["_position"]))


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of two hosts. a: compacted and active file, with damage. b: one file, torn."""
    root = tmp_path_factory.mktemp("hosts")
    records = ZTICK.records(60)
    (root / "host=a").mkdir()
    (root / "host=b").mkdir()
    (root / "host=a" / "jobs.compressed").write_bytes(ZTICK.encode(records[:20]))
    (root / "host=a" / "jobs").write_bytes(ZTICK.encode(records[20:]) + b"\xff\xff\xff\xffdamage")
    (root / "host=b" / "jobs").write_bytes(ZTICK.encode(records)[:-3])
    return root


def test_formats_are_found_without_registering(spark: SparkSession, hosts: Path):
    frame = spark.read.format("ztick").load(f"{hosts}/host=b")
    assert frame.schema.fieldNames()[:2] == ["_log", "_file"]
    assert frame.columns[-3:] == ["host", "_corrupt_record", "_damage"]
    assert frame.count() == 59


@pytest.mark.parametrize(
    ("dialect", "pattern"),
    [
        ("ztick", "ztick/*.log"),
        ("workq", "workq/*/cmdlog"),
        ("kestrel", "kestrel/*/"),
        ("ledger", "ledger/*/"),
    ],
)
def test_golden_logs_are_read_as_the_codecs_read_them(spark, dialect, pattern):
    paths = sorted(GOLDEN.glob(pattern))
    frame = read(spark, dialect, *map(str, paths), payloads=True, splitBytes=10_000)
    names = [*base_schema(dialect).fieldNames(), "_corrupt_record", "_damage"]
    assert frame.columns == names
    expected = [row for path in paths for row in local_rows(dialect, path, payloads=True)]
    assert len(expected) > 20
    assert collected(frame) == in_order(expected)


def test_a_large_file_is_read_by_several_tasks(spark, tmp_path):
    jobs = [JobSet(f"job.{n}", n, Status.PLANNED) for n in range(3000)]
    jobs += [RuleSet("rule", "job.", Shell("echo"))]  # type: ignore[list-item]
    (tmp_path / "jobs").write_bytes(ZTICK.encode(jobs))
    frame = read(spark, "ztick", str(tmp_path), splitBytes=20_000)
    found = frame.select("execution_ns", "kind", spark_partition_id().alias("task")).collect()
    assert sorted(row.execution_ns for row in found if row.kind == "set") == list(range(3000))
    tasks = Counter(row.task for row in found)
    assert len(tasks) >= 4
    assert max(tasks.values()) < 2 * min(tasks.values())


def test_hosts_are_a_column_and_each_log_is_apart(spark, hosts):
    frame = read(spark, "ztick", f"{hosts}/host=*/")
    found = frame.groupBy("host", "_log", "kind").count().collect()
    by_host = {host: {row.kind: row["count"] for row in found if row.host == host} for host in "ab"}
    assert by_host["a"] == {"set": 36, "rule_set": 12, "remove": 12, "damage": 1}
    assert sum(by_host["b"].values()) == 59
    assert {row._log for row in found} == {f"{hosts}/host=a/jobs", f"{hosts}/host=b/jobs"}


def test_several_paths_of_load_are_one_table(spark, hosts):
    register(spark)
    frame = spark.read.format("ztick").load([f"{hosts}/host=a", f"{hosts}/host=b"])
    assert frame.count() == 61 + 59


def test_modes(spark, hosts):
    dropping = read(spark, "ztick", f"{hosts}/host=a", mode="DROPMALFORMED")
    assert "_corrupt_record" not in dropping.columns
    assert dropping.count() == 60
    renamed = read(spark, "ztick", f"{hosts}/host=a", columnNameOfCorruptRecord="bad")
    (damage,) = renamed.where("kind = 'damage'").collect()
    assert bytes(damage.bad) == b"\xff\xff\xff\xffdamage"
    assert damage._damage.startswith("corrupt: ")
    failing = read(spark, "ztick", f"{hosts}/host=a", mode="FAILFAST")
    with pytest.raises(PySparkException, match=r"host=a/jobs: 10 bytes from offset \d+ on are"):
        failing.collect()


def test_a_narrower_schema_is_all_that_is_made(spark, hosts):
    frame = read(spark, "ztick", str(hosts), schema="key string, host string, _position long")
    assert frame.columns == ["key", "host", "_position"]
    assert frame.where("host = 'b'").first() == Row(key="job.0", host="b", _position=0)
    wrong = spark.read.format("ztick").schema("keys string").load(str(hosts))
    with pytest.raises(PySparkException, match="no column 'keys' here"):
        wrong.collect()


def test_options_reach_the_source(spark, tmp_path):
    (tmp_path / "000000001.log").write_bytes(WORKQ.encode(WORKQ.records(30)))
    (tmp_path / "000000002.log").write_bytes(WORKQ.encode(WORKQ.records(30)))
    frame = (
        spark.read.format("workq")
        .option("KINDS", "add")
        .option("pathGlobFilter", "*2.log")
        .option("asOf", "2030-01-01")
        .load(str(tmp_path))
    )
    found = frame.select("kind", "_file", "payload", "payload_size", "key", "time").collect()
    assert {row.kind for row in found} == {"add"}
    assert {row._file for row in found} == {f"{tmp_path}/000000002.log"}
    assert {row.payload for row in found} == {None}
    assert found[0].payload_size == len(b"payload 0")
    assert found[0].key == "0000000a-0000-4000-8000-000000000000"
    assert len(found) == 10


def test_what_is_wrong_is_said_in_the_callers_process(spark, tmp_path):
    with pytest.raises(UsageError, match=r"did you mean splitBytes\?"):
        read(spark, "ztick", str(tmp_path), splitByte=1)
    with pytest.raises(UsageError, match="no dialect 'zticks'"):
        read(spark, "zticks", str(tmp_path))
    with pytest.raises(PySparkException, match=r"did you mean splitBytes\?"):
        spark.read.format("ztick").option("splitByte", "1").load(str(tmp_path))
    with pytest.raises(PySparkException, match="no ztick log at"):
        read(spark, "ztick", str(tmp_path))
    empty = read(spark, "ztick", f"{tmp_path}/none", ignoreMissingFiles=True)
    assert empty.count() == 0


def test_conditions_are_right_however_often_a_frame_is_used(spark, hosts):
    """Spark keeps what was pushed for one query for the next; so nothing is pushed."""
    key = "spark.sql.python.filterPushdown.enabled"
    before = spark.conf.get(key)
    spark.conf.set(key, "true")
    try:
        frame = read(spark, "ztick", f"{hosts}/host=b")
        either = frame.where("kind = 'remove'").union(frame.where("kind = 'rule_set'"))
        assert {row.kind: row["count"] for row in either.groupBy("kind").count().collect()} == {
            "remove": 11,
            "rule_set": 12,
        }
        assert frame.count() == 59
    finally:
        spark.conf.set(key, before)


def test_a_kestrel_queue_with_readers(spark, tmp_path):
    (tmp_path / "jobs.17").write_bytes(KESTREL.encode(KESTREL.records(5)) + bytes(64))
    done: list[kestrel.Record] = [kestrel.ReadHead(2), kestrel.ReadDone((4, 5))]
    checkpoint = kestrel.READER.header + b"".join(map(kestrel.READER.encode, done))
    (tmp_path / "jobs.read.mail").write_bytes(checkpoint)
    (tmp_path / "other.3").write_bytes(KESTREL.encode([]))
    frame = read(spark, "kestrel", str(tmp_path), queue="jobs", payloads=True)
    rows = frame.orderBy("_position").collect()
    assert [row.kind for row in rows] == ["PUT"] * 5 + ["READ_HEAD", "READ_DONE"]
    assert [row.key for row in rows[:2]] == ["1", "2"]
    assert bytes(rows[0].data) == b"item 0"
    assert rows[-1].done_ids == [4, 5]
    assert {row.reader for row in rows} == {None, "mail"}
    assert {row._log for row in rows} == {f"{tmp_path}/jobs"}
    assert json.loads(frame.schema.json())["fields"][8]["type"] == "timestamp"


def test_tables_in_a_catalog(spark, tmp_path):
    """Spark hands the properties of a table over as options, and no options when it is read."""
    paths = {
        "ztick": tmp_path / "logfile",
        "workq": tmp_path / "cmdlog" / "000000001.log",
        "kestrel": tmp_path / "queues" / "jobs.17",
    }
    for dialect in (ZTICK, WORKQ, KESTREL):
        path = paths[dialect.name]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(dialect.encode(dialect.records(5)))
        place = path if dialect is ZTICK else path.parent
        spark.sql(
            f"CREATE TABLE t_{dialect.name} USING {dialect.name} OPTIONS (payloads 'true') "
            f"COMMENT 'a log' TBLPROPERTIES ('a' = 'b') LOCATION '{place}'"
        )
        try:
            rows = spark.sql(
                f"SELECT kind, _offset FROM t_{dialect.name} ORDER BY _offset"
            ).collect()
            assert len(rows) == 5
            frame = read(spark, dialect.name, str(place), payloads=True)
            assert spark.table(f"t_{dialect.name}").columns == frame.columns
            assert spark.table(f"t_{dialect.name}").exceptAll(frame).count() == 0
        finally:
            spark.sql(f"DROP TABLE t_{dialect.name}")
    with pytest.raises(Exception, match="no option 'kindz': did you mean kinds"):
        spark.sql(f"CREATE TABLE t USING ztick OPTIONS (kindz 'set') LOCATION '{paths['ztick']}'")


def test_adjacent_bad_frames_hide_nothing_from_a_replay(spark, tmp_path):
    """Two rules with a runner that is not known here, and a hole of zeros."""
    rule = ZTICK.codec.encode(RuleSet("r", "p", Shell("x")))
    newer = rule[:-4] + bytes([99]) + rule[-3:]
    jobs = [ZTICK.codec.encode(JobSet(f"job.{n}", n, Status.PLANNED)) for n in range(99)]
    data = jobs[0] + 2 * newer + b"".join(jobs[1:50]) + bytes(50) + b"".join(jobs[50:])
    (tmp_path / "logfile").write_bytes(data)
    for dialect in ("ztick", "workq", "kestrel", "ledger"):
        forget_reads(spark, dialect)  # what other tests have read in this session
    assert states(spark, "ztick", str(tmp_path / "logfile"))["jobs"].count() == 99
    damage = measure_damage(spark)
    assert (damage.places, damage.damaged_bytes, damage.records) == (3, 2 * len(newer) + 50, 3)
