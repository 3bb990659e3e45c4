"""The work queue beside its plain model, step by step."""

from __future__ import annotations

import copy
from itertools import count

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from journeyman.engines import sorted_set
from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.messages import (
    WorkqDue,
    WorkqGone,
    WorkqOutcome,
)
from journeyman.engines.workq.packed import LEASED
from journeyman.folds import workq as fold
from journeyman.formats.workq import CODEC, JobAdded, Record
from journeyman.protocols.workq.commands import (
    Add,
    AwaitResult,
    Complete,
    Delete,
    Fail,
    InspectDeadJobs,
    InspectJob,
    InspectJobs,
    InspectPausedQueues,
    InspectQueues,
    InspectScheduledJobs,
    InspectServer,
    Lease,
    PauseQueue,
    Requeue,
    ResumeQueue,
    RunJob,
    ScheduleJob,
)
from journeyman.protocols.workq.replies import (
    DONE,
    NOT_FOUND,
    JobList,
    QueueList,
    Reply,
    ServerView,
    reply_bytes,
)
from tests.support.loaded_engines import load_work_queue
from tests.support.workq_engine import decide_fast
from tests.support.workq_model import MS, Model, PlainJob
from tests.support.workq_views import expected_orders, folded, jobs_of, orders_of

START_NS = 1_700_000_000 * 10**9
IDS = tuple(bytes.fromhex(f"0000000a00004000800000000000000{n}") for n in range(6))
NAMES = ("a", "b", "c")
job_ids = st.sampled_from(IDS)
names = st.sampled_from(NAMES)
priorities = st.sampled_from((0, 0, 0, 5, -1, 2**31 - 1, -(2**31)))
ttrs = st.sampled_from((1, 5, 20, 86_400_000))
ttls = st.sampled_from((1, 10, 50, 2_592_000_000))
waits = st.sampled_from((0, 1, 7, 30))
limits = st.sampled_from((0, 0, 1, 2, 3))
delays = st.sampled_from((0, 0, 4, 60))
payloads = st.binary(max_size=3)
job_fields = (job_ids, names, ttrs, ttls, payloads, priorities, limits, limits, delays)
adds = st.builds(Add, *job_fields, st.none())
runs = st.builds(RunJob, job_ids, names, ttrs, waits, payloads, priorities)
leases = st.builds(Lease, st.lists(names, min_size=1, max_size=3).map(tuple), waits)


class WorkQueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ns = START_NS
        self.queue = WorkqEngine(seed=1)
        self.model = Model()
        self.log: list[Record] = []  # what is durable
        self.batch: list[Record] | None = None
        self.before: tuple[Model, dict[str, object], set[int]] | None = None
        self.waiting: set[int] = set()
        self.clients = count(1)
        self.decisions = count()  # every other one may take the fast path

    @initialize(chunk=st.sampled_from((1, 2, 512)))
    def choose_chunk(self, chunk: int) -> None:
        sorted_set.CHUNK = chunk

    def teardown(self) -> None:
        sorted_set.CHUNK = 512

    # -- what both are given --

    def decide(self, command: Decidable, client: int = 0) -> WorkqOutcome:
        if next(self.decisions) % 2:
            outcome, _ = decide_fast(self.queue, command, self.now_ns, client)
        else:
            outcome = self.queue.decide(command, self.now_ns, client)
        self.queue.take_ledger()  # as the writer does; what is left there is due at once
        for record in outcome.records:
            assert CODEC.decode(CODEC.encode(record), 0).record == record  # type: ignore[union-attr]
        (self.log if self.batch is None else self.batch).extend(outcome.records)
        self.model.begin(self.now_ns)
        return outcome

    def compare(self, outcome: WorkqOutcome, reply: Reply | None) -> None:
        assert outcome.reply == reply
        self.model.end_expired({job_id for job_id, _ in self.queue._state.jobs})
        answers = {each.client: each.reply for each in outcome.effects}
        assert answers == dict(self.model.answers)
        self.waiting -= set(answers)
        assert self.queue.paused == self.model.paused

    def wait(self, outcome: WorkqOutcome, client: int) -> None:
        if outcome.reply is None:
            self.waiting.add(client)

    @rule(command=adds)
    def add(self, command: Add) -> None:
        self.compare(self.decide(command), self.model.add(command))

    @rule(command=adds, delay_ms=st.integers(-60, 40))
    def schedule(self, command: Add, delay_ms: int) -> None:
        time_ns = self.now_ns + delay_ms * MS
        scheduled = ScheduleJob(*command[:4], time_ns, *command[4:])  # type: ignore[arg-type]
        self.compare(self.decide(scheduled), self.model.add(scheduled))

    @rule(command=runs)
    def run(self, command: RunJob) -> None:
        client = next(self.clients)
        outcome = self.decide(command, client)
        self.compare(outcome, self.model.run(command, client))
        self.wait(outcome, client)

    @rule(command=leases)
    def lease(self, command: Lease) -> None:
        client = next(self.clients)
        outcome = self.decide(command, client)
        self.compare(outcome, self.model.lease(command, client, outcome.reply))
        self.wait(outcome, client)

    @rule(job_id=job_ids, wait_ms=waits)
    def result(self, job_id: bytes, wait_ms: int) -> None:
        client, command = next(self.clients), AwaitResult(job_id, wait_ms)
        outcome = self.decide(command, client)
        self.compare(outcome, self.model.result(command, client))
        self.wait(outcome, client)

    @rule(job_id=job_ids, result=payloads, success=st.booleans())
    def finish(self, job_id: bytes, result: bytes, success: bool) -> None:
        command = Complete(job_id, result) if success else Fail(job_id, result)
        self.compare(self.decide(command), self.model.finish(command))

    @rule(job_id=job_ids)
    def delete(self, job_id: bytes) -> None:
        self.compare(self.decide(Delete(job_id)), self.model.delete(Delete(job_id)))

    @rule(job_id=job_ids)
    def requeue(self, job_id: bytes) -> None:
        self.compare(self.decide(Requeue(job_id)), self.model.requeue(Requeue(job_id)))

    @rule(name=names)
    def pause(self, name: str) -> None:
        self.compare(self.decide(PauseQueue(name)), self.model.pause(PauseQueue(name)))

    @rule(name=names)
    def resume(self, name: str) -> None:
        self.compare(self.decide(ResumeQueue(name)), self.model.resume(ResumeQueue(name)))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.discard(client)
        self.compare(self.decide(WorkqGone(client)), self.model.gone(client))

    @rule(client=st.integers(10**6, 10**6))
    def disconnect_a_stranger(self, client: int) -> None:
        self.compare(self.decide(WorkqGone(client)), NOT_FOUND)

    # -- time --

    @rule(step_ns=st.sampled_from((0, 1, MS, 5 * MS, 20 * MS, 70 * MS)))
    def time_goes_on(self, step_ns: int) -> None:
        self.now_ns += step_ns

    @rule()
    def tick(self) -> None:
        outcome = self.decide(WorkqDue())
        self.model.due()
        self.compare(outcome, DONE)

    # -- batches, restart, crash --

    @precondition(lambda self: self.batch is None)
    @rule()
    def begin(self) -> None:
        self.batch = []
        waiting = set(self.waiting)
        self.before = copy.deepcopy(self.model), orders_of(self.queue), waiting
        self.queue.begin_batch()

    @precondition(lambda self: self.batch is not None)
    @rule()
    def commit(self) -> None:
        assert self.batch is not None
        self.log += self.batch
        self.batch = self.before = None
        self.queue.commit_batch()

    @precondition(lambda self: self.batch is not None)
    @rule()
    def undo(self) -> None:
        assert self.before is not None
        moment_ns = self.model.now_ns
        self.model, orders, self.waiting = self.before
        self.model.now_ns = moment_ns  # time is not taken back
        self.batch = self.before = None
        self.queue.undo_batch()
        assert orders_of(self.queue) == orders

    @rule()
    def crash(self) -> None:
        """Nothing of an open batch is in the log."""
        if self.before is not None:
            self.model = self.before[0]
        self.batch = self.before = None
        self.waiting = set()
        self.queue = load_work_queue(self.log, now_ns=self.now_ns, paused=self.model.paused)
        self.model.restart(self.now_ns)
        used = {record.name for record in self.log if isinstance(record, JobAdded)}
        self.model.names = used | self.model.paused
        self.model.now_ns = max((j.created_ns for j in self.model.jobs.values()), default=0)

    # -- what holds at all times --

    @invariant()
    def the_records_fold_to_the_state(self) -> None:
        self.model.begin(self.now_ns)
        now_ns = self.model.now_ns
        visible = {
            job_id: job
            for job_id, job in jobs_of(self.queue).items()
            if self.model.jobs[job_id].expires_ns > now_ns
        }
        records = [*self.log, *(self.batch or ())]
        assert visible == folded(records, now_ns)
        anomalies: list[object] = []
        fold.replay(records, anomalies.append)
        assert not anomalies

    @invariant()
    def every_job_is_in_its_orders(self) -> None:
        orders = orders_of(self.queue)
        expected = expected_orders(self.queue)
        assert {kind: orders[kind] for kind in expected} == expected

    @invariant()
    def nobody_waits_beside_a_ready_job(self) -> None:
        state = self.queue._state
        for queue in state.queues.by_number:
            assert queue.paused or not (queue.ready and queue.waiters)

    @invariant()
    def the_same_is_shown(self) -> None:
        queue, now_ns, model = self.queue, self.now_ns, self.model
        model.begin(now_ns)

        def ask(command: Decidable) -> bytes:
            outcome = queue.decide(command, now_ns)
            assert not outcome.records
            assert not outcome.effects
            assert outcome.reply is not None
            return reply_bytes(outcome.reply)

        def views(jobs: list[PlainJob]) -> bytes:
            living = (job.view for job in jobs if job.expires_ns > model.now_ns)
            return reply_bytes(JobList(tuple(living)))

        missing = reply_bytes(NOT_FOUND)

        for job_id in IDS:
            job = model.living(job_id)
            assert ask(InspectJob(job_id)) == (views([job]) if job else missing)
        for name in NAMES:
            known = name in model.known_names
            for command, jobs in (
                (InspectJobs, model.ready),
                (InspectScheduledJobs, model.scheduled),
                (InspectDeadJobs, model.dead),
            ):
                assert ask(command(name, 0, 100)) == (views(jobs(name)) if known else missing)
        queues = tuple(model.queue_view(name) for name in sorted(model.known_names))
        assert ask(InspectQueues(0, 100)) == reply_bytes(QueueList(queues))
        counted = reply_bytes(QueueList(queues, with_counts=True))
        assert ask(InspectQueues(0, 100, with_counts=True)) == counted
        paused = tuple(view for view in queues if view.paused)
        assert ask(InspectPausedQueues(0, 100)) == reply_bytes(QueueList(paused))
        assert ask(InspectServer()) == reply_bytes(ServerView(0, model.evicted, 0))
        assert (queue.next_due_ns() or float("inf")) == model.next_due_ns()
        stats = queue.stats()
        assert sum(stats[:5]) == len(model.jobs)
        assert (stats.leased, stats.waiting) == (len(model.of_state(LEASED)), len(model.waiters))
