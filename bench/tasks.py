"""Tasks beside other task queues: durable sends, time to start, throughput of one worker process.

    python -m bench.tasks [--only enqueue|start|throughput|idle] [--peers huey,rq] [--rounds 3]

    enqueue      sends per second of one process with 4 and 16 threads, each send durable before
                 the next of its thread; and, without a bar, of one thread: huey has no server
                 to talk to, and on a quick disk that costs more than the sync
    start        from send to the first line of the task, median, on an idle worker
    throughput   no-op jobs per second of one worker process, 4 and 16 at a time
    idle         commands per second and memory of a worker of ours that has nothing to do

The queues take turns; the best round of each counts. Every queue runs at its safest setting
(task_peers.py), and all data is in one directory, so all pay for the same disk. A server is left
alone for SETTLE_S first, so that nothing of its start is measured.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import Any, Self

from bench.task_peers import PEERS, TaskPeer, served
from bench.verdicts import Verdict, ask_all, read_options

SETTLE_S = 1.0
SENDS_S = 2.0
IDLE_S = 10.0
STAMPS = 100
BETWEEN_S = 0.02
JOBS = {"rq": 200, "procrastinate": 400, "celery": 400, "dramatiq": 2_000, "huey": 3_000}
MANY_JOBS = 6_000
SENDERS = (1, 4, 16)
CONCURRENCY = (4, 16)
LIMIT_S = 180.0
OURS = "journeyman"

# Programs of the sender, in a process of its own: importing a peer must not change another one.
ENTER = "import peer, time\n"
ENTER_PROCRASTINATE = ENTER + "peer.app.open()\n"
SEND_FOR = """
from threading import Thread
counts = []
def send():
    count, end = 0, time.perf_counter() + {seconds}
    while time.perf_counter() < end:
        peer.noop()
        count += 1
    counts.append(count)
peer.noop()
threads = [Thread(target=send) for _ in range({threads})]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sum(counts) / {seconds})
"""
SEND_MANY = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as threads:
    list(threads.map(lambda _: peer.noop() and None, range({count})))
"""
STAMP = """
for _ in range({count}):
    peer.stamp(time.time_ns())
    time.sleep({pause})
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.tasks", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", default=",".join(names), help="comma-separated")
    questions = {"enqueue": enqueue, "start": start, "throughput": throughput, "idle": idle}
    options = read_options(parser, questions, arguments)
    asked = set(options.peers.split(",")) | {OURS}
    peers = [peer for peer in PEERS if peer.name in asked and _is_installed(peer)]
    figures: dict[str, Any] = {}
    return ask_all(
        "tasks",
        {
            name: lambda place, ask=ask: ask(place, peers, options.rounds)  # type: ignore[misc]
            for name, ask in questions.items()
        },
        figures,
        options,
        keep=len(peers) == len(PEERS),
    )


def _is_installed(peer: TaskPeer) -> bool:
    if find_spec(peer.name) is not None:
        return True
    print(f"{peer.name} is not installed (pip install --group peers): not measured beside it")
    return False


def enqueue(place: Path, peers: list[TaskPeer], rounds: int) -> tuple[Any, list[Verdict]]:
    figures: dict[str, dict[str, float]] = {}
    verdicts = []
    for threads in SENDERS:
        best: dict[str, float] = {}
        program = SEND_FOR.format(seconds=SENDS_S, threads=threads)
        for number, peer, where, url in _turns(place / str(threads), peers, rounds):
            rate = float(_send(peer, where, url, program))
            best[peer.name] = max(rate, best.get(peer.name, 0.0))
            print(f"enqueue {threads} {number} {peer.name:<14}{rate:>10.0f}/s", flush=True)
        figures[str(threads)] = best
        if threads in CONCURRENCY:
            verdicts.append(_ratio(f"durable sends, {threads} threads, of the best", best, 1.0))
    return figures, verdicts


def start(place: Path, peers: list[TaskPeer], rounds: int) -> tuple[Any, list[Verdict]]:
    best: dict[str, float] = {}
    for number, peer, where, url in _turns(place, peers, rounds):
        with _worker(peer, where, url, 4):
            _send(peer, where, url, STAMP.format(count=5, pause=0.3))
            _send(peer, where, url, STAMP.format(count=STAMPS, pause=BETWEEN_S))
            _wait(lambda where=where: _lines(where) >= STAMPS + 5)
        late = [int(line) for line in (where / "late").read_text().split()][5:]
        p50_ms = statistics.median(late) / 1e6
        best[peer.name] = min(p50_ms, best.get(peer.name, 1e9))
        print(f"start {number} {peer.name:<14}{p50_ms:>10.2f} ms", flush=True)
    others = [value for name, value in best.items() if name != OURS]
    figure = round(best[OURS] / min(others), 2) if others else None
    return best, [Verdict("send to start p50, of the lowest other", figure, 1.0, at_least=False)]


def throughput(place: Path, peers: list[TaskPeer], rounds: int) -> tuple[Any, list[Verdict]]:
    figures: dict[str, dict[str, float]] = {}
    verdicts = []
    for concurrency in CONCURRENCY:
        best: dict[str, float] = {}
        for number, peer, where, url in _turns(place / str(concurrency), peers, rounds):
            count = JOBS.get(peer.name, MANY_JOBS)
            _send(peer, where, url, SEND_MANY.format(count=count))
            with _worker(peer, where, url, concurrency):
                rate = _rate_of(where / "done", count)
            best[peer.name] = max(rate, best.get(peer.name, 0.0))
            print(f"throughput {concurrency} {number} {peer.name:<14}{rate:>8.0f}/s", flush=True)
        figures[str(concurrency)] = best
        verdicts.append(_ratio(f"jobs/s, {concurrency} at a time, beside the best", best, 2.0))
    return figures, verdicts


def idle(place: Path, peers: list[TaskPeer], rounds: int) -> tuple[Any, list[Verdict]]:  # noqa: ARG001
    """Of a worker that has done a job and waits; its connections go through a relay that counts."""
    ours = next(peer for peer in peers if peer.name == OURS)
    where = place / OURS
    with served(ours, where) as url, Relay(url) as relay:
        with _worker(ours, where, relay.url, 16) as worker:
            _send(ours, where, url, STAMP.format(count=1, pause=0))
            _wait(lambda: _lines(where) >= 1)
            time.sleep(1.0)
            before = relay.commands
            time.sleep(IDLE_S)
            per_s = (relay.commands - before) / IDLE_S
            status = Path(f"/proc/{worker}/status").read_text()
        peak_mb = round(int(status.partition("VmHWM:")[2].split()[0]) / 1024, 1)
    print(f"idle {per_s:.2f} commands/s, {before} before, {peak_mb} MB")
    return {"commands_per_s": per_s, "peak_mb": peak_mb}, [
        Verdict("commands/s of an idle worker", per_s, 0.0, at_least=False),
        Verdict("memory of an idle worker, MB", peak_mb, 60.0, at_least=False),
    ]


class Relay:
    """Stands between a worker and the server; counts what the worker sends."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("journeyman://").partition(":")
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"journeyman://127.0.0.1:{self._listener.getsockname()[1]}"
        self.commands = 0

    def __enter__(self) -> Self:
        Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                worker, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                Thread(target=self._pass_on, args=(worker, server, 1), daemon=True).start()
                Thread(target=self._pass_on, args=(server, worker, 0), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, count: int) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                self.commands += count
                target.sendall(data)


