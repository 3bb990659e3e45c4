"""Fuzz target: the kestrel codecs on damaged journals and checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Codec, Stop, scan
from journeyman.formats.kestrel import (
    MAX_DATA_BYTES,
    READER,
    READER_MAGIC,
    WRITER,
    WRITER_MAGIC,
    ItemPut,
    ReadDone,
    ReadHead,
    Record,
    UnknownCommand,
)
from tests.fuzz.runner import run

DATA = Path(__file__).parents[1] / "golden" / "data" / "kestrel"
MAX_ENTRY_BYTES = 1 + 15 * 4 + MAX_DATA_BYTES
MAX_FILE_BYTES = 512  # of the zero tails, one short one is enough


def corpus() -> list[bytes]:
    files = [path.read_bytes()[:MAX_FILE_BYTES] for path in sorted(DATA.glob("*/*.*"))]
    journals = [data for data in files if data.startswith((WRITER_MAGIC, READER_MAGIC))]
    unusual: list[Record] = [
        ItemPut(2**63 - 1, -1, -(2**63), -(2**31), b"\x86" * 30),
        ReadHead(-1),
        ReadDone((2**63 - 1, 0, -1)),
        UnknownCommand(0x10, b"", b""),
        UnknownCommand(0x7F, bytes(range(60)), b""),
        UnknownCommand(0xA2, b"\3\0\0\0abcd", b"xyz"),
    ]
    entries = b"".join(map(WRITER.encode, unusual))
    return [*dict.fromkeys(journals), WRITER_MAGIC + entries, READER_MAGIC + entries + bytes(64)]


def check(data: bytes) -> None:
    """Only FormatError comes out, and what is read is what would be written."""
    check_file(READER if data.startswith(READER_MAGIC) else WRITER, data)


def check_file(codec: Codec[Record], data: bytes) -> None:
    entries, ending = scan(codec, data)
    if ending.stop is not Stop.BAD_HEADER:
        written = codec.header + b"".join(codec.encode(entry.record) for entry in entries)
        assert written == data[: ending.offset]
        torn = codec.is_torn(data, ending.offset)
        assert not torn or ending.stop in (Stop.TORN, Stop.ZERO_BYTE)
    if isinstance(ending.error, IncompleteEntry):
        assert len(data) - ending.offset < ending.error.needed <= MAX_ENTRY_BYTES
    assert codec.skip(data, ending.offset) is None
    check_salvage(data)


def check_salvage(data: bytes) -> None:
    """Reading on behind damage always gets on, and begins with a PUT."""
    offset = 0
    while (start := WRITER.resync(data, offset)) is not None:
        assert start >= offset
        try:
            entry = WRITER.decode(data, start)
        except FormatError as error:
            raise AssertionError("what resync found does not decode") from error
        assert entry is not None
        assert isinstance(entry.record, ItemPut)
        assert WRITER.resync(data, start) == start
        offset = entry.end


if __name__ == "__main__":
    run(check, corpus(), sys.argv[1:])
