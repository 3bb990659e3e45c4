"""Nothing that was answered is lost, nothing is invented, nothing runs after it was executed.

Six kills here; ``python -m tests.kills.server --cycles 200`` is the same loop for longer. The rest
shows that the ledger itself tells what it is there to tell.
"""

from __future__ import annotations

import os

import pytest

from journeyman.formats.framing import scan
from journeyman.formats.ztick import CODEC
from tests.support.crash.schedule_ledger import Key, Page, RunBook, Value
from tests.support.crash.schedule_ledger_cycles import KILLS, LOG, Cycles

A: Key = ("job", "keep.0.1")
B: Key = ("job", "keep.0.2")
RUN = ("run.0.1", 7)


def page_of(*values: tuple[Key, Value | None], answered: int) -> Page:
    page = Page()
    for key, value in values:
        if value is None:
            page.remove(key, "REMOVE")
        else:
            page.put(key, value, "SET")
    page.answered = answered
    return page


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing_and_invent_nothing(tmp_path):
    tally = Cycles(tmp_path, seed=1).run(6)
    assert tally.kills.total() == 6
    assert set(tally.kills) == set(KILLS)
    assert tally.answered > 500
    assert tally.unanswered > 0
    assert tally.lists > 0
    assert tally.executed > 0


class CutLog(Cycles):
    """Between a kill and the next start, the log loses everything but the rule of the runs: of a
    half, nothing may have been answered."""

    compaction_interval_s = 3600

    def _start(self):
        log = self.directory / LOG
        if log.exists():
            entries, _ = scan(CODEC, log.read_bytes())
            os.truncate(log, entries[2].end)  # a seal, the rule, its seal
        return super()._start()


def test_loop_notices_that_the_log_has_lost_something(tmp_path):
    with pytest.raises(AssertionError, match="lost: "):
        CutLog(tmp_path, seed=1).run(1)


def test_ledger_accepts_any_cut_behind_what_was_answered():
    changes = ((A, 1), (B, 2), (A, 3), (B, None))
    possible: list[dict[Key, Value]] = [{A: 1, B: 2}, {A: 3, B: 2}, {A: 3}]
    for survived, found in enumerate(possible):
        assert page_of(*changes, answered=2).settle(found) == survived


def test_ledger_misses_a_job_that_was_answered():
    with pytest.raises(AssertionError, match=r"lost: \('job', 'keep.0.2'\)"):
        page_of((A, 1), (B, 2), answered=2).settle({A: 1})


def test_ledger_misses_a_change_that_was_answered():
    with pytest.raises(AssertionError, match="lost"):
        page_of((A, 1), (A, 2), answered=2).settle({A: 1})


def test_ledger_finds_a_removed_job_that_came_back():
    with pytest.raises(AssertionError, match="lost"):
        page_of((A, 1), (A, None), answered=2).settle({A: 1})


def test_ledger_finds_a_job_that_nobody_sent():
    with pytest.raises(AssertionError, match="invented"):
        page_of((A, 1), answered=0).settle({A: 1, B: 9})


def test_ledger_finds_unanswered_commands_that_overtook_one_another():
    with pytest.raises(AssertionError, match="no moment"):
        page_of((A, 1), (B, 2), answered=0).settle({B: 2})


def test_ledger_misses_what_was_seen_though_it_was_not_answered():
    page = page_of((A, 1), answered=0)
    page.saw(A, 1)
    with pytest.raises(AssertionError, match="lost"):
        page.settle({})


def test_possible_is_what_is_proven_and_what_may_have_come_behind_it():
    page = page_of((A, 1), (B, 2), (A, None), (B, 3), answered=2)
    assert set(page.possible()) == {(A, 1), (B, 2), (B, 3)}
    page.answered = 3
    assert set(page.possible()) == {(B, 2), (B, 3)}


def test_a_new_life_begins_with_what_was_found():
    page = page_of((A, 1), (B, 2), answered=0)
    page.settle({A: 1})
    assert page.remove(A, "REMOVE").succeeds
    assert not page.remove(B, "REMOVE").succeeds
    page.answered = 2
    assert page.settle({}) == 0


def test_a_job_cut_off_by_a_kill_may_run_once_more():
    book = RunBook()
    book.sent(1, RUN)
    book.begin(2, [RUN])
    book.told_executed(RUN)
    assert list(book.wrong([(1, RUN), (2, RUN)])) == []


def test_a_job_that_was_executed_may_not_run_in_the_next_life():
    book = RunBook()
    book.sent(1, RUN)
    book.told_executed(RUN)
    book.begin(2, [RUN])
    assert list(book.wrong([(1, RUN), (2, RUN)])) == [f"{RUN} ran in life 2 after it was executed"]


def test_a_job_may_not_run_twice_in_one_life():
    book = RunBook()
    book.sent(1, RUN)
    assert list(book.wrong([(1, RUN), (1, RUN)])) == [f"{RUN} ran twice in life 1"]


def test_a_job_that_is_gone_may_not_run():
    book = RunBook()
    book.sent(1, RUN)
    book.begin(2, [])
    assert list(book.wrong([(2, RUN)])) == [f"{RUN} ran in life 2 without being there"]


def test_a_job_that_never_ran_cannot_be_executed():
    book = RunBook()
    book.told_executed(RUN)
    assert list(book.wrong([])) == [f"{RUN} is said to be executed but never ran"]
