"""The one rule for reading a file that may be sealed. Server, dump, verify and Spark go by it.

    [o][block][b][block][b][### bad block ###][b][block][b] ... [c]  unsealed  [o][block][b] tail

    unsealed     read as a format without a checksum is read: journeyman.logs.damage
    sealed       a block counts if its seal fits, and then all of it does
    bad block    a block that no seal fits is damage, up to the next block that one fits
    tail         after the last seal of a stretch that was not closed: a batch on its way, or one
                 that a crash has cut short. It was never acknowledged, so it is never believed

A file begins unsealed, and an opening seal ends that; so a file without seals is read as ever. A
seal is no record and is not shown, unless it is asked for.

What stands in the tail is a Damage of the kind ``unsealed``. In a log that is being written it is
merely in flight, so ``is_in_flight`` is what readers ask before they report damage.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from journeyman.errors import FormatError, InvalidData
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.formats.seals import SealFormat, fits, next_proven, seal_after
from journeyman.logs.damage import Damage, read_past_damage

R = TypeVar("R")

UNSEALED = "unsealed"
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
        codec: Any = self._codec if begin == 0 else Headless(self._codec)
        data = self._data if begin == 0 else memoryview(self._data)[begin:]
        for found in read_past_damage(codec, data, file=self._file, salvage=self._salvage):
            offset = begin + found.offset
            if isinstance(found, Damage):
                damage = replace(found, offset=offset)
                sealed_at = self._sealed_after(damage)
                if sealed_at is None:
                    yield damage
                    continue
                at, stamp = sealed_at
                if at > offset:
                    yield replace(damage, length=at - offset, kind="corrupt")
                return at, stamp
            if found.length == self._format.size and self._format.is_like_seal(self._data, offset):
                if self._seals:
                    yield Entry(offset, found.length, found.record)
                seal = self._format.parse(self._data, offset)
                if seal is not None and seal.opens and fits(self._format, seal, self._data, offset):
                    return offset + found.length, seal.stamp
            elif found.length == self._format.size and self._format.is_torn(self._data, offset):
                yield Damage(self._file, offset, found.length, "torn", "a seal that was cut short")
            else:
                yield Entry(offset, found.length, found.record)
        return len(self._data), None

    def _sealed_after(self, damage: Damage) -> tuple[int, int] | None:
        """Where a sealed block begins inside what was taken for damage, and its stamp.

        Not in a torn tail: that one ends the file, and may quote anything.
        """
        if damage.kind == "torn" or damage.offset >= self._no_seal_from:
            return None
        proven = next_proven(self._format, self._data, damage.offset, None)
        if proven is None:
            self._no_seal_from = damage.offset
            return None
        _, seal = proven
        return (seal.begin, seal.stamp) if seal.begin < damage.end else None

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
            proven = next_proven(format_, data, offset, stamp)
            if proven is None:
                yield from self._tail(offset)
                return len(data), None
            at, seal = proven
            end = seal.begin if seal.begin > offset else at + format_.size
            yield Damage(self._file, offset, end - offset, "corrupt", _BLOCK_REASON)
            offset = end
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

    def _tail(self, offset: int) -> Iterator[Entry[Any] | Damage]:
        length = len(self._data) - offset
        if self._salvage:
            for found in read_past_damage(
                Headless(self._codec), memoryview(self._data)[offset:], salvage=True
            ):
                yield replace(found, offset=offset + found.offset)
        elif _is_zeros(self._data, offset):
            yield Damage(self._file, offset, length, "padding", "zeros to the end of the file")
        else:
            yield Damage(self._file, offset, length, UNSEALED, _TAIL_REASON)


def _is_zeros(data: Buffer, offset: int) -> bool:
    return not any(
        bytes(data[at : at + _ZERO_CHUNK]).strip(b"\0")
        for at in range(offset, len(data), _ZERO_CHUNK)
    )
