"""Fair queues: keys take turns, by weight; priority comes first."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
from hypothesis import given

from journeyman.engines.sorted_set import SortedSet
from journeyman.engines.workq import fairness, packed
from journeyman.engines.workq.engine import WorkqEngine
from journeyman.engines.workq.fairness import FairSet
from journeyman.engines.workq.ledger_entries import limits_body, read_limits
from journeyman.protocols.workq.commands import (
    NO_LIMITS,
    Add,
    AddOptions,
    Delete,
    Fail,
    Lease,
    Limits,
    SetLimits,
)
from journeyman.protocols.workq.replies import DONE, TIMED_OUT, Leased, LeasedJobs

NOW_NS = 1_700_000_000 * 10**9
FAIR = Limits(fair=True)


def job_id_of(number: int) -> bytes:
    return UUID(int=number, version=4).bytes


class Queue:
    """A fair queue whose jobs are named by their key and number: a1, a2, b3."""

    def __init__(self, limits: Limits = FAIR) -> None:
        self.engine = WorkqEngine(seed=1)
        self.names: dict[bytes, str] = {}
        self.limit(limits)

    def limit(self, limits: Limits) -> None:
        assert self.engine.decide(SetLimits("q", limits), NOW_NS).reply == DONE

    def add(self, keys: Iterable[str], *, priority: int = 0) -> None:
        for key in keys:
            job_id = job_id_of(len(self.names) + 1)
            self.names[job_id] = f"{key}{len(self.names) + 1}"
            options = AddOptions("" if key == "-" else key)
            job = Add(job_id, "q", 10**6, 10**8, b"", priority, options=options)
            assert self.engine.decide(job, NOW_NS).reply == DONE

    def lease(self, count: int) -> str:
        """The names of the next jobs."""
        found = []
        for _ in range(count):
            reply = self.engine.decide(Lease(("q",), 0), NOW_NS).reply
            if reply == TIMED_OUT:
                break
            assert isinstance(reply, Leased)
            found.append(self.names[reply.job_id])
        return " ".join(found)

    def id_of(self, name: str) -> bytes:
        return next(job_id for job_id, known in self.names.items() if known == name)


def test_keys_take_turns() -> None:
    queue = Queue()
    queue.add("aaaabbc")
    assert queue.lease(9) == "a1 b5 c7 a2 b6 a3 a4"


def test_a_queue_that_is_not_fair_takes_the_oldest_job_first() -> None:
    queue = Queue(NO_LIMITS)
    queue.add("aaab")
    assert queue.lease(9) == "a1 a2 a3 b4"


def test_a_key_with_a_weight_has_more_jobs_in_a_turn() -> None:
    queue = Queue(Limits(fair=True, weights={"a": 2}))
    queue.add("aaaaabbb")
    assert queue.lease(9) == "a1 a2 b6 a3 a4 b7 a5 b8"


def test_a_key_that_leaves_takes_nothing_from_the_next_turn() -> None:
    queue = Queue(Limits(fair=True, weights={"a": 2, "b": 2}))
    queue.add("abbc")
    assert queue.lease(9) == "a1 b2 b3 c4"


def test_the_priority_comes_first() -> None:
    queue = Queue()
    queue.add("aab")
    queue.add("aab", priority=5)
    assert queue.lease(9) == "a4 b6 a5 a1 b3 a2"


def test_jobs_without_a_key_share_a_turn() -> None:
    queue = Queue()
    queue.add("---a")
    assert queue.lease(9) == "-1 a4 -2 -3"


def test_a_key_that_comes_back_is_last() -> None:
    queue = Queue()
    queue.add("abb")
    assert queue.lease(1) == "a1"
    queue.add("a")
    assert queue.lease(9) == "b2 a4 b3"


def test_a_new_key_waits_one_round_at_most() -> None:
    queue = Queue()
    queue.add("a" * 50)
    assert queue.lease(3) == "a1 a2 a3"
    queue.add("b")
    assert queue.lease(2) == "a4 b51"


def test_a_lease_of_several_jobs_takes_turns_too() -> None:
    queue = Queue()
    queue.add("aaab")
    reply = queue.engine.decide(Lease(("q",), 0, 3), NOW_NS).reply
    assert isinstance(reply, LeasedJobs)
    assert [queue.names[job.job_id] for job in reply.jobs] == ["a1", "b4", "a2"]


def test_jobs_that_leave_otherwise_take_no_turn() -> None:
    queue = Queue(Limits(fair=True, weights={"a": 2}))
    queue.add("aaabb")
    assert queue.lease(1) == "a1"
    queue.engine.decide(Delete(queue.id_of("a2")), NOW_NS)
    queue.engine.decide(Delete(queue.id_of("a3")), NOW_NS)
    queue.add("a")  # with a whole turn
    assert queue.lease(9) == "b4 a6 b5"


def test_a_job_that_is_retried_is_the_first_of_its_key() -> None:
    queue = Queue()
    queue.add("aab")
    assert queue.lease(1) == "a1"
    queue.engine.decide(Fail(queue.id_of("a1"), b"", is_release=True), NOW_NS)
    assert queue.lease(9) == "b3 a1 a2"


def test_turns_end_and_begin_with_the_limit() -> None:
    queue = Queue()
    queue.add("aaaabbbb")
    assert queue.lease(2) == "a1 b5"
    queue.limit(NO_LIMITS)
    assert queue.lease(2) == "a2 a3"
    queue.limit(FAIR)
    assert queue.lease(9) == "a4 b6 b7 b8"


def test_other_limits_change_without_a_new_round() -> None:
    queue = Queue()
    queue.add("aabb")
    assert queue.lease(1) == "a1"
    queue.limit(Limits(fair=True, concurrency=100, weights={"b": 2}))
    assert queue.lease(9) == "b3 b4 a2"


def test_keys_at_their_limit_are_passed_over() -> None:
    queue = Queue(Limits(fair=True, key_concurrency=1))
    queue.add("aaabbc")
    assert queue.lease(9) == "a1 b4 c6"
    queue.engine.decide(Fail(queue.id_of("b4"), b"", is_final=True), NOW_NS)
    assert queue.lease(9) == "b5"


def test_a_batch_that_is_undone_loses_no_job() -> None:
    queue = Queue()
    queue.add("aabb")
    queue.engine.begin_batch()
    assert queue.lease(3) == "a1 b3 a2"
    queue.limit(NO_LIMITS)
    queue.engine.undo_batch()
    assert sorted(queue.lease(9).split()) == ["a1", "a2", "b3", "b4"]


def test_limits_are_the_same_in_the_ledger() -> None:
    limits = Limits(concurrency=3, fair=True, weights={"gold": 3})
    assert limits_body(limits) == {"concurrency": 3, "fair": True, "weights": {"gold": 3}}
    assert read_limits(limits_body(limits)) == limits
    for body in ({"fair": 1}, {"fair": True, "weights": [1]}, {"fair": True, "weights": {"a": 0}}):
        assert read_limits(body) is None


# -- beside a plain model --------------------------------------------------------------------------

jobs = st.tuples(st.sampled_from("abc"), st.integers(0, 2))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), jobs),
        st.tuples(st.just("lease"), st.none()),
        st.tuples(st.just("remove"), st.integers(0, 40)),
    ),
    max_size=60,
)


def spec_of(number: int, key: str, priority: int) -> packed.Spec:
    return packed.pack(
        *(job_id_of(number), 0, 1, 1, priority, 0, 0, NOW_NS + number, None, 0, b"", key)
    )


class PlainTurns:
    """The same, said plainly: a list of jobs and, for each priority, a list of keys."""

    def __init__(self, weights: dict[str, int]) -> None:
        self.weights = weights
        self.jobs: list[tuple[int, int, str]] = []  # -priority, number, key
        self.keys: dict[int, list[str]] = {}
        self.taken: dict[int, int] = {}

    def add(self, number: int, key: str, priority: int) -> None:
        self.jobs.append((-priority, number, key))
        keys = self.keys.setdefault(-priority, [])
        if key not in keys:
            keys.append(key)

    def next_job(self) -> tuple[int, int, str]:
        top = min(self.jobs)[0]
        return min(job for job in self.jobs if job[0] == top and job[2] == self.keys[top][0])

    def lease(self) -> int:
        job = self.next_job()
        top, number, key = job
        self.taken[top] = self.taken.get(top, 0) + 1
        if self.taken[top] >= self.weights.get(key, 1):
            self.keys[top].append(self.keys[top].pop(0))
            self.taken[top] = 0
        self.remove(job)
        return number

    def remove(self, job: tuple[int, int, str]) -> None:
        top, _, key = job
        self.jobs.remove(job)
        if not any(each[0] == top and each[2] == key for each in self.jobs):
            if self.keys[top][0] == key:
                self.taken[top] = 0
            self.keys[top].remove(key)


@given(steps, st.integers(1, 3))
def test_turns_are_those_of_a_plain_model(steps: list[tuple[str, Any]], weight: int) -> None:
    weights = {"a": weight, "b": 4 - weight}
    found, model = FairSet(SortedSet(), weights), PlainTurns(weights)
    for number, (step, given_with) in enumerate(steps):
        if step == "add":
            found.add(spec_of(number, *given_with))
            model.add(number, *given_with)
        elif not model.jobs:
            assert not found
        elif step == "lease":
            spec = found.first()
            assert spec == found.first()
            found.take_turn(spec)
            found.remove(spec)
            assert packed.job_id_of(spec) == job_id_of(model.lease())
        else:
            job = sorted(model.jobs)[given_with % len(model.jobs)]
            found.remove(spec_of(job[1], job[2], -job[0]))
            model.remove(job)
        assert len(found) == len(list(found)) == len(model.jobs)


@given(st.lists(jobs, min_size=1, max_size=60), st.integers(1, 7), st.data())
def test_jobs_from_before_are_all_leased_in_the_order_of_their_key(
    before: list[tuple[str, int]], at_once: int, data: st.DataObject
) -> None:
    """However few are made known at once, and whatever comes meanwhile."""
    specs = [spec_of(number, *job) for number, job in enumerate(before)]
    former = fairness.KNOWN_AT_ONCE
    fairness.KNOWN_AT_ONCE = at_once
    try:
        found = FairSet(SortedSet(sorted(specs)), {})
        leased: list[packed.Spec] = []
        while found.size:
            if data.draw(st.booleans()) and len(specs) < 80:
                specs.append(spec_of(len(specs), *data.draw(jobs)))
                found.add(specs[-1])
            spec = found.first()
            top = packed.URGENCY_BYTES
            assert spec[:top] == found.page(0, 1)[0][:top]
            same_key = [each for each in found if packed.key_of(each) == packed.key_of(spec)]
            assert spec == same_key[0]
            found.take_turn(spec)
            found.remove(spec)
            leased.append(spec)
        assert sorted(leased) == sorted(specs)
        assert not found._by_urgency
    finally:
        fairness.KNOWN_AT_ONCE = former
