"""Sealed files: how they are written whole or closed, and the one rule for reading them.

    sealed         the pieces of a new file -> the same with seals, one for each block, closed
    close_file     a file that is not open for writing -> closed, if it was not

journeyman.formats.seals says what seals are; appender.py seals appended batches. Server, dump,
verify and Spark read a file that may be sealed in one way:

    [o][block][b][block][b][### bad block ###][b][block][b] ... [c]  unsealed  [o][block][b] tail

    unsealed     read as a format without a checksum is read: journeyman.logs.damage
    sealed       a block is good if its seal matches
    bad block    a block that no seal matches is damage, up to the next good block
    tail         after the last seal of a stretch that was not closed: a batch in flight, or one
                 that a crash cut short. It was never acknowledged, so it is never read

A file begins unsealed, and an opening seal ends that; so a file without seals is read as before.
A seal is not a record and is shown only on request.

What stands in the tail is a Damage of the kind ``unsealed``. In a log that is being written it is
merely in flight, so ``is_in_flight`` is what readers ask before they report damage.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from journeyman.disk import Disk
from journeyman.errors import FormatError, InvalidData
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.formats.seals import (
    BLOCK_BYTES,
    Seal,
    SealFormat,
    SealKind,
    fits,
    make_seal,
    next_proven,
    seal_after,
)
from journeyman.logs.damage import Damage, read_past_damage


@dataclass(frozen=True, slots=True)
class Sealing:
    """Whether a log is sealed, and how. Not ``enabled``: only what is open is closed."""

    format: SealFormat
    enabled: bool = True


def last_seal(disk: Disk, format_: SealFormat, path: str, size: int) -> Seal | None:
    """The seal with which a file of ``size`` bytes ends; None if it ends otherwise."""
    at = size - format_.size
    if at < 0:
        return None
    seal = format_.parse(disk.read_at(path, at, format_.size), 0)
    if seal is None or seal.begin > at:
        return None
    data = disk.read_at(path, seal.begin, size - seal.begin)
    return seal if fits(format_, seal, data, at - seal.begin, seal.begin) else None


def close_file(disk: Disk, format_: SealFormat, path: str) -> None:
    """Close a file that ends with an open seal, so that another program may append to it."""
    size = disk.size(path)
    last = last_seal(disk, format_, path, size)
    if last is None or not last.opens:
        return
    file = disk.open_append(path)
    try:
        file.write(make_seal(format_, SealKind.CLOSING, last.stamp, size))
        file.sync()
    finally:
        file.close()


def has_seals(format_: SealFormat, data: Buffer) -> bool:
    """Whether anything in these bytes is marked as a seal."""
    return next(format_.places(data, 0), None) is not None


def sealed(
    format_: SealFormat, header: Buffer, pieces: Iterable[Buffer], stamp: int
) -> Iterator[Buffer]:
    """A new file: its header, ``pieces`` of whole entries sealed in blocks, and closed.

    Without any entry there is nothing to seal. All of a file that is not open at its end may stand
    for the header.
    """
    yield header
    offset = len(header)
    block = bytearray()
    for piece in pieces:
        if offset == len(header):
            yield make_seal(format_, SealKind.OPENING, stamp, offset)
            offset += format_.size
        block += piece
        if len(block) >= BLOCK_BYTES:
            whole = bytes(block)
            yield whole
            yield make_seal(format_, SealKind.BLOCK, stamp, offset, whole)
            offset += len(whole) + format_.size
            block.clear()
    if block:
        yield bytes(block)
        yield make_seal(format_, SealKind.BLOCK, stamp, offset, bytes(block))
        offset += len(block) + format_.size
    if offset > len(header):
        # By itself: so damage in the last block cannot be taken for a batch on its way.
        yield make_seal(format_, SealKind.CLOSING, stamp, offset)


def block_offsets(format_: SealFormat, sizes: Iterable[int]) -> Iterator[int | None]:
    """Where entries of these sizes stand in what ``sealed`` makes of them without a header.

    None inside a block: a reader may begin only where a block does.
    """
    offset, block = format_.size, 0
    for size in sizes:
        yield offset if block == 0 else None
        offset, block = offset + size, block + size
        if block >= BLOCK_BYTES:
            offset, block = offset + format_.size, 0


R = TypeVar("R")

UNSEALED: Final = "unsealed"
_TAIL_REASON = "after the last seal, so never acknowledged"
_BLOCK_REASON = "no seal fits these bytes"
_ZERO_CHUNK = 1024 * 1024


def is_in_flight(damage: Damage) -> bool:
    """Whether these bytes may be a batch that a writer is just appending."""
    return damage.kind == UNSEALED


def read_file(
    codec: Codec[R], data: Buffer, *, file: str = "", salvage: bool = False, seals: bool = False
) -> Iterator[Entry[R] | Damage]:
    """Entries and damages of a whole file, in order. Never raises FormatError.

    ``salvage``: see read_past_damage; it also shows what stands after the last seal.
    ``seals``: they are shown too, where they stand.
    """
    if codec.seals is None:
        return read_past_damage(codec, data, file=file, salvage=salvage)
    return _Reading(codec, codec.seals, data, file, salvage, seals).items()


def read_whole(codec: Codec[R], data: Buffer) -> Iterator[Entry[R]]:
    """The entries of a file that is known to be whole. Raises FormatError if it is not."""
    for found in read_file(codec, data):
        if isinstance(found, Damage):
            raise InvalidData(found.reason, found.offset)
        yield found


class Headless:
    """A codec for bytes that begin with an entry, whatever a file begins with."""

    def __init__(self, codec: Codec[Any]) -> None:
        self._codec = codec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codec, name)

    def check_header(self, data: Buffer) -> int:  # noqa: ARG002 - the codec's signature
        return 0


def unsealed_end(format_: SealFormat, data: Buffer, begin: int, base: int = 0) -> int:
    """Where the unsealed stretch at ``begin`` ends: at an opening seal, or with the data.

    Only sizes are followed, so damage may hide what follows it: see ``sealed_inside``.
    """
    if next(format_.places(data, begin), None) is None:
        return len(data)
    offset = begin
    while offset < len(data):
        if opening_stamp(format_, data, offset, base) is not None:
            return offset
        end = format_.frame_end(data, offset)
        if end is None:
            break
        offset = end
    return len(data)


def opening_stamp(format_: SealFormat, data: Buffer, offset: int, base: int = 0) -> int | None:
    """The stamp of what follows, if a seal stands at ``offset`` that fits and does not close."""
    if not format_.is_like_seal(data, offset):
        return None
    seal = format_.parse(data, offset)
    if seal is None or not seal.opens or not fits(format_, seal, data, offset, base):
        return None
    return seal.stamp


def sealed_inside(
    format_: SealFormat, data: Buffer, damage: Damage, base: int = 0
) -> tuple[int, int] | None:
    """Where a sealed block begins inside what was taken for damage, and its stamp.

    Not in a torn tail: that one ends the file, and may quote anything.
    """
    if damage.kind == "torn":
        return None
    proven = next_proven(format_, data, damage.offset - base, None, base)
    if proven is None or proven[1].begin >= damage.end:
        return None
    return proven[1].begin, proven[1].stamp


def bad_block(
    format_: SealFormat, data: Buffer, offset: int, stamp: int, *, file: str = "", base: int = 0
) -> Damage:
    """How far the damage goes where the block at ``offset`` has no seal that fits."""
    proven = next_proven(format_, data, offset, stamp, base)
    if proven is not None:
        at, seal = proven
        begin = seal.begin - base
        end = begin if begin > offset else at + format_.size
        return Damage(file, base + offset, end - offset, "corrupt", _BLOCK_REASON)
    length = len(data) - offset
    if _is_zeros(data, offset):
        reason = "zeros to the end of the file"
        return Damage(file, base + offset, length, "padding", reason)
    return Damage(file, base + offset, length, UNSEALED, _TAIL_REASON)


class _Reading:
    """One file. ``stamp`` is that of the open stretch, None where nothing is sealed."""

    def __init__(
        self,
        codec: Codec[Any],
        format_: SealFormat,
        data: Buffer,
        file: str,
        salvage: bool,
        seals: bool,
    ) -> None:
        self._codec = codec
        self._format = format_
        self._data = data
        self._file = file
        self._salvage = salvage
        self._seals = seals
        self._no_seal_from = len(data)  # it was searched for from here on, in vain

    def items(self) -> Iterator[Entry[Any] | Damage]:
        offset, stamp = yield from self._unsealed(0)
        while offset < len(self._data):
            step = self._unsealed(offset) if stamp is None else self._sealed(offset, stamp)
            offset, stamp = yield from step

    # --- what no seal proves ---

    def _unsealed(self, begin: int) -> Generator[Entry[Any] | Damage, None, tuple[int, int | None]]:
        """Up to an opening seal or the end. Where that is, and the stamp of what follows."""
        data, format_ = self._data, self._format
        end = unsealed_end(format_, data, begin or len(self._codec.header))
        codec: Any = self._codec if begin == 0 else Headless(self._codec)
        view = memoryview(data)[begin:end]
        for found in read_past_damage(codec, view, file=self._file, salvage=self._salvage):
            offset = begin + found.offset
            if isinstance(found, Damage):
                damage = replace(found, offset=offset)
                sealed_at = self._sealed_inside(damage) if end == len(data) else None
                if sealed_at is None:
                    yield damage
                    continue
                at, stamp = sealed_at
                if at > offset:
                    yield replace(damage, length=at - offset, kind="corrupt")
                return at, stamp
            if found.length == format_.size and format_.is_like_seal(data, offset):
                if self._seals:
                    yield Entry(offset, found.length, found.record)
                opened = opening_stamp(format_, data, offset)
                if opened is not None:  # damage had hidden it
                    return offset + found.length, opened
            else:
                yield Entry(offset, found.length, found.record)
        if end == len(data):
            return end, None
        if self._seals:
            yield from self._block(end, end + format_.size)
        return end + format_.size, opening_stamp(format_, data, end)

    def _sealed_inside(self, damage: Damage) -> tuple[int, int] | None:
        if damage.offset >= self._no_seal_from:
            return None
        sealed_at = sealed_inside(self._format, self._data, damage)
        if sealed_at is None and damage.kind != "torn":
            self._no_seal_from = damage.offset
        return sealed_at

    # --- what seals prove ---

    def _sealed(
        self, offset: int, stamp: int
    ) -> Generator[Entry[Any] | Damage, None, tuple[int, int | None]]:
        """Up to a closing seal or the end of the file."""
        data, format_ = self._data, self._format
        while offset < len(data):
            found = seal_after(format_, data, offset, stamp)
            if found is not None:
                at, seal = found
                yield from self._block(offset, at)
                offset = at + format_.size
                if self._seals:
                    yield from self._block(at, offset)
                if not seal.opens:
                    return offset, None
                continue
            damage = bad_block(format_, data, offset, stamp, file=self._file)
            if self._salvage and is_in_flight(damage):
                return offset, None
            yield damage
            offset = damage.end
        return offset, stamp

    def _block(self, offset: int, end: int) -> Iterator[Entry[Any] | Damage]:
        """The entries of a proven block. What does not decode there was written like that."""
        decode = self._codec.decode
        while offset < end:
            try:
                entry = decode(self._data, offset)
            except FormatError as error:
                frame_end = self._format.frame_end(self._data, offset)
                assert frame_end is not None
                yield Damage(self._file, offset, frame_end - offset, "corrupt", error.reason)
                offset = frame_end
                continue
            assert entry is not None
            yield entry
            offset = entry.end


def _is_zeros(data: Buffer, offset: int) -> bool:
    return not any(
        bytes(data[at : at + _ZERO_CHUNK]).strip(b"\0")
        for at in range(offset, len(data), _ZERO_CHUNK)
    )
