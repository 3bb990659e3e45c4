"""The life of running jobs on real workers: cancelled, known to the server, watched."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import journeyman as jm
from journeyman.disk import RealDisk
from journeyman.formats.ledger import AttemptsBegun
from journeyman.logs.ledger import peek_records
from tests.support.cli_commands import run
from tests.support.ports import free_port
from tests.support.servers.http_client import ask
from tests.support.servers.task_worker import WorkerProcess
from tests.support.servers.workq_process import WorkqProcess

TASKS = """
import asyncio, os, pathlib, subprocess, time
import journeyman as jm

app = jm.App(lease=30)

def note(text):
    with open("notes", "a") as file:
        print(text, file=file)

class Around:
    async def around(self, job, call):
        return await call()

@app.task(name="sync")
def sync(name: str) -> None:
    note(f"{name} runs")
    try:
        while True:
            time.sleep(0.01)
    except jm.JobCancelled:
        note(f"{name} was cancelled")
        raise

@app.task(name="async")
async def run_async(name: str) -> None:
    note(f"{name} runs")
    try:
        await asyncio.sleep(600)
    finally:
        note(f"{name} was cancelled")

@app.task(name="program")
def program(seconds: float) -> None:
    subprocess.run(f"echo $$ >> programs; sleep {seconds} & echo $! >> programs; wait", shell=True)

@app.task(name="limited", timeout=0.3)
def limited(seconds: float) -> None:
    program.function(seconds)

@app.task(name="pid")
def pid() -> int:
    return os.getpid()

@app.task(name="total")
def total(values: list[int]) -> int:
    return sum(values)

@app.task(name="watched")
def watched(count: int) -> None:
    for number in range(count):
        jm.job().progress(number + 1, count, "counting")
        jm.job().log("at", number=number)
    while not pathlib.Path("go").exists():
        time.sleep(0.01)
    jm.job().log("the end")

@app.task(name="echo")
def echo(value: object) -> object:
    note(f"echo {value}")
    return value

other = jm.App(lease=30)
other.use(Around())
other.task(name="sync", queue="around")(sync.function)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    where: Path = tmp_path_factory.mktemp("tasks")
    (where / "shop.py").write_text(TASKS)
    (where / "notes").touch()
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
def app(url) -> Iterator[jm.App]:
    """It only sends."""
    with closing(jm.App(url)) as app:
        for name in ("sync", "async", "echo", "watched", "total", "program", "limited"):
            app.task(name=name)(lambda value: None)
        yield app


@pytest.fixture(scope="module")
def worker(place, url) -> Iterator[WorkerProcess]:
    with WorkerProcess(place, "shop:app", "-c", "2", "--name", "one", url=url) as process:
        yield process


def wait_for(place: Path, server: WorkqProcess, text: str) -> None:
    server.wait_until(lambda: text in (place / "notes").read_text(), text)


def answer(server: WorkqProcess, method: str, path: str, body: Any = None) -> Any:
    status, told = ask(server, method, path, body)
    assert status < 300, told
    return told


@pytest.mark.parametrize("name", ["sync", "async"])
def test_a_running_job_is_interrupted_in_its_worker(app, worker, place, server, name):
    job = app.tasks[name].send(f"the {name} one")
    wait_for(place, server, f"the {name} one runs")
    assert job.cancel()
    assert not job.cancel()
    assert job.state() == "cancelled"
    assert job.is_done()
    with pytest.raises(jm.JobCancelled, match="was cancelled"):
        job.result(timeout=60)
    wait_for(place, server, f"the {name} one was cancelled")
    worker.wait_for(f"INFO cancelled {name} id={job.id}")
    assert app.tasks["echo"].send("next").result(timeout=60) == "next"  # its slot is free


def test_a_job_inside_of_middleware_is_interrupted(place, url, server):
    with (
        closing(jm.App(url)) as app,
        WorkerProcess(place, "shop:other", "-c", "1", url=url) as worker,
    ):
        job = app.task(name="sync", queue="around")(lambda name: None).send("wrapped")
        wait_for(place, server, "wrapped runs")
        assert asyncio.run(_cancel(job))
        wait_for(place, server, "wrapped was cancelled")
        worker.wait_for(f"INFO cancelled sync id={job.id}")


