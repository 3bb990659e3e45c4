"""Keys and values of Overhop against vectors that the original's own code produced."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from journeyman.formats.keyspace.keys import (
    CounterKey,
    JobKey,
    QueueKey,
    QueueTimeKey,
    StatusFifoKey,
    StatusKey,
    decode_key,
    encode_key,
    fifo_of_status,
    ordered_bytes,
    ordered_number,
)
from journeyman.formats.keyspace.text import parse_time
from journeyman.formats.keyspace.values import (
    MARKER,
    JobRecord,
    QueueRecord,
    decode_value,
    encode_value,
    index_entries,
)
from tests.support.golden_logs import STEPS, VECTORS

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "keyspace.md"
A = UUID("3f2504e0-4f89-41d3-9a0c-0305e82c3301")
A_TEXT_HEX = str(A).encode().hex()


def stored(step: dict[str, Any]) -> dict[bytes, bytes]:
    """The whole map after a step; JSON and statuses stand as text, the rest as hex."""
    pairs = {}
    for kv in step["kv"]:
        key = bytes.fromhex(kv["key_hex"])
        is_text = key.startswith((b"v1:q:", b"v1:j:", b"v1:status:"))
        pairs[key] = kv["value"].encode() if is_text else bytes.fromhex(kv["value"])
    return pairs


def name(step: dict[str, Any]) -> str:
    return str(step["step"])


@pytest.mark.parametrize("step", STEPS, ids=name)
def test_every_key_and_value_is_written_back_byte_for_byte(step: dict[str, Any]):
    for raw_key, raw_value in stored(step).items():
        key = decode_key(raw_key)
        assert encode_key(key) == raw_key
        assert encode_value(decode_value(key, raw_value)) == raw_value


def test_vectors_hold_every_kind_of_key():
    kinds = {type(decode_key(key)) for step in STEPS for key in stored(step)}
    assert kinds == {QueueKey, JobKey, QueueTimeKey, StatusKey, StatusFifoKey, CounterKey}


def test_keys_and_values_mean_what_they_should():
    pairs = {decode_key(k): v for k, v in stored(STEPS[3]).items()}
    values = {key: decode_value(key, raw) for key, raw in pairs.items()}
    created_ns = 1_771_841_700_123_456_789
    job = JobRecord(
        job_uuid=A,
        jid=f"critical:{A}",
        queue="critical",
        status="delayed",
        created_at_ns=created_ns,
        execution_start_ns=1_771_842_000_000_000_000,
        max_attempts=3,
        retry_interval_ms=250,
        attempts_so_far=0,
        payload='{"to":"ops"}',
    )
    assert values[JobKey(A)] == job
    assert values[QueueTimeKey(1_771_842_000_000, "critical", A, version=1)] == MARKER
    assert values[StatusKey(A)] == "delayed"
    assert values[StatusFifoKey("delayed", created_ns // 1_000_000, A)] == MARKER
    assert values[CounterKey("critical", "delayed")] == 1
    assert values[QueueKey("critical")] == QueueRecord(
        UUID("66666666-7777-4888-9999-aaaaaaaaaaaa"), "critical", 8, False, "paused"
    )
    assert values[QueueKey("_system")] == QueueRecord(
        UUID("11111111-2222-4333-8444-555555555555"), "_system", None, True, "active"
    )


@pytest.mark.parametrize("step", STEPS, ids=name)
def test_index_keys_of_the_original_follow_from_its_jobs(step: dict[str, Any]):
    pairs = stored(step)
    expected: dict[bytes, bytes] = {}
    for raw_key, raw_value in pairs.items():
        if isinstance(key := decode_key(raw_key), JobKey):
            job = decode_value(key, raw_value)
            assert isinstance(job, JobRecord)
            expected |= index_entries(job, queue_time_version=1)
    assert expected == {
        k: v for k, v in pairs.items() if not k.startswith((b"v1:q:", b"v1:q_status:"))
    }


def test_fifo_range_lists_jobs_in_the_order_of_the_original():
    step = next(s for s in STEPS if "fifo_new" in s)
    low, high = fifo_of_status("new")
    found = [decode_key(k) for k in sorted(stored(step)) if low <= k < high]
    uuids = [str(key.job_uuid) for key in found if isinstance(key, StatusFifoKey)]
    assert uuids == step["fifo_new"]


@pytest.mark.parametrize("step", [s for s in STEPS if "counts" in s], ids=name)
def test_counters_are_those_the_original_lists(step: dict[str, Any]):
    counts = [
        [key.queue, key.status, decode_value(key, raw)]
        for key, raw in ((decode_key(k), v) for k, v in sorted(stored(step).items()))
        if isinstance(key, CounterKey)
    ]
    assert counts == step["counts"]


@pytest.mark.parametrize(("number", "hex_bytes"), VECTORS["created_at_ordered_bytes"].items())
def test_ordered_bytes_are_those_of_the_original(number: str, hex_bytes: str):
    assert ordered_bytes(int(number)).hex() == hex_bytes
    assert ordered_number(bytes.fromhex(hex_bytes)) == int(number)


def queue_time_order(version: int) -> list[str]:
    times = {parse_time(t) // 1_000_000: t for t in VECTORS["j_qt_order"]["by_time"]}
    keys = sorted(encode_key(QueueTimeKey(ms, "q", A, version)) for ms in times)
    decoded = [decode_key(key) for key in keys]
    return [times[key.execution_start_ms] for key in decoded if isinstance(key, QueueTimeKey)]


def test_old_queue_time_keys_do_not_sort_by_time_just_as_in_the_original():
    assert queue_time_order(version=1) == VECTORS["j_qt_order"]["by_key"]


def test_new_queue_time_keys_sort_by_time():
    assert queue_time_order(version=2) == VECTORS["j_qt_order"]["by_time"]


@pytest.mark.parametrize(
    ("key", "hex_bytes"),
    [
        (QueueKey("critical"), "76313a713a 637269746963616c"),
        (
            QueueTimeKey(1_771_842_000_000, "critical", A),
            f"76323a6a5f71743a 8000019c8a035480 3a 637269746963616c 3a {A_TEXT_HEX}",
        ),
        (
            StatusFifoKey("new", 1_771_841_700_123, A),
            f"76313a7374617475735f6669666f3a 6e6577 3a 8000019c89fec11b {A.hex}",
        ),
        (CounterKey("critical", "new"), "76313a715f7374617475733a 637269746963616c 3a 6e6577"),
    ],
)
def test_documented_keys_are_what_is_written(key, hex_bytes: str):
    assert encode_key(key) == bytes.fromhex(hex_bytes)
    assert hex_bytes in " ".join(PAGE.read_text().split())
