"""AUTH, namespaces, and what somebody without a token gets to see."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.servers.schedule_process import LineClient, ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000
TOKENS = """
[token.deploy]
secret = "sk_deploy"
namespace = "deploy."
runners = "shell redis queue journal"

[token.admin]
secret = "sk_admin"
namespace = "*"
runners = "*"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ScheduleProcess]:
    directory = tmp_path_factory.mktemp("auth")
    (directory / "tokens").write_text(TOKENS)
    with ScheduleProcess(directory, controller__auth_file="tokens", log__level="debug") as running:
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory) -> Iterator[ScheduleProcess]:
    directory = tmp_path_factory.mktemp("impatient")
    (directory / "tokens").write_text(TOKENS)
    settings = {"controller.auth_file": "tokens", "limits.auth_timeout_ms": "1500"}
    with ScheduleProcess(directory, settings=settings) as running:
        yield running


def test_a_token_opens_the_connection(server):
    with server.client() as client:
        client.send("AUTH sk_admin", f"r1 SET any {FAR_NS}", "r2 GET any")
        assert client.read_line() == "OK"
        assert client.read_line() == "r1 OK"
        assert client.read_line() == f"r2 OK planned {FAR_NS}"


def test_invalid_lines_before_auth_are_passed_over(server):
    with server.client() as client:
        client.send("", "   ", "alone", "AUTH sk_admin")
        assert client.read_line() == "OK"


@pytest.mark.parametrize("line", ["r1 GET job", "auth sk_admin", "r1 AUTH sk_admin", "AUTH"])
def test_another_command_first_is_refused_and_closed(server, line):
    with server.client() as client:
        client.send(line, "AUTH sk_admin", "r2 STAT")
        assert client.read_all() == ["ERROR auth_required"]


@pytest.mark.parametrize("secret", ["wrong", "sk_admi", "sk_admin2", '""', "SK_ADMIN"])
def test_a_wrong_secret_is_refused_and_closed(server, secret):
    with server.client() as client:
        client.send(f"AUTH {secret}", f"r1 SET sneaked.in {FAR_NS}")
        client.half_close()
        assert client.read_all() == ["ERROR auth_failed"]
    with server.client(secret="sk_admin") as client:  # also forgives the address
        assert client.ask("r GET sneaked.in").startswith("r ERROR not_found")


def test_guessing_gets_slower(server):
    began = time.monotonic()
    for number in range(4):
        with server.client() as client:
            client.send(f"AUTH guess{number}")
            assert client.read_all() == ["ERROR auth_failed"]
    assert time.monotonic() - began >= 0.1 + 0.2 + 0.4 - 0.01
    with server.client(secret="sk_admin"):
        pass  # a right secret waits as long, and forgives


def test_a_client_that_says_nothing_is_closed(impatient):
    with impatient.client() as client:
        assert client.read_line() is None


def test_a_client_that_trickles_is_closed_in_time(impatient):
    with impatient.client() as client:
        began = time.monotonic()
        closed = False
        while not closed and time.monotonic() - began < 60:
            try:
                client.send_bytes(b" ")
            except OSError:
                closed = True
            time.sleep(0.05)
        assert closed


def test_a_namespace_is_a_prefix_of_identifiers(server):
    with server.client(secret="sk_deploy") as client:
        denied = "r ERROR auth_denied insufficient namespace scope"
        assert client.ask(f"r SET deploy.1 {FAR_NS}") == "r OK"
        assert client.ask(f"r SET billing.1 {FAR_NS}") == denied
        assert client.ask("r GET billing.1") == denied
        assert client.ask("r REMOVE billing.1") == denied
        assert client.ask("r REMOVERULE billing") == denied
        assert client.ask("r RULE SET billing. deploy. shell true") == denied
        assert client.ask("r RULE SET deploy.rule billing. shell true") == denied
        assert client.ask("r RULE SET deploy.rule deploy.x shell true") == "r OK"
        assert client.ask("r GET deploy.1") == f"r OK planned {FAR_NS}"


def test_a_token_may_use_only_its_runners_and_its_queues(server):
    with server.client(secret="sk_deploy") as client:
        refused = "r ERROR auth_denied this token may not use the runner direct"
        assert client.ask("r RULE SET deploy.r deploy.x direct /bin/true") == refused
        assert client.ask("r RULE SET deploy.r deploy.x queue deploy.mail") == "r OK"
        denied = "r ERROR auth_denied insufficient namespace scope"
        assert client.ask("r RULE SET deploy.r deploy.x queue mail") == denied
        assert client.ask("r RULE SET deploy.r deploy.x journal mail") == denied
        assert client.ask("r REMOVERULE deploy.r") == "r OK"


def guessing(server: ScheduleProcess) -> LineClient:
    """A client that was in time with its secret, even on a busy machine."""
    while True:
        began = time.monotonic()
        client = server.client()
        client.send("AUTH wrong")
        if time.monotonic() - began < 1:
            client.half_close()
            return client
        client.close()


def test_wrong_secrets_are_refused_or_closed_without_a_verdict(impatient):
    clients = [guessing(impatient) for _ in range(6)]
    answers = [client.read_all() for client in clients]
    assert answers.count(["ERROR auth_failed"]) > 1
    assert answers.count(["ERROR auth_failed"]) + answers.count([]) == 6
    for client in clients:
        client.close()


def test_lists_show_only_the_namespace(server):
    with server.client(secret="sk_admin") as admin:
        admin.ask(f"r SET other.1 {FAR_NS}")
        admin.ask(f"r SET deploy.7 {FAR_NS}")
        admin.ask("r RULE SET other.rule other. redis redis://:hunter2@host/0 SET key")
        admin.ask("r RULE SET deploy.shown deploy.z shell true")
        admin.send("q QUERY")
        assert any(row.startswith("other.1 ") for row in admin.read_list("q"))
    with server.client(secret="sk_deploy") as client:
        client.send("q1 QUERY", "q2 QUERY other.", "q3 QUERY dep", "q4 LISTRULES", "q5 STAT")
        everything = client.read_list("q1")
        assert everything
        assert all(row.startswith("deploy.") for row in everything)
        assert client.read_list("q2") == []
        assert sorted(client.read_list("q3")) == sorted(everything)
        assert all(row.startswith("deploy.") for row in client.read_list("q4"))
        assert "auth_enabled 1" in client.read_list("q5")


def test_secrets_are_in_no_message(server):
    with server.client(secret="sk_deploy"):
        pass
    with server.client() as client:
        client.send("AUTH sk_nearly")
        client.read_all()
    server.wait_for_line("authentication failed")
    with server.client(secret="sk_admin"):
        pass
    said = "\n".join(server.lines)
    assert "sk_" not in said
    assert "hunter2" not in said
