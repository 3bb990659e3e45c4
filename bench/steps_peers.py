"""The systems with durable steps that bench/steps.py measures, each with one worker process.

    journeyman   journeyman serve, workq sync always; tasks in threads
    dbos         PostgreSQL, synchronous_commit on (its default); workflows in threads, of one queue
    absurd       PostgreSQL, the same; a thread and a connection of its own for each job at a time,
                 because jobs of one worker of the SDK share a connection
    restate      restate-server as it comes, which syncs its log; handlers on asyncio, HTTP/2

Each is a module with the same two jobs, ``busy`` and ``timed``, written into a directory where its
worker and a sender import it. ``work(jobs)`` runs the worker, ``send(job, argument)`` adds a job.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bench.peers import SEARCH_PATH, Peer, free_port
from bench.task_peers import durable_postgres

__all__ = ["PEERS", "StepPeer", "journeyman", "missing", "served"]

# A step writes a byte. ``busy`` does steps until a file says stop, ``timed`` notes what each took.
SHARED = """
import os, sys, threading, time
URL = os.environ["PEER_URL"]
_begun, _done, _late = (
    os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT) for name in ("begun", "done", "late")
)
def body():
    os.write(_done, b".")
    return 1
def is_busy():
    return not os.path.exists("stop")
def begin():
    os.write(_begun, b".")
def note(since_ns):
    os.write(_late, b"%d\\n" % (time.perf_counter_ns() - since_ns))
def do_busy(step):
    begin()
    while is_busy():
        step()
def do_timed(step, count):
    for _ in range(count):
        since_ns = time.perf_counter_ns()
        step()
        note(since_ns)
"""

JOURNEYMAN = """
import journeyman as jm
app = jm.App(URL)
@app.task(name="busy")
def busy(_count):
    do_busy(lambda: jm.step(body))
@app.task(name="timed")
def timed(count):
    do_timed(lambda: jm.step(body), count)
def work(jobs):
    words = ("worker", "peer:app", "-c", str(jobs), "--log-level", "warning")
    os.execv(sys.executable, [sys.executable, "-m", "journeyman", *words])
def send(job, count):
    {"busy": busy, "timed": timed}[job].send(count)
"""

DBOS = """
from dbos import DBOS, DBOSClient
step = DBOS.step(name="one")(body)
@DBOS.workflow(name="busy")
def busy(_count):
    do_busy(step)
@DBOS.workflow(name="timed")
def timed(count):
    do_timed(step, count)
def work(jobs):
    DBOS(config={"name": "bench", "system_database_url": URL, "log_level": "WARNING",
                 "sys_db_pool_size": 2 * jobs, "max_executor_threads": 4 * jobs})
    DBOS.launch()
    DBOS.register_queue("bench", worker_concurrency=jobs)
    open("ready", "w").close()
    threading.Event().wait()
def send(job, count):
    while not os.path.exists("ready"):  # the schema is made by the worker
        time.sleep(0.1)
    client = DBOSClient(system_database_url=URL)
    client.enqueue({"queue_name": "bench", "workflow_name": job}, count)
    client.destroy()
"""

ABSURD = """
from absurd_sdk import Absurd
def busy(_params, context):
    do_busy(lambda: context.step("one", body))
def timed(params, context):
    do_timed(lambda: context.step("one", body), params["count"])
def serve_one():
    app = Absurd(URL)
    app.register_task(name="busy")(busy)
    app.register_task(name="timed")(timed)
    app.start_worker(concurrency=1, poll_interval=0.05)
def work(jobs):
    for _ in range(jobs):
        threading.Thread(target=serve_one, daemon=True).start()
    threading.Event().wait()
def send(job, count):
    app = Absurd(URL)
    app.spawn(job, {"count": count}, queue="default")
    app.close()
"""

RESTATE = """
import asyncio, json
from urllib.request import Request, urlopen
import restate
from hypercorn.asyncio import serve
from hypercorn.config import Config
INGRESS, ADMIN, SERVICE = URL.split()
service = restate.Service("bench")
@service.handler()
async def busy(context: restate.Context, _count: int) -> None:
    begin()
    while is_busy():
        await context.run_typed("one", body)
@service.handler()
async def timed(context: restate.Context, count: int) -> None:
    for _ in range(count):
        since_ns = time.perf_counter_ns()
        await context.run_typed("one", body)
        note(since_ns)
