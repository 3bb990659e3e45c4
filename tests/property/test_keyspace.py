"""The laws of the Overhop keyspace: exact keys, true order, values that lose nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.errors import EncodeError, FormatError, InvalidData, UnknownEntryType
from journeyman.formats.keyspace import values
from journeyman.formats.keyspace.keys import (
    COUNTERS,
    JOBS,
    MAX_KEY_BYTES,
    MAX_QUEUE_NAME_BYTES,
    MAX_STATUS_BYTES,
    QUEUE_TIMES,
    QUEUE_TIMES_V1,
    QUEUES,
    STATUS_FIFO,
    STATUSES,
    CounterKey,
    JobKey,
    Key,
    QueueKey,
    QueueTimeKey,
    StatusFifoKey,
    StatusKey,
    counters_of_queue,
    decode_key,
    due_before,
    encode_key,
    fifo_of_status,
    ordered_bytes,
    ordered_number,
    prefix_range,
)
from journeyman.formats.keyspace.text import (
    MAX_JSON_DEPTH,
    MAX_TIME_NS,
    MIN_TIME_NS,
    format_time,
    json_text,
    parse_time,
)
from journeyman.formats.keyspace.values import (
    MARKER,
    JobRecord,
    QueueRecord,
    decode_value,
    encode_value,
    index_entries,
)

law = settings(deadline=None)  # a busy machine breaks no law

PREFIXES = [QUEUES, JOBS, QUEUE_TIMES, QUEUE_TIMES_V1, STATUSES, STATUS_FIFO, COUNTERS]
ANY = UUID(int=7)

int64s = st.integers(-(2**63), 2**63 - 1)
u64s = st.integers(0, 2**64 - 1)
names = st.text(
    st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12
) | st.sampled_from(["a", "a:b", ":", "::", "a-b", f":{ANY}"])
statuses = st.sampled_from(["new", "waiting", "delayed", "active"]) | st.from_regex(
    r"[!-9;-~]{1,10}", fullmatch=True
)
uuids = st.uuids()
keys = st.one_of(
    st.builds(QueueKey, names),
    st.builds(JobKey, uuids),
    st.builds(QueueTimeKey, int64s, names, uuids, st.sampled_from([1, 2])),
    st.builds(StatusKey, uuids),
    st.builds(StatusFifoKey, statuses, int64s, uuids),
    st.builds(CounterKey, names, statuses),
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
payloads = json_values.map(json_text) | st.sampled_from(["1e16", "1.0", "-0", '{ "b" : 1 ,"a":2}'])
extras = st.dictionaries(texts.map(lambda t: f"x_{t}"), payloads, max_size=2).map(
    lambda d: tuple(sorted(d.items()))
)
times = st.integers(MIN_TIME_NS, MAX_TIME_NS)
jobs = st.builds(
    JobRecord,
    job_uuid=uuids,
    jid=texts,
    queue=names,
    status=statuses,
    created_at_ns=times,
    execution_start_ns=times,
    max_attempts=st.none() | u64s,
    retry_interval_ms=st.none() | u64s,
    attempts_so_far=u64s,
    payload=payloads,
    extra=extras,
    runtime_extra=extras,
)
queues = st.builds(
    QueueRecord,
    queue_id=st.none() | uuids,
    name=names,
    concurrency_limit=st.none() | st.integers(0, 2**32 - 1),
    allow_job_overrides=st.booleans(),
    state=st.sampled_from(["active", "paused"]),
    extra=extras,
    config_extra=extras,
)

JOB = JobRecord(ANY, f"q:{ANY}", "q", "new", 0, 0)
JOB_BYTES = encode_value(JOB)


# -- keys ----------------------------------------------------------------------------------------


@law
@given(keys)
def test_key_comes_back_as_it_was(key: Key):
    assert decode_key(encode_key(key)) == key


@law
@given(keys, st.data())
def test_damaged_key_is_refused_or_is_another_key(key: Key, data: st.DataObject):
    raw = bytearray(encode_key(key))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        other = decode_key(bytes(raw))
    except FormatError:
        return
    assert other != key
    assert encode_key(other) == raw


@law
@given(st.sampled_from([*PREFIXES, b""]), st.binary(max_size=80))
def test_any_bytes_are_a_key_or_a_format_error(prefix: bytes, rest: bytes):
    try:
        key = decode_key(prefix + rest)
    except FormatError:
        return
    assert encode_key(key) == prefix + rest


@law
@given(int64s, int64s)
def test_byte_order_is_numeric_order(a: int, b: int):
    assert (ordered_bytes(a) < ordered_bytes(b)) == (a < b)
    assert ordered_number(ordered_bytes(a)) == a


@law
@given(st.lists(st.builds(QueueTimeKey, int64s, names, uuids), max_size=8))
def test_queue_time_index_sorts_by_time_then_queue_then_uuid(items: list[QueueTimeKey]):
    def order(key: QueueTimeKey) -> tuple[int, bytes, bytes]:
        return key.execution_start_ms, key.queue.encode() + b":", str(key.job_uuid).encode()

    by_bytes = [decode_key(raw) for raw in sorted(map(encode_key, items))]
    assert [k.execution_start_ms for k in by_bytes if isinstance(k, QueueTimeKey)] == sorted(
        k.execution_start_ms for k in items
    )
    plain = [k for k in items if ":" not in k.queue]
    assert sorted(map(encode_key, plain)) == [encode_key(k) for k in sorted(plain, key=order)]


@law
@given(st.lists(st.builds(StatusFifoKey, st.just("new"), int64s, uuids), max_size=8))
def test_status_fifo_sorts_by_age_then_uuid(items: list[StatusFifoKey]):
    by_age = sorted(items, key=lambda k: (k.created_at_ms, k.job_uuid.bytes))
    assert sorted(map(encode_key, items)) == list(map(encode_key, by_age))


@law
@given(st.lists(keys, max_size=12), int64s, statuses)
def test_ranges_hold_exactly_what_they_name(items: list[Key], before_ms: int, status: str):
    def inside(bounds: tuple[bytes, bytes]) -> set[Key]:
        return {k for k in items if bounds[0] <= encode_key(k) < bounds[1]}

    times_v2 = [k for k in items if isinstance(k, QueueTimeKey) and k.version == 2]
    assert inside(due_before(before_ms)) == {
        k for k in times_v2 if k.execution_start_ms < before_ms
    }
    fifo = {k for k in items if isinstance(k, StatusFifoKey)}
    assert inside(fifo_of_status(status)) == {k for k in fifo if k.status == status}
    assert inside(prefix_range(STATUS_FIFO)) == fifo
    assert inside(prefix_range(QUEUE_TIMES)) == set(times_v2)
    counters = {k for k in items if isinstance(k, CounterKey)}
    for queue in {k.queue for k in counters}:
        assert inside(counters_of_queue(queue)) >= {k for k in counters if k.queue == queue}


def test_status_that_goes_on_behind_the_prefix_is_another_status():
    low, high = fifo_of_status("new")
    assert low <= encode_key(StatusFifoKey("new", 2**63 - 1, UUID(int=2**128 - 1))) < high
    assert not low <= encode_key(StatusFifoKey("new;", 0, ANY)) < high


def test_key_over_the_limit_is_refused_unread():
    with pytest.raises(InvalidData, match="a key of 2049 bytes"):
        decode_key(QUEUES + b"x" * (MAX_KEY_BYTES - len(QUEUES) + 1))


def test_no_prefix_is_the_beginning_of_another():
    for prefix in PREFIXES:
        assert [p for p in PREFIXES if p.startswith(prefix)] == [prefix]


def test_prefix_without_colon_has_no_range():
    with pytest.raises(ValueError, match="colon"):
        prefix_range(b"v1:q")


@law
@given(int64s, names, uuids)
def test_old_and_new_form_of_a_key_say_the_same(ms: int, queue: str, job_uuid: UUID):
    old = decode_key(encode_key(QueueTimeKey(ms, queue, job_uuid, version=1)))
    assert isinstance(old, QueueTimeKey)
    assert old.newest() == QueueTimeKey(ms, queue, job_uuid)
    assert encode_key(old) != encode_key(old.newest())


@pytest.mark.parametrize(
    "key",
    [
        QueueKey(""),
        QueueKey("x" * (MAX_QUEUE_NAME_BYTES + 1)),
        QueueKey("\ud800"),
        CounterKey("q", ""),
        CounterKey("q", "a:b"),
        CounterKey("q", "é"),
        CounterKey("q", "a b"),
        StatusFifoKey("x" * (MAX_STATUS_BYTES + 1), 0, ANY),
        StatusFifoKey("new", 2**63, ANY),
        QueueTimeKey(-(2**63) - 1, "q", ANY),
        QueueTimeKey(2**63, "q", ANY, version=1),
        QueueTimeKey(0, "q", ANY, version=3),
    ],
)
def test_key_that_could_not_be_read_back_is_refused(key: Key):
    with pytest.raises(EncodeError):
        encode_key(key)


def test_longest_names_fit_into_the_longest_key():
    longest = QueueTimeKey(-(2**63), "x" * MAX_QUEUE_NAME_BYTES, ANY, version=1)
    assert decode_key(encode_key(longest)) == longest
    assert len(encode_key(longest)) <= MAX_KEY_BYTES


@pytest.mark.parametrize(
    "raw",
    [
        b"v1:q:",
        b"v1:q:\xff",
        b"v1:j:" + str(ANY).upper().encode().replace(b"7", b"A"),
        b"v1:j:" + ANY.hex.encode(),
        b"v1:j_qt:007:q:" + str(ANY).encode(),
        b"v1:j_qt:-0:q:" + str(ANY).encode(),
        b"v1:j_qt:9223372036854775808:q:" + str(ANY).encode(),
        b"v1:j_qt:1:q" + str(ANY).encode(),
        b"v1:j_qt:" + str(ANY).encode(),
        b"v2:j_qt:12345678",
        b"v2:j_qt:12345678:" + str(ANY).encode(),
        b"v1:status_fifo:new:" + bytes(23),
        b"v1:status_fifo::" + bytes(24),
        b"v1:status_fifo:a:b:" + bytes(24),
        b"v1:q_status:new",
        b"v1:q_status:q:",
        b"v1:q:" + b"x" * (MAX_QUEUE_NAME_BYTES + 1),
    ],
)
def test_junk_behind_a_known_prefix_is_invalid_data(raw: bytes):
    with pytest.raises(InvalidData):
        decode_key(raw)


@pytest.mark.parametrize("raw", [b"", b":", b"v1", b"v1:q", b"v3:q:x", b"v2:q:x", b"v1:jobs:x"])
def test_foreign_prefix_is_told_apart_from_junk(raw: bytes):
    with pytest.raises(UnknownEntryType) as caught:
        decode_key(raw, offset=40)
    assert caught.value.offset == 40


# -- values --------------------------------------------------------------------------------------


@law
@given(jobs)
def test_job_comes_back_as_it_was(job: JobRecord):
    assert decode_value(JobKey(job.job_uuid), encode_value(job)) == job


@law
@given(jobs)
def test_job_is_json_with_its_members_in_order(job: JobRecord):
    members = json.loads(encode_value(job))
    assert list(members) == sorted(members)
    assert parse_time(members["created_at"]) == job.created_at_ns
    assert members["payload"] == json.loads(job.payload)


@law
@given(queues)
def test_queue_comes_back_as_it_was(queue: QueueRecord):
    assert decode_value(QueueKey("q"), encode_value(queue)) == queue


@law
@given(u64s, statuses)
def test_counters_statuses_and_markers_come_back(count: int, status: str):
    assert decode_value(CounterKey("q", "new"), encode_value(count)) == count
    assert decode_value(StatusKey(ANY), encode_value(status)) == status
    assert decode_value(StatusFifoKey("new", 0, ANY), encode_value(MARKER)) is MARKER


@law
@given(jobs)
def test_every_index_key_of_a_job_leads_back_to_it(job: JobRecord):
    entries = {decode_key(k): v for k, v in index_entries(job).items()}
    assert {k.job_uuid for k in entries if not isinstance(k, QueueKey | CounterKey)} == {
        job.job_uuid
    }
    start_ms = job.execution_start_ns // 1_000_000
    assert QueueTimeKey(start_ms, job.queue, job.job_uuid) in entries


def test_unknown_members_are_kept_in_their_place():
    raw = JOB_BYTES.replace(b'"jid"', b'"future":{"b": [1.50]},"jid"').replace(
        b'"attempts_so_far":0', b'"attempts_so_far":0,"last_error":"x"'
    )
    job = decode_value(JobKey(ANY), raw)
    assert isinstance(job, JobRecord)
    assert job.extra == (("future", '{"b": [1.50]}'),)
    assert job.runtime_extra == (("last_error", '"x"'),)
    assert encode_value(replace(job, status="waiting")) == raw.replace(b'"new"', b'"waiting"')


def test_queue_without_id_is_read_and_stays_without():
    config = b'{"concurrency_limit":null,"allow_job_overrides":true}'
    raw = b'{"name":"q","config":' + config + b',"state":"active"}'
    queue = decode_value(QueueKey("q"), raw)
    assert queue == QueueRecord(None, "q", None, True, "active")
    assert encode_value(queue) == raw


def test_job_written_by_another_hand_is_read_and_written_in_our_form():
    loose = json.dumps(
        {
            "uuid": str(ANY).upper(),
            "y": 1,
            "x": 2,
            "status": "new",
            "runtime": {"attempts_so_far": 0},
            "queue_name": "q",
            "jid": f"q:{ANY}",
            "created_at": "1970-01-01T02:00:00+02:00",
            "execution_start_at": "1970-01-01T00:00:00.0Z",
        },
        indent=2,
    )
    job = decode_value(JobKey(ANY), loose.encode())
    assert job == replace(JOB, extra=(("x", "2"), ("y", "1")))
    assert encode_value(job) == JOB_BYTES[:-1] + b',"x":2,"y":1}'


def payload(text: str) -> bytes:
    return JOB_BYTES.replace(b'"payload":null', b'"payload":' + text.encode())


NESTED = "[" * (MAX_JSON_DEPTH - 1) + "]" * (MAX_JSON_DEPTH - 1)


def test_payload_may_be_nested_up_to_the_limit():
    job = decode_value(JobKey(ANY), payload(NESTED))
    assert isinstance(job, JobRecord)
    assert job.payload == NESTED
    brackets = '"' + "[" * 1000 + '"'
    assert decode_value(JobKey(ANY), payload(brackets))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"{",
        b"\xff",
        b"\xef\xbb\xbf" + JOB_BYTES,
        JOB_BYTES[:-1],
        JOB_BYTES + b"x",
        JOB_BYTES[:-1] + b',"status":"new"}',
        JOB_BYTES[:-1] + b",}",
        JOB_BYTES[:-1] + b",1:2}",
        payload("[" + NESTED + "]"),
        payload("[" * 100_000),
        payload('{"a":' * 100_000),
        payload('"' + '\\"' * 100_000),
        payload("NaN"),
        payload("-Infinity"),
        payload("1e999"),
        payload("9" * 10_000),
        payload("18446744073709551616"),
        payload('"\\ud800"'),
        payload('["\\udc00\\ud800"]'),
        payload('{"a":1,"a":2}'),
        payload("01"),
        payload('"\n"'),
        JOB_BYTES.replace(b'"new"', b"1"),
        JOB_BYTES.replace(b'"attempts_so_far":0', b'"attempts_so_far":true'),
        JOB_BYTES.replace(b'"attempts_so_far":0', b'"attempts_so_far":-1'),
        JOB_BYTES.replace(b'"attempts_so_far":0', b'"attempts_so_far":0.0'),
        JOB_BYTES.replace(b'"max_attempts":null', b'"max_attempts":"3"'),
        JOB_BYTES.replace(b"1970-01-01T", b"1970-02-30T"),
        JOB_BYTES.replace(b"1970-01-01T", b"0000-01-01T"),
        JOB_BYTES.replace(b"00:00:00+", b"24:00:00+"),
        JOB_BYTES.replace(b"00:00:00+", b"00:00:60+"),
        JOB_BYTES.replace(b"+00:00", b"+24:00"),
        JOB_BYTES.replace(b"+00:00", b""),
        JOB_BYTES.replace(b"1970-01-01T00:00:00+00:00", b"9999-12-31T23:59:59-00:01"),
        JOB_BYTES.replace(b'"uuid":"00000000', b'"uuid":"0000000_'),
        JOB_BYTES.replace(b'"uuid":"0000', b'"uuid":"'),
    ],
)
def test_hostile_job_is_invalid_data(raw: bytes):
    with pytest.raises(InvalidData):
        decode_value(JobKey(ANY), raw)


@pytest.mark.parametrize(
    ("key", "raw"),
    [
        (QueueKey("q"), b'{"name":"q"}'),
        (QueueKey("q"), b'{"id":null,"name":"q","config":{},"state":"active"}'),
        (StatusKey(ANY), b""),
        (StatusKey(ANY), b"\xff"),
        (StatusKey(ANY), b"x" * (MAX_STATUS_BYTES + 1)),
        (CounterKey("q", "new"), bytes(7)),
        (CounterKey("q", "new"), bytes(9)),
        (QueueTimeKey(0, "q", ANY), b""),
        (StatusFifoKey("new", 0, ANY), b"\2"),
    ],
)
def test_other_values_that_are_none_are_invalid_data(key: Key, raw: bytes):
    with pytest.raises(InvalidData) as caught:
        decode_value(key, raw, offset=9)
    assert caught.value.offset == 9


@pytest.mark.parametrize(
    "value",
    [
        2**64,
        -1,
        "",
        "é",
        replace(JOB, payload="NaN"),
        replace(JOB, payload=" 1"),
        replace(JOB, payload="[" * 100_000),
        replace(JOB, payload='"\ud800"'),
        replace(JOB, payload='"\\ud800"'),
        replace(JOB, created_at_ns=MAX_TIME_NS + 1),
        replace(JOB, execution_start_ns=MIN_TIME_NS - 1),
        replace(JOB, max_attempts=2**64),
        replace(JOB, attempts_so_far=-1),
        replace(JOB, jid="\ud800"),
        replace(JOB, extra=(("status", "1"),)),
        replace(JOB, extra=(("x", "1,2"),)),
        QueueRecord(None, "q", 2**32, True, "active"),
        QueueRecord(None, "q", None, True, "stopped"),
    ],
)
def test_value_that_could_not_be_read_back_is_refused(value):
    with pytest.raises(EncodeError):
        encode_value(value)


def test_value_over_the_limit_is_neither_read_nor_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(values, "MAX_VALUE_BYTES", len(JOB_BYTES))
    assert decode_value(JobKey(ANY), encode_value(JOB)) == JOB
    with pytest.raises(InvalidData, match="bytes, over"):
        decode_value(JobKey(ANY), JOB_BYTES + b" ")
    with pytest.raises(EncodeError, match="bytes, over"):
        encode_value(replace(JOB, payload="12345"))


@law
@given(times)
def test_time_comes_back_with_the_fewest_decimals_that_lose_nothing(time_ns: int):
    text = format_time(time_ns)
    assert parse_time(text) == time_ns
    decimals = text.removesuffix("+00:00").partition(".")[2]
    assert len(decimals) in (0, 3, 6, 9)
    assert not decimals.endswith("000")


def test_too_deep_a_value_has_no_json_text():
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested"):
        json_text(deep)
