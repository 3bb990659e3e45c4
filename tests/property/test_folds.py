"""The laws of the folds, on records that no server would write as well as on those it does."""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate, chain, pairwise, product
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from journeyman.folds import Anomaly, kestrel, ledger, workq, ztick
from journeyman.folds.workq import FoldedJob, JobState
from journeyman.formats.kestrel import ItemPut, ReadDone, ReadHead, UnknownCommand
from journeyman.formats.kestrel import Record as KestrelRecord
from journeyman.formats.ledger import NewerRecord, kind_of
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished
from journeyman.formats.ztick import JobRemoved, RuleRemoved
from tests.support.drawn_folds import ZTICK, workq_records
from tests.support.drawn_ledger import LEDGERS
from tests.support.workq_original import JOB_ID, Original, ReplayError, history

R = TypeVar("R")
K = TypeVar("K")

# -- ztick -----------------------------------------------------------------------------------


def by_key(records: list[R], keys: list[K]) -> dict[K, list[R]]:
    groups: dict[K, list[R]] = defaultdict(list)
    for record, key in zip(records, keys, strict=True):
        groups[key].append(record)
    return groups


@given(ZTICK)
def test_ztick_folding_everything_is_folding_each_key_alone(records):
    groups = by_key(records, [ztick.key_of(record) for record in records])
    alone = {key: ztick.fold(group) for key, group in groups.items()}
    assert ztick.replay(records) == {k: state for k, state in alone.items() if state is not None}


@given(ZTICK, ZTICK)
def test_ztick_compacted_log_stands_for_the_log_itself(records, more):
    states = ztick.replay(records)
    compacted = [record for state in states.values() for record in ztick.snapshot(state)]
    assert list(ztick.replay(compacted).items()) == list(states.items())
    assert list(ztick.replay(compacted + more).items()) == list(
        ztick.replay(records + more).items()
    )


@given(ZTICK)
def test_ztick_states_stand_in_the_order_of_the_last_records(records):
    last = {ztick.key_of(record): place for place, record in enumerate(records)}
    places = [last[key] for key in ztick.replay(records)]
    assert places == sorted(places)
    assert all(
        records[place] == state
        for place, state in zip(places, ztick.replay(records).values(), strict=True)
    )


@given(ZTICK)
def test_ztick_reports_exactly_the_removals_of_what_is_not_there(records):
    notes: list[Anomaly] = []
    states = ztick.replay(records, notes.append)
    assert states == ztick.replay(records)
    orphans = [
        record
        for place, record in enumerate(records)
        if isinstance(record, JobRemoved | RuleRemoved)
        and ztick.key_of(record) not in ztick.replay(records[:place])
    ]
    assert [note.records for note in notes] == [(record,) for record in orphans]


# -- ledger ---------------------------------------------------------------------------------------


@given(LEDGERS)
def test_ledger_folding_everything_is_folding_each_key_alone(records):
    groups = by_key(records, [ledger.key_of(record) for record in records])
    alone = {key: ledger.fold(group) for key, group in groups.items()}
    assert ledger.replay(records) == {k: state for k, state in alone.items() if state is not None}


@given(LEDGERS, LEDGERS)
def test_ledger_snapshot_stands_for_the_ledger_itself(records, more):
    states = ledger.replay(records)
    compacted = [record for state in states.values() for record in ledger.snapshot(state)]
    assert list(ledger.replay(compacted).items()) == list(states.items())
    assert list(ledger.replay(compacted + more).items()) == list(
        ledger.replay(records + more).items()
    )


@given(LEDGERS)
def test_ledger_drops_only_what_was_replaced_or_removed(records):
    """So records of a newer version, and histories, are all there."""
    kept = list(ledger.replay(records).values())
    for record in records:
        is_state = not isinstance(record, NewerRecord) and kind_of(record).key is not None
        assert is_state or record in kept


@given(LEDGERS)
def test_ledger_reports_what_is_not_known_and_removals_of_what_is_not_there(records):
    notes: list[Anomaly] = []
    assert ledger.replay(records, notes.append) == ledger.replay(records)
    odd = [
        record
        for place, record in enumerate(records)
        if isinstance(record, NewerRecord)
        or (kind_of(record).removes and ledger.key_of(record) not in ledger.replay(records[:place]))
    ]
    assert [note.records for note in notes] == [(record,) for record in odd]


