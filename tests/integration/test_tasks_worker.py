"""Jobs of an app on real workers and a real server: results, retries, limits of time, ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from urllib.request import urlopen
from uuid import UUID

import pytest

import journeyman as jm
from journeyman.client import Schedule, WorkQueue
from journeyman.client.workq import WorkJobState
from journeyman.formats.ztick import Status
from journeyman.tasks.task import AnyTask
from tests.support.ports import free_port
from tests.support.servers.http_client import ask
from tests.support.servers.task_worker import WorkerProcess
from tests.support.servers.workq_process import WorkqProcess

TASKS = """
import os, pathlib, signal, time
import journeyman as jm

app = jm.App(lease=3)

class Note:
    async def around(self, job, call):
        value = await call()
        note(f"around {job.task} {value}")
        return value

def note(text):
    with open("notes", "a") as file:
        print(text, file=file)

@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b

@app.task(name="aadd", queue="async")
async def aadd(a: int, b: int) -> int:
    return a + b

@app.task(name="flaky", retries=3, backoff=0.05)
def flaky() -> int:
    note(f"attempt {jm.job().attempt}")
    if jm.job().attempt < 3:
        raise ValueError("not yet")
    return jm.job().attempt

@app.task(name="broken", retries=1, backoff=0.05)
def broken() -> None:
    raise ValueError("never")

@app.task(name="endless", timeout=0.3)
def endless() -> None:
    while True:
        time.sleep(0.01)

@app.task(name="suicide")
def suicide() -> str:
    if not pathlib.Path("died").exists():
        pathlib.Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"

@app.task(name="slow", queue="slow")
def slow(seconds: float) -> str:
    note(f"slow starts {seconds}")
    time.sleep(seconds)
    return "finished"

@app.task(name="held")
def held() -> str:
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    return "finished"

@app.task(name="total")
def total(numbers: list[int]) -> int:
    return sum(numbers)

together = {}

@app.task(name="lonely", queue="lonely", concurrency=1, key="{key}", key_rate="99/s")
def lonely(key: int) -> int:
    together[key] = together.get(key, 0) + 1
    time.sleep(0.05)
    most = together[key]
    together[key] -= 1
    return most

@app.task(name="hopeless")
def hopeless() -> None:
    raise jm.GiveUp("no such user")

@app.task(name="picky", retry_on=ConnectionError)
def picky() -> None:
    raise ValueError("no such page")

@app.task(name="unwritable")
def unwritable() -> object:
    return object()

@app.on_failure
def alert(failed: jm.FailedJob) -> None:
    note(f"alert {failed.task} {failed.failure}")
"""

TIMETABLES = """
import time
import journeyman as jm

app = jm.App()

def tick(name):
    with open(name, "a") as file:
        print(jm.job().id, file=file)

@app.every(1, name="often")
def often() -> None:
    tick("often")

@app.every(1, name="slow", overlap="skip")
def slow() -> None:
    tick("slow")
    time.sleep(600)

@app.cron("0 2 * * *", tz="Europe/Berlin", name="bad", overlap="queue", queue="rare")
async def bad() -> None:
    tick("bad")
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    where: Path = tmp_path_factory.mktemp("tasks")
    (where / "shop.py").write_text(TASKS)
    return where


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[WorkqProcess]:
    where = tmp_path_factory.mktemp("server")
    settings = {"data.directory": where / "data", "http.listen": "127.0.0.1:0"}
    with WorkqProcess(where, settings=settings) as running:
        yield running


@pytest.fixture(scope="module")
def url(server) -> str:
    return f"journeyman://127.0.0.1:{server.workq_port}"


@pytest.fixture(scope="module")
def metrics_port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def worker(place, url, metrics_port) -> Iterator[WorkerProcess]:
    words = ["shop:app", "-q", "default:3", "-q", "async", "--metrics", str(metrics_port)]
    with WorkerProcess(place, *words, url=url) as process:
        yield process


