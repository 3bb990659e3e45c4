"""The work queue over HTTP: queues, jobs, pause, requeue, figures, tokens."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.support.servers.http_client import TOKENS, ask
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


def test_queues_are_listed(server: WorkqProcess, client: WorkqClient, name: str):
    client.add(name)
    queue = {"name": name, "ready": 1, "scheduled": 0, "paused": False}
    assert ask(server, "GET", f"/queues/{name}") == (200, queue)
    status, queues = ask(server, "GET", "/queues")
    assert status == 200
    assert queue in queues
    assert ask(server, "GET", "/queues?offset=100000") == (200, [])
    assert ask(server, "GET", "/queues/nobody")[0] == 404


def test_jobs_are_shown(server: WorkqProcess, client: WorkqClient, name: str):
    text = client.add(name, "é".encode(), flags="-priority=3 -max-attempts=2")
    raw = client.add(name, b"\xff\x00")
    status, jobs = ask(server, "GET", f"/queues/{name}/jobs")
    assert status == 200
    assert [job["id"] for job in jobs] == [text, raw]
    assert (jobs[0]["payload"], jobs[0]["priority"], jobs[0]["max_attempts"]) == ("é", 3, 2)
    assert "payload" not in jobs[1]
    assert jobs[1]["payload_base64"] == "/wA="
    assert ask(server, "GET", f"/work-jobs/{text}") == (200, jobs[0])
    assert jobs[0]["state"] == "new"
    assert ask(server, "GET", f"/queues/{name}/jobs?list=scheduled") == (200, [])
    assert ask(server, "GET", f"/work-jobs/{uuid.uuid4()}")[0] == 404


def test_dead_jobs_are_listed_and_requeued(server: WorkqProcess, client: WorkqClient, name: str):
    job_id = client.add(name)
    assert ask(server, "POST", f"/work-jobs/{job_id}/requeue") == (
        409,
        {"error": "Job is not dead"},
    )
    client.finish(job_id, command="fail")
    _, dead = ask(server, "GET", f"/queues/{name}/jobs?list=dead")
    assert [(job["id"], job["state"]) for job in dead] == [(job_id, "failed")]
    assert ask(server, "POST", f"/work-jobs/{job_id}/requeue")[0] == 204
    assert client.lease(name) is not None


def test_queue_is_paused_and_resumed(server: WorkqProcess, client: WorkqClient, name: str):
    client.add(name)
    assert ask(server, "PUT", f"/queues/{name}/paused", {"paused": True})[0] == 200
    assert client.lease(name) is None
    assert ask(server, "GET", f"/queues/{name}")[1]["paused"] is True
    assert ask(server, "PUT", f"/queues/{name}/paused", {"paused": False})[0] == 200
    assert client.lease(name) is not None


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/queues?limit=0", None),
        ("GET", "/queues?limit=101", None),
        ("GET", "/queues?offset=-1", None),
        ("GET", "/queues?offset=x", None),
        ("GET", "/queues/bad!name", None),
        ("GET", "/queues/q/jobs?list=all", None),
        ("GET", "/work-jobs/abc", None),
        ("PUT", "/queues/q/paused", {"paused": 1}),
        ("PUT", "/queues/q/paused", {}),
    ],
)
def test_wrong_requests_are_told_what_is_wrong(
    server: WorkqProcess, method: str, path: str, body: object
):
    status, answer = ask(server, method, path, body)
    assert status == 400
    assert answer["error"]


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


def test_only_tokens_of_all_namespaces_see_the_work_queue(
    tmp_path_factory: pytest.TempPathFactory,
):
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "tokens").write_text(TOKENS)
    with WorkqProcess(
        directory, http__listen="127.0.0.1:0", controller__auth_file="tokens"
    ) as server:
        assert ask(server, "GET", "/queues")[0] == 401
        assert ask(server, "GET", "/queues", secret="sk_deploy")[0] == 403
        assert ask(server, "GET", "/queues", secret="sk_admin") == (200, [])


def test_without_the_work_queue_there_are_no_queues(tmp_path_factory: pytest.TempPathFactory):
    with WorkqProcess(
        tmp_path_factory.mktemp("off"), memory=True, http__listen="127.0.0.1:0"
    ) as server:
        assert ask(server, "GET", "/queues") == (200, [])
