"""Columnar on the golden files: the same rows and the same stop as the codecs."""

from __future__ import annotations

import pytest

from tests.support.columnar_twins import CHECKPOINT, JOURNAL, LEDGER, WORKQ, ZTICK, assert_twins
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
