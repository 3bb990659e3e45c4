"""Workers that wait for jobs, clients that wait for results."""

from __future__ import annotations

import pytest

from journeyman.engines.workq.lifecycle import EXPIRED_LIMIT
from journeyman.engines.workq.messages import WorkqDue
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, TIMED_OUT, Finished, Leased
from tests.support.workq_engine import MS, Story, job_id, number_of


@pytest.fixture
def story() -> Story:
    return Story()


def leased(story: Story) -> list[tuple[object, int]]:
    return [(client, number_of(reply)) for client, reply in story.answers]


# -- lease -----------------------------------------------------------------------------------------


def test_a_ready_job_is_leased_at_once_without_waiting(story):
    story.add(1)
    assert story.lease(wait_ms=0) == 1


def test_a_worker_that_waits_gets_the_next_job(story):
    assert story.lease(wait_ms=1000, client="W") is None
    assert story.add(1) == DONE
    assert story.words() == ["add", "start-attempt"]
    assert story.answers == [("W", Leased(job_id(1), "q", 1000, b"job 1"))]


@pytest.mark.parametrize(("workers", "jobs"), [(50, 20), (20, 50), (50, 50)])
def test_as_many_jobs_are_leased_as_there_are_workers_and_jobs(story, workers, jobs):
    for worker in range(workers):
        story.lease("a", "b", "c", wait_ms=1000, client=worker)
    for number in range(jobs):
        story.add(number, "abc"[number % 3])
    assert len(leased(story)) == min(workers, jobs)
    assert [client for client, _ in leased(story)] == list(range(min(workers, jobs)))


def test_a_resumed_queue_serves_as_many_as_it_can(story):
    story.pause()
    for number in range(5):
        story.add(number)
    for worker in "ABC":
        story.lease(wait_ms=1000, client=worker)
    story.resume()
    assert leased(story) == [("A", 0), ("B", 1), ("C", 2)]


def test_a_worker_that_waits_for_several_names_gets_one_job(story):
    story.lease("a", "b", wait_ms=1000, client="W")
    story.add(1, "b")
    story.add(2, "a")
    assert leased(story) == [("W", 1)]
    assert story.lease("a") == 2


def test_a_wait_ends_when_its_time_is_over(story):
    story.lease(wait_ms=100, client="W")
    story.later(99)
    assert story.answers == []
    story.later(1)
    assert story.answers == [("W", TIMED_OUT)]
    story.add(1)
    assert story.lease() == 1


def test_a_worker_that_went_away_gets_no_job(story):
    story.lease(wait_ms=1000, client="gone")
    story.lease(wait_ms=1000, client="here")
    assert story.gone("gone") == DONE
    story.add(1)
    assert leased(story) == [("here", 1)]
    assert story.gone("gone") == NOT_FOUND
    assert story.gone("never seen") == NOT_FOUND


def test_a_job_that_times_out_goes_to_one_who_waits(story):
    story.add(1, ttr_ms=10)
    story.lease()
    story.lease(wait_ms=1000, client="W")
    assert story.later(10) == ["timeout-attempt", "start-attempt"]
    assert leased(story) == [("W", 1)]


def test_a_retried_job_goes_to_one_who_waits(story):
    story.add(1, max_fails=2)
    story.lease()
    story.lease(wait_ms=1000, client="W")
    story.fail(1)
    assert story.words() == ["fail", "timeout-attempt", "start-attempt"]
    assert leased(story) == [("W", 1)]


def test_a_job_that_becomes_due_goes_to_one_who_waits(story):
    story.schedule(1, 50)
    story.lease(wait_ms=1000, client="W")
    assert story.later(50) == ["start-attempt"]
    assert leased(story) == [("W", 1)]


def test_a_job_whose_ttl_is_over_is_leased_to_nobody(story):
    story.add(1, ttl_ms=10)
    story.add(2)
    story.now_ns += 10 * MS + 2
    assert story.lease() == 2
    assert story.words() == ["expire", "start-attempt"]


def test_many_expired_jobs_in_the_way_are_cleared_little_by_little(story):
    many = 3 * EXPIRED_LIMIT
    for number in range(many):
        story.add(number, ttl_ms=10)
    story.add(many)
    story.now_ns += 11 * MS
    assert story.lease(wait_ms=1000, client="W") is None
    assert story.words() == ["expire"] * EXPIRED_LIMIT
    story.decide(WorkqDue(limit=EXPIRED_LIMIT))
    story.later(0)
    assert leased(story) == [("W", many)]
    assert story.queue.stats().evicted == many


def test_an_undone_batch_forgets_nobody_who_waits_behind_expired_jobs(story):
    many = EXPIRED_LIMIT + 1
    for number in range(many):
        story.add(number, ttl_ms=10)
    story.add(many)
    story.now_ns += 11 * MS
    story.lease(wait_ms=1000, client="W")
    story.queue.begin_batch()
    story.decide(WorkqDue())
    story.queue.undo_batch()
    story.answers = []
    story.later(0)
    assert leased(story) == [("W", many)]


# -- result ----------------------------------------------------------------------------------------


