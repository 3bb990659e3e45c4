"""The work queue against a plain model: any commands, in any batches, with undo, restart and crash.

Both are given the same commands at the same times. They must answer the same clients with the same
words and show the same jobs; and the records that the engine wrote must fold to what it holds.
Every other decision may take the fast path; and that is compared with the law alone.
"""

from __future__ import annotations

from collections import Counter
from itertools import count, islice
from random import Random

from hypothesis import settings

from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.messages import WorkqDue
from journeyman.protocols.workq.commands import (
    Add,
    AddOptions,
    AwaitResult,
    Complete,
    Delete,
    Fail,
    Lease,
    Limits,
    PauseQueue,
    ResumeQueue,
    RunJob,
    SetLimits,
)
from tests.support.effort import cases
from tests.support.workq_engine import START_NS, decide_fast
from tests.support.workq_machine import WorkQueueMachine
from tests.support.workq_model import MS
from tests.support.workq_views import orders_of

TestWorkQueue = WorkQueueMachine.TestCase
TestWorkQueue.settings = settings(max_examples=cases(60), stateful_step_count=60, deadline=None)

IDS = tuple(bytes.fromhex(f"0000000a00004000800000000000000{n}") for n in range(8))


def _usual(chance: Random) -> Decidable:
    """One that the fast path may take, most often."""
    job_id, name = chance.choice(IDS), chance.choice("aaab")
    kind = chance.randrange(3)
    if kind == 0:
        ttl_ms, delay_ms = chance.choice((1, *[10**6] * 9)), chance.choice((0, 0, 5))
        return Add(job_id, name, chance.choice((2, 10**5)), ttl_ms, b"p", 0, 0, 2, delay_ms)
    if kind == 1:
        return Lease((name,), chance.choice((0, 0, 0, 9)))
    return Complete(job_id, b"r", chance.choice((0, 0, 1, 2)))


def _other(chance: Random, *, is_extended: bool) -> Decidable:
    job_id, name = chance.choice(IDS), chance.choice("aab")
    plain: list[Decidable] = [
        *(RunJob(job_id, name, 5, 5, b"p"), Lease((name, "c"), 0), Lease((name,), 0, 2)),
        *(Fail(job_id, b"f"), Delete(job_id), AwaitResult(job_id, 10), WorkqDue()),
        *(PauseQueue(name), ResumeQueue(name)),
    ]
    extended: list[Decidable] = [
        Add(job_id, name, 5, 10**6, b"p", options=AddOptions("k")),
        Add(job_id, name, 5, 10**6, b"p", options=AddOptions(after=IDS[:1])),
        Lease((name,), 0, worker="w"),
        SetLimits(name, chance.choice((Limits(concurrency=1), Limits()))),
    ]
    return chance.choice(extended if is_extended and chance.random() < 0.5 else plain)


def _extensions_of(engine: WorkqEngine) -> list[object]:
    found = engine._state.extensions
    return [found.options, found.workers, found.children, found.forgetting, found.added_children]


def test_the_fast_path_decides_as_the_engine_does():
    taken = Counter[type]()
    for seed in range(cases(24)):
        taken += _compare_both(Random(seed), is_extended=seed % 3 == 0)
    assert min(taken[each] for each in (Add, Lease, Complete)) > 20


def _compare_both(chance: Random, *, is_extended: bool) -> Counter[type]:
    """What the fast path has taken."""
    law, fast = WorkqEngine(seed=1), WorkqEngine(seed=1)
    now_ns, clients, taken = START_NS, count(), Counter[type]()
    for _ in range(40):
        now_ns += chance.choice((0, 0, 1, 2 * MS))
        for engine in (law, fast):
            engine.begin_batch()
        for client in islice(clients, chance.randrange(12)):
            is_usual, is_due = chance.random() < 0.85, chance.random() < 0.1
            command = _usual(chance) if is_usual else _other(chance, is_extended=is_extended)
            command = WorkqDue() if is_due else command
            expected = law.decide(command, now_ns, client)
            found, is_fast = decide_fast(fast, command, now_ns, client)
            assert found == expected
            taken[type(command)] += is_fast
        assert law.take_ledger() == fast.take_ledger()
        is_kept = chance.random() < 0.8
        for engine in (law, fast):
            engine.commit_batch() if is_kept else engine.undo_batch()
        assert orders_of(law) == orders_of(fast)
        assert _extensions_of(law) == _extensions_of(fast)
        assert (law.stats(), law.queue_totals()) == (fast.stats(), fast.queue_totals())
        assert law.next_due_ns() == fast.next_due_ns()
    return taken
