"""The task queues that bench/tasks.py measures, each at its safest setting.

    journeyman     journeyman serve, workq sync always
    huey           SQLite, synchronous=FULL (fsync=True)
    rq             Redis, appendfsync always; SimpleWorker: no fork per job, its fastest kind
    dramatiq       Redis, appendfsync always
    celery         Redis, appendfsync always; threads
    procrastinate  PostgreSQL, synchronous_commit on (its default)

Each is a module with the same three tasks, written into a directory where its worker and a sender
import it, and the command of one worker process that runs ``concurrency`` jobs at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.programs import find_program
from tests.support.servers.services import PostgresService

from bench.peers import redis
from bench.workqueue_peers import journeyman

# Every worker does the same: a byte per job, or the time from send to start.
SHARED = """
import os, time
_done = os.open("done", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
_late = os.open("late", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def _noop():
    os.write(_done, b".")
def _stamp(sent_ns):
    os.write(_late, b"%d\\n" % (time.time_ns() - sent_ns))
"""


@dataclass(frozen=True)
class TaskPeer:
    """``module``: what differs; ``noop()`` and ``stamp(ns)`` send. ``worker``: the words of a
    program of this environment."""

    name: str
    module: str
    worker: Callable[[int], list[str]]
    serve: Callable[[Path, ExitStack], str]  # starts what it needs; the value of PEER_URL
    prepare: tuple[str, ...] = ()


def _python(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def _journeyman(place: Path, stack: ExitStack) -> str:
    peer = stack.enter_context(journeyman(place, "always"))
    return f"journeyman://127.0.0.1:{peer.port}"


def _redis(place: Path, stack: ExitStack) -> str:
    peer = redis(place)
    if peer is None:
        raise SystemExit("redis-server is not installed: make services")
    return f"redis://127.0.0.1:{stack.enter_context(peer).port}/0"


class DurablePostgres(PostgresService):
    """The one of the tests runs without fsync."""

    def _run(self) -> None:
        cluster, port = str(self._data / "cluster"), str(self.port)
        words = ("-D", cluster, "-p", port, "-h", "127.0.0.1", "-k", str(self._data))
        self.spawn(find_program("postgres"), *words, user=self._user)


def durable_postgres(place: Path, stack: ExitStack) -> str:
    server = DurablePostgres(place)
    server.start()
    stack.callback(server.stop)
    return f"host=127.0.0.1 port={server.port} user=journeyman dbname=postgres"


def _nothing(_place: Path, _stack: ExitStack) -> str:
    return ""


PEERS = (
    TaskPeer(
        "journeyman",
        """
import journeyman as jm
app = jm.App(os.environ["PEER_URL"])
task_noop = app.task(name="noop")(_noop)
task_stamp = app.task(name="stamp")(_stamp)
noop, stamp = task_noop.send, task_stamp.send
""",
        lambda n: _python(
            "journeyman", "worker", "peer:app", "-c", str(n), "--log-level", "warning"
        ),
        _journeyman,
    ),
    TaskPeer(
        "huey",
        """
from huey import SqliteHuey
huey = SqliteHuey(filename="huey.db", fsync=True)
task_noop = huey.task(name="noop")(_noop)
task_stamp = huey.task(name="stamp")(_stamp)
noop, stamp = task_noop, task_stamp
""",
        lambda n: _python(
            "huey.bin.huey_consumer", "peer.huey", "-w", str(n), "-k", "thread", "-q"
        ),
        _nothing,
    ),
    TaskPeer(
        "rq",
        """
from redis import Redis
from rq import Queue
queue = Queue(connection=Redis.from_url(os.environ["PEER_URL"]))
def noop(): return queue.enqueue("peer._noop")
def stamp(sent_ns): return queue.enqueue("peer._stamp", sent_ns)
""",
        lambda n: _python(
            "rq.cli",
            "worker-pool",
            "-n",
            str(n),
            "-u",
            "$PEER_URL",
            "-q",
            "-w",
            "rq.worker.SimpleWorker",
        ),
        _redis,
    ),
    TaskPeer(
        "dramatiq",
        """
import dramatiq
from dramatiq.brokers.redis import RedisBroker
dramatiq.set_broker(RedisBroker(url=os.environ["PEER_URL"]))
task_noop = dramatiq.actor(_noop, actor_name="noop")
task_stamp = dramatiq.actor(_stamp, actor_name="stamp")
noop, stamp = task_noop.send, task_stamp.send
""",
        lambda n: _python("dramatiq", "peer", "-p", "1", "-t", str(n)),
        _redis,
    ),
    TaskPeer(
        "celery",
        """
from celery import Celery
app = Celery("peer", broker=os.environ["PEER_URL"])
app.conf.update(task_ignore_result=True, task_acks_late=True, worker_hijack_root_logger=False,
                broker_connection_retry_on_startup=True)
task_noop = app.task(name="noop")(_noop)
task_stamp = app.task(name="stamp")(_stamp)
noop, stamp = task_noop.delay, task_stamp.delay
""",
        lambda n: _python(
            "celery",
            "-A",
            "peer",
            "worker",
            "-P",
            "threads",
            "-c",
            str(n),
            "-l",
            "error",
            "--without-gossip",
            "--without-mingle",
        ),
        _redis,
    ),
    TaskPeer(
        "procrastinate",
        """
import procrastinate
app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(conninfo=os.environ["PEER_URL"]),
    import_paths=["peer"],
)
task_noop = app.task(name="noop")(_noop)
task_stamp = app.task(name="stamp")(_stamp)
def noop(): return task_noop.defer()
def stamp(sent_ns): return task_stamp.defer(sent_ns=sent_ns)
""",
        lambda n: _python("procrastinate", "--app", "peer.app", "worker", "-c", str(n)),
        durable_postgres,
        ("procrastinate", "--app", "peer.app", "schema", "--apply"),
    ),
)


@contextmanager
def served(peer: TaskPeer, place: Path) -> Iterator[str]:
    """What the peer needs runs, and its module is in ``place``; the value of PEER_URL."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "peer.py").write_text(SHARED + peer.module)
    with ExitStack() as stack:
        yield peer.serve(place / "server", stack)
