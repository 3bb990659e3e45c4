"""What time does to jobs, through restarts too."""

from __future__ import annotations

import pytest

from journeyman.engines.workq.messages import WorkqDue
from journeyman.protocols.workq.replies import TIMED_OUT
from tests.support.workq_engine import MS, Story

PENDING, LEASED = 3, 4


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_lease_ends_with_its_ttr_and_the_job_returns_to_its_place(story):
    story.add(1, ttr_ms=10)
    story.lease()
    story.add(2)
    story.later(9)
    assert story.view(1).number_of_state == LEASED
    assert story.later(1) == ["timeout-attempt"]
    assert story.view(1).number_of_state == PENDING
    assert [story.lease(), story.lease()] == [1, 2]


def test_attempts_run_out(story):
    story.add(1, ttr_ms=10, max_attempts=2)
    for _ in range(2):
        assert story.lease() == 1
        story.later(10)
    view = story.view(1)
    assert (view.number_of_state, view.attempts, view.fails) == (2, 2, 0)
    assert story.lease() == TIMED_OUT


def test_attempts_are_unlimited_unless_told_otherwise(story):
    story.add(1, ttr_ms=1)
    for _ in range(300):
        assert story.lease() == 1
        story.later(1)
    assert story.view(1).attempts == 300
    story.restart()
    assert story.view(1).attempts == 300


def test_a_lease_keeps_the_time_it_has_left_through_a_restart(story):
    story.add(1, ttr_ms=1000)
    story.lease()
    story.restart(after_ms=600)
    assert story.view(1).number_of_state == LEASED
    assert story.later(399) == []
    assert story.later(1) == ["timeout-attempt"]


def test_a_lease_that_ran_out_meanwhile_ends_at_the_start(story):
    story.add(1, ttr_ms=10)
    story.lease()
    story.restart(after_ms=50)
    assert story.later(0) == ["timeout-attempt"]
    assert story.lease() == 1


def test_a_ttl_is_a_moment_and_not_begun_anew_at_a_restart(story):
    story.add(1, ttl_ms=3000)
    story.restart(after_ms=2000)
    assert story.later(999) == []
    assert story.later(1) == ["expire"]


def test_what_expired_meanwhile_is_not_there_and_nothing_is_written(story):
    story.add(1, ttl_ms=10)
    story.restart(after_ms=10)
    assert story.view(1) is None
    assert story.queue.next_due_ns() is None
    assert story.add(1) is not None
    story.restart()
    assert story.lease() == 1


def test_results_are_back_after_a_restart(story):
    story.add(1)
    story.add(2)
    story.lease()
    story.complete(1, b"pong")
    story.fail(2, b"oops")
    story.restart()
    assert (story.result(1).success, story.result(1).result) == (True, b"pong")
    assert (story.result(2).success, story.result(2).result) == (False, b"oops")


def test_a_scheduled_job_that_became_due_meanwhile_is_ready(story):
    story.schedule(1, 50)
    story.schedule(2, 500)
    story.restart(after_ms=60)
    assert story.lease() == 1
    assert story.lease() == TIMED_OUT


def test_a_step_is_bounded_however_much_is_due(story):
    jobs = 1000
    for number in range(jobs):
        story.add(number, ttl_ms=10)
    story.now_ns += 11 * MS
    steps = 0
    while (due_ns := story.queue.next_due_ns()) is not None and due_ns <= story.now_ns:
        story.decide(WorkqDue(limit=100))
        assert len(story.last.records) == 100
        steps += 1
    assert steps == jobs // 100
    assert story.queue.stats().evicted == jobs


def test_no_kind_of_deadline_starves_another(story):
    for number in range(400):
        story.add(number, "dying", ttl_ms=10)
    story.add(500, "leased", ttr_ms=5)
    story.lease("leased")
    story.schedule(501, 10, "due")
    story.lease("nothing", wait_ms=5, client="W")
    story.now_ns += 11 * MS
    story.decide(WorkqDue(limit=8))
    assert [record.command.word for record in story.last.records].count("timeout-attempt") == 1
    assert story.answers == [("W", TIMED_OUT)]
    assert story.lease("due") == 501


def test_the_next_moment_is_known_exactly(story):
    assert story.queue.next_due_ns() is None
    story.add(1, ttl_ms=1000, ttr_ms=100)
    created_ns = story.log[0].logged.unix_ns
    assert story.queue.next_due_ns() == created_ns + 1000 * MS
    story.lease()
    assert story.queue.next_due_ns() == created_ns + 100 * MS
    story.schedule(2, 50)
    assert story.queue.next_due_ns() == created_ns + 50 * MS
    story.lease(wait_ms=20, client="W")
    assert story.queue.next_due_ns() == created_ns + 1 + 20 * MS
    story.gone("W")
    story.delete(2)
    story.complete(1)
    assert story.queue.next_due_ns() == created_ns + 1000 * MS
    story.delete(1)
    assert story.queue.next_due_ns() is None
