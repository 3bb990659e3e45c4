"""The Python client of the schedule against a real server, over good and bad connections."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from journeyman.client import AsyncSchedule, Job, Rule, Schedule, errors
from journeyman.formats.ztick import Awf, Direct, Http, Redis, Shell, Status
from tests.support.client_kinds import of
from tests.support.ports import free_port
from tests.support.scripted_peer import Cut, Exchange, ScriptedPeer
from tests.support.servers.schedule_process import ScheduleProcess
from tests.support.servers.stalling_proxy import StallingProxy

DATA = Path(__file__).parent / "data"
FAR_NS = 4_000_000_000_000_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScheduleProcess]:
    with ScheduleProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def schedule(server: ScheduleProcess) -> Iterator[Schedule]:
    with Schedule(port=server.port, timeout_s=30.0) as client:
        yield client


def test_jobs_are_planned_read_and_removed(schedule):
    when = datetime(2096, 10, 2, 7, 6, 40, 5, tzinfo=UTC)
    schedule.set("a.1", when)
    planned = Job("a.1", Status.PLANNED, 4_000_000_000_000_005_000)
    assert schedule.get("a.1") == planned
    schedule.set('a.2 with "quotes" and\nlines', FAR_NS)
    jobs = schedule.query("a.")
    assert sorted(job.identifier for job in jobs) == ["a.1", 'a.2 with "quotes" and\nlines']
    assert schedule.query("nothing.") == []
    assert schedule.get("a.3") is None
    assert schedule.remove("a.1")
    assert not schedule.remove("a.1")
    assert schedule.get("a.1") is None
    # Further time zones, and times before 1970.
    schedule.set("a.1", datetime(1960, 1, 1, tzinfo=UTC) - timedelta(microseconds=1))
    found = schedule.get("a.1")
    assert found is not None
    assert found.execution_ns == -315619200000001000


def test_rules_come_back_as_they_were_made(schedule):
    rules = [
        Rule("r.1", "p.", Shell('echo "two words"')),
        Rule("r.2", "q r", Direct("/bin/true", ("a b", ""))),
        Rule("r.3", "", Http("POST", "http://localhost:1/x")),
        Rule("r.4", "s", Awf("flow", ("a=1", "b=c d"))),
        Rule("r.5", "t", Redis("redis://localhost:1/0", "SET", "key")),
    ]
    for rule in rules:
        schedule.set_rule(rule.identifier, rule.pattern, rule.runner)
    assert sorted(schedule.rules(), key=lambda rule: rule.identifier) == rules
    for rule in rules:
        assert schedule.remove_rule(rule.identifier)
    assert not schedule.remove_rule("r.1")


def test_many_jobs_go_in_few_exchanges_and_refusals_are_told_apart(schedule):
    jobs = [(f"many.{number}", FAR_NS + number) for number in range(2500)]
    jobs[7] = ("x" * 4090, FAR_NS)
    jobs[8] = ("many.late", 2**63)
    outcomes = list(schedule.set_many(jobs, batch=300))
    assert [name for name, _ in outcomes] == [name for name, _ in jobs]
    refused = {number: str(error) for number, (_, error) in enumerate(outcomes) if error}
    assert set(refused) == {7, 8}
    assert "a line holds 4096" in refused[7]
    assert "outside the signed 64-bit range" in refused[8]
    assert len(schedule.query("many.")) == 2498
    assert int(schedule.stat()["jobs_total"]) >= 2498


def test_what_the_server_would_misread_is_not_sent(schedule):
    with pytest.raises(errors.InvalidRequest, match="has no time zone"):
        schedule.set("a", datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(errors.InvalidRequest, match="cannot be written as UTF-8"):
        schedule.set("\udc80", FAR_NS)
    with pytest.raises(errors.InvalidRequest, match="a line holds 4096"):
        schedule.set("x" * 4096, FAR_NS)
    with pytest.raises(errors.Refused, match="invalid_args"):
        schedule.set_rule("bad", "p", Http("PATCH", "http://localhost"))


def test_a_connection_cut_again_and_again_loses_no_job_of_many(server):
    jobs = [(f"cut.{number:04d}", FAR_NS + number) for number in range(400)]
    with (
        StallingProxy(server.port, largest=50, cut_after=2000) as proxy,
        Schedule(port=proxy.port, timeout_s=30.0) as client,
    ):
        assert all(error is None for _, error in client.set_many(jobs, batch=100))
    with Schedule(port=server.port) as client:
        found = [(job.identifier, job.execution_ns) for job in client.query("cut.")]
    assert sorted(found) == jobs


@pytest.mark.parametrize("make", [Schedule, of(AsyncSchedule)])
def test_calls_that_may_be_repeated_are_and_the_others_say_so(make):
    script: list[Exchange] = [
        (b"1 GET twice\n", Cut),
        (b"2 GET twice\n", b"2 OK planned 5\n"),
        (b"3 REMOVE twice\n", Cut),
        (b"4 REMOVE twice\n", b"4 OK\n"),
    ]
    with ScriptedPeer(script) as peer, make(port=peer.port, timeout_s=30.0) as client:
        assert client.get("twice") == Job("twice", Status.PLANNED, 5)
        with pytest.raises(errors.AnswerLost, match="REMOVE twice may have happened, or not"):
            client.remove("twice")
        assert client.remove("twice")


@pytest.mark.parametrize("make", [Schedule, of(AsyncSchedule)])
def test_server_that_was_restarted_meanwhile_is_noticed_before_a_call(tmp_path: Path, make):
    listen = f"127.0.0.1:{free_port()}"
    with (
        ScheduleProcess(tmp_path, controller__listen=listen) as first,
        make(port=first.port, timeout_s=30.0) as client,
    ):
        client.set("kept", FAR_NS)
        assert first.stop() == 0
        with ScheduleProcess(tmp_path, controller__listen=listen):
            assert client.remove("kept")  # not AnswerLost


def test_a_server_that_is_not_there_is_said_at_once():
    port = free_port()
    with pytest.raises(errors.CannotConnect, match=f"cannot connect to 127.0.0.1:{port}"):
        Schedule(port=port).set("a", 1)


def test_a_server_that_does_not_answer_is_given_up_on():
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        Schedule(port=silent.getsockname()[1], timeout_s=0.2) as client,
        pytest.raises(errors.TimedOut, match="does not answer: timed out"),
    ):
        client.get("a")


def test_tokens_and_namespaces(tmp_path: Path):
    (tmp_path / "auth.toml").write_text(
        '[token.one]\nsecret = "s e c r e t"\nnamespace = "mine."\n'
    )
    with ScheduleProcess(tmp_path, controller__auth_file="auth.toml") as server:
        with Schedule(port=server.port, token="s e c r e t") as client:
            client.set("mine.1", FAR_NS)
            with pytest.raises(errors.AccessDenied, match="insufficient namespace scope"):
                client.set("yours.1", FAR_NS)
            outcomes = dict(client.set_many([("mine.2", FAR_NS), ("yours.2", FAR_NS)]))
            assert outcomes["mine.2"] is None
            assert isinstance(outcomes["yours.2"], errors.AccessDenied)
            assert len(client.query()) == 2
        with (
            Schedule(port=server.port, token="wrong") as client,
            pytest.raises(errors.AccessDenied, match="auth_failed"),
        ):
            client.get("mine.1")
        with (
            Schedule(port=server.port) as client,
            pytest.raises(errors.AccessDenied, match="auth_required"),
        ):
            client.get("mine.1")


def test_tls_is_spoken_and_a_stranger_is_not_trusted(tmp_path: Path):
    with ScheduleProcess(
        tmp_path,
        controller__tls_cert=DATA / "server_chain.pem",
        controller__tls_key=DATA / "server_key.pem",
    ) as server:
        trusting = ssl.create_default_context(cafile=str(DATA / "root.pem"))
        with Schedule("localhost", server.port, tls=trusting) as client:
            client.set("tls", FAR_NS)
            assert client.get("tls") is not None
        with (
            Schedule("localhost", server.port, tls=True) as client,
            pytest.raises(errors.CannotConnect, match="its certificate is not trusted"),
        ):
            client.get("tls")
