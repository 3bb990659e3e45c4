"""The task queues that are compared, each as it is installed and at its safest documented setting.

A peer is a module with ``work(number)`` as its task and ``send(number)``, the command of its broker
if it has one, and the command of a worker that runs four jobs at a time. Both settings run the same
module; ``SAFE`` in its environment says which one it is.

    peer           default                        safest
    journeyman     as installed                   the same: durable is its default
    huey           SQLite                         SQLite with fsync=True
    rq             Redis as installed             Redis, appendfsync always; Retry(max=3)
    dramatiq       Redis as installed             Redis, appendfsync always
    celery         Redis as installed             Redis, appendfsync always; task_acks_late,
                                                  task_reject_on_worker_lost, and a
                                                  visibility_timeout of 20 s
    procrastinate  PostgreSQL                     PostgreSQL and its documented task that retries
                                                  stalled jobs, every minute
    beanstalkd     in memory                      -b DIR -f0
    nats           JetStream in files             JetStream, sync_interval: always (if it knows it)
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import find_program

from bench.peers import SEARCH_PATH, free_port, version_of

# A job takes a moment, so that there is always one under way when a fault comes.
PREAMBLE = """
import os, time
SAFE = os.environ["PEER_SETTING"] == "safest"
URL = os.environ.get("PEER_URL", "")
_runs = os.open(os.environ["PEER_RUNS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def _work(number):
    os.write(_runs, b"start %d\\n" % number)
    time.sleep(0.05)
    os.write(_runs, b"done %d\\n" % number)
"""


@dataclass(frozen=True, slots=True)
class Broker:
    """The process of a broker: its command, its address, and where it keeps its files."""

    command: list[str]
    port: int
    url: str
    user: str | None = None


@dataclass(frozen=True, slots=True)
class ComparedPeer:
    """``promise`` says what its documentation promises about a job whose worker dies."""

    name: str
    package: str
    program: str | None
    module: str
    worker: list[str]
    broker: Callable[[Path, bool], Broker] | None
    promise: str
    prepare: list[str] | None = None

    def missing(self) -> str | None:
        """Return what has to be installed before this peer can be compared, or None."""
        if importlib.util.find_spec(self.package.replace("-py", "")) is None:
            return f"pip install {self.package}"
        if self.program and shutil.which(self.program, path=SEARCH_PATH) is None:
            try:
                find_program(self.program)
            except Exception:  # noqa: BLE001 - the finder of the tests skips, whatever that raises
                return f"apt-get install {self.program}"
        return None

    def version(self) -> str:
        """Return the versions of its package and of its broker."""
        versions = [importlib.metadata.version(self.package)]
        if self.program == "postgres":
            versions.append(_first_line([find_program("postgres"), "--version"]))
        elif self.program:
            option = "-v" if self.program in ("beanstalkd", "nats-server") else "--version"
            versions.append(version_of(self.program, option).splitlines()[0])
        return ", ".join(versions)


def _first_line(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[
        0
    ]


def _python(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def _journeyman(data: Path, _safe: bool) -> Broker:
    port = free_port()
    command = _python("journeyman", "serve", "--data", str(data))
    command += ["--listen", f"127.0.0.1:{free_port()}", "--workq-listen", f"127.0.0.1:{port}"]
    command += ["--kestrel-listen", "off", "--http-listen", "off"]
    return Broker(command, port, f"journeyman://127.0.0.1:{port}")


def _redis(data: Path, safe: bool) -> Broker:
    port = free_port()
    command = [
        _found("redis-server"),
        "--bind",
        "127.0.0.1",
        "--port",
        str(port),
        "--dir",
        str(data),
    ]
    if safe:
        command += ["--appendonly", "yes", "--appendfsync", "always"]
    return Broker(command, port, f"redis://127.0.0.1:{port}/0")


def _postgres(data: Path, _safe: bool) -> Broker:
    port, user = free_port(), "postgres" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(data, user)
    cluster = str(data / "cluster")
    words = [find_program("initdb"), "-A", "trust", "-U", "journeyman", "-D", cluster]
    subprocess.run(words, check=True, capture_output=True, user=user, cwd="/")
    command = [find_program("postgres"), "-D", cluster, "-p", str(port), "-h", "127.0.0.1"]
    command += ["-c", "unix_socket_directories="]
    url = f"host=127.0.0.1 port={port} user=journeyman dbname=postgres"
    return Broker(command, port, url, user)


def _beanstalkd(data: Path, safe: bool) -> Broker:
    port = free_port()
    command = [_found("beanstalkd"), "-l", "127.0.0.1", "-p", str(port)]
    if safe:
        command += ["-b", str(data), "-f", "0"]
    return Broker(command, port, f"127.0.0.1:{port}")


def _nats(data: Path, safe: bool) -> Broker:
    port = free_port()
    settings = data.parent / "nats.conf"
    always = " sync_interval: always" if safe and _knows_sync_always() else ""
    settings.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{data}"{always} }}\n'
    )
    return Broker([_found("nats-server"), "-c", str(settings)], port, f"nats://127.0.0.1:{port}")


def _knows_sync_always() -> bool:
    """True from version 2.10, which brought the setting."""
    version = version_of("nats-server", "-v").rpartition("v")[2].split(".")
    return [int(part) for part in version[:2]] >= [2, 10]


def _found(program: str) -> str:
    path = shutil.which(program, path=SEARCH_PATH)
    assert path is not None, program
    return path


_BEANSTALKD = """
import greenstalk, threading
host, _, port = URL.partition(":")
_client = None
def send(number):
    global _client
    try:
        _client = _client or greenstalk.Client((host, int(port)))
        _client.put(str(number), ttr=10)
    except Exception:
        _client = None
        raise
def loop():
    while True:
        try:
            with greenstalk.Client((host, int(port))) as client:
                while True:
                    job = client.reserve()
                    _work(int(job.body))
                    client.delete(job)
        except Exception:
            time.sleep(0.2)
def run_worker():
    threads = [threading.Thread(target=loop) for _ in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
"""

_NATS = """
import asyncio, nats
from nats.js.api import ConsumerConfig, AckPolicy
_loop = asyncio.new_event_loop()
_client = None
async def _connect():
    client = await nats.connect(URL, connect_timeout=5, max_reconnect_attempts=-1)
    stream = client.jetstream()
    try: await stream.add_stream(name="jobs", subjects=["jobs"])
    except nats.js.errors.BadRequestError: pass
    return stream
async def _send(number):
    global _client
    _client = _client or await _connect()
    await _client.publish("jobs", str(number).encode(), timeout=5)
def send(number):
    global _client
    try: _loop.run_until_complete(_send(number))
    except Exception:
        _client = None
        raise
async def _worker():
    stream = await _connect()
    config = ConsumerConfig(ack_wait=10, ack_policy=AckPolicy.EXPLICIT)
    while True:
        try:
            subscription = await stream.pull_subscribe("jobs", durable="worker", config=config)
            while True:
                try: messages = await subscription.fetch(4, timeout=5)
                except nats.errors.TimeoutError: continue
                async def one(message):
                    await asyncio.to_thread(_work, int(message.data))
                    await message.ack()
                await asyncio.gather(*map(one, messages))
        except Exception:
            await asyncio.sleep(0.2)
def run_worker():
    asyncio.run(_worker())
"""

PEERS = (
    ComparedPeer(
        "journeyman",
        "journeyman",
        None,
        """
import journeyman as jm
app = jm.App(URL)
work = app.task(name="work", retries=20, timeout=10)(_work)
send = work.send
""",
        _python("journeyman", "worker", "peer:app", "-c", "4", "--log-level", "warning"),
        _journeyman,
        "runs again",
    ),
    ComparedPeer(
        "huey",
        "huey",
        None,
        """
from huey import SqliteHuey
huey = SqliteHuey(filename=os.path.join(os.environ["PEER_DATA"], "huey.db"), fsync=SAFE)
work = huey.task(name="work", retries=20)(_work)
send = work
""",
        _python("huey.bin.huey_consumer", "peer.huey", "-w", "4", "-k", "thread", "-q"),
        None,
        "not promised",
    ),
    ComparedPeer(
        "rq",
        "rq",
        "redis-server",
        """
from redis import Redis
from rq import Queue, Retry
queue = Queue(connection=Redis.from_url(URL), default_timeout=10)
def send(number):
    return queue.enqueue("peer._work", number, retry=Retry(max=3) if SAFE else None)
""",
        _python("rq.cli", "worker-pool", "-n", "4", "-u", "$PEER_URL", "-q"),
        _redis,
        "moved to failed jobs; runs again with Retry",
    ),
    ComparedPeer(
        "dramatiq",
        "dramatiq",
        "redis-server",
        """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
dramatiq.set_broker(RedisBroker(url=URL))
work = dramatiq.actor(_work, actor_name="work")
send = work.send
""",
        _python("dramatiq", "peer", "-p", "1", "-t", "4"),
        _redis,
        "runs again",
    ),
    ComparedPeer(
        "celery",
        "celery",
        "redis-server",
        """
from celery import Celery
app = Celery("peer", broker=URL)
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)
if SAFE:
    app.conf.update(task_acks_late=True, task_reject_on_worker_lost=True,
                    broker_transport_options={"visibility_timeout": 20})
work = app.task(name="work")(_work)
send = work.delay
""",
        _python("celery", "-A", "peer", "worker", "-P", "threads", "-c", "4", "-l", "error"),
        _redis,
        "runs again with acks_late",
    ),
    ComparedPeer(
        "procrastinate",
        "procrastinate",
        "postgres",
        """
import procrastinate
connector = procrastinate.PsycopgConnector(conninfo=URL)
app = procrastinate.App(connector=connector, import_paths=["peer"])
work = app.task(name="work", retry=20)(_work)
_opened = False
def send(number):
    global _opened
    if not _opened:
        app.open()
        _opened = True
    work.defer(number=number)
if SAFE:
    @app.periodic(cron="* * * * *")
    @app.task(queueing_lock="retry_stalled_jobs", pass_context=True)
    async def retry_stalled_jobs(context, timestamp):
        for job in await app.job_manager.get_stalled_jobs():
            await app.job_manager.retry_job(job)
""",
        _python("procrastinate", "--app", "peer.app", "worker", "-c", "4"),
        _postgres,
        "runs again with a task that one adds",
        _python("procrastinate", "--app", "peer.app", "schema", "--apply"),
    ),
    ComparedPeer(
        "beanstalkd",
        "greenstalk",
        "beanstalkd",
        _BEANSTALKD,
        [sys.executable, "-c", "import peer; peer.run_worker()"],
        _beanstalkd,
        "runs again",
    ),
    ComparedPeer(
        "nats",
        "nats-py",
        "nats-server",
        _NATS,
        [sys.executable, "-c", "import peer; peer.run_worker()"],
        _nats,
        "runs again",
    ),
)