# -- workq: any records at all ------------------------------------------------------------------

OTHER_ID = bytes(16)


ONE_JOB = st.lists(workq_records(st.just(JOB_ID)), max_size=25)
FEW_JOBS = st.lists(workq_records(st.sampled_from([JOB_ID, OTHER_ID])), max_size=25)


def outcome(state: workq.State) -> tuple[object, ...] | None:
    """What a client can see of a job."""
    if not isinstance(state, FoldedJob):
        return None
    return state.added, state.state, state.attempts, state.fails, state.result


@given(ONE_JOB, ONE_JOB)
def test_workq_snapshot_stands_for_the_records_whatever_follows(records, more):
    compacted = list(workq.snapshot(workq.fold(records)))
    assert workq.fold(compacted) == workq.fold(records)
    assert workq.fold(compacted + more) == workq.fold(records + more)


def test_workq_snapshot_law_holds_for_every_short_life():
    steps = [
        (Command.START_ATTEMPT, 1),
        (Command.TIMEOUT_ATTEMPT, 0),  # with the time of the record before it: perhaps a retry
        (Command.TIMEOUT_ATTEMPT, 1),
        (Command.TIMEOUT_ATTEMPT, 1_000_000),  # when a TTR of 1 ms is over
        (Command.FAIL, 1),
        (Command.COMPLETE, 1),
    ]
    limits = list(product((0, 1, 2), (0, 2, 3), (0, 1)))
    seen: set[tuple[JobState, int, int, int]] = set()
    for life in chain.from_iterable(product(steps, repeat=length) for length in range(5)):
        logged = [Instant(now) for now in accumulate(wait for _, wait in life)]
        events = [
            JobFinished(at, JOB_ID, command, b"r")
            if command in (Command.FAIL, Command.COMPLETE)
            else JobEvent(at, JOB_ID, command)
            for at, (command, _) in zip(logged, life, strict=True)
        ]
        for max_attempts, max_fails, ttr_ms in limits:
            born = Instant(0)
            added = JobAdded(
                born, JOB_ID, "x", ttr_ms, 10, 0, max_attempts, max_fails, b"", None, born
            )
            job = workq.fold([added, *events])
            assert isinstance(job, FoldedJob)
            assert workq.fold(workq.snapshot(job)) == job
            seen.add((job.state, job.attempts, job.fails, job.owed_timeouts))
    # Deep enough to be worth it: every state, debts of leases, retries of failures.
    assert {state for state, *_ in seen} == set(JobState)
    assert {attempts for _, attempts, *_ in seen} == {0, 1, 2, 3, 4}
    assert {fails for *_, fails, _ in seen} == {0, 1, 2}
    assert {owed for *_, owed in seen} == {0, 1, 2, 3}


@given(FEW_JOBS)
def test_workq_folding_everything_is_folding_each_job_alone(records):
    groups = by_key(records, [workq.key_of(record) for record in records])
    alone = {key: workq.fold(group) for key, group in groups.items()}
    assert workq.replay(records) == {k: state for k, state in alone.items() if state is not None}


@given(FEW_JOBS)
def test_workq_reporting_does_not_change_the_state(records):
    notes: list[Anomaly] = []
    assert workq.replay(records, notes.append) == workq.replay(records)
    assert {note.key for note in notes} <= {JOB_ID, OTHER_ID}


@given(ONE_JOB)
def test_workq_state_keeps_its_own_promises(records):
    state = workq.fold(records)
    if isinstance(state, workq.Orphans):
        commands = [record.command for record in state.records]
        assert commands
        assert Command.DELETE not in commands[1:]
        assert Command.EXPIRE not in commands
    elif state is not None:
        finished = state.state in (JobState.COMPLETED, JobState.FAILED)
        assert (state.finished is not None) == (state.result is not None) == finished
        assert (state.started is not None) == (state.attempts > 0)
        assert state.exhausted <= (state.state == JobState.FAILED)
        assert (workq.lease_deadline_ns(state) is None) == (state.state != JobState.LEASED)
        assert 0 <= state.owed_timeouts < max(state.attempts, 1)
        assert state.fails <= max(state.added.max_fails - 1, 0)


@given(st.lists(workq_records(st.just(JOB_ID)), max_size=25))
def test_workq_snapshot_does_not_run_back_in_time_unless_the_log_did(records):
    in_order = sorted(records, key=lambda record: record.logged.unix_ns)
    times = [record.logged.unix_ns for record in workq.snapshot(workq.fold(in_order))]
    assert times == sorted(times)


