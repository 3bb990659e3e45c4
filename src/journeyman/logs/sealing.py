"""Sealed files: how they are written whole or closed, and the one rule for reading them.

    sealed         the pieces of a new file -> the same with seals, one for each block, closed
    close_file     a file that is not open for writing -> closed, if it was not

journeyman.formats.seals says what seals are; appender.py seals appended batches. Server, dump,
verify and Spark read a file that may be sealed in one way, forward from boundary to boundary:

    [o][b][block][b][## bad block ##][b][block] ... [c]  unsealed  [o][b][block] tail

    block        good if it is whole and its seal fits
    unsealed     records without an announcement are another program's, wherever they stand: read as
                 a format without a checksum is read (journeyman.logs.damage)
    bad block    an announced block that does not fit is damage, up to the next seal that fits

A file begins unsealed; so a file without seals is read as before. A seal is not a record and is
shown only on request. What no seal follows is the tail, and there the rule is:

    the tail                                     what is read of it
    announced, not whole                         nothing: a batch in flight, or cut by a crash;
                                                 also if zeros go on beyond what was announced
    announced, and more than was announced       another program has gone on: the whole records of
    announced, cut between two records           the batch, which it has read, and its own
    announced, a torn record and then whole      the same, without the torn record. Zeros in between
      ones up to the end                         mean that power was cut: then nothing
    begins with a record                         another program's records
    begins with zeros, or with a torn record     nothing, unless whole records follow the torn one
                                                 up to the end

A batch in flight, or cut, is a Damage of the kind ``unsealed``: readers ask ``is_in_flight`` before
they report damage. A tail that cannot be read is of the kind ``unannounced``. Whether a client was
told that it is stored can be said of neither.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeVar

from journeyman.disk import Disk
from journeyman.errors import FormatError, InvalidData
from journeyman.formats import seals as seal_format
from journeyman.formats.framing import Buffer, Codec, Entry
from journeyman.logs.damage import (
    Damage,
    DamageKind,
    follow_entries,
    read_past_damage,
)

_FIRST_LOOK_BYTES = seal_format.BLOCK_BYTES
_ZERO_CHUNK = 1024 * 1024
# So many zeros in a row beside a torn record show that power was cut: a part of a write is missing.
_HOLE = re.compile(rb"\0{32}")


@dataclass(frozen=True, slots=True)
class Sealing:
    """How a log is sealed. Without ``enabled`` only an open seal is closed."""

    format: seal_format.SealFormat
    enabled: bool = True


def last_seal(
    disk: Disk, format_: seal_format.SealFormat, path: str, size: int
) -> seal_format.Seal | None:
    """The seal of the block with which a file of ``size`` bytes ends; None if it ends otherwise."""
    reach = _FIRST_LOOK_BYTES
    while size >= format_.size:
        base = max(0, size - reach)
        data = disk.read_at(path, base, size - base)
        for place in reversed(list(format_.places(data, 0))):
            block = seal_format.block_at(format_, data, place, base)
            if block is not None:
                return block.seal if block.end == len(data) else None
        if base == 0 or reach > seal_format.MAX_BLOCK_BYTES:
            break
        reach *= 16
    return None


def close_file(disk: Disk, format_: seal_format.SealFormat, path: str) -> None:
    """Close a file that ends with an open block, so that another program may append to it."""
    size = disk.size(path)
    last = last_seal(disk, format_, path, size)
    if last is None or not last.opens:
        return
    file = disk.open_append(path)
    try:
        file.write(seal_format.make_seal(format_, seal_format.SealKind.CLOSING, last.stamp, size))
        file.sync()
    finally:
        file.close()


def has_seals(format_: seal_format.SealFormat, data: Buffer) -> bool:
    """Return whether anything in these bytes is marked as a seal."""
    return next(format_.places(data, 0), None) is not None


def sealed(
    format_: seal_format.SealFormat, header: Buffer, pieces: Iterable[Buffer], stamp: int
) -> Iterator[Buffer]:
    """A new file: its header, ``pieces`` of whole entries sealed in blocks, and closed.

    Without any entry there is nothing to seal. All of a file may stand for the header.
    """
    yield header
    yield from sealed_blocks(format_, len(header), pieces, stamp)


def sealed_blocks(
    format_: seal_format.SealFormat, offset: int, pieces: Iterable[Buffer], stamp: int
) -> Iterator[Buffer]:
    """Yield sealed blocks without the header, to be written at ``offset``."""
    begin = offset
    block = bytearray()

    def announced() -> Iterator[Buffer]:
        nonlocal offset
        if offset == begin:
            yield seal_format.make_seal(format_, seal_format.SealKind.OPENING, stamp, offset)
            offset += format_.size
        whole = bytes(block)
        yield seal_format.make_seal(format_, seal_format.SealKind.BLOCK, stamp, offset, whole)
        yield whole
        offset += format_.size + len(whole)
        block.clear()

    for piece in pieces:
        block += piece
        if len(block) >= seal_format.BLOCK_BYTES:
            yield from announced()
    if block:
        yield from announced()
    if offset > begin:
        yield seal_format.make_seal(format_, seal_format.SealKind.CLOSING, stamp, offset)


class BlockLayout:
    """Where entries stand in what ``sealed_blocks`` makes of them at ``offset``."""

    def __init__(self, format_: seal_format.SealFormat, offset: int) -> None:
        self._seal_bytes = format_.size
        self._end = offset + format_.size  # after the opening seal
        self._block_bytes = 0

    def add(self, size: int) -> tuple[int, int | None]:
        """The place of the next entry, and that of the seal before it if it begins a block.

        A reader may begin only at a seal.
        """
        seal = None
        if self._block_bytes == 0:
            seal = self._end
            self._end += self._seal_bytes
        offset = self._end
        self._end += size
        self._block_bytes += size
        if self._block_bytes >= seal_format.BLOCK_BYTES:
            self._block_bytes = 0
        return offset, seal


R = TypeVar("R")

UNSEALED: Final = "unsealed"
UNANNOUNCED: Final = "unannounced"
_IN_FLIGHT_REASON = "an announced batch that is not whole: in flight, or cut short by a crash"
_CONTINUED_REASON = "the seal of a batch that was cut short; another program has written after it"
_BLOCK_REASON = "no seal fits these bytes"
_MARK_REASON = "a seal whose mark is damaged; its block is whole"
_TORN_REASON = "a record cut short; later records begin inside it"
_TAIL_REASON = "a tail without an announcement that does not begin with a whole record"


def is_in_flight(damage: Damage) -> bool:
    """Return whether these bytes may be a batch that a writer is just appending."""
    return damage.kind == UNSEALED


def read_file(
    codec: Codec[R], data: Buffer, *, file: str = "", salvage: bool = False, seals: bool = False
) -> Iterator[Entry[R] | Damage]:
    """Entries and damages of a whole file, in order. Never raises FormatError.

    ``salvage``: see read_past_damage; it also reads an announced batch that is not whole.
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


