"""Leases, touches, retries, uniqueness, limits and children against a plain model, with crashes.

Once with a log and a ledger, and once in a store, where a crash loads what the store has: jobs that
have completed are in memory only while a command names them.
"""

from __future__ import annotations

from collections import defaultdict
from uuid import UUID

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import invariant, precondition, rule

from journeyman.engines.workq.engine import Decidable
from journeyman.engines.workq.extensions import FAMILIES, LoadedExtensions
from journeyman.engines.workq.job import WAITING, opened
from journeyman.folds import ledger as ledger_fold
from journeyman.formats.ledger import Record as LedgerRecord
from journeyman.protocols.workq.commands import NO_LIMITS, InspectJob, Limits
from journeyman.protocols.workq.replies import Reply, id_text
from journeyman.servers.workq.store import CompletedJobs, StoreRecorder
from journeyman.servers.workq.store_persistence import load_store
from journeyman.storage import Storage
from journeyman.storage.checking import check
from journeyman.storage.folded import folded_ledger
from tests.support.effort import cases
from tests.support.workq_extension_machine import IDS, ExtensionMachine, ExtensionsInLog
from tests.support.workq_extension_model import MS, Model, PlainJob


class CountingModel(Model):
    """Of leases it counts what is left of them in the store, which has no log."""

    def __init__(self, now_ns: int) -> None:
        super().__init__(now_ns)
        self.counted: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)

    def give(self, job: PlainJob) -> None:
        super().give(job)
        found, counted = self.limits.get(job.add.name, NO_LIMITS), self.counted[job.add.name]
        if not found.rate and not (found.key_rate and job.key):
            return
        counted.append((job.key, self.now_ns))
        since_ns = self.now_ns - max(found.per_ms, found.key_per_ms) * MS
        for _ in range(4):
            if (not found.key_rate and len(counted) > found.rate) or counted[0][1] <= since_ns:
                del counted[0]

    def restart_in_store(self) -> None:
        self.restart({})
        self.starts = {name: [at for _, at in each] for name, each in self.counted.items()}
        self.key_starts = {}
        for name, each in self.counted.items():
            for key, at in each:
                self.key_starts.setdefault((name, key), []).append(at)


class ExtensionsInStore(ExtensionMachine):
    shows_all_keys = False
    model: CountingModel

    def __init__(self) -> None:
        super().__init__()
        self.model = CountingModel(self.model.now_ns)
        self.storage = Storage.open("memory", "")
        self._load()

    def _load(self) -> None:
        ledger, kept = folded_ledger(self.storage), list[LedgerRecord]()
        ledger.load(kept.append, lambda *_: self._never())
        extensions = LoadedExtensions(in_store=True)
        for record in kept:
            assert ledger_fold.key_of(record)[0] in FAMILIES
            assert extensions.add(record)
        loaded = load_store(
            self.storage,
            now_ns=self.model.now_ns,
            seed=1,
            report=lambda *_: self._never(),
            extensions=extensions,
        )
        self.engine = loaded.queue
        self.recorder = StoreRecorder(
            self.storage,
            self.engine.job,
            loaded.delayed,
            ledger=ledger,
            longest_life_ms=loaded.longest_life_ms,
        )
        self.completed = CompletedJobs(self.storage, self.engine)
        self._bring(*map(InspectJob, IDS))

    def _never(self) -> None:
        raise AssertionError("a record cannot be read")

    def _bring(self, *commands: Decidable) -> None:
        read = self.completed.prepare(commands)
        if read is not None:
            read()
            self.completed.bring(self.model.now_ns)

    def decide(self, command: Decidable, client: int = 0) -> Reply | None:
        if self.batch is not None:
            return super().decide(command, client)
        for _ in range(2):  # all that have completed leave memory
            assert self.completed.prepare(()) is None
        self._bring(command)
        self.log, self.ledger = [], []
        reply = super().decide(command, client)
        self._write()
        return reply

    def _write(self) -> None:
        self.recorder.write(self.log, None, self.ledger)
        self.completed.note(self.log)
        self._bring(*map(InspectJob, IDS))

    @rule()
    @precondition(lambda self: self.batch is not None)
    def commit(self) -> None:
        self.log, self.ledger = [], []
        super().commit()
        self._write()

    def limit(self, name: str, chosen: Limits) -> None:
        if not chosen.rate and not chosen.key_rate:
            self.model.counted[name].clear()
        super().limit(name, chosen)

    @precondition(lambda self: self.batch is None)
    @rule(down_ns=st.sampled_from((1_013, 61_370_091)))
    def crash(self, down_ns: int) -> None:
        """Records have moments of their own, a little ahead of the time."""
        self.model.now_ns += down_ns
        self._load()
        self.model.restart_in_store()
        self.model.due()  # what has come meanwhile is not due at a start: it is so
        self.let_time_pass()

    @precondition(lambda self: self.batch is None)
    @rule()
    def promote(self) -> None:
        assert not self.recorder.promote(self.model.now_ns)
        for job_id, entry in self.engine._state.jobs:
            _, stage, _, _, _, moment_ns, _ = opened(entry)
            record = self.storage.get_job(UUID(bytes=job_id))
            assert record is not None
            if stage in WAITING:
                assert record.status == ("delayed" if moment_ns else "waiting")

    @invariant()
    def the_store_is_whole_and_has_nothing_that_is_over(self) -> None:
        if self.batch is not None:
            return
        with self.storage.backend.view() as view:
            assert list(check(view)) == []
        extensions = self.engine._state.extensions
        found: defaultdict[str, set[str]] = defaultdict(set)
        for record in folded_ledger(self.storage).records():
            family, key = ledger_fold.key_of(record)
            found[family].add(key)
        known = (*extensions.options, *extensions.children, *extensions.forgetting)
        assert found["job-options"] == {*map(id_text, known)}
        assert not extensions.lingering
        marked = (*extensions.marked, *extensions.forgetting_parents)
        assert found["parent"] == {*map(id_text, marked)}
        counted = [each for queue in self.engine._state.queues.by_number for each in queue.counted]
        assert found["lease"] == {lease for _, lease in (*counted, *extensions.dropped_leases)}
        assert found["queue-limits"] == extensions.limited.keys()


TestExtensionsInLog = ExtensionsInLog.TestCase
TestExtensionsInLog.settings = settings(
    max_examples=cases(60), stateful_step_count=50, deadline=None
)
TestExtensionsInStore = ExtensionsInStore.TestCase
TestExtensionsInStore.settings = settings(
    max_examples=cases(15), stateful_step_count=50, deadline=None
)
