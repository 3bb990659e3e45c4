"""Every command and every error, as a client of a real server sees them."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from tests.support.servers.schedule_process import LineClient, ScheduleProcess

FAR_NS = 4_000_000_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(tmp_path_factory.mktemp("commands")) as running:
        yield running


@pytest.fixture
def client(server) -> Iterator[LineClient]:
    with server.client() as connected:
        yield connected


def test_set_then_get(client):
    assert client.ask(f"r1 SET set.get {FAR_NS}") == "r1 OK"
    assert client.ask("r2 GET set.get") == f"r2 OK planned {FAR_NS}"


def test_set_with_a_date(client):
    assert client.ask("r1 SET set.date 2090-03-30 14:00:00") == "r1 OK"
    assert client.ask("r2 GET set.date") == "r2 OK planned 3794565600000000000"
    assert client.ask('r3 SET set.date "2090-03-30 14:00:00"') == "r3 OK"
    assert client.ask("r4 SET set.date 2090-03-30T16:00:00.5+02:00") == "r4 OK"
    assert client.ask("r5 GET set.date") == "r5 OK planned 3794565600500000000"


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("e SET", "e ERROR invalid_args missing required argument: job_identifier"),
        ("e SET job", "e ERROR invalid_args missing required argument: timestamp"),
        ("e GET", "e ERROR invalid_args missing required argument: job_identifier"),
        ("e REMOVE", "e ERROR invalid_args missing required argument: job_identifier"),
        ("e REMOVERULE", "e ERROR invalid_args missing required argument: rule_identifier"),
        ("e RULE SET", "e ERROR invalid_args missing required argument: rule_identifier"),
        ("e GET no.such.job", 'e ERROR not_found job "no.such.job" does not exist'),
        ("e REMOVE no.such.job", 'e ERROR not_found job "no.such.job" does not exist'),
        ("e REMOVERULE no.rule", 'e ERROR not_found rule "no.rule" does not exist'),
    ],
)
def test_errors_say_what_is_wrong(client, line, answer):
    assert client.ask(line) == answer


@pytest.mark.parametrize(
    "stamp",
    ["soon", "2026-02-31 10:00:00", "1_000", "9223372036854775808", "2263-01-01 00:00:00", "1.5"],
)
def test_a_wrong_timestamp_sets_no_job(client, stamp):
    assert client.ask(f"e SET wrong.stamp {stamp}").startswith("e ERROR invalid_args ")
    assert client.ask("e GET wrong.stamp").startswith("e ERROR not_found ")


@pytest.mark.parametrize(
    "runner",
    [
        "http FETCH http://host/",
        "http GET ftp://host/",
        "redis rediss://host PUBLISH key",
        "redis redis://host PUBLISH key extra",
        "redis redis://host FLUSHALL key",
        "amqp http://host exchange key",
        "carrier-pigeon home",
    ],
)
def test_a_wrong_runner_sets_no_rule(client, runner):
    assert client.ask(f"e RULE SET wrong.rule x. {runner}").startswith("e ERROR invalid_args ")
    assert client.ask("e REMOVERULE wrong.rule").startswith("e ERROR not_found ")


def test_remove_takes_the_job_away(client):
    assert client.ask(f"r1 SET remove.me {FAR_NS}") == "r1 OK"
    assert client.ask("r2 REMOVE remove.me") == "r2 OK"
    assert client.ask("r3 REMOVE remove.me") == 'r3 ERROR not_found job "remove.me" does not exist'


def test_query_lists_by_prefix(client):
    for number in range(3):
        client.ask(f"r SET query.{number} {FAR_NS + number}")
    client.send("q1 QUERY query.", "q2 QUERY query.none", "q3 GET query.0")
    assert sorted(client.read_list("q1")) == [f"query.{n} planned {FAR_NS + n}" for n in range(3)]
    assert client.read_list("q2") == []
    assert client.read_line() == f"q3 OK planned {FAR_NS}"


def test_rules_of_all_runners_are_listed_as_they_were_set(client):
    rules = [
        "list.a a. shell /usr/bin/backup.sh",
        'list.b b. shell "two words"',
        "list.c c. direct /usr/bin/curl -s http://example.com",
        "list.d d. http POST https://hooks.example.com/webhook",
        "list.e e. awf report --input format=pdf --input target=main",
        "list.f f. amqp amqp://guest:guest@localhost:5672/ jobs notifications",
        "list.g g. redis redis://127.0.0.1:6379/0 PUBLISH deploy:events",
    ]
    for rule in rules:
        assert client.ask(f"r RULE SET {rule}") == "r OK"
    client.send("q LISTRULES extra words")
    assert sorted(client.read_list("q")) == rules
    for rule in rules:
        assert client.ask(f"r REMOVERULE {rule.split()[0]}") == "r OK"


def test_stat_has_its_fifteen_lines_in_order(client):
    client.send("s STAT verbose")
    rows = client.read_list("s")
    assert [row.split()[0] for row in rows] == [
        "uptime_ns",
        "connections",
        "jobs_total",
        "jobs_planned",
        "jobs_triggered",
        "jobs_executed",
        "jobs_failed",
        "rules_total",
        "executions_pending",
        "executions_inflight",
        "persistence",
        "compression",
        "auth_enabled",
        "tls_enabled",
        "framerate",
    ]
    values = dict(row.split() for row in rows)
    assert int(values["uptime_ns"]) > 0
    assert int(values["connections"]) >= 1
    assert (values["persistence"], values["compression"]) == ("logfile", "idle")
    assert (values["auth_enabled"], values["tls_enabled"], values["framerate"]) == ("0", "0", "512")


def test_malformed_and_unknown_lines_are_silent(client):
    client.send("", "   ", "one", "x NOPE a b", "x set a 1", "AUTH", "x RULE GET a")
    assert client.ask(f"after SET silent {FAR_NS}") == "after OK"


def test_auth_is_answered_in_its_turn_where_it_is_not_needed(client):
    client.send("AUTH secret", f"a SET auth.1 {FAR_NS}", "AUTH secret", "b GET auth.1", "AUTH x y")
    answers = [client.read_line() for _ in range(5)]
    assert answers == ["OK", "a OK", "OK", f"b OK planned {FAR_NS}", "OK"]


def test_client_of_the_document_reads_each_answer_at_once(server):
    """The Python client of ztick's protocol page: one send, one recv."""
    for number in range(50):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
            sock.send(b'r1 RULE SET rule.app app. shell "/bin/echo hello"\n')
            assert sock.recv(1024) == b"r1 OK\n"
            sock.send(b"r2 SET app.task.1 2090-03-30 14:00:00\n")
            assert sock.recv(1024) == b"r2 OK\n"
            sock.send(b"r3 QUERY app.\n")
            assert sock.recv(4096) == b"r3 app.task.1 planned 3794565600000000000\nr3 OK\n", number
            sock.send(b"r4 LISTRULES\n")
            assert sock.recv(4096).endswith(b'shell "/bin/echo hello"\nr4 OK\n'), number


