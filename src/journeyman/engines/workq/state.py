"""What all decisions share: the parts of the state, the moment, and the draft of the outcome.

    jobs, queues, waiting      see jobs.py and queues.py
    now_ns, instant            the moment of the decision, and the same for a record
    records, effects           what it has come to so far

The moment is the caller's time, except that it does not go back by less than a second, and that
every add has a moment of its own, a nanosecond after whatever was recorded before it. So jobs that
are added within one batch keep their order, and the times in the log do not run backwards.

A job whose TTL is over is not there for anyone, though it may be a little while until ``WorkqDue``
comes to it and records that.
"""

from __future__ import annotations

from collections.abc import Iterable

from journeyman.engines.workq.job import Entry, expires_ns_of, is_run, spec_of
from journeyman.engines.workq.jobs import WorkJobTable
from journeyman.engines.workq.messages import Effect, WorkqAnswer
from journeyman.engines.workq.queues import JobQueue, Queues, Waiter, Waiting
from journeyman.formats.workq import Command, Instant, JobEvent, Record
from journeyman.protocols.workq.replies import Reply

# A clock that goes back further was set anew: jobs would live too long if it were not followed.
SMALL_STEP_NS = 1_000_000_000

# A linear congruential generator of 64 bits (Knuth's constants), of which the upper half is used.
_MULTIPLIER, _INCREMENT, _MASK64 = 6364136223846793005, 1442695040888963407, 2**64 - 1


class WorkqState:
    """See the module's docstring. The decisions are functions that take it."""

    __slots__ = (
        "_chance",
        "_saved",
        "effects",
        "evicted",
        "instant",
        "jobs",
        "now_ns",
        "queues",
        "records",
        "starved",
        "waiting",
    )

    def __init__(self, seed: int, paused: Iterable[str] = (), latest_ns: int = 0) -> None:
        self.queues = Queues(paused)
        self.jobs = WorkJobTable(self.queues)
        self.waiting = Waiting()
        self.evicted = 0  # unfinished jobs that their TTL has ended
        self.starved: set[JobQueue] = set()  # see leasing.py
        self.records: list[Record] = []
        self.effects: list[Effect] = []
        self.now_ns = latest_ns
        self.instant = Instant(latest_ns)
        self._chance = seed & _MASK64
        self._saved = self.evicted, self.starved

    def pick(self, count: int) -> int:
        """A number below ``count``, each as likely as another: chance that comes from the seed."""
        self._chance = (self._chance * _MULTIPLIER + _INCREMENT) & _MASK64
        return (self._chance >> 32) * count >> 32

    # -- the moment --

    def begin(self, now_ns: int) -> None:
        """A decision begins at this time."""
        ahead_ns = self.now_ns - now_ns
        if ahead_ns < 0 or ahead_ns > SMALL_STEP_NS:
            self.now_ns = now_ns
            self.instant = Instant(now_ns)

    def moment_of_its_own(self) -> Instant:
        """After all that was recorded so far."""
        self.now_ns += 1
        self.instant = Instant(self.now_ns)
        return self.instant

    # -- jobs --

    def find(self, job_id: bytes) -> Entry | None:
        """The job, unless its TTL is over."""
        entry = self.jobs.get(job_id)
        if entry is None or self.is_expired(entry):
            return None
        return entry

    def is_expired(self, entry: Entry) -> bool:
        jobs = self.jobs
        # Mostly none is, and that is quickly seen.
        if self.now_ns < jobs.calm_until_ns or self.now_ns < jobs.look_for_calm():
            return False
        spec = spec_of(entry)
        return not is_run(spec) and expires_ns_of(spec) <= self.now_ns

    def record_event(self, job_id: bytes, command: Command) -> None:
        self.records.append(JobEvent(self.instant, job_id, command))

    # -- those who wait --

    def answer(self, waiter: Waiter, reply: Reply) -> None:
        self.waiting.remove(waiter)
        self.effects.append(WorkqAnswer(waiter.client, reply))

    def tell(self, job_id: bytes, reply: Reply) -> None:
        """Answer all who wait for this job."""
        for waiter in self.waiting.of_job(job_id):
            self.answer(waiter, reply)

    def release_queues(self) -> None:
        """At the end of a decision: queues that only existed for those who waited."""
        unwatched, self.waiting.unwatched = self.waiting.unwatched, []
        self.queues.release(unwatched)

    # -- batches ---------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        self._saved = self.evicted, self.starved.copy()
        for part in (self.jobs, self.waiting, self.queues):
            part.begin_batch()

    def commit_batch(self) -> None:
        for part in (self.jobs, self.waiting, self.queues):
            part.commit_batch()

    def undo_batch(self) -> None:
        self.evicted, self.starved = self._saved
        for part in (self.jobs, self.waiting, self.queues):
            part.undo_batch()
        self.waiting.unwatched.clear()  # the queues are there again, or gone
