"""The cells of postgresql-job-queue-benchmarking, with its adapter of Journeyman, on this machine.

    python -m bench.queue_contract                     all cells
    python -m bench.queue_contract postgres_restart    these cells
    python -m bench.queue_contract --times 0.5         phases of half of their length

    throughput_W        one replica, W jobs at a time; as many as keep 4,000 waiting
    postgres_restart    one replica, 600 jobs a second; the database is away for half of the fault
    pg_backend_kill     the same; busy sessions of the database are ended twice a second
    pool_exhaustion     the same; 300 idle connections are held
    crash_recovery      two replicas, 300 each; that of the active server is killed, then started
    repeated_kills      the same; killed and started every 20 seconds

The phases and loads are those of that benchmark's sweep of 2026-05-09: 30 s to warm up, 60 s as a
baseline, the fault, 60 s of recovery. Its own harness needs Docker; here PostgreSQL is the one that
Debian has, on the cores that everything else runs on. That benchmark estimates what was lost from
counters. Here each acknowledged job is noted by its name, and so is each one that was done.
Results go to bench/results/queue_contract.json, where those of other cells stay.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

import psycopg
from tests.support.programs import find_program

from bench.peers import free_port
from bench.queue_contract.published import WORKERS, tables
from bench.report import write_result
from bench.task_peers import DurablePostgres

RESULTS = Path(__file__).parent.parent / "results" / "queue_contract.json"
DATABASE = "journeyman_bench"
SAMPLE_S = 1
WARMUP_S, BASELINE_S, RECOVERY_S = 30.0, 60.0, 60.0
MEASURED_S = 60.0  # of a cell of throughput
DRAIN_S = 120.0  # for what is left when nothing is sent any more
KILL_EVERY_S = 20.0
IDLE_CONNECTIONS = 300
TARGET_DEPTH = 4_000


class RoomyPostgres(DurablePostgres):
    """It allows as many connections as the other benchmark's; the rest are defaults."""

    def _run(self) -> None:
        cluster, port = str(self._data / "cluster"), str(self.port)
        self.spawn(
            find_program("postgres"),
            *("-D", cluster, "-p", port, "-h", "127.0.0.1", "-k", str(self._data)),
            *("-c", "max_connections=400", "-c", "shared_buffers=256MB"),
            user=self._user,
        )

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(
            f"host=127.0.0.1 port={self.port} user=journeyman dbname={database}", autocommit=True
        )


class Replica:
    """One process of the adapter, which is started again and again under the same number."""

    def __init__(self, number: int, place: Path, environment: dict[str, str]) -> None:
        self._environment = environment | {
            "BENCH_INSTANCE_ID": str(number),
            "JOURNEYMAN_BENCH_NOTES": str(place / f"notes-{number}"),
        }
        self._log = (place / f"replica-{number}.log").open("ab")
        self.completed: list[tuple[float, float]] = []  # when, and how many a second
        self.latencies: list[tuple[float, float]] = []  # when, and the p99 in ms

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.queue_contract.adapter"],
            env=self._environment, stdout=subprocess.PIPE, stderr=self._log, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            sample = json.loads(line)
            now_s = time.monotonic()
            if sample.get("metric") == "completion_rate":
                self.completed.append((now_s, sample["value"]))
            elif sample.get("metric") == "claim_p99_ms":
                self.latencies.append((now_s, sample["value"]))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
            return
        self.kill()