def unsealed_end(format_: seal_format.SealFormat, data: Buffer, begin: int, base: int = 0) -> int:
    """Where the unsealed stretch at ``begin`` ends: at a seal, or with the data.

    Only sizes are followed, so damage may hide what follows it: see ``seal_inside``.
    """
    near_end = range(max(begin, len(data) - format_.size), len(data))
    if not format_.may_hold_seals(data, begin) and not any(
        seal_format.is_cut_seal(format_, data, at) for at in near_end
    ):
        return len(data)
    offset = begin
    while offset < len(data):
        if seal_format.is_seal_here(format_, data, offset, base):
            return offset
        end = format_.frame_end(data, offset)
        if end is None:
            break
        offset = end
    return len(data)


def seal_inside(
    format_: seal_format.SealFormat, data: Buffer, damage: Damage, base: int = 0
) -> int | None:
    """Where a seal stands inside what was taken for damage.

    Not in a torn tail: that one ends the file, and may quote anything.
    """
    if damage.kind == "torn":
        return None
    place = seal_format.next_seal(format_, data, damage.offset - base, None, base)
    return None if place is None or base + place >= damage.end else base + place


class BoundaryVerdict(NamedTuple):
    """The damage at a boundary. Between these damages, and up to ``end``, all entries are good.

    ``stamp`` is that of the stretch that is open at ``end``; None: unsealed records follow.
    """

    damages: tuple[Damage, ...]
    end: int
    stamp: int | None


