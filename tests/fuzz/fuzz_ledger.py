"""Fuzz target: the ledger's codec and all that reads its records, on damaged segments.

Checksums of half of them are put right, so that the JSON inside is looked at.
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

from journeyman.engines.workq.ledger_entries import FAMILIES, LoadedExtensions
from journeyman.engines.ztick.timetables import TimetableLoader
from journeyman.folds import ledger as fold
from journeyman.formats.framing import Entry, Stop, scan
from journeyman.formats.ledger import (
    CODEC,
    HEADER,
    Body,
    JobOptionsSet,
    NewerRecord,
    Record,
    TimetableSet,
    UnparsedRecord,
    UnparsingLedger,
    is_state,
)
from journeyman.formats.timed_frame import Instant
from tests.fuzz.fuzz_workq import check_salvage, with_good_checksums
from tests.fuzz.runner import run

DATA = Path(__file__).parents[1] / "golden" / "data" / "ledger"
RECORDS_A_PIECE = 2
NOW = Instant(1_795_000_000_000_000_000, 60)


def corpus() -> list[bytes]:
    pieces: dict[bytes, None] = {}  # a set that keeps its order
    for path in sorted(DATA.glob("*/*.ledger")):
        entries, _ = scan(CODEC, segment := path.read_bytes())
        for first in range(0, len(entries), RECORDS_A_PIECE):
            last = entries[min(first + RECORDS_A_PIECE, len(entries)) - 1]
            pieces[HEADER + segment[entries[first].offset : last.end]] = None
    odd: Body = {"n": -1.5e300, "deep": [[{"a": {}}], None, True], "text": '\\ " \udcff é 😀'}
    unusual: tuple[Record, ...] = (
        TimetableSet(NOW, "a@b", odd),
        JobOptionsSet(NOW, "id", {"key": "k", "touched": 1}),
    )
    pieces[HEADER + b"".join(map(CODEC.encode, unusual))] = None
    return [*pieces, HEADER + bytes(64)]


def check(data: bytes) -> None:
    """Only FormatError comes out; what is read can be written; all readers agree and are total."""
    if zlib.crc32(data) & 1:
        data = with_good_checksums(data)
    entries, ending = scan(CODEC, data)
    for entry in entries:
        check_entry(data, entry)
    if ending.stop is not Stop.BAD_HEADER:
        torn = CODEC.is_torn(data, ending.offset)
        assert not torn or ending.stop in (Stop.TORN, Stop.CORRUPT)
        check_salvage(CODEC, data, ending.offset)
    check_loaders(data, entries)


def check_entry(data: bytes, entry: Entry[Record]) -> None:
    """Written back, a record is the same one; of a newer version, the same bytes."""
    again = CODEC.decode(CODEC.encode(entry.record), 0)
    assert again is not None
    assert again.record == entry.record
    if isinstance(entry.record, NewerRecord):
        assert entry.record.payload in data[entry.offset : entry.end]


def check_loaders(data: bytes, entries: list[Entry[Record]]) -> None:
    records = [entry.record for entry in entries]
    states = fold.replay(records)
    assert fold.replay(states.values()) == states
    extensions, timetables = LoadedExtensions(), TimetableLoader()
    for state in states.values():
        if fold.key_of(state)[0] in FAMILIES:
            extensions.add(state)
    unparsing = UnparsingLedger(timetables.unparsed_kinds)
    unparsed, _ = scan(unparsing, data)
    assert [entry.offset for entry in unparsed] == [entry.offset for entry in entries]
    plain = TimetableLoader()
    for entry, whole in zip(unparsed, records, strict=True):
        record: Record | UnparsedRecord = entry.record
        assert isinstance(record, UnparsedRecord) or record == whole
        assert timetables.absorb(record) == plain.absorb(whole) or not is_state(whole)
    assert timetables.live_records == plain.live_records


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])
