"""The work queue with its jobs in the store: kills, history, listings, damage, and a log before."""

from __future__ import annotations

import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.servers.http_client import TOKENS, ask
from tests.support.servers.stores import is_whole, opened
from tests.support.servers.workq_process import WorkqClient, WorkqProcess

ENGINES = ("rocksdb", "sqlite")
HOUR_MS = 3_600_000


# -- restarts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_pauses_and_new_lives_of_dead_jobs_survive_and_the_store_is_whole(
    tmp_path: Path, engine: str
):
    more = {"storage.engine": engine}
    with WorkqProcess(tmp_path, in_store=True, settings=more) as server, server.worker() as client:
        dead = client.add("dead", b"\xff")
        client.finish(dead, b"why", command="fail")
        assert client.ask("pause stopped") == "+OK"
        assert client.ask("pause gone-on") == "+OK"
        assert client.ask("resume gone-on") == "+OK"
        server.kill()
    assert not (tmp_path / "cmdlog").exists()
    assert is_whole(tmp_path, engine)
    with WorkqProcess(tmp_path, in_store=True, settings=more) as server, server.worker() as client:
        assert [block["id"] for block in client.blocks("paused-queues 0 10")] == ["stopped"]
        assert client.ask(f"requeue {dead}") == "+OK"
        assert server.stop() == 0
    with WorkqProcess(tmp_path, in_store=True, settings=more) as server, server.worker() as client:
        assert client.job(dead)["state"] == "0"
        job = client.lease("dead")
        assert job is not None
        assert job.payload == b"\xff"
        assert server.stop() == 0
    assert is_whole(tmp_path, engine)


def test_lease_goes_on_through_a_restart_with_what_was_left_of_it(tmp_path: Path):
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        job_id = client.add("q", ttr=1500)
        leased_s = time.monotonic()
        assert client.lease("q") is not None
        assert server.stop() == 0
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        again = client.lease("q", wait=20_000)
        assert again is not None
        assert again.job_id == job_id
        assert time.monotonic() - leased_s >= 1.5
        assert client.job(job_id)["attempts"] == "2"


def finished_in_time(client: WorkqClient) -> str:
    """A job that soon ends by its TTL, but not sooner than a busy machine finishes it."""
    for ttl in (300, 3_000, 30_000):
        job_id = client.add("q", b"x", ttl=ttl)
        if client.finish(job_id, b"done") == "+OK":
            return job_id
    raise AssertionError("no job was finished in time")


def test_job_whose_ttl_ended_while_nothing_ran_is_history(tmp_path: Path):
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        job_id = client.add("q", ttl=1)
        kept = client.add("q")
        server.kill()
    time.sleep(0.01)
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        assert client.inspect(f"job {job_id}") == "-NOT-FOUND"
        assert client.job(kept)["state"] == "0"
        assert server.stop() == 0
    with opened(tmp_path) as storage:
        record = storage.get_job(UUID(job_id))
        assert record is not None
        assert record.status == "failed"
        assert storage.count("q", "waiting") == 1


# -- history and listings -------------------------------------------------------------------------


def listed(server: WorkqProcess, query: str) -> list[list[dict[str, Any]]]:
    """All pages."""
    pages, after = [], ""
    while True:
        status, page = ask(server, "GET", f"/stored-jobs?{query}{after}")
        assert status == 200, page
        assert page["unreadable"] == []
        pages.append(page["jobs"])
        if page["next"] is None:
            return pages
        after = f"&after={page['next']}"


