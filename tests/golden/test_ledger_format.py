"""The ledger against golden segments: by the codec, and by a reader made from its document."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c

from journeyman.formats.framing import iter_entries
from journeyman.formats.ledger import CODEC, HEADER, KINDS, NewerRecord, encode_payload, kind_of
from journeyman.logs.damage import Damage, read_past_damage

DATA = Path(__file__).parent / "data" / "ledger"


def golden(name: str) -> tuple[bytes, dict[str, Any]]:
    directory = DATA / name
    description = json.loads((directory / "description.json").read_text())
    return (directory / description["file"]).read_bytes(), description


def as_a_stranger_reads(data: bytes) -> Iterator[dict[str, Any]]:
    """Nothing but docs/formats/ledger.md, for a segment without damage."""
    assert data[:8] == bytes.fromhex("6a6d6c6700000001")
    at = 8
    while at < len(data):
        begin = at
        version, seconds, nanos, zone = struct.unpack_from(">BqIh", data, at)
        assert version == 1
        at += 15
        size = shift = 0
        while True:
            byte = data[at]
            at += 1
            size |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        payload = data[at : at + size]
        at += size
        assert struct.unpack_from(">I", data, at)[0] == google_crc32c.value(data[begin:at])
        at += 4
        yield {
            "offset": begin,
            "length": at - begin,
            "unix_ns": (seconds - 62_135_596_800) * 10**9 + nanos,
            "zone_offset_min": zone,
            "payload": payload.decode(),
        }


def test_the_document_is_enough_to_read_a_ledger():
    data, description = golden("all-kinds")
    expected = [{k: v for k, v in row.items() if k != "known"} for row in description["records"]]
    assert list(as_a_stranger_reads(data)) == expected


def test_every_kind_is_read_and_written_back_byte_for_byte():
    data, description = golden("all-kinds")
    entries = list(iter_entries(CODEC, data, CODEC.check_header(data)))
    assert HEADER + b"".join(CODEC.encode(entry.record) for entry in entries) == data
    for entry, row in zip(entries, description["records"], strict=True):
        assert (entry.offset, entry.length) == (row["offset"], row["length"])
        assert entry.record.logged.unix_ns == row["unix_ns"]
        assert encode_payload(entry.record).decode() == row["payload"]
        assert isinstance(entry.record, NewerRecord) != row["known"]
    known = [entry.record for entry in entries if not isinstance(entry.record, NewerRecord)]
    assert len({kind_of(record).name for record in known}) == 14  # those of the first version


def test_the_document_lists_every_kind_with_its_members():
    page = (Path(__file__).parents[2] / "docs" / "formats" / "ledger.md").read_text()
    table = page.partition("\n| kind |")[2].partition("\n\n")[0]
    for kind in KINDS.values():
        (row,) = [line for line in table.splitlines() if line.startswith(f"| `{kind.name}` |")]
        _, _, members, family, key, *_ = row.split("|")
        assert all(f"`{name}`" in members for name, _ in kind.members), kind.name
        assert family.strip() == f"`{kind.family}`"
        assert (kind.key is None and not key.strip()) or f"`{kind.key}`" in key
        assert ("removes" in key) == kind.removes


def test_damage_costs_what_is_damaged():
    data, description = golden("damaged")
    found = list(read_past_damage(CODEC, data))
    kept = [item.record for item in found if not isinstance(item, Damage)]
    assert [getattr(record, "queue", None) for record in kept] == description["queues"]
    damages = [
        {"offset": item.offset, "length": item.length} for item in found if isinstance(item, Damage)
    ]
    assert damages == description["damages"]
