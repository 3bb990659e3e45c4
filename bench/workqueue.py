"""How fast is the work queue, and how does it compare? In one run, on one disk.

    python -m bench.workqueue [--directory ON_A_DISK] [--rounds 3]

    cycles      add, lease, complete beside beanstalkd's put, reserve, delete; 50 connections, one
                step after another. Durable before it is answered (always, -f0), and synced by the
                clock (interval, beanstalkd's default)
    restart     time to the first answer and memory with a million waiting jobs of 100 bytes; and,
                without a bar, with a million of which most have finished, 3.7 million records

The subjects take turns, some short rounds each, and the best round of each counts. Load comes from
another process (workqueue_load.py); ``generator`` is the part of a core that it needed.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench import peers, workqueue_peers
from bench.verdicts import Verdict, ask_all, best_of, read_options
from bench.workqueue_load import measure
from bench.workqueue_restart import (
    measure_finished_restart,
    measure_restart,
)

SECONDS = 2.0
CONNECTIONS = 50
CYCLE_BARS = {"always": 5.0, "interval": 1.0}
MILLION = 1_000_000
FINISHED_RECORDS = 3_700_000
FIRST_ANSWER_BAR_S = 1.6
MEMORY_BAR = 420
RUN_JOBS = 10_000_000  # numbers that one run of the load may use


def cycles(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    figures: dict[str, Any] = {}
    verdicts = []
    for policy, bar in CYCLE_BARS.items():
        with ExitStack() as stack:
            every = (
                workqueue_peers.journeyman(directory / policy / "journeyman", policy),
                workqueue_peers.beanstalkd(directory / policy / "beanstalkd", policy),
            )
            servers = [stack.enter_context(server) for server in every if server is not None]

            def load(server: peers.Peer) -> Any:
                return lambda number: measure(
                    server.name,
                    server.port,
                    connections=CONNECTIONS,
                    seconds=SECONDS,
                    first=number * RUN_JOBS,
                )

            best = best_of(rounds, {server.name: load(server) for server in servers})
        ours = best["journeyman"].per_second
        print(f"cycles, {policy}")
        for name, rate in best.items():
            print(f"  {name:<12}{rate.per_second:>10,.0f}/s   generator {rate.cpu:.0%}")
        peer = best.get("beanstalkd")
        ratio = round(ours / peer.per_second, 2) if peer else None
        figures[policy] = {
            name: {"per_second": round(rate.per_second), "generator_cpu": round(rate.cpu, 2)}
            for name, rate in best.items()
        }
        verdicts.append(Verdict(f"cycles, {policy}: times beanstalkd", ratio, bar, True))
    return figures, verdicts


def restart(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    empty = measure_restart(directory / "empty", 0, rounds)
    million = measure_restart(directory / "million", MILLION, rounds, empty.resident_mb)
    print(
        f"start with a million waiting jobs ({million.log_mb:.0f} MB): "
        f"first answer {million.first_answer_s:.2f} s, resident {million.resident_mb:.0f} MB, "
        f"peak {million.peak_mb:.0f} MB, {million.bytes_a_job} bytes a job"
    )
    print(f"  without jobs {empty.first_answer_s:.2f} s, {empty.resident_mb:.0f} MB")
    finished = measure_finished_restart(
        directory / "finished", MILLION, FINISHED_RECORDS, rounds, empty.resident_mb
    )
    print(
        f"  with a million that have finished, {FINISHED_RECORDS:,} records "
        f"({finished.log_mb:.0f} MB): {finished.first_answer_s:.2f} s, "
        f"{finished.resident_mb:.0f} MB"
    )
    verdicts = [
        Verdict("first answer, s", million.first_answer_s, FIRST_ANSWER_BAR_S, False),
        Verdict("bytes a job", million.bytes_a_job, MEMORY_BAR, False),
    ]
    starts = {"empty": empty, "million": million, "finished": finished}
    return {name: asdict(start) for name, start in starts.items()}, verdicts


QUESTIONS = {"cycles": cycles, "restart": restart}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.workqueue", description="See above.")
    options = read_options(parser, QUESTIONS, arguments)
    figures: dict[str, Any] = {
        "file_system": peers.file_system(Path(options.directory)),
        "beanstalkd": peers.version_of("beanstalkd", "-v"),
        "seconds": SECONDS,
        "connections": CONNECTIONS,
    }
    asked = {name: partial(ask, rounds=options.rounds) for name, ask in QUESTIONS.items()}
    return ask_all("workqueue", asked, figures, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