async def _cancel(job: jm.Job[Any]) -> bool:
    is_cancelled = await job.acancel()
    assert await job.ais_done()
    assert await job.astate() == "cancelled"
    await job._broker.aclose()
    return is_cancelled


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists the children of a thread")
@pytest.mark.parametrize("name", ["program", "limited"])
def test_the_programs_of_an_interrupted_job_end_with_it(app, worker, place, name):
    """A thread that waits for a program cannot be interrupted; a shell leaves its command."""
    started = place / "programs"
    started.unlink(missing_ok=True)
    job = app.tasks[name].send(600.0)
    until(lambda: started.exists() and len(started.read_text().split()) == 2)
    if name == "program":
        assert job.cancel()
        worker.wait_for(f"INFO cancelled program id={job.id}")
    else:
        with pytest.raises(jm.JobFailed, match="JobTimeout"):
            job.result(timeout=60)
    for pid in map(int, started.read_text().split()):
        until(lambda pid=pid: not is_running(pid))  # type: ignore[misc]


def is_running(pid: int) -> bool:
    """Return whether this process is there, and not only as a zombie that its parent leaves."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_cancelled_job_of_a_chain_ends_the_chain(app, worker, place, server):
    chain = app.tasks["sync"].call("first").then(app.tasks["echo"]).send()
    wait_for(place, server, "first runs")
    assert chain.cancel()
    assert chain.state() == "cancelled"
    assert chain.is_done()
    wait_for(place, server, "first was cancelled")
    assert "echo None" not in (place / "notes").read_text()


def test_jobs_are_cancelled_by_the_command_line_and_over_http(app, worker, place, server, url):
    first, second, third = (app.tasks["sync"].options(queue="idle").send(n) for n in "abc")
    told = run("jobs", "cancel", "--server", url, first.id)
    assert told.stdout == "1 cancelled\n", (told.stderr, told.exception)
    assert run("jobs", "cancel", "--server", url, first.id).stdout.endswith("ended already\n")
    assert "cancelled" in run("jobs", "show", "--server", url, first.id).stdout
    answer(server, "POST", f"/v1/work/jobs/{second.id}/cancel")
    assert ask(server, "POST", f"/v1/work/jobs/{second.id}/cancel")[0] == 409
    found = answer(server, "POST", "/v1/work/cancel", {"ids": [third.id, second.id]})
    assert found == {"done": 1, "refused": [second.id]}
    listed = answer(server, "GET", "/v1/work/jobs?state=cancelled&queue=idle")["jobs"]
    assert {job["id"] for job in listed} == {first.id, second.id, third.id}
    assert all(job["finished"] for job in listed)


def test_cancelled_jobs_are_so_after_the_server_was_killed(tmp_path, place):
    port = free_port()
    settings = {
        "data.directory": tmp_path / "data", "workq.cmdlog_sync": "always",
        "workq.listen": f"127.0.0.1:{port}",
    }  # fmt: skip
    url = f"journeyman://127.0.0.1:{port}"
    with closing(jm.App(url, patience=60)) as app, WorkerProcess(place, "shop:app", url=url):
        task = app.task(name="sync")(lambda name: None)
        later = app.task(name="later", queue="idle")(lambda name: None)
        with WorkqProcess(tmp_path, settings=settings) as server:
            running, waiting = task.send("killed"), later.send("x")
            wait_for(place, server, "killed runs")
            assert running.cancel()
            assert waiting.cancel()
            server.kill()
        with WorkqProcess(tmp_path, settings=settings):
            assert (running.state(), waiting.state()) == ("cancelled", "cancelled")


def test_workers_are_known_by_the_server_with_what_they_run(app, worker, place, server, url):
    job = app.tasks["sync"].send("watched")
    wait_for(place, server, "watched runs")

    def known() -> list[Any]:
        workers = answer(server, "GET", "/v1/work/workers")["workers"]
        return [each for each in workers if each["name"] == "one" and each["connected"]]

    server.wait_until(lambda: bool(known()), "the worker waits for orders")
    (one,) = known()
    assert (one["facts"]["slots"], one["facts"]["queues"]) == (2, ["default"])
    assert one["facts"]["memory"] > 0
    (running,) = one["jobs"]
    assert (running["id"], running["queue"]) == (job.id, "default")
    listed = run("workers", "ls", "--server", f"{url}?http={server.http_port}")
    assert "one" in listed.stdout, listed.stderr
    page = ask(server, "GET", "/console/workers")
    assert page[0] == 200
    assert job.id[:8] in page[1]
    job.cancel()


def test_the_worker_of_an_attempt_is_known_after_it_ended(app, worker, server):
    job = app.tasks["echo"].send("named")
    assert job.result(timeout=60) == "named"
    assert answer(server, "GET", f"/v1/work/jobs/{job.id}")["worker"] == "one"
    ledger = str(server.directory / "data" / "ledger")

    def noted() -> bool:
        records = peek_records(RealDisk(), ledger)
        return any(isinstance(each, AttemptsBegun) and job.id in each.jobs for each in records)

    server.wait_until(noted, "the ledger has the name")


def test_progress_and_log_lines_are_seen_while_the_job_runs_and_after(
    app, worker, place, server, url
):
    job = app.tasks["watched"].send(3)
    server.wait_until(lambda: len(job.progress().log) == 3, "its lines are there")
    found = job.progress()
    assert (found.done, found.total, found.note) == (3, 3, "counting")
    shown = run("jobs", "show", "--server", url, job.id).stdout
    assert "3 of 3 counting" in shown
    assert "at number=2" in shown
    page = ask(server, "GET", f"/console/work/{job.id}")[1]
    assert "<progress" in page
    (place / "go").touch()
    job.result(timeout=60)
    seen = answer(server, "GET", f"/v1/work/jobs/{job.id}")["progress"]
    assert [line["text"] for line in seen["log"]][-1] == "the end"
    assert seen["note"] == "counting"


def test_a_worker_process_is_replaced_after_some_jobs(place, url):
    with closing(jm.App(url)) as app:
        task = app.task(name="pid", queue="replaced")(lambda: None)
        words = ("shop:app", "-q", "replaced", "-c", "1", "--max-jobs", "2")
        with WorkerProcess(place, *words, url=url) as worker:
            pids = [task.send().result(timeout=60) for _ in range(4)]
            assert len(set(pids)) >= 2
            worker.wait_for("INFO worker .*: 2 jobs are done")
            worker.stop()


def test_a_worker_process_is_replaced_that_uses_too_much_memory(place, url):
    with closing(jm.App(url)) as app:
        task = app.task(name="pid", queue="hungry")(lambda: None)
        words = ("shop:app", "-q", "hungry", "-c", "1", "--max-memory", "1")
        with WorkerProcess(place, *words, url=url) as worker:
            pids = [task.send().result(timeout=60) for _ in range(2)]
            worker.wait_for("INFO worker .*: it uses .* MB of memory")
            assert len(set(pids)) == 2
            worker.stop()


def test_a_flow_runs_on_real_workers(app, worker):
    echo, total = app.tasks["echo"], app.tasks["total"]
    flow = echo.call(1).then(jm.group(echo.after() for _ in range(3))).then(total).then(echo)
    assert flow.send().result(timeout=60) == 3


SHOP_WITH_OUTBOX = """
import sqlite3
import journeyman as jm

