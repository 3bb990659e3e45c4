"""Logs through Spark and back: the same bytes, in order, all files or none, nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.clock import SystemClock
from journeyman.columnar.seals import is_proven
from journeyman.disk import RealDisk
from journeyman.errors import UsageError
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import Codec, scan
from journeyman.formats.seals import SealKind, make_seal, seal_at
from journeyman.formats.ztick.codec import SEALS
from journeyman.logs.kestrel.log import KestrelLog
from journeyman.logs.segments import numbered_name
from journeyman.logs.workq.log import WorkqLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.spark import read, register, write
from tests.support.specimens import kestrel_record, workq_record, ztick_record
from tests.support.unsealed import without_seals

COUNT = 3000


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def ztick_bytes(numbers: range) -> bytes:
    return b"".join(ztick.CODEC.encode(ztick_record(number)) for number in numbers)


def workq_bytes(numbers: range) -> bytes:
    return b"".join(workq.CODEC.encode(workq_record(number)) for number in numbers)


def kestrel_bytes(numbers: range) -> bytes:
    return b"".join(kestrel.WRITER.encode(kestrel_record(number)) for number in numbers)


def contents(directory: Path, pattern: str, header: bytes) -> bytes:
    """What the files hold, end to end, without their headers."""
    found = b""
    for path in sorted(directory.glob(pattern)):
        data = path.read_bytes()
        assert data.startswith(header)
        found += data[len(header) :]
    return found


def seals_in(codec: Codec[Any], data: bytes) -> str:
    """The kinds of all seals, in order."""
    assert codec.seals is not None
    seals = (seal_at(codec.seals, data, entry.offset) for entry in scan(codec, data)[0])
    return "".join(seal.kind.value for seal in seals if seal is not None)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def rows_of(spark: SparkSession, *rows: dict[str, Any], schema: str) -> DataFrame:
    return spark.createDataFrame([Row(**row) for row in rows], schema)


def write_small(frame: DataFrame, dialect: str, path: Path, **options: Any) -> None:
    """By one task: no look at the rows beforehand to tell how they are spread."""
    write(frame, dialect, str(path), partitions=1, **options)


JOB_SCHEMA = "kind string, identifier string, execution_ns long, status string"


def jobs(spark: SparkSession, *identifiers: str) -> DataFrame:
    rows = (
        {"kind": "set", "identifier": i, "execution_ns": 7, "status": "planned"}
        for i in identifiers
    )
    return rows_of(spark, *rows, schema=JOB_SCHEMA)


def test_a_ztick_log_comes_back_to_the_byte(spark, tmp_path):
    source, target = tmp_path / "logfile", tmp_path / "copy" / "logfile"
    source.write_bytes(ztick_bytes(range(COUNT)))
    frame = read(spark, "ztick", str(source)).repartition(3)
    write(frame, "ztick", str(target), partitions=4, seals="false")
    assert target.read_bytes() == source.read_bytes()
    assert names(target.parent) == ["logfile", "logfile.lock"]
    with ZtickLog.open(RealDisk(), SystemClock(), str(target)) as log:
        assert log.recovery.clean
        assert sum(1 for _ in log.entries()) == COUNT


def test_ztick_rows_are_appended_and_overwritten(spark, tmp_path):
    target = tmp_path / "logfile"
    target.write_bytes(ztick_bytes(range(5)) + b"\0\0\1")  # with a torn tail
    (tmp_path / "logfile.compressed").write_bytes(ztick_bytes(range(3)))
    options = {"orderBy": "identifier", "seals": "false"}
    write_small(jobs(spark, "a", "b"), "ztick", target, **options)
    added = ztick.CODEC.encode(ztick.JobSet("a", 7, ztick.Status.PLANNED))
    added += ztick.CODEC.encode(ztick.JobSet("b", 7, ztick.Status.PLANNED))
    assert target.read_bytes() == ztick_bytes(range(5)) + added
    assert (tmp_path / "logfile.compressed").exists()
    write_small(jobs(spark, "a", "b"), "ztick", target, mode="overwrite", **options)
    assert target.read_bytes() == added
    assert names(tmp_path) == ["logfile", "logfile.lock", "quarantine"]


def test_a_workq_log_comes_back_to_the_byte_in_segments(spark, tmp_path):
    source, target = tmp_path / "log", tmp_path / "copies" / "log"
    source.mkdir()
    for number, numbers in enumerate((range(1000), range(1000, COUNT)), 1):
        data = workq.HEADER + workq_bytes(numbers)
        (source / numbered_name(number)).write_bytes(data)
    frame = read(spark, "workq", str(source), payloads=True)
    write(frame, "workq", str(target), partitions=3, segmentBytes=40_000)
    found = names(target)
    assert found == [numbered_name(n) for n in range(1, len(found) + 1)]
    assert len(found) > 4
    sizes = [(target / name).stat().st_size for name in found]
    assert all(40_000 <= size < 41_000 or size < 40_000 for size in sizes)
    assert contents(target, "*.log", workq.HEADER) == workq_bytes(range(COUNT))
    assert names(target.parent) == ["log"]

    more = frame.where("kind = 'add'").limit(2).withColumn("_log", F.lit("x"))
    write_small(more, "workq", target)
    assert len(names(target)) == len(found) + 3  # one segment, and the locks that were taken
    with WorkqLog.open(RealDisk(), SystemClock(), str(target)) as log:
        assert log.recovery.clean
        records = [entry.record for entry in log.entries()]
    assert records[:COUNT] == [workq_record(number) for number in range(COUNT)]
    assert len(records) == COUNT + 2

    write_small(frame.limit(0), "workq", target, mode="overwrite")
    assert names(target) == ["000000001.log", "append.lock", "read.lock"]
    assert (target / "000000001.log").read_bytes() == workq.HEADER


def test_kestrel_journals_come_back_with_their_readers(spark, tmp_path):
    source, target = tmp_path / "queues", tmp_path / "copies"
    source.mkdir()
    (source / "jobs.100").write_bytes(kestrel.WRITER.header + kestrel_bytes(range(1000)))
    (source / "jobs.200").write_bytes(kestrel.WRITER.header + kestrel_bytes(range(1000, COUNT)))
    (source / "mail.5").write_bytes(kestrel.WRITER.header + kestrel_bytes(range(7)))
    checkpoint = kestrel.READER.header + kestrel.READER.encode(kestrel.ReadHead(17))
    checkpoint += kestrel.READER.encode(kestrel.ReadDone((19, 23)))
    (source / "jobs.read.one").write_bytes(checkpoint)
    frame = read(spark, "kestrel", str(source), payloads=True)
    write(frame, "kestrel", str(target), partitions=2, segmentBytes=30_000, seals="false")
    assert contents(target, "jobs.[0-9]*", kestrel.WRITER.header) == kestrel_bytes(range(COUNT))
    assert contents(target, "mail.[0-9]*", kestrel.WRITER.header) == kestrel_bytes(range(7))
    assert (target / "jobs.read.one").read_bytes() == checkpoint
    with KestrelLog.open(RealDisk(), SystemClock(), str(target), "jobs") as journal:
        assert journal.recovery.clean
        assert journal.next_id == COUNT + 1
        assert journal.readers["one"].head == 17
        with pytest.raises(Exception, match="is in use"):
            write_small(frame, "kestrel", target, mode="overwrite")

    with pytest.raises(Exception, match="has given out ids up to 7, so item 1 cannot"):
        write_small(frame.where("queue = 'mail'"), "kestrel", target)
    behind = frame.where("queue = 'mail'").withColumn("item_id", F.col("item_id") + 7)
    write_small(behind, "kestrel", target, readers="default", seals="false")
    mail = sorted(target.glob("mail.[0-9]*"))
    assert [len(path.read_bytes()) for path in mail] == [4 + len(kestrel_bytes(range(7)))] * 2
    assert (target / "mail.read.").read_bytes()[4:13] == kestrel.READER.encode(kestrel.ReadHead(7))

    write_small(behind.limit(1), "kestrel", target, mode="overwrite")
    assert len(list(target.glob("mail*[0-9]"))) == 1
    assert not (target / "mail.read.").exists()
    assert contents(target, "jobs.[0-9]*", kestrel.WRITER.header) == kestrel_bytes(range(COUNT))


def test_a_ztick_log_is_sealed_in_blocks_also_behind_what_was_there(spark, tmp_path):
    source, target = tmp_path / "logfile", tmp_path / "copy" / "logfile"
    source.write_bytes(ztick_bytes(range(COUNT)))
    write(read(spark, "ztick", str(source)), "ztick", str(target), partitions=2)
    written = target.read_bytes()
    assert seals_in(ztick.CODEC, written) == "obc"
    assert without_seals(ztick.CODEC, written) == source.read_bytes()

    write_small(jobs(spark, "a"), "ztick", target, orderBy="identifier")
    both = target.read_bytes()
    assert both.startswith(written)
    assert seals_in(ztick.CODEC, both) == "obcobc"
    assert is_proven(ztick.CODEC, both)
    damaged = bytearray(both)
    damaged[-110] ^= 1
    assert not is_proven(ztick.CODEC, damaged)
    with ZtickLog.open(RealDisk(), SystemClock(), str(target)) as log:
        assert log.recovery.clean
        assert sum(1 for _ in log.entries()) == COUNT + 1


def test_segments_and_checkpoints_of_kestrel_are_sealed(spark, tmp_path):
    source, target = tmp_path / "queues", tmp_path / "copies"
    source.mkdir()
    (source / "jobs.100").write_bytes(kestrel.WRITER.header + kestrel_bytes(range(COUNT)))
    frame = read(spark, "kestrel", str(source), payloads=True)
    write_small(frame, "kestrel", target, segmentBytes=80_000, readers="one")
    segments = [path.read_bytes() for path in sorted(target.glob("jobs.[0-9]*"))]
    assert [seals_in(kestrel.WRITER, data) for data in segments] == ["obbc", "obc"]
    assert all(is_proven(kestrel.WRITER, data) for data in segments)
    header = len(kestrel.WRITER.header)
    items = b"".join(without_seals(kestrel.WRITER, data)[header:] for data in segments)
    assert items == kestrel_bytes(range(COUNT))
    assert seals_in(kestrel.READER, (target / "jobs.read.one").read_bytes()) == "obc"
    with KestrelLog.open(RealDisk(), SystemClock(), str(target), "jobs") as journal:
        assert journal.recovery.clean
        assert journal.next_id == COUNT + 1
        assert journal.readers["one"].head == 0


def test_a_row_that_would_be_taken_for_a_seal_is_refused(spark, tmp_path):
    seal = make_seal(SEALS, SealKind.OPENING, 1, 0)
    (entry,) = scan(ztick.CODEC, seal)[0]
    rows = jobs(spark, entry.record.identifier).withColumn("kind", F.lit("remove"))
    with pytest.raises(Exception, match=r"journeyman\.seal\., which the log itself uses"):
        write_small(rows, "ztick", tmp_path / "logfile", orderBy="identifier")
    assert not (tmp_path / "logfile").exists()


def test_an_empty_dataframe_is_an_empty_log(spark, tmp_path):
    nothing = jobs(spark, "a").limit(0).withColumn("_position", F.lit(0).cast("long"))
    for dialect, file in (("ztick", "ztick"), ("workq", "workq/000000001.log")):
        write_small(nothing, dialect, tmp_path / dialect)
        header = workq.HEADER if dialect == "workq" else b""
        assert (tmp_path / file).read_bytes() == header
    write_small(nothing, "kestrel", tmp_path / "kestrel", queue="jobs")
    assert contents(tmp_path / "kestrel", "jobs.*", kestrel.WRITER.header) == b""
    assert len(names(tmp_path / "kestrel")) == 1


def test_what_cannot_be_written_leaves_the_log_as_it_was_and_nothing_behind(spark, tmp_path):
    target = tmp_path / "logfile"
    target.write_bytes(ztick_bytes(range(5)))
    bad = jobs(spark, "a", "b").withColumn("status", F.when(F.col("identifier") == "a", "planned"))
    with pytest.raises(Exception, match=r"row [01], column status: null in a job"):
        write_small(bad, "ztick", target, orderBy="identifier", mode="overwrite")
    unsorted = jobs(spark, "b", "a").coalesce(1)
    with pytest.raises(Exception, match="not in the order of identifier"):
        unsorted.write.format("ztick").option("orderBy", "identifier").mode("append").save(
            str(target)
        )
    two = jobs(spark, "a", "b").withColumn("_position", F.lit(1).cast("long"))
    with pytest.raises(Exception, match="rows of 2 logs"):
        write_small(two.withColumn("_log", F.col("identifier")), "ztick", target)
    assert target.read_bytes() == ztick_bytes(range(5))
    assert names(tmp_path) == ["logfile"]


def test_a_log_in_use_is_refused_and_left_alone(spark, tmp_path):
    target = tmp_path / "logfile"
    frame = jobs(spark, "a")
    with (
        ZtickLog.open(RealDisk(), SystemClock(), str(target)),
        pytest.raises(Exception, match="logfile: is in use: another process has it open"),
    ):
        write_small(frame, "ztick", target, orderBy="identifier")
    assert target.read_bytes() == b""
    write_small(frame, "ztick", target, orderBy="identifier")
    assert len(target.read_bytes()) > 0


@pytest.mark.parametrize(
    ("dialect", "options", "words"),
    [
        ("ztick", {}, "a ztick log is ordered: name the columns with orderBy"),
        ("ztick", {"orderBy": "when"}, "orderBy: no column 'when'"),
        ("ztick", {"orderby": "kind", "segmentBytes": 2048}, "writing ztick has no option"),
        ("workq", {"orderBy": "kind", "segmentByte": 2048}, "did you mean segmentBytes"),
        ("workq", {"orderBy": "kind", "segmentBytes": 3}, "segmentBytes is a number from 1024"),
        ("kestrel", {"orderBy": "kind", "queue": "a.b"}, "queue name 'a.b' holds"),
        ("kestrel", {"orderBy": "kind", "readers": "default,x"}, "no default reader"),
        ("ztick", {"orderBy": "kind", "seals": "no"}, "seals is true or false, not 'no'"),
        ("workq", {"orderBy": "kind", "seals": "true"}, "writing workq has no option 'seals'"),
    ],
)
def test_options_are_checked_before_anything_runs(spark, tmp_path, dialect, options, words):
    with pytest.raises(UsageError, match=words):
        write(jobs(spark, "a"), dialect, str(tmp_path / "log"), **options)
    with pytest.raises(UsageError, match="mode is append or overwrite"):
        write(jobs(spark, "a"), dialect, str(tmp_path / "log"), mode="ignore")
    assert names(tmp_path) == []
