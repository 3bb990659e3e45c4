"""What do single upserts of many threads cost, by engine? Beside the engine's own plain batches.

    python -m bench.upserts [--directory ON_A_DISK] [--rounds 3] [--only postgres]

    threads   one job an upsert, by 16 threads at once: what group commit makes of it
    batch     the same jobs with all indexes and counters, 1,000 of one commit
    plain     the record of each job alone as a key and a value, in turns of 16, by the engine

Every commit is synced; PostgreSQL runs with its defaults for that.
"""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import peers, storage
from bench.task_peers import durable_postgres
from bench.verdicts import Verdict, ask_all, read_options
from journeyman.formats.keyspace.values import encode_value
from journeyman.storage import Storage
from journeyman.storage.records import job_key

BARS = {"rocksdb": 20_000, "sqlite": 8_000, "postgres": 2_000}
BATCHED_JOBS = 10_000
PLAIN_JOBS = 4_000


def _plain(store: Storage) -> float:
    lots = storage.jobs(PLAIN_JOBS, seed=7)
    entries = [(job_key(job.job_uuid), encode_value(job)) for lot in lots for job in lot]
    size = storage.THREADS
    turns = [dict(entries[at : at + size]) for at in range(0, PLAIN_JOBS, size)]

    def run() -> None:
        for turn in turns:
            store.backend.write(turn)

    rate = storage.rate(run, PLAIN_JOBS)
    store.backend.write(dict.fromkeys(key for key, _ in entries))
    return rate


def measure(engine: str, directory: Path, rounds: int) -> tuple[dict[str, Any], list[Verdict]]:
    with ExitStack() as stack:
        path = str(directory / engine)
        if engine == "postgres":
            path = durable_postgres(directory / "cluster", stack)
        store = stack.enter_context(Storage.open(engine, path))
        found: dict[str, float] = {}
        for number in range(rounds):
            for name, figure in (
                ("plain", _plain(store)),
                ("batch", storage.fill(store, BATCHED_JOBS, seed=1000 + number)[1]),
                ("threads", storage.by_threads(store, first_seed=100 * (number + 1))),
            ):
                found[name] = max(found.get(name, 0), figure)
    print(f"{engine:<10}", "  ".join(f"{name} {rate:,.0f}/s" for name, rate in found.items()))
    figures = {name: round(rate) for name, rate in found.items()}
    return figures, [Verdict(f"{engine}, upserts a second", figures["threads"], BARS[engine], True)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.upserts", description="See above.")
    options = read_options(parser, BARS, arguments)
    figures = {"cores": os.cpu_count(), "file_system": peers.file_system(Path(options.directory))}

    def question(engine: str) -> Any:
        return lambda place: measure(engine, place, options.rounds)

    return ask_all("upserts", {engine: question(engine) for engine in BARS}, figures, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
