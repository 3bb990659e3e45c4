"""A worker whose server is away, or refuses: nothing that was done is forgotten."""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest

import journeyman as jm
from journeyman.cli import journeyman
from journeyman.client import CannotConnect, ConnectionFailed, NotFound, Refused
from journeyman.tasks.worker import QueueShare, Worker
from tests.support.ports import free_port
from tests.support.servers.task_worker import WorkerProcess
from tests.support.servers.workq_process import WorkqProcess

SLOW = """
import os, time
import journeyman as jm

app = jm.App(lease=20)

@app.task(name="slow")
def slow() -> str:
    open("began", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
    return "kept"
"""


def test_a_stopped_worker_waits_for_the_server_to_report_what_it_did(tmp_path):
    (tmp_path / "shop.py").write_text(SLOW)
    port = free_port()  # the same for both servers: no connection may get it meanwhile
    where = {"workq.cmdlog_sync": "always", "workq.listen": f"127.0.0.1:{port}"}
    server = WorkqProcess(tmp_path, settings=where).start()
    url = f"journeyman://127.0.0.1:{port}"
    app = jm.App(url)
    job = app.task(name="slow")(lambda: None).send()
    with WorkerProcess(tmp_path, "shop:app", url=url) as worker:
        while not (tmp_path / "began").exists():
            time.sleep(0.02)
        server.kill()
        worker.process.terminate()
        (tmp_path / "go").touch()
        worker.wait_for("done slow")
        worker.wait_for("trying again in")
        assert worker.process.poll() is None
        again = WorkqProcess(tmp_path, settings=where).start()
        try:
            assert job.result(timeout=60) == "kept"
            assert worker.wait() == 0
        finally:
            app.close()
            again.kill()


