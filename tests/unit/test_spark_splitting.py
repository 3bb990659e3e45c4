"""Splits at every boundary and at every byte between: the pieces of a file are the file."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from journeyman.errors import LogError
from journeyman.formats import kestrel
from journeyman.formats.framing import scan
from journeyman.logs.damage import Damage
from journeyman.spark.source import piece_reader
from journeyman.spark.source.piece_reader import first_boundary
from tests.support.columnar_twins import CHECKPOINT, JOURNAL, WORKQ, ZTICK, Twins
from tests.support.spark.pieces import expected_items, items_of, log_file, options_of, pieces_of
from tests.support.spark.quoted_logs import quoted_logs
from tests.support.specimens import KESTREL
from tests.support.specimens import WORKQ as WORKQ_SPECIMEN
from tests.support.specimens import ZTICK as ZTICK_SPECIMEN

GOLDEN = Path(__file__).parents[1] / "golden" / "data"
SPECIMENS = [
    pytest.param(ZTICK, ZTICK_SPECIMEN, id="ztick"),
    pytest.param(WORKQ, WORKQ_SPECIMEN, id="workq"),
    pytest.param(JOURNAL, KESTREL, id="kestrel"),
]
each_dialect = pytest.mark.parametrize(("twins", "specimen"), SPECIMENS)


def golden_files() -> list[tuple[Twins, Path]]:
    found = [(ZTICK, path) for path in sorted(GOLDEN.glob("ztick/*.log"))]
    found += [(WORKQ, path) for path in sorted(GOLDEN.glob("workq/**/*.log"))]
    for path in sorted(GOLDEN.glob("kestrel/*/*.*")):
        if path.suffix != ".json":
            found.append((CHECKPOINT if ".read." in path.name else JOURNAL, path))
    return found


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("twins", "path"),
    [
        pytest.param(twins, path, id=f"{path.parent.name}/{path.name}")
        for twins, path in golden_files()
    ],
)
def test_golden_files_read_in_pieces_are_the_local_reading(twins, path):
    data = path.read_bytes()
    for is_last in (True, False):
        file = log_file(path, twins, is_last=is_last)
        expected = expected_items(twins, data, file)
        cuts = [] if twins is CHECKPOINT else range(0, file.size, max(1, file.size // 50))
        assert items_of(pieces_of(file, cuts), options_of(twins)) == expected
        assert items_of(pieces_of(file, []), options_of(twins)) == expected


@each_dialect
def test_any_single_cut_of_a_small_file_gives_the_same_rows(twins, specimen, tmp_path):
    data = specimen.encode(specimen.records(6))
    file = log_file(write(tmp_path / "log", data), twins)
    expected = expected_items(twins, data, file)
    assert len(expected) == 6
    options = options_of(twins)
    for cut in range(file.size + 1):
        assert items_of(pieces_of(file, [cut]), options) == expected


@each_dialect
def test_a_cut_at_every_byte_at_once_gives_the_same_rows(twins, specimen, tmp_path):
    data = specimen.encode(specimen.records(8))
    file = log_file(write(tmp_path / "log", data), twins)
    pieces = list(pieces_of(file, range(file.size)))
    assert len(pieces) == file.size
    assert items_of(pieces, options_of(twins)) == expected_items(twins, data, file)


@each_dialect
def test_each_record_is_in_the_piece_that_it_begins_in(twins, specimen, tmp_path):
    data = specimen.encode(specimen.records(12))
    file = log_file(write(tmp_path / "log", data), twins)
    for piece in pieces_of(file, [50, 100, 150, 151, 200]):
        for row in items_of([piece], options_of(twins)):
            assert piece.begin <= row["offset"] < piece.end


@each_dialect
def test_damage_in_the_middle_is_in_one_piece_and_the_rest_is_as_read_locally(
    twins, specimen, tmp_path
):
    clean = specimen.encode(specimen.records(6))
    for at in range(0, len(clean), 2):
        data = clean[:at] + bytes((clean[at] ^ 0xFF,)) + clean[at + 1 :]
        file = log_file(write(tmp_path / "log", data), twins)
        expected = expected_items(twins, data, file)
        cuts = [at - 40, at - 1, at, at + 1, at + 40, at + 80]
        found = items_of(pieces_of(file, [max(0, cut) for cut in cuts]), options_of(twins))
        assert found == expected


@pytest.mark.parametrize(("twins", "data"), quoted_logs(), ids=["ztick", "workq", "kestrel"])
def test_payloads_that_quote_log_entries_fool_no_split(twins, data, tmp_path):
    file = log_file(write(tmp_path / "log", data), twins)
    expected = expected_items(twins, data, file)
    assert not any(isinstance(item, Damage) for item in expected)
    for cut in range(0, file.size, 3):
        assert items_of(pieces_of(file, [cut]), options_of(twins)) == expected


@pytest.mark.parametrize("window_bytes", [1, 5, 30, 200])
@each_dialect
def test_windows_of_any_size_give_the_same_rows(
    twins, specimen, window_bytes, tmp_path, monkeypatch
):
    monkeypatch.setattr(piece_reader, "WINDOW_BYTES", window_bytes)
    data = specimen.encode(specimen.records(40)) + b"\x01torn"
    file = log_file(write(tmp_path / "log", data), twins)
    expected = expected_items(twins, data, file)
    for cut in (0, 13, 77, 300):
        assert items_of(pieces_of(file, [cut]), options_of(twins)) == expected


@each_dialect
def test_damage_longer_than_a_window_is_one_damage(twins, specimen, tmp_path, monkeypatch):
    monkeypatch.setattr(piece_reader, "WINDOW_BYTES", 64)
    records = specimen.records(12)
    data = specimen.encode(records[:6]) + b"\xee" * 1000 + specimen.encode(records[6:])
    file = log_file(write(tmp_path / "log", data), twins)
    expected = expected_items(twins, data, file)
    assert sum(isinstance(item, Damage) for item in expected) == 1
    for cut in (100, 300, 700, 1200):
        assert items_of(pieces_of(file, [cut]), options_of(twins)) == expected


def test_only_the_last_file_of_a_log_may_be_torn(tmp_path):
    torn = ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(3))[:-2]
    path = write(tmp_path / "log", torn)
    last = items_of(pieces_of(log_file(path, ZTICK), []), options_of(ZTICK))
    closed = items_of(pieces_of(log_file(path, ZTICK, is_last=False), []), options_of(ZTICK))
    assert len(last) == 2
    assert closed[:2] == last
    assert isinstance(closed[2], Damage)
    assert closed[2].kind == "torn"


def test_zeros_at_the_end_of_a_mapped_journal_are_no_damage(tmp_path):
    data = KESTREL.encode(KESTREL.records(3)) + bytes(100_000)
    file = log_file(write(tmp_path / "jobs.1", data), JOURNAL, is_last=False)
    found = items_of(pieces_of(file, [50, 90, 5_000, 50_000]), options_of(JOURNAL))
    assert [item["item_id"] for item in found] == [1, 2, 3]


def test_what_was_appended_since_planning_is_not_read(tmp_path):
    path = write(tmp_path / "log", ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(3)))
    file = log_file(path, ZTICK)
    with path.open("ab") as log:
        log.write(ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(2)))
    assert len(items_of(pieces_of(file, [20]), options_of(ZTICK))) == 3


def test_a_file_that_became_shorter_is_an_error_and_not_fewer_rows(tmp_path):
    path = write(tmp_path / "log", ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(3)))
    file = log_file(path, ZTICK)
    with path.open("r+b") as log:
        log.truncate(10)
    with pytest.raises(LogError, match="was truncated while"):
        items_of(pieces_of(file, []), options_of(ZTICK))


def test_a_file_replaced_since_planning_is_an_error_and_not_other_rows(tmp_path):
    path = write(tmp_path / "log", ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(3)))
    file = log_file(path, ZTICK)
    write(tmp_path / "new", path.read_bytes()).rename(path)
    with pytest.raises(LogError, match="was replaced"):
        items_of(pieces_of(file, []), options_of(ZTICK))


def test_a_checkpoint_replaced_since_planning_is_read_as_it_is_now(tmp_path):
    path = write(tmp_path / "q.read.", kestrel.READER.header)
    file = log_file(path, CHECKPOINT)
    head = kestrel.READER.encode(kestrel.ReadHead(7))
    write(tmp_path / "new", kestrel.READER.header + head).rename(path)
    assert [row["item_id"] for row in items_of(pieces_of(file, []), options_of(CHECKPOINT))] == [7]


@pytest.mark.parametrize(("ignore", "rows"), [("true", 0), ("false", None)])
def test_a_file_that_vanished_since_planning(tmp_path, ignore, rows):
    path = write(tmp_path / "log", ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(3)))
    file = log_file(path, ZTICK)
    path.unlink()
    options = options_of(ZTICK, ignoreMissingFiles=ignore)
    if rows is None:
        with pytest.raises(LogError, match="is gone since the query was planned"):
            items_of(pieces_of(file, []), options)
    else:
        assert items_of(pieces_of(file, [20]), options) == []


@each_dialect
def test_the_first_boundary_behind_any_byte_is_where_the_next_entry_begins(
    twins, specimen, tmp_path
):
    data = specimen.encode(specimen.records(12))
    file = log_file(write(tmp_path / "log", data), twins)
    entries, ending = scan(twins.codec, data)
    boundaries = [entry.offset for entry in entries] + [ending.offset]
    for piece in pieces_of(file, range(1, file.size)):
        if piece.begin:
            expected = next(each for each in boundaries if each >= piece.begin)
            assert first_boundary(piece, options_of(twins)) == expected


def test_pieces_are_small_when_pickled(tmp_path):
    path = write(tmp_path / "log", b"")
    piece = next(pieces_of(log_file(write(path, bytes(10)), ZTICK), []))
    assert len(pickle.dumps(piece)) < 1000
    assert pickle.loads(pickle.dumps(piece)) == piece


def test_the_golden_lane_is_not_empty():
    assert len(golden_files()) > 60
    assert json.loads((GOLDEN / "overhop-vectors.json").read_text())
