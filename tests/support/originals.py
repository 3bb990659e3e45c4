"""What the original programs do to the files that they find: small models of their behaviour.

ztick        reads whole frames, ignores a torn one at the end without cutting it off, and
             appends after it
libkestrel   cuts a segment at the first record that it cannot read, takes a zero byte for the
             end, and appends to the segment with the highest ids; if that has zeros at its end,
             to a new one. Killed, it leaves zeros after the last record, up to its size
"""

from __future__ import annotations

from journeyman.errors import FormatError
from journeyman.formats import ztick
from journeyman.formats.kestrel import WRITER, ItemPut

MAPPED_BYTES = 4096


def appended_by_ztick(data: bytes, records: list[ztick.Record]) -> bytes:
    """The log after ztick has appended these records to it."""
    return data + b"".join(map(ztick.CODEC.encode, records))


def appended_by_libkestrel(
    segments: dict[str, bytes], queue: str, payloads: list[bytes], *, killed: bool = False
) -> tuple[dict[str, bytes], list[ItemPut]]:
    """The segments by name after libkestrel has put these items, and the items."""
    scanned = {name: _scan(data) for name, data in segments.items()}
    after = {name: data for name, (data, _) in scanned.items()}
    held = {name: ids for name, (_, ids) in scanned.items() if ids}
    last = max(held, key=lambda name: held[name][0], default=None)
    tail = max((max(ids) for ids in held.values()), default=0)
    if last is None or after[last].endswith(bytes(8)):
        last = f"{queue}.{max((int(name.rpartition('.')[2]) for name in segments), default=0) + 1}"
        after[last] = WRITER.header
    items = [ItemPut(tail + 1 + n, 77, None, 0, data) for n, data in enumerate(payloads)]
    data = after[last] + b"".join(map(WRITER.encode, items))
    after[last] = data.ljust(len(data) + MAPPED_BYTES, b"\0") if killed else data
    return after, items


def _scan(data: bytes) -> tuple[bytes, list[int]]:
    """The segment, cut where it cannot be read, and the ids in it."""
    ids: list[int] = []
    offset = len(WRITER.header)
    try:
        WRITER.check_header(data)
        while (entry := WRITER.decode(data, offset)) is not None:
            if isinstance(entry.record, ItemPut):
                ids.append(entry.record.item_id)
            offset = entry.end
    except FormatError:
        return data[:offset], ids
    return data, ids
