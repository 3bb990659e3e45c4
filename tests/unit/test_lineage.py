"""Events of OpenLineage: what a receiver on loopback gets of ``pipeline ingest``, without Java."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from journeyman.cli.pipeline import shared
from journeyman.clock import SystemClock
from journeyman.formats import workq
from journeyman.spark.lakes import work
from journeyman.spark.lakes.layout import TABLES
from journeyman.spark.lakes.lineage import name_of
from journeyman.spark.lakes.storage import open_lake
from tests.support.cli_commands import run
from tests.support.spark.local_work import SPARK, spread_here
from tests.support.workq_logs import added

PARENT = "flows/nightly.ingest/01936b2c-0000-7000-8000-000000000001"


class Receiver(ThreadingHTTPServer):
    """A catalog that keeps the events it gets."""

    def __init__(self, status: int = 201) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status = status
        self.events: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.events.append(json.loads(body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: Any) -> None: ...


@contextmanager
def receiving(status: int = 201) -> Iterator[Receiver]:
    with Receiver(status) as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def session(*_given: object) -> Iterator[Any]:
        yield SPARK

    monkeypatch.setattr(work, "spread", spread_here)
    monkeypatch.setattr(shared, "pipeline_session", session)


@pytest.fixture(autouse=True)
def no_variables_stay() -> Iterator[None]:
    """The library notes aliases of its variables in the environment of the process."""
    yield
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE_")]:
        del os.environ[name]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "cmdlog")


def write_log(path: Path) -> Path:
    path.mkdir()
    (path / "000000001.log").write_bytes(workq.HEADER + workq.CODEC.encode(added(1)))
    return path


def states(receiver: Receiver) -> list[str]:
    return [event["eventType"] for event in receiver.events]


def test_an_ingest_reports_its_logs_and_the_tables_that_it_changed(tmp_path, log):
    lake = tmp_path / "lake"
    with receiving() as receiver:
        settings = {"OPENLINEAGE_URL": receiver.url, "OPENLINEAGE_NAMESPACE": "jobs"}
        settings["OPENLINEAGE_PARENT_ID"] = PARENT
        words = ("pipeline", "ingest", log, "--lake", lake, "--host", "a")
        assert run(*words, env=settings).exit_code == 0
        assert run(*words, env=settings).exit_code == 0  # nothing new
    assert states(receiver) == ["START", "COMPLETE", "START", "COMPLETE"]
    begin, end, _, nothing_new = receiver.events
    assert begin["run"]["runId"] == end["run"]["runId"] != nothing_new["run"]["runId"]
    assert end["job"]["namespace"] == "jobs"
    assert end["job"]["name"] == f"journeyman.ingest:{lake}"
    assert end["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    assert end["run"]["facets"]["parent"]["job"]["name"] == "nightly.ingest"
    for event in receiver.events:
        assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [
            ("file://a", str(log))
        ]
    assert begin["outputs"] == nothing_new["outputs"] == []
    versions = {
        each["name"].removeprefix(f"{lake}/"): each["facets"]["version"]["datasetVersion"]
        for each in end["outputs"]
    }
    snapshot = open_lake(str(lake)).snapshot.versions
    assert versions == {name: str(version) for name, version in snapshot.items()}
    assert {"bronze/workq", "silver/jobs"} <= versions.keys()
    (jobs,) = [each for each in end["outputs"] if each["name"] == f"{lake}/silver/jobs"]
    columns = [field["name"] for field in jobs["facets"]["schema"]["fields"]]
    assert columns == [name for name, _, _ in TABLES["silver/jobs"].columns]


def test_logs_that_are_left_out_are_a_failure_with_its_reason(tmp_path, log):
    bad = write_log(tmp_path / "bad")
    os.mkfifo(bad / "000000002.log")
    with receiving() as receiver:
        words = ("pipeline", "ingest", log, bad, "--dialect", "workq", "--lake", tmp_path / "lake")
        result = run(*words, "--host", "a", env={"OPENLINEAGE_URL": receiver.url})
    assert result.exit_code == 1
    assert states(receiver) == ["START", "FAIL"]
    failure = receiver.events[1]
    assert str(bad) in failure["run"]["facets"]["errorMessage"]["message"]
    assert failure["outputs"]  # the other log is in the lake


def test_an_ingest_that_follows_reports_each_round_with_something_new(tmp_path, log, monkeypatch):
    rounds: list[float] = []

    def sleep(seconds: float) -> None:
        rounds.append(seconds)
        if len(rounds) == 3:
            raise KeyboardInterrupt
        if len(rounds) == 2:
            (log / "000000002.log").write_bytes(workq.HEADER + workq.CODEC.encode(added(2)))

    monkeypatch.setattr(SystemClock, "sleep", staticmethod(sleep))
    with receiving() as receiver:
        words = ("pipeline", "ingest", log, "--lake", tmp_path / "lake", "--host", "a", "--follow")
        run(*words, env={"OPENLINEAGE_URL": receiver.url})
    assert states(receiver) == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    assert len({event["run"]["runId"] for event in receiver.events}) == 1
    assert receiver.events[0]["job"]["facets"]["jobType"]["processingType"] == "STREAMING"


def test_a_receiver_that_refuses_does_not_fail_an_ingest(tmp_path, log):
    with receiving(400) as receiver:
        words = ("pipeline", "ingest", log, "--lake", tmp_path / "lake", "--host", "a")
        result = run(*words, env={"OPENLINEAGE_URL": receiver.url})
    assert result.exit_code == 0
    assert result.stderr.count("event was not sent to OpenLineage") == 2
    assert "400" in result.stderr


def test_nothing_is_sent_unless_it_is_configured(tmp_path, log, monkeypatch):
    """The library cannot be imported here; without a variable nothing tries to."""
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    words = ("pipeline", "ingest", log, "--lake", tmp_path / "lake", "--host", "a")
    result = run(*words)
    assert (result.exit_code, result.stderr) == (0, "")
    result = run(*words, env={"OPENLINEAGE_URL": "http://127.0.0.1:9"})
    assert result.exit_code == 0
    assert "pip install 'journeyman[lineage]'" in result.stderr


@pytest.mark.parametrize(
    ("path", "namespace", "name"),
    [
        ("/data/logfile", "file", "/data/logfile"),
        ("s3://bucket/lake/silver/jobs", "s3://bucket", "lake/silver/jobs"),
        ("abfss://box@account/lake", "abfss://box@account", "lake"),
        ("postgresql://me:secret@db:5432/jobs", "postgres://db:5432", "jobs"),
    ],
)
def test_names_of_datasets_follow_the_rules_of_openlineage(path, namespace, name):
    assert name_of(path) == (namespace, name)
