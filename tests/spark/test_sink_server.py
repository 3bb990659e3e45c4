"""A DataFrame of jobs onto a real server, over connections that break."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from journeyman.client import Schedule
from journeyman.client.errors import ConnectionFailed
from journeyman.errors import UsageError
from journeyman.spark import register, send
from journeyman.spark.sinks.server import ServerSink, ServerStreamWriter, ServerWriter
from journeyman.spark.sinks.server_options import ServerOptions
from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.stalling_proxy import StallingProxy
from tests.support.spark.stream_driver import ztick_bytes

FAR_NS = 4_000_000_000_000_000_000


@pytest.fixture(scope="module", autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


def planned(server: ScheduleProcess, prefix: str) -> dict[str, int]:
    with Schedule(port=server.port, timeout_s=30.0) as client:
        return {job.identifier: job.execution_ns for job in client.query(prefix)}


def test_jobs_arrive_over_connections_that_break_and_a_retry_changes_nothing(
    spark, server, tmp_path
):
    jobs = spark.range(600).selectExpr(
        "concat('cut.', id) AS identifier", f"id + {FAR_NS} AS execution_ns"
    )
    expected = {f"cut.{number}": FAR_NS + number for number in range(600)}
    report = tmp_path / "report.json"
    with StallingProxy(server.port, largest=200, cut_after=6000) as proxy:
        address = f"127.0.0.1:{proxy.port}"
        send(jobs, "ztick", address, tasks=2, batchSize=50, report=report)
    assert planned(server, "cut.") == expected
    assert json.loads(report.read_text())["put"] == 600
    # A task whose connection broke for good is run again, from its first row.
    batch = pa.RecordBatch.from_pydict(
        {"identifier": list(expected), "execution_ns": list(expected.values())}
    )
    with StallingProxy(server.port, cut_after=20) as proxy:
        given = {"door": "ztick", "address": f"127.0.0.1:{proxy.port}", "maxRetries": "0"}
        with pytest.raises(ConnectionFailed):
            ServerWriter(ServerOptions.parse(given)).write(iter([batch]))
    given["address"] = f"127.0.0.1:{server.port}"
    ServerWriter(ServerOptions.parse(given)).write(iter([batch]))
    assert planned(server, "cut.") == expected


def test_refused_jobs_fail_the_write_or_are_skipped_and_counted(spark, server, tmp_path):
    jobs = spark.range(20).selectExpr(
        "concat('some.', id) AS identifier",
        f"IF(id % 10 = 3, NULL, id + {FAR_NS}) AS execution_ns",
    )
    address, report = f"127.0.0.1:{server.port}", tmp_path / "report.json"
    with pytest.raises(Exception, match=r"refused 2 jobs \(some.3: .*; the other 18 are there"):
        send(jobs, "ztick", address)
    assert len(planned(server, "some.")) == 18
    send(jobs, "ztick", address, refused="skip", report=report)
    told = json.loads(report.read_text())
    assert (told["put"], told["refused"]) == (18, 2)
    assert told["first_refused"][0] == ["some.3", "invalid_request: execution_ns is null"]


def test_what_was_asked_wrongly_is_said_before_anything_is_sent(spark, server):
    jobs = spark.range(1).selectExpr("'x' AS identifier", "id AS execution_ns")
    address = f"127.0.0.1:{server.port}"
    writer = jobs.write.format("journeyman").option("door", "ztick").option("address", address)
    with pytest.raises(Exception, match="nothing there is overwritten"):
        writer.mode("overwrite").save()
    with pytest.raises(Exception, match="jobs for workq need the column name"):
        writer.option("door", "workq").mode("append").save()
    assert planned(server, "x") == {}


def test_a_stream_puts_each_job_once(spark, server, tmp_path):
    (tmp_path / "logfile").write_bytes(ztick_bytes(1, 2, 3))
    source = spark.readStream.format("ztick").load(str(tmp_path / "logfile"))
    jobs = source.selectExpr("concat('stream.', key) AS identifier", f"{FAR_NS} AS execution_ns")
    sink = jobs.writeStream.format("journeyman").options(
        door="ztick",
        address=f"127.0.0.1:{server.port}",
        checkpointLocation=str(tmp_path / "checkpoint"),
    )
    sink.trigger(availableNow=True).start().awaitTermination()
    expected = {f"stream.job.{number}": FAR_NS for number in (1, 2, 3)}
    assert planned(server, "stream.") == expected


def test_a_stream_of_jobs_by_key_must_name_its_run():
    schema = StructType([StructField("name", StringType()), StructField("job_key", StringType())])
    with pytest.raises(UsageError, match="needs the option runId"):
        ServerSink({"door": "workq"}).streamWriter(schema, overwrite=False)
    named = ServerSink({"door": "workq", "runId": "a", "checkpointLocation": "/c"})
    assert isinstance(named.streamWriter(schema, overwrite=False), ServerStreamWriter)
