"""The folds in bulk agree with the folds, on records that no server would write as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from journeyman.columnar.arrays import text_in
from journeyman.columnar.kernels.key_table import KeyTable, buckets_of, hashes_of
from journeyman.columnar.kestrel import decode as kestrel_columns
from journeyman.columnar.kestrel.decode import fold_items, puts_in
from journeyman.columnar.workq import decode as workq_columns
from journeyman.columnar.workq import fold
from journeyman.columnar.workq import fold as workq_states
from journeyman.columnar.ztick import decode as ztick_columns
from journeyman.columnar.ztick.latest import LatestJobs, jobs_and_rules, latest_rules
from journeyman.folds import kestrel, workq, ztick
from journeyman.formats import kestrel as kestrel_format
from journeyman.formats import workq as workq_format
from journeyman.formats import ztick as ztick_format
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import Command, JobAdded, JobEvent, JobFinished
from tests.support.drawn_columnar import WORKQ, encodable
from tests.support.drawn_folds import ZTICK, workq_records
from tests.support.workq_original import JOB_ID

pytestmark = pytest.mark.kernels

arrow: Any = pa  # the stubs do not know concat_batches

# -- keys --------------------------------------------------------------------------------------

KEYS = st.lists(st.binary(max_size=40) | st.sampled_from([b"", b"a", b"a\0", b"k" * 16]))


@given(st.lists(KEYS, max_size=4))
def test_keys_are_numbered_in_the_order_of_their_first_appearance(batches):
    table = KeyTable()
    expected: dict[bytes, int] = {}
    for keys in batches:
        numbers = table.numbers_of(*text_in(pa.array(keys, pa.binary())))
        assert numbers.tolist() == [expected.setdefault(key, len(expected)) for key in keys]
    offsets, values = table.keys()
    assert [bytes(values[a:b]) for a, b in pairwise(offsets)] == list(expected)
    assert table.hashes.tolist() == hashes_of(*text_in(pa.array(expected, pa.binary()))).tolist()


def test_table_grows_past_any_first_size_and_keeps_equal_beginnings_apart():
    random = Random(7)
    keys = [b"job." * 5 + b"%d" % random.randrange(30_000) for _ in range(60_000)]
    table = KeyTable()
    expected: dict[bytes, int] = {}
    for start in range(0, len(keys), 7_000):
        part = keys[start : start + 7_000]
        numbers = table.numbers_of(*text_in(pa.array(part, pa.binary())))
        assert numbers.tolist() == [expected.setdefault(key, len(expected)) for key in part]
    assert len(table) == len(expected)


def test_keys_of_equal_hash_are_told_apart_by_their_bytes(monkeypatch):
    def all_alike(offsets, values):
        return np.zeros(len(offsets) - 1, np.uint64)

    monkeypatch.setattr("journeyman.columnar.kernels.key_table.hashes_of", all_alike)
    keys = [b"%d" % (number % 300) for number in range(900)]
    numbers = KeyTable().numbers_of(*text_in(pa.array(keys, pa.binary())))
    assert numbers.tolist() == [number % 300 for number in range(900)]


@given(st.lists(st.integers(0, 2**64 - 1), max_size=50), st.integers(0, 16))
def test_every_hash_has_a_bucket(hashes, bits):
    buckets = buckets_of(np.array(hashes, np.uint64), 1 << bits)
    assert all(0 <= bucket < 1 << bits for bucket in buckets.tolist())


# -- ztick -------------------------------------------------------------------------------------


@given(ZTICK, st.integers(1, 8), st.randoms(use_true_random=False))
def test_latest_of_the_latest_of_parts_is_the_state(records, rows_a_part, random):
    log = b"".join(map(ztick_format.CODEC.encode, records))
    parts = [c.batch for c in ztick_columns.iter_batches(log, max_records=rows_a_part)]
    random.shuffle(parts)  # which task is done first does not matter
    whole, rules = LatestJobs(), []
    for part in parts:
        jobs, some_rules = jobs_and_rules(part, 0)
        of_part = LatestJobs()
        of_part.take(jobs)
        whole.take(of_part.batch())
        if some_rules is not None:
            rules.append(latest_rules(some_rules)[0])
    state = ztick.schedule(ztick.replay(records))
    found = sorted(whole.batch().to_pylist(), key=lambda row: row["position"])
    set_jobs = [row for row in found if row["kind"] == 0]
    assert [(r["identifier"], r["execution_ns"], r["status"]) for r in set_jobs] == [
        (job.identifier, job.execution_ns, job.status) for job in state.jobs.values()
    ]
    rows = latest_rules(arrow.concat_batches(rules))[0].to_pylist() if rules else []
    rows = sorted((row for row in rows if row["kind"] == 1), key=lambda row: row["position"])
    shells: Any = [rule.runner for rule in state.rules.values()]
    assert [(r["identifier"], r["pattern"], r["runner_args"]) for r in rows] == [
        (rule.identifier, rule.pattern, [shell.command])
        for rule, shell in zip(state.rules.values(), shells, strict=True)
    ]


def test_a_table_of_jobs_grows_with_what_it_is_given():
    identifiers = [f"job.{number % 5000:05}" + "x" * (number % 5000 % 90) for number in range(9000)]
    records = [
        ztick_format.JobSet(identifier, number, ztick_format.Status.PLANNED)
        for number, identifier in enumerate(identifiers)
    ]
    log = b"".join(map(ztick_format.CODEC.encode, records))
    table = LatestJobs()
    for chunk in ztick_columns.iter_batches(log, max_records=1000):
        table.take(jobs_and_rules(chunk.batch, 0)[0])
    last = {record.identifier: record.execution_ns for record in records}
    found = {row["identifier"]: row["execution_ns"] for row in table.batch().to_pylist()}
    assert found == last
    assert table.key_bytes == sum(map(len, last))


# -- workq -------------------------------------------------------------------------------------


BORN = Instant(10**18)
ADDED = JobAdded(BORN, JOB_ID, "x", 1, 10, 0, 2, 3, b"p", None, BORN)
STARTED, TIMED_OUT, DELETED = (
    JobEvent(Instant(10**18 + 1), JOB_ID, command)
    for command in (Command.START_ATTEMPT, Command.TIMEOUT_ATTEMPT, Command.DELETE)
)


class Folded:
    """A log folded in bulk, and what it had to read again."""

    def __init__(self, records: Sequence[workq_format.Record]) -> None:
        encode, header = workq_format.CODEC.encode, workq_format.HEADER
        log = header + b"".join(map(encode, records))
        chunks = [c.batch for c in workq_columns.iter_batches(log)]
        pairs = [workq_states.events_and_adds(chunk, 0) for chunk in chunks]
        self.events = arrow.concat_batches([events for events, _ in pairs])
        self.adds = arrow.concat_batches([adds for _, adds in pairs])
        positions = self.events.column("position").to_pylist()
        self.at = dict(zip(positions, records, strict=True))
        self.records = [self.at[position] for position in positions]
        self.read_again: list[int] = []
        self.states = workq_states.fold(self.events, self.adds, self.reread)

    def reread(self, positions: Sequence[int]) -> list[workq_format.Record]:
        self.read_again += positions
        return [self.at[position] for position in positions]

    def as_replayed(self) -> dict[bytes, workq.FoldedJob | workq.Orphans]:
        states: dict[bytes, workq.FoldedJob | workq.Orphans] = {}
        for row, number in zip(self.states.jobs, self.states.add_numbers, strict=True):
            job = self.job(row.tolist())
            states[job.added.job_id] = job
            position = self.adds.column("position")[int(number)].as_py()
            assert self.at[position] is job.added
        for rows in self.states.orphans:
            records = [self.records[row] for row in rows]
            states[records[0].job_id] = workq.Orphans(records)
        return states

    def job(self, row: list[int]) -> workq.FoldedJob:
        at = fold
        logged = [
            None if n < 0 else self.records[n].logged
            for n in (row[at.STARTED], row[at.FINISHED], row[at.BEGINS])
        ]
        result = None if row[at.FINISHED] < 0 else b""
        if row[at.RESULT] >= 0:
            result = self.records[row[at.RESULT]].result
        return workq.FoldedJob(
            self.records[row[at.ADD]],
            workq.JobState(row[at.STATE]),
            row[at.ATTEMPTS],
            row[at.FAILS],
            result,
            logged[0],
            logged[1],
            bool(row[at.EXHAUSTED]),
            row[at.OWED],
            row[at.PARKS],
            None if row[at.PARKED] < 0 else getattr(self.records[row[at.PARKED]], "result", None),
            logged[2],
        )


@given(WORKQ)
@example([ADDED, replace(ADDED, payload=b"q")])
@example([ADDED, STARTED, replace(ADDED, logged=Instant(5))])
@example([STARTED, ADDED, replace(ADDED, payload=b"q"), ADDED])
@example([ADDED, STARTED, TIMED_OUT, DELETED, STARTED])
def test_workq_in_bulk_is_the_fold(records):
    assert Folded(records).as_replayed() == workq.replay(records)


@given(st.lists(workq_records(st.just(JOB_ID)), max_size=25))
def test_workq_in_bulk_is_the_fold_of_one_job_with_a_past(events):
    records = [ADDED, *(record for record in events if encodable(record))]
    assert Folded(records).as_replayed() == workq.replay(records)


def test_ordinary_lives_are_folded_without_reading_anything_again():
    lives: list[list[workq_format.Record]] = [
        [ADDED, STARTED, TIMED_OUT, STARTED, TIMED_OUT],
        [ADDED, STARTED, DELETED, ADDED],
    ]
    failed = JobFinished(BORN, JOB_ID, Command.FAIL, b"r")
    lives.append([ADDED, STARTED, failed, JobEvent(BORN, JOB_ID, Command.TIMEOUT_ATTEMPT)])
    lives.append([ADDED, replace(ADDED, created=Instant(10**18 + 5))])  # anew: its end was lost
    for life in lives:
        folded = Folded(life)
        assert folded.as_replayed() == workq.replay(life)
        assert not folded.read_again
        assert not folded.states.orphans


def test_adds_that_only_differ_in_their_payload_are_compared_in_the_file():
    folded = Folded([ADDED, replace(ADDED, payload=b"q")])
    assert len(folded.read_again) == 2
    job = folded.as_replayed()[JOB_ID]
    assert isinstance(job, workq.FoldedJob)
    assert job.added.payload == b"q"


# -- kestrel -----------------------------------------------------------------------------------

PUTS = st.lists(
    st.one_of(
        st.builds(
            kestrel_format.ItemPut,
            st.integers(-1, 5),
            st.integers(0, 1),
            st.none() | st.integers(0, 1),
            st.integers(0, 1),
            st.sampled_from([b"", b"a", b"b"]),
        ),
        st.builds(kestrel_format.ReadHead, st.integers(0, 3)),
    ),
    max_size=30,
)


def items_in_bulk(records: list[kestrel_format.Record]) -> dict[int, list[kestrel_format.ItemPut]]:
    encode = kestrel_format.WRITER.encode
    log = kestrel_format.WRITER_MAGIC + b"".join(map(encode, records))
    batches = [c.batch for c in kestrel_columns.iter_batches(log)]
    positions = arrow.concat_batches(batches).column("offset").to_pylist()
    at = dict(zip(positions, records, strict=True))
    puts = arrow.concat_batches([puts_in(batch, 0) for batch in batches])
    found = fold_items(puts, lambda places: [at[place].data for place in places])
    states: dict[int, list[kestrel_format.ItemPut]] = {}
    for row, ordinal, contested in zip(*found, strict=True):
        put = at[puts.column("position")[int(row)].as_py()]
        items = states.setdefault(put.item_id, [])
        assert ordinal == len(items)
        items.append(put)
        assert contested or ordinal == 0
    rows_of_id = {item_id: len(items) for item_id, items in states.items()}
    ids = [puts.column("item_id")[int(row)].as_py() for row in found.rows]
    assert found.contested.tolist() == [rows_of_id[item_id] > 1 for item_id in ids]
    return states


@given(PUTS)
def test_kestrel_items_in_bulk_are_the_fold(records):
    states = kestrel.replay(records)
    expected = {item_id: list(kestrel.snapshot(item)) for item_id, item in states.items()}
    assert items_in_bulk(records) == expected
