"""What the commands of the work queue do, one at a time."""

from __future__ import annotations

from collections import Counter

import pytest

from journeyman.engines.workq.adding import NO_TIME_NS
from journeyman.engines.workq.messages import WorkqOutcome
from journeyman.formats.workq import Command, JobAdded
from journeyman.protocols.workq.commands import (
    Complaint,
    InspectDeadJobs,
    InspectJobs,
    InspectPausedQueues,
    InspectQueue,
    InspectQueues,
    InspectScheduledJobs,
    InspectServer,
    Lease,
    RefusedLine,
    ScheduleJob,
)
from journeyman.protocols.workq.replies import (
    DONE,
    NOT_FOUND,
    TIMED_OUT,
    Finished,
    JobList,
    Leased,
    QueueList,
    ServerView,
)
from journeyman.units import DAY_MS
from tests.support.workq_engine import MS, START_NS, Story, job_id
from tests.support.workq_original import Original

NEW, COMPLETED, FAILED, PENDING, LEASED = range(5)


@pytest.fixture
def story() -> Story:
    return Story()


def numbers(reply: object) -> list[int]:
    assert isinstance(reply, JobList)
    return [int.from_bytes(job.job_id[10:]) for job in reply.jobs]


def sizes_in(reply: object) -> list[tuple[str, int, int, bool]]:
    assert isinstance(reply, QueueList)
    return [(each.name, each.ready, each.scheduled, each.paused) for each in reply.queues]


# -- add, lease, complete --------------------------------------------------------------------------


def test_a_job_is_added_leased_and_completed(story):
    assert story.add(1, payload=b"ping", ttr_ms=700) == DONE
    assert story.words() == ["add"]
    assert story.decide(Lease(("q",), 0)) == Leased(job_id(1), "q", 700, b"ping")
    assert story.words() == ["start-attempt"]
    assert story.complete(1, b"pong") == DONE
    assert story.words() == ["complete"]
    assert story.result(1) == Finished(job_id(1), True, b"pong")


def test_an_id_is_taken_until_its_ttl_whatever_the_state_and_queue(story):
    duplicate = RefusedLine(Complaint.DUPLICATE_JOB)
    story.add(1, ttl_ms=100)
    assert story.add(1, "other") == duplicate
    story.lease()
    assert story.add(1) == duplicate
    story.complete(1)
    assert story.add(1) == duplicate
    assert story.words() == []
    story.later(100)
    assert story.add(1) == DONE


def test_an_add_ends_a_job_whose_ttl_is_over_though_nobody_looked_yet(story):
    story.add(1, ttl_ms=5)
    story.now_ns += 6 * MS
    assert story.add(1, payload=b"new") == DONE
    assert story.words() == ["expire", "add"]
    assert story.view(1).payload == b"new"


def test_priorities_come_first_and_within_one_the_order_of_adding(story):
    for number, priority in ((1, 0), (2, 5), (3, 0), (4, -1), (5, 9), (6, 0)):
        story.add(number, priority=priority)
    assert [story.lease() for _ in range(7)] == [5, 2, 1, 3, 6, 4, TIMED_OUT]


def test_jobs_of_one_moment_keep_their_order(story):
    story.queue.begin_batch()
    for number in (3, 1, 2):
        story.add(number)
    story.queue.commit_batch()
    created = [record.created.unix_ns for record in story.log if isinstance(record, JobAdded)]
    assert created == sorted(set(created))
    story.restart()
    assert [story.lease() for _ in range(3)] == [3, 1, 2]


def test_the_order_holds_when_the_clock_goes_back_a_little(story):
    story.add(1)
    story.now_ns -= 500 * MS
    story.add(2)
    assert [story.lease(), story.lease()] == [1, 2]


def test_a_clock_that_was_set_back_is_followed(story):
    story.add(1)
    story.now_ns -= 3600 * 1000 * MS
    story.add(2, ttl_ms=10)
    assert story.later(10) == ["expire"]


def test_complete_needs_no_lease_and_takes_the_job_out_of_the_queue(story):
    story.add(1)
    assert story.complete(1) == DONE
    assert story.lease() == TIMED_OUT


def test_a_late_result_is_taken_after_the_ttr(story):
    story.add(1, ttr_ms=10)
    story.lease()
    assert story.later(10) == ["timeout-attempt"]
    assert story.view(1).number_of_state == PENDING
    assert story.complete(1) == DONE
    assert story.lease() == TIMED_OUT


def test_a_second_result_is_refused(story):
    story.add(1)
    story.complete(1)
    assert story.complete(1) == RefusedLine(Complaint.DUPLICATE_RESULT)
    assert story.fail(1) == RefusedLine(Complaint.DUPLICATE_RESULT)
    assert story.result(1).result == b"done"


