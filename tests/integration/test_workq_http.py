"""The figures of the work queue among the metrics; its routes are those of version 1."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.servers.http_client import ask
from tests.support.servers.workq_process import WorkqClient, WorkqProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkqProcess]:
    with WorkqProcess(tmp_path_factory.mktemp("http"), http__listen="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def client(server: WorkqProcess) -> Iterator[WorkqClient]:
    with server.worker() as connected:
        yield connected


@pytest.fixture
def name() -> str:
    return f"q{uuid.uuid4().hex}"


def test_figures_of_the_work_queue_stand_beside_those_of_the_schedule(
    server: WorkqProcess, client: WorkqClient, name: str
):
    client.add(name)
    client.lease(name)
    status, text = ask(server, "GET", "/metrics")
    assert status == 200
    lines = text.decode().splitlines() if isinstance(text, bytes) else str(text).splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(figures['journeyman_workq_commands_total{command="add",outcome="ok"}']) >= 1
    assert float(figures['journeyman_workq_jobs{state="leased"}']) >= 1
    assert float(figures["journeyman_workq_connections"]) >= 1
    assert "journeyman_rules_active" in figures
