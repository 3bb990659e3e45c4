"""Nothing that was answered is lost, nothing is invented, nothing is leased after its end.

Six kills here; ``python -m tests.kills.server --service workq`` is the same loop for longer. The
rest shows that the checks of the loop notice what they are there to notice.
"""

from __future__ import annotations

import os
from uuid import UUID

import pytest

from journeyman.formats.workq import HEADER
from journeyman.storage import RemoveJob, Storage
from tests.support.crash.work_ledger import (
    COMPLETED,
    FAILED,
    LEASED,
    NEW,
    PENDING,
    Found,
    Line,
    WorkBook,
)
from tests.support.crash.work_ledger_cycles import KILLS, WorkCycles
from tests.support.servers.workq_process import WorkqProcess

NOW_S = 1000.0
THERE = Found(NEW, 0, 0, "payload", None)


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing_and_invent_nothing(tmp_path):
    tally = WorkCycles(tmp_path, seed=1).run(6)
    assert tally.kills.total() == 6
    assert set(tally.kills) == set(KILLS)
    assert tally.jobs > 500
    assert tally.finished > 10


class LostRecords(WorkCycles):
    """Between a kill and the start behind it, the store loses records, cleanly."""

    def _start(self) -> WorkqProcess:
        if (self.directory / "store").exists():
            with Storage.open("rocksdb", str(self.directory / "store")) as storage:
                storage.apply([RemoveJob(UUID(job_id)) for job_id in self._answered()[:5]])
        return super()._start()

    def _answered(self) -> list[str]:
        """Jobs that must be there, in whatever state: those that live long and nobody deletes."""
        lines = ((job_id, self._book.line(job_id)) for job_id in self._book.ids())
        return [
            job_id
            for job_id, line in lines
            if line.added and not line.delete_sent and not line.payload.startswith("brief")
        ]


@pytest.mark.slow
def test_many_workers_with_short_ttrs_and_hang_ups_leave_every_job_accounted_for(tmp_path):
    tally = WorkCycles(tmp_path, seed=2).soak(2.0, workers=30, adds=1000)
    assert tally.finished > 300


class CutLog(WorkCycles):
    """Between a kill and the start behind it, all records of the log get lost: of half of them
    none may have been answered."""

    def _start(self) -> WorkqProcess:
        for path in sorted((self.directory / "cmdlog").glob("*.log")):
            os.truncate(path, len(HEADER))
        return super()._start()


def test_loop_notices_that_the_log_has_lost_something(tmp_path):
    with pytest.raises(AssertionError, match=r"lost|came back|overtaken"):
        CutLog(tmp_path, seed=1).run(1)


# -- the book -------------------------------------------------------------------------------------


def book_of(*ids: str, added: bool = True, **fields) -> WorkBook:
    book = WorkBook()
    for job_id in ids:
        book.add_sent(job_id, Line(0, "payload", 10.0, 0, NOW_S + 100, **fields))
        if added:
            book.add_answered(job_id)
    return book


def test_job_that_was_answered_must_be_there():
    assert book_of("a").settle({"a": THERE}, NOW_S) == 0
    with pytest.raises(AssertionError, match="lost: a"):
        book_of("a").settle({"a": None}, NOW_S)


def test_jobs_that_were_not_answered_are_there_in_the_order_they_were_sent():
    assert book_of("a", "b", added=False).settle({"a": None, "b": None}, NOW_S) == 0
    assert book_of("a", "b", added=False).settle({"a": THERE, "b": None}, NOW_S) == 1
    with pytest.raises(AssertionError, match="overtaken"):
        book_of("a", "b", added=False).settle({"a": None, "b": THERE}, NOW_S)


def test_job_whose_ttl_is_over_is_gone():
    late_s = NOW_S + 200
    assert book_of("a").settle({"a": None}, late_s) == 0
    with pytest.raises(AssertionError, match="came back: a"):
        book_of("a").settle({"a": THERE}, late_s)


def test_deleted_job_stays_away():
    book = book_of("a", delete_sent=True)
    book.delete_answered("a", NOW_S)
    with pytest.raises(AssertionError, match="came back: a"):
        book.settle({"a": THERE}, NOW_S)


