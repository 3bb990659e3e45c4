"""The store as an index: at its position it is the fold of the log, whatever is killed when."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from journeyman.errors import EncodeError
from journeyman.folds.keyspace import is_archived, record_of_workq
from journeyman.folds.workq import visible
from journeyman.formats.keyspace.values import JobRecord
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import (
    CODEC,
    HEADER,
    Command,
    JobAdded,
    JobEvent,
    JobFinished,
    Record,
    pack_max_fails,
)
from journeyman.logs.segments import numbered_name
from journeyman.servers.index.follower import Follower
from journeyman.storage import Storage
from journeyman.storage.checking import find_problems
from journeyman.storage.contract import Changes, Turn
from journeyman.storage.index import JobLife
from journeyman.storage.memory import MemoryBackend
from journeyman.storage.records import entries_of
from journeyman.testing import ManualClock
from tests.support.drawn_workq import EVENTS, HIDDEN_EVENTS
from tests.support.effort import cases
from tests.support.simulated_disk import SimulatedDisk

START_NS = 1_700_000_000_000_000_000
MS = 1_000_000
LOG = "/log"
IDS = tuple(bytes.fromhex(f"0000000a00004000800000000000000{n}") for n in range(4))

job_ids = st.sampled_from(IDS)
moments = st.builds(
    Instant,
    st.integers(0, 12_000).map(lambda us: START_NS + 1000 * us),
    st.sampled_from((-1, -1, 60)),
)
far_moments = st.sampled_from((Instant(2**63 * 10), Instant(-(2**62)), Instant(-(2**63) * 3)))
counts = st.sampled_from((0, 0, 1, 2, 300, 2**64 - 1))
adds = st.builds(
    JobAdded,
    moments,
    job_ids,
    st.sampled_from(("a", "b", "a", "b:c", "\udcff", "n" * 1100)),
    ttr_ms=st.sampled_from((0, 1, 3, 10**6, 2**64 - 1)),
    ttl_ms=st.sampled_from((0, 2, 5, 10**9, 2**64 - 1)),
    priority=st.sampled_from((0, 0, -1, 2**31 - 1)),
    max_attempts=counts,
    max_fails=counts | st.just(pack_max_fails(2, 3)),
    payload=st.sampled_from((b"", b"\xff", b"[1]", b"text")),
    time=st.none() | moments | far_moments,
    created=moments,
    command=st.sampled_from((Command.ADD, Command.SCHEDULE)),
    none_offset_min=st.sampled_from((-1, 0)),
).map(lambda job: job if job.time is None else replace(job, none_offset_min=-1))
finishes = st.builds(
    JobFinished,
    moments,
    job_ids,
    st.sampled_from((Command.COMPLETE, Command.FAIL)),
    st.binary(max_size=2),
)
events = st.builds(JobEvent, moments, job_ids, st.sampled_from(EVENTS)) | st.builds(
    JobEvent, moments, job_ids, st.sampled_from(HIDDEN_EVENTS), st.just(True)
)
parks = st.builds(
    JobFinished, moments, job_ids, st.just(Command.PARK), st.binary(max_size=2), st.just(True)
)
batches = st.lists(adds | finishes | events | events | parks, min_size=1, max_size=8)


class Killed(BaseException):
    """The follower has ended in the middle of something."""


class KillableBackend(MemoryBackend):
    """Ends the process before or after the commit that is counted down to."""

    left: int | None = None

    @contextmanager
    def turn(self) -> Iterator[Turn]:
        with super().turn() as turn:
            commit = turn.commit

            def counted(changes: Changes) -> None:
                if self.left == 0:
                    raise Killed
                commit(changes)
                if self.left is not None:
                    self.left -= 1

            turn.commit = counted  # type: ignore[method-assign]
            yield turn


def is_storable(record: JobRecord) -> bool:
    try:
        entries_of(record)
    except EncodeError:
        return False
    return True


def rows_of_fold(records: list[Record], as_of_ns: int) -> dict[Any, JobRecord]:
    """By the reference fold, one job at a time."""
    lives: dict[bytes, JobLife] = {}
    for record in records:
        lives.setdefault(record.job_id, JobLife()).apply(record)
    rows = {}
    for life in lives.values():
        job = visible(life.state, as_of_ns)
        if job is not None:
            row = record_of_workq(job, as_of_ns, life.timed_out_ns)
            if is_storable(row):
                rows[row.job_uuid] = row
    return rows


class IndexAgainstFold(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.disk, self.clock = SimulatedDisk(), ManualClock(START_NS)
        self.disk.make_dirs(LOG)
        self.backend = KillableBackend()
        self.storage = Storage(self.backend, "memory")
        self.segments: list[list[Record]] = []
        self.told: list[str] = []
        self.new_life()

    def new_life(self) -> None:
        self.backend.left = None
        self.follower = Follower(
            self.disk,
            self.clock,
            self.storage,
            LOG,
            ledger=None,
            retention_ms=10**15,  # the log has times of a thousand years ago
            say=self.told.append,
        )

    def path(self, number: int) -> str:
        return f"{LOG}/{numbered_name(number)}"

    def step(self, times: int = 100) -> None:
        for _ in range(times):
            if not self.follower.step():
                return

    @rule(records=batches, rotates=st.booleans(), torn=st.integers(0, 20))
    def append(self, records: list[Record], rotates: bool, torn: int) -> None:
        """``torn``: of the last record only so many bytes are there yet, when it is looked at."""
        if rotates or not self.segments:
            self.segments.append([])
            file = self.disk.open_append(self.path(len(self.segments)))
            file.write(HEADER)
        else:
            file = self.disk.open_append(self.path(len(self.segments)))
        encoded = b"".join(map(CODEC.encode, records))
        cut = min(torn, len(encoded))
        file.write(encoded[:cut])
        self.step(3)
        file.write(encoded[cut:])
        file.close()
        self.segments[-1] += records

    @rule()
    def follow(self) -> None:
        self.step()
        self.agree()

    @rule(ms=st.integers(0, 6))
    def wait(self, ms: int) -> None:
        self.clock.advance_ns(ms * MS)

    @rule(records=st.lists(adds, min_size=1, max_size=4), commits=st.integers(0, 3))
    def kill(self, records: list[Record], commits: int) -> None:
        """While there is something to be read, which the next life does not miss."""
        if self.segments:
            with closing(self.disk.open_append(self.path(len(self.segments)))) as file:
                file.write(b"".join(map(CODEC.encode, records)))
            self.segments[-1] += records
        self.backend.left = commits
        with suppress(Killed):
            self.step()
        self.new_life()
        self.follow()

    @rule()
    def cut_the_log(self) -> None:
        """A power cut took the last record; another one comes in its place."""
        if not self.segments or not self.segments[-1]:
            return
        lost = CODEC.encode(self.segments[-1].pop())
        path = self.path(len(self.segments))
        file = self.disk.open_append(path)
        file.truncate(file.size() - len(lost))
        file.close()
        self.follow()

    @rule()
    def rebuild(self) -> None:
        self.follower.rebuild("asked for")
        self.agree()

    def agree(self) -> None:
        records = [record for segment in self.segments for record in segment]
        position = self.storage.position()
        assert position is not None
        live = {}
        for row in self.storage.all_jobs():
            assert isinstance(row, JobRecord)
            if not is_archived(row):
                live[row.job_uuid] = row
        assert live == rows_of_fold(records, position.clock_ns)
        due = rows_of_fold(records, self.clock.now_ns())
        assert {uuid: row.status for uuid, row in live.items()} == {
            uuid: row.status for uuid, row in due.items()
        }

    @invariant()
    def indexes_and_counters_follow_from_the_rows(self) -> None:
        with self.backend.view() as view:
            assert [str(problem) for problem in find_problems(view)] == []


TestIndexAgainstFold = IndexAgainstFold.TestCase
TestIndexAgainstFold.settings = settings(
    max_examples=cases(60), stateful_step_count=20, deadline=None
)
