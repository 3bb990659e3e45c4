"""Columnar on the golden files: the same rows and the same stop as the codecs."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from journeyman.columnar.keyspace import decode
from tests.support.columnar_twins import CHECKPOINT, JOURNAL, LEDGER, WORKQ, ZTICK, assert_twins
from tests.support.drawn_logs import assert_same_keys
from tests.support.golden_logs import DATA, KESTREL_FILES, WORKQ_SEGMENTS, ZTICK_LOGS, relative

SIZES = [1, 2, 65_536]


def test_the_golden_files_are_there():
    assert len(ZTICK_LOGS) >= 13
    assert len(WORKQ_SEGMENTS) >= 40
    assert len(KESTREL_FILES) >= 60


@pytest.mark.parametrize("path", ZTICK_LOGS, ids=relative)
def test_ztick_logs_are_read_as_the_codec_reads_them(path):
    for size in SIZES:
        assert_twins(ZTICK, path.read_bytes(), max_records=size)


@pytest.mark.parametrize("path", WORKQ_SEGMENTS, ids=relative)
def test_workq_segments_are_read_as_the_codec_reads_them(path):
    for size in SIZES:
        assert_twins(WORKQ, path.read_bytes(), max_records=size)


@pytest.mark.parametrize("path", sorted(DATA.glob("ledger/*/*.ledger")), ids=relative)
def test_ledger_segments_are_read_as_the_codec_reads_them(path):
    for size in SIZES:
        assert_twins(LEDGER, path.read_bytes(), max_records=size)


@pytest.mark.parametrize("path", KESTREL_FILES, ids=relative)
def test_kestrel_files_are_read_as_the_codecs_read_them(path):
    """As what they are and as what they are not: then the header is refused."""
    for twins in (JOURNAL, CHECKPOINT):
        for size in SIZES:
            assert_twins(twins, path.read_bytes(), max_records=size)


def test_overhop_keys_are_read_as_the_codec_reads_them():
    steps = json.loads((DATA / "overhop-vectors.json").read_text())["steps"]
    pairs = [(bytes.fromhex(kv["key_hex"]), kv["value"]) for step in steps for kv in step["kv"]]
    raw = [key for key, _ in pairs]
    values = [
        bytes.fromhex(value) if key.startswith(b"v1:q_status:") else value.encode()
        for key, value in pairs
    ]
    assert_same_keys(raw, values)
    kinds = decode.decode(pa.array(raw, pa.binary())).column("kind")
    assert kinds.null_count == 0
    assert set(kinds.to_pylist()) == set(range(6))
