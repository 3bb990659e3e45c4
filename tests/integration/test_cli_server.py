"""The commands that talk to a server, against a real one."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import journeyman as jm
from journeyman.client import BadAnswer, CannotConnect, KestrelClient, Schedule, WorkQueue
from journeyman.client.service import parse_url
from journeyman.config.tokens import parse_tokens
from journeyman.tasks.worker import Worker
from tests.support.cli_commands import assert_one_line_error, rows, run
from tests.support.servers.workq_process import WorkqProcess

NOWHERE = "journeyman://127.0.0.1:1?schedule=1&fan_out=1"


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    where: Path = tmp_path_factory.mktemp("server")
    fan_out = {"kestrel.enabled": "true", "kestrel.listen": "127.0.0.1:0"}
    fan_out |= {"data.directory": str(where / "data"), "http.listen": "127.0.0.1:0"}
    with WorkqProcess(where, settings=fan_out | {"kestrel.queue_path": "queues"}) as server:
        found = server.wait_for_line(re.compile(r"queues listen on [^\s\"]+?:(\d+)"))
        live = server.wait_for_line(re.compile(r"HTTP listens on [^\s\"]+?:(\d+)"))
        ports = f"schedule={server.port}&fan_out={found[1]}&http={live[1]}"
        yield f"journeyman://127.0.0.1:{server.workq_port}?{ports}"


@pytest.fixture
def ask(url):
    def ask(*words: object) -> Result:
        return run(*words, env={"JOURNEYMAN_URL": url})

    return ask


def text(result: Result) -> str:
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_a_job_is_added_listed_shown_and_removed(ask):
    job_id = text(ask("add", "mail", "hello", "--priority", 3, "--at", "1h")).strip()

    (listed,) = rows(ask("jobs", "ls", "mail", "--state", "scheduled", "--json"))
    assert (listed["id"], listed["priority"], listed["state"]) == (job_id, 3, "scheduled")
    shown = text(ask("jobs", "show", job_id))
    assert re.search(r"^payload +hello$", shown, re.MULTILINE)
    assert text(ask("jobs", "rm", job_id)) == ""
    assert_one_line_error(ask("jobs", "show", job_id), 1, f"no job {job_id} on this server")
    assert_one_line_error(ask("jobs", "rm", job_id), 1, "no job")


def test_a_list_without_jobs_says_so_and_is_no_error(ask):
    text(ask("add", "only_ready", "hello"))
    for words in (("only_ready", "--state", "dead"), ("only_ready", "--state", "done")):
        listed = ask("jobs", "ls", *words)
        assert (listed.exit_code, listed.stdout, listed.stderr) == (0, "", "no jobs match\n")
        listed = ask("jobs", "ls", *words, "--json")
        assert (listed.exit_code, listed.stdout, listed.stderr) == (0, "", "")
    assert_one_line_error(ask("jobs", "ls", "no_such_queue", "--state", "dead"), 1, "no queue")


def test_a_task_is_called_with_json_and_its_result_read(ask, url):
    words = ("--task", "shop.add", "--args", "[1]", "--kwargs", '{"b": 2}', "--json")
    (added,) = rows(ask("add", "calls", *words))
    assert_one_line_error(ask("result", added["id"]), 1, "is not done; wait for it with --wait")
    with WorkQueue.from_url(url) as worker:
        job = worker.lease("calls", wait_ms=0)
        assert job is not None
        assert json.loads(job.payload) == {
            "v": 1, "task": "shop.add", "args": [1], "kwargs": {"b": 2}
        }  # fmt: skip
        worker.complete(job.job_id, b"3")
    assert text(ask("result", added["id"], "--wait", 5)) == "3\n"
    assert rows(ask("result", added["id"], "--json"))[0]["succeeded"] is True


def test_dead_jobs_are_listed_and_requeued(ask, url):
    ids = [text(ask("add", "dying", str(n))).strip() for n in range(3)]
    with WorkQueue.from_url(url) as worker:
        for job_id in ids:
            worker.fail(job_id, b'{"error":"ValueError","message":"no","traceback":"line 1"}')
    failed = ask("result", ids[0])
    assert (failed.exit_code, failed.stdout) == (1, "line 1\n")
    shown = text(ask("jobs", "show", ids[0])).splitlines()
    assert [line.split(maxsplit=1)[-1] for line in shown[-2:]] == ["ValueError: no", "1"]
    dead = rows(ask("jobs", "ls", "dying", "--state", "dead", "--json"))
    assert [job["state"] for job in dead] == ["dead"] * 3
    assert text(ask("jobs", "requeue", ids[0])) == "1 requeued\n"
    assert text(ask("jobs", "requeue", "--queue", "dying")) == "2 requeued\n"
    assert rows(ask("jobs", "ls", "dying", "--state", "dead", "--json")) == []
    assert_one_line_error(ask("jobs", "requeue"), 2, "name the jobs")
    assert_one_line_error(ask("jobs", "requeue", "--queue", "none"), 1, "no queue 'none' on this")
    unknown = str(uuid.uuid4())
    assert_one_line_error(ask("result", unknown), 1, f"no job {unknown} on this server")


def test_a_queue_is_emptied_state_by_state(ask, url):
    with WorkQueue.from_url(url) as worker:
        dead, *_ready = [worker.add("emptied", b"") for _ in range(130)]
        worker.fail(dead, b"")
    assert text(ask("jobs", "rm", "--queue", "emptied", "--state", "ready")) == "129 removed\n"
    (left,) = rows(ask("jobs", "ls", "emptied", "--json"))
    assert (left["id"], left["state"]) == (str(dead), "dead")
    assert text(ask("jobs", "rm", "--queue", "emptied", "--state", "dead")) == "1 removed\n"
    for words in ((), ("--queue", "emptied"), ("--state", "dead", str(dead))):
        assert_one_line_error(ask("jobs", "rm", *words), 2, "name the jobs, or those of a queue")


def test_jobs_that_run_or_are_done_are_listed(ask, url):
    with WorkQueue.from_url(url) as worker:
        done, runs = worker.add("at-work", b"1"), worker.add("at-work", b"2")
        for _ in range(2):
            worker.lease("at-work", wait_ms=60_000)
        worker.complete(done, b"1")

    for state, job_id in (("done", done), ("running", runs)):
        (listed,) = rows(ask("jobs", "ls", "--state", state, "at-work", "--json"))
        assert (listed["id"], listed["state"]) == (str(job_id), state)
    (queue,) = (row for row in rows(ask("queues", "ls", "--json")) if row["queue"] == "at-work")
    assert (queue["ready"], queue["running"], queue["dead"]) == (0, 1, 0)
    newest = rows(ask("jobs", "ls", "at-work", "--json"))
    assert [job["state"] for job in newest] == ["running", "done"]
    assert [job["state"] for job in rows(ask("jobs", "ls", "--limit", 2, "--json"))] == [
        "running", "done",
    ]  # fmt: skip


def test_a_server_that_starts_is_waited_for(monkeypatch):
    answers = iter(["refused", "refused", None])
    monkeypatch.setattr(
        "journeyman.cli.server.status._ping",
        lambda name, _server: {"service": name, "ms": 0.1, "error": next(answers)},
    )
    assert run("ping", "schedule").exit_code == 1
    assert run("ping", "--wait", "60", "schedule").exit_code == 0


def test_queues_are_listed_paused_and_resumed(ask):
    text(ask("add", "paused", "x"))
    text(ask("queues", "pause", "paused"))

    def queue() -> dict[str, Any]:
        listed = rows(ask("queues", "ls", "--json"))
        return next(row for row in listed if row["queue"] == "paused")

    counts = {"ready": 1, "scheduled": 0, "running": 0, "dead": 0}
    assert queue() == {"queue": "paused", **counts, "paused": True, "limits": ""}
    assert re.search(r"^paused +1 +0 +0 +0 +yes$", text(ask("queues", "ls")), re.MULTILINE)
    text(ask("queues", "resume", "paused"))
    assert queue()["paused"] is False


def test_queues_are_limited(ask):
    text(ask("queues", "limit", "narrow", "--rate", "10/m", "--concurrency", 2))
    assert_one_line_error(ask("queues", "limit", "narrow", "--rate", "fast"), 1, "like '10/m'")
    text(ask("queues", "limit", "narrow", "--concurrency", 2, "--fair", "--weight", "gold=3"))
    limits = {row["queue"]: row["limits"] for row in rows(ask("queues", "ls", "--json"))}
    assert limits["narrow"] == "concurrency=2 fair weight=gold:3"
    assert_one_line_error(ask("queues", "limit", "narrow", "--weight", "a=1"), 2, "needs --fair")
    wrong = ask("queues", "limit", "narrow", "--fair", "--weight", "a")
    assert_one_line_error(wrong, 2, "--weight gold=3")
    text(ask("queues", "limit", "narrow"))
    limits = {row["queue"]: row["limits"] for row in rows(ask("queues", "ls", "--json"))}
    assert limits["narrow"] == ""


def test_rules_are_added_listed_and_removed(ask):
    text(ask("rules", "add", "rule.a", "a.", "shell", "echo hello"))

    assert rows(ask("rules", "ls", "--json")) == [
        {"rule": "rule.a", "pattern": "a.", "runner": "shell echo hello", "options": {}}
    ]
    text(ask("rules", "rm", "rule.a"))
    assert_one_line_error(ask("rules", "rm", "rule.a"), 1, "no rule 'rule.a'")
    assert_one_line_error(ask("rules", "add", "r", "p", "teleport"), 2, "unknown runner")
    refused = ask("rules", "add", "r", "p", "/usr/bin/backup.sh")
    assert_one_line_error(refused, 2, 'write shell "/usr/bin/backup.sh" to run a program')


def test_fan_out_queues_are_listed(ask, url):
    with KestrelClient.from_url(url) as queues:
        queues.put("orders", b"12345")

    (row,) = rows(ask("fan-out", "ls", "--json"))
    assert (row["queue"], row["items"], row["bytes"]) == ("orders", 1, 5)


def test_records_are_followed_live(ask, url, monkeypatch):
    monkeypatch.setattr("journeyman.cli.server.http_port.STARTS_S", 0.2)
    words = ["tail", "--queue", "followed", "--count", "1", "--json", "--server", url]
    command = [sys.executable, "-m", "journeyman", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as follower:
        deadline = time.monotonic() + 60
        while follower.poll() is None:  # it may not have begun to listen
            assert time.monotonic() < deadline
            text(ask("add", "followed", "hello"))
            time.sleep(0.1)
        assert follower.stdout is not None
        record = json.loads(follower.stdout.read())
    assert (record["kind"], record["queue"], record["text"]) == ("add", "followed", "hello")
    refused = run("tail", "--server", NOWHERE + "&http=1")
    assert_one_line_error(refused, 1, "connection refused; is journeyman serve running there?")


def test_a_server_says_how_it_is(ask):
    (found,) = rows(ask("status", "--json"))
    assert found["work_queue.ready"] >= 0
    assert {name.partition(".")[0] for name in found} == {"work_queue", "schedule", "fan_out"}
    assert [row["error"] for row in rows(ask("ping", "--json"))] == [None] * 3
    assert "READY" in text(ask("top", "--count", 2, "--interval", 0.1))


def test_a_server_that_is_not_there_is_one_line_and_a_code():
    missing = run("status", "--server", NOWHERE)
    assert_one_line_error(missing, 1, "cannot connect to 127.0.0.1:1: connection refused; is")
    assert "--server" in missing.stderr
    as_json = run("status", "--json", "--server", NOWHERE)
    assert as_json.exit_code == 1
    found = json.loads(as_json.stdout)
    assert [value.partition(":")[0] for value in found.values()] == ["unreachable"] * 3
    assert run("ping", "--server", NOWHERE).exit_code == 1
    assert_one_line_error(run("queues", "ls", "--server", NOWHERE), 1, "cannot connect")
    assert_one_line_error(run("queues", "ls", "--server", "http://x"), 1, "must be journeyman://")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("add", "q"), "give a PAYLOAD, or --task NAME"),
        (("add", "q", "x", "--task", "t"), "give a PAYLOAD, or --task NAME"),
        (("add", "q", "--task", "t", "--args", "{}"), "--args must be a JSON array"),
        (("add", "q", "--task", "t", "--args", "["), "must be JSON"),
        (("add", "q", "x", "--at", "soon"), "not a time: 'soon'"),
        (("token", "new", "a b"), "a token's name has only"),
    ],
)
def test_wrong_uses_are_refused_in_one_line(words, complaint):
    assert_one_line_error(run(*words), 2, complaint)


def test_a_new_token_is_one_that_the_server_reads():
    made = text(run("token", "new", "deploy", "--namespace", "deploy.", "--runners", "http"))

    secret = re.findall(r'secret = "(.*)"', made)[0]
    token = parse_tokens(made, "tokens").find(secret.encode())
    assert token is not None
    assert (token.name, token.namespace) == ("deploy", "deploy.")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_a_completion_script(shell):
    assert "_JOURNEYMAN_COMPLETE" in text(run("completion", shell))


def test_the_help_begins_with_what_this_is():
    lines = text(run("--help")).splitlines()
    assert "A durable scheduler and job queue." in lines[2]


def test_health_check_of_a_server_with_tokens_needs_none(tmp_path):
    """As in packaging/container: the check has no token, and a wrong one is an error."""
    tokens = tmp_path / "tokens.toml"
    tokens.write_text('[token.admin]\nsecret = "right"\nnamespace = "*"\n')
    tokens.chmod(0o600)
    with WorkqProcess(tmp_path, settings={"controller.auth_file": tokens}) as server:
        place = f"127.0.0.1:{server.workq_port}?schedule={server.port}"
        services = ("schedule", "work-queue")
        for token, code in (("", 0), ("right@", 0), ("wrong@", 1)):
            found = run("ping", *services, "--server", f"journeyman://{token}{place}")
            assert found.exit_code == code, found.output
        refused = run("status", "--server", f"journeyman://wrong@{place}&fan_out=1")
        assert_one_line_error(refused, 1)
        assert "--server" not in refused.stderr  # it is the right server, and the wrong token
        assert server.stop() == 0
        # Gone is not refused.
        assert run("ping", *services, "--server", f"journeyman://{place}").exit_code == 1


def test_jobs_of_all_queues_are_listed_newest_first(ask, url):
    older = text(ask("add", "all.one", "1")).strip()
    newer = text(ask("add", "all.two", "2", "--at", "1h")).strip()
    with WorkQueue.from_url(url) as worker:
        worker.fail(older, b"{}")

    listed = rows(ask("jobs", "ls", "--limit", 1000, "--json"))
    ours = [(job["id"], job["queue"]) for job in listed if job["queue"].startswith("all.")]
    assert ours == [(newer, "all.two"), (older, "all.one")]
    assert [job["created"] for job in listed] == sorted(
        (job["created"] for job in listed), reverse=True
    )
    assert len(rows(ask("jobs", "ls", "--limit", 1, "--json"))) == 1
    dead = rows(ask("jobs", "ls", "--state", "dead", "--limit", 1000, "--json"))
    assert {job["state"] for job in dead} == {"dead"}
    assert "QUEUE" in text(ask("jobs", "ls")).splitlines()[0]


def test_status_is_a_line_per_service(ask, url):
    with WorkQueue.from_url(url) as worker:
        dead, _runs = worker.add("seen", b""), worker.add("seen", b"")
        worker.fail(dead, b"")
        assert worker.lease("seen", wait_ms=60_000) is not None
    (counted,) = rows(ask("status", "--json"))
    assert counted["work_queue.running"] >= 1
    assert counted["work_queue.dead"] >= 1
    found = text(ask("status"))

    assert re.search(r"^SERVICE +UP-SINCE +CONNECTIONS +HAS$", found, re.MULTILINE)
    moment = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    for line in (
        rf"work-queue +{moment} +\d+ +jobs: \d+ ready, \d+ scheduled, \d+ running, \d+ dead; ",
        rf"schedule +{moment} +\d+ +jobs: 0 planned, 0 running, 0 done, 0 failed; rules: \d+",
        rf"fan-out +{moment} +\d+ +items: \d+; bytes: \d+",
    ):
        assert re.search(f"^{line}", found, re.MULTILINE), found


# -- a port of another service --


@pytest.fixture
def ports(url) -> dict[str, int]:
    found = parse_url(url)
    titles = {"schedule": "the schedule", "work_queue": "the work queue"}
    titles |= {"fan_out": "the fan-out queues", "http": "HTTP"}
    return {title: found.ports[word] for word, title in titles.items()}


ASKED: dict[type[Any], tuple[str, str, Callable[[Any], object]]] = {
    Schedule: ("the schedule", "5678", lambda client: client.get("job")),
    WorkQueue: ("the work queue", "9922", lambda client: client.add("mail", b"hello")),
    KestrelClient: ("the fan-out queues", "22133", lambda client: client.get("orders")),
}


@pytest.mark.parametrize("token", [None, "secret"])
@pytest.mark.parametrize("client", ASKED)
def test_a_client_names_the_port_that_it_has_by_mistake(ports, client, token):
    service, usual, ask = ASKED[client]
    for other in ports.keys() - {service}:
        # It does not wait for a timeout: this one would be the test's.
        made = client(port=ports[other], token=token, timeout_s=600)
        with made, pytest.raises(BadAnswer) as raised:
            ask(made)
        said = f"is the port of {other}, not of {service} (by default {usual})"
        assert str(raised.value) == f"127.0.0.1:{ports[other]} {said}"


@pytest.mark.parametrize("options", [{}, {"rate": "10/s"}])
def test_a_worker_at_a_port_of_another_service_ends(ports, options):
    for other in ports.keys() - {"the work queue"}:
        app = jm.App(f"journeyman://127.0.0.1:{ports[other]}?timeout_s=600")
        app.task(name="nothing", **options)(lambda: None)
        with pytest.raises(BadAnswer, match=f"is the port of {other}, not of the work queue"):
            asyncio.run(Worker(app).run())


def test_a_task_that_no_server_takes_is_one_short_error():
    task = jm.App("journeyman://127.0.0.1:1").task(name="nothing")(lambda: None)
    with pytest.raises(CannotConnect) as raised:
        task.send()
    with pytest.raises(CannotConnect) as awaited:
        asyncio.run(task.asend())
    for error in (raised.value, awaited.value):
        assert len(traceback.extract_tb(error.__traceback__)) < 12
        (block,) = re.findall(r"(?m)^Traceback.*", "".join(traceback.format_exception(error)))
        assert block


def test_jobs_of_the_schedule_are_set_shown_listed_and_removed(ask):
    text(ask("set", "at.once", "now"))
    text(ask("rm", "at.once"))
    text(ask("set", "cli.job", "1h"))
    assert rows(ask("get", "cli.job", "--json"))[0]["status"] == "planned"
    assert [row["job"] for row in rows(ask("ls", "cli.", "--json"))] == ["cli.job"]
    assert "cli.job  planned" in text(ask("ls", "cli.", "--status", "planned"))
    empty = ask("ls", "cli.", "--status", "failed")
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "no jobs match\n")
    text(ask("rm", "cli.job"))
    assert_one_line_error(ask("rm", "cli.job"), 1)
    assert_one_line_error(ask("get", "cli.job"), 1)
    assert_one_line_error(ask("set", "cli.job", "whenever"), 2)


def test_runs_are_listed_and_shown_with_their_output(ask):
    shell = ("shell", "echo disk full; exit 3")
    text(ask("timetable", "add", "nightly", "--at", "2200-01-01", *shell))
    assert "it has not run yet" in text(ask("timetable", "show", "nightly"))
    job = text(ask("timetable", "run", "nightly")).strip()
    until = time.monotonic() + 60
    while ask("runs", "show", job).exit_code:
        assert time.monotonic() < until
        time.sleep(0.05)
    (row,) = rows(ask("runs", "ls", "nightly", "--since", "7d", "--failed", "--json"))
    assert (row["job"], row["outcome"]) == (job, "failed")
    assert row["reason"] == "exited with status 3"
    assert job in text(ask("runs", "ls", "--since", "2020-01-01T00:00:00Z"))
    assert "disk full\n" in text(ask("runs", "show", job))
    assert rows(ask("runs", "show", job, "--json"))[0]["output"] == "disk full\n"
    assert "exited with status 3" in text(ask("timetable", "show", "nightly"))
    assert rows(ask("timetable", "show", "nightly", "--json"))[0]["runs"][0]["job"] == job
    empty = ask("runs", "ls", "nothing-like-it")
    assert (empty.exit_code, empty.stderr) == (0, "no runs match\n")
    assert_one_line_error(ask("runs", "show", "nothing-like-it"), 1)
    assert_one_line_error(ask("runs", "ls", "--since", "whenever"), 2)


def test_a_job_is_forked_from_a_step_and_what_cannot_be_is_told_in_a_line(ask, url):
    with WorkQueue.from_url(url) as client:
        job_id = client.add("forked", b"order", ttr_ms=60_000, ttl_ms=600_000)
        (leased,) = client.lease_many("forked", wait_ms=0, max_jobs=1)
        client.record_step(job_id, "charge", 1, b"1", attempt=leased.attempt)
        client.record_step(job_id, "ship", 2, b"2", attempt=leased.attempt)
        client.complete(job_id, b"done")
        forked = text(ask("jobs", "fork", job_id, "--from", "ship#2")).strip()
        names = [step.name for step in client.steps(forked)]
        assert names == ["!fork", "charge"]
        again = client.fork(job_id, "ship", 2, new_id=forked)
        assert str(again) == forked
    (row,) = rows(ask("jobs", "fork", job_id, "--from", "charge", "--json"))
    assert row["id"] not in (forked, str(job_id))
    refused = ask("jobs", "fork", job_id, "--from", "pack")
    assert_one_line_error(refused, 1, "has no step 'pack'; recorded: charge, ship#2")
    assert_one_line_error(ask("jobs", "fork", job_id, "--from", "ship#x"), 2, "not a step")
    assert_one_line_error(ask("jobs", "fork", job_id, "--from", "a b"), 1, "the name of a step is")
    unknown = ask("jobs", "fork", uuid.uuid4(), "--from", "ship")
    assert_one_line_error(unknown, 1, "no job")
