"""Laws of recovery, for any records and any damage."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.formats import kestrel, workq, ztick
from journeyman.formats.framing import Entry
from journeyman.logs.appender import Appender, SyncPolicy
from journeyman.logs.damage import Damage, read_past_damage
from journeyman.logs.recovery import inspect_file, recover_file
from journeyman.logs.sealing import Sealing
from journeyman.testing import ManualClock
from tests.support.effort import cases
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.specimens import CREATED, DIALECTS, DIRECTORY, KESTREL, WORKQ, ZTICK, Dialect

pytestmark = pytest.mark.usefixtures("kind_of_disk")

texts = st.text(st.characters(codec="utf-8"), max_size=12)
blobs = st.binary(max_size=40)

ztick_records = st.one_of(
    st.builds(ztick.JobSet, texts, st.integers(-(2**63), 2**63 - 1), st.sampled_from(ztick.Status)),
    st.builds(ztick.RuleSet, texts, texts, st.builds(ztick.Shell, texts)),
    st.builds(ztick.JobRemoved, texts),
)
job_ids = st.binary(min_size=16, max_size=16)
workq_records = st.one_of(
    st.builds(
        workq.JobFinished,
        st.just(CREATED),
        job_ids,
        st.sampled_from([workq.Command.COMPLETE, workq.Command.FAIL]),
        blobs,
    ),
    st.builds(workq.JobEvent, st.just(CREATED), job_ids, st.sampled_from([workq.Command.DELETE])),
)


@st.composite
def kestrel_logs(draw: st.DrawFn) -> list[Any]:
    items = draw(st.lists(st.tuples(blobs, st.none() | st.just(1_800_000_000_000)), max_size=8))
    return [
        kestrel.ItemPut(item_id, 1_700_000_000_000, expire_ms, 0, data)
        for item_id, (data, expire_ms) in enumerate(items, 1)
    ]


LOGS: dict[str, st.SearchStrategy[list[Any]]] = {
    ZTICK.name: st.lists(ztick_records, max_size=8),
    WORKQ.name: st.lists(workq_records, max_size=8),
    KESTREL.name: kestrel_logs(),
}


def recovered(dialect: Dialect, data: bytes) -> tuple[SimulatedDisk, list[Any], int]:
    """The disk, the records, and how many bytes went to quarantine or were zeros."""
    disk = SimulatedDisk()
    disk.plant(dialect.path, data)
    entries, report = recover_file(disk, dialect.codec, dialect.path)
    padding = sum(damage.length for damage in report.damages if damage.kind == "padding")
    aside = sum(disk.size(path) for path in report.quarantined)
    return disk, [entry.record for entry in entries], padding + aside


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@given(data=st.data())
def test_any_prefix_of_a_log_gives_exactly_its_whole_records(dialect, data):
    records = data.draw(LOGS[dialect.name])
    encoded = dialect.encode(records)
    cut = data.draw(st.integers(0, len(encoded)))
    _, found, _ = recovered(dialect, encoded[:cut])
    whole = [n for n in range(len(records) + 1) if len(dialect.encode(records[:n])) <= cut]
    assert found == records[: max(whole, default=0)]


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@given(data=st.data())
def test_a_prefix_followed_by_zeros_gives_its_whole_records_too(dialect, data):
    records = data.draw(LOGS[dialect.name])
    _, found, _ = recovered(dialect, dialect.encode(records) + bytes(data.draw(st.integers(1, 99))))
    assert found == records


@given(records=st.lists(workq_records, max_size=8), wound=st.data())
def test_with_a_checksum_every_record_that_was_not_touched_is_saved(records, wound):
    encoded = WORKQ.encode(records)
    starts = [len(WORKQ.encode(records[:n])) for n in range(len(records) + 1)]
    begin = wound.draw(st.integers(0, len(encoded)))
    damage = wound.draw(st.binary(max_size=30))
    end = min(begin + wound.draw(st.integers(0, 30)), len(encoded))
    wounded = encoded[:begin] + damage + encoded[end:]
    _, found, _ = recovered(WORKQ, wounded)
    before = [r for n, r in enumerate(records) if starts[n + 1] <= begin]
    assert found[: len(before)] == before
    assert all(record in records for record in found)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@given(data=st.data())
def test_recovery_never_fails_never_loses_a_byte_and_is_done_once(dialect, data):
    """For a log with any bytes in its middle, and for any bytes at all."""
    encoded = dialect.encode(data.draw(LOGS[dialect.name]))
    begin = data.draw(st.integers(0, len(encoded)))
    junk = data.draw(st.binary(max_size=60))
    rest = data.draw(st.sampled_from([b"", encoded[begin:]]))
    content = encoded[:begin] + junk + rest
    disk, found, aside = recovered(dialect, content)
    if not disk.exists(dialect.path):
        assert found == []
        assert aside == len(content)
        return
    repaired = disk.read_bytes(dialect.path)
    assert len(repaired) + aside in (len(content), len(content) + len(dialect.codec.header))
    assert repaired == dialect.encode(found)
    entries, report = recover_file(disk, dialect.codec, dialect.path)
    assert ([e.record for e in entries], report.clean) == (found, True)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@given(content=st.binary(max_size=200))
def test_entries_and_damages_cover_any_bytes_end_to_end(dialect, content):
    offset = None
    for item in read_past_damage(dialect.codec, content):
        if offset is None:
            begins_behind_header = isinstance(item, Entry) or item.offset > 0
            offset = len(dialect.codec.header) if begins_behind_header else 0
        assert item.offset == offset
        offset = item.end
    assert offset in (None, len(content))


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@given(data=st.data())
def test_inspection_tells_what_recovery_finds(dialect, data):
    encoded = bytearray(dialect.encode(data.draw(LOGS[dialect.name])))
    for at in data.draw(st.lists(st.integers(0, max(0, len(encoded) - 1)), max_size=4)):
        encoded[at : at + 1] = b"\xee"
    disk = SimulatedDisk()
    disk.plant(dialect.path, bytes(encoded))
    inspected = inspect_file(disk, dialect.codec, dialect.path)
    assert disk.operations == 0
    _, report = recover_file(disk, dialect.codec, dialect.path)
    assert inspected.damages == report.damages
    assert inspected.records == report.records
    assert inspected.saved_after_damage == report.saved_after_damage
    assert all(isinstance(damage, Damage) for damage in report.damages)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)
@given(
    groups=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    segment_bytes=st.integers(20, 300),
    operation=st.integers(1, 60),
    torn=st.floats(0, 1),
    survival=st.integers(0, 10_000),
    together=st.booleans(),
)
@settings(max_examples=cases(60))
def test_acknowledged_records_survive_any_crash(
    dialect, groups, segment_bytes, operation, torn, survival, together
):
    """The durability law: any grouping, any segment size, any moment, any survivor."""
    disk, clock = SimulatedDisk(), ManualClock()
    disk.make_dirs(DIRECTORY)
    plan = dialect.plan(disk, clock, segment_bytes)
    seals = dialect.codec.seals
    sealing = None if seals is None else Sealing(seals)
    appender = Appender(disk, clock, plan, sync=SyncPolicy.ALWAYS, sealing=sealing)
    records = dialect.records(sum(groups))
    todo = iter(records)
    acknowledged = 0
    disk.cut_power_at(operation, torn=torn)
    try:
        for group in groups:
            batch = [dialect.codec.encode(next(todo)) for _ in range(group)]
            for records_ in [batch] if together else [[data] for data in batch]:
                acknowledged += len(appender.append(records_))
    except PowerCut:
        pass
    found, _ = dialect.recover(disk.after_crash(survival))
    assert len(found) >= acknowledged
    assert found == records[: len(found)]


@given(seed=st.integers(0, 2**32))
@settings(max_examples=cases(40))
def test_records_carried_inside_payloads_never_come_out(seed):
    """Items that are themselves journals, the last one torn: none of their entries is a record."""
    rng = random.Random(seed)
    inner = b"".join(
        KESTREL.codec.encode(KESTREL.record(rng.randrange(1000, 9000))) for _ in range(5)
    )
    records = [kestrel.ItemPut(n, 1_700_000_000_000, None, 0, inner) for n in range(1, 5)]
    encoded = KESTREL.encode(records)
    whole = len(KESTREL.encode(records[:3]))
    _, found, _ = recovered(KESTREL, encoded[: rng.randrange(whole, len(encoded))])
    assert found == records[:3]
