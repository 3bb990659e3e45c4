"""Logs to measure with: seeded, so always the same bytes, and of the shape that real ones have.

ztick    ids like backup.db17.daily, 1 entry in 5 a removal, 1 in 10,000 a rule
workq    add, start-attempt, complete for each job; payloads of 100 bytes, results of 20
kestrel  puts of 100 bytes, 1 in 4 with an expiry
"""

from __future__ import annotations

from random import Random

from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.timed_frame import Instant

__all__ = ["kestrel_log", "workq_log", "ztick_log"]

SEED = 20_240_328
START_NS = 1_790_000_000_000_000_000
_SERVICES = ("backup", "report", "mail", "billing", "sync")
_PERIODS = ("hourly", "daily", "weekly")


def ztick_log(entries: int) -> bytes:
    chance = Random(SEED)
    log = []
    for i in range(entries):
        service = chance.choice(_SERVICES)
        name = f"{service}.db{chance.randrange(2000)}.{chance.choice(_PERIODS)}"
        record: ztick.Record
        if i % 10_000 == 0:
            record = ztick.RuleSet(f"{service}.rule", f"{service}.", ztick.Shell("run $ZTICK_ID"))
        elif chance.random() < 0.2:
            record = ztick.JobRemoved(name)
        else:
            planned_ns = START_NS + chance.randrange(10**16)
            record = ztick.JobSet(name, planned_ns, ztick.Status.PLANNED)
        log.append(ztick.CODEC.encode(record))
    return b"".join(log)


def workq_log(jobs: int, seed: int = 0) -> bytes:
    """Another ``seed`` gives other jobs."""
    chance = Random(SEED + seed)
    log = [workq.HEADER]
    for i in range(jobs):
        now = Instant(START_NS + i * 1_000_000)
        job_id = chance.randbytes(16)
        due = None if chance.random() < 0.8 else Instant(now.unix_ns + 10**9)
        name = f"{chance.choice(_SERVICES)}.send"
        payload = chance.randbytes(100)
        kind = workq.Command.ADD if due is None else workq.Command.SCHEDULE
        records: list[workq.Record] = [
            workq.JobAdded(now, job_id, name, 60_000, 86_400_000, 0, 3, 0, payload, due, now, kind),
            workq.JobEvent(now, job_id, workq.Command.START_ATTEMPT),
            workq.JobFinished(now, job_id, workq.Command.COMPLETE, chance.randbytes(20)),
        ]
        log += map(workq.CODEC.encode, records)
    return b"".join(log)


def kestrel_log(items: int) -> bytes:
    chance = Random(SEED)
    log = [kestrel.WRITER_MAGIC]
    for item_id in range(1, items + 1):
        added_ms = START_NS // 1_000_000 + item_id
        expires_ms = added_ms + 60_000 if chance.random() < 0.25 else None
        item = kestrel.ItemPut(item_id, added_ms, expires_ms, 0, chance.randbytes(100))
        log.append(kestrel.WRITER.encode(item))
    return b"".join(log)