def test_error_is_one_line_whatever_it_is_about(server):
    forged = b'w1 GET "job\nw2 OK planned 5\n"\n'
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(forged + b"w3 GET nothing\n")
        answer = b""
        while not answer.endswith(b'"nothing" does not exist\n'):
            answer += sock.recv(4096)
    assert answer.splitlines() == [
        rb'w1 ERROR not_found job "job\nw2 OK planned 5\n" does not exist',
        b'w3 ERROR not_found job "nothing" does not exist',
    ]


def test_values_that_need_quotes_come_back_in_quotes(client):
    assert client.ask(f'"r 1" SET "quoted \\"id\\"" {FAR_NS}') == '"r 1" OK'
    client.send('q QUERY "quoted "')
    assert client.read_list("q") == [f'"quoted \\"id\\"" planned {FAR_NS}']


def test_a_line_feed_inside_quotes_is_data(client):
    assert client.ask(f'r SET "line\nfeed" {FAR_NS}') == "r OK"
    assert client.ask('r GET "line\nfeed"') == f"r OK planned {FAR_NS}"
    assert client.ask('r REMOVE "line\nfeed"') == "r OK"


def test_crlf_clients_are_understood(client):
    client.send_bytes(b"r1 SET crlf %d\r\nr2 GET crlf\r\n" % FAR_NS)
    assert client.read_line() == "r1 OK"
    assert client.read_line() == f"r2 OK planned {FAR_NS}"


def test_identifiers_that_are_not_utf8_are_refused(client):
    client.send_bytes(b"\xff1 SET \xfe 1\n")
    line = client.read_line()
    assert line == "\udcff1 ERROR invalid_args job_identifier is not valid UTF-8"


def test_a_line_of_4096_bytes_is_taken_and_one_more_closes(server):
    identifier = "x" * (4096 - len("r GET \n"))
    with server.client() as client:
        assert client.ask(f"r GET {identifier}").startswith("r ERROR not_found ")
        client.send(f"r GET {identifier}x")
        assert client.read_line() is None


def test_commands_before_a_line_that_is_too_long_are_answered(server):
    with server.client() as client:
        client.send(f"r1 SET before.long {FAR_NS}", "x" * 5000)
        assert client.read_all() == ["r1 OK"]


def test_half_closed_clients_get_all_their_answers(server):
    with server.client() as client:
        client.send(*(f"r{n} SET half.{n} {FAR_NS}" for n in range(50)), "no line end")
        client.half_close()
        lines = client.read_all()
    assert lines == [f"r{n} OK" for n in range(50)]


def test_an_unfinished_line_at_the_end_is_dropped(server):
    with server.client() as client:
        client.send_bytes(b"r1 SET dropped 1")
        client.half_close()
        assert client.read_all() == []
    assert server.ask("r GET dropped").startswith("r ERROR not_found")


def test_a_client_that_vanishes_harms_nobody(server):
    before = int(server.stat()["connections"])
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"r1 SET vanish 4000000000000000000\nr2 QUE")
    server.wait_until(lambda: int(server.stat()["connections"]) <= before, "connections go")
    assert server.ask("r GET vanish") == "r OK planned 4000000000000000000"


def test_messages_have_time_and_level(server):
    server.ask("r STAT")
    stamped = re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (ERROR|WARN|INFO|DEBUG) ")
    assert server.lines
    assert all(stamped.match(line) for line in server.lines), server.lines
