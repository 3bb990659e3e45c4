"""The workq codec against segments written, and judged, by the original server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from journeyman.errors import (
    BadHeader,
    ChecksumMismatch,
    FormatError,
    IncompleteEntry,
    InvalidData,
)
from journeyman.formats.framing import Entry, Stop, iter_entries, scan
from journeyman.formats.timed_frame import Instant
from journeyman.formats.workq import (
    CODEC,
    Command,
    JobAdded,
    JobEvent,
    JobFinished,
    Record,
    UnknownCommand,
)

DATA = Path(__file__).parent / "data" / "workq"
DIRECTORIES = sorted(path.parent.name for path in DATA.glob("*/description.json"))

# How each fault of the original's looks here: why reading stops, and with which error.
FAULTS: dict[str, tuple[Stop, type[FormatError]]] = {
    "d-empty-file": (Stop.BAD_HEADER, IncompleteEntry),
    "d-header-short": (Stop.BAD_HEADER, IncompleteEntry),
    "d-truncated-crc": (Stop.TORN, IncompleteEntry),
    "d-truncated-payload": (Stop.TORN, IncompleteEntry),
    "d-truncated-time": (Stop.TORN, IncompleteEntry),
    "e-bad-magic": (Stop.BAD_HEADER, BadHeader),
    "e-bad-version": (Stop.BAD_HEADER, BadHeader),
    "e-crc-flipped-last": (Stop.CORRUPT, ChecksumMismatch),
    "e-crc-flipped-middle": (Stop.CORRUPT, ChecksumMismatch),
    "e-payload-flipped": (Stop.CORRUPT, ChecksumMismatch),
    "x-crc-ieee": (Stop.CORRUPT, ChecksumMismatch),
    "x-crc-little-endian": (Stop.CORRUPT, ChecksumMismatch),
    "x-empty-payload": (Stop.CORRUPT, InvalidData),
    "x-trailing-garbage": (Stop.CORRUPT, InvalidData),
}


# The original refuses a command that it does not know; here it is kept and stepped over.
NEWER = {"x-unknown-type"}


def description(directory: str) -> dict[str, Any]:
    text = (DATA / directory / "description.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def segment(directory: str, file: str = "000000001.log") -> bytes:
    return (DATA / directory / "cmdlog" / file).read_bytes()


def record_of(described: dict[str, Any]) -> Record:
    logged = Instant(described["logged_ns"], described["logged_offset"])
    job_id = UUID(described["id"]).bytes
    command = Command(described["type"])
    assert command.word == described["cmd"]
    if "result_hex" in described:
        return JobFinished(logged, job_id, command, bytes.fromhex(described["result_hex"]))
    if "name" not in described:
        return JobEvent(logged, job_id, command)
    time = None
    if described["time_ns"] is not None:
        time = Instant(described["time_ns"], described["time_offset"])
    return JobAdded(
        logged=logged,
        job_id=job_id,
        name=described["name"],
        ttr_ms=described["ttr"],
        ttl_ms=described["ttl"],
        priority=described["priority"],
        max_attempts=described["max_attempts"],
        max_fails=described["max_fails"],
        payload=bytes.fromhex(described["payload_hex"]),
        time=time,
        created=Instant(described["created_ns"], described["created_offset"]),
        command=command,
        none_offset_min=described["time_offset"] if time is None else -1,
    )


def entries_of(described_segment: dict[str, Any]) -> list[Entry[Record]]:
    return [
        Entry(described["offset"], described["length"], record_of(described))
        for described in described_segment["records"]
    ]


def test_the_golden_logs_are_here():
    assert len(DIRECTORIES) == 33


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_every_record_is_read_as_described_up_to_the_described_fault(directory: str):
    described = description(directory)
    fault = described["fault"] if directory not in NEWER else None
    assert (fault is not None) == (directory in FAULTS)
    for described_segment in described["segments"]:
        file = described_segment["file"]
        data = segment(directory, file)
        assert len(data) == described_segment["size"]
        entries, ending = scan(CODEC, data)
        newer = entries.pop() if directory in NEWER else None
        assert entries == entries_of(described_segment)
        assert newer is None or isinstance(newer.record, UnknownCommand)
        if fault is not None and fault["file"] == file:
            stop, error = FAULTS[directory]
            assert (ending.stop, ending.offset) == (stop, fault["offset"])
            assert type(ending.error) is error
            assert ending.error.offset == fault["offset"]
        else:
            assert (ending.stop, ending.offset) == (Stop.EOF, len(data))


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_every_record_is_written_back_byte_for_byte(directory: str):
    for described_segment in description(directory)["segments"]:
        data = segment(directory, described_segment["file"])
        described = described_segment["records"]
        for found, entry in zip(described, entries_of(described_segment), strict=True):
            written = CODEC.encode(entry.record)
            assert written == data[entry.offset : entry.end]
            assert written[-4:].hex() == found["crc"]


@pytest.mark.parametrize("directory", ["e-crc-flipped-middle", "e-payload-flipped"])
def test_the_records_behind_a_damaged_one_are_found_again(directory: str):
    whole = entries_of(description("a-all-types")["segments"][0])
    data = segment(directory)
    offset = description(directory)["fault"]["offset"]
    damaged = next(entry for entry in whole if entry.offset == offset)
    behind = [entry for entry in whole if entry.offset > offset]
    assert behind
    assert CODEC.resync(data, offset) == damaged.end
    assert CODEC.skip(data, offset) == damaged.end
    assert list(iter_entries(CODEC, data, damaged.end)) == behind


@pytest.mark.parametrize("directory", ["x-empty-payload", "x-trailing-garbage"])
def test_an_unreadable_record_with_a_good_checksum_is_stepped_over(directory: str):
    data = segment(directory)
    offset = description(directory)["fault"]["offset"]
    assert CODEC.skip(data, offset) == len(data)
    assert CODEC.resync(data, offset) == offset
    good = segment("a-all-types")[len(CODEC.header) :]
    assert CODEC.skip(data + good, offset) == len(data)


@pytest.mark.parametrize(
    "directory", ["d-truncated-crc", "d-truncated-payload", "d-truncated-time"]
)
def test_a_truncated_tail_is_not_corruption(directory: str):
    data = segment(directory)
    offset = description(directory)["fault"]["offset"]
    assert CODEC.is_torn(data, offset)
    assert CODEC.skip(data, offset) is None
    assert CODEC.resync(data, offset) is None


@pytest.mark.parametrize("directory", ["x-crc-ieee", "x-crc-little-endian", "e-crc-flipped-last"])
def test_a_wrong_checksum_is_not_a_truncated_tail(directory: str):
    data = segment(directory)
    offset = description(directory)["fault"]["offset"]
    assert not CODEC.is_torn(data, offset)
    assert CODEC.resync(data, offset) is None