@given(ONE_JOB)
def test_workq_loses_no_add_silently(records):
    lasting = [
        record
        for record in records
        if not isinstance(record, JobEvent)
        or record.command not in (Command.DELETE, Command.EXPIRE)
    ]
    notes: list[Anomaly] = []
    state = workq.fold(lasting, notes.append)
    reported = [record for note in notes for record in note.records]
    adds = [record for record in lasting if isinstance(record, JobAdded)]
    for place, added in enumerate(adds):
        expired = any(
            later.created.unix_ns >= workq.expires_ns(FoldedJob(added))
            for later in adds[place + 1 :]
        )
        assert (
            expired or added in reported or (isinstance(state, FoldedJob) and state.added == added)
        )


@given(ONE_JOB, st.integers(-2_000_000, 30_000_000))
def test_workq_job_is_visible_until_its_ttl_and_never_again(records, as_of_ns):
    state = workq.fold(records)
    seen = workq.visible(state, as_of_ns)
    assert seen is (
        state if isinstance(state, FoldedJob) and as_of_ns < workq.expires_ns(state) else None
    )
    assert seen is None or workq.visible(state, as_of_ns - 1) is seen


# -- workq: what servers write ------------------------------------------------------------------


@given(st.data())
def test_workq_log_of_a_server_without_races_reads_as_the_original_reads_it(data):
    records, _ = history(data)
    notes: list[Anomaly] = []
    state = workq.fold(records, notes.append)
    assert notes == []
    assert outcome(state) == Original.replay(records)


@given(st.data())
def test_workq_snapshot_of_such_a_log_is_one_that_the_original_loads(data):
    records, _ = history(data)
    compacted = workq.snapshot(workq.fold(records))
    assert Original.replay(compacted) == Original.replay(records)


@given(st.data(), st.integers(1, 8))
def test_workq_add_that_is_logged_late_changes_nothing(data, delay):
    records, _ = history(data, ends=False)
    late = records[1 : 1 + delay] + records[:1] + records[1 + delay :]
    assert outcome(workq.fold(late)) == outcome(workq.fold(records))


@given(st.data(), st.integers(1, 8))
def test_workq_job_that_is_deleted_before_its_late_add_stays_deleted(data, delay):
    records, now = history(data, ends=False)
    deleted = [*records, JobEvent(now, JOB_ID, Command.DELETE)]
    assert workq.fold(deleted) is None
    assert workq.fold(deleted[1:] + deleted[:1]) is None


@given(st.data())
def test_workq_timeout_that_is_logged_behind_the_next_start_changes_nothing(data):
    records, _ = history(data, ends=False)
    raced = list(records)
    for place, (earlier, later) in enumerate(pairwise(records)):
        swap = earlier.command == Command.TIMEOUT_ATTEMPT and later.command == Command.START_ATTEMPT
        if swap and data.draw(st.booleans()):
            raced[place], raced[place + 1] = later, earlier
    try:
        Original.replay(raced)
        assert raced == records
    except ReplayError:
        assert raced != records
    assert outcome(workq.fold(raced)) == outcome(workq.fold(records))


@given(st.data())
def test_workq_timeout_that_a_race_wrote_behind_a_fail_is_no_retry(data):
    records, now = history(data, ends=False)
    state = workq.fold(records)
    failed = isinstance(state, FoldedJob) and state.state == JobState.FAILED
    late = JobEvent(Instant(now.unix_ns + 1), JOB_ID, Command.TIMEOUT_ATTEMPT)
    if failed:
        assert outcome(workq.fold([*records, late])) == outcome(state)


# -- kestrel ----------------------------------------------------------------------------------

IDS = st.integers(-1, 12)
PUTS = st.builds(ItemPut, IDS, st.just(1), st.none() | st.just(2), st.integers(0, 1), st.just(b"d"))
HEADS = st.builds(ReadHead, IDS)
DONES = st.builds(ReadDone, st.lists(IDS, max_size=4).map(tuple))
UNKNOWN = st.just(UnknownCommand(0xF1, bytes(4), b""))
JOURNAL: st.SearchStrategy[list[KestrelRecord]] = st.lists(
    st.one_of(PUTS, PUTS, HEADS, DONES, UNKNOWN), max_size=30
)
READERS = st.dictionaries(
    st.sampled_from(["", "a", "b"]), st.none() | JOURNAL.map(kestrel.fold_reader), max_size=3
)
QUEUE_IDS = st.lists(st.integers(1, 12), unique=True).map(sorted)


