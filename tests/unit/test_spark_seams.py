"""Parts that begin where entries seem to: right and proved, or wrong and found out."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from journeyman.columnar.kernels.boundaries import SEEKS
from journeyman.formats import workq, ztick
from journeyman.formats.workq import MAX_PAYLOAD_BYTES
from journeyman.logs.catalog import LogFile
from journeyman.logs.damage import Damage
from journeyman.spark.seams import PartsDoNotMeet, check_seams, seam_row
from journeyman.spark.source import piece_reader, splits
from journeyman.spark.source.dialects import SELF_EVIDENT
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.piece_reader import read_reduced
from journeyman.spark.source.splits import Seam, SplitContext
from tests.columnar_twins import WORKQ, ZTICK, Twins
from tests.spark_pieces import Item, expected_items, log_file, pieces_of
from tests.specimens import CREATED
from tests.specimens import WORKQ as WORKQ_SPECIMEN
from tests.specimens import ZTICK as ZTICK_SPECIMEN
from tests.unit.test_spark_splitting import quoted_logs

each_dialect = pytest.mark.parametrize(
    ("twins", "specimen"),
    [
        pytest.param(ZTICK, ZTICK_SPECIMEN, id="ztick"),
        pytest.param(WORKQ, WORKQ_SPECIMEN, id="workq"),
    ],
)


@pytest.fixture(autouse=True)
def _easily_convinced(monkeypatch):
    """As in a file that is much larger."""
    monkeypatch.setattr(piece_reader, "_LIKELY_BYTES", 100)


def options_of(twins: Twins, **changes: str) -> SourceOptions:
    given = {"path": "/", "payloads": "true", "reduce": "any", "seams": "true", **changes}
    return SourceOptions.parse(twins.codec.name, given)


def read_parts(file: LogFile, cuts: Iterable[int], options: SourceOptions) -> list[Item]:
    """The items of all parts; PartsDoNotMeet if they do not."""
    found: list[Item] = []
    seams: list[tuple[str, Seam]] = []
    for piece in pieces_of(file, cuts):
        for item in read_reduced(piece, options, stretches=False):
            if isinstance(item, Seam):
                seams.append((file.path, item))
            elif isinstance(item, Damage):
                found.append(item)
            else:
                assert not isinstance(item, splits.Stretch)
                found += item.batch.to_pylist()
    check_seams(reversed(seams))  # they come in any order
    return found


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@each_dialect
def test_any_cuts_of_a_good_log_are_guessed_right(twins, specimen, tmp_path):
    data = specimen.encode(specimen.records(12))
    file = log_file(write(tmp_path / "log", data), twins)
    expected = expected_items(twins, data, file)
    for cut in range(file.size + 1):
        assert read_parts(file, [cut, 2 * cut], options_of(twins)) == expected


@each_dialect
def test_nobody_walks_to_a_part_of_a_good_log(twins, specimen, tmp_path, monkeypatch):
    data = specimen.encode(specimen.records(40))
    file = log_file(write(tmp_path / "log", data), twins)

    def refuse(_self: object, anchor: int, target: int) -> int:
        assert anchor >= target, "walked"
        return anchor

    monkeypatch.setattr(piece_reader._Reading, "first_boundary", refuse)
    expected = expected_items(twins, data, file)
    assert read_parts(file, [500, 1000], options_of(twins)) == expected
    with pytest.raises(AssertionError, match="walked"):  # damage that is none would be raised
        read_parts(file, [500, 1000], options_of(twins, mode="FAILFAST"))


def test_nobody_walks_when_the_longest_payload_is_cut(tmp_path, monkeypatch):
    long = workq.JobFinished(CREATED, bytes(16), workq.Command.FAIL, bytes(MAX_PAYLOAD_BYTES))
    data = workq.HEADER + 3 * workq.CODEC.encode(long)
    file = log_file(write(tmp_path / "log", data), WORKQ)
    monkeypatch.setattr(piece_reader, "walk_of", lambda _dialect: None)
    monkeypatch.setattr(
        piece_reader._Reading, "first_boundary", lambda _self, anchor, _begin: anchor
    )
    expected = expected_items(WORKQ, data, file)
    assert read_parts(file, [file.size // 2], options_of(WORKQ)) == expected


@each_dialect
def test_damage_is_read_as_ever_or_the_parts_do_not_meet(twins, specimen, tmp_path):
    clean = specimen.encode(specimen.records(30))
    met = 0
    for at in range(0, len(clean), 7):
        data = clean[:at] + bytes((clean[at] ^ 0xFF,)) + clean[at + 1 :]
        file = log_file(write(tmp_path / "log", data), twins)
        for cut in (at - 40, at - 1, at + 1, at + 40):
            try:
                found = read_parts(file, [max(0, cut)], options_of(twins))
            except PartsDoNotMeet:
                continue
            met += 1
            assert found == expected_items(twins, data, file)
    assert met > len(clean) // 7  # of four times as many


def quoting_logs() -> list[tuple[Twins, bytes]]:
    """In a command of ztick there may be removals, which are plain text; in a result anything."""
    removals = 10 * ztick.CODEC.encode(ztick.JobRemoved("job.1"))
    rule = ztick.RuleSet("rule", "job.", ztick.Shell(removals.decode("ascii")))
    (workq_log,) = (data for twins, data in quoted_logs() if twins is WORKQ)
    return [(ZTICK, removals + ztick.CODEC.encode(rule) + removals), (WORKQ, workq_log)]


@pytest.mark.parametrize(("twins", "data"), quoting_logs(), ids=["ztick", "workq"])
def test_a_log_that_quotes_itself_is_found_out(twins, data, tmp_path):
    file = log_file(write(tmp_path / "log", data), twins)
    expected = expected_items(twins, data, file)
    wrong = 0
    for cut in range(0, file.size, 3):
        try:
            assert read_parts(file, [cut], options_of(twins)) == expected
        except PartsDoNotMeet:
            wrong += 1
    assert wrong > 0


def test_parts_meet_when_each_begins_where_the_one_before_it_ended():
    good = [("a", Seam(0, 10)), ("a", Seam(10, 25)), ("b", Seam(0, 7)), ("b", Seam(7, 9))]
    check_seams(good)
    check_seams(reversed(good))
    check_seams([])
    for wrong in (
        [*good[:1], ("a", Seam(11, 25))],
        [*good[:1], ("a", Seam(9, 25))],
        good[1:],  # the first is missing
        [*good, ("a", Seam(30, 31))],
    ):
        with pytest.raises(PartsDoNotMeet, match="a: "):
            check_seams(wrong)


def test_whole_files_have_no_seams(tmp_path):
    file = log_file(
        write(tmp_path / "log", ZTICK_SPECIMEN.encode(ZTICK_SPECIMEN.records(3))), ZTICK
    )
    (piece,) = pieces_of(file, [])
    items = read_reduced(piece, options_of(ZTICK), stretches=True)
    assert not any(isinstance(item, Seam) for item in items)


def test_the_row_of_a_seam_says_where():
    (row,) = seam_row(SplitContext("log", "log/1", 0), Seam(5, 9)).to_pylist()
    told = {"_log": "log", "_file": "log/1", "_offset": 5, "reached": 9, "kind": "seam"}
    assert told.items() <= row.items()


def test_what_may_be_guessed_is_what_can_be_sought():
    assert set(SEEKS) == SELF_EVIDENT
