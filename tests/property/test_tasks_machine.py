"""Retries, uniqueness and limits of tasks against a model; sends, deaths and time in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import journeyman as jm
from journeyman.testing import InMemory
from tests.support.effort import cases

RETRIES = 2
DELAY_S = 10
LEASE_S = 30
RATE, PER_S = 3, 60
KEY_RATE, KEY_PER_S = 2, 90
ONCE_S = 40.5  # no sum of the steps of time
KEYS = st.sampled_from("abc")


@dataclass(eq=False)  # two that look alike are two
class Planned:
    """A job as the model has it."""

    key: str
    failures: int  # before it succeeds
    attempts: list[datetime] = field(default_factory=list)
    deaths: int = 0  # attempts that a dying worker took
    is_over: bool = False

    @property
    def will_succeed(self) -> bool:
        return self.failures <= RETRIES


class TaskMachine(RuleBasedStateMachine):
    """Job numbers are arguments, so every attempt knows which job of the model it is."""

    def __init__(self) -> None:
        super().__init__()
        self.app = jm.App(retries=RETRIES, backoff=DELAY_S, lease=LEASE_S)
        self.jobs: list[Planned] = []
        self.current: dict[str, int] = {}  # the unfinished unique job of a key
        self.starts: list[tuple[datetime, str]] = []  # of the limited queue, and their keys
        self.last: dict[str, tuple[datetime, Planned]] = {}  # sent once, by key
        self.leased_until: dict[str, datetime] = {}  # keys held by dead workers
        self.unique = self.app.task(name="unique", queue="unique", unique="{key}")(self._run)
        self.once = self.app.task(name="once", queue="once", unique="{key}", unique_for=ONCE_S)(
            self._run
        )
        self.limited = self.app.task(
            name="limited",
            queue="limited",
            rate=f"{RATE}/{PER_S}s",
            concurrency=1,
            key="{key}",
            key_rate=f"{KEY_RATE}/{KEY_PER_S}s",
        )(self._run)
        self.queue = InMemory(self.app)

    def teardown(self) -> None:
        self.queue.close()

    def _run(self, key: str, number: int) -> int:
        job, now = self.jobs[number], self.queue.now()
        assert not job.is_over, "run again after it was finished"
        if job.attempts:
            assert now - job.attempts[-1] >= timedelta(seconds=DELAY_S), "retried too early"
        job.attempts.append(now)
        fails = len(job.attempts) - job.deaths
        assert jm.job().attempt == len(job.attempts)
        if jm.job().queue == "limited":
            self.starts.append((now, key))
            assert self.leased_until.get(key, now) <= now, "the key is held by another worker"
        if fails <= job.failures:
            if fails > RETRIES:
                self._finish(job)
            raise ValueError(f"{number} fails")
        self._finish(job)
        return number

    def _finish(self, job: Planned) -> None:
        job.is_over = True
        if self.current.get(job.key) == self.jobs.index(job):
            del self.current[job.key]

    # -- what can happen ---------------------------------------------------------------------------

    @rule(key=KEYS, failures=st.integers(0, RETRIES + 1))
    def send_unique(self, key: str, failures: int) -> None:
        number = len(self.jobs)
        self.jobs.append(Planned(f"unique {key}", failures))
        name = f"unique {key}"
        sent = self.unique.send(key, number)
        assert sent.is_new is (name not in self.current)
        if sent.is_new:
            self.current[name] = number
        else:
            self.jobs[number].is_over = True  # it was never added

    @rule(key=KEYS, failures=st.integers(0, RETRIES + 1))
    def send_once(self, key: str, failures: int) -> None:
        number, now = len(self.jobs), self.queue.now()
        job = Planned(f"once {key}", failures)
        self.jobs.append(job)
        at, last = self.last.get(key, (now, None))
        is_there = last is not None and (
            not last.is_over or (last.will_succeed and now < at + timedelta(seconds=ONCE_S))
        )
        sent = self.once.send(key, number)
        assert sent.is_new is not is_there
        if sent.is_new:
            self.last[key] = now, job
        else:
            job.is_over = True

    @rule(key=KEYS, failures=st.integers(0, RETRIES + 1))
    def send_limited(self, key: str, failures: int) -> None:
        self.jobs.append(Planned(key, failures))
        assert self.limited.send(key, len(self.jobs) - 1).is_new

    @rule()
    def run_all(self) -> None:
        self.queue.run_all(check=False)

    @rule(seconds=st.sampled_from([1, 5, 10, 31, 61]))
    def advance(self, seconds: int) -> None:
        self.queue.advance(seconds=seconds, check=False)

    @precondition(lambda self: any(job.state == "ready" for job in self.queue.jobs))
    @rule()
    def a_worker_dies(self) -> None:
        delivery = self.queue.lease_or_none()
        if delivery is None:  # held back by a limit
            return
        sent = next(job for job in self.queue.jobs if job.id == delivery.job_id)
        key, number = sent.args
        job, now = self.jobs[number], self.queue.now()
        if job.attempts:
            assert now - job.attempts[-1] >= timedelta(seconds=DELAY_S)
        # The next attempt may begin when the lease ends.
        job.attempts.append(now + timedelta(seconds=LEASE_S - DELAY_S))
        job.deaths += 1
        if sent.queue == "limited":
            self.starts.append((now, key))
            self.leased_until[key] = now + timedelta(seconds=LEASE_S)

    # -- what always holds -------------------------------------------------------------------------

    @invariant()
    def the_rates_are_kept(self) -> None:
        starts = [at for at, _ in self.starts]
        for first, over in zip(starts, starts[RATE:], strict=False):
            assert over - first >= timedelta(seconds=PER_S), "too many starts in a minute"
        for key in "abc":
            starts = [at for at, of in self.starts if of == key]
            for first, over in zip(starts, starts[KEY_RATE:], strict=False):
                assert over - first >= timedelta(seconds=KEY_PER_S), "too many starts of a key"

    @invariant()
    def states_are_those_of_the_model(self) -> None:
        for sent in self.queue.jobs:
            job = self.jobs[sent.args[1]]
            if job.is_over:
                assert sent.state == ("done" if job.will_succeed else "dead")
            else:
                assert sent.state in ("ready", "retrying", "running")

    @rule()
    def in_the_end_all_are_finished(self) -> None:
        self.queue.advance(hours=3, check=False)
        for sent in self.queue.jobs:
            job = self.jobs[sent.args[1]]
            assert job.is_over
            assert sent.attempts == min(job.failures, RETRIES) + 1 + job.deaths


TestTasks = TaskMachine.TestCase
TestTasks.settings = settings(max_examples=cases(30), stateful_step_count=25, deadline=None)