def begins_with_entry(codec: Codec[Any], data: Buffer, offset: int, base: int = 0) -> bool:
    """True if a whole entry stands at ``offset``, and what follows it is plausible too.

    A seal cut short that swallows the beginning of the next entry may decode as well.
    """
    try:
        entry = codec.decode(data, offset)
    except FormatError:
        return False
    if entry is None or _has_swallowed(codec, data, entry):
        return False
    is_sealed = codec.seals is not None and seal_format.is_seal_here(
        codec.seals, data, entry.end, base
    )
    return is_sealed or codec.resync(data, offset) == offset


def _has_swallowed(codec: Codec[Any], data: Buffer, entry: Entry[Any]) -> bool:
    """True if an entry begins as a seal does, and others begin inside it."""
    format_ = codec.seals
    if format_ is None or entry.length != format_.size:
        return False
    begin, length = entry.offset, format_.least_bytes
    if data[begin : begin + length] != format_.mark[:length]:
        return False
    inside = codec.resync(data, begin + length)
    return inside is not None and inside < entry.end


def judge(
    codec: Codec[Any],
    data: Buffer,
    at: int,
    stamp: int | None,
    *,
    file: str = "",
    base: int = 0,
    salvage: bool = False,
) -> BoundaryVerdict:
    """The damage at ``at``, where no block fits although a seal stands there, or should.

    ``data`` must go to the end of the file. All places in the answer are those in the file.
    """
    return _Judging(codec, data, file, base).verdict(at, stamp, salvage=salvage)


