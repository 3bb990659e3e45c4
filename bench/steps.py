"""Durable steps beside DBOS, Absurd and Restate, and 100,000 parked jobs of ours.

    python -m bench.steps [--only steps|parked] [--peers dbos,absurd] [--rounds 3]

steps     one worker process of each system, in turns; the best round of each counts
          per second   steps that 16 jobs do which run at the same time
          latency      what one step takes in a job that runs alone, median; its function writes a
                       byte, so this is what the step adds
parked    100,000 jobs of ours, half asleep for a month, half waiting for an event of their own
          start        from exec to the first answer, beyond a server without jobs
          memory       resident a second later, beyond the same server
          wake-ups     a second, beyond those of the same server

All settings are durable (steps_peers.py), and all data is in one directory: all pay for the same
disk. A system that cannot be had is named, and its bars are not measured.
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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench import peers
from bench.idle import wake_ups_a_second
from bench.starts import Loaded, Restart, ask_once, quickest_start
from bench.steps_peers import PEERS, StepPeer, journeyman, missing, served
from bench.verdicts import Verdict, ask_all, read_options
from bench.workqueue_load import job_id

OURS = "journeyman"
AT_ONCE = 16
WARM_S = 1.0
MEASURE_S = 3.0
WARM_STEPS = 50
TIMED_STEPS = 300
LIMIT_S = 120.0

PARKED = 100_000
AT_A_TIME = 100
PARKERS = 40  # connections
MONTH_MS = 30 * 86_400_000
SETTLE_S = 3.0
LOOK_S = 10.0
MAX_BYTES = 500
MAX_START_S = 2.0
MAX_WAKE_UPS = 1.0  # once anything is due later, the server looks at the wall clock each second


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.steps", description=__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("--peers", default=",".join(names), help="comma-separated")
    options = read_options(parser, ("steps", "parked"), arguments)
    asked = set(options.peers.split(",")) | {OURS}
    present = []
    for peer in PEERS:
        if peer.name in asked and (wanted := missing(peer)):
            print(f"{peer.name} is not installed ({wanted}): not measured beside it")
        elif peer.name in asked:
            present.append(peer)
    figures: dict[str, Any] = {
        "file_system": peers.file_system(Path(options.directory)),
        "load_average": os.getloadavg()[0],
        "versions": {peer.name: _version(peer) for peer in present},
    }
    return ask_all(
        "steps",
        {
            "steps": lambda place: steps(place, present, options.rounds),
            "parked": lambda place: parked(place, options.rounds),
        },
        figures,
        options,
        keep=len(present) == len(PEERS),
    )


def _version(peer: StepPeer) -> str:
    packages = {"absurd": "absurd-sdk", "restate": "restate-sdk"}
    try:
        return version(packages.get(peer.name, peer.name))
    except PackageNotFoundError:
        return "unknown"


# -- beside others ---------------------------------------------------------------------------------


def steps(place: Path, present: list[StepPeer], rounds: int) -> tuple[Any, list[Verdict]]:
    rates: dict[str, float] = {}
    latencies: dict[str, float] = {}
    for number in range(rounds):
        for peer in present:
            where = place / f"{number}-{peer.name}"
            with served(peer, where) as url, _worker(where, url):
                p50_ms = _latency_ms(where, url)
                rate = _rate(where, url)
            rates[peer.name] = max(rate, rates.get(peer.name, 0.0))
            latencies[peer.name] = min(p50_ms, latencies.get(peer.name, 1e9))
            print(f"{number} {peer.name:<12}{rate:>9.0f} steps/s{p50_ms:>9.3f} ms", flush=True)
    others = [peer.name for peer in present if peer.name != OURS]
    quickest = max((rates[name] for name in others), default=None)
    lowest = min((latencies[name] for name in others), default=None)
    figures = {"per_second": rates, "latency_p50_ms": latencies}
    return figures, [
        Verdict("steps/s, 16 jobs, of the best other", _ratio(rates[OURS], quickest), 1.0, True),
        Verdict("step p50, of the lowest other", _ratio(latencies[OURS], lowest), 1.0, False),
    ]


def _latency_ms(where: Path, url: str) -> float:
    _send(where, url, "timed", WARM_STEPS + TIMED_STEPS)
    late = where / "late"
    _wait(lambda: late.exists() and late.read_text().count("\n") >= WARM_STEPS + TIMED_STEPS)
    return statistics.median(map(int, late.read_text().split()[WARM_STEPS:])) / 1e6


def _rate(where: Path, url: str) -> float:
    _send(where, url, "busy", 0, times=AT_ONCE)
    _wait(lambda: (where / "begun").stat().st_size >= AT_ONCE)
    time.sleep(WARM_S)
    done = where / "done"
    begin, before = time.perf_counter(), done.stat().st_size
    time.sleep(MEASURE_S)
    return (done.stat().st_size - before) / (time.perf_counter() - begin)


def _send(where: Path, url: str, job: str, count: int, times: int = 1) -> None:
    program = f"import peer\nfor _ in range({times}):\n    peer.send({job!r}, {count})"
    words = [sys.executable, "-c", program]
    done = subprocess.run(
        words, cwd=where, env=_environment(url), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{where.name}: {done.stderr[-2000:]}")


@contextmanager
def _worker(where: Path, url: str) -> Iterator[None]:
    words = [sys.executable, "-c", f"import peer\npeer.work({AT_ONCE})"]
    with (where / "worker.out").open("ab") as output:
        process = subprocess.Popen(
            words, cwd=where, env=_environment(url), stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(url: str) -> dict[str, str]:
    root = str(Path(__file__).parent.parent)
    return {**os.environ, "PEER_URL": url, "PYTHONPATH": f".:{root}"}


def _wait(is_over: Callable[[], bool]) -> None:
    end = time.perf_counter() + LIMIT_S
    while not is_over():
        if time.perf_counter() > end:
            raise SystemExit(f"not done within {LIMIT_S:.0f} s")
        time.sleep(0.02)


def _ratio(ours: float, best: float | None) -> float | None:
    return None if best is None else round(ours / best, 2)


# -- parked jobs -----------------------------------------------------------------------------------


def parked(place: Path, rounds: int) -> tuple[Any, list[Verdict]]:
    empty, empty_wakes = _start(place / "empty", 0, rounds, 0.0)
    with journeyman(place / "full") as server:
        begin = time.perf_counter()
        _park(server.port)
        per_s = PARKED / (time.perf_counter() - begin)
    full, full_wakes = _start(place / "full", PARKED, rounds, empty.resident_mb)
    more_s = round(full.first_answer_s - empty.first_answer_s, 3)
    more_wakes = round(full_wakes - empty_wakes, 1)
    print(f"parked  {per_s:,.0f} jobs added, leased and parked per second")
    print(f"start   {empty.first_answer_s} s without jobs, {full.first_answer_s} s with them")
    print(f"memory  {empty.resident_mb} MB without, {full.resident_mb} MB with")
    print(f"wake-ups {empty_wakes:.1f} per second without, {full_wakes:.1f} with")
    figures = {
        "jobs_per_second": round(per_s),
        "empty": asdict(empty) | {"wake_ups_a_second": empty_wakes},
        "full": asdict(full) | {"wake_ups_a_second": full_wakes},
    }
    return figures, [
        Verdict("bytes a parked job", full.bytes_a_job, MAX_BYTES, False),
        Verdict("start with 100,000 parked: more s", more_s, MAX_START_S, False),
        Verdict("wake-ups/s of 100,000 parked", more_wakes, MAX_WAKE_UPS, False),
    ]


def _start(directory: Path, jobs: int, rounds: int, empty_mb: float) -> tuple[Restart, float]:
    """The quickest start, and the wake-ups of one more."""
    question = b"inspect job %b\r\n" % job_id(max(jobs - 1, 0))
    expected = b"+OK 1" if jobs else b"-NOT-FOUND"
    size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    best = quickest_start(
        lambda: journeyman(directory),
        lambda port: ask_once(port, question, expected),
        Loaded(jobs, size, empty_mb),
        rounds,
    )
    with journeyman(directory) as server:
        time.sleep(SETTLE_S)
        return best, wake_ups_a_second(server.process_id, LOOK_S)


def _park(port: int) -> None:
    """Over many connections at a time: each park of a connection waits for that before it."""
    with ThreadPoolExecutor(PARKERS) as threads:
        list(threads.map(lambda number: _park_some(port, number), range(PARKERS)))


def _park_some(port: int, parker: int) -> None:
    """Add, lease and park jobs of a queue of its own, some at a time."""
    share = PARKED // PARKERS
    queue = b"parked-%d" % parker
    with socket.create_connection(("127.0.0.1", port)) as client, client.makefile("rb") as replies:
        for begin in range(parker * share, (parker + 1) * share, AT_A_TIME):
            ids = [job_id(number) for number in range(begin, begin + AT_A_TIME)]
            add = b"add %b %b 60000 604800000 0\r\n\r\n"
            client.sendall(b"".join(add % (each, queue) for each in ids))
            _expect(replies, [b"+OK\r\n"] * AT_A_TIME)
            client.sendall(b"lease %b 0 -max=%d\r\n" % (queue, AT_A_TIME))
            _expect(replies, [b"+OK %d\r\n" % AT_A_TIME])
            for _ in range(2 * AT_A_TIME):  # a line and an empty payload of each
                replies.readline()
            client.sendall(b"".join(map(_park_line, ids)))
            _expect(replies, [b"+OK\r\n"] * AT_A_TIME)


def _park_line(job: bytes) -> bytes:
    wait = b'{"step":"sleep","number":1,"within_ms":%d}' % MONTH_MS
    if job[7] % 2:
        wait = b'{"step":"wait_for:approval:%b","number":1,"event":"approval:%b"}' % (job, job)
    return b"park %b %d -attempt=1\r\n%b\r\n" % (job, len(wait), wait)


def _expect(replies: Any, lines: list[bytes]) -> None:
    for line in lines:
        if (found := replies.readline()) != line:
            raise SystemExit(f"the server answers {found!r}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
