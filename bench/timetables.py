"""What do 100,000 timetables cost: the start, the memory of each, and a thousand at one second.

    python -m bench.timetables

start     from exec to the first answer, beyond a server without timetables; the best of the rounds.
          Processor time is printed beside it, because other programs count little in that
memory    resident a few seconds later, when all have been checked, beyond the same server
firing    1,000 of the 100,000 are due at the same second; from that second to the start of the
          last run, as the history of runs has it. Their runner is ``queue``: a run is as short as
          it can be, and still durable. Programs take as long as the machine needs to start them.

Each timetable has an expression of its own, one of five zones, and a runner of its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from bench import peers
from bench.starts import Loaded, Restart, ask_once, quickest_start
from bench.verdicts import Verdict, ask_all, read_options
from journeyman.clock import SystemClock
from journeyman.disk import RealDisk
from journeyman.engines.ztick.engine import ZtickEngine
from journeyman.formats.ztick import Record
from journeyman.logs.ledger import LedgerLog
from journeyman.logs.ztick.log import ZtickLog
from journeyman.protocols.ztick.commands import SetTimetable
from journeyman.protocols.ztick.grammar import read_timetable
from journeyman.units import NS_PER_MS, NS_PER_S

TIMETABLES = 100_000
AT_ONCE = 1_000
LEAD_S = 45  # until those are due: the server has to be up by then
BATCH = 5_000
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Tokyo", "Australia/Sydney")
FIRING_LIMIT_S = 120.0
LOG, LEDGER = "logfile", "ledger"

Question = Callable[[Path], tuple[Any, list[Verdict]]]

MAX_START_S = 2.0
MAX_BYTES = 1_000
MAX_LAST_START_S = 1.0


def recurring(number: int) -> dict[str, Any]:
    minute, hour, day = number % 60, number // 60 % 24, number % 7
    return {
        "cron": f"{minute} {hour} * * {day}",
        "tz": ZONES[number % len(ZONES)],
        "catch_up": "none",
        "runner": ["shell", f"/usr/local/bin/report --customer {number:06d}"],
    }


def write_state(directory: Path, count: int) -> None:
    """The ledger and the log of a server that was told of these timetables; the last of them, if
    there are as many, are due at the same second, a little later."""
    disk, clock = RealDisk(), SystemClock()
    ledger = LedgerLog.open(disk, clock, str(directory / LEDGER))
    log = ZtickLog.open(disk, clock, str(directory / LOG))
    engine = ZtickEngine()
    for begin in range(0, count, BATCH):
        due = datetime.fromtimestamp(clock.now_ns() // NS_PER_S + LEAD_S, UTC).isoformat()
        engine.begin_batch()
        records: list[Record] = []
        for number in range(begin, min(begin + BATCH, count)):
            name = f"service{number % 100:02d}.task.{number:06d}"
            fields = recurring(number)
            if number >= TIMETABLES - AT_ONCE:
                fields = {"every": "1d", "anchor": due, "runner": ["queue", "bench"]}
            command = SetTimetable(b"r", name, *read_timetable(fields))
            records += engine.decide(command, clock.now_ns()).records
        ledger.append(engine.take_ledger())
        log.append(records)
        engine.commit_batch()
    ledger.close()
    log.close()


def server(directory: Path) -> peers.Peer:
    port = peers.free_port()
    settings = {
        "controller.listen": f"127.0.0.1:{port}",
        "http.enabled": "false",
        "kestrel.enabled": "false",
        "workq.enabled": "true",
        "workq.listen": "127.0.0.1:0",
        "workq.cmdlog_path": "cmdlog",
        "database.logfile_path": LOG,
        "database.compression_interval": "0",
        "ledger.enabled": "true",
        "ledger.path": LEDGER,
    }
    command = [sys.executable, "-m", "journeyman", "serve"]
    for name, value in settings.items():
        command += ["--set", f"{name}={value}"]
    return peers.Peer("journeyman", command, port, directory)


def measure_start(
    directory: Path, count: int, rounds: int, empty_mb: float = 0.0
) -> tuple[Restart, float]:
    """The quickest start, and the least processor time that one took."""
    directory.mkdir(parents=True)
    write_state(directory, count)
    servers: list[peers.Peer] = []
    processor_s: list[float] = []

    def made() -> peers.Peer:
        servers.append(server(directory))
        return servers[-1]

    def ask(port: int) -> None:
        ask_once(port, b"r TIMETABLE GET none\n", b"r ERROR not_found")
        processor_s.append(servers[-1].cpu_seconds())

    size = (directory / LOG).stat().st_size
    found = quickest_start(made, ask, Loaded(count, size, empty_mb), rounds)
    shutil.rmtree(directory)
    return found, min(processor_s)


def ask_start(directory: Path, rounds: int) -> tuple[Any, list[Verdict]]:
    empty, empty_s = measure_start(directory / "empty", 0, rounds)
    count = TIMETABLES - AT_ONCE
    full, full_s = measure_start(directory / "full", count, rounds, empty.resident_mb)
    more_s = round(full.first_answer_s - empty.first_answer_s, 3)
    print(f"start  {empty.first_answer_s} s without, {full.first_answer_s} s with {count:,}")
    print(f"       {empty_s:.2f} s of processor without, {full_s:.2f} s with")
    print(f"memory {empty.resident_mb} MB without, {full.resident_mb} MB with")
    verdicts = [
        Verdict("start with 100,000 timetables: more s", more_s, MAX_START_S, False),
        Verdict("bytes a timetable", full.bytes_a_job, MAX_BYTES, False),
    ]
    processor_s = {"empty": round(empty_s, 2), "full": round(full_s, 2)}
    return {"empty": asdict(empty), "full": asdict(full), "processor_s": processor_s}, verdicts


def ask_firing(directory: Path) -> tuple[Any, list[Verdict]]:
    """How late those begin that are due at the same second."""
    write_state(directory, TIMETABLES)
    late_ms: list[float] = []
    with server(directory):
        deadline = time.monotonic() + FIRING_LIMIT_S
        while len(late_ms) < AT_ONCE and time.monotonic() < deadline:
            time.sleep(0.5)
            late_ms = sorted(_lateness(directory))
    if len(late_ms) < AT_ONCE:
        raise SystemExit(f"only {len(late_ms)} of {AT_ONCE} have run")
    figures = {
        "first_ms": round(late_ms[0], 1),
        "median_ms": round(late_ms[AT_ONCE // 2], 1),
        "last_ms": round(late_ms[-1], 1),
    }
    print(f"{AT_ONCE} at one second: {figures}")
    last_s = round(late_ms[-1] / 1000, 3)
    return figures, [Verdict("last of 1,000 starts after: s", last_s, MAX_LAST_START_S, False)]


def _lateness(directory: Path) -> list[float]:
    found = []
    for path in (directory / f"{LOG}.runs").glob("*.jsonl"):
        for line in path.read_text().splitlines():
            run = json.loads(line)
            if run["runner"] == "queue":
                found.append((run["started_ns"] - run["execution_ns"]) / NS_PER_MS)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The cost of many timetables.")
    options = read_options(parser, ("start", "firing"), arguments)
    start = partial(ask_start, rounds=options.rounds)
    questions: dict[str, Question] = {"start": start, "firing": ask_firing}
    return ask_all("timetables", questions, {}, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