def test_jobs_are_listed_by_queue_and_status_a_page_at_a_time(tmp_path: Path):
    with (
        WorkqProcess(tmp_path, in_store=True, http__listen="127.0.0.1:0") as server,
        server.worker() as client,
    ):
        ids = [client.add("mail", f"job {n}".encode()) for n in range(7)]
        other = client.add("other")
        pages = listed(server, "queue=mail&status=waiting&limit=3")
        assert [len(page) for page in pages] == [3, 3, 1]
        assert [job["id"] for page in pages for job in page] == ids
        assert pages[0][0]["payload"] == "job 0"
        everywhere = listed(server, "status=waiting&limit=5")
        assert {job["id"] for page in everywhere for job in page} == {*ids, other}
        assert client.lease("mail") is not None
        client.finish(ids[1], b"\xff")
        assert [job["id"] for job in listed(server, "queue=mail&status=active")[0]] == [ids[0]]
        (done,) = listed(server, "queue=mail&status=completed")[0]
        assert (done["id"], done["result_base64"]) == (ids[1], "/w==")
        assert ask(server, "GET", "/stored-jobs/counts?queue=mail") == (
            200,
            [
                {"queue": "mail", "status": "active", "count": 1},
                {"queue": "mail", "status": "completed", "count": 1},
                {"queue": "mail", "status": "waiting", "count": 5},
            ],
        )
        assert ask(server, "GET", f"/stored-jobs/{ids[1]}") == (200, done)
        for _ in range(3):  # batches: the completed job is in the store alone
            assert client.lease("none") is None
        _, shown = ask(server, "GET", "/v1/work/jobs?queue=mail&limit=100")
        assert [job["id"] for job in shown["jobs"]] == ids[::-1]
        _, shown = ask(server, "GET", "/v1/work/jobs?state=completed")
        assert [(job["id"], job["state"]) for job in shown["jobs"]] == [(ids[1], "completed")]
        _, one = ask(server, "GET", f"/v1/work/jobs/{ids[1]}")
        assert one["state"] == "completed"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/stored-jobs", 400),
        ("/stored-jobs?status=done", 400),
        ("/stored-jobs?status=waiting&limit=0", 400),
        ("/stored-jobs?status=waiting&limit=1001", 400),
        ("/stored-jobs?status=waiting&after=ff", 400),
        ("/stored-jobs?status=waiting&queue=a%20b", 400),
        ("/stored-jobs?status=waiting&queue=q&after=zz", 400),
        ("/stored-jobs/none", 400),
        ("/stored-jobs/00000000-0000-4000-8000-000000000000", 404),
    ],
)
def test_wrong_questions(quiet: WorkqProcess, path: str, status: int):
    found, answer = ask(quiet, "GET", path, secret="sk_admin")
    assert (found, list(answer)) == (status, ["error"])


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkqProcess]:
    directory = tmp_path_factory.mktemp("quiet")
    (directory / "tokens").write_text(TOKENS)
    settings = {"http.listen": "127.0.0.1:0", "controller.auth_file": "tokens"}
    with WorkqProcess(directory, in_store=True, settings=settings) as server:
        with server.worker() as client:
            assert client.ask("auth sk_admin") == "+OK"
            client.add("q")
        yield server


@pytest.mark.parametrize("size", [1, 24, 28, 40])
def test_a_cursor_that_was_made_up_is_refused(quiet: WorkqProcess, size: int):
    cursor = urlsafe_b64encode(b"\xff" * size).decode()
    status, answer = ask(quiet, "GET", f"/v1/work/jobs?cursor={cursor}", secret="sk_admin")
    assert (status, "invalid_cursor" in str(answer)) == (400, True)


def test_history_needs_a_token_of_all_namespaces(quiet: WorkqProcess):
    for path in ("/stored-jobs?status=waiting", "/stored-jobs", "/stored-jobs/counts"):
        assert ask(quiet, "GET", path)[0] == 401
        assert ask(quiet, "GET", path, secret="sk_deploy")[0] == 403
    status, page = ask(quiet, "GET", "/stored-jobs?status=waiting", secret="sk_admin")
    assert (status, len(page["jobs"])) == (200, 1)


def test_finished_job_leaves_memory_and_stays_in_the_store(tmp_path: Path):
    with (
        WorkqProcess(tmp_path, in_store=True, http__listen="127.0.0.1:0") as server,
        server.worker() as client,
    ):
        job_id = finished_in_time(client)
        never = client.add("q", ttl=300)
        server.wait_until(lambda: client.inspect(f"job {never}") == "-NOT-FOUND")
        server.wait_until(lambda: client.result(job_id) == "-NOT-FOUND")
        status, job = ask(server, "GET", f"/stored-jobs/{job_id}")
        assert status == 200
        assert (job["status"], job["payload"], job["result"]) == ("completed", "x", "done")

        def has_failed() -> bool:
            return bool(ask(server, "GET", f"/stored-jobs/{never}")[1]["status"] == "failed")

        server.wait_until(has_failed)


def test_scheduled_job_is_waiting_once_it_is_due(tmp_path: Path):
    with (
        WorkqProcess(tmp_path, in_store=True, http__listen="127.0.0.1:0") as server,
        server.worker() as client,
    ):
        job_id = str(UUID(int=7, version=4))
        for ahead_s in (2, 20):  # the past is refused: a busy machine needs more time
            time_s = int(time.time()) + ahead_s
            moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time_s))
            answer = client.ask(f"schedule {job_id} q 1000 600000 {moment} 0", b"")
            if answer == "+OK":
                break
        assert answer == "+OK"

        def status() -> str:
            return str(ask(server, "GET", f"/stored-jobs/{job_id}")[1]["status"])

        before = status()
        assert before == "delayed" or time.time() >= time_s
        server.wait_until(lambda: status() == "waiting")
        assert time.time() >= time_s
        assert server.stop() == 0
    assert is_whole(tmp_path)


