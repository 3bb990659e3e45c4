"""A work queue as plain as can be: what the engine would be if speed and memory did not matter.

One dict of jobs, one list of those who wait; everything is searched and sorted anew each time. It
writes no records: whether those are right is for the fold to say. Where chance decides it is told
what the engine chose, and says whether that was a choice it had.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from journeyman.protocols.workq.commands import (
    Add,
    AwaitResult,
    Complaint,
    Complete,
    Delete,
    Fail,
    Lease,
    PauseQueue,
    RefusedLine,
    Requeue,
    ResumeQueue,
    RunJob,
    ScheduleJob,
)
from journeyman.protocols.workq.replies import (
    DONE,
    NOT_FOUND,
    TIMED_OUT,
    Finished,
    JobView,
    Leased,
    QueueView,
    Reply,
)

MS = 1_000_000
NEW, COMPLETED, FAILED, PENDING, LEASED = range(5)
SMALL_STEP_NS = 10**9


@dataclass(slots=True)
class PlainJob:
    job_id: bytes
    name: str
    ttr_ms: int
    ttl_ms: int
    priority: int
    payload: bytes
    created_ns: int
    time_ns: int | None = None
    max_attempts: int = 0
    max_fails: int = 0
    delay_ms: int = 0
    is_run: bool = False
    state: int = NEW
    attempts: int = 0
    fails: int = 0
    result: bytes | None = None
    started_ns: int = 0
    ready_ns: int = 0  # not leased before
    exhausted: bool = False

    @property
    def place(self) -> tuple[int, int, int, bytes]:
        """Among the ready ones."""
        since_ns = max(self.time_ns or self.created_ns, self.created_ns)
        return -self.priority, since_ns, self.created_ns, self.job_id

    @property
    def expires_ns(self) -> float:
        if self.is_run:
            return float("inf")
        return (self.time_ns or self.created_ns) + self.ttl_ms * MS

    @property
    def is_finished(self) -> bool:
        return self.state in (COMPLETED, FAILED)

    @property
    def deadline_ns(self) -> int:
        return self.started_ns + self.ttr_ms * MS

    @property
    def view(self) -> JobView:
        """What ``inspect`` shows of it; the other fields are compared elsewhere."""
        states = {LEASED: "leased", COMPLETED: "completed", FAILED: "dead"}
        return JobView(
            self.job_id, self.name, states.get(self.state, "ready"), self.attempts,
            self.max_attempts, self.fails, self.max_fails, self.priority, self.ttr_ms, self.ttl_ms,
            0, self.created_ns, None, self.payload, is_retry=self.state == PENDING,
            scheduled_ns=self.time_ns,
        )  # fmt: skip


@dataclass(slots=True)
class PlainWaiter:
    client: int
    until_ns: float
    names: tuple[str, ...] = ()
    job_id: bytes = b""
    is_run: bool = False


@dataclass(slots=True)
class Model:
    jobs: dict[bytes, PlainJob] = field(default_factory=dict)
    waiters: list[PlainWaiter] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    evicted: int = 0
    now_ns: int = 0
    answers: list[tuple[int, Reply]] = field(default_factory=list)

    # -- time --

    def begin(self, now_ns: int) -> None:
        self.answers = []
        if now_ns > self.now_ns or self.now_ns - now_ns > SMALL_STEP_NS:
            self.now_ns = now_ns

    def due(self) -> None:
        for job in sorted(self.jobs.values(), key=lambda j: (j.expires_ns, j.job_id)):
            if job.expires_ns <= self.now_ns:
                self.evicted += not job.is_finished
                self.remove(job)
        for job in sorted(self.of_state(LEASED), key=lambda j: (j.deadline_ns, j.job_id)):
            if job.deadline_ns <= self.now_ns:
                self.end_attempt(job)
        waiting = [*self.of_state(NEW), *self.of_state(PENDING)]
        for job in sorted(waiting, key=lambda j: (j.ready_ns, j.job_id)):
            if 0 < job.ready_ns <= self.now_ns:
                job.ready_ns = 0
                self.match(job.name)
        for waiter in sorted(self.waiters, key=lambda w: w.until_ns):
            if waiter.until_ns <= self.now_ns and waiter in self.waiters:
                self.end_wait(waiter)

    def end_attempt(self, job: PlainJob) -> None:
        if job.is_run:
            self.give_up(job)
        elif 0 < job.max_attempts <= job.attempts:
            job.state, job.result, job.exhausted = FAILED, b"", True
            self.tell(job.job_id, Finished(job.job_id, False, b""))
        else:
            self.queue_again(job)

    def end_wait(self, waiter: PlainWaiter) -> None:
        if not waiter.is_run:
            self.answer(waiter, TIMED_OUT)
        elif self.jobs[waiter.job_id].state == LEASED:
            waiter.until_ns = float("inf")
        else:
            self.give_up(self.jobs[waiter.job_id])

    def next_due_ns(self) -> float:
        moments = [waiter.until_ns for waiter in self.waiters]
        moments += [job.expires_ns for job in self.jobs.values()]
        moments += [job.deadline_ns for job in self.of_state(LEASED)]
        moments += [job.ready_ns for job in self.jobs.values() if self.is_waiting(job)]
        return min((moment for moment in moments if moment), default=float("inf"))

    @staticmethod
    def is_waiting(job: PlainJob) -> bool:
        return job.state in (NEW, PENDING)

    # -- commands --

    def add(self, command: Add | ScheduleJob | RunJob) -> Reply | None:
        time_ns = command.time_ns if isinstance(command, ScheduleJob) else None
        if time_ns is not None:
            assert isinstance(command, ScheduleJob)
            if time_ns + command.ttl_ms * MS <= self.now_ns:
                return RefusedLine(Complaint.TIME)
        former = self.jobs.get(command.job_id)
        if former is not None:
            if former.expires_ns > self.now_ns:
                return RefusedLine(Complaint.DUPLICATE_JOB)
            self.evicted += not former.is_finished
            self.remove(former)
        self.names.add(command.name)
        self.now_ns += 1
        job = PlainJob(
            command.job_id,
            command.name,
            command.ttr_ms,
            0 if isinstance(command, RunJob) else command.ttl_ms,
            command.priority,
            command.payload,
            self.now_ns,
            time_ns,
        )
        self.jobs[job.job_id] = job
        if time_ns is not None and time_ns > self.now_ns:
            job.ready_ns = time_ns
        if not isinstance(command, RunJob):
            job.max_attempts, job.max_fails = command.max_attempts, command.max_fails
            job.delay_ms = command.retry_delay_ms
        else:
            job.is_run = True
        self.match(job.name)
        return DONE

    def run(self, command: RunJob, client: int) -> Reply | None:
        reply = self.add(command)
        if reply != DONE:
            return reply
        job = self.jobs[command.job_id]
        if not command.wait_ms and job.state != LEASED:
            del self.jobs[job.job_id]
            return TIMED_OUT
        until_ns = self.now_ns + command.wait_ms * MS
        self.waiters.append(PlainWaiter(client, until_ns, job_id=job.job_id, is_run=True))
        return None

    @property
    def known_names(self) -> set[str]:
        """Of queues: those that were used, and those that somebody waits for."""
        return self.names.union(*(waiter.names for waiter in self.waiters))

    def lease(self, command: Lease, client: int, given: Reply | None) -> Reply | None:
        """``given`` is what the engine said."""
        choices = [job for name in set(command.names) if (job := self.first_ready(name))]
        if choices:
            assert isinstance(given, Leased), f"{len(choices)} queues have a job"
            (job,) = (job for job in choices if job.job_id == given.job_id)
            return self.give(job)
        if not command.wait_ms:
            return TIMED_OUT
        until_ns = self.now_ns + command.wait_ms * MS
        self.waiters.append(PlainWaiter(client, until_ns, names=command.names))
        return None

    def finish(self, command: Complete | Fail) -> Reply:
        job = self.living(command.job_id)
        if job is None:
            return NOT_FOUND
        if job.is_finished:
            return RefusedLine(Complaint.DUPLICATE_RESULT)
        success = isinstance(command, Complete)
        attempts_left = not job.max_attempts or job.attempts < job.max_attempts
        job.fails += not success
        if not success and job.fails < job.max_fails and attempts_left:
            self.queue_again(job)
            return DONE
        job.state, job.result = COMPLETED if success else FAILED, command.result
        if job.is_run:
            del self.jobs[job.job_id]
        self.tell(job.job_id, Finished(job.job_id, success, command.result))
        return DONE

    def result(self, command: AwaitResult, client: int) -> Reply | None:
        job = self.living(command.job_id)
        if job is None:
            return NOT_FOUND
        if job.result is not None:
            return Finished(job.job_id, job.state == COMPLETED, job.result)
        if not command.wait_ms:
            return TIMED_OUT
        until_ns = self.now_ns + command.wait_ms * MS
        self.waiters.append(PlainWaiter(client, until_ns, job_id=job.job_id))
        return None

    def delete(self, command: Delete) -> Reply:
        job = self.living(command.job_id)
        if job is None:
            return NOT_FOUND
        self.remove(job)
        return DONE

    def requeue(self, command: Requeue) -> Reply:
        job = self.living(command.job_id)
        if job is None:
            return NOT_FOUND
        if job.state != FAILED:
            return RefusedLine(Complaint.NOT_DEAD)
        self.now_ns += 1
        job.created_ns, job.time_ns, job.state, job.result = self.now_ns, None, NEW, None
        job.attempts = job.fails = job.started_ns = job.ready_ns = 0
        job.exhausted = False
        self.match(job.name)
        return DONE

    def pause(self, command: PauseQueue) -> Reply:
        self.names.add(command.name)
        self.paused.add(command.name)
        return DONE

    def resume(self, command: ResumeQueue) -> Reply:
        self.paused.discard(command.name)
        self.match(command.name)
        return DONE

    def gone(self, client: int) -> Reply:
        waiter = next((w for w in self.waiters if w.client == client), None)
        if waiter is None:
            return NOT_FOUND
        self.waiters.remove(waiter)
        if waiter.is_run and self.jobs[waiter.job_id].state != LEASED:
            self.give_up(self.jobs[waiter.job_id])
        return DONE

    # -- inside --

    def living(self, job_id: bytes) -> PlainJob | None:
        job = self.jobs.get(job_id)
        return job if job is not None and job.expires_ns > self.now_ns else None

    def of_state(self, state: int) -> list[PlainJob]:
        return [job for job in self.jobs.values() if job.state == state]

    def ready(self, name: str) -> list[PlainJob]:
        jobs = [
            job
            for job in self.jobs.values()
            if job.name == name and self.is_waiting(job) and not job.ready_ns
        ]
        return sorted(jobs, key=lambda job: job.place)

    def scheduled(self, name: str) -> list[PlainJob]:
        jobs = [
            job
            for job in self.jobs.values()
            if job.name == name and self.is_waiting(job) and job.ready_ns
        ]
        return sorted(jobs, key=lambda job: job.place)

    def dead(self, name: str) -> list[PlainJob]:
        jobs = [job for job in self.of_state(FAILED) if job.name == name]
        return sorted(jobs, key=lambda job: job.place)

    def queue_view(self, name: str) -> QueueView:
        leased = sum(job.name == name for job in self.of_state(LEASED))
        counts = len(self.ready(name)), len(self.scheduled(name)), leased, len(self.dead(name))
        return QueueView(name, *counts, paused=name in self.paused)

    def first_ready(self, name: str) -> PlainJob | None:
        """Unless the queue is paused."""
        living = (job for job in self.ready(name) if job.expires_ns > self.now_ns)
        return None if name in self.paused else next(living, None)

    def end_expired(self, kept: set[bytes]) -> None:
        """The engine ends a job that has expired when it comes upon it; ``kept`` are those that
        it still has."""
        for job in list(self.jobs.values()):
            if job.expires_ns <= self.now_ns and job.job_id not in kept:
                self.evicted += not job.is_finished
                self.remove(job)

    def match(self, name: str) -> None:
        while True:
            waiter = next((w for w in self.waiters if name in w.names), None)
            job = self.first_ready(name) if waiter is not None else None
            if waiter is None or job is None:
                return
            self.answer(waiter, self.give(job))

    def give(self, job: PlainJob) -> Leased:
        job.state, job.started_ns = LEASED, self.now_ns
        job.attempts += 1
        return Leased(job.job_id, job.name, job.ttr_ms, job.payload)

    def queue_again(self, job: PlainJob) -> None:
        job.state = PENDING
        job.ready_ns = self.now_ns + job.delay_ms * MS if job.delay_ms else 0
        if not job.delay_ms:
            self.match(job.name)

    def remove(self, job: PlainJob) -> None:
        del self.jobs[job.job_id]
        self.tell(job.job_id, NOT_FOUND)

    def give_up(self, job: PlainJob) -> None:
        del self.jobs[job.job_id]
        for waiter in [w for w in self.waiters if w.job_id == job.job_id]:
            self.answer(waiter, TIMED_OUT if waiter.is_run else NOT_FOUND)

    def tell(self, job_id: bytes, reply: Reply) -> None:
        for waiter in [w for w in self.waiters if w.job_id == job_id]:
            self.answer(waiter, reply)

    def answer(self, waiter: PlainWaiter, reply: Reply) -> None:
        self.waiters.remove(waiter)
        self.answers.append((waiter.client, reply))

    def restart(self, now_ns: int) -> None:
        """A process began anew at this time, with what the log says."""
        self.waiters, self.evicted, self.answers = [], 0, []
        living = [job for job in self.jobs.values() if job.expires_ns > now_ns and not job.is_run]
        self.jobs = {job.job_id: job for job in living}
        for job in living:
            if job.ready_ns <= now_ns:
                job.ready_ns = 0