class Cell:
    """A database, replicas of the adapter, and what they said. ``times`` scales all phases."""

    def __init__(
        self, stack: ExitStack, times: float, replicas: int, **environment: object
    ) -> None:
        self.place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        self.times = times
        self.database = RoomyPostgres(self.place / "postgres")
        self.database.start()
        stack.callback(self.database.stop)
        with self.database.connect() as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        self.rate_file = self.place / "rate"
        settings = {
            "DATABASE_URL": f"postgres://journeyman@127.0.0.1:{self.database.port}/{DATABASE}",
            "SCENARIO": "long_horizon",
            "SAMPLE_EVERY_S": SAMPLE_S,
            "WORKER_COUNT": 32,
            "JOURNEYMAN_PORT": free_port(),
            "PRODUCER_RATE_CONTROL_FILE": self.rate_file,
            **environment,
        }
        self.rate_file.write_text(str(settings.get("PRODUCER_RATE", "")))
        words = dict(os.environ) | {key: str(value) for key, value in settings.items()}
        self.replicas = [Replica(number, self.place, words) for number in range(replicas)]
        for replica in self.replicas:
            replica.start()
            stack.callback(replica.stop)
            time.sleep(3)  # the first one is active

    def phase(
        self, seconds: float, during: Callable[[float], None] = time.sleep
    ) -> tuple[float, float]:
        """From when to when ``during`` worked; it gets how long that is to be."""
        begun_s = time.monotonic()
        during(seconds * self.times)
        return begun_s, time.monotonic()

    def completions(self, phase: tuple[float, float]) -> float:
        """Completed jobs per second of all replicas: the median of the samples of a phase."""
        by_second = Counter[int]()
        for replica in self.replicas:
            for at_s, rate in replica.completed:
                if phase[0] < at_s <= phase[1]:
                    by_second[int(at_s - phase[0]) // SAMPLE_S] += round(rate)
        seconds = int(phase[1] - phase[0]) // SAMPLE_S
        return statistics.median(by_second[second] for second in range(seconds))

    def latency_ms(self, phase: tuple[float, float]) -> float:
        its = [
            ms
            for each in self.replicas
            for at_s, ms in each.latencies
            if phase[0] < at_s <= phase[1]
        ]
        return round(statistics.median(its), 1) if its else float("nan")

    def count_lost(self) -> dict[str, int]:
        """Stop sending, wait until everything that was acknowledged is done, and count."""
        self.rate_file.write_text("0")
        end_s = time.monotonic() + DRAIN_S
        while (counts := self._count())["lost"] and time.monotonic() < end_s:
            time.sleep(1)
        return counts

    def _count(self) -> dict[str, int]:
        sent, done = set[str](), Counter[str]()
        for path in self.place.glob("notes-*"):
            # The last line of a process that was killed may be a part of one.
            for line in path.read_text().splitlines(keepends=True):
                what, _, name = line.partition(" ")
                if line.endswith("\n"):
                    sent.add(name) if what == "sent" else done.update([name])
        twice = sum(count > 1 for count in done.values())
        return {"acknowledged": len(sent), "lost": len(sent - done.keys()), "done_twice": twice}


def throughput(workers: int, times: float) -> dict[str, Any]:
    """How many jobs a second one replica completes, with so many at a time."""
    with ExitStack() as stack:
        cell = Cell(
            stack, times, 1,
            PRODUCER_MODE="depth-target", TARGET_DEPTH=TARGET_DEPTH, WORKER_COUNT=workers,
        )  # fmt: skip
        cell.phase(WARMUP_S / 2)
        measured = cell.phase(MEASURED_S)
        return {"jobs_per_second": cell.completions(measured)}


def chaos(fault: str, times: float) -> dict[str, Any]:
    """One cell of chaos: how much of the baseline is completed afterwards, and what was lost."""
    replicas, seconds, cause = FAULTS[fault]
    with ExitStack() as stack:
        cell = Cell(stack, times, replicas, PRODUCER_RATE=600 // replicas)
        cell.phase(WARMUP_S)
        baseline = cell.phase(BASELINE_S)
        cell.phase(seconds, lambda for_s: cause(cell, for_s))
        recovery = cell.phase(RECOVERY_S)
        before, after = cell.completions(baseline), cell.completions(recovery)
        return {
            "baseline": before,
            "recovery": after,
            "ratio": round(after / before, 2) if before else 0.0,
            "claim_p99_ms": cell.latency_ms(baseline),
            **cell.count_lost(),
        }


def restart_database(cell: Cell, for_s: float) -> None:
    cell.database.halt()
    time.sleep(for_s / 2)
    cell.database.resume()
    time.sleep(for_s / 2)


def end_sessions(cell: Cell, for_s: float) -> None:
    end_s = time.monotonic() + for_s
    with cell.database.connect() as connection:
        while time.monotonic() < end_s:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
                " AND pid <> pg_backend_pid() AND state IN ('active', 'idle in transaction')",
                (DATABASE,),
            )
            time.sleep(0.5)


def hold_connections(cell: Cell, for_s: float) -> None:
    with ExitStack() as stack:
        for _ in range(IDLE_CONNECTIONS):
            stack.enter_context(cell.database.connect(DATABASE))
        time.sleep(for_s)


def kill_once(cell: Cell, for_s: float) -> None:
    cell.replicas[0].kill()
    time.sleep(for_s / 2)
    cell.replicas[0].start()
    time.sleep(for_s / 2)


def kill_often(cell: Cell, for_s: float) -> None:
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        cell.replicas[0].kill()
        cell.replicas[0].start()
        time.sleep(KILL_EVERY_S * cell.times)


# By name: how many replicas there are, how many seconds it lasts, and what is done meanwhile.
FAULTS: dict[str, tuple[int, float, Callable[[Cell, float], None]]] = {
    "postgres_restart": (1, 60.0, restart_database),
    "pg_backend_kill": (1, 60.0, end_sessions),
    "pool_exhaustion": (1, 60.0, hold_connections),
    "crash_recovery": (2, 120.0, kill_once),
    "repeated_kills": (2, 120.0, kill_often),
}


def main() -> None:
    cells = [*(f"throughput_{count}" for count in WORKERS), *FAULTS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", choices=[*cells, []], metavar="CELL")
    parser.add_argument("--times", type=float, default=1.0, help="scales the length of each phase")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    figures = json.loads(RESULTS.read_text())["figures"] if RESULTS.exists() else {}
    for name in options.cells or cells:
        _, is_throughput, workers = name.partition("throughput_")
        if is_throughput:
            figures[name] = throughput(int(workers), options.times)
        else:
            figures[name] = chaos(name, options.times)
        figures[name]["times"] = options.times
        print(f"{name:18}{figures[name]}", flush=True)
        write_result("queue_contract", figures)
    print(tables(figures))


if __name__ == "__main__":
    main()
