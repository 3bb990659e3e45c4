"""Work queue logs with a history, by hand and at random."""

from __future__ import annotations

import random

from pyspark.sql.types import StructType

from journeyman.formats.workq import Record
from tests.support.spark.written_logs import (
    added,
    event,
)


def types(schema: StructType) -> list[tuple[str, str]]:
    return [(field.name, field.dataType.simpleString()) for field in schema]


BUSY = [
    added(1, 0),
    added(2, 1, queue="print", due_s=30),
    event("start-attempt", 1, 2),
    event("timeout-attempt", 1, 62),
    event("start-attempt", 1, 70),
    event("complete", 1, 75),
    added(3, 80, max_fails=3),
    event("start-attempt", 3, 81),
    event("fail", 3, 82),
    event("timeout-attempt", 3, 82),
    event("start-attempt", 3, 90),
    event("fail", 3, 95),
    event("delete", 2, 96),
    added(4, 100, queue="print"),
    event("start-attempt", 4, 101),
    added(5, 102, ttl_s=10),
    event("delete", 1, 110),
    added(1, 120),
    event("start-attempt", 9, 121),
    event("complete", 9, 125),
]


def random_log(seed: int, jobs: int = 40, records: int = 600) -> list[Record]:
    """Records in an order no server writes, of few jobs: every odd case occurs."""
    chance = random.Random(seed)
    words = ["start-attempt"] * 4 + ["timeout-attempt"] * 3 + ["complete", "fail", "fail"]
    words += ["delete", "expire", "park", "park", "wake"]
    log: list[Record] = []
    for number in range(records):
        job, moment = chance.randrange(jobs), number + chance.choice([0, 0, -3, -1])
        if chance.random() < 0.25:
            log.append(
                added(
                    job,
                    moment,
                    queue=chance.choice(["a", "b"]),
                    due_s=chance.choice([None, moment + 2]),
                    ttr_s=chance.choice([0, 2, 50]),
                    ttl_s=chance.choice([20, 10_000]),
                    max_attempts=chance.choice([0, 2]),
                    max_fails=chance.choice([0, 3]),
                )
            )
        else:
            word = chance.choice(words)
            log.append(event(word, job, moment))
            if word == "fail" and chance.random() < 0.5:
                log.append(event("timeout-attempt", job, moment))
    return log


def busy_log(seed: int, jobs: int = 40) -> list[Record]:
    """Records as a server writes them over two days, with every outcome."""
    chance = random.Random(seed)
    found: list[tuple[float, Record]] = []

    def note(word: str, number: int, at: float) -> None:
        found.append((at, event(word, number, at)))

    for number in range(jobs):
        at = chance.randrange(150_000)
        due = chance.choice([None, None, at + 600])
        queue = chance.choice(["mail", "print"])
        found.append((at, added(number, at, queue=queue, due_s=due, max_fails=3)))
        at = due or at
        for _ in range(chance.randrange(4)):
            at += chance.randrange(1, 5_000)
            note("start-attempt", number, at)
            at += chance.randrange(1, 50)
            word = chance.choice(["complete", "fail", "timeout-attempt", "retry", "park", ""])
            if word == "park":
                note("park", number, at)
                at += chance.randrange(1, 5_000)
                note("wake", number, at)
            elif word == "retry":
                note("fail", number, at)
                note("timeout-attempt", number, at)
            elif word:
                note(word, number, at)
            if word in ("complete", "fail", ""):
                break
        if chance.random() < 0.2:
            note("delete", number, at + 1)
    return [record for _, record in sorted(found, key=lambda each: each[0])]
