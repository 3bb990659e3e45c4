"""Telemetry of a real server: what a collector gets, and collectors that are no help."""

from __future__ import annotations

import http.client
import time
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from prometheus_client.parser import text_string_to_metric_families

from journeyman import __version__
from tests.support.ports import free_port
from tests.support.servers.collector import Collector, UselessCollector, plain
from tests.support.servers.schedule_process import ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000


def serving(directory: Path, url: str, **settings: Any) -> ScheduleProcess:
    return ScheduleProcess(
        directory,
        settings={
            "telemetry.enabled": "true",
            "telemetry.endpoint": url,
            "telemetry.flush_interval_ms": 100,
            **settings,
        },
    )


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A collector that has seen the whole life of a server, from its start to its stop."""
    directory = tmp_path_factory.mktemp("watched")
    with Collector() as collector:
        settings = {"telemetry.service_name": "night-shift", "database.compression_interval": 1}
        with serving(directory, collector.url, **settings) as server, server.client() as client:
            due_ns = time.time_ns()
            client.ask('rule1 RULE SET good good. shell "true"')
            client.ask('rule2 RULE SET bad bad. shell "exit 3"')
            client.ask(f"set1 SET good.1 {due_ns}")
            client.ask(f"set2 SET bad.1 {due_ns - 1_000_000_000}")
            client.ask(f"set3 SET later {FAR_NS}")
            client.ask("get1 GET later")
            client.ask("get2 GET nobody")
            client.send("list1 QUERY later")
            client.read_list("list1")
            client.send("list2 LISTRULES")
            client.read_list("list2")
            client.send("stat1 STAT")
            client.read_list("stat1")
            client.ask("gone1 REMOVE later")
            client.ask(f"set4 SET later.2 {FAR_NS}")
            client.ask("gone2 REMOVERULE nobody")
            client.ask("wrong1 SET only-an-identifier")
            client.send_bytes(b"\xff\xfe GET later\n")
            client.read_line()
            server.wait_for_status("good.1", "executed")
            server.wait_for_status("bad.1", "failed")
            server.wait_for_line("the log was compacted")
            key = frozenset({("success", True)})
            collector.wait_until(
                lambda: (
                    "ztick.persistence.compactions" in collector.metrics
                    and collector.numbers("ztick.persistence.compactions")[key] >= 1
                    and collector.numbers("ztick.connections.active")[frozenset()] == 1
                )
            )
            client.ask("last GET later.2")
            assert server.stop() == 0
        yield collector, server.lines, due_ns


def test_traces_and_metrics_go_to_their_own_paths(watched):
    collector, _, _ = watched
    assert collector.paths == {"/v1/traces", "/v1/metrics"}


def test_the_service_is_named(watched):
    collector, _, _ = watched
    for resource in collector.resources:
        assert resource["service.name"] == "night-shift"
        assert resource["service.version"] == __version__


@pytest.mark.parametrize(
    ("request_id", "command", "success"),
    [
        ("rule1", "rule_set", True),
        ("set1", "set", True),
        ("get1", "get", True),
        ("get2", "get", False),
        ("list1", "query", True),
        ("list2", "list_rules", True),
        ("stat1", "stat", True),
        ("gone1", "remove", True),
        ("gone2", "remove_rule", False),
        ("wrong1", "refused", False),
        ("\\xff\\xfe", "get", False),
        ("last", "get", True),
    ],
)
def test_a_command_becomes_a_span(watched, request_id, command, success):
    collector, _, _ = watched
    found = [
        (span, attributes)
        for span, attributes in collector.spans_named("ztick.request")
        if attributes["ztick.request.id"] == request_id
    ]
    assert len(found) == 1
    span, attributes = found[0]
    assert span.kind == Span.SPAN_KIND_SERVER
    assert attributes["ztick.command"] == command
    assert attributes["ztick.success"] is success
    assert (span.status.code == Status.STATUS_CODE_ERROR) is not success
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano


def test_every_span_is_a_trace_of_its_own(watched):
    collector, _, _ = watched
    assert len({span.trace_id for span in collector.spans}) == len(collector.spans)


def test_a_run_becomes_a_span_with_its_lateness(watched):
    collector, _, due_ns = watched
    runs = {a["ztick.job.id"]: (span, a) for span, a in collector.spans_named("ztick.run")}
    assert set(runs) == {"good.1", "bad.1"}
    good, attributes = runs["good.1"]
    assert attributes["ztick.runner"] == "shell"
    assert attributes["ztick.success"] is True
    lateness_s = (good.start_time_unix_nano - due_ns) / 1_000_000_000
    assert attributes["ztick.lateness"] == pytest.approx(lateness_s)
    assert good.start_time_unix_nano <= good.end_time_unix_nano
    bad, attributes = runs["bad.1"]
    assert attributes["ztick.success"] is False
    assert attributes["ztick.lateness"] >= 1
    assert bad.status.code == Status.STATUS_CODE_ERROR
    assert "3" in bad.status.message


def test_the_figures_have_the_names_of_ztick(watched):
    collector, _, _ = watched
    none = frozenset[Any]()
    assert collector.numbers("ztick.jobs.scheduled") == {none: 4}
    assert collector.numbers("ztick.jobs.removed") == {none: 1}
    assert collector.numbers("ztick.rules.active") == {none: 2}
    executed = collector.numbers("ztick.jobs.executed")
    assert executed == {
        frozenset({("runner", "shell"), ("success", True)}): 1,
        frozenset({("runner", "shell"), ("success", False)}): 1,
    }
    assert collector.numbers("ztick.connections.active") == {none: 0}  # at the very end


def test_durations_are_a_cumulative_histogram(watched):
    collector, _, _ = watched
    metric = collector.metrics["ztick.execution.duration"]
    assert metric.unit == "s"
    assert metric.histogram.aggregation_temporality == 2  # cumulative
    for point in metric.histogram.data_points:
        assert point.count == 1 == sum(point.bucket_counts)
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        assert 0 < point.sum == point.min == point.max
        assert 0.001 in point.explicit_bounds
        assert plain(point.attributes)["runner"] == "shell"
    assert collector.metrics["ztick.jobs.scheduled"].sum.is_monotonic


def test_the_library_writes_nothing_to_stderr(watched):
    _, lines, _ = watched
    assert not [line for line in lines if "telemetry" in line.lower() or "Traceback" in line]


# -- collectors that are no help --


def answers_and_stops(server: ScheduleProcess) -> None:
    """Commands are answered, jobs run, and a stop ends the process."""
    with server.client() as client:
        assert client.ask('r RULE SET rule job. shell "true"') == "r OK"
        client.send(*(f"r SET many.{number} {FAR_NS}" for number in range(2000)))
        for _ in range(2000):
            assert client.read_line() == "r OK"
        assert client.ask(f"r SET job.1 {time.time_ns()}") == "r OK"
        server.wait_for_status("job.1", "executed")
    assert server.stop() == 0


@pytest.mark.parametrize("dripping", [False, True])
def test_a_collector_that_never_finishes_an_answer_harms_nothing(tmp_path, dripping):
    with (
        UselessCollector(dripping=dripping) as collector,
        serving(tmp_path, collector.url) as server,
    ):
        assert collector.asked.wait(30)
        answers_and_stops(server)


def test_a_refused_port_harms_nothing_and_is_told_once(tmp_path):
    with serving(tmp_path, f"http://127.0.0.1:{free_port()}") as server:
        server.wait_for_line("WARN telemetry cannot be sent.*refused")
        answers_and_stops(server)
        told = [line for line in server.lines if "telemetry" in line]
    assert len(told) == 1


def test_a_collector_that_comes_later_gets_what_happens_from_then_on(tmp_path):
    port = free_port()
    with serving(tmp_path, f"http://127.0.0.1:{port}") as server:
        server.wait_for_line("WARN telemetry cannot be sent")
        assert server.ask(f"before SET a {FAR_NS}") == "before OK"
        with Collector(port) as collector:
            server.wait_for_line("INFO telemetry is sent again")
            assert server.ask(f"after SET b {FAR_NS}") == "after OK"
            assert server.stop() == 0
            ids = {a["ztick.request.id"] for _, a in collector.spans_named("ztick.request")}
            assert "after" in ids
            # Figures are kept: they count from the start, whoever was there to hear of it.
            assert collector.numbers("ztick.jobs.scheduled") == {frozenset(): 2}


# -- starting --


def refused(directory: Path, program: str = "", url: str = "http://127.0.0.1:1") -> list[str]:
    server = ScheduleProcess(
        directory,
        program=program,
        settings={"telemetry.enabled": "true", "telemetry.endpoint": url},
    )
    with server.start(wait=False):
        assert server.wait() == 2
    return [line for line in server.lines if line.startswith("journeyman:")]


WITHOUT_THE_LIBRARY = """
import sys
sys.modules["opentelemetry"] = None
from journeyman import cli
cli.main()
"""


def test_a_missing_library_is_one_line_that_names_what_to_install(tmp_path):
    (line,) = refused(tmp_path, WITHOUT_THE_LIBRARY)
    assert "journeyman[telemetry]" in line


def test_an_endpoint_that_is_no_url_is_one_line_that_names_the_setting(tmp_path):
    (line,) = refused(tmp_path, url="collector:4318")
    assert "telemetry.endpoint" in line


WHAT_WAS_IMPORTED = """
import atexit, sys
from journeyman import cli
name = "opentelemetry.exporter"  # not all of it: other libraries look for the rest themselves
atexit.register(lambda: print("imported:", name in sys.modules, file=sys.stderr))
cli.main()
"""


@pytest.mark.parametrize("enabled", [False, True])
def test_the_library_is_imported_only_where_telemetry_is_on(tmp_path, enabled):
    settings = {"telemetry.enabled": str(enabled).lower(), "telemetry.endpoint": "http://[::1]:1"}
    with ScheduleProcess(tmp_path, program=WHAT_WAS_IMPORTED, settings=settings) as server:
        assert server.ask(f"r SET a {FAR_NS}") == "r OK"
        assert server.stop() == 0
    assert f"imported: {enabled}" in server.lines


# -- Prometheus --


def test_prometheus_reads_the_figures_of_a_running_server(tmp_path):
    with (
        ScheduleProcess(tmp_path, http__listen="127.0.0.1:0") as server,
        server.client() as client,
    ):
        client.ask('r RULE SET rule job. shell "true"')
        client.ask(f"r SET job.1 {time.time_ns()}")
        client.ask("r GET nobody")
        server.wait_for_status("job.1", "executed")
        server.wait_until(lambda: server.stat()["connections"] == "2", "the others are closed")
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
    assert response.status == 200
    assert response.getheader("Content-Type", "").startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    commands = {
        (sample.labels["command"], sample.labels["outcome"]): sample.value
        for sample in families["journeyman_commands"].samples
    }
    assert commands["set", "ok"] == 1
    assert commands["get", "not_found"] == 1
    assert commands["rule_set", "ok"] == 1
    assert families["journeyman_jobs_executed"].samples[0].labels == {
        "runner": "shell",
        "success": "true",
    }
    assert families["journeyman_execution_duration_seconds"].type == "histogram"
    assert families["journeyman_connections_active"].samples[0].value == 1
