"""Tenants with namespaces of their own keep out of each other's way: ids, histories, parents."""

from __future__ import annotations

import asyncio
import hashlib
import http.client as http_client
import json
import re
import select
import signal
import socket
import stat
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

import journeyman as jm
from journeyman.client import WorkQueue
from journeyman.client.errors import NotFound, Refused
from journeyman.protocols.workq.salts import next_id
from journeyman.protocols.ztick.grammar import work_id
from journeyman.tasks.envelope import Envelope
from journeyman.tasks.flows import following_order
from journeyman.tasks.worker.worker import Worker
from tests.support.servers.database_process import DatabaseProcess
from tests.support.servers.http_client import ask
from tests.support.servers.token_server import Server

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
        # A timetable has its own runner, and no rule.
        with server.client(secret="sk_team") as client:
            timetable = f"TIMETABLE SET team.t every 1s run http GET {url}"
            assert client.ask(f"r {timetable}") == "r OK"
        server.wait_for_line("a run failed.*timetable team.t.*the address is not public")
        assert server.stop() == 0
    without_team = re.sub(r"(?s)\[token.team\].*?(?=\[)", "", restricting)
    with Server(tmp_path, without_team) as server:
        server.wait_for_line("a run failed.*timetable team.t.*the address is not public")
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


# -- ids that are derived --


def salt(server: Server, secret: str) -> bytes:
    with server.work_queue(secret) as queue:
        return queue.salt()


def test_a_namespace_has_a_salt_that_stays_and_others_do_not_know(tmp_path):
    another = '[token.second]\nsecret = "sk_second"\nnamespace = "team."\n'
    with Server(tmp_path, TOKENS + another) as server:
        salts = {each: salt(server, f"sk_{each}") for each in ("admin", "team", "other", "second")}
        seen = {each: http(server, f"sk_{each}", "GET", "/v1/me")[1] for each in ("admin", "team")}
        assert server.stop() == 0
    assert seen["team"]["salt"] == salts["team"].hex()
    assert seen["admin"]["salt"] is None
    assert salts["admin"] == b""
    assert len(salts["team"]) == 32
    assert salts["team"] == salts["second"] != salts["other"]
    assert not any("without the secret" in line for line in server.lines)
    path = tmp_path / "namespaces.secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Server(tmp_path, TOKENS) as server:
        assert salt(server, "sk_team") == salts["team"]
        with server.work_queue("sk_team") as queue:
            queue.add("team.q", b"x")
        server.kill()
    secret = path.read_bytes()
    for content in (None, b"nonsense"):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        with Server(tmp_path, TOKENS) as server:
            server.wait_for_line("WARN .*the secret of namespaces.*get new ids")
            assert salt(server, "sk_team") not in (b"", salts["team"])
            server.kill()
    path.write_bytes(secret)
    with Server(tmp_path, TOKENS) as server:
        assert salt(server, "sk_team") == salts["team"]


def test_a_server_that_takes_over_has_the_same_salts(tmp_path, data_address):
    """The secret is in the data directory, which is in PostgreSQL for both of them."""
    salts = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tokens").write_text(TOKENS)
        settings = {"controller.auth_file": "tokens"}
        with DatabaseProcess(tmp_path / name, data_address, settings) as server:
            with WorkQueue("localhost", server.ports["work"], token="sk_team") as queue:
                salts.append(queue.salt())
                queue.add("team.q", b"x")
            assert server.stop() == 0
        assert not any("secret of namespaces" in line for line in server.lines)
    assert salts[0] == salts[1] != b""


def test_no_secret_is_made_before_a_token_has_a_namespace(tmp_path):
    all_of_it = TOKENS.partition("[token.team]")[0]
    path = tmp_path / "namespaces.secret"
    with Server(tmp_path, all_of_it) as server:
        assert salt(server, "sk_admin") == b""
        assert not path.exists()
        (tmp_path / "tokens").write_text(TOKENS)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for_line("SIGHUP: reloaded")
        assert len(salt(server, "sk_team")) == 32
        assert path.exists()