def test_what_is_not_there_is_not_found(story):
    for ask in (story.complete, story.fail, story.delete, story.result, story.requeue):
        assert ask(1) == NOT_FOUND
    assert story.view(1) is None


def test_a_deleted_job_is_gone_in_every_state(story):
    for number, make in enumerate((story.lease, lambda: story.complete(1), lambda: None)):
        story.add(1)
        make()
        assert story.delete(1) == DONE
        assert story.words() == ["delete"], number
        assert story.view(1) is None
        assert story.lease() == TIMED_OUT


# -- schedule --------------------------------------------------------------------------------------


def test_a_scheduled_job_is_leased_when_it_is_due(story):
    story.schedule(1, 50)
    assert story.lease() == TIMED_OUT
    assert story.view(1).number_of_state == NEW
    assert story.later(50) == []  # being due is not written
    assert story.lease() == 1


def test_a_due_job_takes_its_place_by_its_time(story):
    story.add(1)
    story.schedule(2, 50)
    story.later(40)
    story.add(3)
    story.later(20)
    story.add(4)
    assert [story.lease() for _ in range(4)] == [1, 3, 2, 4]


def test_a_time_in_the_past_is_no_way_to_the_front(story):
    story.add(1)
    story.schedule(2, -60_000)
    story.add(3)
    assert [story.lease() for _ in range(3)] == [1, 2, 3]


def test_the_ttl_of_a_scheduled_job_begins_at_its_time(story):
    story.schedule(1, 50, ttl_ms=10)
    assert story.later(59) == []
    assert story.later(1) == ["expire"]


def test_a_schedule_that_is_over_already_is_refused(story):
    assert story.schedule(1, -100, ttl_ms=100) == RefusedLine(Complaint.TIME)
    assert story.schedule(1, -100, ttl_ms=101) == DONE


def test_a_schedule_without_a_time_is_an_add(story):
    command = ScheduleJob(job_id(1), "q", 1000, 1000, NO_TIME_NS, b"")
    assert story.decide(command) == DONE
    assert story.words() == ["add"]
    assert story.lease() == 1


def test_a_schedule_may_reach_to_the_year_9999(story):
    far_ms = 250_000_000_000_000
    assert story.schedule(1, far_ms, ttl_ms=1000) == DONE
    story.restart()
    assert story.view(1).scheduled_ns == START_NS + far_ms * MS
    assert story.queue.next_due_ns() == START_NS + far_ms * MS


def test_a_scheduled_job_can_be_finished_before_its_time(story):
    story.schedule(1, 50)
    assert story.complete(1) == DONE
    assert sizes_in(story.decide(InspectQueue("q"))) == [("q", 0, 0, False)]
    assert story.later(60) == []
    assert story.lease() == TIMED_OUT


# -- fail and retry --------------------------------------------------------------------------------


def test_a_fail_is_final_without_max_fails(story):
    story.add(1)
    story.lease()
    assert story.fail(1) == DONE
    assert story.words() == ["fail"]
    assert story.result(1) == Finished(job_id(1), False, b"oops")
    assert (story.view(1).number_of_state, story.view(1).fails) == (FAILED, 1)


def test_max_fails_allows_so_many_failures_less_one(story):
    story.add(1, max_fails=3)
    for fails in (1, 2):
        assert story.lease() == 1
        story.fail(1)
        assert story.words() == ["fail", "timeout-attempt"]
        assert (story.view(1).number_of_state, story.view(1).fails) == (PENDING, fails)
    story.lease()
    story.fail(1)
    assert story.words() == ["fail"]
    assert (story.view(1).number_of_state, story.view(1).fails) == (FAILED, 3)


def test_a_retry_is_hidden_from_the_original_and_never_queues_a_job_there_twice(story):
    story.add(1, max_fails=3)
    story.lease()
    story.words()
    story.fail(1)
    assert [record.hidden for record in story.log[-2:]] == [True, False]
    story.fail(1)  # not leased
    assert [record.hidden for record in story.log[-2:]] == [True, True]
    story.lease()
    story.fail(1)
    assert not story.log[-1].hidden  # final
    story.restart()
    assert (story.view(1).number_of_state, story.view(1).fails) == (FAILED, 3)
    assert Original.replay(story.log) == (story.log[0], FAILED, 2, 0, b"oops")


def test_a_fail_is_final_when_no_attempt_is_left(story):
    story.add(1, max_fails=9, max_attempts=2)
    for _ in range(2):
        assert story.lease() == 1
        story.fail(1)
    assert story.view(1).number_of_state == FAILED
    assert story.lease() == TIMED_OUT


