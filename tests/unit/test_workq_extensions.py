"""Limits, delays and dependencies in the engine: cases that random commands seldom meet."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from journeyman.engines.workq import adding, extensions, ledger_entries, lifecycle, queues
from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.ledger_entries import PARENT_BYTES
from journeyman.engines.workq.messages import WorkqDue
from journeyman.engines.workq.queues import KeyRates
from journeyman.folds import ledger as ledger_fold
from journeyman.formats.ledger import (
    JobOptionsRemoved,
    JobOptionsSet,
    ParentEnded,
    ParentOutcome,
    QueueLimitsSet,
)
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import JobAdded, Record
from journeyman.protocols.workq.commands import (
    NO_LIMITS,
    Add,
    AddOptions,
    AwaitResult,
    Complaint,
    Complete,
    Delete,
    Fail,
    InspectJob,
    InspectQueue,
    Lease,
    Limits,
    RefusedLine,
    Requeue,
    ScheduleJob,
    SetLimits,
)
from journeyman.protocols.workq.replies import (
    DONE,
    NOT_FOUND,
    Finished,
    JobList,
    JobView,
    QueueList,
    Reply,
    id_text,
)
from journeyman.servers.workq.writer import in_scope, request_size
from tests.support.workq_extension_machine import given, load, snapshot

MS = 10**6
START_NS = 1_700_000_000 * 10**9
DAY_MS = 86_400_000


def job_id(number: int) -> bytes:
    return bytes.fromhex(f"0000000a0000400080000000{number:08d}")


class Story:
    """An engine, the time, and what was written."""

    def __init__(self) -> None:
        self.engine = WorkqEngine(seed=1)
        self.now_ns = START_NS
        self.log: list[Record] = []
        self.ledger: list[LedgerRecord] = []

    def decide(self, command: Decidable) -> Reply | None:
        outcome = self.engine.decide(command, self.now_ns, "client")
        self.log += outcome.records
        self.ledger += self.engine.take_ledger()
        reply: Reply | None = outcome.reply
        return reply

    def add(self, number: int, key: str = "", after: tuple[int, ...] = (), **more: int) -> None:
        options = AddOptions(key, after=tuple(map(job_id, after)))
        command = Add(job_id(number), "q", DAY_MS, DAY_MS, b"", **more, options=options)
        assert self.decide(command) == DONE

    def add_even_failed(self, number: int, after: tuple[int, ...]) -> None:
        options = AddOptions(after=tuple(map(job_id, after)), even_failed=True)
        assert self.decide(Add(job_id(number), "q", DAY_MS, DAY_MS, b"", options=options)) == DONE

    def lease(self, most: int = 100) -> list[int]:
        reply = self.decide(Lease(("q",), 0, most))
        return [int(found.hex()[24:]) for found in given(reply)]

    def wait(self, ms: int) -> None:
        self.now_ns += ms * MS
        for _ in range(20):
            due_ns = self.engine.next_due_ns()
            if due_ns is None or due_ns > self.now_ns:
                return
            self.decide(WorkqDue())
        raise AssertionError("it is never done")

    def restart(self) -> None:
        self.engine = load(self.log, self.ledger, self.now_ns)

    def lose_log_of(self, *commands: Decidable) -> None:
        """They are one batch, and the power fails when the ledger has it and the log does not."""
        log = list(self.log)
        self.engine.begin_batch()
        for command in commands:
            self.decide(command)
        self.log = log
        self.restart()


@pytest.fixture
def story() -> Story:
    return Story()


def jobs_in(reply: Reply | None) -> Sequence[JobView]:
    assert isinstance(reply, JobList)
    return reply.jobs


def limit(story: Story, limits: Limits) -> None:
    assert story.decide(SetLimits("q", limits)) == DONE
    story.wait(1)


def test_late_completion_is_refused_once_another_worker_has_the_job(story: Story):
    """It would be acknowledged, and begun after that by the worker that has just leased it."""
    command = Add(job_id(1), "q", 1000, DAY_MS, b"", options=AddOptions())
    assert story.decide(command) == DONE
    assert story.lease() == [1]
    story.wait(1001)  # the first worker has lost its lease, but no other has the job yet
    assert story.decide(Fail(job_id(1), b"", attempt=2)) == RefusedLine(Complaint.LEASED_AGAIN)
    assert story.lease() == [1]
    assert story.decide(Complete(job_id(1), b"", 1)) == RefusedLine(Complaint.LEASED_AGAIN)
    story.restart()
    assert story.decide(Complete(job_id(1), b"", 1)) == RefusedLine(Complaint.LEASED_AGAIN)
    assert story.decide(Complete(job_id(1), b"", 2)) == DONE


@pytest.mark.parametrize("delay_ms", [None, 0, 50])
def test_a_failure_that_is_sent_again_counts_once(story: Story, delay_ms: int | None):
    """The worker does not know that the server has it when the connection breaks."""
    story.add(1, max_fails=2)
    failed = Fail(job_id(1), b"", delay_ms, attempt=1)
    assert story.lease() == [1]
    assert story.decide(failed) == DONE
    for _ in range(2):
        assert story.decide(failed) == RefusedLine(Complaint.NOT_LEASED)
        story.wait(50)  # ready again, and still not leased
        story.restart()
    assert story.lease() == [1]
    (view,) = jobs_in(story.decide(InspectJob(job_id(1))))
    assert (view.attempts, view.fails) == (2, 1)
    assert story.decide(failed) == RefusedLine(Complaint.LEASED_AGAIN)
    assert story.decide(Fail(job_id(1), b"last", attempt=2)) == DONE
    assert story.decide(AwaitResult(job_id(1), 0)) == Finished(job_id(1), False, b"last")


def test_a_failure_of_an_attempt_that_timed_out_does_not_count(story: Story):
    """Nobody can tell it from one that was counted; a final one ends the job all the same."""
    add = Add(job_id(1), "q", 1000, DAY_MS, b"", max_fails=2, options=AddOptions())
    assert story.decide(add) == DONE
    assert story.lease() == [1]
    story.wait(1001)
    assert story.decide(Fail(job_id(1), b"", attempt=1)) == RefusedLine(Complaint.NOT_LEASED)
    (view,) = jobs_in(story.decide(InspectJob(job_id(1))))
    assert (view.attempts, view.fails) == (1, 0)
    assert story.decide(Fail(job_id(1), b"no", attempt=1, is_final=True)) == DONE
    assert story.decide(AwaitResult(job_id(1), 0)) == Finished(job_id(1), False, b"no")


def test_a_job_that_is_given_back_waits_and_has_not_failed(story: Story):
    story.add(1, max_fails=1)
    given_back = Fail(job_id(1), b"", 5_000, is_release=True)
    assert story.decide(given_back) == RefusedLine(Complaint.NOT_LEASED)
    assert story.lease() == [1]
    assert story.decide(given_back) == DONE
    story.restart()
    story.wait(4_000)
    assert story.lease() == []
    story.wait(1_001)
    assert story.lease() == [1]
    (view,) = jobs_in(story.decide(InspectJob(job_id(1))))
    assert (view.attempts, view.fails) == (2, 0)
    assert story.decide(Fail(job_id(1), b"", 0, is_release=True)) == DONE
    assert story.lease() == [1]


def test_a_final_failure_leaves_a_dead_job_with_retries_left(story: Story):
    story.add(1, max_fails=3)
    story.add(2, after=(1,))
    assert story.lease() == [1]
    assert story.decide(Fail(job_id(1), b"no such user", is_final=True)) == DONE
    for _ in range(2):
        assert story.lease() == []
        found = story.decide(AwaitResult(job_id(1), 0))
        assert found == Finished(job_id(1), False, b"no such user")
        story.restart()
    assert story.decide(Requeue(job_id(1))) == DONE
    assert story.lease() == [1]


def test_late_completion_is_taken_while_no_other_worker_has_the_job(story: Story):
    command = Add(job_id(1), "q", 1000, DAY_MS, b"", options=AddOptions())
    assert story.decide(command) == DONE
    assert story.lease() == [1]
    story.wait(1001)
    assert story.decide(Complete(job_id(1), b"", 1)) == DONE


def test_jobs_of_a_full_key_return_one_by_one(story: Story):
    limit(story, Limits(key_concurrency=1))
    for number in range(1, 6):
        story.add(number, "k")
    assert [story.lease(), story.lease()] == [[1], []]
    story.decide(Delete(job_id(2)))  # held back
    story.decide(Complete(job_id(1), b""))
    assert story.lease() == [3]
    story.decide(Fail(job_id(3), b""))
    assert story.lease() == [4]


def test_rate_of_a_key_holds_back_its_jobs_and_no_others(story: Story):
    limit(story, Limits(key_rate=2, key_per_ms=1000))
    for number, key in enumerate(("k", "k", "k", "", "l"), 1):
        story.add(number, key)
    assert [story.lease(), story.lease()] == [[1, 2, 4, 5], []]
    story.wait(990)
    assert story.lease() == []
    story.wait(20)
    assert [story.lease(), story.lease()] == [[3], []]


def test_rate_of_a_key_counts_leases_from_before_a_restart_and_no_longer_than_it_says(
    story: Story,
):
    """The key of a job that has completed, or is gone, is needed for so long."""
    limit(story, Limits(key_rate=1, key_per_ms=60_000))
    story.add(1, "k")
    story.add(2, "l")
    assert story.lease() == [1, 2]
    story.decide(Complete(job_id(1), b""))
    story.decide(Delete(job_id(2)))
    story.wait(30_000)
    story.restart()
    story.add(3, "k")
    story.add(4, "l")
    assert story.lease() == []
    story.wait(31_000)
    assert story.lease() == [3, 4]
    story.wait(120_000)
    story.wait(1001)
    story.restart()
    known = story.engine._state.extensions
    assert (known.lingering, known.forgetting) == ({}, {})
    assert set(known.options) == {job_id(3), job_id(4)}


def test_leases_of_keys_are_forgotten_when_they_do_not_count_or_are_too_many(monkeypatch):
    monkeypatch.setattr(queues, "MAX_STARTS", 4)
    rates = KeyRates(2, per_ms=1000)
    undone = [rates.note_start(key, at * MS) for at, key in enumerate("aabbc", 1)]
    assert list(rates.starts) == ["b", "c"]  # five are too many
    for undo in reversed(undone[2:]):
        undo()
    assert list(rates.starts) == ["a"]
    assert rates.opens_ns("a", 3 * MS) == 1001 * MS
    rates.note_start("d", 1002 * MS)  # the last of "a" is over
    assert list(rates.starts) == ["d"]


def test_another_rate_counts_the_same_leases_without_a_copy_and_can_be_taken_back():
    rates = KeyRates(3, per_ms=1000)
    for at in (1, 2, 3):
        rates.note_start("a", at * MS)
    lower = rates.changed(1, per_ms=500)
    assert lower.starts is rates.starts  # there may be a million
    assert lower.opens_ns("a", 4 * MS) == 503 * MS
    undo = lower.note_start("a", 4 * MS)
    assert lower.starts == {"a": [4 * MS]}
    undo()
    assert rates.starts == {"a": [MS, 2 * MS, 3 * MS]}
    assert rates.opens_ns("a", 4 * MS) == 1001 * MS
    assert rates.changed(4, per_ms=1000).opens_ns("a", 4 * MS) == 0
    assert rates.changed(0, per_ms=0).starts == {}


def test_keys_of_a_rate_take_little_memory():
    rates = KeyRates(10, per_ms=DAY_MS)
    tracemalloc.start()
    try:
        for number in range(1000):
            rates.note_start(f"key {number}", START_NS + number)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 500 * 1000  # 500 MB for as many as a queue remembers


def test_very_many_keys_are_forgotten_in_steps():
    """All that came within a day may be over at once, and a lease must not wait for that."""
    rates = KeyRates(1, per_ms=1000)
    for number in range(1000):
        rates.note_start(f"k{number}", MS)
    undo = rates.note_start("late", 2000 * MS)
    assert 900 <= len(rates.starts) < 1000
    undo()
    assert list(rates.starts) == [f"k{number}" for number in range(1000)]
    for _ in range(200):
        rates.note_start("late", 2000 * MS)
    assert list(rates.starts) == ["late"]


def test_keys_of_jobs_that_have_ended_are_bounded(story: Story, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(extensions, "MAX_LINGERING", 2)
    limit(story, Limits(key_rate=1, key_per_ms=DAY_MS))
    for number, key in enumerate("abc", 1):
        story.add(number, key)
    assert story.lease() == [1, 2, 3]
    known = story.engine._state.extensions
    for number in (1, 2):
        story.decide(Complete(job_id(number), b""))
    story.engine.begin_batch()
    story.decide(Complete(job_id(3), b""))
    assert (set(known.lingering), set(known.forgetting)) == ({job_id(2), job_id(3)}, {job_id(1)})
    story.engine.undo_batch()
    assert (set(known.lingering), set(known.forgetting)) == ({job_id(1), job_id(2)}, set())
    story.decide(Complete(job_id(3), b""))
    assert (len(known.lingering), len(known.forgetting)) == (2, 1)


def test_keys_are_kept_for_the_longest_of_all_rates(story: Story):
    known = story.engine._state.extensions
    found = []
    for name, per_ms in (("a", 1000), ("b", 5000), ("c", 0), ("b", 2000), ("b", 0), ("a", 0)):
        story.engine.begin_batch()
        for undone in (True, False):
            before = known.key_period_ns
            story.decide(SetLimits(name, Limits(0, 0, 1, 0, per_ms and 1, per_ms)))
            if undone:
                story.engine.undo_batch()
                assert known.key_period_ns == before
        found.append(known.key_period_ns // MS)
    assert found == [1000, 5000, 5000, 2000, 1000, 0]


@pytest.mark.parametrize("kind", [Add, ScheduleJob])
def test_finished_jobs_of_another_namespace_make_no_room(kind: Any, story: Story):
    story.add(1)
    story.lease()
    story.decide(Complete(job_id(1), b"theirs"))
    time = (story.now_ns + DAY_MS * MS,) if kind is ScheduleJob else ()
    options = AddOptions(replaces_finished=True)
    command = kind(job_id(1), "mine.q", DAY_MS, DAY_MS, *time, b"", options=options)
    refused = story.decide(in_scope(story.engine, command, "mine."))
    assert refused == RefusedLine(Complaint.DUPLICATE_JOB)
    assert story.decide(in_scope(story.engine, command._replace(name="q"), "")) == DONE


def test_unstarted_jobs_of_another_namespace_are_neither_replaced_nor_seen(story: Story):
    story.add(1)
    options = AddOptions(replaces_finished=True, replaces_unstarted=True)
    command = Add(job_id(1), "mine.q", DAY_MS, DAY_MS, b"", options=options)
    refused = story.decide(in_scope(story.engine, command, "mine."))
    assert refused == RefusedLine(Complaint.DUPLICATE_JOB)
    beside = Add(
        *(job_id(2), "mine.q", DAY_MS, DAY_MS, b""), options=options._replace(unless=job_id(1))
    )
    assert story.decide(in_scope(story.engine, beside, "mine.")) == DONE
    assert story.decide(in_scope(story.engine, command._replace(name="q"), "")) == DONE


def test_the_same_limits_again_cost_nothing(story: Story):
    limits = Limits(key_rate=1, key_per_ms=1000)
    limit(story, limits)
    rates, written = story.engine._state.queues.use("q").key_rates, len(story.ledger)
    limit(story, limits)
    assert story.engine._state.queues.use("q").key_rates is rates
    assert len(story.ledger) == written


def test_clock_that_was_set_back_does_not_close_a_key_for_long(story: Story):
    limit(story, Limits(key_rate=1, key_per_ms=1000))
    story.add(1, "k")
    story.add(2, "k")
    assert [story.lease(), story.lease()] == [[1], []]
    story.wait(-3_600_000)
    story.lease()  # the first that the engine hears of it
    story.wait(0)
    assert story.lease() == [2]


def test_jobs_that_were_held_back_are_free_when_the_limit_goes(story: Story):
    limit(story, Limits(key_concurrency=1))
    for number in range(1, 8):
        story.add(number, "k")
    assert [story.lease(), story.lease()] == [[1], []]
    limit(story, Limits(key_concurrency=3))
    assert [story.lease(), story.lease()] == [[2, 3], []]
    limit(story, NO_LIMITS)
    assert story.lease() == [4, 5, 6, 7]


def test_long_queue_of_one_key_is_cleared_away_in_steps(story: Story):
    limit(story, Limits(key_concurrency=1))
    for number in range(1, 2503):
        story.add(number, "k" if number < 2502 else "other")
    assert story.lease(1) == [1]
    assert story.lease(1) == []  # too many in the way for one decision
    assert story.engine.next_due_ns() == story.engine._state.now_ns
    for _ in range(3):
        if found := story.lease(1):
            break
    assert found == [2502]


def test_rate_counts_any_window_also_after_a_restart(story: Story):
    limit(story, Limits(rate=2, per_ms=1000))
    for number in range(1, 7):
        story.add(number)
    assert story.lease(1) == [1]
    story.wait(600)
    assert story.lease() == [2]
    story.wait(399)
    assert story.lease() == []
    story.restart()
    assert story.lease() == []
    story.wait(2)
    assert story.lease() == [3]
    story.wait(600)
    assert story.lease() == [4]


def test_undone_batch_gives_back_starts_and_limits(story: Story):
    limit(story, Limits(rate=2, per_ms=1000))
    for number in range(1, 5):
        story.add(number, "k")
    assert story.lease(1) == [1]
    before = snapshot(story.engine)
    story.engine.begin_batch()
    story.engine.decide(Lease(("q",), 0, 5), story.now_ns, "client")
    story.engine.decide(SetLimits("q", Limits(key_concurrency=1)), story.now_ns)
    story.engine.decide(Lease(("q",), 0, 5), story.now_ns, "client")
    story.engine.undo_batch()
    assert snapshot(story.engine) == before
    assert story.lease() == [2]
    assert story.lease() == []


def test_undone_batch_gives_back_the_names_of_workers(story: Story):
    def decide(command: Decidable) -> Reply | None:
        return story.engine.decide(command, story.now_ns, "client").reply

    def workers() -> object:
        return snapshot(story.engine)["workers"]

    assert story.decide(Add(job_id(1), "q", 1000, DAY_MS, b"")) == DONE
    names = ("", "anna", "bert", "", "carl")
    for before, worker in pairwise(names):
        for is_undone in (True, False):
            assert workers() == ({job_id(1): before} if before else {})
            story.engine.begin_batch()
            decide(Lease(("q",), 0, 1, worker))
            assert workers() == ({job_id(1): worker} if worker else {})
            if is_undone:
                story.engine.undo_batch()
            else:
                story.engine.commit_batch()
        if worker != names[-1]:
            story.wait(1001)  # the lease is over, and the job is ready
    for end in (Complete(job_id(1), b""), Delete(job_id(1))):
        story.engine.begin_batch()
        assert decide(end) == DONE
        assert workers() == {}
        story.engine.undo_batch()
        (seen,) = jobs_in(decide(InspectJob(job_id(1))))
        assert seen.worker == "carl"


def test_child_is_not_lost_between_the_ledger_and_the_log(story: Story):
    story.add(1)
    story.add(2, "k", after=(1,))
    written, known = list(story.log), list(story.ledger)
    story.engine.begin_batch()
    outcome = story.engine.decide(Complete(job_id(1), b""), story.now_ns)
    outcome_2 = story.engine.decide(Fail(job_id(2), b"", 5), story.now_ns)
    assert [type(each).__name__ for each in outcome.records] == ["JobFinished", "JobAdded"]
    assert outcome_2.reply == DONE
    torn = load(written, [*known, *story.engine.take_ledger()], story.now_ns)
    assert job_id(2) in torn._state.extensions.children


def test_record_of_a_child_is_removed_after_it_was_added(story: Story):
    story.add(1)
    story.add(2, after=(1,))
    story.decide(Complete(job_id(1), b""))
    assert [type(each) for each in story.ledger] == [JobOptionsSet]
    story.wait(1001)
    assert [type(each) for each in story.ledger] == [JobOptionsSet, JobOptionsRemoved]
    story.restart()
    assert story.lease() == [2]


def test_job_whose_deletion_was_cut_short_keeps_its_key(story: Story):
    """The ledger is written first; what the log did not get has not happened."""
    story.add(1, "k")
    written, known = list(story.log), list(story.ledger)
    story.engine.begin_batch()
    story.engine.decide(Delete(job_id(1)), story.now_ns)
    torn = load(written, [*known, *story.engine.take_ledger()], story.now_ns)
    assert torn._state.extensions.options[job_id(1)].key == "k"


def test_options_of_a_job_that_is_gone_are_not_those_of_the_next_one(story: Story):
    story.add(1, "k")
    story.decide(Delete(job_id(1)))
    story.restart()
    story.add(1)
    story.restart()
    assert job_id(1) not in story.engine._state.extensions.options
    story.decide(Delete(job_id(1)))
    story.add(1, "other")
    story.wait(1001)
    story.restart()
    assert story.engine._state.extensions.options[job_id(1)].key == "other"


def sent(number: int, namespace: str, after: tuple[int, ...] = (), **more: Any) -> Add:
    """A job that others follow, as the writer hands it on."""
    options = AddOptions(after=tuple(map(job_id, after)), namespace=namespace, **more)
    return Add(job_id(number), "q", DAY_MS, DAY_MS, b"", options=options)


def test_the_namespace_of_a_sender_is_kept_while_its_job_can_be_followed(story: Story):
    """Through retries, restarts, requeues, and waiting for other jobs."""
    assert story.decide(sent(1, "team.")._replace(max_fails=3)) == DONE
    assert story.decide(sent(2, "*", after=(1,))) == DONE
    bodies = [each.body for each in story.ledger if isinstance(each, JobOptionsSet)]
    assert [body["namespace"] for body in bodies] == ["team.", "*"]
    for _ in range(2):
        assert [story.engine.namespace_of(job_id(n)) for n in (1, 2, 3)] == ["team.", "*", ""]
        story.restart()
    story.lease()
    assert story.decide(Fail(job_id(1), b"", 5)) == DONE
    story.wait(10)
    story.lease()
    assert story.decide(Fail(job_id(1), b"", None, 0, True)) == DONE
    story.restart()
    assert story.engine.namespace_of(job_id(1)) == "team."
    assert story.decide(Requeue(job_id(1))) == DONE
    story.restart()
    assert story.engine.namespace_of(job_id(1)) == "team."
    story.lease()
    assert story.decide(Complete(job_id(1), b"")) == DONE
    story.wait(2000)
    story.restart()
    assert story.engine.namespace_of(job_id(1)) == ""


def test_a_child_that_was_added_keeps_the_namespace_of_its_sender(story: Story):
    story.add(1)
    assert story.decide(sent(2, "team.", after=(1,))) == DONE
    story.lease()
    assert story.decide(Complete(job_id(1), b"")) == DONE
    story.wait(2000)
    for _ in range(2):
        assert story.engine.namespace_of(job_id(2)) == "team."
        story.restart()


@pytest.mark.parametrize("namespace", ["", "team."])
def test_the_namespace_of_a_job_before_is_not_that_of_the_next_one(story: Story, namespace: str):
    """Also if a power cut left it in the ledger, and its job not in the log."""
    story.lose_log_of(sent(1, "*"))
    assert story.decide(sent(1, namespace)) == DONE
    assert story.decide(sent(2, "*")) == DONE
    story.lease()
    assert story.decide(Complete(job_id(2), b"")) == DONE
    assert story.decide(sent(2, namespace, replaces_finished=True)) == DONE
    assert story.decide(sent(3, "*")) == DONE
    assert story.decide(Delete(job_id(3))) == DONE
    assert story.decide(sent(3, namespace)) == DONE
    for _ in range(3):
        assert [story.engine.namespace_of(job_id(n)) for n in (1, 2, 3)] == [namespace] * 3
        story.wait(1001)
        story.restart()


@pytest.mark.parametrize("key", ["", "k"])
def test_child_that_was_added_and_deleted_does_not_come_back(story: Story, key: str):
    story.add(1)
    story.add(2, key, after=(1,))
    story.decide(Complete(job_id(1), b""))
    story.restart()
    story.decide(Delete(job_id(2)))
    story.restart()
    assert story.engine._state.extensions.children == {}
    assert story.lease() == []


def test_child_that_is_added_and_deleted_in_one_batch_is_forgotten_right_after_it(story: Story):
    story.add(1)
    story.add(2, after=(1,))
    story.engine.begin_batch()
    for command in (Complete(job_id(1), b""), Delete(job_id(2))):
        story.log += story.engine.decide(command, story.now_ns).records
    story.ledger += story.engine.take_ledger()
    story.engine.commit_batch()
    story.wait(1)
    story.restart()
    assert story.engine._state.extensions.children == {}


def test_parent_that_completed_counts_though_it_is_gone(story: Story):
    for number in (1, 2):
        story.add(number)
    story.add(3, after=(1, 2))
    story.decide(Complete(job_id(1), b""))
    story.decide(Delete(job_id(1)))
    story.restart()
    story.decide(Complete(job_id(2), b""))
    assert story.lease() == [3]


def test_parents_that_are_gone_cost_one_record_however_many_wait(story: Story):
    for number in (1, 2):
        story.add(number)
    for number in range(10, 20):
        story.add(number, after=(1, 2))
    story.decide(Complete(job_id(1), b""))
    before = len(story.ledger)
    story.decide(Delete(job_id(1)))
    assert [type(each) for each in story.ledger[before:]] == [ParentOutcome]
    story.restart()
    story.decide(Complete(job_id(2), b""))
    story.wait(1001)
    assert sorted(story.lease()) == list(range(10, 20))
    assert ledger_fold.replay(story.ledger) == {}
    story.restart()
    assert story.engine._state.extensions.forgetting_parents == {}


@pytest.mark.parametrize(
    "ends",
    [(Delete(job_id(1)),), (Complete(job_id(1), b""), Delete(job_id(1)))],
    ids=["deleted", "completed and deleted"],
)
def test_no_child_starts_before_a_parent_whose_end_was_undone_by_a_power_cut(
    story: Story, ends: tuple[Decidable, ...]
):
    story.add(1)
    story.add(2)
    story.add(3, after=(1, 2))
    story.add_even_failed(4, after=(1, 2))
    story.add(5, after=(1,))
    story.lose_log_of(*ends)
    story.decide(Complete(job_id(2), b""))
    assert story.lease() == [1]
    story.restart()
    assert story.lease() == []
    story.decide(Complete(job_id(1), b""))
    assert sorted(story.lease()) == [3, 4, 5]


def test_an_end_that_a_power_cut_undid_says_nothing_later(story: Story):
    """Not even when the parent has completed and is gone, and the log is all there is of it."""
    assert story.decide(Add(job_id(1), "q", DAY_MS, 60_000, b"")) == DONE
    story.add(2)
    story.add(3, after=(1, 2))
    story.add_even_failed(4, after=(1, 2))
    story.lose_log_of(Delete(job_id(1)))
    story.wait(1)  # as the server does before all else
    story.decide(Complete(job_id(1), b""))
    story.now_ns += 61_000 * MS
    story.restart()
    story.decide(Complete(job_id(2), b""))
    assert sorted(story.lease()) == [3, 4]


def test_an_end_that_comes_before_a_start_took_the_undone_one_back_counts(story: Story):
    """The first WorkqDue may have been refused, for want of room, and a command may go first."""
    story.add(1)
    story.add(2)
    story.add(3, after=(1, 2))
    story.lose_log_of(Complete(job_id(1), b""), Delete(job_id(1)))
    story.decide(Complete(job_id(1), b""))
    story.engine.begin_batch()
    story.engine.decide(Delete(job_id(1)), story.now_ns)
    story.engine.undo_batch()
    story.decide(Delete(job_id(1)))
    story.wait(1)
    story.log = [each for each in story.log if each.job_id != job_id(1)]  # the log was cleaned
    story.restart()
    story.decide(Complete(job_id(2), b""))
    assert story.lease() == [3]


def test_what_a_start_has_to_say_in_the_ledger_outlives_a_batch_that_was_refused(story: Story):
    assert story.decide(Add(job_id(1), "q", DAY_MS, 60_000, b"")) == DONE
    story.add(2)
    story.add(3, after=(1, 2))
    story.decide(Complete(job_id(1), b""))
    story.now_ns += 61_000 * MS
    story.restart()
    story.engine.begin_batch()
    story.engine.decide(WorkqDue(), story.now_ns)
    assert story.engine.take_ledger()
    story.engine.undo_batch()
    story.wait(1)
    story.log = [each for each in story.log if each.job_id != job_id(1)]  # the log was cleaned
    story.restart()
    story.decide(Complete(job_id(2), b""))
    assert story.lease() == [3]


@pytest.mark.parametrize("has_failed", [True, False])
def test_a_parent_that_has_completed_counts_though_its_next_life_did_not(
    story: Story, has_failed: bool
):
    story.add(1)
    story.add(2)
    story.add(3, after=(1, 2))
    story.decide(Complete(job_id(1), b""))
    again = Add(job_id(1), "q", DAY_MS, DAY_MS, b"", options=AddOptions(replaces_finished=True))
    assert story.decide(again) == DONE
    story.add(4, after=(1, 2))
    if has_failed:
        story.decide(Fail(job_id(1), b""))
    story.decide(Delete(job_id(1)))
    story.restart()
    story.decide(Complete(job_id(2), b""))
    story.wait(1001)
    assert story.lease() == [3]
    assert ledger_fold.replay(story.ledger) == {}


def test_a_parent_is_not_forgotten_in_the_batch_that_adds_its_last_child(story: Story):
    """A power cut would leave the child, and nothing that says how its parent ended."""
    for number in (1, 2, 5):
        story.add(number, "k")
    story.add(3, after=(1, 2))
    story.decide(Complete(job_id(1), b""))
    story.decide(Delete(job_id(1)))
    story.decide(Complete(job_id(5), b""))  # something is to be forgotten soon
    story.now_ns += 2000 * MS
    story.lose_log_of(Complete(job_id(2), b""), WorkqDue())
    story.decide(Complete(job_id(2), b""))
    assert story.lease() == [3]


@pytest.mark.parametrize(
    ("parent", "complaint"), [(9, Complaint.NO_PARENT), (2, Complaint.TOO_MANY_CHILDREN)]
)
def test_a_job_that_cannot_wait_replaces_none(
    story: Story, monkeypatch: pytest.MonkeyPatch, parent: int, complaint: Complaint
):
    monkeypatch.setattr(adding, "MAX_CHILDREN", 0)
    story.add(1)
    story.add(2)
    story.decide(Complete(job_id(1), b"kept"))
    options = AddOptions(replaces_finished=True, after=(job_id(parent),))
    again = Add(job_id(1), "q", DAY_MS, DAY_MS, b"", options=options)
    assert story.decide(again) == RefusedLine(complaint)
    for _ in range(2):
        assert story.decide(AwaitResult(job_id(1), 0)) == Finished(job_id(1), True, b"kept")
        story.restart()


@pytest.mark.parametrize("has_key", [True, False])
def test_a_job_that_waited_has_its_key_though_a_power_cut_undid_its_deletion(
    story: Story, has_key: bool
):
    key = "k" * has_key
    story.add(1)
    story.add(3, key, after=(1,))
    story.engine.begin_batch()
    story.decide(Complete(job_id(1), b""))
    story.engine.commit_batch()
    story.lose_log_of(Delete(job_id(3)))
    (found,) = jobs_in(story.decide(InspectJob(job_id(3))))
    assert (found.key, found.waits_for) == (key, 0)
    story.decide(Delete(job_id(3)))
    for _ in range(2):
        story.restart()
        assert story.decide(InspectJob(job_id(3))) == NOT_FOUND
        story.wait(1001)
    assert ledger_fold.replay(story.ledger) == {}


def test_one_decision_adds_few_bytes_however_large_the_children_are(story: Story):
    """A short command would make the server write hundreds of megabytes in one batch."""
    story.add(1)
    payload, many = bytes(512 * 1024), range(10, 40)
    options = AddOptions(after=(job_id(1),))
    for number in many:
        story.decide(Add(job_id(number), "q", DAY_MS, DAY_MS, payload, options=options))
    for end in (Complete(job_id(1), b""), Delete(job_id(1)), WorkqDue()):
        before = len(story.log)
        story.decide(end)
        added = [each for each in story.log[before:] if isinstance(each, JobAdded)]
        assert 0 < sum(len(each.payload) for each in added) < 6 * 1024 * 1024
    story.restart()
    story.wait(1)
    assert story.engine.stats().ready == len(many)


def test_one_decision_does_few_steps_however_many_parents_end(
    story: Story, monkeypatch: pytest.MonkeyPatch
):
    for module in (lifecycle, adding):
        monkeypatch.setattr(module, "EFFORT_LIMIT", 40)
    parents, each = range(1, 11), 20
    for parent in parents:
        assert story.decide(Add(job_id(parent), "q", DAY_MS, 1000, b"")) == DONE
        for number in range(each):
            story.add(100 * parent + number, after=(parent,))
    story.now_ns += 2000 * MS
    steps = []
    while (due_ns := story.engine.next_due_ns()) is not None and due_ns <= story.now_ns:
        before = story.engine.effort
        story.decide(WorkqDue())
        steps.append(story.engine.effort - before)
        story.now_ns += MS
    assert max(steps) <= 3 * (40 + each)  # TTLs twice, children once
    assert story.engine.stats().failed == len(parents) * each


def test_children_fail_though_their_parent_has_begun_again_before_a_crash(story: Story):
    """More than one decision settles: those that are left must not wait for the new life."""
    story.add(1)
    many = range(10, 20 + 2 * adding.ADD_LIMIT)
    for number in many:
        story.add(number, after=(1,))
    story.lease()
    story.decide(Fail(job_id(1), b"no"))
    story.decide(Requeue(job_id(1)))
    story.restart()
    story.wait(1)
    assert story.engine.stats().failed == len(many)


def test_another_job_with_the_id_of_a_parent_that_is_gone_counts_for_later_children(story: Story):
    for number in (1, 2):
        story.add(number)
    story.add(3, after=(1, 2))
    story.decide(Complete(job_id(1), b""))
    story.decide(Delete(job_id(1)))
    story.add(1, "k")
    story.add(4, after=(1,))
    story.restart()
    story.decide(Complete(job_id(2), b""))
    assert story.lease() == [1, 3]
    story.decide(Complete(job_id(1), b""))
    story.restart()
    assert story.lease() == [4]


def test_parent_that_expired_while_no_server_ran_counts_if_it_had_completed(story: Story):
    short = Add(job_id(1), "q", DAY_MS, 1000, b"")
    assert story.decide(short) == DONE
    story.add(2)
    story.add(3, after=(1, 2))
    story.decide(Complete(job_id(1), b""))
    story.now_ns += 2000 * MS
    story.restart()
    story.decide(Complete(job_id(2), b""))
    assert story.lease() == [3]


def test_requeued_job_keeps_its_key_across_a_restart(story: Story):
    story.add(1, "k")
    story.decide(Fail(job_id(1), b""))
    story.restart()
    assert story.decide(Requeue(job_id(1))) == DONE
    story.restart()
    assert story.lease() == [1]
    (queue,) = story.engine._state.queues.page(0, 1)
    assert queue.key_leased == {"k": 1}


def test_growth_is_bounded(story: Story, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("journeyman.engines.workq.adding.MAX_CHILDREN_OF_ONE", 2)
    monkeypatch.setattr("journeyman.engines.workq.engine.MAX_LIMITED_QUEUES", 1)
    story.add(1)
    for number in (2, 3):
        story.add(number, after=(1,))
    too_many = Add(job_id(4), "q", 1, DAY_MS, b"", options=AddOptions(after=(job_id(1),)))
    assert story.decide(too_many) == RefusedLine(Complaint.TOO_MANY_CHILDREN)
    limit(story, Limits(concurrency=1))
    assert story.decide(SetLimits("p", Limits(concurrency=1))) == RefusedLine(
        Complaint.TOO_MANY_LIMITS
    )
    limit(story, Limits(concurrency=2))
    reply = story.decide(InspectQueue("q"))
    assert isinstance(reply, QueueList)
    assert reply.queues[0].limits == Limits(concurrency=2)


def test_child_that_a_batch_adds_and_ends_stays_in_the_ledger_until_the_batch_is_durable(
    story: Story,
):
    """Its job is in the log only then: a crash before would lose both."""
    story.add(1)
    after = AddOptions(after=(job_id(1),))
    assert story.decide(Add(job_id(2), "q", 1, 20, b"", options=after)) == DONE
    story.engine.begin_batch()
    assert story.decide(Complete(job_id(1), b"")) == DONE
    story.wait(61)
    removed = [each for each in story.ledger if isinstance(each, JobOptionsRemoved)]
    assert removed == []
    story.engine.commit_batch()
    story.wait(1)
    assert isinstance(story.ledger[-1], JobOptionsRemoved)


def test_records_of_the_ledger_that_make_no_sense_are_left_out():
    loaded = ledger_entries.LoadedExtensions()
    limits: list[dict[str, Any]] = [{"rate": 5}, {"rate": "5", "per_ms": 1}, {"new": 1}]
    options: list[dict[str, Any]] = [{"key": 5}, {"touched": "1"}, {"after": ["x"]}]
    options.append({"after": [], "payload": "?"})
    now, job = Instant(START_NS), id_text(job_id(1))
    records: list[LedgerRecord] = [QueueLimitsSet(now, "q", body) for body in limits]
    records += [JobOptionsSet(now, job, body) for body in options]
    records += [ParentEnded(now, "x"), ParentOutcome(now, "x", 0, 0)]
    assert not any(map(loaded.add, records))
    assert loaded == ledger_entries.LoadedExtensions()


def test_a_lease_that_is_taken_back_counts_for_no_rate(story: Story):
    """The start that it had pushed out of the window is there again."""
    assert story.decide(SetLimits("q", Limits(rate=1, per_ms=10_000))) == DONE
    for number in (1, 2, 3):
        story.add(number)
    assert story.lease() == [1]
    story.now_ns += 5000 * MS
    story.engine.begin_batch()
    story.now_ns += 6000 * MS
    assert story.lease() == [2]
    story.engine.undo_batch()
    story.now_ns -= 6000 * MS
    assert story.lease() == []


def test_a_clock_that_is_set_back_does_not_shut_a_queue_with_a_rate(story: Story):
    assert story.decide(SetLimits("q", Limits(rate=1, per_ms=1000))) == DONE
    story.now_ns += 2 * DAY_MS * MS
    for number in (1, 2):
        story.add(number)
    assert story.lease() == [1]
    story.now_ns -= DAY_MS * MS
    story.wait(1)
    assert story.lease() == [2]


def test_a_parent_whose_ttl_ended_while_the_server_was_down_stays_completed_after_a_cleaning(
    story: Story,
):
    story.decide(Add(job_id(1), "q", DAY_MS, 1000, b""))
    story.add(2)
    story.add(3, after=(1, 2))
    assert story.decide(Complete(job_id(1), b"")) == DONE
    story.now_ns += 2000 * MS
    story.restart()
    story.wait(1)
    story.log = [record for record in story.log if record.job_id != job_id(1)]  # cleaned
    story.restart()
    assert story.decide(Complete(job_id(2), b"")) == DONE
    assert story.lease() == [3]


def test_parents_count_for_the_room_of_jobs_that_wait(
    story: Story, monkeypatch: pytest.MonkeyPatch
):
    """A thousand for each of a hundred thousand children would be gigabytes."""
    monkeypatch.setattr("journeyman.engines.workq.adding.MAX_CHILDREN_BYTES", 100 * PARENT_BYTES)
    parents = tuple(range(1, 41))
    for number in parents:
        story.add(number)
    story.add(101, after=parents)
    story.add(102, after=parents)
    after = AddOptions(after=tuple(map(job_id, parents)))
    third = Add(job_id(103), "q", DAY_MS, DAY_MS, b"", options=after)
    assert story.decide(third) == RefusedLine(Complaint.TOO_MANY_CHILDREN)
    assert request_size(third) == 40 * PARENT_BYTES  # what waits to be decided, likewise
    assert story.decide(Delete(job_id(102))) == DONE
    assert story.decide(third) == DONE


def test_children_of_one_parent_cost_as_much_as_they_are_many(story: Story):
    story.add(1)
    story.engine.begin_batch()
    tracemalloc.start()
    for number in range(2, 1002):
        story.add(number, after=(1,))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 4_000_000
    before = story.lease()
    story.engine.undo_batch()
    assert story.lease() == before == [1]
    assert story.decide(Complete(job_id(1), b"")) == DONE
    assert story.lease() == []


def test_an_end_of_one_of_many_parents_costs_as_much_as_it_has_children(story: Story):
    parents = tuple(range(1, 61))
    for number in parents:
        story.add(number)
    for number in range(101, 301):
        story.add(number, after=parents)
    before = snapshot(story.engine)
    story.engine.begin_batch()
    tracemalloc.start()
    for number in parents[:-1]:
        assert story.decide(Complete(job_id(number), b"")) == DONE
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 12_000_000
    story.engine.undo_batch()
    assert snapshot(story.engine) == before
