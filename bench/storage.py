"""How fast is the store, and does a page cost what it returns? Beside a plain table of SQLite.

    python -m bench.storage [--directory ON_A_DISK] [--jobs 1000000]

    upsert       new jobs with all indexes and counters, durable; 1,000 of one commit
    transition   status changes of waiting jobs, in the order they came; 1,000 of one commit
    threads      upserts of one job each by 16 threads, which take turns
    page         50 jobs of a queue and status, by number and by cursor, anywhere among all jobs
    open         from nothing to the first answer, with all jobs in the store

The peer is one table in SQLite (WAL, synchronous=FULL) with the columns of a job, its record and an
index on queue, status and creation; its counters are counted, its pages are LIMIT and OFFSET. It
does the same work in the same batches on the same disk, in turns with the store.

All upserts together fill the store that the other questions are asked of. Pages are looked at
several times each, and the best look counts: so what is told is the slowest page, not the slowest
moment of the machine.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from bench import peers, report
from bench.verdicts import Verdict, print_verdicts
from journeyman.formats.keyspace.values import JobRecord, encode_value
from journeyman.storage import SetStatus, Storage, Upsert

JOBS = 1_000_000
BATCH = 1000
PEER_JOBS = 200_000
TRANSITIONS = 100_000
PAGE = 50
PAGES = 300
LOOKS = 5
THREADS = 16
THREAD_JOBS = 500
QUEUE = "mail"
STARTED_NS = 1_794_800_000_000_000_000

RATE_BAR = 20_000
PAGE_BAR_MS = 2.0
OPEN_BAR_S = 0.5


def jobs(count: int, seed: int) -> Iterator[list[JobRecord]]:
    """Seeded jobs with random ids, in batches."""
    chance = random.Random(seed)
    for first in range(0, count, BATCH):
        batch = []
        for number in range(first, min(first + BATCH, count)):
            uuid = UUID(int=chance.getrandbits(128), version=4)
            at_ns = STARTED_NS + number * 1_000_000
            payload = f'{{"to":"user{number}@example.org","template":"welcome"}}'
            batch.append(
                JobRecord(
                    uuid, f"{QUEUE}:{uuid}", QUEUE, "waiting", at_ns, at_ns, 3, 250, 0, payload
                )
            )
        yield batch


TABLE = (
    "CREATE TABLE jobs(uuid BLOB PRIMARY KEY, queue TEXT, status TEXT, created INT, start INT,"
    " record BLOB) WITHOUT ROWID"
)


class Peer:
    """The same jobs in a plain table."""

    def __init__(self, directory: Path) -> None:
        self._db = sqlite3.connect(directory / "peer.sqlite", isolation_level=None)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            TABLE,
            "CREATE INDEX listing ON jobs(queue, status, created)",
            "CREATE INDEX due ON jobs(start)",
        ):
            self._db.execute(statement)

    def upsert(self, batch: list[JobRecord]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(
            "INSERT OR REPLACE INTO jobs VALUES(?, ?, ?, ?, ?, ?)",
            [
                (
                    job.job_uuid.bytes,
                    job.queue,
                    job.status,
                    job.created_at_ns,
                    job.execution_start_ns,
                    encode_value(job),
                )
                for job in batch
            ],
        )
        self._db.execute("COMMIT")

    def transition(self, uuids: list[UUID], status: str) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(
            "UPDATE jobs SET status = ? WHERE uuid = ?", [(status, uuid.bytes) for uuid in uuids]
        )
        self._db.execute("COMMIT")

    def page(self, number: int) -> int:
        rows = self._db.execute(
            "SELECT record FROM jobs WHERE queue = ? AND status = 'waiting' ORDER BY created"
            " LIMIT ? OFFSET ?",
            (QUEUE, PAGE, (number - 1) * PAGE),
        ).fetchall()
        return len(rows)

    def close(self) -> None:
        self._db.close()


def rate(work: Callable[[], None], count: int) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def fill(storage: Storage, count: int, *, seed: int = 1) -> tuple[list[UUID], float]:
    """All jobs into the store; only the store's time counts."""
    uuids: list[UUID] = []
    took = 0.0
    for batch in jobs(count, seed=seed):
        began = time.perf_counter()
        storage.apply([Upsert(job) for job in batch])
        took += time.perf_counter() - began
        uuids += [job.job_uuid for job in batch]
    return uuids, count / took


def batches(uuids: list[UUID]) -> Iterator[list[UUID]]:
    for first in range(0, len(uuids), BATCH):
        yield uuids[first : first + BATCH]


def transitions(storage: Storage, uuids: list[UUID], status: str) -> float:
    def work() -> None:
        for batch in batches(uuids):
            storage.apply([SetStatus(uuid, status) for uuid in batch])

    return rate(work, len(uuids))


def by_threads(storage: Storage, *, first_seed: int = 100) -> float:
    """One job at a time by each of many threads."""
    lots = [list(jobs(THREAD_JOBS, seed=first_seed + number)) for number in range(THREADS)]

    def work(lot: list[list[JobRecord]]) -> None:
        for batch in lot:
            for job in batch:
                storage.upsert_job_record(job)

    threads = [threading.Thread(target=work, args=(lot,)) for lot in lots]

    def run() -> None:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return rate(run, THREADS * THREAD_JOBS)


