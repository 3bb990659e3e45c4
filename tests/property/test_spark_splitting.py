"""However a log is cut and whatever has happened to it, its pieces give what one reader gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journeyman.logs import indexes
from journeyman.logs.damage import Damage
from journeyman.spark.source import piece_reader, splits
from journeyman.spark.source.splits import anchor_for, index_of
from tests.support.columnar_twins import CHECKPOINT, JOURNAL, WORKQ, ZTICK, Twins
from tests.support.drawn_kestrel import RECORDS as KESTREL_RECORDS
from tests.support.drawn_logs import draw_log
from tests.support.drawn_workq import RECORDS as WORKQ_RECORDS
from tests.support.drawn_ztick import records as ZTICK_RECORDS  # noqa: N812
from tests.support.effort import cases
from tests.support.indexing import index_file
from tests.support.spark.pieces import expected_items, items_of, log_file, options_of, pieces_of

LOGS = [
    pytest.param(ZTICK, ZTICK_RECORDS, id="ztick"),
    pytest.param(WORKQ, WORKQ_RECORDS, id="workq"),
    pytest.param(JOURNAL, KESTREL_RECORDS, id="journal"),
    pytest.param(CHECKPOINT, KESTREL_RECORDS, id="checkpoint"),
]
each_log = pytest.mark.parametrize(("twins", "records"), LOGS)
thorough = settings(deadline=None, max_examples=cases(40))


def assert_any_cuts_give_the_same(twins: Twins, log: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, max(len(log), 1)), max_size=6), label="cuts")
    if twins is CHECKPOINT:
        cuts = []  # always read whole
    window_bytes = data.draw(st.sampled_from([1, 7, 64, 1 << 20]), label="window")
    is_last = data.draw(st.booleans(), label="is the last file")
    with TemporaryDirectory() as directory:
        path = Path(directory) / "log"
        path.write_bytes(log)
        file = log_file(path, twins, is_last=is_last)
        with mock.patch.object(piece_reader, "WINDOW_BYTES", window_bytes):
            found = items_of(pieces_of(file, cuts), options_of(twins))
        assert found == expected_items(twins, log, file)


@each_log
@given(data=st.data())
@thorough
def test_pieces_give_every_record_once(twins: Twins, records: st.SearchStrategy[Any], data):
    assert_any_cuts_give_the_same(twins, draw_log(data, twins, records), data)


@each_log
@given(data=st.data())
@thorough
def test_pieces_of_a_cut_off_log(twins: Twins, records: st.SearchStrategy[Any], data):
    log = draw_log(data, twins, records)
    log = log[: data.draw(st.integers(0, len(log)))] + bytes(data.draw(st.sampled_from([0, 1, 50])))
    assert_any_cuts_give_the_same(twins, log, data)


@each_log
@given(data=st.data())
@thorough
def test_pieces_of_a_log_with_flipped_bits(twins: Twins, records: st.SearchStrategy[Any], data):
    log = bytearray(draw_log(data, twins, records))
    for _ in range(data.draw(st.integers(1, 3))):
        if log:
            log[data.draw(st.integers(0, len(log) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert_any_cuts_give_the_same(twins, bytes(log), data)


@each_log
@given(data=st.data())
@thorough
def test_pieces_of_a_log_with_stretches_replaced(twins: Twins, records: Any, data):
    log = draw_log(data, twins, records)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(log)))
        end = data.draw(st.integers(start, min(start + 20, len(log))))
        log = log[:start] + data.draw(st.binary(max_size=20)) + log[end:]
    assert_any_cuts_give_the_same(twins, log, data)


@pytest.mark.parametrize(("twins", "records"), LOGS[:3])
@given(data=st.data())
@settings(deadline=None, max_examples=cases(25))
def test_pieces_that_begin_at_marks_of_an_index(twins: Twins, records: Any, data):
    """Every mark is a boundary, and pieces that begin near marks give the same."""
    log = draw_log(data, twins, records)
    cuts = data.draw(st.lists(st.integers(0, max(len(log), 1)), max_size=6), label="cuts")
    with (
        TemporaryDirectory() as directory,
        mock.patch.object(indexes, "MARK_BYTES", data.draw(st.sampled_from([1, 60, 400]))),
        mock.patch.object(indexes, "MIN_INDEXED_BYTES", 1),
        mock.patch.object(splits, "HELD_BYTES", 0),  # nothing is damaged
    ):
        path = Path(directory) / "log"
        path.write_bytes(log)
        file, options = log_file(path, twins, is_last=False), options_of(twins)
        expected = expected_items(twins, log, file)
        index_file(path, twins.codec)
        pieces = []
        for piece in pieces_of(file, cuts):
            index = index_of(piece)
            has_damage = any(isinstance(item, Damage) for item in expected)
            assert (index is None) == has_damage
            mark = None if index is None else anchor_for(file, index, piece.begin)
            anchor = 0 if mark is None else mark.offset
            pieces.append(replace(piece, anchor=anchor, proof=mark))
        assert items_of(pieces, options) == expected
