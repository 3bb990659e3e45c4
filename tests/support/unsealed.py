"""Files as they would be without seals, for tests that are about records and not about seals."""

from __future__ import annotations

from typing import Any

from journeyman.formats.framing import Codec, Ending, Entry, scan
from journeyman.formats.seals import is_marked


def scan_records(codec: Codec[Any], data: bytes) -> tuple[list[Entry[Any]], Ending]:
    """As ``scan``, but for the seals."""
    assert codec.seals is not None
    entries, ending = scan(codec, data)
    return [e for e in entries if not is_marked(codec.seals, data, e.offset)], ending


def without_seals(codec: Codec[Any], data: bytes) -> bytes:
    """The header, and all entries but the seals, byte for byte; up to the first damage."""
    entries, _ = scan_records(codec, data)
    kept = (data[entry.offset : entry.end] for entry in entries)
    return data[: codec.check_header(data)] + b"".join(kept)