def ask(url, body):
    urlopen(Request(url, json.dumps(body).encode(), {"content-type": "application/json"})).close()
def register():
    while True:
        try:
            return ask(f"{ADMIN}/deployments", {"uri": SERVICE})
        except OSError:
            time.sleep(0.1)
def work(jobs):
    config = Config()
    config.bind = [SERVICE.removeprefix("http://")]
    threading.Thread(target=register, daemon=True).start()
    asyncio.run(serve(restate.app([service]), config))
def send(job, count):
    while True:
        try:
            return ask(f"{INGRESS}/bench/{job}/send", count)
        except OSError:  # not registered yet
            time.sleep(0.1)
"""


@dataclass(frozen=True)
class StepPeer:
    name: str
    modules: tuple[str, ...]  # what its programs import
    module: str
    serve: Callable[[Path, ExitStack], str]  # starts what it needs; the value of PEER_URL


def journeyman(directory: Path) -> Peer:
    """A server with its ledger, which has the steps."""
    port = free_port()
    command = [sys.executable, "-m", "journeyman", "serve", "--data", "data"]
    command += ["--listen", f"127.0.0.1:{free_port()}", "--workq-listen", f"127.0.0.1:{port}"]
    command += ["--kestrel-listen", "off", "--http-listen", "off", "--cmdlog-sync", "always"]
    return Peer("journeyman", command, port, directory)


def _journeyman(place: Path, stack: ExitStack) -> str:
    return f"journeyman://127.0.0.1:{stack.enter_context(journeyman(place)).port}"


def _postgres(place: Path, stack: ExitStack) -> str:
    words = dict(word.split("=") for word in durable_postgres(place, stack).split())
    return "postgresql://{user}@{host}:{port}/{dbname}".format(**words)


def _absurd(place: Path, stack: ExitStack) -> str:
    url = _postgres(place, stack)
    program = [sys.executable, "-c", "import absurdctl; absurdctl.main()"]
    for words in (["init"], ["create-queue", "default"]):
        subprocess.run([*program, *words, "-d", url], check=True, stdout=subprocess.DEVNULL)
    return url


def _restate(place: Path, stack: ExitStack) -> str:
    program = _restate_program()
    assert program is not None
    ingress, admin, node, service = (f"127.0.0.1:{free_port()}" for _ in range(4))
    settings = {
        "BASE_DIR": place / "restate-data",
        "BIND_ADDRESS": node,
        "ADVERTISED_ADDRESS": f"http://{node}",
        "INGRESS__BIND_ADDRESS": ingress,
        "ADMIN__BIND_ADDRESS": admin,
        "DISABLE_TELEMETRY": "true",
        "LOG_FILTER": "warn",
    }
    words = [f"RESTATE_{name}={value}" for name, value in settings.items()]
    port = int(ingress.rpartition(":")[2])
    stack.enter_context(Peer("restate", ["env", *words, program], port, place))
    return f"http://{ingress} http://{admin} http://{service}"


def _restate_program() -> str | None:
    path = os.pathsep.join([os.environ.get("PATH", ""), SEARCH_PATH])
    return shutil.which("restate-server", path=path)


PEERS = (
    StepPeer("journeyman", (), JOURNEYMAN, _journeyman),
    StepPeer("dbos", ("dbos",), DBOS, _postgres),
    StepPeer("absurd", ("absurd_sdk", "absurdctl"), ABSURD, _absurd),
    StepPeer("restate", ("restate", "hypercorn"), RESTATE, _restate),
)


def missing(peer: StepPeer) -> str:
    """What has to be installed before it can be measured; empty: nothing."""
    if any(find_spec(module) is None for module in peer.modules):
        return "pip install --group peers"
    if peer.name == "restate" and _restate_program() is None:
        package = "@restatedev/restate-server-linux-x64"
        return f"npm install {package}, and its bin/ on the PATH"
    return ""


@contextmanager
def served(peer: StepPeer, place: Path) -> Iterator[str]:
    """What the peer needs runs, and its module is in ``place``; the value of PEER_URL."""
    place.mkdir(parents=True)
    (place / "peer.py").write_text(SHARED + peer.module)
    with ExitStack() as stack:
        url = peer.serve(place / "server", stack)
        time.sleep(1.0)  # so that nothing of its start is measured
        yield url
