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
follows what is handed on, and rows are made of what is sure by then. A seal ends its way: what
follows is proven otherwise.

A file is read through a window, which is moved on to the place where decoding stopped; so an entry
cut by the end of one window is read whole in the next. Only what is wrong in a window that begins
there is a fault. The bytes in a window are a copy: a file that is written to in place holds still
while it is decoded. What was appended since planning is not read.

The end of a log is not damage: zeros up to the end of a file, and an entry cut short at the end of
the last one.

Sealed stretches are read block by block, by the rule of journeyman.logs.sealing:

    [o][b][block][b][## bad block ##][b][block][c]

What is an item elsewhere is a block there. A run of blocks is checked by a kernel, and then decoded
at one go; a block that does not fit its seal is judged as the server judges it.

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
from journeyman.formats.seals import BLOCK_BYTES, is_marked, is_seal_here, seal_at
from journeyman.logs.damage import HELD_BYTES, Damage, Judge
from journeyman.logs.sealing import (
    begins_with_entry,
    is_in_flight,
    judge,
    seal_inside,
    unsealed_end,
)
from journeyman.spark.files import Window, filesystem_of, identity_of
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
        is_exact = reading.judge.is_settled_at(boundary) and reading.is_known_at(boundary)
        return boundary if is_exact else piece.anchor


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
    if piece.file.identity is not None and identity_of(file) != piece.file.identity:
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
            is_proven = google_crc32c.value(indexed) == proof.crc
            anchor = anchor if is_proven and self.is_known_at(anchor) else 0
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
            stamp = self._stamp if self._came_to == offset and offset > 0 else None
            while offset < end:
                if stamp is None and not self.is_seal_here(offset):
                    offset = yield from self._scouted_items(offset, end, step, stretches=stretches)
                else:
                    offset, stamp = yield from self._sealed_items(
                        offset, end, stamp, rows=step is not None, stretches=stretches
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
                damage = self.damage_at(offset, offset)
                yield damage
                offset, stale, at_least = damage.end, True, 0
        self.reached = offset

    def _scouted_items(
        self, offset: int, end: int, step: _Stepper | None, *, stretches: bool
    ) -> Generator[Chunk | Damage | Stretch, None, int]:
        """The same, where a fault may show that entries in front of it are damage.

        Up to a seal; where that was.
        """
        scout = self._new_scout(offset)
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
                if offset < end and self.is_seal_here(offset):
                    return offset
                scout = self._new_scout(offset)
            elif scout.is_at_seal and offset == scout.reached:
                return offset
        return offset

    def _new_scout(self, offset: int) -> Scout:
        """After damage entries follow one another on another way: seals on the old one are void."""
        self._no_seal = (0, 0)
        return Scout(self, offset)

    def _sure_items(
        self, offset: int, end: int, step: _Stepper, *, stretches: bool
    ) -> Iterator[Chunk | Stretch]:
        """Entries that begin before ``end``, all of them good and in the window."""
        while offset < end:
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
        target = min(end, self._limit(offset))
        reached = begin + self._walk(self.window.data, offset - begin, target - begin)
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
            if damage is None:
                return offset, damage
            seal = seal_inside(self._format, whole, damage)
            if seal is None:
                return offset, damage
            return seal, replace(damage, length=seal, kind="corrupt")

    def damage_at(self, offset: int, boundary: int) -> Damage:
        """How far the damage at ``offset`` goes; entries from ``boundary`` on led there."""
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
        if self._format is None:
            return damage
        seal = seal_inside(self._format, whole, damage, boundary)
        if seal is None:
            return damage
        return replace(damage, length=seal - damage.offset, kind="corrupt")

    def _sealed_items(
        self, offset: int, end: int, stamp: int | None, *, rows: bool, stretches: bool
    ) -> Items:
        """Blocks that begin before ``end``, up to what is not sealed. Without ``rows`` no rows.

        Where that was, and the stamp of the stretch that is open there.
        """
        window, format_, kernels = self.window, self._format, self._seals
        assert format_ is not None
        assert kernels is not None
        at_least = 0
        while offset < end:
            window.move(offset, end + 2 * BLOCK_BYTES, max(at_least, format_.size))
            proven, last = kernels.run(window.data, 0, end - offset, offset)
            if proven:
                if rows:
                    yield from self._proven_items(offset, offset + proven, stretches=stretches)
                offset, at_least, stamp = offset + proven, 0, None if last < 0 else last
                if stamp is None:
                    break
                continue
            seal = seal_at(format_, window.data, 0, offset)
            needed = 0 if seal is None else format_.size + seal.length
            if needed > len(window.data) and window.end < window.size:
                at_least = needed
                continue
            if not self.is_seal_here(offset) and self._begins_with_entry(offset):
                return offset, None  # another program's
            verdict = judge(
                *(self._codec, window.rest(offset), 0, stamp),
                file=self._path,
                base=offset,
                salvage=self._salvages,
            )
            window.move(offset, verdict.end, verdict.end - offset)
            for damage in verdict.damages:
                if rows:
                    yield from self._proven_items(offset, damage.offset, stretches=stretches)
                yield damage
                offset = damage.end
            if rows:
                yield from self._proven_items(offset, verdict.end, stretches=stretches)
            offset, at_least, stamp = verdict.end, 0, verdict.stamp
            if stamp is None:
                break
        return offset, stamp

    def _begins_with_entry(self, offset: int) -> bool:
        return begins_with_entry(self._codec, self.window.rest(offset), 0, offset)

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

    def is_seal_here(self, offset: int) -> bool:
        """True if a seal stands at this boundary, good, damaged, or cut short."""
        if self._format is None or offset >= self.window.size:
            return False
        end = min(offset + self._format.size, self.window.size)
        return is_seal_here(self._format, self.window.peek(offset, end), 0, offset)

    def is_known_at(self, offset: int) -> bool:
        """True if what stands at ``offset`` says by itself how to read on from there."""
        if self._format is None or offset >= self.window.size:
            return True
        self.window.move(offset, offset + BLOCK_BYTES)
        seal = seal_at(self._format, self.window.data, 0, offset)
        if seal is not None:
            return is_marked(self._format, self.window.data, 0)
        return not self.is_seal_here(offset) and self._begins_with_entry(offset)

    def _limit(self, offset: int) -> int:
        """Where the next seal stands in the window, or its end."""
        window = self.window
        if self._seals is None:
            return window.end
        begin, end = self._no_seal
        if not begin <= offset < end:
            is_end = window.end == window.size
            at = offset - window.begin
            end = window.begin + self._seals.next_seal(window.data, at, window.begin, is_end)
            self._no_seal = offset, end
        return end if self.is_seal_here(end) else window.end

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
        self.is_at_seal = False
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
            if reading.is_seal_here(self.reached):
                self.is_at_seal = True
                self.sure = self.reached if self._past is None else self._past
                return
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
        self._damage = self._reading.damage_at(self.reached, boundary)
        self.sure = self._damage.offset
        if self._past is not None and self._past <= self.sure:
            self.sure = self._past