def test_a_lease_that_the_server_cannot_record_is_asked_for_again():
    leases: list[bytes] = []
    others: list[bytes] = []
    answers = [b"-SERVER-ERROR Read-only mode triggered by cmdlog circuit breaker", b"-TIMEOUT"]

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            if line.startswith(b"lease"):
                leases.append(line)
                writer.write(answers[min(len(leases), 2) - 1] + b"\r\n")
            else:
                others.append(line)
                if line.startswith(b"worker"):
                    others.append(await reader.readline())
                writer.write(b"-TIMEOUT\r\n")
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        app = jm.App(f"journeyman://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        app.task(name="nothing")(lambda: None)
        worker = Worker(app, [QueueShare("q")], burst=True)
        running = asyncio.ensure_future(worker.run())
        await asyncio.wait_for(running, 60)
        server.close()

    asyncio.run(run())
    assert len(leases) == 2
    assert len(others) < 500, "a server that does not wait is asked without end"


@pytest.mark.parametrize("options", [{}, {"concurrency": 1}])
def test_a_burst_without_a_server_ends_and_says_why(options, monkeypatch, tmp_path, capsys):
    """Also of an app whose limits are set first."""
    monkeypatch.setattr("journeyman.tasks.worker.worker.BURST_WAIT_S", 0.1)
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"alone{len(options)}.py").write_text(
        f"import journeyman as jm\napp = jm.App('journeyman://127.0.0.1:{free_port()}')\n"
        f"app.task(name='nothing', **{options})(lambda: None)\n"
    )
    with pytest.raises(SystemExit) as ended:
        journeyman.main(["worker", f"alone{len(options)}:app", "--burst"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert ended.value.code == 1
    assert last.startswith("journeyman: error: cannot connect to 127.0.0.1:"), last
    assert last.endswith("A burst waits 0.1 s for its server"), last


def test_a_burst_that_cannot_report_ends(monkeypatch):
    """It is stopping, so that nothing else asks for the server."""
    monkeypatch.setattr("journeyman.tasks.worker.worker.BURST_WAIT_S", 0.1)
    payload = b'{"v":1,"task":"nothing","args":[],"kwargs":{}}'
    job = b"%b q 60000 %d 1 0 1\r\n%b\r\n" % (str(uuid4()).encode(), len(payload), payload)

    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readline()
            server.close()
            writer.write(b"+OK 1\r\n" + job)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        app = jm.App(f"journeyman://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        stops: list[Callable[[], None]] = []

        @app.task(name="nothing")
        def nothing() -> None:
            loop.call_soon_threadsafe(stops[0])

        worker, loop = Worker(app, [QueueShare("q")], burst=True), asyncio.get_running_loop()
        stops.append(worker.stop)
        with pytest.raises(CannotConnect, match=r"waits 0\.1 s"):
            await asyncio.wait_for(worker.run(), 60)

    asyncio.run(run())


def test_jobs_are_retried_at_once_where_the_server_keeps_no_delays(tmp_path):
    """Without a ledger a report with a delay is refused, and sent without."""
    with WorkqProcess(tmp_path, ledger__enabled="false") as server:
        app = jm.App(f"journeyman://127.0.0.1:{server.workq_port}?timeout_s=60")
        attempts: list[int] = []

        @app.task(name="twice", retries=1, backoff=3600, lease=3600)
        def twice() -> int:
            attempts.append(jm.job().attempt)
            if len(attempts) == 1:
                raise ValueError("once")
            return len(attempts)

        job = twice.send()
        asyncio.run(asyncio.wait_for(Worker(app, burst=True).run(), 60))
        assert (job.result(timeout=60), attempts) == (2, [1, 2])
        with pytest.raises(Refused, match="Not available without a ledger"):
            app.task(name="keyed", key="k")(lambda: None).send()
        app.close()


def test_retries_keys_limits_and_what_follows_a_group_work_through_a_kill(tmp_path):
    attempts: list[tuple[str, int]] = []
    busy: set[str] = set()

    def start() -> tuple[WorkqProcess, jm.App]:
        server = WorkqProcess(tmp_path, data__directory=tmp_path / "data").start()
        app = jm.App(f"journeyman://127.0.0.1:{server.workq_port}?timeout_s=60")
        app.task(name="total")(sum)
        return server, app

    def limited(app: jm.App) -> Any:
        return app.task(
            name="flaky", queue="flaky", retries=1, backoff=0.05, key="{name}", concurrency=1
        )

    def flaky(name: str) -> int:
        assert name not in busy
        busy.add(name)
        time.sleep(0.01)
        busy.discard(name)
        attempts.append((name, jm.job().attempt))
        if jm.job().attempt == 1:
            raise ValueError("once")
        return 7

    server, app = start()
    task = limited(app)(flaky)
    sent = jm.group(task.call(name) for name in "aab").then(app.tasks["total"]).send()
    asyncio.run(asyncio.wait_for(Worker(app, burst=True).run(), 60))
    app.close()
    server.kill()
    server, app = start()
    limited(app)(flaky)
    job, deadline = app.job(sent.id), time.monotonic() + 60
    while not job.is_done():
        assert time.monotonic() < deadline, attempts
        asyncio.run(asyncio.wait_for(Worker(app, burst=True).run(), 60))
    assert job.result(timeout=60) == 21
    assert sorted(attempts) == [("a", 1), ("a", 1), ("a", 2), ("a", 2), ("b", 1), ("b", 2)]
    app.close()
    server.kill()


def test_many_threads_that_wait_for_results_keep_no_other_from_sending(tmp_path):
    with WorkqProcess(tmp_path, memory=True) as server:
        app = jm.App(f"journeyman://127.0.0.1:{server.workq_port}?timeout_s=60")
        task = app.task(name="never")(lambda: None)
        job = task.send()
        with ThreadPoolExecutor(20) as threads:
            waiting = [threads.submit(job.result, 120) for _ in range(20)]
            time.sleep(0.5)
            assert task.send().is_new
            app.broker.delete(UUID(job.id))  # ends the waits
            assert all(isinstance(each.exception(), NotFound) for each in waiting)
        app.close()


class LossyRelay(socketserver.BaseRequestHandler):
    """Keeps some of the replies, and closes both connections instead."""

    server_port: ClassVar[int]
    between: ClassVar[list[Callable[[], object]]]  # to be called before the connection is closed

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.server_port)) as server:
            while data := self.request.recv(65_536):
                server.sendall(data)
                reply = server.recv(65_536)
                if self.between:
                    self.between.pop()()
                    return
                self.request.sendall(reply)


@pytest.mark.parametrize("patience", [0, 60])
@pytest.mark.parametrize("times", [1, 2])
def test_a_unique_job_that_ended_while_its_reply_was_lost_runs_once(
    times, patience, tmp_path, monkeypatch
):
    """Lost once: the client sends it again by itself; twice: within the patience."""
    runs: list[int] = []
    with WorkqProcess(tmp_path, memory=True) as server:
        direct = jm.App(f"journeyman://127.0.0.1:{server.workq_port}?timeout_s=60")
        direct.task(name="once")(lambda: runs.append(1))

        def run_all() -> None:
            asyncio.run(asyncio.wait_for(Worker(direct, burst=True).run(), 60))

        monkeypatch.setattr(LossyRelay, "server_port", server.workq_port, raising=False)
        monkeypatch.setattr(LossyRelay, "between", [run_all] * times, raising=False)
        with socketserver.ThreadingTCPServer(("127.0.0.1", 0), LossyRelay) as relay:
            relay.daemon_threads = True
            threading.Thread(target=relay.serve_forever, daemon=True).start()
            where = f"journeyman://127.0.0.1:{relay.server_address[1]}?timeout_s=60"
            app = jm.App(where, patience=patience)
            task = app.task(name="once", unique="args")(lambda: None)
            if times == 2 and not patience:
                with pytest.raises(ConnectionFailed):
                    task.send()
            else:
                assert direct.job(task.send().id).is_done()
                assert task.send().is_new  # another send is another job
                run_all()
            app.close()
            relay.shutdown()
        assert len(runs) == (1 if times == 2 and not patience else 2)
        direct.close()


TOKENS = '[token.shop]\nsecret = "sk_shop"\nnamespace = "shop."\n'


def test_a_worker_shows_its_token_and_says_why_it_is_refused(tmp_path):
    (tmp_path / "shop.py").write_text(
        'import journeyman as jm\napp = jm.App(queue="shop.mail")\n'
        '@app.task(name="twice")\ndef twice(n: int) -> int: return 2 * n\n'
        '@app.task(name="far", queue="far")\ndef far() -> None: ...\n'
    )
    (tmp_path / "tokens").write_text(TOKENS)
    with WorkqProcess(tmp_path, memory=True, controller__auth_file="tokens") as server:
        where = f"127.0.0.1:{server.workq_port}"
        app = jm.App(f"journeyman://sk_shop@{where}", queue="shop.mail")
        job = app.task(name="twice")(lambda n: n).send(21)
        words = ("shop:app", "-q", "shop.mail", "--burst")
        with WorkerProcess(tmp_path, *words, url=app.url) as worker:
            assert worker.wait() == 0
        assert job.result(timeout=60) == 42
        app.close()
        with WorkerProcess(tmp_path, "shop:app", url=f"journeyman://sk_no@{where}") as worker:
            worker.wait_for("journeyman: error: auth_failed: CLIENT-ERROR Authentication failed")
            assert worker.wait() == 1
        with WorkerProcess(tmp_path, "shop:app", "-q", "far", url=app.url) as worker:
            worker.wait_for("journeyman: error: CLIENT-ERROR Insufficient namespace scope")
            assert worker.wait() == 1