@given(JOURNAL)
def test_kestrel_folding_everything_is_folding_each_item_alone(records):
    groups = by_key(records, [kestrel.key_of(record) for record in records])
    foreign = groups.pop(None, [])
    assert kestrel.replay(records) == {key: kestrel.fold(group) for key, group in groups.items()}
    assert kestrel.fold(foreign) is None


@given(JOURNAL, JOURNAL)
def test_kestrel_snapshot_of_an_item_stands_for_its_records(records, more):
    state = kestrel.replay(records)
    compacted = [put for item in state.values() for put in kestrel.snapshot(item)]
    assert kestrel.replay(compacted) == state
    assert kestrel.replay(compacted + more) == kestrel.replay(records + more)


@given(JOURNAL)
def test_kestrel_keeps_every_item_once_and_reports_the_rest(records):
    notes: list[Anomaly] = []
    items = kestrel.replay(records, notes.append)
    assert items == kestrel.replay(records)
    kept = [put for item in items.values() for put in kestrel.snapshot(item)]
    assert len(kept) == len(set(kept))
    reported = [record for note in notes for record in note.records]
    assert sorted(map(repr, kept + reported)) == sorted(map(repr, records))


@given(JOURNAL, JOURNAL)
def test_kestrel_snapshot_of_a_reader_stands_for_its_records(records, more):
    reader = kestrel.fold_reader(records)
    compacted: list[KestrelRecord] = [*kestrel.snapshot_reader(reader)]
    assert kestrel.fold_reader(compacted) == reader
    assert kestrel.fold_reader(compacted + more) == kestrel.fold_reader(records + more)


@given(QUEUE_IDS, READERS)
def test_kestrel_every_item_is_finished_or_delivered(ids, readers):
    view = kestrel.open_queue(ids, readers)
    for name, reader in view.readers.items():
        waiting = list(reader.undelivered(ids))
        assert waiting == [i for i in ids if i not in reader.done and i > reader.head]
        known = readers.get(name)
        if known is not None and known.head <= view.tail:  # the checkpoint is believed
            assert set(ids) - set(waiting) == {i for i in ids if known.is_past(i)}
        elif name in readers:
            assert waiting == ids
    assert [i for i in ids if view.is_dead(i)] == [
        i for i in ids if all(i not in set(r.undelivered(ids)) for r in view.readers.values())
    ]


@given(QUEUE_IDS, READERS)
def test_kestrel_readers_stand_inside_the_queue(ids, readers):
    view = kestrel.open_queue(ids, readers)
    assert view.readers
    assert view.next_id > max(ids, default=0)
    first = ids[0] if ids else view.next_id
    for reader in view.readers.values():
        assert first - 1 <= reader.head <= view.tail
        assert all(reader.head < item_id <= view.tail for item_id in reader.done)
    assert "" not in view.readers or set(view.readers) == {""}


@given(QUEUE_IDS, READERS)
def test_kestrel_opening_a_queue_again_changes_nothing(ids, readers):
    before = {name: reader and kestrel.snapshot_reader(reader) for name, reader in readers.items()}
    view = kestrel.open_queue(ids, readers)
    assert before == {
        n: reader and kestrel.snapshot_reader(reader) for n, reader in readers.items()
    }
    notes: list[Anomaly] = []
    checkpoints = {
        name: kestrel.fold_reader(kestrel.snapshot_reader(reader))
        for name, reader in view.readers.items()
    }
    assert kestrel.open_queue(ids, checkpoints, notes.append) == view
    assert notes == []


@given(QUEUE_IDS, READERS, st.data())
def test_kestrel_retention_takes_no_item_that_a_reader_needs(ids, readers, data):
    view = kestrel.open_queue(ids, readers)
    first_ids = sorted({ids[0], *data.draw(st.sets(st.sampled_from(ids)))}) if ids else []
    retired = view.retired(first_ids)
    assert list(retired) == first_ids[: len(retired)]
    kept_from = first_ids[len(retired)] if first_ids else view.next_id
    assert all(view.is_dead(item_id) for item_id in ids if item_id < kept_from)
    assert not ids or kept_from <= view.tail