@pytest.fixture
def task(url) -> Iterator[Callable[..., AnyTask]]:
    """Makes tasks that only send."""
    apps: list[jm.App] = []

    def make(name: str, queue: str = "default", server: str = url, **options) -> AnyTask:
        apps.append(jm.App(server, lease=3))
        return apps[-1].task(name=name, queue=queue, **options)(lambda *args, **kwargs: None)

    yield make
    for app in apps:
        asyncio.run(app.aclose())


def test_sync_and_async_functions_give_their_results(task, worker):
    assert task("add").send(1, b=2).result(timeout=60) == 3

    async def both() -> int:
        add = task("aadd", "async")
        job = await add.asend(3, 4)
        result: int = await job
        assert await job.astate() == "done"
        await add.app.aclose()
        return result

    assert asyncio.run(both()) == 7


def test_a_job_that_fails_is_tried_again_and_its_result_counts(task, worker, place):
    assert task("flaky", retries=3).send().result(timeout=60) == 3
    assert (place / "notes").read_text().count("attempt") == 3
    assert len(worker.wait_for(r"WARN retry flaky .*ValueError: not yet; again in", 2)) == 2


def test_a_job_that_never_succeeds_ends_with_its_error_and_a_hook_is_called(
    task, worker, server, place
):
    with pytest.raises(jm.JobFailed, match="ValueError: never") as raised:
        task("broken", retries=1).send().result(timeout=60)
    assert "raise ValueError" in raised.value.failure.traceback
    worker.wait_for("ERROR failed broken .*attempt=2")
    alert = "alert broken ValueError: never\n"
    server.wait_until(lambda: (place / "notes").read_text().count(alert) == 1, "the hook is called")


def test_a_job_over_its_time_is_interrupted(task, worker):
    with pytest.raises(jm.JobFailed, match=r"JobTimeout: took longer than 0.3 s"):
        task("endless").send().result(timeout=60)


def test_attempts_are_counted_by_task_and_outcome(task, worker, metrics_port):
    assert task("add").send(1, b=2).result(timeout=60) == 3
    jobs = [task(name).send() for name in ("nothing", "else")]

    def exposition() -> str:
        with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=60) as answer:
            return str(answer.read().decode())

    def samples() -> dict[str, float]:
        lines = exposition().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def count(name: str, outcome: str) -> float:
        labels = f'outcome="{outcome}",queue="default",task="{name}"'
        return samples().get(f"journeyman_worker_jobs_total{{{labels}}}", 0)

    deadline = time.monotonic() + 60  # an attempt is counted after its report
    while count("?", "given_back") < 2:
        assert time.monotonic() < deadline, samples()
    assert all(job.delete() for job in jobs)
    assert count("add", "done") >= 1
    assert not any("nothing" in name for name in samples())
    assert samples()['journeyman_worker_job_duration_seconds_count{task="add"}'] >= 1
    # The linter of Prometheus knows its conventions for names, units and kinds.
    lint = ["promtool", "check", "metrics"]
    checked = subprocess.run(lint, input=exposition(), capture_output=True, text=True, check=False)
    # The library's own times of creation are not ours to name.
    said = [
        line for line in (checked.stdout + checked.stderr).splitlines() if "_created" not in line
    ]
    assert said == []


def test_metrics_on_a_port_in_use_are_an_error_of_one_line(place, url, worker, metrics_port):
    with WorkerProcess(place, "shop:app", "--metrics", str(metrics_port), url=url) as second:
        assert second.wait() == 2
        second.wait_for("cannot serve metrics on .*: Address already in use")


OTHER_APP = """
import journeyman as jm

app = jm.App()

@app.task(name="of_another_app")
def of_another_app(number: int) -> list[int]:
    return [number, jm.job().attempt]
"""


def test_a_job_of_another_app_is_given_back_until_its_worker_comes(task, worker, place, url):
    """The worker of a new version may start after the web application."""
    jobs = [task("of_another_app").send(number) for number in range(3)]
    (said,) = worker.wait_for(r"WARN given back of_another_app id=.*unknown task")
    assert "again in" in said
    deadline = time.monotonic() + 60
    while jobs[0].state() == "running":
        assert time.monotonic() < deadline
    (place / "other.py").write_text(OTHER_APP)
    with WorkerProcess(place, "other:app", url=url):
        for number, job in enumerate(jobs):
            value = job.result(timeout=120)
            assert value[0] == number
            assert value[1] == 1
    assert len(worker.wait_for("WARN given back of_another_app")) == 1