def task_of(server: Server, secret: str, **options: Any) -> Any:
    app = jm.App(f"journeyman://{secret}@127.0.0.1:{server.port_of('work queue')}")
    return app.task(name="team.mail", queue="team.q", **options)(lambda to="": to)


def take(server: Server, job_id: uuid.UUID) -> None:
    """As the tenant that wants to be in the way."""
    with server.work_queue("sk_other") as queue:
        queue.add("other.q", b"squatter", job_id=job_id)


def queue_of(server: Server, job_id: str) -> str:
    with server.work_queue("sk_admin") as queue:
        found = queue.inspect_job(job_id)
        return "" if found is None else found.name


def test_unique_tasks_and_chains_have_ids_that_others_cannot_take(server):
    """All that the other tenant knows is the task, its arguments and the ids that it can see."""
    victim, plain = task_of(server, "sk_team", unique="args"), task_of(server, "sk_team")
    take(server, victim.call("a").order().job_id)
    job = victim.send("a")
    assert job.is_new
    assert queue_of(server, job.id) == "team.q"
    assert not victim.send("a").is_new
    assert asyncio.run(sent_by_asyncio(server)) == job.id
    jobs = jm.group([victim.call("a"), plain.call("z")]).send().jobs
    assert jobs[0].id == job.id
    chain = plain.call("b").then(plain).send()
    with server.work_queue("sk_team") as queue:
        leased = queue.lease("team.q", wait_ms=10_000)
        while leased is not None and b'"then"' not in leased.payload:
            leased = queue.lease("team.q", wait_ms=10_000)
    assert leased is not None
    take(server, next_id(leased.job_id))
    assert str(next_id(leased.job_id)) != chain.id
    envelope = Envelope.decode(leased.payload, jm.JsonCodec())
    # A worker of any token adds what the sender waits for.
    following = following_order(plain.app, str(leased.job_id), envelope.then, "b")
    assert str(following.job_id) == chain.id
    for task in (victim, plain):
        task.app.close()


async def sent_by_asyncio(server: Server) -> str:
    task = task_of(server, "sk_team", unique="args")
    single, (member, _) = (
        await task.asend("a"),
        (await jm.group([task.call("a"), task.call("y")]).asend()).jobs,
    )
    assert member.id == single.id
    await task.app.aclose()
    return str(single.id)


def test_tokens_of_all_namespaces_keep_the_ids_of_before(server):
    task = task_of(server, "sk_admin", unique="args")
    assert task.send("admin").id == str(task.call("admin").order().job_id)
    chain = task.call("chain").then(task)
    assert b'"id"' not in chain.order().payload
    assert chain.send().id == str(next_id(task.call("chain").order().job_id))
    task.app.close()


def test_an_idempotency_key_is_an_id_that_others_cannot_take(server):
    """The id that follows from the names of token and key alone, which others may know."""
    digest = hashlib.blake2b(b"team\0order-7", digest_size=16).digest()
    take(server, uuid.UUID(bytes=digest, version=4))
    status, told = post_with_key(server, "order-7", {"queue": "team.q", "payload": "x"})
    assert (status, told["is_new"]) == (201, True)
    assert queue_of(server, told["id"]) == "team.q"


