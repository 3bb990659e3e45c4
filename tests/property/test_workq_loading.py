"""Loading a command log: by the fold, in bulk, and of any prefix of what an engine wrote."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import example, given, settings

from journeyman.engines.workq.engine import Decidable, WorkqEngine
from journeyman.engines.workq.ledger_entries import LoadedExtensions, StoredJobOptions
from journeyman.engines.workq.messages import WorkqDue
from journeyman.folds.workq import retry_of
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
from journeyman.logs.appender import SyncPolicy
from journeyman.logs.segments import numbered_name
from journeyman.protocols.workq.commands import Add, Complete, Fail, Lease, Limits, Requeue
from journeyman.servers.core import bulk_loading
from journeyman.servers.workq import bulk
from journeyman.servers.workq.persistence import open_log
from journeyman.testing import ManualClock
from tests.support.drawn_workq import EVENTS, HIDDEN_EVENTS
from tests.support.effort import cases
from tests.support.loaded_engines import load_work_queue
from tests.support.simulated_disk import SimulatedDisk
from tests.support.workq_views import expected_orders, folded, jobs_of, orders_of

START_NS = 1_700_000_000 * 10**9
MS = 1_000_000
IDS = tuple(bytes.fromhex(f"0000000a00004000800000000000000{n}") for n in range(4))
DIRECTORY = "/log"

job_ids = st.sampled_from(IDS)
# Small ones, so that they meet; and some that the columns of the bulk reader cannot hold.
moments = st.builds(lambda ms: Instant(START_NS + ms * MS), st.integers(0, 8))
far_moments = st.sampled_from((Instant(2**63 * 10), Instant(-(2**62)), Instant(-(2**63) * 3)))
due_moments = st.none() | moments | far_moments
names = st.sampled_from(("a", "b", "\udcff", "\ufffd"))
limits = st.sampled_from((0, 0, 1, 2, 300, 2**64 - 1))
adds = st.builds(
    JobAdded,
    moments,
    job_ids,
    names,
    ttr_ms=st.sampled_from((0, 1, 3, 10**6, 2**64 - 1)),
    ttl_ms=st.sampled_from((0, 2, 5, 10**9, 2**64 - 1)),
    priority=st.sampled_from((0, 0, -1, 2**31 - 1, -(2**31))),
    max_attempts=limits,
    max_fails=limits | st.just(pack_max_fails(2, 3)),
    payload=st.binary(max_size=3),
    time=due_moments,
    created=moments,
    command=st.sampled_from((Command.ADD, Command.SCHEDULE)),
)
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
# One life after another, with what may happen in it; and anything, in any order.
logs = st.lists(adds | finishes | events | events | parks, max_size=14)


def segment(records: list[Record]) -> bytes:
    return HEADER + b"".join(map(CODEC.encode, records))


def ends_hidden(records: list[Record]) -> bool:
    """It may be a fail whose retry was cut off: a start reads with care, and writes the retry."""
    last = records[-1] if records else None
    return isinstance(last, JobFinished) and last.hidden and last.command == Command.FAIL


def opened(
    records: list[Record],
    now_ns: int,
    *,
    in_bulk: bool,
    cut: int = 0,
    chunk_rows: int = 3,
    extensions: LoadedExtensions | None = None,
) -> WorkqEngine:
    """In chunks of so few rows that borders lie between the records of a job."""
    disk, clock = SimulatedDisk(), ManualClock(now_ns)
    disk.make_dirs(DIRECTORY)
    for number, part in enumerate((records[:cut], records[cut:]) if cut else (records,), 1):
        file = disk.open_append(f"{DIRECTORY}/{numbered_name(number)}")
        file.write(segment(part))
        file.close()
    with patch.object(bulk, "CHUNK_ROWS", chunk_rows):
        found = open_log(
            disk,
            clock,
            DIRECTORY,
            sync=SyncPolicy.OS,
            segment_bytes=10**9,
            bulk_bytes=0 if in_bulk else 1 << 60,
            extensions=extensions,
        )
    found.log.close()
    assert found.in_bulk is (in_bulk and not ends_hidden(records))
    return found.queue


def whole(queue: WorkqEngine) -> object:
    """All of it, without the numbers that queues happen to have."""
    orders = orders_of(queue)
    waiting = {
        kind: [spec[:44] + spec[48:] for spec in items]  # type: ignore[attr-defined]
        for kind, items in orders.items()
        if kind.endswith((" ready", " scheduled", " dead"))
    }
    timed = {kind: orders[kind] for kind in ("expiries", "leases", "due", "names")}
    return jobs_of(queue), waiting, timed


NOW = Instant(START_NS)
FAR_BACK = JobAdded(NOW, IDS[0], "a", 1, 10**9, 0, 0, 0, b"", Instant(-(2**63) * 3), NOW)


@given(logs, st.integers(0, 12), st.integers(0, 14), st.integers(1, 5))
@example([FAR_BACK], 0, 0, 1)  # the columns have the lowest number for it, which has no absolute
@settings(max_examples=cases(100), deadline=None)
def test_both_ways_of_loading_agree_with_the_fold(records, later_ms, cut, rows):
    now_ns = START_NS + later_ms * MS
    careful = opened(records, now_ns, in_bulk=False, cut=cut)
    quick = opened(records, now_ns, in_bulk=True, cut=cut, chunk_rows=rows)
    assert whole(quick) == whole(careful)
    assert jobs_of(careful) == folded(records, now_ns)
    for queue in (careful, quick):
        orders, expected = orders_of(queue), expected_orders(queue)
        assert {kind: orders[kind] for kind in expected} == expected


def start(moment_ms: int, job_id: bytes) -> Record:
    return JobEvent(Instant(START_NS + moment_ms * MS), job_id, Command.START_ATTEMPT)


LATER_QUEUE = JobAdded(NOW, IDS[2], "b", 10**6, 10**9, 0, 0, 0, b"", None, NOW)
EARLIER_QUEUE = replace(LATER_QUEUE, name="a")
DELETED = JobEvent(NOW, IDS[2], Command.DELETE)
CLOCK_SET_BACK = [
    *(EARLIER_QUEUE, start(5, IDS[2])),
    *(replace(EARLIER_QUEUE, job_id=IDS[3]), start(3, IDS[3])),
]


@given(logs, st.integers(0, 12), st.sampled_from((0, 1, 2)), st.integers(1, 5))
@example([EARLIER_QUEUE, start(1, IDS[2]), DELETED, LATER_QUEUE, start(2, IDS[2])], 0, 2, 5)
@example([EARLIER_QUEUE, start(1, IDS[2]), start(2, IDS[3])], 0, 2, 5)
@example([EARLIER_QUEUE, start(1, IDS[2]), replace(EARLIER_QUEUE, ttr_ms=1)], 0, 2, 5)
@example(CLOCK_SET_BACK, 0, 1, 5)
@settings(max_examples=cases(60), deadline=None)
def test_both_ways_of_loading_agree_on_jobs_of_the_ledger_and_on_rates(
    records, later_ms, rate, rows
):
    """Ids that the ledger knows are folded; both ways find the starts that a rate counts."""

    def loaded(*, in_bulk: bool) -> WorkqEngine:
        options = {IDS[0]: StoredJobOptions(key="k"), IDS[1]: StoredJobOptions(touched=1)}
        extensions = LoadedExtensions(limits={"a": Limits(rate=rate, per_ms=5)}, options=options)
        now_ns = START_NS + later_ms * MS
        return opened(records, now_ns, extensions=extensions, in_bulk=in_bulk, chunk_rows=rows)

    careful, quick = loaded(in_bulk=False), loaded(in_bulk=True)
    assert whole(quick) == whole(careful)
    assert quick._state.queues.use("a").starts == careful._state.queues.use("a").starts


commands = st.one_of(
    st.builds(
        Add,
        job_ids,
        st.sampled_from("ab"),
        st.sampled_from((1, 5)),
        st.sampled_from((3, 1000)),
        st.binary(max_size=2),
        st.integers(-1, 1),
        st.integers(0, 2),
        st.integers(0, 3),
        st.sampled_from((0, 0, 4)),
    ),
    st.builds(Lease, st.just(("a", "b")), st.just(0)),
    st.builds(Complete, job_ids, st.just(b"")),
    st.builds(Fail, job_ids, st.just(b"")),
    st.builds(Requeue, job_ids),
    st.just(WorkqDue()),
)


@given(st.lists(st.tuples(commands, st.integers(0, 3)), max_size=40), st.data())
@settings(max_examples=cases(80), deadline=None)
def test_any_prefix_of_what_was_written_loads_and_goes_on(steps, data):
    """A crash can leave any of them, also one that ends in the middle of a decision."""
    queue, now_ns = WorkqEngine(), START_NS
    records: list[Record] = []
    for command, pause_ms in steps:
        now_ns += pause_ms * MS
        records += queue.decide(command, now_ns, 1).records
    prefix = records[: data.draw(st.integers(0, len(records)))]
    for in_bulk in (False, True):
        again, log, later_ns = opened(prefix, now_ns, in_bulk=in_bulk), list(prefix), now_ns
        if ends_hidden(prefix) and isinstance(last := prefix[-1], JobFinished):
            log.append(retry_of(last, is_leased=False))
        assert jobs_of(again) == folded(log, now_ns)
        more: list[Decidable] = [WorkqDue(), Lease(("a", "b"), 0), WorkqDue(), *map(Requeue, IDS)]
        for command in more:
            later_ns += 3 * MS
            log += again.decide(command, later_ns, 1).records
            assert jobs_of(again).items() >= folded(log, later_ns).items()


def test_a_log_is_loaded_twice_with_the_same_outcome():
    records = [
        JobAdded(Instant(START_NS), IDS[0], "a", 1000, 5000, 0, 0, 0, b"", None, Instant(START_NS))
    ]
    first, second = (load_work_queue(records, now_ns=START_NS) for _ in range(2))
    lease = Lease(("a",), 0)
    assert first.decide(lease, START_NS) == second.decide(lease, START_NS)


def test_parked_and_woken_jobs_are_loaded_in_bulk_and_not_one_by_one():
    """A hundred thousand of them would take eight seconds more at a start."""
    wait = b'{"step":"wait_for:x","event":"x"}'
    records: list[Record] = []
    fails = pack_max_fails(2, 60_000)  # a minute before a retry, and none after a wake
    for number, job_id in enumerate(IDS):
        add = JobAdded(NOW, job_id, "q", 1000, 10**6, 0, 0, fails, b"p", None, NOW)
        plan = replace(add, time=Instant(START_NS + 1), command=Command.SCHEDULE)
        records += [plan if number == 3 else add, JobEvent(NOW, job_id, Command.START_ATTEMPT)]
        records.append(JobFinished(NOW, job_id, Command.PARK, wait, hidden=True))
        records.append(JobEvent(NOW, job_id, Command.TIMEOUT_ATTEMPT))
    later = Instant(START_NS + 5 * MS)
    woken = [JobEvent(later, job_id, Command.WAKE, hidden=True) for job_id in IDS[1:3]]
    records += [*woken, JobFinished(later, IDS[2], Command.COMPLETE, b"done")]

    class Log:
        def view(self, _path: str) -> memoryview:
            return memoryview(segment(records))

    pieces = [*bulk.read_pieces(Log(), [""], START_NS, (), ())]
    assert not [piece for piece in pieces if piece is None or piece[0] == bulk_loading.RECORDS]
    careful, quick = (opened(records, START_NS + 9 * MS, in_bulk=way) for way in (False, True))
    assert whole(careful) == whole(quick)
    assert jobs_of(quick) == folded(records, START_NS + 9 * MS)