# -- what can be wrong ----------------------------------------------------------------------------


def test_record_that_cannot_be_read_is_told_and_stepped_over(tmp_path: Path):
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        broken, strange = client.add("q", b"broken"), client.add("q", b"strange")
        good = client.add("q", b"good")
        assert server.stop() == 0
    with opened(tmp_path) as storage:
        record = storage.get_job(UUID(strange))
        storage.backend.put(f"v1:j:{broken}".encode(), b'{"created_at":')
        assert record is not None
        key = f"v1:j:{strange}".encode()
        raw = storage.backend.get(key)
        assert raw is not None
        storage.backend.put(key, raw.replace(b'"ttl_ms":600000', b'"ttl_ms":-1234567'))
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        server.wait_for_line(f"is skipped.*{broken}")
        job = client.lease("q")
        assert job is not None
        assert job.job_id == good
        assert client.lease("q") is None
        assert server.stop() == 0
    with opened(tmp_path) as storage:
        assert storage.backend.get(f"v1:j:{broken}".encode()) == b'{"created_at":'


def serve(directory: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "journeyman", "serve", "--listen", "127.0.0.1:0"]
    command += ["--workq-listen", "127.0.0.1:0", "--log", str(directory / "logfile")]
    for setting in ("workq.persistence=storage", *settings):
        command += ["--set", setting]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_store_of_another_server_is_one_line_and_exit_code_2(tmp_path: Path, engine: str):
    with WorkqProcess(tmp_path, in_store=True, storage__engine=engine):
        done = serve(tmp_path, f"storage.path={tmp_path / 'store'}", f"storage.engine={engine}")
    assert done.returncode == 2
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("journeyman: error: ")]
    assert len(errors) == 1
    assert str(tmp_path / "store") in errors[0]
    assert "listen" not in done.stderr


def test_store_that_cannot_be_made_is_one_line_and_exit_code_2(tmp_path: Path):
    (tmp_path / "file").write_text("")
    done = serve(tmp_path, f"storage.path={tmp_path / 'file' / 'store'}")
    assert done.returncode == 2
    assert "listen" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("journeyman: error: ")


# -- from a log -----------------------------------------------------------------------------------


def seen(client: WorkqClient, ids: list[str]) -> list[Any]:
    shown = [client.inspect(f"job {job_id}") for job_id in ids]
    results = [client.result(job_id) for job_id in ids]
    lists = [
        [block["id"] for block in client.blocks(f"{what} {queue} 0 10")]
        for what in ("jobs", "scheduled-jobs", "dead-jobs")
        for queue in ("a", "b")
    ]
    queues = [block for block in client.blocks("queues 0 10") if block["id"] != "c"]
    return [shown, results, lists, queues]


def test_imported_log_gives_the_jobs_that_the_log_gives(tmp_path: Path):
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        ids = [client.add("a", b"%d" % n, flags="-priority=3 -max-attempts=4") for n in range(3)]
        ids += [
            client.add("b", b"\xff\x00"),
            client.add("b", b'{"json":1}'),
            client.add("b", ttr=HOUR_MS),
        ]
        client.finish(ids[3], b"fine")
        client.finish(ids[4], b"bad", command="fail")
        assert client.lease("b") is not None
        late = client.add("a", b"retry", flags=f"-max-fails=3 -retry-delay={HOUR_MS}")
        client.finish(late, command="fail")
        assert client.ask("pause a") == "+OK"
        later = str(UUID(int=9, version=4))
        assert client.ask(f"schedule {later} a 1000 60000 2099-01-01T00:00:00Z 1", b"x") == "+OK"
        ids += [late, later]
        assert server.stop() == 0
    with WorkqProcess(tmp_path) as server, server.worker() as client:
        by_log = seen(client, ids)
        assert server.stop() == 0
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        client.add("c", ttl=1)  # what a start has to look for grows with an import
        assert server.stop() == 0
    command = [sys.executable, "-m", "journeyman", "storage", "--path", str(tmp_path / "store")]
    done = subprocess.run(
        [*command, "import", str(tmp_path / "cmdlog")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    with WorkqProcess(tmp_path, in_store=True) as server, server.worker() as client:
        assert seen(client, ids) == by_log
        assert server.stop() == 0
    assert is_whole(tmp_path)
    assert set(by_log[2][2]) == {late, later}  # scheduled, and put off
