"""Histories of jobs with extensions that the checks must refuse, and some that they must not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation import UNKNOWN, NotLinearizable, Operation, check
from tests.simulation.checks import check_tasks
from tests.simulation.clients import Notes
from tests.simulation.history import (
    LEASED_AGAIN,
    NOT_DEAD,
    NOT_FOUND,
    NOT_LEASED,
    OK,
    History,
    failed_parent,
    work_job,
)
from tests.simulation.work_clients import LIMITS

ADD = ("add", 2, 100)


def op(begin: int, end: int, answer: Any, *ask: Any) -> Operation:
    """An operation whose times are its orders."""
    return Operation("k", ask, begin, begin, answer, end, end)


LEASED = [op(1, 2, OK, *ADD), op(3, 4, OK, "lease", 1, 0)]
FAILED = [*LEASED, op(5, 6, OK, "fail", b"x", 1, 50, False)]
DEAD = [*LEASED, op(5, 6, OK, "fail", b"x", 1, 50, True)]
CHILD = op(1, 2, OK, *ADD, ("p",), False)
GOOD = {
    "touched, and leased after that": [
        *LEASED,
        op(50, 51, OK, "touch", 0),
        op(150, 151, OK, "lease", 2, 0),
    ],
    "a retry after its delay": [*FAILED, op(55, 56, OK, "lease", 2, 1)],
    "a failure that is sent again": [*FAILED, op(7, 8, NOT_LEASED, "fail", b"x", 1, 50, False)],
    "not leased any more": [*LEASED, op(103, 104, NOT_LEASED, "touch", 0)],
    "a late answer of a former attempt": [
        *LEASED,
        op(103, 104, OK, "lease", 2, 0),
        op(105, 106, LEASED_AGAIN, "complete", b"r", 1),
    ],
    "a dead job starts over": [
        *DEAD,
        op(7, 8, OK, "requeue"),
        op(9, 10, OK, "lease", 1, 0),
    ],
    "some of many are requeued": [
        *DEAD,
        op(7, 8, UNKNOWN, "requeue"),
        op(9, 10, (False, b"x"), "look"),
    ],
    "a finished job makes room": [*DEAD, op(7, 8, OK, "replace", 2, 100), op(9, 10, None, "look")],
    "a child fails with its parent": [CHILD, op(3, 4, (False, failed_parent("p")), "look")],
    "a child has no place yet": [CHILD, op(3, 4, NOT_FOUND, "requeue")],
}
BAD = {
    "leased though it was touched": [
        *LEASED,
        op(50, 51, OK, "touch", 0),
        op(110, 111, OK, "lease", 2, 0),
    ],
    "a retry before its delay": [*FAILED, op(7, 8, OK, "lease", 2, 1)],
    "an attempt is not counted": [*LEASED, op(110, 111, OK, "lease", 1, 0)],
    "a failure counts twice": [*FAILED, op(7, 8, OK, "fail", b"x", 1, 50, False)],
    "a failure of the attempt that goes on": [
        *LEASED,
        op(5, 6, NOT_LEASED, "fail", b"x", 1, 50, False),
    ],
    "a final failure is refused": [*FAILED, op(7, 8, NOT_LEASED, "fail", b"x", 1, 50, True)],
    "a fail is not counted": [*FAILED, op(60, 61, OK, "lease", 2, 0)],
    "a touch of a lease that goes on": [*LEASED, op(5, 6, NOT_LEASED, "touch", 0)],
    "a former attempt completes the job": [
        *LEASED,
        op(103, 104, OK, "lease", 2, 0),
        op(105, 106, OK, "complete", b"r", 1),
    ],
    "a final fail is retried": [*DEAD, op(60, 61, OK, "lease", 2, 1)],
    "a job that waits is replaced": [op(1, 2, OK, *ADD), op(3, 4, OK, "replace", 2, 100)],
    "a job that waits is requeued": [op(1, 2, OK, *ADD), op(3, 4, OK, "requeue")],
    "a dead job is not": [*DEAD, op(7, 8, NOT_DEAD, "requeue")],
    "the parent of another job failed": [CHILD, op(3, 4, (False, failed_parent("q")), "look")],
}


@pytest.mark.parametrize("operations", GOOD.values(), ids=GOOD)
def test_jobs_that_are_as_promised(operations: list[Operation]):
    check(work_job, None, operations)


@pytest.mark.parametrize("operations", BAD.values(), ids=BAD)
def test_jobs_that_are_not(operations: list[Operation]):
    with pytest.raises(NotLinearizable):
        check(work_job, None, operations)


class Told:
    """A history of several jobs, a millisecond between two moments."""

    def __init__(self) -> None:
        self._now_ns = 0
        self.notes = Notes(History(self._tick), lambda: 0)

    def do(self, queue: str, job_id: str, *ask: Any, key: str = "") -> None:
        notes = self.notes
        if job_id not in notes.queue_of:
            notes.tasks.append(job_id)
        notes.queue_of[job_id] = queue
        notes.key_of[job_id] = key
        notes.history.end(notes.history.begin(f"work/{job_id}", *ask), OK)

    def tell(self, queue: str, verb: str) -> None:
        self.notes.history.end(self.notes.history.begin(f"queue/{queue}", verb), OK)

    def _tick(self) -> int:
        self._now_ns += 1_000_000
        return self._now_ns


def test_more_leases_at_a_time_than_allowed():
    told, most = Told(), LIMITS["limited"].concurrency
    for number in range(most):
        told.do("limited", f"j{number}", "lease")
    check_tasks(told.notes)
    told.do("limited", "one more", "lease")
    with pytest.raises(AssertionError, match="limited"):
        check_tasks(told.notes)


def test_more_starts_in_a_while_than_allowed():
    told, limit = Told(), LIMITS["keyed"]
    for number in range(limit.rate):
        for key in ("red", "green"):
            told.do("keyed", f"{key}{number}", "lease", key=key)
            told.do("keyed", f"{key}{number}", "complete", b"r", 1, key=key)
    check_tasks(told.notes)
    told.do("keyed", "one more", "lease", key="red")
    with pytest.raises(AssertionError, match=r"keyed red: .* began within"):
        check_tasks(told.notes)


@pytest.mark.parametrize("ends", ["complete", "fail"])
@pytest.mark.parametrize("even_failed", [True, False])
def test_a_child_that_starts_early(ends: str, even_failed: bool):
    told = Told()
    told.notes.parents["child"] = ("parent",)
    told.notes.even_failed |= {"child"} if even_failed else set()
    told.do("chained", "parent", ends, b"r", 1)
    told.do("chained", "another", "lease")
    told.do("chained", "child", "lease")
    if ends == "complete" or even_failed:
        check_tasks(told.notes)
        told.notes.parents["child"] = ("another",)  # which has not ended
    with pytest.raises(AssertionError, match="before its parent"):
        check_tasks(told.notes)


def test_a_lease_of_a_paused_queue():
    told = Told()
    told.tell("keyed", "pause")
    told.tell("keyed", "resume")
    told.do("keyed", "fine", "lease", key="red")
    check_tasks(told.notes)
    told.tell("keyed", "pause")
    told.do("keyed", "wrong", "lease", key="green")
    with pytest.raises(AssertionError, match="paused"):
        check_tasks(told.notes)