def post_with_key(server: Server, key: str, body: Any) -> tuple[int, Any]:
    connection = http_client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    headers = {"Authorization": "Bearer sk_team", "Content-Type": "application/json"}
    with closing(connection):
        data = json.dumps(body)
        connection.request("POST", "/v1/work/jobs", data, headers | {"Idempotency-Key": key})
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def test_an_idempotency_key_with_another_body_is_refused_after_a_restart(tmp_path):
    body = {"queue": "team.q", "payload": "x", "priority": 3, "key": "k", "max_fails": 2}
    later = body | {"at": "2033-01-01T00:00:00Z"}
    with Server(tmp_path, TOKENS) as server:
        first = {key: post_with_key(server, key, sent) for key, sent in (("a", body), ("b", later))}
        assert [told["is_new"] for _, told in first.values()] == [True, True]
        assert server.stop() == 0
    with Server(tmp_path, TOKENS) as server:
        for change in (
            {"payload": "y"}, {"queue": "team.p"}, {"priority": 4}, {"key": "l"}, {"max_fails": 1},
            {"ttr_ms": 5}, {"at": "2033-01-01T00:00:01Z"},
        ):  # fmt: skip
            for key, sent in (("a", body), ("b", later)):
                status, told = post_with_key(server, key, sent | change)
                assert (status, told["code"]) == (422, "idempotency_mismatch"), (key, change)
        for key, sent in (("a", body), ("b", later)):
            status, told = post_with_key(server, key, sent)
            assert (status, told) == (201, first[key][1] | {"is_new": False})


def test_rules_have_ids_that_others_cannot_take_and_replace_nothing_of_others(server):
    finished = id_of_another_namespace(server, is_finished=True)
    with server.client(secret="sk_team") as client:
        replacing = f"queue team.q -id={finished} -replace=finished"
        assert client.ask(f"r RULE SET team.thief team.thief {replacing}") == "r OK"
        assert client.ask("r SET team.thief.1 1") == "r OK"
        server.wait_for_line("a run failed.*team.thief.1.*ID is taken")
        assert queue_of(server, str(finished)) == "other.q"
        take(server, uuid.UUID(bytes=work_id("team.due.1", 1)))
        assert client.ask("r RULE SET team.due team.due queue team.due") == "r OK"
        assert client.ask("r SET team.due.1 1") == "r OK"
    with server.work_queue("sk_team") as queue:
        leased = queue.lease("team.due", wait_ms=60_000)
        assert leased is not None
        assert b"team.due.1" in leased.payload


# -- what follows a job --

SCOPE = "Insufficient namespace scope"


def followed(server: Server, secret: str, queue: str = "team.q", **more: Any) -> uuid.UUID:
    with server.work_queue(secret) as client:
        return client.add(queue, b"first", has_followers=True, **more)


def follow(server: Server, secret: str, before: uuid.UUID, queue: str, **more: Any) -> str:
    """As a worker does that has this job: what the server refuses, or the id of the next one."""
    with server.work_queue(secret) as client:
        try:
            return str(client.add(queue, b"next", follows=before, **more))
        except (Refused, NotFound) as error:
            return str(error).removeprefix("CLIENT-ERROR: ")


def test_what_follows_a_job_may_go_where_its_sender_may_add(tmp_path):
    """The worker is one for all tenants, so its token says nothing."""
    with Server(tmp_path, TOKENS) as server:
        of_team, of_admin = followed(server, "sk_team"), followed(server, "sk_admin")
        waiting = followed(server, "sk_team", after=[of_team])
        with server.work_queue("sk_team") as client:
            unsaid = client.add("team.q", b"says nothing of followers")
        for before in (of_team, waiting, unsaid):
            assert SCOPE in follow(server, "sk_admin", before, "other.q")
            assert follow(server, "sk_admin", before, "team.p").count("-") == 4
        # What follows a follower is bound as well, however the worker adds it.
        second = uuid.UUID(follow(server, "sk_admin", of_team, "team.p", has_followers=True))
        assert SCOPE in follow(server, "sk_admin", second, "other.q")
        assert follow(server, "sk_admin", of_admin, "other.q").count("-") == 4
        # A worker does not get more rights by naming the job of a sender with more.
        assert SCOPE in follow(server, "sk_team", of_admin, "other.q")
        with server.work_queue("sk_admin") as client:
            client.fail(of_admin, b"", final=True)
            client.requeue(of_admin)
        server.kill()
    with Server(tmp_path, TOKENS) as server:
        for before in (of_team, waiting, unsaid, second):
            assert SCOPE in follow(server, "sk_admin", before, "other.q")
        assert follow(server, "sk_admin", of_admin, "other.q").count("-") == 4


