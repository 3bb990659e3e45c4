"""Conversions: what is carried over, what is listed, and that nothing is in neither."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from journeyman.folds.kestrel import Reader
from journeyman.folds.keyspace import id_of
from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import scan
from journeyman.formats.keyspace import values as keyspace_values
from journeyman.formats.keyspace.keys import CounterKey, JobKey, decode_key
from journeyman.formats.timed_frame import Instant
from journeyman.spark.convert import WHOLE_ROW, JobDefaults, convert
from journeyman.spark.convert.parquet import log_to_parquet, parquet_to_log
from journeyman.spark.maintenance import archive
from tests.support.spark.stream_driver import (
    open_kestrel,
    open_workq,
    open_ztick,
    put_items,
    set_jobs,
)
from tests.support.specimens import kestrel_record
from tests.support.unsealed import scan_records
from tests.support.workq_logs import added, as_of, completed, deleted, job_id, started

NOW_NS = as_of(300)
DAY_NS = 86_400 * 10**9
PLANNED, EXECUTED = ztick.Status.PLANNED, ztick.Status.EXECUTED
SETTINGS = JobDefaults(NOW_NS)


def schedule(path: Path) -> None:
    records: list[ztick.Record] = [
        ztick.RuleSet("mail", "mail.", ztick.Shell("send")),
        ztick.RuleSet("mail.fast", "mail.now.", ztick.Http("GET", "http://localhost/")),
        ztick.RuleSet("none", "", ztick.Shell("never")),
        ztick.JobSet("mail.1", NOW_NS + DAY_NS, PLANNED),
        ztick.JobSet("mail.now.é", NOW_NS - 5, ztick.Status.TRIGGERED),
        ztick.JobSet("other", NOW_NS, PLANNED),
        ztick.JobSet("mail.done", NOW_NS, EXECUTED),
        ztick.JobSet("old", NOW_NS - 31 * DAY_NS, PLANNED),
        ztick.JobSet("gone", NOW_NS, PLANNED),
        ztick.JobRemoved("gone"),
    ]
    path.write_bytes(b"".join(map(ztick.CODEC.encode, records)))


def lost(conversion) -> set[tuple[str, str]]:
    rows = conversion.losses.collect()
    assert all(row["reason"] for row in rows)
    assert len(rows) == len({(row["_log"], row["key"], row["field"]) for row in rows})
    return {(row["key"], row["field"]) for row in rows}


def test_a_schedule_becomes_scheduled_jobs_and_comes_back(spark, tmp_path):
    schedule(tmp_path / "logfile")
    conversion = convert(spark, "ztick", "workq", [str(tmp_path / "logfile")], SETTINGS)
    conversion.write(str(tmp_path / "queue"))
    assert lost(conversion) == {
        ("mail.done", WHOLE_ROW),
        ("old", WHOLE_ROW),
        ("mail.now.é", "status"),
        ("mail", "runner"),
        ("mail.fast", "runner"),
        ("none", "runner"),
    }
    entries, ending = scan(workq.CODEC, (tmp_path / "queue" / "000000001.log").read_bytes())
    assert ending.clean
    jobs: list[Any] = [entry.record for entry in entries]
    assert [(job.name, job.payload.decode(), job.command) for job in jobs] == [
        ("mail", "mail.1", workq.Command.SCHEDULE),
        ("mail.fast", "mail.now.é", workq.Command.SCHEDULE),
        ("default", "other", workq.Command.SCHEDULE),
    ]
    assert [job.job_id for job in jobs] == [id_of(job.payload.decode()).bytes for job in jobs]
    assert {UUID(bytes=job.job_id).version for job in jobs} == {4}
    assert jobs[0].time.unix_ns == NOW_NS + DAY_NS

    back = convert(spark, "workq", "ztick", [str(tmp_path / "queue")], SETTINGS)
    back.write(str(tmp_path / "again"))
    planned, _ = scan_records(ztick.CODEC, (tmp_path / "again").read_bytes())
    assert [entry.record for entry in planned] == [
        ztick.JobSet("mail.1", NOW_NS + DAY_NS, PLANNED),
        ztick.JobSet("mail.now.é", NOW_NS - 5, PLANNED),
        ztick.JobSet("other", NOW_NS, PLANNED),
    ]
    fields = {field for _, field in lost(back)}
    assert fields == {"name", "ttr_ms", "ttl_ms", "priority", "max_attempts", "max_fails"}


def test_work_jobs_that_are_no_schedule_are_listed_as_a_whole(spark, tmp_path):
    with open_workq(tmp_path, 10_000) as log:
        log.append([added(1), added(2, due_s=400), added(3), started(3, 1), added(4)])
        log.append([completed(4, 2), added(5, ttl_s=1), added(6), deleted(6, 3)])
    conversion = convert(spark, "workq", "ztick", [str(tmp_path)], SETTINGS)
    rows = conversion.rows.collect()
    assert [(row["identifier"], row["execution_ns"]) for row in rows] == [
        (str(UUID(bytes=job_id(2))), as_of(400))
    ]
    losses = conversion.losses.collect()
    whole = {row["key"]: row["reason"] for row in losses if row["field"] == WHOLE_ROW}
    assert whole == {
        str(UUID(bytes=job_id(number))): reason
        for number, reason in (
            (1, "it is ready at once, not scheduled"),
            (3, "it is leased"),
            (4, "it is completed"),
            (5, "its TTL has ended"),
        )
    }
    payloads = [row["value"] for row in losses if row["field"] == "payload"]
    assert payloads == [base64.b64encode(b"payload of 2").decode()]


def test_items_that_a_reader_waits_for_become_jobs(spark, tmp_path):
    with open_kestrel(tmp_path / "queues", "mail", 10_000) as journal:
        journal.put(b"first", add_time_ms=NOW_NS // 10**6)
        journal.put(b"second", add_time_ms=NOW_NS // 10**6, error_count=2)
        journal.put(b"x" * (2 << 20), add_time_ms=NOW_NS // 10**6)
        journal.put(b"late", add_time_ms=1000, expire_time_ms=2000)
        journal.put(b"soon", add_time_ms=NOW_NS // 10**6, expire_time_ms=NOW_NS // 10**6 + 500)
        journal.add_reader("a")
        journal.checkpoint("a", Reader(1))
    conversion = convert(spark, "kestrel", "workq", [str(tmp_path / "queues")], SETTINGS)
    conversion.write(str(tmp_path / "queue"))
    entries, _ = scan(workq.CODEC, (tmp_path / "queue" / "000000001.log").read_bytes())
    jobs: list[Any] = [entry.record for entry in entries]
    assert [(job.name, job.payload, job.ttl_ms) for job in jobs] == [
        ("mail", b"second", 2_592_000_000),
        ("mail", b"soon", 500),
    ]
    assert {job.created.unix_ns // 10**6 for job in jobs} == {NOW_NS // 10**6}
    assert lost(conversion) == {
        ("mail/1", WHOLE_ROW),
        ("mail/2", "error_count"),
        ("mail/3", WHOLE_ROW),
        ("mail/4", WHOLE_ROW),
        ("mail+a", "reader"),
    }


def test_a_keyspace_has_every_index_and_counter_of_the_jobs(spark, tmp_path):
    with open_workq(tmp_path / "queue", 10_000) as log:
        log.append([added(1), added(2, due_s=400), added(3), started(3, 1), added(4)])
        log.append([started(4, 1), completed(4, 2), added(5, ttl_s=1)])
    conversion = convert(spark, "workq", "keyspace", [str(tmp_path / "queue")], SETTINGS)
    conversion.write(str(tmp_path / "store"))
    rows = spark.read.parquet(str(tmp_path / "store")).collect()
    entries = {bytes(row["key"]): bytes(row["value"]) for row in rows}
    decoded = {key: decode_key(key) for key in entries}
    values = {key: keyspace_values.decode_value(decoded[key], entries[key]) for key in entries}
    jobs = [v for v in values.values() if isinstance(v, keyspace_values.JobRecord)]
    assert {job.job_uuid.bytes: job.status for job in jobs} == {
        job_id(1): "waiting",
        job_id(2): "delayed",
        job_id(3): "active",
        job_id(4): "completed",
    }
    assert {job.payload for job in jobs} == {f'"payload of {n}"' for n in (1, 2, 3, 4)}
    for job in jobs:
        assert keyspace_values.index_entries(job).items() <= entries.items()
    counters = {
        k.status: values[b]
        for b, k in decoded.items()
        if hasattr(k, "status") and isinstance(k, CounterKey)
    }
    assert counters == {"waiting": 1, "delayed": 1, "active": 1, "completed": 1}
    assert len(entries) == 4 * 4 + 4 + 1
    assert {field for _, field in lost(conversion)} == {
        WHOLE_ROW,
        "payload",
        "result",
        "ttr_ms",
        "ttl_ms",
        "priority",
        "max_fails",
    }


def test_schedules_and_journals_become_keyspaces_too(spark, tmp_path):
    schedule(tmp_path / "logfile")
    conversion = convert(spark, "ztick", "keyspace", [str(tmp_path / "logfile")], SETTINGS)
    kinds = [decode_key(bytes(row["raw_key"])) for row in conversion.rows.collect()]
    jobs = {key.job_uuid for key in kinds if isinstance(key, JobKey)}
    assert jobs == {id_of(name) for name in ("mail.1", "mail.now.é", "other")}


@pytest.mark.parametrize("log", ["ztick", "sealed ztick", "workq", "kestrel", "mapped kestrel"])
def test_a_log_comes_back_from_parquet_byte_for_byte(spark, tmp_path, log):
    source = tmp_path / "source"
    source.mkdir()
    dialect = log.split()[-1]
    if log == "sealed ztick":
        path, target = source / "logfile", tmp_path / "target" / "logfile"
        for start in range(3):  # each closes what it opened
            with open_ztick(path) as schedule_log:
                for number in range(700):
                    set_jobs(schedule_log, start, number)
        with path.open("ab") as file:  # and then another program has written
            file.write(ztick.CODEC.encode(ztick.JobSet("theirs", NOW_NS, PLANNED)))
    elif log == "ztick":
        schedule(source / "logfile")
        (source / "logfile.compressed").write_bytes((source / "logfile").read_bytes()[:60])
        schedule(source / "logfile.compressed")
        path, target = source / "logfile", tmp_path / "target" / "logfile"
    elif dialect == "workq":
        with open_workq(source, 300) as queue_log:
            for number in range(12):
                queue_log.append([added(number), started(number, 1)])
            # A zone offset is in no column: this record must be kept as it is.
            zoned = workq.JobEvent(Instant(NOW_NS, 90), job_id(3), workq.Command.DELETE)
            queue_log.append([zoned])
        path, target = source, tmp_path / "target"
    elif log == "mapped kestrel":
        items = b"".join(kestrel.WRITER.encode(kestrel_record(n)) for n in range(5))
        (source / "jobs.1").write_bytes(kestrel.WRITER.header + items + bytes(3000))
        (source / "jobs.2").write_bytes(bytes(4096))
        path, target = source, tmp_path / "target"
    else:
        with open_kestrel(source, segment_bytes=150) as journal:
            put_items(journal, *range(20))
        with open_kestrel(source, "empty"):
            pass
        path, target = source, tmp_path / "target"
    log_to_parquet(spark, dialect, [str(path)], str(tmp_path / "parquet"))
    parquet_to_log(spark, str(tmp_path / "parquet"), str(target))
    directory = target if target.is_dir() else target.parent
    assert _logs_in(directory) == _logs_in(source)


def _logs_in(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.iterdir() if path.is_file())
    return {path.name: path.read_bytes() for path in files if path.suffix != ".lock"}


def test_an_archive_holds_every_record_and_then_segments_may_go(spark, tmp_path):
    with open_workq(tmp_path / "queue", 400) as log:
        for number in range(10):
            log.append([added(number), deleted(number, 1)])
        log.append([added(50, ttl_s=10**9)])
        for number in range(60, 64):
            log.append([added(number), deleted(number, 1)])
    segments = sorted(path.name for path in (tmp_path / "queue").glob("*.log"))
    (outcome,) = archive(
        spark, "workq", [str(tmp_path / "queue")], str(tmp_path / "archive"), remove=True
    )
    assert outcome.error is None
    assert outcome.records_before == 29
    archived = spark.read.parquet(str(tmp_path / "archive"))
    assert archived.count() == 29
    assert {"run", "log", "day"} <= set(archived.columns)
    payload = archived.filter(archived.job_id == bytearray(job_id(50))).collect()[0]["payload"]
    assert bytes(payload) == b"payload of 50"
    left = sorted(path.name for path in (tmp_path / "queue").glob("*.log"))
    assert left == segments[-len(left) :]
    assert 1 < len(left) < len(segments)
    with open_workq(tmp_path / "queue") as log:
        ids = {entry.record.job_id for entry in log.entries()}
    assert job_id(50) in ids
    assert job_id(0) not in ids