def best_look_ms(look: Callable[[], Any]) -> float:
    def once() -> float:
        began = time.perf_counter()
        look()
        return (time.perf_counter() - began) * 1000

    return min(once() for _ in range(LOOKS))


def pages(storage: Storage) -> dict[str, float]:
    """The slowest and the middle of many pages, by number and by cursor."""
    last = storage.count(QUEUE, "waiting") // PAGE
    chance = random.Random(2)
    numbers = [1, 2, last // 2, last - 1, last, *(chance.randint(1, last) for _ in range(PAGES))]
    by_number, by_cursor = [], []
    for number in numbers:
        page = storage.list_jobs(QUEUE, "waiting", page=number, size=PAGE)
        assert len(page.jobs) == PAGE
        cursor = page.next_cursor
        by_number.append(
            best_look_ms(lambda n=number: storage.list_jobs(QUEUE, "waiting", page=n, size=PAGE))  # type: ignore[misc]
        )
        by_cursor.append(
            best_look_ms(lambda c=cursor: storage.list_jobs(QUEUE, "waiting", after=c, size=PAGE))  # type: ignore[misc]
        )
    return {
        "number_slowest_ms": round(max(by_number), 3),
        "number_middle_ms": round(sorted(by_number)[len(by_number) // 2], 3),
        "cursor_slowest_ms": round(max(by_cursor), 3),
        "cursor_middle_ms": round(sorted(by_cursor)[len(by_cursor) // 2], 3),
    }


def measure_peer(directory: Path, count: int) -> dict[str, float]:
    peer = Peer(directory)
    took, uuids = 0.0, []
    for batch in jobs(count, seed=1):
        began = time.perf_counter()
        peer.upsert(batch)
        took += time.perf_counter() - began
        uuids += [job.job_uuid for job in batch]
    changed = uuids[: count // 4]

    def move() -> None:
        for batch in batches(changed):
            peer.transition(batch, "active")

    moved = rate(move, len(changed))
    last = (count - len(changed)) // PAGE
    far = best_look_ms(lambda: peer.page(last))
    peer.close()
    return {
        "jobs": count,
        "upserts_per_second": round(count / took),
        "transitions_per_second": round(moved),
        "last_page_ms": round(far, 3),
    }


def measure(directory: Path, count: int, engine: str) -> tuple[dict[str, Any], list[Verdict]]:
    path = directory / engine
    with Storage.open(engine, str(path)) as storage:
        uuids, upserts = fill(storage, count)
        print(f"upsert      {upserts:>12,.0f} jobs/s")
        first = transitions(storage, uuids[:TRANSITIONS], "active")
        chosen = random.Random(3).sample(uuids[TRANSITIONS:], min(TRANSITIONS, count // 4))
        anywhere = transitions(storage, chosen, "active")
        print(f"transition  {first:>12,.0f} jobs/s in their order, {anywhere:,.0f} in no order")
        threads = by_threads(storage)
        print(f"threads     {threads:>12,.0f} jobs/s, one at a time by {THREADS} threads")
        found = pages(storage)
        print(f"page        {found}")

    def open_and_ask() -> None:
        with Storage.open(engine, str(path)) as storage:
            assert storage.list_jobs(QUEUE, "waiting").jobs

    opened = min(1 / rate(open_and_ask, 1) for _ in range(LOOKS))
    print(f"open        {opened:>12.3f} s")
    peer = measure_peer(directory, min(count, PEER_JOBS))
    print(f"peer        {peer}")
    figures: dict[str, Any] = {
        "engine": engine,
        "jobs": count,
        "upserts_per_second": round(upserts),
        "transitions_per_second": round(first),
        "transitions_in_no_order_per_second": round(anywhere),
        "by_threads_per_second": round(threads),
        "pages": found,
        "open_s": round(opened, 3),
        "size_mb": round(sum(f.stat().st_size for f in path.iterdir()) / 1e6),
        "peer": peer,
    }
    slowest = max(found["number_slowest_ms"], found["cursor_slowest_ms"])
    verdicts = [
        Verdict("upserts a second", figures["upserts_per_second"], RATE_BAR, True),
        Verdict("transitions a second", figures["transitions_per_second"], RATE_BAR, True),
        Verdict("slowest page, ms", slowest, PAGE_BAR_MS, False),
        Verdict("open, s", figures["open_s"], OPEN_BAR_S, False),
    ]
    return figures, verdicts


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.storage", description="See above.")
    parser.add_argument("--directory", default="/var/tmp", help="on the disk to measure")
    parser.add_argument("--jobs", type=int, default=JOBS, help="in the store (1,000,000)")
    parser.add_argument("--engine", default="rocksdb", help="another one; nothing is written")
    options = parser.parse_args(arguments or [])
    place = Path(tempfile.mkdtemp(dir=options.directory, prefix="bench-"))
    try:
        figures, verdicts = measure(place, options.jobs, options.engine)
    finally:
        shutil.rmtree(place)
    figures["file_system"] = peers.file_system(Path(options.directory))
    print()
    figures["bars"] = print_verdicts(verdicts)
    if options.jobs == JOBS and options.engine == "rocksdb":
        print(report.write_result("storage", figures))
    return int(any(verdict.word == "MISSED" for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
