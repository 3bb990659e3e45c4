"""The law of the twins: columnar answers as formats does, row for row, and stops where it stops."""

from __future__ import annotations

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from journeyman.columnar.arrays import as_bytes
from journeyman.columnar.kernels.key_table import crc32c, zlib_crcs
from journeyman.engines.sharded_dict import SHARDS, ShardedDict
from journeyman.formats import timed_frame
from journeyman.formats.framing import scan
from tests.support.columnar_twins import CHECKPOINT, JOURNAL, LEDGER, WORKQ, ZTICK, assert_twins
from tests.support.drawn_kestrel import RECORDS as KESTREL_RECORDS
from tests.support.drawn_ledger import RECORDS as LEDGER_RECORDS
from tests.support.drawn_logs import (
    draw_log,
)
from tests.support.drawn_workq import RECORDS as WORKQ_RECORDS
from tests.support.drawn_ztick import records as ZTICK_RECORDS  # noqa: N812
from tests.support.effort import cases

pytestmark = pytest.mark.kernels

UNIX_EPOCH_S = timed_frame.UNIX_EPOCH_S
LOGS = [
    pytest.param(ZTICK, ZTICK_RECORDS, id="ztick"),
    pytest.param(WORKQ, WORKQ_RECORDS, id="workq"),
    pytest.param(LEDGER, LEDGER_RECORDS, id="ledger"),
    pytest.param(JOURNAL, KESTREL_RECORDS, id="journal"),
    pytest.param(CHECKPOINT, KESTREL_RECORDS, id="checkpoint"),
]
# No deadline: the first call of a kernel compiles it. Damage has many shapes, so more of it.
plain = settings(deadline=None)
thorough = settings(deadline=None, max_examples=cases(60))
each_log = pytest.mark.parametrize(("twins", "records"), LOGS)


@each_log
@given(data=st.data())
@plain
def test_twins_agree_on_what_the_codec_writes(twins, records, data):
    log = draw_log(data, twins, records)
    assert_twins(twins, log, max_records=data.draw(st.sampled_from([1, 2, 3, 65_536])))


@each_log
@given(data=st.data())
@plain
def test_twins_agree_on_prefixes(twins, records, data):
    log = draw_log(data, twins, records)
    for size in data.draw(st.lists(st.integers(0, len(log)), max_size=5)):
        assert_twins(twins, log[:size])


@each_log
@given(data=st.data())
@thorough
def test_twins_agree_on_flipped_bits(twins, records, data):
    log = bytearray(draw_log(data, twins, records))
    for _ in range(data.draw(st.integers(1, 3))):
        if log:
            log[data.draw(st.integers(0, len(log) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert_twins(twins, log, max_records=3)


@each_log
@given(data=st.data())
@thorough
def test_twins_agree_on_logs_with_pieces_cut_out_and_put_in(twins, records, data):
    log = draw_log(data, twins, records)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(log)))
        end = data.draw(st.integers(start, min(start + 20, len(log))))
        log = log[:start] + data.draw(st.binary(max_size=20)) + log[end:]
    assert_twins(twins, memoryview(log))


@each_log
@given(junk=st.binary(max_size=200), with_header=st.booleans())
@thorough
def test_twins_agree_on_garbage(twins, records, junk, with_header):
    assert_twins(twins, (twins.codec.header if with_header else b"") + junk)


@each_log
@given(data=st.data())
@plain
def test_hop_lands_on_the_first_boundary_at_or_behind_its_target(twins, records, data):
    log = draw_log(data, twins, records)
    entries, ending = scan(twins.codec, log)
    start = len(twins.codec.header)
    bounds = [*(entry.offset for entry in entries), ending.offset]
    for target in range(start, min(len(log), 500) + 1):
        assert twins.hop(log, start, target) == min(b for b in bounds if b >= target)


# -- ztick: the kernel knows the frame of an identifier, Arrow its alphabet ----------------------

ODD_BYTES = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0]
ODD_BYTES += [0xE1, 0xEC, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]


def removal(identifier: bytes) -> bytes:
    size = len(identifier)
    return (size + 3).to_bytes(4) + b"\x02" + size.to_bytes(2) + identifier


def is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def sequences(length: int) -> list[bytes]:
    found = [b""]
    for _ in range(length):
        found = [head + bytes((byte,)) for head in found for byte in ODD_BYTES]
    return found


@pytest.mark.parametrize(("length", "step"), [(1, 1), (2, 1), (3, 3), (4, 101)])
def test_arrow_takes_the_same_text_as_python_at_the_edges_of_utf8(length, step):
    raw = sequences(length)[::step]
    good = [item for item in raw if is_utf8(item)]
    text = pa.array(good, pa.binary()).cast(pa.string())
    assert text.to_pylist() == [item.decode() for item in good]
    bad = [item for item in raw if not is_utf8(item)]
    assert bad
    for item in bad:
        with pytest.raises(pa.ArrowInvalid):
            pa.array([item], pa.binary()).cast(pa.string())


@given(st.lists(st.sampled_from([*sequences(2), b"plain", "naïve".encode()]), max_size=6))
@plain
def test_reading_stops_at_the_first_identifier_that_is_not_utf8(identifiers):
    assert_twins(ZTICK, b"".join(map(removal, identifiers)), max_records=4)