def test_results_that_cannot_be_written_fail_with_reasons(task, worker):
    with pytest.raises(jm.JobFailed, match="cannot encode the result of unwritable"):
        task("unwritable").send().result(timeout=60)


def test_jobs_that_no_retry_can_help_are_dead_with_retries_left(task, worker):
    for name, said in (("hopeless", "GiveUp: no such user"), ("picky", "ValueError: no such page")):
        job = task(name, retries=3).send()
        with pytest.raises(jm.JobFailed, match=said):
            job.result(timeout=60)
        assert job.state() == "dead"


def test_a_job_whose_worker_was_killed_comes_to_another_one(task, url, place):
    job = task("suicide", "suicide").send()
    words = ("shop:app", "-q", "suicide")
    with WorkerProcess(place, *words, url=url) as first:
        assert first.wait() == -signal.SIGKILL
    with WorkerProcess(place, *words, url=url):
        assert job.result(timeout=60) == "survived"


def test_a_worker_that_is_stopped_finishes_what_it_runs(task, url, place):
    job = task("slow", "slow").send(1.0)
    assert job.state() == "ready"
    with WorkerProcess(place, "shop:app", "-q", "slow", url=url) as worker:
        notes = place / "notes"
        while not notes.exists() or "slow starts 1.0\n" not in notes.read_text():
            time.sleep(0.02)
        assert worker.stop() == 0
    assert job.result(timeout=60) == "finished"
    assert job.state() == "done"


def test_a_lease_is_renewed_while_a_long_job_runs(task, server, url, place):
    job = task("held", "long").send()

    def has_renewed() -> bool:
        shown = ask(server, "GET", f"/v1/work/jobs/{job.id}")[1]
        if shown["state"] != "leased":
            return False
        began, until = map(datetime.fromisoformat, (shown["started"], shown["leased_until"]))
        return until - began > timedelta(seconds=4.5)  # more than a lease

    with WorkerProcess(place, "shop:app", "-q", "long", url=url):
        server.wait_until(has_renewed, "the lease is renewed")
        (place / "go").touch()
        assert job.result(timeout=60) == "finished"


def test_a_group_and_what_follows_it(task, url, place):
    app = jm.App(url, queue="groups")
    add = app.task(name="add")(lambda a, b: a + b)
    total = app.task(name="total")(lambda numbers: sum(numbers, 0))
    with WorkerProcess(place, "shop:app", "-q", "groups", url=url):
        job = jm.group(add.call(n, 1) for n in range(10)).then(total).send()
        assert job.result(timeout=60) == 55
        assert add.call(1, 2).then(add, 10).send().result(timeout=60) == 13
    app.close()


def test_a_queue_runs_no_more_at_once_than_its_task_allows(task, url, place):
    jobs = [task("lonely", "lonely", key="{args[0]}").send(n % 2) for n in range(6)]
    with WorkerProcess(place, "shop:app", "-q", "lonely", "-c", "6", url=url):
        assert [job.result(timeout=60) for job in jobs] == [1] * 6


def test_timetables_are_set_by_the_worker_and_fire_once_each(tmp_path):
    (tmp_path / "clock.py").write_text(TIMETABLES)
    with WorkqProcess(tmp_path, data__directory=tmp_path / "data") as server:
        url = f"journeyman://127.0.0.1:{server.workq_port}?schedule={server.port}"
        words = ("clock:app", "-c", "4")
        with (
            WorkerProcess(tmp_path, *words, url=url) as one,
            WorkerProcess(tmp_path, *words, url=url) as two,
        ):
            one.wait_for("timetables are set: often slow bad")
            with Schedule("127.0.0.1", server.port) as schedule:
                shown = {each.identifier: each.fields for each in schedule.timetables()}
            assert shown["slow"].get("overlap", "skip") == "skip"
            assert shown["bad"]["overlap"] == "queue"
            server.wait_until(lambda: len(ticks(tmp_path, "often")) >= 4, "it has fired")
            with Schedule("127.0.0.1", server.port) as schedule:
                schedule.pause_timetable("often")
                jobs = schedule.query("often@")
            fired = [each for each in jobs if each.status is Status.EXECUTED]
            server.wait_until(lambda: len(ticks(tmp_path, "often")) >= len(fired), "all have run")
            assert two.process.poll() is None
    assert len(ticks(tmp_path, "often")) == len(fired)
    assert len(ticks(tmp_path, "slow")) == 1  # skipped while it runs


