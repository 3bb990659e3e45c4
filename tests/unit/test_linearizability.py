"""The checker of histories: it accepts what can be explained, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import UNKNOWN, NotLinearizable, Operation, check
from tests.simulation.checks import check_deliveries, check_occurrences, check_order
from tests.simulation.history import (
    DUPLICATE,
    NEVER,
    NOT_FOUND,
    OK,
    REFUSED,
    History,
    scheduled_job,
    work_job,
)


def op(begin: int, end: int, answer: Any, *ask: Any) -> Operation:
    """An operation whose times are its orders."""
    return Operation("k", ask, begin, begin, answer, end, end)


GOOD = {
    "a read after a write": [op(1, 2, OK, "set", 7), op(3, 4, 7, "get")],
    "a read beside a write, before it": [op(1, 4, OK, "set", 7), op(2, 3, NOT_FOUND, "get")],
    "a read beside a write, after it": [op(1, 4, OK, "set", 7), op(2, 3, 7, "get")],
    "two writes at once, either wins": [
        op(1, 4, OK, "set", 7),
        op(2, 3, OK, "set", 8),
        op(5, 6, 7, "get"),
    ],
    "a lost write that happened": [op(1, 3, UNKNOWN, "set", 7), op(4, 5, 7, "get")],
    "a lost write that did not": [op(1, 3, UNKNOWN, "set", 7), op(4, 5, NOT_FOUND, "get")],
    "a write that is still under way": [op(1, NEVER, UNKNOWN, "set", 7), op(90, 91, 7, "get")],
    "a refused write": [op(1, 2, REFUSED, "set", 7), op(3, 4, NOT_FOUND, "remove")],
}
BAD = {
    "a lost acknowledgement": [op(1, 2, OK, "set", 7), op(3, 4, NOT_FOUND, "get")],
    "a value from nowhere": [op(1, 2, OK, "set", 7), op(3, 4, 8, "get")],
    "back in time": [
        op(1, 2, OK, "set", 7),
        op(3, 6, OK, "set", 8),
        op(4, 5, 8, "get"),
        op(7, 8, 7, "get"),
    ],
    "a lost write that happens after the crash": [
        op(1, 3, UNKNOWN, "set", 7),
        op(4, 5, NOT_FOUND, "get"),
        op(6, 7, 7, "get"),
    ],
    "a refused write that happened": [op(1, 2, REFUSED, "set", 7), op(3, 4, 7, "get")],
    "removed twice": [
        op(1, 2, OK, "set", 7),
        op(3, 4, OK, "remove"),
        op(5, 6, OK, "remove"),
    ],
}
TTR = 100
ADD = ("add", 2, TTR)
GOOD_WORK = {
    "leased again after its TTR": [
        op(1, 2, OK, *ADD),
        op(3, 5, OK, "lease"),
        op(102, 103, OK, "lease"),
    ],
    "failed, leased at once, failed for good": [
        op(1, 2, OK, *ADD),
        op(3, 4, OK, "lease"),
        op(5, 6, OK, "fail", b"a"),
        op(7, 8, OK, "lease"),
        op(9, 10, OK, "fail", b"b"),
        op(11, 12, (False, b"b"), "look"),
        op(13, 14, DUPLICATE, "complete", b"c"),
    ],
    "added, deleted and added again": [
        op(1, 2, OK, *ADD),
        op(3, 4, OK, "delete"),
        op(5, 6, NOT_FOUND, "look"),
        op(7, 8, OK, *ADD),
    ],
}
BAD_WORK = {
    "two leases at a time": [
        op(1, 2, OK, *ADD),
        op(3, 4, OK, "lease"),
        op(50, 51, OK, "lease"),
    ],
    "a lease of a finished job": [
        op(1, 2, OK, *ADD),
        op(3, 4, OK, "complete", b"a"),
        op(500, 501, OK, "lease"),
    ],
    "a result that is forgotten": [
        op(1, 2, OK, *ADD),
        op(3, 4, OK, "complete", b"a"),
        op(5, 6, None, "look"),
    ],
    "completed twice": [
        op(1, 2, OK, *ADD),
        op(3, 6, OK, "complete", b"a"),
        op(4, 5, OK, "complete", b"b"),
    ],
    "a job that nobody added": [op(1, 2, OK, "lease")],
}


@pytest.mark.parametrize("name", GOOD)
def test_registers_that_can_be_explained(name: str):
    check(scheduled_job, None, GOOD[name])


@pytest.mark.parametrize("name", BAD)
def test_registers_that_cannot(name: str):
    with pytest.raises(NotLinearizable):
        check(scheduled_job, None, BAD[name])


@pytest.mark.parametrize("name", GOOD_WORK)
def test_jobs_that_can_be_explained(name: str):
    check(work_job, None, GOOD_WORK[name])


@pytest.mark.parametrize("name", BAD_WORK)
def test_jobs_that_cannot(name: str):
    with pytest.raises(NotLinearizable):
        check(work_job, None, BAD_WORK[name])


def test_many_writes_at_once_are_explained_in_time():
    writes = [op(number, 100 + number, OK, "set", number) for number in range(1, 9)]
    check(scheduled_job, None, [*writes, op(200, 201, 3, "get")])
    with pytest.raises(NotLinearizable):
        check(scheduled_job, None, [*writes, op(200, 201, 99, "get")])


def test_what_was_put_first_comes_first():
    puts = {"a": op(1, 2, OK, "put"), "b": op(3, 4, OK, "put")}
    check_order(puts, {"a": [op(5, 6, "a", "read")], "b": [op(7, 8, "b", "read")]})
    check_order(puts, {"a": [op(5, 8, "a", "read")], "b": [op(6, 7, "b", "read")]})
    slow = [op(8, 9, "a", "read"), op(5, 99, "a", "read")]
    check_order(puts, {"a": slow, "b": [op(6, 7, "b", "read")]})
    swapped = {"a": [op(7, 8, "a", "read")], "b": [op(5, 6, "b", "read")]}
    with pytest.raises(AssertionError, match="a was put before b"):
        check_order(puts, swapped)
    check_order(puts, swapped, lost=[op(4, 9, UNKNOWN, "read")])


def test_what_was_stored_has_come_and_nothing_else_has():
    puts = {"a": op(1, 2, OK, "put"), "b": op(3, 4, UNKNOWN, "put")}
    check_deliveries(puts, [("a", op(5, 6, "a", "read"))], [])
    with pytest.raises(AssertionError, match="never came"):
        check_deliveries(puts, [("b", op(5, 6, "b", "read"))], [])
    with pytest.raises(AssertionError, match="c was never put"):
        check_deliveries(puts, [("a", op(5, 6, "a", "r")), ("c", op(7, 8, "c", "r"))], [])


def test_each_occurrence_has_one_job():
    job = "t@1970-01-01T00:{:02}:00+00:00".format
    assert check_occurrences([(1, job(1)), (1, job(2)), (2, job(2))], {"t": 60}) == 2
    with pytest.raises(AssertionError, match="did not run at 120"):
        check_occurrences([(1, job(1)), (1, job(3))], {"t": 60})
    with pytest.raises(AssertionError, match="twice in a life"):
        check_occurrences([(1, job(1)), (1, job(1))], {"t": 60})
    with pytest.raises(AssertionError, match="two jobs"):
        check_occurrences([(1, job(1)), (1, "t@1970-01-01T01:01:00+01:00")], {"t": 60})


def test_a_server_that_dies_ends_what_is_open():
    times = iter(range(100))
    history = History(lambda: next(times))
    lost, answered = history.begin("k", "set", 1), history.begin("k", "set", 2)
    history.end(answered, OK)
    history.server_died()
    history.end(lost, OK)  # too late: its client was not there any more
    assert (lost.answer, answered.answer) == (UNKNOWN, OK)
    assert answered.returned < lost.returned < NEVER


def test_touch_of_more_than_the_own_ttr_ends_by_that_after_a_restart():
    """The ledger says that a lease was touched, not until when."""
    ttr_ns, touched_ns = 2, 10

    def story(leased_again_ns: int, *, deaths: int) -> list[Operation]:
        return [
            Operation("k", ("add", 2, ttr_ns), 1, 0, OK, 2, 0),
            Operation("k", ("lease", 1, 0), 3, 0, OK, 4, 0),
            Operation("k", ("touch", touched_ns), 5, 1, OK, 6, 1),
            Operation("k", ("lease", 2, 0), 7, 2, OK, 8, leased_again_ns, deaths),
        ]

    check(work_job, None, story(11, deaths=0))
    with pytest.raises(NotLinearizable):
        check(work_job, None, story(10, deaths=0))
    check(work_job, None, story(3, deaths=1))
    with pytest.raises(NotLinearizable):
        check(work_job, None, story(2, deaths=1))