def test_everyone_who_waits_for_a_result_has_it(story):
    story.add(1)
    for client in "ABC":
        assert story.result(1, client, wait_ms=1000) is None
    story.complete(1, b"pong")
    assert story.answers == [(client, Finished(job_id(1), True, b"pong")) for client in "ABC"]
    assert story.result(1, "D") == Finished(job_id(1), True, b"pong")


def test_everyone_who_waits_for_a_result_is_told_of_the_deletion(story):
    story.add(1)
    for client in "AB":
        story.result(1, client, wait_ms=1000)
    story.delete(1)
    assert story.answers == [("A", NOT_FOUND), ("B", NOT_FOUND)]


def test_everyone_who_waits_for_a_result_is_told_of_the_end_of_the_ttl(story):
    story.add(1, ttl_ms=10)
    story.result(1, "A", wait_ms=1000)
    story.later(10)
    assert story.answers == [("A", NOT_FOUND)]


def test_everyone_who_waits_is_told_when_the_attempts_run_out(story):
    story.add(1, ttr_ms=10, max_attempts=1)
    story.lease()
    story.result(1, "A", wait_ms=1000)
    assert story.later(10) == ["timeout-attempt"]
    assert story.answers == [("A", Finished(job_id(1), False, b""))]


def test_a_result_that_does_not_come_in_time(story):
    story.add(1)
    assert story.result(1, "A", wait_ms=0) == TIMED_OUT
    story.result(1, "A", wait_ms=10)
    story.later(10)
    assert story.answers == [("A", TIMED_OUT)]
    assert story.result(2, "A", wait_ms=10) == NOT_FOUND


def test_a_client_that_went_away_is_told_nothing(story):
    story.add(1)
    story.result(1, "A", wait_ms=1000)
    story.gone("A")
    story.complete(1)
    assert story.answers == []


# -- run -------------------------------------------------------------------------------------------


def test_a_run_waits_for_its_result_and_leaves_nothing_behind(story):
    assert story.run(1, "R") is None
    assert story.view(1).ttl_ms == 0
    assert story.lease() == 1
    assert story.complete(1, b"pong") == DONE
    assert story.answers == [("R", Finished(job_id(1), True, b"pong"))]
    assert story.view(1) is None
    assert story.queue.next_due_ns() is None
    assert story.log == []


def test_a_run_that_fails_is_told_so(story):
    story.run(1, "R")
    story.lease()
    story.fail(1, b"bad")
    assert story.answers == [("R", Finished(job_id(1), False, b"bad"))]
    assert story.log == []


def test_a_run_that_no_worker_takes_is_given_up(story):
    story.run(1, "R", wait_ms=200)
    story.later(200)
    assert story.answers == [("R", TIMED_OUT)]
    assert story.lease() == TIMED_OUT


def test_a_run_without_waiting_needs_a_worker_that_waits(story):
    assert story.run(1, "R", wait_ms=0) == TIMED_OUT
    assert story.view(1) is None
    story.lease(wait_ms=1000, client="W")
    assert story.run(1, "R", wait_ms=0) is None
    assert leased(story) == [("W", 1)]
    story.later(500)
    story.complete(1)
    assert story.answers[-1] == ("R", Finished(job_id(1), True, b"done"))


def test_a_run_that_was_begun_is_waited_for_until_its_ttr(story):
    story.run(1, "R", wait_ms=300, ttr_ms=1000)
    story.later(100)
    story.lease()
    story.later(999)
    assert story.answers == []
    story.later(1)
    assert story.answers == [("R", TIMED_OUT)]
    assert story.view(1) is None
    assert story.complete(1) == NOT_FOUND


def test_a_run_is_over_at_its_ttr_even_if_it_would_wait_longer(story):
    story.run(1, "R", wait_ms=5000, ttr_ms=300)
    story.lease()
    story.later(300)
    assert story.answers == [("R", TIMED_OUT)]
    assert story.lease() == TIMED_OUT


def test_a_run_that_is_deleted_is_told_so(story):
    story.run(1, "R")
    assert story.delete(1) == DONE
    assert story.answers == [("R", NOT_FOUND)]
    assert story.log == []


def test_both_a_run_and_a_result_have_the_answer(story):
    story.run(1, "R")
    story.result(1, "S", wait_ms=1000)
    story.lease()
    story.complete(1)
    done = Finished(job_id(1), True, b"done")
    assert story.answers == [("R", done), ("S", done)]


def test_a_run_that_is_given_up_is_not_found_for_others(story):
    story.run(1, "R", wait_ms=100)
    story.result(1, "S", wait_ms=1000)
    story.later(100)
    assert story.answers == [("R", TIMED_OUT), ("S", NOT_FOUND)]


def test_a_run_goes_with_its_client_unless_a_worker_is_at_it(story):
    story.run(1, "R")
    story.gone("R")
    assert story.view(1) is None
    story.run(2, "R")
    story.lease()
    story.result(2, "S", wait_ms=1000)
    story.gone("R")
    assert story.complete(2) == DONE
    assert [client for client, _ in story.answers] == ["S"]


def test_runs_are_gone_after_a_restart(story):
    story.run(1, "R")
    story.add(2)
    story.restart()
    assert story.view(1) is None
    assert story.lease() == 2