def test_delete_that_was_not_answered_may_have_been_done_or_not():
    for found in (None, THERE):
        book = book_of("a")
        book.delete_sent("a")
        assert book.settle({"a": found}, NOW_S) == 0


def test_result_that_was_answered_must_stand():
    book = book_of("a")
    book.finish_sent("a", True, b"r")
    book.finish_answered("a", True, b"r", "+OK", NOW_S)
    with pytest.raises(AssertionError, match="lost its result"):
        book.settle({"a": THERE}, NOW_S)
    done = Found(COMPLETED, 0, 0, "payload", (True, b"r"))
    assert book.settle({"a": done}, NOW_S) == 0


def test_result_must_be_one_that_was_sent():
    book = book_of("a")
    book.finish_sent("a", True, b"r")
    with pytest.raises(AssertionError, match="invented a result"):
        book.settle({"a": Found(COMPLETED, 0, 0, "payload", (True, b"x"))}, NOW_S)
    assert book.settle({"a": Found(COMPLETED, 0, 0, "payload", (True, b"r"))}, NOW_S) == 0


def test_payload_must_be_the_one_that_was_sent():
    with pytest.raises(AssertionError, match="invented: a"):
        book_of("a").settle({"a": Found(NEW, 0, 0, "other", None)}, NOW_S)


def test_attempts_are_those_that_were_given_out():
    book = book_of("a")
    book.leased("a", "payload", NOW_S, NOW_S)
    with pytest.raises(AssertionError, match="lost an attempt"):
        book.settle({"a": THERE}, NOW_S)
    with pytest.raises(AssertionError, match="invented an attempt"):
        book.settle({"a": Found(LEASED, 2, 0, "payload", None)}, NOW_S)
    book.open_leases = 1
    assert book.settle({"a": Found(LEASED, 2, 0, "payload", None)}, NOW_S) == 0


def test_fails_add_up_and_death_comes_after_the_last():
    book = WorkBook()
    book.add_sent("a", Line(0, "payload", 10.0, 2, NOW_S + 100))
    book.add_answered("a")
    book.finish_sent("a", False, b"1")
    book.finish_answered("a", False, b"1", "+OK", NOW_S)
    with pytest.raises(AssertionError, match="fails do not add up"):
        book.settle({"a": Found(PENDING, 0, 0, "payload", None)}, NOW_S)
    book.finish_sent("a", False, b"2")
    with pytest.raises(AssertionError, match="dead before"):
        book.settle({"a": Found(FAILED, 0, 1, "payload", (False, b"2"))}, NOW_S)
    assert book.settle({"a": Found(FAILED, 0, 2, "payload", (False, b"2"))}, NOW_S) == 0


@pytest.mark.parametrize(
    ("prepare", "complaint"),
    [
        (lambda book: book.leased("x", "payload", NOW_S, NOW_S), "nobody sent it"),
        (lambda book: book.leased("a", "other", NOW_S, NOW_S), "came with"),
        (lambda book: book.leased("a", "payload", NOW_S, NOW_S), ""),
    ],
)
def test_leases_are_checked_as_they_come(prepare, complaint):
    book = book_of("a")
    prepare(book)
    assert [complaint in wrong for wrong in book.wrong] == ([True] if complaint else [])


def test_lease_within_the_ttr_of_another_is_noticed():
    book = book_of("a")
    book.leased("a", "payload", NOW_S, NOW_S + 1)
    book.leased("a", "payload", NOW_S + 2, NOW_S + 9)
    assert len(book.wrong) == 1
    assert "leased twice" in book.wrong[0]


def test_lease_after_the_ttr_of_another_is_fine():
    book = book_of("a")
    book.leased("a", "payload", NOW_S, NOW_S + 1)
    book.leased("a", "payload", NOW_S + 2, NOW_S + 11)
    assert book.wrong == []


def test_finished_job_is_not_leased_again():
    book = book_of("a")
    book.finish_sent("a", True, b"r")
    book.finish_answered("a", True, b"r", "+OK", NOW_S)
    book.leased("a", "payload", NOW_S - 1, NOW_S + 1)
    assert book.wrong == []  # it may have been leased before
    book.leased("a", "payload", NOW_S + 1, NOW_S + 20)
    assert "after its end" in book.wrong[0]