def ticks(where: Path, name: str) -> list[str]:
    file = where / name
    return file.read_text().split() if file.exists() else []


def test_a_burst_whose_process_was_killed_has_failed():
    killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    called = f"supervise({killed}, 2, burst=True)"
    code = f"from journeyman.tasks.worker.program import supervise; print({called})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert done.stdout == b"1\n"


@pytest.mark.parametrize("kind", ["--threads", "--asyncio", "--processes=2"])
def test_a_burst_ends_when_nothing_is_ready(task, url, place, kind):
    jobs = jm.group(task("add", "burst").call(n, 1) for n in range(600)).send()
    words = ("shop:app", "-q", "burst", "--burst", kind, "--log-level", "warning")
    with WorkerProcess(place, *words, url=url) as worker:
        assert worker.wait() == 0, worker.lines
    assert jobs.results(timeout=60) == list(range(1, 601))


def test_many_unknown_tasks_in_a_row_are_given_back(task, url, place):
    jobs = jm.group(task("no_such", "strange").call() for _ in range(600)).send()
    with WorkerProcess(place, "shop:app", "-q", "strange", "--burst", url=url) as worker:
        assert worker.wait() == 0, worker.lines[-5:]
    with WorkQueue.from_url(url) as queue:
        for job in jobs.jobs:
            found = queue.inspect_job(UUID(job.id))
            assert found is not None
            assert found.attempts >= 1
            assert (found.fails, found.state) == (0, WorkJobState.PENDING)


def test_workers_outlive_a_restart_of_the_server(task, tmp_path, place):
    port = free_port()  # the same for both servers: no connection may get it meanwhile
    where = {"workq.cmdlog_sync": "always", "workq.listen": f"127.0.0.1:{port}"}
    server = WorkqProcess(tmp_path, settings=where).start()
    url = f"journeyman://127.0.0.1:{port}"
    with WorkerProcess(place, "shop:app", "-q", "default", url=url) as worker:
        assert task("add", server=url).send(1, 1).result(timeout=60) == 2
        server.kill()
        worker.wait_for("WARN")
        again = WorkqProcess(tmp_path, settings=where).start()
        try:
            assert task("add", server=url).send(2, 2).result(timeout=60) == 4
        finally:
            again.kill()


def test_several_processes_are_kept_alive(task, url, place):
    words = ("shop:app", "-q", "many", "--processes", "2")
    with WorkerProcess(place, *words, url=url) as parent:
        parent.wait_for("at a time", 2)
        first = parent.matching("INFO worker")[0]
        pid = int(first.split("-")[-1].split(":")[0])
        os.kill(pid, signal.SIGKILL)
        parent.wait_for("at a time", 3)
        assert task("add", "many").send(1, 1).result(timeout=60) == 2
        assert parent.stop() == 0


def test_sources_that_change_are_loaded_again(task, url, tmp_path):
    source = tmp_path / "fresh.py"
    text = "import journeyman as jm\napp = jm.App()\n@app.task(name='v', queue='fresh')\n"
    source.write_text(text + "def v() -> int: return 1\n")
    with WorkerProcess(tmp_path, "fresh:app", "--reload", url=url) as worker:
        assert task("v", "fresh").send().result(timeout=60) == 1
        (tmp_path / "new").write_text(text + "def v() -> int: return 22\n")
        (tmp_path / "new").replace(source)  # whole at once: half a source is one that is wrong
        worker.wait_for("at a time", 2)
        assert task("v", "fresh").send().result(timeout=60) == 22
        assert worker.stop() == 0
