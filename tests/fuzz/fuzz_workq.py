"""Fuzz target: the workq codec on damaged segments, half of them with their checksums put right."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path
from typing import Any

import google_crc32c

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Codec, Entry, Stop, scan
from journeyman.formats.timed_frame import (
    CRC_BYTES,
    MAX_RECORD_BYTES,
    TIME_BYTES,
    Instant,
    payload_span,
)
from journeyman.formats.workq import CODEC, HEADER, Command, JobAdded, Record
from tests.fuzz.runner import run

DATA = Path(__file__).parents[1] / "golden" / "data" / "workq"
MAX_FRAME_BYTES = TIME_BYTES + 10 + MAX_RECORD_BYTES + CRC_BYTES
RECORDS_A_PIECE = 3  # short pieces: more inputs a second, and more of each is damage


def corpus() -> list[bytes]:
    segments = [path.read_bytes() for path in sorted(DATA.glob("*/cmdlog/*.log"))]
    pieces: dict[bytes, None] = {}  # a set that keeps its order
    for segment in segments:
        entries, ending = scan(CODEC, segment)
        for first in range(0, len(entries), RECORDS_A_PIECE):
            start = entries[first].offset
            last = entries[min(first + RECORDS_A_PIECE, len(entries)) - 1]
            pieces[HEADER + segment[start : last.end]] = None
        if ending.error is not None:
            pieces[HEADER + segment[max(ending.offset, len(HEADER)) :]] = None
    unusual = JobAdded(
        logged=Instant(-(2**90), 60),
        job_id=bytes(16),
        name="\udcffé",
        ttr_ms=2**64 - 1,
        ttl_ms=2**63,
        priority=-(2**31),
        max_attempts=255,
        max_fails=300,
        payload=HEADER + CODEC.encode(scan(CODEC, segments[0])[0][0].record),
        time=Instant(2**80),
        created=Instant(0),
        command=Command.SCHEDULE,
    )
    return [*pieces, HEADER + CODEC.encode(unusual) * 2, HEADER + bytes(64)]


def check(data: bytes) -> None:
    """Only FormatError comes out, and what is read is what would be written."""
    if zlib.crc32(data) & 1:
        data = with_good_checksums(data)
    entries, ending = scan(CODEC, data)
    for entry in entries:
        check_entry(data, entry)
    if isinstance(ending.error, IncompleteEntry):
        assert len(data) - ending.offset < ending.error.needed <= MAX_FRAME_BYTES
    if ending.stop is not Stop.BAD_HEADER:
        torn = CODEC.is_torn(data, ending.offset)
        assert not torn or ending.stop in (Stop.TORN, Stop.CORRUPT)
        check_salvage(CODEC, data, ending.offset)


def with_good_checksums(data: bytes) -> bytes:
    """The same frames, each with the checksum that fits, so that their payloads are looked at."""
    mended = bytearray(data)
    offset = len(HEADER)
    while (span := payload_span(mended, offset)) is not None and span[1] + CRC_BYTES <= len(data):
        checksum: int = google_crc32c.value(bytes(mended[offset : span[1]]))
        mended[span[1] : span[1] + CRC_BYTES] = checksum.to_bytes(CRC_BYTES, "big")
        offset = span[1] + CRC_BYTES
    return bytes(mended)


def check_entry(data: bytes, entry: Entry[Record]) -> None:
    """Written back, an entry is what it was, or shorter where it held padded numbers."""
    written = CODEC.encode(entry.record)
    assert len(written) <= entry.length
    if len(written) == entry.length:
        assert written == data[entry.offset : entry.end]
    else:
        again = CODEC.decode(written, 0)
        assert again is not None
        assert again.record == entry.record


def check_salvage(codec: Codec[Any], data: bytes, offset: int) -> None:
    """Reading on behind damage always gets on, and only ever to a proven frame or the end."""
    while True:
        try:
            entry = codec.decode(data, offset)
            if entry is None:
                break
            following: int | None = entry.end
        except FormatError as error:
            if error.offset != offset:
                raise AssertionError("the error names another place") from error
            following = codec.skip(data, offset)
            if following is None:
                following = codec.resync(data, offset + 1)
                assert following is None or codec.resync(data, following) == following
        if following is None:
            break
        assert offset < following <= len(data)
        offset = following


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])