@given(st.binary(max_size=24), st.binary(max_size=12))
@plain
def test_twins_agree_on_rules_of_any_content(tail, identifier):
    size = len(identifier)
    body = b"\x01" + size.to_bytes(2) + identifier + tail
    log = removal(b"first") + len(body).to_bytes(4) + body + removal(b"last")
    assert_twins(ZTICK, log)


# -- workq: behind a CRC that fits ---------------------------------------------------------------


@given(data=st.data())
@thorough
def test_twins_agree_on_proven_records_of_any_content(data):
    """Damage under a fitting CRC: what no flipped bit reaches."""
    log = bytearray(WORKQ.codec.encode(data.draw(WORKQ_RECORDS)))
    payload_at = 16 if log[15] < 0x80 else 17
    time, payload = log[:15], log[payload_at:-4]
    for part in (time, payload):
        if data.draw(st.booleans()):
            part[data.draw(st.integers(0, len(part) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(payload))) if data.draw(st.booleans()) else len(payload)
    cut = bytes(payload[:end]) + data.draw(st.binary(max_size=2))
    assert_twins(WORKQ, WORKQ.codec.header + timed_frame.write_frame(bytes(time), cut))


def numbered(*varints: bytes) -> bytes:
    """An add whose five numbers, ttr to max-fails, are these bytes."""
    time = timed_frame.cached_moment_bytes(0, -1)
    payload = b"\x01" + bytes(16) + b"\x01n" + b"".join(varints) + b"\x00" + time + time
    return WORKQ.codec.header + timed_frame.write_frame(time, payload)


VARINTS = [
    b"\x00",
    b"\x7f",
    b"\x80\x00",
    b"\x80" * 9 + b"\x00",
    b"\x80" * 9 + b"\x01",
    b"\x80" * 9 + b"\x02",
    b"\x80" * 10 + b"\x00",
    b"\xff" * 8 + b"\x7f",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x80",
    b"\xff\xff\xff\xff\x0f",  # as a priority the lowest
    b"\xfe\xff\xff\xff\x0f",  # the highest
    b"\x80\x80\x80\x80\x10",  # one more
    b"\x81\x80\x80\x80\x10",  # one less than the lowest
]


@pytest.mark.parametrize("place", range(5))
@pytest.mark.parametrize("varint", VARINTS, ids=bytes.hex)
def test_twins_agree_on_varints_at_their_edges(place, varint):
    numbers = [b"\x00"] * 5
    numbers[place] = varint
    assert_twins(WORKQ, numbered(*numbers))


@given(st.lists(st.sampled_from(VARINTS), min_size=4, max_size=6))
@plain
def test_twins_agree_on_varints_too_few_and_too_many(varints):
    assert_twins(WORKQ, numbered(*varints))


FIRST_S, FIRST_NANOS = divmod(-(2**63), 10**9)
LAST_S, LAST_NANOS = divmod(2**63 - 1, 10**9)
EDGE_SECONDS = st.builds(
    lambda edge, by: edge + by,
    st.sampled_from([0, FIRST_S, LAST_S, -UNIX_EPOCH_S]),
    st.integers(-2, 2),
)
EDGE_NANOS = st.builds(
    lambda edge, by: (edge + by) % 10**9,
    st.sampled_from([0, FIRST_NANOS, LAST_NANOS]),
    st.integers(-2, 2),
)


@given(EDGE_SECONDS, EDGE_NANOS, EDGE_SECONDS, EDGE_NANOS)
@example(FIRST_S, FIRST_NANOS, LAST_S, LAST_NANOS)
@example(FIRST_S, FIRST_NANOS - 1, LAST_S, LAST_NANOS + 1)
@thorough
def test_twins_agree_on_moments_at_the_edges_of_64_bits(due_s, due_ns, created_s, created_ns):
    due = timed_frame.cached_moment_bytes(due_s * 10**9 + due_ns, -1)
    created = timed_frame.cached_moment_bytes(created_s * 10**9 + created_ns, 60)
    payload = b"\x02" + bytes(16) + b"\x01n" + b"\x00" * 6 + due + created
    assert_twins(WORKQ, WORKQ.codec.header + timed_frame.write_frame(created, payload))


@given(st.binary(max_size=100), st.integers(0, 8))
@plain
def test_crc_is_that_of_the_library(data, skipped):
    array = as_bytes(data)
    at = min(skipped, len(data))
    assert crc32c(array, at, len(data)) == google_crc32c.value(data[at:])


@given(st.lists(st.text(max_size=20), min_size=1))
@plain
def test_kernel_finds_the_shards_of_a_sharded_dict(names: list[str]):
    raw = [name.encode(errors="surrogatepass") for name in names]
    lengths = np.array([*map(len, raw)])
    crcs = zlib_crcs(as_bytes(b"".join(raw)), np.cumsum(lengths) - lengths, lengths)
    sharded: ShardedDict[str, None] = ShardedDict()
    assert (crcs % SHARDS).tolist() == [*map(sharded.number_of, names)]