def _turns(
    place: Path, peers: list[TaskPeer], rounds: int
) -> Iterator[tuple[int, TaskPeer, Path, str]]:
    for number in range(rounds):
        for peer in peers:
            where = place / f"{number}-{peer.name}"
            with served(peer, where) as url:
                if peer.prepare:
                    _run([sys.executable, "-m", *peer.prepare], where, url)
                time.sleep(SETTLE_S)
                yield number, peer, where, url


def _send(peer: TaskPeer, where: Path, url: str, program: str) -> str:
    enter = ENTER_PROCRASTINATE if peer.name == "procrastinate" else ENTER
    return _run([sys.executable, "-c", enter + program], where, url)


def _run(command: list[str], where: Path, url: str) -> str:
    done = subprocess.run(
        command, cwd=where, env=_environment(url), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{where.name}: {done.stderr[-2000:]}")
    return done.stdout


@contextmanager
def _worker(peer: TaskPeer, where: Path, url: str, concurrency: int) -> Iterator[int]:
    """The id of its process."""
    words = [url if word == "$PEER_URL" else word for word in peer.worker(concurrency)]
    with (where / "worker.out").open("ab") as output:
        process = subprocess.Popen(
            words, cwd=where, env=_environment(url), stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process.pid
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(url: str) -> dict[str, str]:
    root = str(Path(__file__).parent.parent)
    return {**os.environ, "PEER_URL": url, "PYTHONPATH": f".:{root}"}


def _rate_of(done: Path, count: int) -> float:
    """Jobs per second between the first and the last byte of the file."""
    _wait(lambda: done.exists() and done.stat().st_size > 0)
    begin, first = time.perf_counter(), done.stat().st_size
    _wait(lambda: done.stat().st_size >= count, every_s=0.002)
    return (count - first) / (time.perf_counter() - begin)


def _lines(where: Path) -> int:
    late = where / "late"
    return len(late.read_text().split()) if late.exists() else 0


def _wait(is_over: Any, every_s: float = 0.01) -> None:
    end = time.perf_counter() + LIMIT_S
    while not is_over():
        if time.perf_counter() > end:
            raise SystemExit(f"not done within {LIMIT_S:.0f} s")
        time.sleep(every_s)


def _ratio(question: str, best: dict[str, float], bar: float) -> Verdict:
    others = [value for name, value in best.items() if name != OURS]
    figure = round(best[OURS] / max(others), 2) if others else None
    return Verdict(question, figure, bar, at_least=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
