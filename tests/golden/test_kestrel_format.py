"""The kestrel codec against journals and checkpoints that the original classes have read."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from journeyman.errors import BadHeader, EntryTooLarge, IncompleteEntry, InvalidData
from journeyman.formats.framing import Codec, Entry, Stop, scan
from journeyman.formats.kestrel import (
    READER,
    WRITER,
    ItemPut,
    ReadDone,
    ReadHead,
    Record,
    UnknownCommand,
)

DATA = Path(__file__).parent / "data" / "kestrel"
CODECS: dict[str, Codec[Record]] = {"writer": WRITER, "reader": READER}

# The original calls every fault corrupt; here an entry cut short is torn.
STOPS = {
    "eof": {Stop.EOF},
    "zero-byte": {Stop.ZERO_BYTE},
    "corrupt": {Stop.TORN, Stop.CORRUPT},
    "no-header": {Stop.BAD_HEADER},
    "bad-magic": {Stop.BAD_HEADER},
}
ERRORS = {
    "truncated entry": IncompleteEntry,
    "truncated header": IncompleteEntry,
    "No header in journal file": IncompleteEntry,
    "Not a journal file": BadHeader,
    "Not a bookmark file": BadHeader,
    "item too large": EntryTooLarge,
    "corrupted READ_DONE": InvalidData,
    "negative size": InvalidData,
    "no size word": InvalidData,
}


class Case(NamedTuple):
    described: dict[str, Any]
    data: bytes

    @property
    def codec(self) -> Codec[Record]:
        return CODECS[self.described["kind"]]


def cases() -> Iterator[Any]:
    for path in sorted(DATA.glob("*/case.json")):
        for described in json.loads(path.read_text())["files"]:
            data = (path.parent / described["name"]).read_bytes()
            yield pytest.param(Case(described, data), id=f"{path.parent.name}/{described['name']}")


CASES = list(cases())
CORRUPT = [case for case in CASES if case.values[0].described["end"]["reason"] == "corrupt"]


def data_of(directory: str) -> bytes:
    name: str = json.loads((DATA / directory / "case.json").read_text())["files"][0]["name"]
    return (DATA / directory / name).read_bytes()


def record_of(described: dict[str, Any], data: bytes) -> Record:
    if described["command"] == "PUT":
        item = b64decode(described["data_b64"])
        assert len(item) == described["data_size"]
        return ItemPut(
            item_id=described["item_id"],
            add_time_ms=described["add_time_ms"],
            expire_time_ms=described["expire_time_ms"],
            error_count=described["error_count"],
            data=item,
        )
    if described["command"] == "READ_HEAD":
        return ReadHead(described["id"])
    if described["command"] == "READ_DONE":
        return ReadDone(tuple(described["ids"]))
    # An unknown command is described by its sizes alone; its bytes are those in the file.
    header_at = described["offset"] + 1
    data_at = header_at + 4 * described["header_words"]
    command_byte = int(described["command_byte"], 16)
    assert described["code"] == command_byte >> 4
    return UnknownCommand(
        command_byte,
        data[header_at:data_at],
        data[data_at : data_at + described["data_size"]],
    )


def test_the_golden_journals_are_here():
    assert len(CASES) == 71
    assert len(CORRUPT) == 10


@pytest.mark.parametrize("case", CASES)
def test_every_entry_is_read_as_described_up_to_the_described_end(case: Case):
    described, data = case
    assert hashlib.sha256(data).hexdigest() == described["sha256"]
    entries, ending = scan(case.codec, data)
    assert entries == [
        Entry(r["offset"], r["length"], record_of(r, data)) for r in described["records"]
    ]
    end = described["end"]
    assert ending.stop in STOPS[end["reason"]]
    assert ending.offset == end["offset"]
    if "message" in end:
        assert ending.error is not None
        assert ending.error.reason == end["message"]
        assert type(ending.error) is ERRORS[end["message"].split(":")[0]]
    else:
        assert ending.error is None


@pytest.mark.parametrize("case", CASES)
def test_every_entry_is_written_back_byte_for_byte(case: Case):
    entries, _ = scan(case.codec, case.data)
    for entry in entries:
        assert case.codec.encode(entry.record) == case.data[entry.offset : entry.end]


@pytest.mark.parametrize("case", CORRUPT)
def test_what_the_original_calls_truncated_is_a_torn_tail(case: Case):
    end = case.described["end"]
    truncated = end["message"].startswith("truncated")
    assert case.codec.is_torn(case.data, end["offset"]) == truncated


@pytest.mark.parametrize("directory", ["w14_zero_tail", "w23_header_only_zero_tail"])
def test_the_zeros_behind_the_last_entry_are_a_torn_tail(directory: str):
    data = data_of(directory)
    _, ending = scan(WRITER, data)
    assert ending.stop is Stop.ZERO_BYTE
    assert WRITER.is_torn(data, ending.offset)


def test_a_put_whose_first_byte_was_never_written_is_a_torn_tail():
    data = data_of("w15_torn_put_first_byte_zero")
    _, ending = scan(WRITER, data)
    assert ending.stop is Stop.ZERO_BYTE
    assert WRITER.is_torn(data, ending.offset)


def test_reading_goes_on_behind_a_damaged_put():
    data = bytearray(data_of("w10_put_no_expire"))
    entries, _ = scan(WRITER, data)
    first, second, third = entries
    data[second.offset] = 0x87  # a PUT of seven words does not exist
    assert WRITER.resync(data, second.offset) == third.offset
    data[first.offset] = 0x87
    assert WRITER.resync(data, first.offset) == third.offset
