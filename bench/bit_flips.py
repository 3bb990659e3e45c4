"""How many single flipped bits go unnoticed, in logs with seals and without.

    python -m bench.bit_flips

A flip is unnoticed if the log is read without any report of damage and yet gives other records than
were written. Every bit of a small log is flipped once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from journeyman.formats import kestrel, ztick
from journeyman.formats.framing import Codec
from journeyman.formats.seals import SealKind, make_seal
from journeyman.logs.damage import Damage
from journeyman.logs.sealing import read_file

_STAMP = 0x5EA1ED00


def _records(codec: Codec[Any], data: bytes) -> tuple[list[Any], bool]:
    """The records, and whether damage was reported."""
    found = list(read_file(codec, data))
    damaged = any(isinstance(item, Damage) for item in found)
    return [item.record for item in found if not isinstance(item, Damage)], damaged


def _written(codec: Codec[Any], batches: Iterable[list[Any]], *, sealed: bool) -> bytes:
    data = bytearray(codec.header)
    assert codec.seals is not None
    if sealed:
        data += make_seal(codec.seals, SealKind.OPENING, _STAMP, len(data))
    for batch in batches:
        block = b"".join(map(codec.encode, batch))
        if sealed:
            data += make_seal(codec.seals, SealKind.BLOCK, _STAMP, len(data), block)
        data += block
    if sealed:
        data += make_seal(codec.seals, SealKind.CLOSING, _STAMP, len(data))
    return bytes(data)


def _unnoticed(codec: Codec[Any], data: bytes) -> float:
    written, _ = _records(codec, data)
    count = 0
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found, damaged = _records(codec, bytes(flipped))
        count += not damaged and found != written
    return count / (8 * len(data))


def main() -> None:
    jobs = [
        [ztick.JobSet(f"mail.{n}", 10**18 + n, ztick.Status.PLANNED) for n in range(b, b + 4)]
        for b in range(0, 40, 4)
    ]
    items = [
        [kestrel.ItemPut(n, 10**12 + n, None, 0, b"item %d " % n * 12) for n in range(b, b + 3)]
        for b in range(1, 31, 3)
    ]
    checkpoint = [[kestrel.ReadHead(1234), kestrel.ReadDone((1236, 1240))]]
    for name, codec, batches in (
        ("ztick log", ztick.CODEC, jobs),
        ("kestrel segment", kestrel.WRITER, items),
        ("kestrel checkpoint", kestrel.READER, checkpoint),
    ):
        before, after = (
            _unnoticed(codec, _written(codec, batches, sealed=sealed)) for sealed in (False, True)
        )
        print(f"{name:20} unnoticed without seals {before:6.1%}   with seals {after:6.2%}")


if __name__ == "__main__":
    main()