def test_what_follows_replaces_nothing_of_others_and_names_a_job_that_can_be_seen(server):
    of_team, theirs = followed(server, "sk_team"), followed(server, "sk_other", "other.q")
    finished = id_of_another_namespace(server, is_finished=True)
    stolen = {"job_id": finished, "replace_finished": True}
    assert follow(server, "sk_admin", of_team, "team.q", **stolen) == "ID is taken"
    assert queue_of(server, str(finished)) == "other.q"
    for unknown in (theirs, uuid.uuid4()):
        assert follow(server, "sk_team", unknown, "team.q") == "NOT-FOUND"


def test_a_chain_that_leaves_the_namespace_of_its_sender_fails(server):
    """A tenant names a queue of another one in the envelope of its job."""
    url = f"@127.0.0.1:{server.port_of('work queue')}"
    sender, shared = jm.App(f"journeyman://sk_team{url}"), jm.App(f"journeyman://sk_admin{url}")
    for app in (sender, shared):
        for queue in ("team.first", "team.second", "other.victim"):
            app.task(name=queue, queue=queue)(lambda value="": value)
    first = sender.tasks["team.first"].call("a")
    good = first.then(sender.tasks["team.second"]).send()
    bad = first.then(sender.tasks["other.victim"]).send()
    asyncio.run(Worker(shared, burst=True).run())
    assert good.result(60) == "a"
    with pytest.raises(jm.JobFailed, match=f"refused the next job of the chain: .*{SCOPE}"):
        bad.result(60)
    assert queue_of(server, bad.id) == ""
    sender.close()


def test_requests_that_wait_leave_connections_to_other_tokens(tmp_path: Path):
    """Whatever they wait for, and whoever asks: also a token of all namespaces."""
    with Server(tmp_path, TOKENS, limits__connections=32) as server, ExitStack() as held:
        # The first request has the port import what it needs: it would look like one that waits.
        assert http(server, "sk_other", "GET", "/v1/work/jobs")[0] == 200

        def lease(secret: str, key: str = "") -> socket.socket:
            """Send a request that nothing answers, unless the server refuses it."""
            queue = "team.q" if secret == "sk_team" else "admin.q"
            body = json.dumps({"queues": [queue], "wait_ms": 30_000})
            more = f"Idempotency-Key: {key}\r\n" if key else ""
            connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=60)
            held.callback(connection.close)
            connection.sendall(
                "POST /v1/work/lease HTTP/1.1\r\nHost: localhost\r\n"
                f"Authorization: Bearer {secret}\r\nContent-Type: application/json\r\n"
                f"{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()
            )
            return connection

        def is_refused(connections: list[socket.socket], patience_s: float) -> bool:
            """Whether one of them is answered in this time; it is closed then."""
            answered = select.select(connections, [], [], patience_s)[0]
            for connection in answered:
                assert b" 503 " in connection.recv(65536).split(b"\r\n")[0]
                connection.close()
                connections.remove(connection)
            return bool(answered)

        for secret in ("sk_admin", "sk_team"):
            waiting: list[socket.socket] = []
            for number in range(100):
                waiting.append(lease(secret, key=f"k{number}" if number % 2 else ""))
                if is_refused(waiting, 0.1):  # or the next time, on a busy machine
                    break
            else:
                raise AssertionError("a token was never refused")
            assert is_refused([lease(secret, key="one more")], 60)
        assert http(server, "sk_other", "GET", "/v1/work/jobs")[0] == 200
        with server.work_queue("sk_other") as queue:
            queue.add("other.q", b"x")
        leased = {"queues": ["other.q"], "wait_ms": 30_000}
        assert http(server, "sk_other", "POST", "/v1/work/lease", leased)[0] == 200
