"""Ends of jobs as items of a fan-out queue: which, in what words, and how many may wait."""

from __future__ import annotations

import asyncio
import json

import pytest

from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
from journeyman.protocols.workq.commands import Add, Complete, Delete, Fail, Lease
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.workq import service
from journeyman.servers.workq.service import JobEvents
from journeyman.testing import ManualClock

NS = 10**9
IDS = [bytes.fromhex(f"0000000a0000400080000000{number:08d}") for number in range(1, 5)]


def told(engine: WorkqEngine, feed: JobEvents, command: object, now_ns: int) -> None:
    feed.watch(engine.decide(command, now_ns, "client").records)  # type: ignore[arg-type]


def test_every_end_is_told_once():
    async def main() -> list[dict[str, object]]:
        items: list[bytes] = []

        async def put(queue: str, data: bytes) -> str:
            assert queue == "ends"
            items.append(data)
            return ""

        engine = WorkqEngine(seed=1)
        feed = JobEvents("ends", put, engine, ServerLog(ManualClock(), lambda _: None))
        for job_id in IDS:
            told(engine, feed, Add(job_id, "q", 1000, 60_000, b"", max_attempts=1), NS)
        told(engine, feed, Lease(("q",), 0), NS)
        told(engine, feed, Complete(IDS[1], b"done"), 2 * NS)
        told(engine, feed, Fail(IDS[2], b"no"), 2 * NS)
        told(engine, feed, Delete(IDS[3]), 2 * NS)
        told(engine, feed, WorkqDue(), 5 * NS)  # the lease of the first ends
        told(engine, feed, WorkqDue(), 90 * NS)
        await feed.close()
        return [json.loads(item) for item in items]

    found = asyncio.run(main())
    texts = [f"0000000a-0000-4000-8000-0000{number:08d}" for number in range(1, 5)]
    assert [(each["event"], each["job"]) for each in found[:4]] == [
        ("completed", texts[1]),
        ("failed", texts[2]),
        ("deleted", texts[3]),
        ("failed", texts[0]),
    ]
    assert {each["event"] for each in found[4:]} == {"expired"}
    assert len(found) == 7
    assert (found[0]["queue"], found[0]["attempts"], found[3]["attempts"]) == ("q", 0, 1)


def test_what_cannot_be_put_is_dropped_and_reported_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service, "MAX_WAITING_EVENTS", 2)
    said: list[str] = []

    async def main() -> None:
        async def put(queue: str, data: bytes) -> str:
            return f"{queue} is full"

        engine = WorkqEngine(seed=1)
        feed = JobEvents("ends", put, engine, ServerLog(ManualClock(), said.append))
        for job_id in IDS:
            told(engine, feed, Add(job_id, "q", 1000, 60_000, b""), NS)
            told(engine, feed, Complete(job_id, b""), NS)
        await feed.close()

    asyncio.run(main())
    assert "".join(said).count("events of jobs are dropped") == 1