class _Judging:
    """See ``judge``. Places here are those in the data."""

    def __init__(self, codec: Codec[Any], data: Buffer, file: str, base: int) -> None:
        assert codec.seals is not None
        self._codec, self._format = codec, codec.seals
        self._data, self._file, self._base = data, file, base

    def verdict(self, at: int, stamp: int | None, *, salvage: bool) -> BoundaryVerdict:
        data, format_, base = self._data, self._format, self._base
        seal = seal_format.seal_at(format_, data, at, base)
        if (
            seal is not None
            and (block := seal_format.block_at(format_, data, at, base)) is not None
        ):
            mark = self._damage(at, format_.size, "corrupt", _MARK_REASON)
            return self._verdict([mark], block.end, seal.stamp if seal.opens else None)
        body = at + format_.size
        stamp = stamp if seal is None else seal.stamp
        behind = at + 1 if seal is None else body + seal.length
        proven = seal_format.next_seal(format_, data, min(behind, len(data)), stamp, base)
        if proven is not None:
            end = proven if seal is None else min(behind, len(data))
            damage = self._damage(at, end - at, "corrupt", _BLOCK_REASON)
            return self._verdict([damage], end, stamp)
        if is_zeros(data, at):
            return self._to_the_end(at, "padding", "zeros to the end of the file")
        # Another program writes no seals: what is marked as one was ours, and all before it is too.
        marked = next(format_.places(data, min(behind, len(data))), None)
        if marked is not None:
            damage = self._damage(at, marked - at, "corrupt", _BLOCK_REASON)
            return self._verdict([damage], marked, stamp)
        verdict = self._unannounced(at) if seal is None else self._unfinished(at, body, seal)
        if salvage and verdict.damages[0].kind in (UNSEALED, UNANNOUNCED):
            end = min(body, len(data)) if seal_format.is_seal_here(format_, data, at, base) else at
            damage = replace(verdict.damages[0], length=end - at)
            return self._verdict([damage] if end > at else [], end)
        return verdict

    def _unfinished(self, at: int, body: int, seal: seal_format.Seal) -> BoundaryVerdict:
        """The tail begins with a good seal, but what follows is not the block that it announces."""
        data, announced_end = self._data, body + seal.length
        is_longer = len(data) > announced_end
        ends = [body]
        for entry in follow_entries(self._codec, data, body):
            ends.append(entry.end)
            if entry.end >= announced_end:
                break
        reached = ends[-1]
        is_followed = is_longer and (
            begins_with_entry(self._codec, data, reached, self._base)
            or (is_zeros(data, reached) and self._may_end(reached, announced_end))
        )
        if reached == announced_end and is_followed:
            return self._spoilt(at, announced_end, seal.stamp)
        mark = self._damage(at, body - at, "torn", _CONTINUED_REASON)
        if reached > body and (is_followed or reached == len(data) < announced_end):
            return self._verdict([mark], body)
        start = self._chain(body + 1, announced_end, ends)
        if reached == announced_end and start is None:
            return self._spoilt(at, announced_end, seal.stamp)
        is_hollow = self._is_hollow(ends[-2:][0], start)
        if not is_longer and (start is None or is_hollow):
            return self._to_the_end(at, UNSEALED, _IN_FLIGHT_REASON)
        if start is None:
            if is_hollow:
                return self._to_the_end(at, UNANNOUNCED, _TAIL_REASON)
            return self._verdict([mark], body)
        if is_hollow:  # power was cut, and records beside the hole may have lost their ends
            return self._verdict([self._damage(at, start - at, "torn", _TORN_REASON)], start)
        kept = max(end for end in ends if end <= start)
        torn = self._damage(kept, start - kept, "torn", _TORN_REASON)
        return self._verdict([mark, torn], start)

    def _may_end(self, place: int, announced_end: int) -> bool:
        """Return whether another program may have ended its data here, where zeros begin.

        Zeros after less than was announced stand where power has cut a write of several blocks,
        and may be the end of its last record. Only a program that maps its files leaves zeros as
        well: there a record whose last byte is none of them is whole.
        """
        is_mapped = self._codec.name == "kestrel"
        return place >= announced_end or (is_mapped and self._data[place - 1] != 0)

    def _spoilt(self, at: int, end: int, stamp: int) -> BoundaryVerdict:
        """A block is as long as announced, and only its content does not fit."""
        if end == len(self._data) and self._has_hole(at, end):
            return self._to_the_end(at, UNSEALED, _IN_FLIGHT_REASON)
        damage = self._damage(at, end - at, "corrupt", _BLOCK_REASON)
        return self._verdict([damage], end, stamp)

    def _unannounced(self, at: int) -> BoundaryVerdict:
        """The tail begins with a seal that does not fit, or with bytes that are no record."""
        data, codec = self._data, self._codec
        try:
            begins_zero = codec.decode(data, at) is None or is_zeros(data[at : at + 4], 0)
        except FormatError:
            begins_zero = is_zeros(data[at : at + 4], 0)
        start = self._chain(at + 1, len(data), [])
        # Up to three zeros may be all that there is of the size of a record.
        is_lost = start is None or (begins_zero and start > at + 3) or self._is_hollow(at, start)
        if start is not None and not is_lost:
            return self._verdict([self._damage(at, start - at, "torn", _TORN_REASON)], start)
        behind = min(at + self._format.size, len(data))
        if seal_format.is_cut_seal(self._format, data, at) and is_zeros(data, behind):
            return self._to_the_end(at, UNSEALED, _IN_FLIGHT_REASON)
        return self._to_the_end(at, UNANNOUNCED, _TAIL_REASON)

    def _chain(self, begin: int, beyond: int, tried: list[int]) -> int | None:
        """The first place from which entries follow one another to the end, or ``beyond``.

        The ``tried`` places were followed before, and did not lead there.
        """
        data, codec = self._data, self._codec
        while (start := codec.resync(data, begin)) is not None:
            if start in tried:
                begin = start + 1
                continue
            stop = start
            for entry in follow_entries(codec, data, start):
                stop = entry.end
            if stop == len(data) or stop > beyond:
                return start
            begin = max(start + 1, stop)
        return None

    def _is_hollow(self, begin: int, start: int | None) -> bool:
        """True if power was cut: zeros stand in what is torn, or right before ``start``."""
        if start is None:
            return self._has_hole(begin, len(self._data))
        ends_zero = begin <= start - 4 and is_zeros(self._data[start - 4 : start], 0)
        return ends_zero or self._has_hole(begin, start)

    def _has_hole(self, begin: int, end: int) -> bool:
        return _HOLE.search(self._data, begin, end) is not None

    def _to_the_end(self, at: int, kind: DamageKind, reason: str) -> BoundaryVerdict:
        length = len(self._data) - at
        return self._verdict([self._damage(at, length, kind, reason)], len(self._data))

    def _damage(self, at: int, length: int, kind: DamageKind, reason: str) -> Damage:
        return Damage(self._file, self._base + at, length, kind, reason)

    def _verdict(
        self, damages: list[Damage], end: int, stamp: int | None = None
    ) -> BoundaryVerdict:
        return BoundaryVerdict(tuple(damages), self._base + end, stamp)