def test_a_retry_is_not_told_to_those_who_wait_for_the_result(story):
    story.add(1, max_fails=2)
    story.result(1, client="C", wait_ms=1000)
    story.fail(1)
    assert story.answers == []
    story.fail(1, b"again")
    assert story.answers == [("C", Finished(job_id(1), False, b"again"))]


def test_a_retried_job_returns_to_its_old_place(story):
    story.add(1, max_fails=2)
    story.add(2)
    story.lease()
    story.fail(1)
    assert [story.lease(), story.lease()] == [1, 2]


def test_a_retry_waits_for_its_delay(story):
    story.add(1, max_fails=2, retry_delay_ms=100)
    story.lease()
    story.later(10)
    story.fail(1)
    assert story.lease() == TIMED_OUT
    assert numbers(story.decide(InspectScheduledJobs("q", 0, 10))) == [1]
    story.later(99)
    assert story.lease() == TIMED_OUT
    story.later(1)
    assert story.lease() == 1


def test_the_delay_goes_on_through_a_restart(story):
    story.add(1, retry_delay_ms=100, ttr_ms=10)
    story.lease()
    story.later(10)
    story.restart(after_ms=60)
    assert story.view(1).max_fails == 0
    story.later(39)
    assert story.lease() == TIMED_OUT
    story.later(1)
    assert story.lease() == 1


# -- dead jobs -------------------------------------------------------------------------------------


def test_failed_jobs_are_dead_until_their_ttl(story):
    story.add(1)
    story.add(2, max_attempts=1, ttr_ms=10, ttl_ms=5000)
    story.add(3)
    story.fail(1)
    story.lease()
    story.complete(3)
    story.later(10)
    assert numbers(story.decide(InspectDeadJobs("q", 0, 10))) == [1, 2]
    story.later(5000)
    assert numbers(story.decide(InspectDeadJobs("q", 0, 10))) == [1]


def test_a_dead_job_gets_a_new_life(story):
    story.add(1, max_attempts=1, ttl_ms=1000, ttr_ms=10, payload=b"p", priority=3)
    story.add(2, priority=3)
    story.lease()
    story.later(900)
    assert story.requeue(1) == DONE
    assert story.words() == ["delete", "add"]
    story.restart()
    view = story.view(1)
    assert (view.number_of_state, view.attempts, view.fails, view.payload) == (NEW, 0, 0, b"p")
    assert story.later(999) == []  # its TTL has begun anew
    assert [story.lease(), story.lease()] == [2, 1]


def test_a_requeued_job_goes_to_one_who_waits(story):
    story.add(1)
    story.fail(1)
    story.lease(wait_ms=100, client="W")
    story.requeue(1)
    assert [client for client, _ in story.answers] == ["W"]
    assert story.words() == ["delete", "add", "start-attempt"]


def test_only_a_dead_job_can_be_requeued(story):
    story.add(1)
    assert story.requeue(1) == RefusedLine(Complaint.NOT_DEAD)
    story.complete(1)
    assert story.requeue(1) == RefusedLine(Complaint.NOT_DEAD)


def test_the_original_replays_a_requeue(story):
    story.add(1)
    story.lease()
    story.fail(1)
    story.requeue(1)
    story.lease()
    replayed = Original.replay(story.log)
    assert replayed is not None
    _, state, attempts, _, result = replayed
    assert (state, attempts, result) == (LEASED, 1, None)


# -- several names, pauses -------------------------------------------------------------------------


def test_the_queue_is_chosen_by_chance_among_those_with_a_job():
    story = Story(seed=11)
    for number in range(3000):
        story.add(number, "abc"[number % 3])
    chosen = Counter(story.lease("empty", "c", "a", "b") % 3 for _ in range(900))
    assert sorted(chosen) == [0, 1, 2]
    assert min(chosen.values()) > 250


def test_chance_comes_from_the_seed():
    def choices(seed: int) -> list[int]:
        story = Story(seed)
        for number in range(20):
            story.add(number, "ab"[number % 2])
        return [story.lease("a", "b") for _ in range(20)]

    assert choices(5) == choices(5)
    assert len({tuple(choices(seed)) for seed in range(5)}) > 1


def test_a_name_that_comes_twice_counts_once(story):
    story.lease("q", "q", wait_ms=100, client="W")
    story.add(1)
    story.add(2)
    assert [client for client, _ in story.answers] == ["W"]


def test_a_paused_queue_gives_nothing_out(story):
    assert story.pause() == DONE
    story.add(1)
    assert story.lease() == TIMED_OUT
    story.add(2, "other")
    assert story.lease("q", "other") == 2
    assert story.lease(wait_ms=1000, client="W") is None
    assert story.resume() == DONE
    assert [client for client, _ in story.answers] == ["W"]


