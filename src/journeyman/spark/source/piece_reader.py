"""A piece of a file -> its items in order: chunks of rows, and damages.

    bytes --window--> columnar.decode --> Chunk, Chunk, ...      as long as entries are good
                      logs.damage     --> Damage                 where they are not, then on

The items of a file, read from its start, are those of ``read_past_damage``, found faster: the bulk
decoder takes the good stretches, and at a fault the same Judge says how far the damage goes. A
piece begins at the first item that begins in it; to get there the same reading is done from the
piece's anchor, without making rows.

    file     |-entry-|-entry-|-entry-|-entry-|-entry-|-entry-|##
    rows     ===============>|                                        what is handed on
    scout    --------------------------------------------------->|    what was found good

Without a checksum an entry may turn out to be damage when a fault follows within HELD_BYTES
(journeyman.logs.damage). So a scout runs ahead, over entries that it only looks at, until so much
follows what is handed on, and rows are made of what is sure by then. An opening seal ends its way:
what follows is proven otherwise.

A file is read through a window, which is moved on to the place where decoding stopped; so an entry
cut by the end of one window is read whole in the next. Only what is wrong in a window that begins
there is a fault. The bytes in a window are a copy: a file that is written to in place holds still
while it is decoded. What was appended since planning is not read.

The end of a log is not damage: zeros up to the end of a file, and an entry cut short at the end of
the last one.

Sealed stretches are read block by block, by the rule of journeyman.logs.sealing:

    [o][block][b][block][b][## bad block ##][b][block][b][c]

What is an item elsewhere is a block there. A run of blocks is checked by a kernel, and then decoded
at one go; a block whose seal does not fit is damage as a whole.

Who can do without rows is offered the bytes first: a Stretch that begins with an entry. What it
does not take of them is decoded for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import google_crc32c

from journeyman.columnar.chunks import MAX_RECORDS, Chunk
from journeyman.errors import FormatError, IncompleteEntry, LogError
from journeyman.formats.framing import Ending, Entry
from journeyman.formats.seals import BLOCK_BYTES, MAX_BLOCK_BYTES, fits
from journeyman.logs.damage import HELD_BYTES, Damage, Judge
from journeyman.logs.sealing import bad_block, is_in_flight, sealed_inside, unsealed_end
from journeyman.spark.files import Window, filesystem_of
from journeyman.spark.source.chunks import before, bulk_decoder, seals_of, shifted, walk_of
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.splits import Piece, Stretch

WINDOW_BYTES = 4 * 1024 * 1024  # stays in the processor's cache while it is decoded
_HEADER_BYTES = 64
_MARK_BYTES = 64 * 1024  # from one boundary that a scout remembers to the next
FEW = 512  # records
_SMALL_ENTRY_BYTES = 8  # most entries are larger


def read_piece(piece: Piece, options: SourceOptions) -> Iterator[Chunk | Damage]:
    """The items of a piece but for the end of the log; offsets are those in the file."""
    for item in _read(piece, options):
        assert isinstance(item, Chunk | Damage)
        yield item


def read_damages(piece: Piece, options: SourceOptions) -> Iterator[Damage]:
    """The damages of a piece alone: no row is made, so this is as fast as walking is."""
    for item in _read(piece, options, rows=False):
        assert isinstance(item, Damage)
        yield item


def read_reduced(
    piece: Piece, options: SourceOptions, *, stretches: bool
) -> Iterator[Chunk | Damage | Stretch]:
    """The same; with ``stretches`` the bytes of what is to be decoded next are offered first."""
    return _read(piece, options, stretches=stretches)


def _read(
    piece: Piece, options: SourceOptions, *, rows: bool = True, stretches: bool = False
) -> Iterator[Chunk | Damage | Stretch]:
    with _opened(piece, options) as window:
        if window is None:
            return
        reading = _Reading(window, piece, options)
        begin = reading.start(piece)
        end = piece.end if piece.file.reader is None else window.size
        step = reading.decode if rows else None
        for item in reading.items(begin, end, step, stretches=stretches):
            if isinstance(item, Damage):
                if not _is_end(item, piece, window.size):
                    yield item
            elif rows:
                yield item


def first_boundary(piece: Piece, options: SourceOptions) -> int:
    """Where the first item begins that is at or behind ``piece.begin``; or the end of the file.

    The piece's anchor, if who begins to read there could judge damage in another way.
    """
    with _opened(piece, options) as window:
        if window is None:
            return piece.file.size
        reading = _Reading(window, piece, options)
        boundary = reading.start(piece)
        return boundary if reading.judge.is_settled_at(boundary) else piece.anchor


@contextmanager
def _opened(piece: Piece, options: SourceOptions) -> Iterator[Window | None]:
    """A window on the file; None when it is gone and that was said to be no matter."""
    path = piece.file.path
    try:
        file = filesystem_of(path).open(path)
    except FileNotFoundError:
        if not options.ignore_missing_files:
            raise LogError(path, "is gone since the query was planned; load it again") from None
        yield None
        return
    with file:
        yield Window(file, path, _size_now(file, piece), WINDOW_BYTES)


def _size_now(file: BinaryIO, piece: Piece) -> int:
    """How much of the file is to be read.

    A log that was compacted or rotated meanwhile has another file under the same name, which is
    not the one that was planned. A checkpoint is replaced again and again; the newest will do.
    """
    if piece.file.reader is not None:
        return file.seek(0, os.SEEK_END)
    if piece.file.identity is not None and os.fstat(file.fileno()).st_ino != piece.file.identity:
        raise LogError(piece.file.path, "was replaced since the query was planned; load it again")
    return piece.file.size


def _is_end(damage: Damage, piece: Piece, size: int) -> bool:
    if damage.length == 0 or (is_in_flight(damage) and piece.file.reader is None):
        return True
    may_end = damage.kind == "padding" or (damage.kind == "torn" and piece.file.is_last)
    return may_end and damage.end == size


class DecodeStep(NamedTuple):
    """How far good entries led, what they were if that was asked, and why no further."""

    chunk: Chunk | None
    next_offset: int
    ending: Ending | None  # None: there may be more in the window


# Items; in the end where reading goes on, and the stamp if what is there is sealed.
Items: TypeAlias = Generator[Chunk | Damage | Stretch, None, tuple[int, int | None]]
_Stepper = Callable[[int, int, int], DecodeStep]


class _Reading:
    """One file being read; all offsets are those in the file."""

    def __init__(self, window: Window, piece: Piece, options: SourceOptions) -> None:
        self.window = window
        self._path = piece.file.path
        self._cut = piece.cut
        self._codec = piece.file.codec
        self._format = self._codec.seals
        self._seals = seals_of(options.dialect)
        self._no_seal = (0, 0)  # from the first place to the second there is none
        self._bulk = bulk_decoder(options.dialect, self._codec, payloads=options.payloads)
        self._walk = walk_of(options.dialect)
        self._salvages = options.salvage
        self.judge = Judge(self._codec, file=piece.file.path, salvage=options.salvage)
        self._came_to = 0  # a place, and the stamp if what follows there is sealed
        self._stamp: int | None = None
        self.reached = 0

    def start(self, piece: Piece) -> int:
        """The first boundary at or behind the begin of the piece, reached from its anchor.

        From the start of the file, if the anchor is not what an index says.
        """
        anchor, proof = piece.anchor, piece.proof
        if proof is not None:
            indexed = self.window.peek(proof.since, proof.offset)
            anchor = anchor if google_crc32c.value(indexed) == proof.crc else 0
        if anchor < piece.begin:
            for _ in self.items(anchor, piece.begin, None):
                pass
            return self.reached
        return anchor

    def items(
        self, offset: int, end: int, step: _Stepper | None, *, stretches: bool = False
    ) -> Iterator[Chunk | Damage | Stretch]:
        """Items from the boundary ``offset`` on that begin before ``end``; then ``reached``.

        Without a ``step`` only the damages among them.
        """
        if offset == 0 and end > 0:
            offset, damage = self._behind_header()
            if damage is not None:
                yield damage
        if self.judge.holds_back:
            # What led here knows more than the bytes before: these may be damaged.
            known = self._came_to == offset and offset > 0
            stamp = self._stamp if known else self._stamp_before(offset)
            while offset < end:
                offset, stamp = yield from (
                    self._scouted_items(offset, end, step, stretches=stretches)
                    if stamp is None
                    else self._sealed_items(
                        offset, end, stamp, rows=step is not None, stretches=stretches
                    )
                )
            self.reached = self._came_to = offset
            self._stamp = stamp
            return
        window = self.window
        step = step or self.walk
        stale, at_least = True, 0  # whether the window has to be moved, and what it has to hold
        while offset < end:
            if stale:
                window.move(offset, end, at_least)
            chunk, reached, ending = step(offset, end, MAX_RECORDS)
            if reached > offset:
                if chunk is not None:
                    yield chunk
                offset, stale, at_least = reached, ending is not None, 0
            elif window.begin < offset:
                stale = True  # judged only in a window that begins here
            elif ending is not None and self.is_cut_by_window(ending):
                stale, at_least = True, self.needed(ending)
            else:
                damage, _ = self.damage_at(offset, offset)
                yield damage
                offset, stale, at_least = damage.end, True, 0
        self.reached = offset

    def _scouted_items(
        self, offset: int, end: int, step: _Stepper | None, *, stretches: bool
    ) -> Items:
        """The same, where a fault may show that entries in front of it are damage.

        Up to an opening seal. Where that was, and the stamp of what follows.
        """
        scout = Scout(self, offset)
        at_least = 0
        while offset < end:
            self.window.move(offset, end + 2 * HELD_BYTES, at_least)
            scout.run(end)
            if step is not None:
                yield from self._sure_items(offset, min(end, scout.sure), step, stretches=stretches)
            offset, at_least = scout.sure, scout.reached - scout.sure + scout.needed
            if scout.is_at_fault and offset < end:
                damage = scout.damage
                yield damage
                offset, at_least = damage.end, 0
                if scout.stamp is not None:
                    return offset, scout.stamp
                scout = Scout(self, offset)
            elif scout.stamp is not None and offset == scout.reached and offset < end:
                assert self._format is not None
                return offset + self._format.size, scout.stamp
        return offset, None

    def _sure_items(
        self, offset: int, end: int, step: _Stepper, *, stretches: bool
    ) -> Iterator[Chunk | Stretch]:
        """Entries that begin before ``end``, all of them good and in the window."""
        while offset < end:
            if self.seal_at(offset):
                offset += self.seal_bytes
                continue
            max_records = MAX_RECORDS
            if stretches:
                stretch = self._stretch(offset, end)
                yield stretch
                if stretch.reached is not None:
                    max_records = FEW  # a few more, and it may take bytes again
                    if stretch.reached > stretch.begin:
                        offset = self.window.begin + stretch.reached
                        continue
            chunk, offset, _ = step(offset, end, max_records)
            if chunk is not None:
                yield chunk

    def walk(self, offset: int, end: int, _: int) -> DecodeStep:
        """No rows: entry by entry while all is well, else a few of them by the decoder."""
        begin = self.window.begin
        if self._walk is None:
            return self.decode(offset, end, MAX_RECORDS)
        reached = begin + self._walk(self.window.data, offset - begin, end - begin)
        return (
            DecodeStep(None, reached, None) if reached > offset else self.decode(offset, end, FEW)
        )

    def decode(self, offset: int, end: int, max_records: int) -> DecodeStep:
        """The rows of one chunk that begin before ``end``, and before the next seal."""
        return self._decode(offset, end, max_records, limit=self._limit(offset))

    def is_cut_by_window(self, ending: Ending) -> bool:
        cut = isinstance(ending.error, IncompleteEntry)
        return cut and self.window.end < self.window.size

    def needed(self, ending: Ending) -> int:
        assert isinstance(ending.error, IncompleteEntry)
        return max(ending.error.needed, 2 * len(self.window.data))

    def _behind_header(self) -> tuple[int, Damage | None]:
        self.window.move(0, 0, at_least=_HEADER_BYTES)
        try:
            return self._codec.check_header(self.window.data), None
        except FormatError:
            whole = self.window.rest(0)
            if self._format is None:
                return self.judge.header(whole)
            end = unsealed_end(self._format, whole, len(self._codec.header))
            offset, damage = self.judge.header(whole[:end])
            if damage is None or end < len(whole):
                return offset, damage
            sealed_at = sealed_inside(self._format, whole, damage)
            if sealed_at is None:
                return offset, damage
            return sealed_at[0], replace(damage, length=sealed_at[0], kind="corrupt")

    def damage_at(self, offset: int, boundary: int) -> tuple[Damage, int | None]:
        """How far the damage at ``offset`` goes; entries from ``boundary`` on led there.

        And the stamp, if it goes up to a sealed block.
        """
        rest = whole = self.window.rest(boundary)
        if self._format is not None:
            rest = whole[: unsealed_end(self._format, whole, 0, boundary)]
        held: list[Entry[Any]] = []
        at, fault = 0, None
        try:
            while (entry := self._codec.decode(rest, at)) is not None:
                held.append(entry)
                at = entry.end
        except FormatError as error:
            fault = error
        assert boundary + at == offset, f"decoder and codec disagree at {offset}, {boundary + at}"
        damage = self.judge.damage(rest, at, fault, held, base=boundary)
        if self._format is None or len(rest) < len(whole):
            return damage, None
        sealed_at = sealed_inside(self._format, whole, damage, boundary)
        if sealed_at is None:
            return damage, None
        begin, stamp = sealed_at
        return replace(damage, length=begin - damage.offset, kind="corrupt"), stamp

    def _sealed_items(
        self, offset: int, end: int, stamp: int, *, rows: bool, stretches: bool
    ) -> Items:
        """Blocks that begin before ``end``, up to a closing seal. Without ``rows`` only damages."""
        window, format_, kernels = self.window, self._format, self._seals
        assert format_ is not None
        assert kernels is not None
        at_least = 0
        while offset < end:
            window.move(offset, end + 2 * BLOCK_BYTES, at_least)
            proven, is_open = kernels.run(window.data, 0, end - offset, stamp, offset)
            if proven:
                if rows:
                    yield from self._proven_items(offset, offset + proven, stretches=stretches)
                offset, at_least = offset + proven, 0
                if not is_open:
                    return offset, None
            elif window.end < window.size and len(window.data) < MAX_BLOCK_BYTES:
                at_least = min(4 * len(window.data), MAX_BLOCK_BYTES)
            else:
                rest = window.rest(offset)
                damage = bad_block(format_, rest, 0, stamp, file=self._path, base=offset)
                if self._salvages and is_in_flight(damage):
                    return offset, None
                yield damage
                offset, at_least = damage.end, 0
        return offset, stamp

    def _proven_items(
        self, offset: int, end: int, *, stretches: bool
    ) -> Iterator[Chunk | Damage | Stretch]:
        """The entries of proven blocks, all of them in the window."""
        window = self.window
        stop = end if self._cut is None else min(end, self._cut)
        while offset < stop:
            max_records = MAX_RECORDS
            if stretches:
                stretch = self._stretch(offset, stop)
                yield stretch
                if stretch.reached is not None:
                    max_records = FEW
                    if stretch.reached > stretch.begin:
                        offset = window.begin + stretch.reached
                        continue
            chunk, reached, _ = self._decode(offset, stop, max_records, limit=end)
            if reached > offset:
                assert chunk is not None
                yield chunk
                offset = reached
                continue
            damage = self._undecodable(offset)
            yield damage
            offset = damage.end

    def _undecodable(self, offset: int) -> Damage:
        """An entry that was written as it stands here, but that nobody can read."""
        assert self._format is not None
        at = offset - self.window.begin
        frame_end = self._format.frame_end(self.window.data, at)
        assert frame_end is not None
        try:
            self._codec.decode(self.window.data, at)
        except FormatError as error:
            return Damage(self._path, offset, frame_end - at, "corrupt", error.reason)
        raise AssertionError(f"decoder and codec disagree at {offset}")

    def _stamp_before(self, offset: int) -> int | None:
        """The stamp of the sealed stretch that goes on at ``offset``; None if none does."""
        format_ = self._format
        if format_ is None or offset < format_.size:
            return None
        at = offset - format_.size
        seal = format_.parse(self.window.peek(at, offset), 0)
        if seal is None or not seal.opens or not 0 <= seal.begin <= at:
            return None
        if at - seal.begin > MAX_BLOCK_BYTES:
            return None
        block = self.window.peek(seal.begin, offset)
        return seal.stamp if fits(format_, seal, block, at - seal.begin, seal.begin) else None

    def seal_at(self, offset: int) -> bool:
        """Whether something that is marked as a seal stands in the window at ``offset``."""
        at, format_, data = offset - self.window.begin, self._format, self.window.data
        return (
            format_ is not None
            and at + format_.size <= len(data)
            and format_.is_like_seal(data, at)
        )

    def opening_stamp(self, offset: int) -> int | None:
        """The stamp of what follows, if the seal at ``offset`` fits and does not close."""
        assert self._format is not None
        return self._stamp_before(offset + self._format.size)

    @property
    def seal_bytes(self) -> int:
        return 0 if self._format is None else self._format.size

    def _limit(self, offset: int) -> int:
        """Where the next seal stands in the window, or its end."""
        window = self.window
        if self._seals is None:
            return window.end
        begin, end = self._no_seal
        if not begin <= offset < end:
            end = window.begin + self._seals.next_seal(window.data, offset - window.begin)
            self._no_seal = offset, end
        return end if self.seal_at(end) else window.end

    def _stretch(self, offset: int, end: int) -> Stretch:
        window = self.window
        return Stretch(window.data, offset - window.begin, end - window.begin, window.begin)

    def _decode(self, offset: int, end: int, max_records: int, *, limit: int) -> DecodeStep:
        window = self.window
        data = window.data[: limit - window.begin]
        enough = (end - offset) // _SMALL_ENTRY_BYTES + 1  # rows from ``end`` on would be dropped
        local = self._bulk(data, offset - window.begin, max_records=min(max_records, enough))
        chunk = shifted(local, window.begin)
        if chunk.next_offset > end:
            chunk = before(chunk, end)
        return DecodeStep(chunk, chunk.next_offset, chunk.ending)


class Scout:
    """Runs ahead of the rows over good entries, to the next fault or as far as the window goes.

    ``sure`` is a boundary up to which no fault can change anything any more. ``marks`` are
    boundaries, the first of them in front of every entry that a fault might still unseat.
    """

    def __init__(self, reading: _Reading, begin: int) -> None:
        self._reading = reading
        self._marks = [begin]
        self._past: int | None = None  # the first boundary at or behind the end
        self._damage: Damage | None = None
        self.stamp: int | None = None  # of what is sealed behind the seal, or the damage, met
        self.reached = self.sure = begin
        self.needed = 0  # bytes from ``reached`` on that the window has to hold
        self.is_at_fault = False

    def run(self, end: int) -> None:
        """Go on until all that begins before ``end`` is sure, to a fault, or through the window."""
        reading = self._reading
        self.needed = 0
        while not self._is_done(end):
            if self.reached == reading.window.end:
                self.needed = 1
                break
            if reading.seal_at(self.reached):
                self.stamp = reading.opening_stamp(self.reached)
                if self.stamp is not None:
                    self.sure = self.reached if self._past is None else self._past
                    return
                self._move(self.reached + reading.seal_bytes)
                continue
            step = reading.walk(self.reached, self._target(end), FEW)
            if step.next_offset > self.reached:
                self._move(step.next_offset)
            elif step.ending is not None and reading.is_cut_by_window(step.ending):
                self.needed = reading.needed(step.ending)
                break
            else:
                self._meet_fault()
                return
        # What is followed by this much is held no longer; what begins behind the end is not asked.
        last = self.reached if self._past is None else self._past
        marks = [mark for mark in self._marks if self.reached - mark > HELD_BYTES and mark <= last]
        self.sure = max([self.sure, *marks])
        self._marks = [mark for mark in self._marks if mark >= self.sure]

    @property
    def damage(self) -> Damage:
        """What the fault is about."""
        assert self._damage is not None
        return self._damage

    def _is_done(self, end: int) -> bool:
        if self._past is None and self.reached >= end:
            self._past = self.reached
        at_end = self.reached == self._reading.window.size
        if self._past is not None and (at_end or self.reached - self._past > HELD_BYTES):
            self.sure = self._past
            return True
        return False

    def _target(self, end: int) -> int:
        far = self.reached + _MARK_BYTES
        return min(far, end) if self.reached < end else far

    def _move(self, boundary: int) -> None:
        self.reached = boundary
        self._marks.append(boundary)

    def _meet_fault(self) -> None:
        held = [mark for mark in self._marks if self.reached - mark > HELD_BYTES]
        self.is_at_fault = True
        boundary = held[-1] if held else self._marks[0]
        self._damage, self.stamp = self._reading.damage_at(self.reached, boundary)
        self.sure = self._damage.offset
        if self._past is not None and self._past <= self.sure:
            self.sure = self._past