class _Reading:
    """One file. ``stamp`` is that of the open stretch, None where nothing is sealed."""

    def __init__(
        self,
        codec: Codec[Any],
        format_: seal_format.SealFormat,
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
        data, format_ = self._data, self._format
        stamp: int | None = None
        offset = yield from self._unsealed(0)
        while offset < len(data):
            block = seal_format.block_at(format_, data, offset)
            if block is not None and seal_format.is_marked(format_, data, offset):
                if self._seals:
                    yield from self._entries(offset, block.begin)
                yield from self._entries(block.begin, block.end)
                offset, stamp = block.end, block.seal.stamp if block.seal.opens else None
            elif seal_format.is_seal_here(format_, data, offset) or (
                stamp is not None and not begins_with_entry(self._codec, data, offset)
            ):
                offset, stamp = yield from self._bad(offset, stamp)
            else:
                offset, stamp = (yield from self._unsealed(offset)), None

    def _bad(
        self, offset: int, stamp: int | None
    ) -> Generator[Entry[Any] | Damage, None, tuple[int, int | None]]:
        verdict = judge(
            self._codec, self._data, offset, stamp, file=self._file, salvage=self._salvage
        )
        for damage in verdict.damages:
            yield from self._entries(offset, damage.offset)
            yield damage
            offset = damage.end
        yield from self._entries(offset, verdict.end)
        return verdict.end, verdict.stamp

    def _unsealed(self, begin: int) -> Generator[Entry[Any] | Damage, None, int]:
        """Up to a seal or the end; where that is."""
        data, format_ = self._data, self._format
        end = unsealed_end(format_, data, begin or len(self._codec.header))
        codec: Any = self._codec if begin == 0 else Headless(self._codec)
        view = memoryview(data)[begin:end]
        for found in read_past_damage(codec, view, file=self._file, salvage=self._salvage):
            offset = begin + found.offset
            if not isinstance(found, Damage):
                if seal_format.is_seal_here(format_, data, offset):  # damage had hidden it
                    return offset
                yield Entry(offset, found.length, found.record)
                continue
            damage = replace(found, offset=offset)
            place = self._seal_inside(damage)
            if place is None:
                yield damage
                continue
            if place > offset:
                yield replace(damage, length=place - offset, kind="corrupt")
            return place
        return end

    def _seal_inside(self, damage: Damage) -> int | None:
        if damage.offset >= self._no_seal_from:
            return None
        if seal_format.next_seal(self._format, self._data, damage.offset, None) is None:
            self._no_seal_from = damage.offset
        return seal_inside(self._format, self._data, damage)

    def _entries(self, offset: int, end: int) -> Iterator[Entry[Any] | Damage]:
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


def is_zeros(data: Buffer, offset: int) -> bool:
    """True if nothing but zeros stands from ``offset`` on."""
    return not any(
        bytes(data[at : at + _ZERO_CHUNK]).strip(b"\0")
        for at in range(offset, len(data), _ZERO_CHUNK)
    )