def test_pausing_twice_changes_nothing(story):
    story.pause()
    story.pause()
    assert story.last.effects == ()
    story.resume()
    story.resume()
    assert story.last.effects == ()
    assert story.resume("never seen") == DONE
    assert story.decide(InspectQueue("never seen")) == NOT_FOUND


def test_pauses_are_given_back_at_a_restart(story):
    story.add(1)
    story.pause()
    story.pause("empty")
    story.restart()
    assert story.queue.paused == {"q", "empty"}
    assert story.lease() == TIMED_OUT
    paused = story.decide(InspectPausedQueues(0, 10))
    assert sizes_in(paused) == [("empty", 0, 0, True), ("q", 1, 0, True)]


# -- inspect ---------------------------------------------------------------------------------------


def test_lists_have_pages(story):
    for number in range(5):
        story.add(number)
    assert numbers(story.decide(InspectJobs("q", 0, 2))) == [0, 1]
    assert numbers(story.decide(InspectJobs("q", 3, 100))) == [3, 4]
    assert numbers(story.decide(InspectJobs("q", 5, 1))) == []
    assert story.decide(InspectJobs("none", 0, 1)) == NOT_FOUND


def test_scheduled_jobs_are_listed_by_priority_and_then_by_time(story):
    story.schedule(1, 50)
    story.schedule(2, 40)
    story.schedule(3, 90, priority=1)
    assert numbers(story.decide(InspectScheduledJobs("q", 0, 10))) == [3, 2, 1]


def test_queues_are_listed_in_the_order_of_their_bytes(story):
    for number, name in enumerate(("b", "a", "Z")):
        story.add(number, name)
    queues = story.decide(InspectQueues(0, 10))
    assert [queue.name for queue in queues.queues] == ["Z", "a", "b"]
    assert sizes_in(story.decide(InspectQueues(1, 1))) == [("a", 1, 0, False)]
    assert story.decide(InspectQueues(3, 1)) == QueueList(())


def test_only_unfinished_jobs_are_evicted(story):
    for number in range(4):
        story.add(number, ttl_ms=10)
    story.lease()
    story.complete(1)
    story.fail(2)
    assert story.later(10) == ["expire"] * 4
    assert story.decide(InspectServer()) == ServerView(0, 2, 0)
    assert story.queue.stats().evicted == 2


def test_stats_count_every_job_once(story):
    for number in range(5):
        story.add(number)
    story.schedule(5, 100)
    story.complete(0)
    story.fail(1)
    story.lease()
    story.result(3, client="R", wait_ms=10)
    assert story.queue.stats() == (2, 1, 1, 1, 1, 1, 1, 0, 0)


# -- batches ---------------------------------------------------------------------------------------


def test_an_undone_batch_leaves_nothing_behind():
    story = Story()
    story.add(1)
    story.lease("w", wait_ms=1000, client="W")
    before = story.queue.stats()
    story.queue.begin_batch()
    story.lease()
    story.complete(1)
    story.add(2, "w")
    story.add(3, "new")
    story.pause("new")
    story.queue.undo_batch()
    assert story.queue.stats() == before
    assert story.queue.paused == frozenset()
    assert story.decide(InspectQueue("new")) == NOT_FOUND
    assert story.lease() == 1
    story.answers = []
    story.add(4, "w")
    assert [client for client, _ in story.answers] == ["W"]


def test_who_waited_has_his_old_place_after_an_undo():
    story = Story()
    for client in "ABC":
        story.lease(wait_ms=1000, client=client)
    story.queue.begin_batch()
    story.gone("B")
    story.add(1)
    story.queue.undo_batch()
    story.answers = []
    for number in range(3):
        story.add(number)
    assert [client for client, _ in story.answers] == ["A", "B", "C"]


def test_the_same_commands_give_the_same_outcomes():
    def outcomes() -> list[WorkqOutcome]:
        story = Story(seed=3)
        found = []
        for number in range(30):
            story.add(number, "ab"[number % 2])
            found.append(story.last)
            story.lease("a", "b")
            found.append(story.last)
        return found

    assert outcomes() == outcomes()


def test_the_command_of_every_record_is_one_of_the_original(story):
    story.add(1, max_fails=2, ttl_ms=1000, ttr_ms=10)
    story.lease()
    story.fail(1)
    story.lease()
    story.later(2000)
    assert {record.command for record in story.log} == {
        Command.ADD,
        Command.START_ATTEMPT,
        Command.FAIL,
        Command.TIMEOUT_ATTEMPT,
        Command.EXPIRE,
    }


def test_a_ttl_of_thirty_days_is_kept(story):
    story.add(1, ttl_ms=30 * DAY_MS)
    assert story.queue.next_due_ns() == story.log[0].logged.unix_ns + 30 * DAY_MS * MS
