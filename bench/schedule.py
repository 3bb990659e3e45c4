"""How fast is the schedule, and how does it compare? In one run, on one disk.

    python -m bench.schedule [--directory ON_A_DISK] [--rounds 3]

    durable SETs     1 and 50 connections, request and response; one connection, 100 at a time;
                     beside beanstalkd's put and Redis's ZADD, every one of them durable before it
                     is answered, and beside the disk: 30 bytes written and synced, in a loop,
                     appended to a file (disk) and into one that is full of zeros (zeros)
    many jobs        time to the first answer and memory with 0.1, 1 and 5 million planned jobs
    SETs among many  the rate with a million planned jobs against that with a thousand
    lateness         from the due time to the start of the run, 200 jobs a second
    crowd            10,000 programs due within one second: how long a GET takes meanwhile
    idle             memory and wake-ups of a server that is asked nothing

The subjects take turns, some short rounds each, and the best round of each counts. Load comes from
another process (schedule_load.py); ``generator`` is the part of a core that it needed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bench import peers
from bench.generator import Rate
from bench.idle import measure_idle
from bench.schedule_crowd import measure_crowd
from bench.schedule_lateness import Lateness, measure_lateness
from bench.schedule_load import measure
from bench.schedule_restart import LOG, measure_restart, write_log
from bench.starts import Restart
from bench.verdicts import Verdict, ask_all, best_of, read_options

SECONDS = 2.0
SHAPES = {  # connections, depth
    "1 connection": (1, 1),
    "50 connections": (50, 1),
    "pipelined by 100": (1, 100),
}
BARS = {  # shape: beside whom, how many times
    "1 connection": {"zeros": 0.7},
    "50 connections": {"beanstalkd": 2.0, "redis": 1.0},
    "pipelined by 100": {"beanstalkd": 10.0, "redis": 1.0},
}
RESTARTS = (100_000, 1_000_000, 5_000_000)
MILLION, THOUSAND = 1_000_000, 1_000
FIRST_ANSWER_BAR_S = 1.4
LINEAR_BAR = 1.2  # a job of five million takes at most this many times as long as one of a million
MEMORY_BAR = 300
AMONG_MANY_BAR = 0.8
LATE_PER_SECOND, LATE_SECONDS = 200, 4.0
LATE_P50_BAR_MS, LATE_P99_BAR_MS = 1.0, 4.0
CROWD_JOBS, CROWD_BAR_MS = 10_000, 50.0
IDLE_BAR_MB, WAKE_UPS_BAR = 45.0, 1.0
RECORD = b"x" * 30
ZEROS = 4 * 1024 * 1024


def sync_rate(directory: Path, *, zeros: int = 0) -> float:
    """Writes a second, each synced: appended, or into so many zeros."""
    path = directory / "written"
    file = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.write(file, bytes(zeros))
    os.fsync(file)
    os.lseek(file, 0, os.SEEK_SET)
    count, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + SECONDS:
        os.write(file, RECORD)
        os.fdatasync(file)
        count += 1
    took_s = time.perf_counter() - begin
    os.close(file)
    path.unlink()
    return count / took_s


def durable_sets(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    figures: dict[str, Any] = {}
    verdicts = []
    with ExitStack() as stack:
        every = (
            peers.journeyman(directory / "journeyman"),
            peers.beanstalkd(directory / "beanstalkd"),
            peers.redis(directory / "redis"),
        )
        servers = [stack.enter_context(server) for server in every if server is not None]
        for shape, (connections, depth) in SHAPES.items():

            def load(server: peers.Peer, c: int = connections, d: int = depth) -> Any:
                return lambda number: measure(
                    server.name,
                    server.port,
                    connections=c,
                    depth=d,
                    seconds=SECONDS,
                    first=(number * len(SHAPES) + [*SHAPES.values()].index((c, d))) * 10_000_000,
                )

            subjects = {server.name: load(server) for server in servers}
            subjects["disk"] = lambda _: Rate(sync_rate(directory), 0.0)
            subjects["zeros"] = lambda _: Rate(sync_rate(directory, zeros=ZEROS), 0.0)
            best = best_of(rounds, subjects)
            figures[shape] = _rates(best)
            ours = best["journeyman"].per_second
            print(f"durable SET, {shape}")
            for name, rate in best.items():
                ratio = f"{ours / rate.per_second:6.2f}x" if name != "journeyman" else ""
                needed = f"generator {rate.cpu:.0%}" if rate.cpu else ""
                print(f"  {name:<12}{rate.per_second:>10,.0f}/s  {ratio:<8}  {needed}".rstrip())
            for name, bar in BARS[shape].items():
                times = round(ours / best[name].per_second, 2) if name in best else None
                verdicts.append(Verdict(f"{shape}: times {name}", times, bar, True))
    return figures, verdicts


def _rates(best: dict[str, Rate]) -> dict[str, Any]:
    ours = best["journeyman"].per_second
    return {
        name: {
            "per_second": round(rate.per_second),
            "generator_cpu": round(rate.cpu, 2),
            "journeyman_is": round(ours / rate.per_second, 2),
        }
        for name, rate in best.items()
    }


def restarts(directory: Path, rounds: int) -> tuple[list[dict[str, Any]], list[Verdict]]:
    empty = measure_restart(directory / "restart", 0, rounds)
    found: dict[int, Restart] = {}
    print("start with planned jobs          first answer   resident      peak   bytes a job")
    for jobs in RESTARTS:
        # The largest takes long, and a round of it says as much as three of the others.
        restart = measure_restart(
            directory / "restart", jobs, rounds if jobs <= MILLION else 1, empty.resident_mb
        )
        found[jobs] = restart
        print(
            f"  {jobs:>10,} ({restart.log_mb:>5.1f} MB) {restart.first_answer_s:>16.2f} s"
            f"{restart.resident_mb:>8.0f} MB{restart.peak_mb:>7.0f} MB{restart.bytes_a_job:>12}"
        )
    print(f"  without jobs {empty.first_answer_s:.2f} s, {empty.resident_mb:.0f} MB")
    one, five = found[RESTARTS[1]], found[RESTARTS[2]]
    steeper = five.first_answer_s / five.jobs / (one.first_answer_s / one.jobs)
    verdicts = [
        Verdict("first answer with a million, s", one.first_answer_s, FIRST_ANSWER_BAR_S, False),
        Verdict("time a job, 5 million to 1", round(steeper, 2), LINEAR_BAR, False),
        Verdict("bytes a job with a million", one.bytes_a_job, MEMORY_BAR, False),
    ]
    return [asdict(each) for each in (empty, *found.values())], verdicts


def among_many(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    """Jobs that are there are set again, so that there stay as many as there are."""
    figures: dict[str, Any] = {}
    verdicts = []
    with ExitStack() as stack:
        servers = {}
        for jobs in (THOUSAND, MILLION):
            place = directory / f"among-{jobs}"
            place.mkdir()
            write_log(place / LOG, jobs)
            settings = {"database.compression_interval": 0}
            servers[jobs] = stack.enter_context(peers.journeyman(place, settings))
        for shape, (connections, depth) in SHAPES.items():

            def load(jobs: int, c: int = connections, d: int = depth) -> Any:
                port = servers[jobs].port
                return lambda number: measure(
                    "journeyman",
                    port,
                    connections=c,
                    depth=d,
                    seconds=SECONDS,
                    first=number,
                    ids=jobs,
                )

            best = best_of(rounds, {str(jobs): load(jobs) for jobs in servers})
            few, many = best[str(THOUSAND)].per_second, best[str(MILLION)].per_second
            figures[shape] = {"thousand": round(few), "million": round(many)}
            print(f"SET among a thousand jobs {few:,.0f}/s, among a million {many:,.0f}/s, {shape}")
            verdicts.append(
                Verdict(f"{shape}: a million to 1,000", round(many / few, 2), AMONG_MANY_BAR, True)
            )
    return figures, verdicts


def lateness(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    figures: dict[str, Any] = {}
    for durable in (True, False):
        found: list[Lateness] = []
        for number in range(rounds):
            place = directory / f"late-{durable}-{number}"
            found.append(
                measure_lateness(
                    place, per_second=LATE_PER_SECOND, seconds=LATE_SECONDS, durable=durable
                )
            )
        best = min(found, key=lambda each: each.p99_ms)
        how = "durable" if durable else "without syncs"
        figures[how] = asdict(best)
        print(
            f"start of the run after the due time, {how}: p50 {best.p50_ms:.2f} ms, "
            f"p90 {best.p90_ms:.2f}, p99 {best.p99_ms:.2f}, worst {best.worst_ms:.2f}"
        )
    durably = figures["durable"]
    return figures, [
        Verdict("late, p50, ms", durably["p50_ms"], LATE_P50_BAR_MS, False),
        Verdict("late, p99, ms", durably["p99_ms"], LATE_P99_BAR_MS, False),
    ]


def crowd(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    found = [measure_crowd(directory / f"crowd-{n}", jobs=CROWD_JOBS) for n in range(rounds)]
    best = min(found, key=lambda each: each.get_p99_ms)
    print(
        f"{best.jobs:,} programs due in one second, ended after {best.done_s} s; GET meanwhile: "
        f"p50 {best.get_p50_ms} ms, p99 {best.get_p99_ms}, worst {best.get_worst_ms}"
    )
    return asdict(best), [Verdict("GET in a crowd, p99, ms", best.get_p99_ms, CROWD_BAR_MS, False)]


def idle(directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    del rounds
    found = measure_idle(directory / "idle")
    print(f"idle: {found.resident_mb} MB, {found.wake_ups_a_second} wake-ups a second")
    return asdict(found), [
        Verdict("idle, MB", found.resident_mb, IDLE_BAR_MB, False),
        Verdict("idle, wake-ups a second", found.wake_ups_a_second, WAKE_UPS_BAR, False),
    ]


QUESTIONS = {
    "durable_sets": durable_sets,
    "restarts": restarts,
    "among_many": among_many,
    "lateness": lateness,
    "crowd": crowd,
    "idle": idle,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.schedule", description="See above.")
    options = read_options(parser, QUESTIONS, arguments)
    figures: dict[str, Any] = {
        "file_system": peers.file_system(Path(options.directory)),
        "beanstalkd": peers.version_of("beanstalkd", "-v"),
        "redis": peers.version_of("redis-server", "--version"),
        "seconds": SECONDS,
    }
    asked = {name: partial(ask, rounds=options.rounds) for name, ask in QUESTIONS.items()}
    return ask_all("schedule", asked, figures, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
