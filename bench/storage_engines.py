"""Which engine should be the default of the store? Raw engines, with keys as the store writes them.

    python -m bench.storage_engines [--directory ON_A_DISK] [--jobs 500000]

A job is five keys: its record, its status, and places in three indexes. They are written durably,
1,000 jobs of a commit, each after a look whether the job is there. Record and status have random
ids, so most writes go to places that have nothing to do with each other: what a B-tree likes least.
Told are the first and the last fifth of the jobs, and the room they take.

It decided docs/adr/logs.md, 8; it has no bar.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from bench import peers, report
from journeyman.formats.keyspace.values import JobRecord
from journeyman.storage.records import entries_of, job_key

JOBS = 500_000
BATCH = 1000
STARTED_NS = 1_794_800_000_000_000_000

Entry = tuple[bytes, bytes]
Write = Callable[[list[bytes], list[Entry]], None]  # keys to look at, and what to write


def batches(count: int) -> Iterator[tuple[list[bytes], list[Entry]]]:
    chance = random.Random(1)
    for first in range(0, count, BATCH):
        looks: list[bytes] = []
        entries: list[tuple[bytes, bytes]] = []
        for number in range(first, first + BATCH):
            uuid = UUID(int=chance.getrandbits(128), version=4)
            at_ns = STARTED_NS + number * 1_000_000
            job = JobRecord(
                uuid, f"mail:{uuid}", "mail", "waiting", at_ns, at_ns, payload='{"n":1}'
            )
            looks.append(job_key(uuid))
            entries += entries_of(job).items()
        yield looks, sorted(entries)


def rocksdb(directory: Path) -> Write:
    from rocksdict import Options, Rdict, WriteBatch, WriteOptions

    db, synced = Rdict(str(directory), Options(raw_mode=True)), WriteOptions()
    synced.sync = True

    def write(looks: list[bytes], entries: list[Entry]) -> None:
        db.get([*looks])
        batch = WriteBatch(raw_mode=True)
        for key, value in entries:
            batch.put(key, value)
        db.write(batch, synced)

    return write


def lmdb(directory: Path) -> Write:
    import lmdb as library

    env = library.open(str(directory), map_size=1 << 36)

    def write(looks: list[bytes], entries: list[Entry]) -> None:
        with env.begin(write=True) as turn:
            for key in looks:
                turn.get(key)
            for key, value in entries:
                turn.put(key, value)

    return write


def sqlite(directory: Path) -> Write:
    db = sqlite3.connect(directory / "store", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE kv(k BLOB PRIMARY KEY, v BLOB NOT NULL) WITHOUT ROWID")

    def write(looks: list[bytes], entries: list[Entry]) -> None:
        db.execute("BEGIN IMMEDIATE")
        for key in looks:
            db.execute("SELECT v FROM kv WHERE k = ?", (key,)).fetchone()
        db.executemany("INSERT OR REPLACE INTO kv VALUES(?, ?)", entries)
        db.execute("COMMIT")

    return write


def measure(engine: Callable[[Path], Write], directory: Path, count: int) -> dict[str, Any]:
    directory.mkdir()
    write = engine(directory)
    took = []
    for looks, entries in batches(count):
        began = time.perf_counter()
        write(looks, entries)
        took.append(time.perf_counter() - began)
    fifth = max(len(took) // 5, 1)
    size = sum(path.stat().st_blocks * 512 for path in directory.iterdir())
    return {
        "first_fifth_per_second": round(fifth * BATCH / sum(took[:fifth])),
        "last_fifth_per_second": round(fifth * BATCH / sum(took[-fifth:])),
        "size_mb": round(size / 1e6),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.storage_engines", description="See above."
    )
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--jobs", type=int, default=JOBS, help="written to each (500,000)")
    options = parser.parse_args(arguments or [])
    place = Path(tempfile.mkdtemp(dir=options.directory, prefix="bench-"))
    figures: dict[str, Any] = {
        "jobs": options.jobs,
        "file_system": peers.file_system(Path(options.directory)),
    }
    try:
        for engine in (rocksdb, lmdb, sqlite):
            figures[engine.__name__] = measure(engine, place / engine.__name__, options.jobs)
            print(f"{engine.__name__:<10}{figures[engine.__name__]}")
    finally:
        shutil.rmtree(place)
    if options.jobs == JOBS:
        print(report.write_result("storage_engines", figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
