"""What the extensions of the work queue do, said plainly: one dictionary of jobs, no index.

The machine in workq_extension_machine.py gives it the commands that the engine is given. Which of
several clients got a job is the choice of the engine; whether it may have it is judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias
from uuid import UUID

from msgspec import structs

from journeyman.engines.workq.forks import FORKED, ORIGIN
from journeyman.engines.workq.ledger_entries import StoredJobOptions
from journeyman.engines.workq.parks import TIMED_OUT
from journeyman.engines.workq.step_table import StepKey
from journeyman.folds.workq import NEVER_NS
from journeyman.formats.workq import CANCELLATION
from journeyman.protocols.workq.commands import (
    NO_LIMITS,
    Add,
    AddOptions,
    Complaint,
    Emit,
    Fail,
    Fork,
    JobWait,
    Lease,
    Limits,
    Park,
    RecordStep,
    RefusedLine,
    Touch,
)
from journeyman.protocols.workq.replies import DONE, NOT_FOUND, Finished, Reply, id_text

MS = 1_000_000
RETENTION_NS = 200 * MS  # of events
NEW, COMPLETED, FAILED, PENDING, LEASED, PARKED = range(6)
UNFINISHED = (NEW, PENDING, LEASED, PARKED)
Steps: TypeAlias = dict[StepKey, bytes]


@dataclass(slots=True)
class PlainJob:
    add: Add
    place: int
    expires_ns: int
    state: int = NEW
    attempts: int = 0
    fails: int = 0
    ready_ns: int = 0
    ends_ns: int = 0  # of the lease
    started_ns: int = 0
    touched: bool = False
    result: bytes | None = None
    is_cancelled: bool = False
    given_back: int = 0  # attempts that ended so
    parks: int = 0
    wait: JobWait | None = None  # of a parked job
    steps: Steps = field(default_factory=dict)
    added_ns: int = 0

    def __post_init__(self) -> None:
        self.added_ns = self.expires_ns - self.add.ttl_ms * MS

    @property
    def key(self) -> str:
        return "" if self.add.options is None else self.add.options.key

    def end_park(self, now_ns: int) -> None:
        """Its TTL begins again."""
        if self.wait is not None:
            self.wait, self.expires_ns = None, now_ns + self.add.ttl_ms * MS


@dataclass(slots=True)
class PlainChild:
    add: Add
    left: set[bytes]
    failed: bool = False


@dataclass(slots=True)
class Model:
    now_ns: int
    jobs: dict[bytes, PlainJob] = field(default_factory=dict)
    children: dict[bytes, PlainChild] = field(default_factory=dict)
    limits: dict[str, Limits] = field(default_factory=dict)
    starts: dict[str, list[int]] = field(default_factory=dict)  # that the engine counts
    logged: dict[str, list[int]] = field(default_factory=dict)  # that a restart counts
    key_starts: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    logged_ids: list[tuple[bytes, str, int]] = field(default_factory=list)
    waiters: dict[int, Lease] = field(default_factory=dict)
    results: dict[int, bytes] = field(default_factory=dict)  # clients that wait for a result
    answers: dict[int, Reply] = field(default_factory=dict)  # to those
    events: dict[str, tuple[bytes, int]] = field(default_factory=dict)  # value, when it happened
    places: int = 0

    # -- who may have what --

    def leased(self, name: str, key: str | None = None) -> int:
        return sum(
            job.state == LEASED and job.add.name == name and key in (None, job.key)
            for job in self.jobs.values()
        )

    def is_open(self, name: str) -> bool:
        found = self.limits.get(name, NO_LIMITS)
        if 0 < found.concurrency <= self.leased(name):
            return False
        recent = [at for at in self.starts.get(name, ()) if at + found.per_ms * MS > self.now_ns]
        return not found.rate or len(recent) < found.rate

    def eligible(self, name: str) -> list[PlainJob]:
        """In their order."""
        if not self.is_open(name):
            return []
        ready = [
            job
            for job in self.jobs.values()
            if job.add.name == name and job.state in (NEW, PENDING) and not job.ready_ns
        ]
        free = [job for job in ready if not job.key or self.has_room(name, job.key)]
        return sorted(free, key=lambda job: job.place)

    def has_room(self, name: str, key: str) -> bool:
        found = self.limits.get(name, NO_LIMITS)
        if 0 < found.key_concurrency <= self.leased(name, key):
            return False
        starts = self.key_starts.get((name, key), ())
        recent = [at for at in starts if at + found.key_per_ms * MS > self.now_ns]
        return not found.key_rate or len(recent) < found.key_rate

    def give(self, job: PlainJob) -> None:
        eligible = self.eligible(job.add.name)
        assert job in eligible
        if self.limits.get(job.add.name, NO_LIMITS).fair:  # keys take turns, jobs of a key do not
            assert job is next(each for each in eligible if each.key == job.key)
        job.state, job.touched = LEASED, False
        job.attempts += 1
        job.started_ns = self.now_ns
        job.ends_ns = self.now_ns + job.add.ttr_ms * MS
        self.starts.setdefault(job.add.name, []).append(self.now_ns)
        self.logged.setdefault(job.add.name, []).append(self.now_ns)
        self.key_starts.setdefault((job.add.name, job.key), []).append(self.now_ns)
        self.logged_ids.append((job.add.job_id, job.add.name, self.now_ns))

    # -- commands --

    def add(self, command: Add) -> Reply:
        options = command.options or AddOptions()
        former, other = self.jobs.get(command.job_id), self.jobs.get(options.unless)
        if other is not None and other.state == NEW and command.job_id not in self.children:
            return RefusedLine(Complaint.DUPLICATE_JOB)
        if command.job_id in self.children or (
            former is not None and not self.makes_room(former, command, options)
        ):
            return RefusedLine(Complaint.DUPLICATE_JOB)
        known = (self.jobs.keys() | self.children.keys()) - {command.job_id}
        if not known.issuperset(options.after):
            return RefusedLine(Complaint.NO_PARENT)
        if former is not None and former.state != NEW:
            self.end(command.job_id)
        if not options.after:
            self.begin(command)
            return DONE
        self.children[command.job_id] = PlainChild(command, set(options.after))
        for parent in options.after:
            if parent in self.jobs and self.jobs[parent].state not in UNFINISHED:
                self.tell_children(parent, self.jobs[parent].state == COMPLETED)
        self.settle()
        return DONE

    def makes_room(self, former: PlainJob, command: Add, options: AddOptions) -> bool:
        if former.state == NEW and options.replaces_unstarted:
            return True
        if former.state in UNFINISHED or not options.replaces_finished:
            return False
        if options.unless_same and former.add.payload == command.payload:
            return False
        return former.state == FAILED or self.now_ns >= former.added_ns + options.unique_ms * MS

    def begin(self, command: Add) -> PlainJob:
        self.places += 1
        job = PlainJob(command, self.places, self.now_ns + command.ttl_ms * MS)
        self.jobs[command.job_id] = job
        return job

    def finish(self, job_id: bytes, *, success: bool, result: bytes = b"") -> None:
        job = self.jobs[job_id]
        job.state, job.result = COMPLETED if success else FAILED, result
        job.end_park(self.now_ns)
        self.answer(job_id, Finished(job_id, success, result))
        self.tell_children(job_id, success)
        self.settle()

    def fail(self, command: Fail) -> Reply:
        job = self.jobs.get(command.job_id)
        if job is None:
            return NOT_FOUND
        if job.state not in UNFINISHED:
            return RefusedLine(Complaint.DUPLICATE_RESULT)
        if command.attempt not in (0, job.attempts):
            return RefusedLine(Complaint.LEASED_AGAIN)
        if command.attempt and job.state != LEASED and not command.is_final:
            return RefusedLine(Complaint.NOT_LEASED)
        if command.is_release:
            if job.state != LEASED:
                return RefusedLine(Complaint.NOT_LEASED)
            if 0 < job.add.max_attempts <= job.attempts:
                self.finish(command.job_id, success=False)
            else:
                job.given_back += 1
                self.wait_again(job, command.delay_ms)
            return DONE
        job.fails += 1
        add = job.add
        is_last = job.fails >= add.max_fails or 0 < add.max_attempts <= job.attempts
        if is_last or command.is_final:
            self.finish(command.job_id, success=False, result=command.result)
        else:
            self.wait_again(job, command.delay_ms)
        return DONE

    def wait_again(self, job: PlainJob, delay_ms: int | None = None) -> None:
        delay_ms = job.add.retry_delay_ms if delay_ms is None else delay_ms
        job.end_park(self.now_ns)
        job.state, job.ready_ns = PENDING, self.now_ns + delay_ms * MS if delay_ms else 0

    def touch(self, command: Touch) -> Reply:
        job = self.jobs.get(command.job_id)
        if job is None:
            return NOT_FOUND
        if job.is_cancelled:
            return RefusedLine(Complaint.CANCELLED)
        if job.state != LEASED:
            return RefusedLine(Complaint.NOT_LEASED)
        ttr_ms = job.add.ttr_ms if command.ttr_ms is None else command.ttr_ms
        job.ends_ns, job.touched = self.now_ns + ttr_ms * MS, True
        return DONE

    def cancel(self, job_id: bytes) -> Reply:
        child = self.children.pop(job_id, None)
        job = self.jobs.get(job_id) if child is None else self.begin(child.add)
        if job is None:
            return NOT_FOUND
        if job.state not in UNFINISHED:
            return RefusedLine(Complaint.DUPLICATE_RESULT)
        job.is_cancelled = True
        self.finish(job_id, success=False, result=CANCELLATION)
        return DONE

    def delete(self, job_id: bytes) -> Reply:
        if job_id not in self.jobs and job_id not in self.children:
            return NOT_FOUND
        self.end(job_id)
        return DONE

    def end(self, job_id: bytes) -> None:
        """The job or child is gone."""
        job = self.jobs.pop(job_id, None)
        if job is None:
            del self.children[job_id]
        self.answer(job_id, NOT_FOUND)
        self.tell_children(job_id, job is not None and job.state == COMPLETED)
        self.settle()

    def answer(self, job_id: bytes, reply: Reply) -> None:
        for client in [each for each, awaited in self.results.items() if awaited == job_id]:
            del self.results[client]
            self.answers[client] = reply

    def requeue(self, job_id: bytes) -> Reply:
        job = self.jobs.get(job_id)
        if job is None:
            return NOT_FOUND
        if job.state != FAILED:
            return RefusedLine(Complaint.NOT_DEAD)
        self.begin(job.add).steps = job.steps
        return DONE

    # -- steps, parks, events --

    def record_step(self, command: RecordStep) -> Reply:
        refused = self.refusal(command.job_id, command.attempt)
        if refused is None:
            key = StepKey(command.name, command.number)
            self.jobs[command.job_id].steps.setdefault(key, command.value)
        return refused or DONE

    def park(self, command: Park) -> Reply | Steps:
        """The step, if the wait is over already."""
        job, wait = self.jobs.get(command.job_id), command.wait
        if job is not None and job.state == PARKED and command.attempt == job.attempts:
            return DONE
        refused = self.refusal(command.job_id, command.attempt)
        if refused is not None:
            return refused
        assert job is not None
        if job.add.max_attempts:
            return RefusedLine(Complaint.HAS_MAX_ATTEMPTS)
        if wait.within_ms:
            until_ns = self.now_ns + wait.within_ms * MS
            wait = structs.replace(wait, until_ns=until_ns, within_ms=0)
        if step := self.step_of(job, wait):
            return step
        job.state, job.wait, job.expires_ns = PARKED, wait, NEVER_NS
        job.parks += 1
        return DONE

    def refusal(self, job_id: bytes, attempt: int) -> Reply | None:
        job = self.jobs.get(job_id)
        if job is None:
            return NOT_FOUND
        if job.state != LEASED:
            return RefusedLine(Complaint.CANCELLED if job.is_cancelled else Complaint.NOT_LEASED)
        return None if attempt == job.attempts else RefusedLine(Complaint.LEASED_AGAIN)

    def step_of(self, job: PlainJob, wait: JobWait) -> Steps:
        """What the wait has come to, which is recorded; empty: it goes on."""
        own, late = (StepKey(wait.step + end, wait.number) for end in ("", TIMED_OUT))
        goes_on = any(self.is_unfinished(UUID(text).bytes) for text in wait.jobs)
        if own in job.steps and not goes_on:
            key, value = own, job.steps[own]
        elif late in job.steps:
            key, value = late, job.steps[late]
        elif wait.event in self.events:
            key, value = own, self.events[wait.event][0]
        elif wait.jobs and not goes_on:
            key, value = own, b""
        elif 0 < wait.until_ns <= self.now_ns:
            key, value = late if wait.event or wait.jobs else own, b""
        else:
            return {}
        job.steps.setdefault(key, value)
        return {key: value}

    def is_unfinished(self, job_id: bytes) -> bool:
        job = self.jobs.get(job_id)
        return job_id in self.children or (job is not None and job.state in UNFINISHED)

    def wake(self, recorded: Callable[[bytes], Steps] = lambda _: {}) -> None:
        """Those whose wait is over. ``recorded``: by the engine; of a time and an end of the last
        job that come together, either may be first."""
        for job_id, job in self.jobs.items():
            if job.wait is None:
                continue
            late = StepKey(job.wait.step + TIMED_OUT, job.wait.number)
            if job.wait.jobs and 0 < job.wait.until_ns <= self.now_ns and late in recorded(job_id):
                job.steps[late] = b""
            if self.step_of(job, job.wait):
                job.end_park(self.now_ns)
                job.state, job.ready_ns = PENDING, 0

    def fork(self, command: Fork) -> Reply:
        job, taken = self.jobs.get(command.job_id), self.jobs.get(command.new_id)
        if job is None:
            return NOT_FOUND
        origin = f"{id_text(command.job_id)} {command.name}#{command.number}".encode()
        if taken is not None and taken.steps.get(ORIGIN) == origin:
            return DONE
        ends = [StepKey(command.name + late, command.number) for late in ("", TIMED_OUT)]
        if not any(end in job.steps for end in ends):
            return RefusedLine(Complaint.UNKNOWN_STEP)
        if taken is not None or command.new_id in self.children:
            return RefusedLine(Complaint.DUPLICATE_JOB)
        options = AddOptions(job.key)
        forked = self.begin(job.add._replace(job_id=command.new_id, options=options))
        forked.steps[ORIGIN] = origin
        for key, value in job.steps.items():
            if key in ends:
                break
            if not key.name.startswith("!"):
                forked.steps[key] = value
        number = 1 + sum(key.name == FORKED for key in job.steps)
        job.steps[StepKey(FORKED, number)] = id_text(command.new_id).encode()
        return DONE

    def emit(self, command: Emit) -> Reply:
        value, _ = self.events.setdefault(command.name, (command.value, self.now_ns))
        return DONE if value == command.value else RefusedLine(Complaint.EVENT_DIFFERS)

    def tell_children(self, parent: bytes, succeeded: bool) -> None:
        for child in self.children.values():
            if parent in child.left:
                child.left.discard(parent)
                even_failed = child.add.options is not None and child.add.options.even_failed
                child.failed |= not succeeded and not even_failed

    def settle(self) -> None:
        for job_id, child in list(self.children.items()):
            if job_id in self.children and (child.failed or not child.left):
                del self.children[job_id]
                self.begin(child.add)
                if child.failed:
                    self.jobs[job_id].fails = 1
                    self.finish(job_id, success=False)

    # -- time --

    def due(self, recorded: Callable[[bytes], Steps]) -> None:
        for job_id, job in sorted(self.jobs.items()):
            if job.expires_ns <= self.now_ns and job_id in self.jobs:
                self.end(job_id)
        for job_id, job in sorted(self.jobs.items()):
            if job.state == LEASED and job.ends_ns <= self.now_ns:
                if 0 < job.add.max_attempts <= job.attempts:
                    self.finish(job_id, success=False)
                else:
                    self.wait_again(job)
        for job in self.jobs.values():
            if 0 < job.ready_ns <= self.now_ns:
                job.ready_ns = 0
        self.wake(recorded)

    def restart(self, known: dict[bytes, StoredJobOptions]) -> None:
        """``known``: what the ledger has of jobs; the leases of a key are counted by it."""
        self.waiters, self.results, self.answers = {}, {}, {}
        self.starts = {name: list(each) for name, each in self.logged.items()}
        self.key_starts = {}
        for job_id, name, at in self.logged_ids:
            if job_id in known:
                self.key_starts.setdefault((name, known[job_id].key), []).append(at)
        for job in self.jobs.values():
            if job.state == LEASED:
                job.ends_ns = job.started_ns + job.add.ttr_ms * MS
                if job.touched:
                    job.ends_ns = max(job.ends_ns, self.now_ns + job.add.ttr_ms * MS)
