"""The ztick codec against logs of the original and what the original says is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from journeyman.errors import EntryTooLarge, IncompleteEntry, InvalidData
from journeyman.formats.framing import Stop, iter_entries, scan
from journeyman.formats.ztick import (
    CODEC,
    Direct,
    JobRemoved,
    JobSet,
    Record,
    RuleRemoved,
    RuleSet,
    Runner,
    Shell,
    Status,
    decode_payload,
    frames,
)

DATA = Path(__file__).parent / "data" / "ztick"
LOGS = sorted(DATA.glob("*.log"))
WHOLE = [p for p in LOGS if not p.stem.startswith(("e1", "e3", "e4", "g2"))]
RUNNER_KINDS = {"Shell", "Amqp", "Direct", "Awf", "Http", "Redis"}


def golden(name: str) -> bytes:
    return (DATA / f"{name}.log").read_bytes()


def stem(path: Path) -> str:
    return path.stem


def described(record: Record) -> dict[str, Any]:
    """A record in the words of the original's JSON dump."""
    if isinstance(record, JobSet):
        return {
            "type": "set",
            "identifier": record.identifier,
            "execution": record.execution_ns,
            "status": record.status.word,
        }
    if isinstance(record, RuleSet):
        return {
            "type": "rule_set",
            "identifier": record.identifier,
            "pattern": record.pattern,
            "runner": described_runner(record.runner),
        }
    kind = "remove" if isinstance(record, JobRemoved) else "remove_rule"
    return {"type": kind, "identifier": record.identifier}


def described_runner(runner: Runner) -> dict[str, Any]:
    fields = {name: getattr(runner, name) for name in runner.__slots__}
    lists = {k: list(v) if isinstance(v, tuple) else v for k, v in fields.items()}
    return {"type": type(runner).__name__.lower(), **lists}


@pytest.mark.parametrize("path", LOGS, ids=stem)
def test_records_are_what_the_original_dumps(path: Path):
    lines = path.with_suffix(".dump.jsonl").read_text().splitlines()
    entries, _ = scan(CODEC, path.read_bytes())
    assert [described(e.record) for e in entries] == [json.loads(line) for line in lines]


@pytest.mark.parametrize("path", LOGS, ids=stem)
def test_every_entry_is_written_back_byte_for_byte(path: Path):
    data = path.read_bytes()
    for entry in scan(CODEC, data)[0]:
        assert CODEC.encode(entry.record) == data[entry.offset : entry.end]


@pytest.mark.parametrize("path", WHOLE, ids=stem)
def test_undamaged_log_is_read_to_its_last_byte(path: Path):
    data = path.read_bytes()
    _, ending = scan(CODEC, data)
    assert (ending.stop, ending.offset) == (Stop.EOF, len(data))


def test_golden_log_holds_every_type_and_every_runner():
    records = [e.record for e in scan(CODEC, golden("a_all_entry_types"))[0]]
    assert {type(r) for r in records} == {JobSet, RuleSet, JobRemoved, RuleRemoved}
    assert {type(r.runner).__name__ for r in records if isinstance(r, RuleSet)} == RUNNER_KINDS


@pytest.mark.parametrize(
    ("name", "needed"), [("e1_truncated_in_frame", 22), ("e3_truncated_after_header", 22)]
)
def test_truncated_log_ends_torn_behind_its_whole_records(name: str, needed: int):
    data = golden(name)
    entries, ending = scan(CODEC, data)
    assert [e.record.identifier for e in entries] == ["torn.0", "torn.1", "torn.2"]
    assert (ending.stop, ending.offset) == (Stop.TORN, 66)
    assert isinstance(ending.error, IncompleteEntry)
    assert ending.error.needed == needed
    assert CODEC.is_torn(data, 66)


def test_frame_glued_to_a_torn_one_is_not_taken_for_a_torn_tail():
    data = golden("e4_torn_then_appended")
    _, ending = scan(CODEC, data)
    assert ending.offset == 88
    assert not CODEC.is_torn(data, ending.offset)
    assert CODEC.skip(data, ending.offset) is None


def test_resync_inside_the_torn_entry_saves_all_that_was_appended_later():
    data = golden("e4_torn_then_appended")
    start = CODEC.resync(data, 66 + 1)
    assert start == 83  # five bytes before the torn entry seems to end
    saved = [e.record for e in iter_entries(CODEC, data, start)]
    expected = [JobSet(f"after.{i}", 4_000_000_000_000_000_000, Status.PLANNED) for i in range(3)]
    assert saved == expected


def test_resync_behind_the_torn_entry_saves_the_rest():
    data = golden("e4_torn_then_appended")
    start = CODEC.resync(data, 88)
    assert start is not None
    saved = [e.record.identifier for e in iter_entries(CODEC, data, start)]
    assert saved == ["after.1", "after.2"]


def test_huge_length_is_corruption_and_the_job_behind_it_is_found():
    data = golden("g2_huge_length_synthetic")
    _, ending = scan(CODEC, data)
    assert (ending.stop, ending.offset) == (Stop.CORRUPT, 17)
    assert isinstance(ending.error, EntryTooLarge)
    assert not CODEC.is_torn(data, 17)
    assert CODEC.skip(data, 17) is None
    assert CODEC.resync(data, 17) == 21
    assert [e.record.identifier for e in iter_entries(CODEC, data, 21)] == ["b"]


@pytest.mark.parametrize("path", LOGS, ids=stem)
def test_frames_are_walked_as_the_original_walks_them(path: Path):
    data = path.read_bytes()
    walked = list(frames(data))
    lines = path.with_suffix(".dump.jsonl").read_text().splitlines()
    assert [described(decode_payload(p, at)) for at, p in walked] == [json.loads(s) for s in lines]
    end = walked[-1][0] + 4 + len(walked[-1][1]) if walked else 0
    warning = path.with_suffix(".dump.stderr")
    ignored = f"warning: partial trailing frame ({len(data) - end} bytes) ignored\n"
    assert (warning.read_text() if warning.exists() else "") == (ignored if end < len(data) else "")


def test_frames_step_over_what_cannot_be_decoded():
    good = CODEC.encode(JobRemoved("a"))
    bad = bytes.fromhex("00000002 0700")
    assert [offset for offset, _ in frames(good + bad + good + b"\0\0")] == [0, 8, 14]
    with pytest.raises(InvalidData) as caught:
        decode_payload(b"", 99)
    assert caught.value.offset == 99


@pytest.mark.parametrize(
    ("hex_bytes", "record"),
    [
        (
            "00000010 00 0004 746f746f 1647bb5ceee15000 00",
            JobSet("toto", 1_605_457_800_000_000_000, Status.PLANNED),
        ),
        (
            "00000011 01 0001 74 0004 746f746f 00 0004 74697469",
            RuleSet("t", "toto", Shell("titi")),
        ),
        ("00000007 02 0004 746f746f", JobRemoved("toto")),
        ("00000004 03 0001 74", RuleRemoved("t")),
        (
            "00000015 01 0001 74 0001 78 02 0004 2f622f78 0002 0001 2d 0000",
            RuleSet("t", "x", Direct("/b/x", ("-", ""))),
        ),
    ],
)
def test_bytes_of_the_documented_examples(hex_bytes: str, record: Record):
    data = bytes.fromhex(hex_bytes)
    entry = CODEC.decode(data, 0)
    assert entry is not None
    assert entry.record == record
    assert CODEC.encode(record) == data
    page = Path(__file__).parents[2] / "docs" / "formats" / "ztick.md"
    assert hex_bytes in page.read_text()
