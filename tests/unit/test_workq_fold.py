"""The fold of the workq command log, rule by rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from journeyman.folds import Anomaly, AnomalyKind, workq
from journeyman.folds.workq import FoldedJob, JobState, Orphans
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished, Record

MS = 1_000_000
JOB_ID = bytes.fromhex("0000000a000040008000000000000001")
NEW, COMPLETED, FAILED, PENDING, LEASED = (
    JobState.NEW,
    JobState.COMPLETED,
    JobState.FAILED,
    JobState.PENDING,
    JobState.LEASED,
)


def ms(at: float) -> Instant:
    return Instant(int(at * MS))


def add(at: float = 0, created: float | None = None, **fields: object) -> JobAdded:
    job = JobAdded(
        logged=ms(at),
        job_id=JOB_ID,
        name="jobs",
        ttr_ms=100,
        ttl_ms=10_000,
        priority=0,
        max_attempts=0,
        max_fails=0,
        payload=b"ping",
        time=None,
        created=ms(at if created is None else created),
    )
    return replace(job, **fields)  # type: ignore[arg-type]


def event(command: Command, at: float) -> JobEvent:
    return JobEvent(ms(at), JOB_ID, command)


def start(at: float) -> JobEvent:
    return event(Command.START_ATTEMPT, at)


def timeout(at: float) -> JobEvent:
    return event(Command.TIMEOUT_ATTEMPT, at)


def delete(at: float) -> JobEvent:
    return event(Command.DELETE, at)


def expire(at: float) -> JobEvent:
    return event(Command.EXPIRE, at)


def complete(at: float, result: bytes = b"done") -> JobFinished:
    return JobFinished(ms(at), JOB_ID, Command.COMPLETE, result)


def fail(at: float, result: bytes = b"oops") -> JobFinished:
    return JobFinished(ms(at), JOB_ID, Command.FAIL, result)


def folded(*records: Record) -> tuple[workq.State, list[AnomalyKind]]:
    notes: list[Anomaly] = []
    state = workq.fold(records, notes.append)
    assert workq.fold(workq.snapshot(state)) == state
    return state, [note.kind for note in notes]


def job_of(*records: Record) -> FoldedJob:
    """The job after records in which nothing is odd."""
    state, kinds = folded(*records)
    assert kinds == []
    assert isinstance(state, FoldedJob)
    return state


def odd_job(*records: Record) -> tuple[FoldedJob, list[AnomalyKind]]:
    state, kinds = folded(*records)
    assert isinstance(state, FoldedJob)
    return state, kinds


def lost(*records: Record) -> list[object]:
    notes: list[Anomaly] = []
    workq.fold(records, notes.append)
    return [record for note in notes for record in note.records]


# -- a life without surprises ------------------------------------------------------------------


def test_an_added_job_is_new():
    job = job_of(add())
    assert (job.state, job.attempts, job.fails, job.result) == (NEW, 0, 0, None)


def test_a_lease_counts_an_attempt_and_has_a_deadline():
    job = job_of(add(), start(5))
    assert (job.state, job.attempts) == (LEASED, 1)
    assert workq.lease_deadline_ns(job) == 105 * MS


def test_a_lease_that_runs_out_queues_the_job_again():
    job = job_of(add(), start(5), timeout(105))
    assert (job.state, job.attempts, job.result) == (PENDING, 1, None)
    assert workq.lease_deadline_ns(job) is None


def test_a_lease_ends_by_its_timeout_even_before_its_ttr():
    assert job_of(add(), start(5), timeout(6)).state == PENDING


def test_the_last_attempt_that_runs_out_fails_the_job_with_an_empty_result():
    job = job_of(add(max_attempts=2), start(1), timeout(101), start(102), timeout(202))
    assert (job.state, job.attempts, job.result) == (FAILED, 2, b"")


@pytest.mark.parametrize(
    "before", [[], [start(1)], [start(1), timeout(101)]], ids=["new", "leased", "pending"]
)
@pytest.mark.parametrize(("finish", "state"), [(complete, COMPLETED), (fail, FAILED)])
def test_a_result_finishes_a_job_in_any_unfinished_state(before, finish, state):
    job = job_of(add(), *before, finish(150, b"r"))
    assert (job.state, job.result, job.finished) == (state, b"r", ms(150))


@pytest.mark.parametrize("end", [delete, expire])
@pytest.mark.parametrize(
    "before", [[], [start(1)], [complete(1)], [fail(1)]], ids=["new", "leased", "done", "failed"]
)
def test_an_end_leaves_nothing_in_any_state(before, end):
    assert folded(add(), *before, end(2)) == (None, [])


def test_an_id_can_be_used_again_after_its_end():
    again = add(2, payload=b"again")
    assert job_of(add(), start(1), delete(2), again) == FoldedJob(again)


def test_fail_is_final_even_when_max_fails_would_allow_more():
    job = job_of(add(max_fails=2), start(1), fail(2))
    assert (job.state, job.fails, job.result) == (FAILED, 0, b"oops")


# -- retries -----------------------------------------------------------------------------------


def test_a_fail_with_its_retry_queues_the_job_again():
    failed = fail(2)
    job = job_of(add(max_fails=2), start(1), failed, workq.retry_of(failed))
    assert (job.state, job.fails, job.attempts, job.result) == (PENDING, 1, 1, None)
    assert job.finished is None


def test_no_more_retries_than_max_fails_allows():
    first, second = fail(2), fail(4)
    job, kinds = odd_job(
        add(max_fails=2), first, workq.retry_of(first), second, workq.retry_of(second)
    )
    assert (job.state, job.fails, job.result) == (FAILED, 1, b"oops")
    assert kinds == [AnomalyKind.TIMEOUT_AFTER_FINISH]


def test_a_timeout_with_another_time_than_the_fail_is_no_retry():
    job, kinds = odd_job(add(max_fails=5), start(1), fail(2), timeout(2.001))
    assert (job.state, job.fails, job.result) == (FAILED, 0, b"oops")
    assert kinds == [AnomalyKind.TIMEOUT_AFTER_FINISH]


def test_a_retry_may_go_beyond_max_attempts():
    failed = fail(2)
    job = job_of(add(max_fails=3, max_attempts=1), start(1), failed, workq.retry_of(failed))
    assert (job.state, job.attempts, job.fails) == (PENDING, 1, 1)


# -- attempts and results out of order ---------------------------------------------------------


def test_a_timeout_without_a_lease_makes_the_job_pending():
    job, kinds = odd_job(add(), timeout(1))
    assert (job.state, job.attempts) == (PENDING, 0)
    assert kinds == [AnomalyKind.TIMEOUT_WITHOUT_LEASE]


def test_the_timeout_of_an_earlier_lease_does_not_end_the_present_one():
    job, kinds = odd_job(add(), start(1), start(101), timeout(101.1))
    assert (job.state, job.attempts) == (LEASED, 2)
    assert workq.lease_deadline_ns(job) == 201 * MS
    assert kinds == [AnomalyKind.START_WHILE_LEASED, AnomalyKind.LATE_TIMEOUT]


def test_after_the_late_timeout_the_next_one_ends_the_lease():
    job, _ = odd_job(add(), start(1), start(101), timeout(101.1), timeout(150))
    assert job.state == PENDING


def test_a_timeout_after_the_ttr_ends_the_lease_whatever_is_owed():
    job, kinds = odd_job(add(), start(1), start(101), timeout(201))
    assert (job.state, job.owed_timeouts) == (PENDING, 0)
    assert kinds == [AnomalyKind.START_WHILE_LEASED]


def test_a_late_timeout_does_not_exhaust_the_attempts():
    raced: list[Record] = [add(max_attempts=2), start(1), start(101), timeout(101.1)]
    job, _ = odd_job(*raced, complete(120))
    assert (job.state, job.result) == (COMPLETED, b"done")
    job, _ = odd_job(*raced, timeout(202))
    assert (job.state, job.result) == (FAILED, b"")


def test_without_a_ttr_no_timeout_is_owed():
    job, kinds = odd_job(add(ttr_ms=0), start(1), start(2), timeout(1.5))
    assert job.state == PENDING
    assert AnomalyKind.LATE_TIMEOUT not in kinds


def test_a_lease_beyond_max_attempts_counts_and_is_reported():
    failed = fail(2)
    job, kinds = odd_job(
        add(max_attempts=1, max_fails=2), start(1), failed, workq.retry_of(failed), start(3)
    )
    assert (job.state, job.attempts) == (LEASED, 2)
    assert kinds == [AnomalyKind.START_OVER_LIMIT]


@pytest.mark.parametrize("finish", [complete, fail])
def test_a_finished_job_is_not_leased(finish):
    job, kinds = odd_job(add(), finish(1), start(2))
    assert (job.attempts, job.finished) == (0, ms(1))
    assert kinds == [AnomalyKind.START_AFTER_FINISH]


@pytest.mark.parametrize("finish", [complete, fail])
def test_a_finished_job_does_not_time_out(finish):
    job, kinds = odd_job(add(), start(1), finish(2), timeout(101))
    assert job.finished == ms(2)
    assert kinds == [AnomalyKind.TIMEOUT_AFTER_FINISH]


@pytest.mark.parametrize("second", [complete, fail])
@pytest.mark.parametrize("first", [complete, fail])
def test_the_first_result_stands(first, second):
    records = [add(), first(1, b"first"), second(2, b"second")]
    job, kinds = odd_job(*records)
    assert (job.result, job.finished) == (b"first", ms(1))
    assert kinds == [AnomalyKind.SECOND_RESULT]
    assert lost(*records) == [second(2, b"second")]


@pytest.mark.parametrize(("finish", "state"), [(complete, COMPLETED), (fail, FAILED)])
def test_a_result_in_the_log_outweighs_exhausted_attempts(finish, state):
    job, kinds = odd_job(add(max_attempts=1), start(1), timeout(101), finish(102, b"r"))
    assert (job.state, job.result, job.exhausted) == (state, b"r", False)
    assert kinds == [AnomalyKind.RESULT_AFTER_EXHAUSTION]


def test_exhausted_attempts_are_not_retried():
    ended = timeout(101)
    job, kinds = odd_job(add(max_attempts=1, max_fails=5), start(1), ended, ended)
    assert (job.state, job.fails) == (FAILED, 0)
    assert kinds == [AnomalyKind.TIMEOUT_AFTER_FINISH]


# -- adds --------------------------------------------------------------------------------------


def test_the_same_add_again_changes_nothing():
    job, kinds = odd_job(add(), start(1), add(2, created=0))
    assert job == job_of(add(), start(1))
    assert kinds == [AnomalyKind.REPEATED_ADD]


def test_another_add_of_a_living_job_begins_a_new_life_and_the_old_one_is_reported():
    other = add(5, payload=b"other")
    records: list[Record] = [add(), start(1), complete(2), other]
    job, kinds = odd_job(*records)
    assert job == FoldedJob(other)
    assert kinds == [AnomalyKind.REPLACED_JOB]
    assert lost(*records) == records[:3]


def test_an_add_after_the_ttl_of_the_former_job_is_nothing_odd():
    again = add(10_000)
    assert job_of(add(), start(1), again) == FoldedJob(again)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "bad!name"},
        {"name": ""},
        {"name": "n" * 256},
        {"ttr_ms": 0},
        {"ttr_ms": 86_400_001},
        {"ttl_ms": 0},
        {"ttl_ms": 2_592_000_001},
        {"priority": 2**31},
        {"max_attempts": 256},
        {"max_fails": 256},
        {"payload": bytes(1_048_577)},
        {"job_id": bytes(16)},
        {"command": Command.SCHEDULE},
        {"time": ms(5)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_job_with_an_unusable_value_is_kept_and_reported(fields):
    job, kinds = odd_job(add(**fields))
    assert job.state == NEW
    assert kinds == [AnomalyKind.UNUSABLE_VALUE]


def test_values_at_their_limits_are_usable():
    widest: dict[str, Any] = {"name": "n" * 255, "ttr_ms": 86_400_000, "ttl_ms": 2_592_000_000}
    job_of(add(**widest, priority=-(2**31), max_attempts=255, max_fails=255))
    job_of(add(command=Command.SCHEDULE, time=ms(5), ttr_ms=1, ttl_ms=1, name="n"))


# -- records before their add ------------------------------------------------------------------


def test_records_before_the_add_are_applied_to_it():
    job, kinds = odd_job(start(1), complete(2), add(3, created=1))
    assert (job.state, job.attempts, job.result) == (COMPLETED, 1, b"done")
    assert kinds == [AnomalyKind.ORPHAN] * 2 + [AnomalyKind.ADOPTED_ORPHAN] * 2


def test_nothing_of_a_job_is_older_than_its_add():
    leased, _ = odd_job(start(1), add(3, created=1))
    assert leased.started == ms(3)
    finished, _ = odd_job(complete(1), add(3, created=1))
    assert finished.finished == ms(3)


def test_records_older_than_the_add_belong_to_an_earlier_life():
    job, kinds = odd_job(start(1), complete(2), start(6), add(7, created=5))
    assert (job.state, job.attempts) == (LEASED, 1)
    assert kinds == [AnomalyKind.ORPHAN] * 3 + [
        AnomalyKind.STALE_ORPHAN,
        AnomalyKind.STALE_ORPHAN,
        AnomalyKind.ADOPTED_ORPHAN,
    ]


def test_a_delete_before_its_add_deletes_it():
    late = add(3, created=1)
    state, kinds = folded(start(1.5), delete(2), late)
    assert state is None
    assert kinds == [AnomalyKind.ORPHAN] * 2 + [AnomalyKind.DELETED_BEFORE_ADD]
    assert late in lost(start(1.5), delete(2), late)


def test_a_job_created_when_the_former_was_deleted_lives():
    job, kinds = odd_job(delete(2), add(2))
    assert job == FoldedJob(add(2))
    assert kinds == [AnomalyKind.ORPHAN, AnomalyKind.STALE_ORPHAN]


def test_a_deleted_add_leaves_what_belongs_to_the_next_life():
    state, _ = folded(delete(2), start(5), add(3, created=1))
    assert state == Orphans([start(5)])
    job, _ = odd_job(delete(2), start(5), add(3, created=1), add(6, created=4))
    assert (job.state, job.attempts) == (LEASED, 1)


def test_an_expire_ends_what_a_run_leaves_in_the_log():
    state, kinds = folded(start(1), complete(2), expire(3))
    assert state is None
    assert kinds == [AnomalyKind.ORPHAN] * 3
    assert job_of(add(4)) == odd_job(start(1), complete(2), expire(3), add(4))[0]


def test_an_expire_does_not_take_back_a_delete():
    assert folded(delete(2), start(3), expire(4))[0] == Orphans([delete(2)])


def test_a_job_whose_expire_stands_before_its_add_is_expired():
    job, _ = odd_job(expire(20), add(21, created=1, ttl_ms=10))
    assert workq.visible(job, 20 * MS) is None


def test_orphans_are_no_job_and_go_when_the_log_is_complete():
    state, _ = folded(start(1))
    assert isinstance(state, Orphans)
    assert workq.visible(state, 0) is None
    assert workq.without_orphans(state) is None
    assert workq.without_orphans(None) is None
    job = job_of(add())
    assert workq.without_orphans(job) is job


def test_a_record_whose_command_does_not_fit_changes_nothing():
    odd: list[Record] = [
        JobEvent(ms(1), JOB_ID, Command.COMPLETE),
        JobFinished(ms(1), JOB_ID, Command.START_ATTEMPT, b""),
    ]
    assert folded(*odd) == (None, [AnomalyKind.MISPLACED_RECORD] * 2)
    assert folded(add(), *odd) == (FoldedJob(add()), [AnomalyKind.MISPLACED_RECORD] * 2)


# -- views -------------------------------------------------------------------------------------


def test_an_added_job_expires_its_ttl_after_its_creation():
    job = job_of(add(5, created=4))
    assert workq.expires_ns(job) == 10_004 * MS
    assert workq.visible(job, 10_004 * MS - 1) is job
    assert workq.visible(job, 10_004 * MS) is None


def test_a_scheduled_job_expires_its_ttl_after_its_time():
    job = job_of(add(command=Command.SCHEDULE, time=ms(50_000)))
    assert workq.expires_ns(job) == 60_000 * MS


def test_a_result_expires_with_its_job():
    assert workq.visible(job_of(add(), complete(9_999)), 10_000 * MS) is None


def test_a_job_waits_where_its_state_and_the_time_say():
    scheduled = add(command=Command.SCHEDULE, time=ms(50))
    assert workq.queue_of(job_of(scheduled), 50 * MS - 1) == "scheduled"
    assert workq.queue_of(job_of(scheduled), 50 * MS) == "ready"
    assert workq.queue_of(job_of(add()), 0) == "ready"
    assert workq.queue_of(job_of(add(), start(1)), 0) is None
    assert workq.queue_of(job_of(add(), start(1), timeout(101)), 0) == "ready"
    assert workq.queue_of(job_of(add(), complete(1)), 0) is None


def test_jobs_stand_by_priority_then_time_then_creation_then_id():
    in_order = [
        add(9, priority=1),
        add(1, job_id=bytes(15) + b"\x01"),
        add(1, job_id=bytes(15) + b"\x02"),
        add(2),
        add(1, command=Command.SCHEDULE, time=Instant(-1)),
        add(0, command=Command.SCHEDULE, time=ms(5)),
        add(0, priority=-1),
    ]
    jobs = [FoldedJob(added) for added in in_order]
    backwards = jobs[::-1]
    assert sorted(backwards, key=workq.queue_order) == jobs


# -- snapshots and replay ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "records",
    [
        [add()],
        [add(), start(1)],
        [add(), start(1), complete(2)],
        [add(), fail(2)],
        [add(max_attempts=1), start(1), timeout(101)],
        [delete(1), start(2)],
    ],
)
def test_the_snapshot_of_a_short_life_is_that_life(records):
    assert workq.snapshot(workq.fold(records)) == tuple(records)


def test_attempts_are_told_as_pairs_and_the_lease_as_an_open_start():
    job = job_of(add(), start(1), timeout(101), start(102), timeout(202), start(203))
    commands = [record.command.word for record in workq.snapshot(job)]
    pair = ["start-attempt", "timeout-attempt"]
    assert commands == ["add", *pair, *pair, "start-attempt"]
    assert workq.snapshot(job)[-1] == start(203)


def test_replay_forgets_what_has_ended():
    assert workq.replay([add(), start(1), complete(2), delete(3)]) == {}
    assert workq.replay([add()]) == {JOB_ID: FoldedJob(add())}
    assert workq.key_of(add()) == JOB_ID


def test_every_kind_of_anomaly_has_its_rule_in_the_docs():
    text = (Path(__file__).parents[2] / "docs" / "folds.md").read_text()
    assert [kind for kind in AnomalyKind if f"`{kind}`" not in text] == []
