"""Flows of calls and groups: what gets which results, what fails with what, what is refused."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import journeyman as jm
from journeyman.errors import UsageError
from journeyman.testing import InMemory

app = jm.App()


@app.task
def start(value: int) -> int:
    return value


@app.task
def add(value: int, more: int = 1) -> int:
    return value + more


@app.task
def total(values: list[int], more: int = 0) -> int:
    return sum(values) + more


@app.task
def add_to_total(values: list[int], more: int) -> int:
    return sum(values) + more


@app.task
def outcomes(values: list[jm.Ended[int]]) -> list[Any]:
    return [each.value if each.failure is None else each.failure.error for each in values]


@app.task
def broken(value: int = 0) -> int:
    raise ValueError("no")


def result(flow: Any) -> Any:
    with InMemory(app) as queue:
        job = flow.send()
        queue.run_all(check=False)
        return job.result(timeout=1)


def test_a_call_is_followed_by_a_group_and_the_group_by_a_chain():
    sizes = jm.group(add.after(more) for more in (1, 10, 100))
    flow = start.call(5).then(add).then(sizes).then(total).then(add, 1000)
    assert result(flow) == (6 + 1) + (6 + 10) + (6 + 100) + 1000


def test_a_flow_that_ends_in_a_group_has_its_jobs():
    with InMemory(app) as queue:
        jobs = start.call(5).then(jm.group([add.after(1), add.after(2)])).send()
        queue.run_all()
        assert jobs.results(timeout=1) == [6, 7]


def test_steps_after_the_task_that_follows_a_group():
    assert result(jm.group([start.call(1), start.call(2)]).then(total).then(add).then(add, 9)) == 13


def test_a_group_may_follow_a_group():
    both = jm.group([start.call(1), start.call(2)])
    assert result(both.then(jm.group([total.after(), add_to_total.after(5)])).then(total)) == 11


def test_calls_of_a_group_may_be_chains_and_flows():
    inner = jm.group([start.call(1), start.call(2)]).then(total)
    chain = start.call(10).then(add).then(add)
    assert result(jm.group([chain, inner, start.call(100)]).then(total)) == 12 + 3 + 100
    with InMemory(app) as queue:
        jobs = jm.group([start.call(10).then(add), inner, start.call(100)]).send()
        queue.run_all()
        assert jobs.results(timeout=1) == [11, 3, 100]


def test_always_follows_a_group_inside_of_a_flow():
    flow = start.call(5).then(jm.group([add.after(1), broken.after()])).always(outcomes)
    assert result(flow) == [6, "ValueError"]


def test_what_follows_a_failure_fails():
    flow = start.call(5).then(jm.group([add.after(1), broken.after()])).then(total).then(add)
    with pytest.raises(jm.JobFailed, match="failed or is gone"):
        result(flow)


def test_a_flow_is_cancelled_as_a_whole():
    with InMemory(app) as queue:
        job = start.call(5).then(jm.group([add.after(1), add.after(2)])).then(total).send()
        assert job.cancel()
        assert queue.run_all() == 0
        assert {each.state for each in queue.jobs} == {"cancelled"}


def test_a_flow_for_asyncio():
    async def run() -> int:
        with InMemory(app) as queue:
            job = await start.call(5).then(jm.group([add.after(1)])).then(total).asend()
            await queue.arun_all()
            value: int = await job
            return value

    assert asyncio.run(run()) == 6


def test_flows_that_make_no_sense_are_refused():
    group = jm.group([start.call(1)])
    nested: Any = [group]
    with pytest.raises(UsageError, match="end in a call"):
        jm.group(nested)
    late: Any = add.at(timedelta(hours=1)).call(1)
    with InMemory(app), pytest.raises(UsageError, match="cannot wait for a time"):
        start.call(1).then(jm.group([late])).send()
    with InMemory(app), pytest.raises(UsageError, match="at most 1000 calls"):
        jm.group(start.call(n) for n in range(1001)).then(total).send()
    wrong: Any = add.after()
    with InMemory(app), pytest.raises(TypeError, match="missing a required argument"):
        jm.group([wrong]).send()


def grown(children: st.SearchStrategy[tuple[Any, int]]) -> st.SearchStrategy[tuple[Any, int]]:
    """Flows that end in a call, and their results."""
    groups = st.lists(children, min_size=1, max_size=3)
    followed = children.map(lambda each: (each[0].then(add, 3), each[1] + 3))
    summed = groups.map(
        lambda many: (jm.group(e[0] for e in many).then(total, 2), sum(e[1] for e in many) + 2)
    )
    spread = st.tuples(children, st.lists(st.integers(0, 9), min_size=1, max_size=3)).map(
        lambda pair: (
            pair[0][0].then(jm.group(add.after(more) for more in pair[1])).then(total),
            sum(pair[0][1] + more for more in pair[1]),
        )
    )
    return st.one_of(followed, summed, spread)


@given(st.recursive(st.integers(0, 9).map(lambda n: (start.call(n), n)), grown, max_leaves=6))
def test_any_flow_gives_what_its_calls_give(drawn):
    flow, expected = drawn
    assert result(flow) == expected
