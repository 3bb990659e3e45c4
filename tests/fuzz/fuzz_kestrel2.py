"""Fuzz target: journals of kestrel 1.x and 2.x, damaged: decoded, folded, replayed."""

from __future__ import annotations

import sys
from pathlib import Path

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.folds.kestrel2 import OldQueue
from journeyman.formats.framing import scan
from journeyman.formats.kestrel2 import CODEC, MAX_ITEM_BYTES, AddItem, begins_as_journal
from journeyman.logs.damage import Damage, read_past_damage
from tests.fuzz.runner import run

DATA = Path(__file__).parents[1] / "golden" / "data" / "kestrel2"
MAX_ENTRY_BYTES = MAX_ITEM_BYTES + 1 + 4 + 4 + 16


def corpus() -> list[bytes]:
    files = [path.read_bytes() for path in sorted(DATA.glob("*/*")) if path.name != "case.json"]
    return [data for data in dict.fromkeys(files) if data]


def check(data: bytes) -> None:
    """Only FormatError comes out, what is read is what would be written, and nothing is lost."""
    entries, ending = scan(CODEC, data)
    assert b"".join(CODEC.encode(entry.record) for entry in entries) == data[: ending.offset]
    if isinstance(ending.error, IncompleteEntry):
        assert len(data) - ending.offset < ending.error.needed <= MAX_ENTRY_BYTES
        assert CODEC.is_torn(data, ending.offset)
    begins_as_journal(data)
    check_past_damage(data)
    check_salvage(data)


def check_past_damage(data: bytes) -> None:
    """Entries and damages stand end to end, and any of them can be folded."""
    queue: OldQueue[int] = OldQueue()
    at = 0
    for found in read_past_damage(CODEC, data):
        assert found.offset == at
        at = found.end
        if isinstance(found, Damage):
            queue.damaged()
        else:
            queue.apply(found.record, found.offset)
    assert at == len(data)
    left = [item.content for item in queue.left()]
    assert len(left) == len(set(left))


def check_salvage(data: bytes) -> None:
    offset = 0
    while (start := CODEC.resync(data, offset)) is not None:
        assert start >= offset
        try:
            entry = CODEC.decode(data, start)
        except FormatError as error:
            raise AssertionError("what resync found does not decode") from error
        assert entry is not None
        assert isinstance(entry.record, AddItem)
        offset = entry.end


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])
