"""Tenants with namespaces of their own keep out of each other's way: ids, histories, parents."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from journeyman.client.errors import NotFound, Refused
from tests.integration.test_access import Server
from tests.support.servers.http_client import ask

TOKENS = """
[token.admin]
secret = "sk_admin"
namespace = "*"

[token.team]
secret = "sk_team"
namespace = "team."

[token.other]
secret = "sk_other"
namespace = "other."
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("tenants"), TOKENS) as running:
        yield running


def http(server: Server, secret: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    status, told = ask(server, method, path, body, secret)
    return (status, json.loads(told)["code"]) if status >= 400 else (status, told)


def id_of_another_namespace(server: Server, *, is_finished: bool = False) -> uuid.UUID:
    with server.work_queue("sk_other") as queue:
        job_id = queue.add("other.q", b"x")
        if is_finished:
            queue.complete(job_id, b"done")
        return job_id


def test_an_id_that_another_namespace_has_is_an_error_and_no_duplicate(server):
    """A client takes a duplicate for its own job that is there already."""
    for is_finished in (False, True):
        taken = id_of_another_namespace(server, is_finished=is_finished)
        with server.work_queue("sk_team") as queue:
            for more in ({}, {"replace_finished": True}):
                with pytest.raises(Refused, match=r"ID is taken$"):
                    queue.add("team.q", b"x", job_id=taken, **more)
            with pytest.raises(Refused, match=r"ID is taken$"):
                queue.run("team.q", b"x", job_id=taken, ttr_ms=1000, wait_ms=1)
        body = {"queue": "team.q", "id": str(taken)}
        assert http(server, "sk_team", "POST", "/v1/work/jobs", body) == (409, "id_taken")
        with server.work_queue("sk_other") as queue:
            found = queue.inspect_job(taken)
            assert found is not None
            assert found.name == "other.q"
        with server.work_queue("sk_admin") as queue, pytest.raises(Refused, match="Duplicate job"):
            queue.add("team.q", b"x", job_id=taken)
    with server.work_queue("sk_team") as queue:
        own = queue.add("team.q", b"x")
        with pytest.raises(Refused, match="Duplicate job"):
            queue.add("team.q", b"x", job_id=own)


def test_foreign_and_unknown_ids_answer_alike(server):
    foreign, unknown = id_of_another_namespace(server), uuid.uuid4()
    with server.work_queue("sk_team") as queue:
        own = queue.add("team.q", b"x")

        def parents(parent: uuid.UUID, name: str, **more: Any) -> str:
            with pytest.raises((Refused, NotFound)) as caught:
                queue.add(name, b"x", after=[parent], **more)
            return str(caught.value)

        for name in ("team.q", "other.q"):
            assert parents(foreign, name) == parents(unknown, name)
            assert parents(foreign, name, job_id=own) == parents(unknown, name, job_id=own)
        assert "Unknown parent" in parents(foreign, "team.q")

    def answers(job_id: uuid.UUID) -> list[tuple[int, Any]]:
        work, at = f"/v1/work/jobs/{job_id}", "at=2039-01-01T00:00:00Z"
        asked: list[tuple[str, str, Any]] = [
            ("GET", work, None),
            ("GET", f"{work}?{at}", None),
            ("GET", f"{work}/records", None),
            ("GET", f"{work}/result", None),
            ("DELETE", work, None),
            ("POST", f"{work}/requeue", None),
            ("POST", f"{work}/complete", {}),
            ("POST", f"{work}/fail", {}),
            ("POST", f"{work}/touch", {}),
            ("POST", "/v1/work/jobs", {"queue": "team.q", "after": [str(job_id)]}),
        ]
        return [http(server, "sk_team", *each) for each in asked]

    assert answers(foreign) == answers(unknown)
    assert [status for status, _ in answers(unknown)[:-1]] == [404] * 9


def test_a_file_of_ztick_is_served_as_ztick_serves_it(tmp_path):
    """No token names runners: every rule may do everything, and a warning says so."""
    with Server(tmp_path, TOKENS, settings={"runners.deny": '["127.0.0.0/8"]'}) as server:
        can = "WARN no token names runners.* can run programs: admin, team, other; to restrict"
        server.wait_for_line(can)
        server.wait_for_line("WARN runners.allow and runners.deny have no effect")
        with server.client(secret="sk_team") as client:
            assert client.ask("r RULE SET team.r team. shell true") == "r OK"
        assert output_of_a_run(server, "sk_team", f"http://127.0.0.1:{server.http_port}/v1/health")
        restricting = TOKENS.replace('"team."', '"team."\nrunners = "shell"')
        (tmp_path / "tokens").write_text(restricting)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("SIGHUP: reloaded 3 tokens")
        assert warnings(server) == 1
        with server.client(secret="sk_admin") as client:
            refused = "r ERROR auth_denied this token may not use the runner shell"
            assert client.ask("r RULE SET r team. shell true") == refused
        (tmp_path / "tokens").write_text(TOKENS)
        server.process.send_signal(signal.SIGHUP)
        server.wait_until(lambda: warnings(server) == 2)


def warnings(server: Server) -> int:
    return sum("can run programs" in line for line in server.lines)


def output_of_a_run(server: Server, secret: str, url: str) -> str:
    """What the run of a rule of the team got from there."""
    with server.client(secret=secret) as client:
        assert client.ask(f"r RULE SET team.http team.http http GET {url}") == "r OK"
        assert client.ask("r SET team.http.1 1") == "r OK"

    def runs() -> list[dict[str, str]]:
        found: Any = http(server, "sk_admin", "GET", "/v1/schedule/runs?prefix=team.http.1")[1]
        return list(found["runs"])

    server.wait_until(lambda: bool(runs()))
    return runs()[0].get("output", "")


def test_a_tenant_gets_no_answer_of_an_address_inside(tmp_path):
    restricting = TOKENS.replace("namespace", 'runners = "http"\nnamespace')
    with Server(tmp_path, restricting) as server:
        url = f"http://127.0.0.1:{server.http_port}/v1/health"
        assert output_of_a_run(server, "sk_team", url) == ""
        server.wait_for_line("a run failed.*team.http.1.*the address is not public")
    settings = {"runners.allow": '["127.0.0.1"]'}
    (tmp_path / "allowed").mkdir()
    with Server(tmp_path / "allowed", restricting, settings=settings) as server:
        url = f"http://127.0.0.1:{server.http_port}/v1/health"
        assert "ok" in output_of_a_run(server, "sk_team", url)


def test_the_history_of_an_id_that_two_namespaces_had_is_of_neither(server):
    """The log has the records of both jobs, and their payloads."""
    with server.work_queue("sk_admin") as queue:
        job_id = queue.add("other.q", b"belongs-to-others")
        assert queue.delete(job_id)
        queue.add("team.q", b"own", job_id=job_id)
    path = f"/v1/work/jobs/{job_id}/records"
    for secret in ("sk_team", "sk_other"):
        assert http(server, secret, "GET", path) == (404, "not_found")
    status, told = http(server, "sk_admin", "GET", path)
    assert status == 200
    assert [each["queue"] for each in told["records"] if "queue" in each] == ["other.q", "team.q"]
