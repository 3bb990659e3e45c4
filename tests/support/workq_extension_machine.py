"""Extensions of the work queue beside a plain model: leases, touches, retries, limits, children,
steps, parks and events.

The model is given the same commands, and which client got which job where several could have been;
it says whether that was allowed, what every reply is, and what every job is like. Before and after
each command all that is due is decided, so that nothing is left to the next one.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from itertools import count
from random import Random

import hypothesis.strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from journeyman.engines.workq import parks
from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.ledger_entries import FAMILIES, LoadedExtensions
from journeyman.engines.workq.loading import WorkqLoader
from journeyman.engines.workq.messages import WorkqAnswer, WorkqDue
from journeyman.engines.workq.step_table import StepKey
from journeyman.folds import ledger as ledger_fold
from journeyman.formats.ledger import CODEC as LEDGER
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.formats.workq import Command, Record
from journeyman.protocols.workq.commands import (
    NO_LIMITS,
    Add,
    AddOptions,
    AwaitResult,
    Cancel,
    Complaint,
    Complete,
    Delete,
    Emit,
    Fail,
    Fork,
    InspectJob,
    InspectSteps,
    JobWait,
    Lease,
    Limits,
    Park,
    RecordStep,
    RefusedLine,
    Requeue,
    RequeueAll,
    SetLimits,
    Touch,
)
from journeyman.protocols.workq.replies import (
    CANCELLED,
    DONE,
    NOT_FOUND,
    TIMED_OUT,
    Finished,
    JobList,
    Leased,
    LeasedJobs,
    Reply,
    Requeued,
    StepList,
    id_text,
)
from tests.support.workq_engine import decide_fast
from tests.support.workq_extension_model import (
    COMPLETED,
    FAILED,
    LEASED,
    NEW,
    PARKED,
    PENDING,
    RETENTION_NS,
    UNFINISHED,
    Model,
    Steps,
)
from tests.support.workq_views import folded, jobs_of

IDS = tuple(bytes.fromhex(f"0000000a00004000800000000000000{n}") for n in range(7))
NAMES = ("a", "a", "a", "b")
MOSTLY = 8  # of ten
MAX_TURNS = 100  # of WorkqDue, until nothing is due

job_ids = st.sampled_from(IDS)
names = st.sampled_from(NAMES)
keys = st.sampled_from(("", "k", "k", "l"))
ttrs = st.sampled_from((3, 40, 10**6, 10**6))
few = st.sampled_from((0, 0, 1, 2, 3))
delays = st.sampled_from((0, 0, 4, 50))
adds = st.builds(
    Add,
    *(job_ids, names, ttrs, st.sampled_from((20, 10**8, 10**8, 10**8)), st.binary(max_size=2)),
    *(st.just(0), few, few, delays),
    st.builds(
        AddOptions,
        *(keys, st.booleans(), st.just(()), st.just(False), st.sampled_from((0, 0, 30))),
        st.booleans(),
        replaces_unstarted=st.sampled_from((False, False, True)),
        unless=st.sampled_from((b"", b"", IDS[0])),
    ),
)
numbers = st.integers(1, 2)
attempts = st.sampled_from((0, 0, 0, 0, 1, 2))  # 0: the present one
sleeps = st.builds(JobWait, st.just("wait"), numbers, within_ms=st.sampled_from((1, 40, 10**6)))
timeouts = st.sampled_from((0, 0, 2, 60))
event_names = st.sampled_from(("e", "f"))
waits = st.one_of(
    sleeps,
    st.builds(JobWait, st.just("wait"), numbers, event=event_names, within_ms=timeouts),
    st.builds(
        JobWait,
        *(st.just("wait"), numbers),
        jobs=st.sets(job_ids.map(id_text), min_size=1, max_size=3).map(tuple),
        within_ms=timeouts,
    ),
)
limits = st.sampled_from(
    (
        *(NO_LIMITS, Limits(concurrency=1), Limits(concurrency=2, key_concurrency=1)),
        *(Limits(key_concurrency=1), Limits(key_concurrency=2), Limits(1, 5), Limits(2, 60)),
        *(Limits(key_rate=1, key_per_ms=5), Limits(key_rate=2, key_per_ms=60)),
        Limits(key_concurrency=1, key_rate=1, key_per_ms=60),
        *(Limits(fair=True, weights={"k": 2}), Limits(key_concurrency=1, fair=True)),
    )
)


def loaded_extensions(ledger: list[LedgerRecord]) -> LoadedExtensions:
    found = LoadedExtensions()
    for key, record in ledger_fold.replay(ledger).items():
        if key[0] in FAMILIES:
            assert found.add(record)
    return found


def load(log: list[Record], ledger: list[LedgerRecord], now_ns: int) -> WorkqEngine:
    loader = WorkqLoader(now_ns=now_ns, extensions=loaded_extensions(ledger))
    for record in log:
        loader.add(record)
    engine = loader.finish()
    engine._state.extensions.retention_ns = RETENTION_NS
    return engine


def snapshot(engine: WorkqEngine) -> dict[str, object]:
    """All state but where a ready job stands, which is none."""
    state = engine._state
    extensions = state.extensions
    found: dict[str, object] = {
        "jobs": dict(state.jobs),
        "orders": [list(each) for each in (state.jobs.expiries, state.jobs.leases, state.jobs.due)],
        "waits": sorted(state.waiting._by_number),
        "options": dict(extensions.options),
        "workers": dict(extensions.workers),
        "children": {
            key: (each.job, sorted(each.left), each.failed)
            for key, each in extensions.children.items()
        },
        "children of": {key: sorted(each) for key, each in extensions.children_of.items()},
        "child bytes": extensions.child_bytes,
        "settling": sorted(extensions.ready_children),
        "settled": sorted(extensions.added_children),
        "marked": sorted(extensions.marked),
        "forgetting parents": sorted(extensions.forgetting_parents),
        "forgetting": sorted(extensions.forgetting),
        "lingering": dict(extensions.lingering),
        "limited": sorted(extensions.limited),
        "cancelled": state.jobs.cancelled,
        "parked": (state.jobs.parked, list(state.jobs.waits)),
        "steps": {key: dict(each.values) for key, each in extensions.steps.by_job.items()},
        "steps to forget": {key: sorted(each) for key, each in extensions.steps.forgetting.items()},
        "bytes of steps and events": (extensions.steps.size, extensions.event_bytes),
        "events": dict(extensions.events),
        "ringing": sorted(extensions.ringing),
        "watched": dict(extensions.watched),
        "waking": sorted(extensions.waking),
    }
    for queue in state.queues.page(0, 100):
        found[queue.name] = (
            sorted(queue.waiting_page(0, 1000)),
            list(queue.scheduled),
            list(queue.dead),
            queue.limits,
            list(queue.starts),
            {key: list(starts) for key, starts in queue.key_rates.starts.items()},
            queue.leased,
            dict(queue.key_leased),
        )
    return found


class ExtensionMachine(RuleBasedStateMachine):
    shows_all_keys = True  # also of completed jobs, where they say nothing any more

    def __init__(self) -> None:
        super().__init__()
        self.model = Model(1_700_000_000 * 10**9)
        self.engine = WorkqEngine(seed=1)
        self.engine._state.extensions.retention_ns = RETENTION_NS
        self.log: list[Record] = []
        self.ledger: list[LedgerRecord] = []
        self.batch: tuple[list[Record], list[LedgerRecord]] | None = None
        self.before: tuple[Model, dict[str, object]] | None = None
        self.deleted: set[bytes] = set()  # in the batch
        self.replaced: set[bytes] = set()  # maybe, in the batch
        self.clients = count(1)
        self.decisions = count()  # every other one may take the fast path

    # -- both at once --

    def decide(self, command: Decidable, client: int = 0) -> Reply | None:
        """Decide, keep what is written, and hand the jobs of waiting clients to the model."""
        if self.batch is None:  # one of its own: a server decides nothing without
            self.engine.begin_batch()
        if next(self.decisions) % 2:
            outcome, _ = decide_fast(self.engine, command, self.model.now_ns, client)
        else:
            outcome = self.engine.decide(command, self.model.now_ns, client)
        log, ledger = (self.log, self.ledger) if self.batch is None else self.batch
        log += outcome.records
        written = self.engine.take_ledger()
        for record in written:
            assert LEDGER.decode(LEDGER.encode(record), 0).record == record  # type: ignore[union-attr]
        ledger += written
        if self.batch is None:
            self.engine.commit_batch()
        self._answers = [each for each in outcome.effects if type(each) is WorkqAnswer]
        reply: Reply | None = outcome.reply
        self._reply = reply
        return reply

    def take_answers(self) -> None:
        """After the model has done the same."""
        told: dict[int, Reply] = {}
        for client, reply in self._answers:
            assert isinstance(client, int)
            if client in self.model.waiters:
                lease = self.model.waiters.pop(client)
                if reply != TIMED_OUT:
                    for job_id in given(reply):
                        assert self.model.jobs[job_id].add.name in lease.names
                        self.model.give(self.model.jobs[job_id])
                    self.compare_counts(reply)
            else:
                told[client] = reply
        results, self.model.answers = self.model.answers, {}
        for client, answer in told.items():
            expected = results.pop(client)
            if isinstance(expected, Finished) and isinstance(answer, Finished):
                expected = replace_result(expected, answer)  # of a child that fails: any words
            assert answer == expected
        assert not results

    def compare_counts(self, reply: Reply | None) -> None:
        """As a lease of several names them."""
        for leased in reply.jobs if isinstance(reply, LeasedJobs) else ():
            job = self.model.jobs[leased.job_id]
            expected = (job.attempts, job.fails, job.given_back + job.parks)
            assert (leased.attempt, leased.fails, leased.given_back) == expected

    def let_time_pass(self) -> None:
        for _ in range(MAX_TURNS):
            due_ns = self.engine.next_due_ns()
            if due_ns is None or due_ns > max(self.model.now_ns, self.engine._state.now_ns):
                return  # records have moments of their own, a little ahead of the time
            self.decide(WorkqDue())
            self.model.due(self.recorded)
            self.take_answers()
            self.forget_events()
        # Steps of jobs that the open batch has ended wait for its commit.
        is_waiting = self.batch is not None and bool(self.engine._state.extensions.steps.ended_now)
        assert is_waiting, f"something is still due after {MAX_TURNS} turns"

    def recorded(self, job_id: bytes) -> Steps:
        steps = self.engine._state.extensions.steps.steps_of(job_id)
        return {key: each.value for key, each in steps.items()}

    def forget_events(self) -> None:
        """As the engine does: not before their retention ends, and maybe later."""
        for name, (_, happened_ns) in list(self.model.events.items()):
            if name not in self.engine._state.extensions.events:
                assert happened_ns + RETENTION_NS <= self.engine._state.now_ns
                del self.model.events[name]

    def compare(self, command: Decidable, expected: Reply) -> None:
        """``expected`` is from the model, which has done it."""
        self.model.wake()
        assert self.decide(command) == expected
        self.take_answers()
        self.let_time_pass()

    # -- commands --

    @initialize(chosen=limits, keys=st.lists(keys, min_size=4, max_size=4))
    def begin_with_a_limited_queue(self, chosen: Limits, keys: list[str]) -> None:
        """And jobs in it: most of what is interesting needs both."""
        self.limit("a", chosen)
        for job_id, key in zip(IDS, keys, strict=False):
            self.add(Add(job_id, "a", 10**6, 10**8, b"", max_fails=2, options=AddOptions(key)))
            self.wait_for_a_job("a", 1)

    @rule(command=adds)
    def add(self, command: Add) -> None:
        self.replaced.add(command.job_id)
        self.compare(command, self.model.add(command))

    @rule(command=adds, parents=st.lists(job_ids, min_size=1, max_size=2), even=st.booleans())
    def add_child(self, command: Add, parents: list[bytes], even: bool) -> None:
        after = tuple(dict.fromkeys(parents))
        if command.options is not None:
            options = command.options._replace(after=after, even_failed=even)
            options = options._replace(replaces_unstarted=False, unless=b"")
            command = command._replace(options=options)
            self.add(command)

    @rule(name=names, most=st.integers(0, 3), worker=st.sampled_from(("", "w")))
    def lease(self, name: str, most: int, worker: str) -> None:
        is_fair = self.model.limits.get(name, NO_LIMITS).fair
        chosen: list[bytes] = []
        if is_fair:  # whose turn it is, the engine says; tests/unit/test_workq_fairness.py has it
            chosen = given(self.decide(Lease((name,), 0, most, worker)))
        expected: list[bytes] = []
        while (found := self.model.eligible(name)) and len(expected) < max(most, 1):
            index = len(expected)
            turn = chosen[index] if is_fair and index < len(chosen) else b""
            job = self.model.jobs[turn] if turn else found[0]
            self.model.give(job)
            expected.append(job.add.job_id)
        if not is_fair:
            chosen = given(self.decide(Lease((name,), 0, most, worker)))
        assert chosen == expected
        self.compare_counts(self._reply)
        self.take_answers()
        self.let_time_pass()

    @rule(name=names, most=st.integers(0, 2))
    def wait_for_a_job(self, name: str, most: int) -> None:
        if self.model.eligible(name):
            return
        client, command = next(self.clients), Lease((name,), 60, most)
        self.model.waiters[client] = command
        assert self.decide(command, client) is None
        self.let_time_pass()

    @rule(job_id=job_ids)
    def wait_for_a_result(self, job_id: bytes) -> None:
        job = self.model.jobs.get(job_id)
        client = next(self.clients)
        reply = self.decide(AwaitResult(job_id, 10**7), client)
        if job is None and job_id not in self.model.children:
            assert reply == NOT_FOUND
        elif job is not None and job.state not in UNFINISHED:
            assert isinstance(reply, Finished)
            assert reply.success == (job.state == COMPLETED)
        else:
            assert reply is None
            self.model.results[client] = job_id

    @rule(job_id=job_ids, attempt=few)
    def complete(self, job_id: bytes, attempt: int) -> None:
        job_id = self.known(job_id)
        job = self.model.jobs.get(job_id)
        reply: Reply = DONE
        if job is None:
            reply = NOT_FOUND
        elif job.state not in UNFINISHED:
            reply = RefusedLine(Complaint.DUPLICATE_RESULT)
        elif attempt not in (0, job.attempts):
            reply = RefusedLine(Complaint.LEASED_AGAIN)
        else:
            self.model.finish(job_id, success=True, result=b"ok")
        self.compare(Complete(job_id, b"ok", attempt), reply)

    @rule(job_id=job_ids, delay_ms=st.none() | delays, attempt=few, is_final=st.booleans())
    def fail(self, job_id: bytes, delay_ms: int | None, attempt: int, is_final: bool) -> None:
        job_id = self.known(job_id)
        command = Fail(job_id, b"no", delay_ms, attempt, is_final)
        self.compare(command, self.model.fail(command))

    @rule(job_id=job_ids, delay_ms=st.none() | delays, attempt=few)
    def release(self, job_id: bytes, delay_ms: int | None, attempt: int) -> None:
        job_id = self.known(job_id)
        command = Fail(job_id, b"", delay_ms, attempt, is_release=True)
        self.compare(command, self.model.fail(command))

    @rule(job_id=job_ids, ttr_ms=st.none() | ttrs)
    def touch(self, job_id: bytes, ttr_ms: int | None) -> None:
        job_id = self.known(job_id)
        command = Touch(job_id, ttr_ms)
        self.compare(command, self.model.touch(command))

    @rule(job_id=job_ids)
    def delete(self, job_id: bytes) -> None:
        self.deleted.add(job_id)
        self.compare(Delete(job_id), self.model.delete(job_id))

    @rule(job_id=job_ids)
    def cancel(self, job_id: bytes) -> None:
        job_id = self.known(job_id)
        self.compare(Cancel(job_id), self.model.cancel(job_id))

    @rule(job_id=job_ids)
    def requeue(self, job_id: bytes) -> None:
        job_id = self.known(job_id)
        self.compare(Requeue(job_id), self.model.requeue(job_id))

    @rule(name=names, most=st.integers(1, 3))
    def requeue_all(self, name: str, most: int) -> None:
        if not self.engine._state.queues.get(name):
            self.compare(RequeueAll(name, most), NOT_FOUND)
            return
        dead = [
            (job.place, job_id)
            for job_id, job in self.model.jobs.items()
            if job.add.name == name and job.state == FAILED and not job.is_cancelled
        ]
        for _, job_id in sorted(dead)[:most]:
            self.model.requeue(job_id)
        self.compare(RequeueAll(name, most), Requeued(name, min(len(dead), most)))

    @rule(name=names, chosen=limits)
    def limit(self, name: str, chosen: Limits) -> None:
        former = self.model.limits.get(name, NO_LIMITS)
        self.model.limits[name] = chosen
        kept = self.model.starts.get(name, [])
        # The engine knows as many starts as the former rate asked for.
        self.model.starts[name] = kept[-former.rate :][-chosen.rate :] if former.rate else []
        if not chosen.rate:
            self.model.starts[name] = []
        for place, starts in self.model.key_starts.items():
            if place[0] == name:
                known = starts[-former.key_rate :] if former.key_rate and chosen.key_rate else []
                self.model.key_starts[place] = known[-chosen.key_rate :]
        self.compare(SetLimits(name, chosen), DONE)

    @rule(which=st.integers(0, 9), number=numbers, value=st.binary(max_size=2), attempt=attempts)
    def record_step(self, which: int, number: int, value: bytes, attempt: int) -> None:
        job_id = self.pick(which)
        named = RecordStep(job_id, "step", number, value, attempt or self.attempt_of(job_id))
        self.compare(named, self.model.record_step(named))

    @rule(which=st.integers(0, 9), wait=waits, attempt=attempts)
    def park(self, which: int, wait: JobWait, attempt: int) -> None:
        job_id = self.pick(which)
        command = Park(job_id, wait, attempt or self.attempt_of(job_id))
        expected = self.model.park(command)
        reply = self.decide(command)
        assert (steps_in(reply) if isinstance(reply, StepList) else reply) == expected
        self.take_answers()
        self.let_time_pass()

    @rule(name=event_names, value=st.sampled_from((b"1", b"1", b"2")))
    def emit(self, name: str, value: bytes) -> None:
        command = Emit(name, value)
        self.compare(command, self.model.emit(command))

    @rule(which=st.integers(0, 9), new_id=job_ids, place=st.integers(0, 3))
    def fork(self, which: int, new_id: bytes, place: int) -> None:
        job_id = self.pick(which)
        steps = [key for key in self.recorded(job_id) if not key.name.startswith("!")]
        steps = steps or [StepKey("step", 1)]
        name, number = steps[place % len(steps)]
        command = Fork(job_id, new_id, name.removesuffix(parks.TIMED_OUT), number)
        self.compare(command, self.model.fork(command))

    def pick(self, which: int) -> bytes:
        """Mostly a job that is leased, if need be now."""
        if not self.leased() and which < MOSTLY:
            self.lease("a", 3, "w")
        chosen = [*self.leased(), *self.model.jobs, IDS[0]]
        return chosen[which % len(chosen)]

    def known(self, job_id: bytes) -> bytes:
        """Mostly a job that there is."""
        jobs = [*self.model.jobs]
        is_known = not jobs or job_id == IDS[0] or job_id in self.model.jobs
        return job_id if is_known else jobs[job_id[-1] % len(jobs)]

    def leased(self) -> list[bytes]:
        jobs = self.model.jobs
        return sorted(job_id for job_id, job in jobs.items() if job.state == LEASED)

    def attempt_of(self, job_id: bytes) -> int:
        """The present attempt of a job, if there is one."""
        return self.model.jobs[job_id].attempts if job_id in self.model.jobs else 1

    @rule(step_ns=st.sampled_from((310_011, 1_730_023, 5_370_057, 61_370_091)))
    def time_goes_on(self, step_ns: int) -> None:
        self.model.now_ns += step_ns
        self.let_time_pass()

    # -- batches and crashes --

    @precondition(lambda self: self.batch is None)
    @rule()
    def begin(self) -> None:
        self.before = copy.deepcopy(self.model), snapshot(self.engine)
        self.batch, self.deleted, self.replaced = ([], []), set(), set()
        self.engine.begin_batch()

    @precondition(lambda self: self.batch is not None)
    @rule()
    def commit(self) -> None:
        assert self.batch is not None
        self.ledger += self.batch[1]
        self.log += self.batch[0]
        self.batch = self.before = None
        self.engine.commit_batch()

    @precondition(lambda self: self.batch is not None)
    @rule()
    def undo(self) -> None:
        self.engine.undo_batch()
        assert self.before is not None
        now_ns = self.model.now_ns
        self.model, before = self.before
        assert snapshot(self.engine) == before
        self.take_order_of_children()
        self.model.now_ns = now_ns
        self.batch = self.before = None
        self.let_time_pass()

    def take_order_of_children(self) -> None:
        """Of jobs that wait for the same one, the order may be another now: it is not promised."""
        children_of = self.engine._state.extensions.children_of.values()
        order = dict.fromkeys(job_id for children in children_of for job_id in children)
        self.model.children = {job_id: self.model.children[job_id] for job_id in order}

    # -- what holds at all times --

    @invariant()
    def every_job_is_as_it_should_be(self) -> None:
        events = self.engine._state.extensions.events
        assert {name: each.value for name, each in events.items()} == {
            name: value for name, (value, _) in self.model.events.items()
        }
        for job_id in IDS:
            outcome = self.engine.decide(InspectJob(job_id), self.model.now_ns)
            job, child = self.model.jobs.get(job_id), self.model.children.get(job_id)
            if job is None and child is None:
                assert outcome.reply == NOT_FOUND
                continue
            assert isinstance(outcome.reply, JobList)
            (view,) = outcome.reply.jobs
            if job is None:
                assert child is not None
                assert (view.number_of_state, view.waits_for) == (NEW, len(child.left))
                continue
            key = job.key if self.shows_all_keys or job.state != COMPLETED else view.key
            number = PENDING if job.state == PARKED else job.state
            expected = (job.add.name, number, job.attempts, job.fails, key, 0, job.parks)
            state = (view.number_of_state, view.attempts, view.fails)
            assert (view.queue, *state, view.key, view.waits_for, view.parks) == expected
            assert (view.state == CANCELLED) == job.is_cancelled
            assert (view.state == "waiting") == (job.state == PARKED)
            is_delayed = job.state == PENDING and job.ready_ns > 0
            assert (view.state == "scheduled") == is_delayed
            reply = self.engine.decide(InspectSteps(job_id), self.model.now_ns).reply
            assert steps_in(reply) == job.steps

    @invariant()
    def nobody_waits_beside_a_job_that_may_be_leased(self) -> None:
        for lease in self.model.waiters.values():
            assert not self.model.eligible(lease.names[0])

    @invariant()
    def limits_are_kept(self) -> None:
        state = self.engine._state
        for queue in state.queues.by_number:
            counted = [job for job in self.model.jobs.values() if job.add.name == queue.name]
            leased = [job for job in counted if job.state == LEASED]
            assert queue.leased == len(leased)
            assert sum(queue.key_leased.values()) == sum(bool(job.key) for job in leased)


class ExtensionsInLog(ExtensionMachine):
    """The jobs are in a log, what it cannot hold is in the ledger, which is written first."""

    def teardown(self) -> None:
        if self.batch is None:
            assert jobs_of(self.engine) == folded(self.log, self.model.now_ns)
        check_parks(self.log)

    @precondition(lambda self: self.batch is None)
    @rule()
    def crash(self) -> None:
        if self.engine._state.extensions.forgetting.keys() - self.model.jobs.keys():
            return  # added and gone in one batch: the ledger may add it once more
        self.model.now_ns += 1_013  # records have moments of their own, a little ahead of the time
        self.engine = load(self.log, self.ledger, self.model.now_ns)
        self.model.restart(loaded_extensions(self.ledger).options)
        self.take_order_of_children()
        self.let_time_pass()

    @precondition(lambda self: self.batch is not None)
    @rule()
    def crash_between_ledger_and_log(self) -> None:
        """No job and no child is lost; what only the ledger says may be there, or not."""
        assert self.batch is not None
        assert self.before is not None
        ledger = [*self.ledger, *self.batch[1]]
        found = load(self.log, ledger, self.model.now_ns)
        before = self.before[0]
        jobs = dict(found._state.jobs)
        for job_id, job in before.jobs.items():
            assert (job_id in jobs) == (job.expires_ns > self.model.now_ns)
        there = jobs.keys() | found._state.extensions.children.keys()
        assert before.children.keys() - self.deleted - self.replaced <= there
        for job_id, child in found._state.extensions.children.items():
            waited = before.children.get(job_id)
            if waited is not None and waited.add == child.job and not waited.failed:
                left = {
                    each
                    for each in waited.left
                    if found.has(each) or each in found._state.extensions.children
                }
                assert left - self.deleted <= child.left.keys()
                assert not child.failed or not waited.left <= left
        self.check_waits(found, before)

    def check_waits(self, found: WorkqEngine, before: Model) -> None:
        """No step and no event is lost; a job that was parked still is, or has the step."""
        for _ in range(MAX_TURNS):
            due_ns = found.next_due_ns()
            if due_ns is None or due_ns > self.model.now_ns:
                break
            found.decide(WorkqDue(), self.model.now_ns)
        extensions = found._state.extensions
        for name, (value, happened_ns) in before.events.items():
            if happened_ns + RETENTION_NS > self.model.now_ns:
                assert extensions.events[name].value == value
        for job_id, job in before.jobs.items():
            reply = found.decide(InspectJob(job_id), self.model.now_ns).reply
            if isinstance(reply, JobList):
                steps = steps_in(found.decide(InspectSteps(job_id), self.model.now_ns).reply)
                # A job that was to go, or to be replaced, may be gone as well.
                may_be_gone = job_id in self.replaced | self.deleted
                assert may_be_gone or job.steps.items() <= steps.items()
                if job.wait is not None and reply.jobs[0].state != "waiting":
                    ends = [
                        StepKey(job.wait.step + end, job.wait.number)
                        for end in ("", parks.TIMED_OUT)
                    ]
                    assert any(end in steps for end in ends)


MOVES = {
    **dict.fromkeys(("lease", "park"), 6),
    **dict.fromkeys(("time", "record_step", "emit", "crash"), 3),
    **dict.fromkeys(("add", "add_child", "complete", "fail", "requeue", "fork"), 2),
    **dict.fromkeys(("release", "delete", "cancel", "begin", "between"), 1),
    **dict.fromkeys(("commit", "undo"), 2),
}


def walk(seed: int, moves: int) -> None:
    """A longer story of jobs that wait, by chance: mostly leases, steps, parks, time and events."""
    chance, machine = Random(seed), ExtensionsInLog()
    machine.shows_all_keys = False  # the ledger forgets those of completed jobs
    machine.limit("a", chance.choice((NO_LIMITS, NO_LIMITS, Limits(key_concurrency=1))))
    delay_ms = chance.choice((0, 0, 50))

    def new_job(job_id: bytes) -> Add:
        ttl_ms, more = chance.choice((60, 10**6, 10**8)), AddOptions(chance.choice(("", "k", "l")))
        more = more._replace(replaces_finished=chance.random() < 0.5)
        return Add(job_id, "a", chance.choice((40, 10**6)), ttl_ms, b"", 0, 0, 3, delay_ms, more)

    def wait() -> JobWait:
        kind = chance.randrange(3)
        event = chance.choice(("e", "f")) if kind == 1 else ""
        jobs = tuple(map(id_text, chance.sample(IDS, 2))) if kind == 2 else ()
        within_ms = chance.choice((1, 40)) if not kind or chance.random() < 0.3 else 0
        number = chance.randint(1, 3)
        return JobWait("wait", number, event=event, jobs=jobs, within_ms=within_ms)

    for move in chance.choices([*MOVES], [*MOVES.values()], k=moves):
        job_id, which, attempt = chance.choice(IDS), chance.randrange(10), chance.choice((0, 0, 1))
        is_in_batch = machine.batch is not None
        machine.time_goes_on(1_013)  # what happens to a job at one time cannot be told apart
        match move:
            case "lease":
                machine.lease("a", chance.randint(0, 3), "w")
            case "park":
                machine.park(which, wait(), attempt)
            case "time":
                machine.time_goes_on(chance.choice((310_011, 5_370_057, 61_370_091)))
            case "record_step":
                machine.record_step(which, chance.randint(1, 2), b"%d" % which, attempt)
            case "fork":
                machine.fork(which, job_id, chance.randrange(4))
            case "emit":
                machine.emit(chance.choice(("e", "f")), b"1")
            case "add":
                machine.add(new_job(job_id))
            case "add_child":
                machine.add_child(new_job(job_id), chance.sample(IDS, 1), chance.random() < 0.5)
            case "fail" | "release":
                delay = chance.choice((None, 0, 30))
                arguments = (False,) if move == "fail" else ()
                getattr(machine, move)(job_id, delay, attempt, *arguments)
            case "complete":
                machine.complete(job_id, attempt)
            case "requeue" | "delete" | "cancel":
                getattr(machine, move)(job_id)
            case "commit" | "undo" if is_in_batch:
                getattr(machine, move)()
            case "between" if is_in_batch:
                machine.crash_between_ledger_and_log()
            case "begin" | "crash" if not is_in_batch:
                getattr(machine, move)()
        machine.every_job_is_as_it_should_be()
        machine.limits_are_kept()
    machine.teardown()


def given(reply: Reply | None) -> list[bytes]:
    if isinstance(reply, Leased):
        return [reply.job_id]
    if isinstance(reply, LeasedJobs):
        return [job.job_id for job in reply.jobs]
    assert reply == TIMED_OUT
    return []


def replace_result(expected: Finished, found: Finished) -> Finished:
    return found if (expected.job_id, expected.success) == found[:2] else expected


def steps_in(reply: Reply | None) -> Steps:
    assert isinstance(reply, StepList)
    return {StepKey(step.name, step.number): step.value for step in reply.steps}


def check_parks(log: list[Record]) -> None:
    """Who is parked is woken once before it is leased, and its TTL does not end."""
    parked: dict[bytes, bool] = defaultdict(bool)
    for record in log:
        if record.command in (Command.PARK, Command.WAKE):
            assert parked[record.job_id] is (record.command == Command.WAKE)
        assert not (parked[record.job_id] and record.command in _NOT_WHILE_PARKED)
        if record.command != Command.TIMEOUT_ATTEMPT:  # the first park is written with one
            parked[record.job_id] = record.command == Command.PARK


_NOT_WHILE_PARKED = (Command.START_ATTEMPT, Command.EXPIRE, Command.ADD)
