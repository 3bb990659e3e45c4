"""Fuzz target: the ztick codec on damaged logs."""

from __future__ import annotations

import sys
from pathlib import Path

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Stop, scan
from journeyman.formats.ztick import (
    CODEC,
    MAX_ENTRY_BYTES,
    Awf,
    Direct,
    RuleSet,
    decode_payload,
    frames,
)
from tests.fuzz.runner import run

DATA = Path(__file__).parents[1] / "golden" / "data" / "ztick"


def corpus() -> list[bytes]:
    logs = [p.read_bytes() for p in sorted(DATA.glob("*.log"))]
    entries = [data[e.offset : e.end] for data in logs for e in scan(CODEC, data)[0]]
    lists = [
        CODEC.encode(RuleSet("many", "m.", Direct("x", ("",) * 300))),
        CODEC.encode(RuleSet("é", "ü", Awf("wörk", ("k=v", "漢字", "😀")))),
    ]
    return [data for data in (*logs, *entries, *lists, bytes(64)) if data]


def check(data: bytes) -> None:
    """Only FormatError comes out, and what is read is what would be written."""
    entries, ending = scan(CODEC, data)
    assert b"".join(CODEC.encode(e.record) for e in entries) == data[: ending.offset]
    if isinstance(ending.error, IncompleteEntry):
        assert len(data) - ending.offset < ending.error.needed <= MAX_ENTRY_BYTES + 4
    torn = CODEC.is_torn(data, ending.offset)
    assert not torn or ending.stop in (Stop.TORN, Stop.CORRUPT)
    check_salvage(data, ending.offset)
    check_frames(data)


def check_salvage(data: bytes, offset: int) -> None:
    """Reading on behind damage always gets on, and begins where an entry begins."""
    following = CODEC.skip(data, offset)
    assert following is None or offset < following <= len(data)
    start = CODEC.resync(data, offset)
    if start is not None:
        assert start >= offset
        assert CODEC.decode(data, start) is not None
        assert CODEC.resync(data, start) == start


def check_frames(data: bytes) -> None:
    end = 0
    for offset, payload in frames(data):
        assert offset == end
        end = offset + 4 + len(payload)
        try:
            record = decode_payload(payload, offset)
        except FormatError as error:
            if error.offset != offset:
                raise AssertionError("the error names another place") from error
        else:
            assert CODEC.encode(record) == data[offset:end]
    assert len(data) - end < 4 or int.from_bytes(data[end : end + 4], "big") > len(data) - end - 4


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])