app = jm.App(lease=30)
outbox = jm.Outbox(lambda: sqlite3.connect("shop.db"))
app.use_outbox(outbox)

@app.task(name="ship")
def ship(number: int) -> None:
    with open("shipped", "a") as file:
        print(number, file=file)
"""


def test_jobs_of_an_outbox_are_sent_once_although_server_and_worker_are_killed(tmp_path):
    (tmp_path / "shop.py").write_text(SHOP_WITH_OUTBOX)
    port = free_port()
    settings = {
        "data.directory": tmp_path / "data", "workq.cmdlog_sync": "always",
        "workq.listen": f"127.0.0.1:{port}",
    }  # fmt: skip
    url = f"journeyman://127.0.0.1:{port}"
    with closing(jm.App(url, lease=3)) as app:
        ship = app.task(name="ship")(lambda number: None)
        outbox = jm.Outbox(lambda: sqlite3.connect(tmp_path / "shop.db"))
        outbox.create_table()

        def order(numbers: range) -> list[jm.Job[Any]]:
            with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
                jobs = [outbox.send(connection, ship.call(number)) for number in numbers]
                connection.commit()
            return jobs

        jobs = order(range(50))  # there is no server
        with WorkerProcess(tmp_path, "shop:app", url=url) as worker:
            worker.wait_for("cannot connect")
            with WorkqProcess(tmp_path, settings=settings) as server:
                server.wait_until(lambda: jobs[0].state() == "done", "the first is sent")
                worker.process.kill()
                server.kill()
        jobs += order(range(50, 60))
        with (
            WorkqProcess(tmp_path, settings=settings) as server,
            WorkerProcess(tmp_path, "shop:app", url=url),
        ):
            server.wait_until(lambda: not left(tmp_path / "shop.db"), "all rows are sent")
            for job in jobs:
                job.result(timeout=60)
            assert {job.state() for job in jobs} == {"done"}
    shipped = (tmp_path / "shipped").read_text().split()
    assert set(shipped) == {str(number) for number in range(60)}  # at least once, as any job


def left(database: Path) -> int:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        count: int = connection.execute("SELECT COUNT(*) FROM journeyman_outbox").fetchone()[0]
        return count
