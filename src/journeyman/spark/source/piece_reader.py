"""A piece of a file -> its items in order: chunks of rows, and damages.

    bytes --window--> columnar.decode --> Chunk, Chunk, ...      as long as entries are good
                      logs.damage     --> Damage                 where they are not, then on

The items of a file, read from its start, are those of ``read_file`` (journeyman.logs.sealing),
found faster: kernels walk over good stretches and decode them in bulk; at a fault the reference
codec reads again from the last sure boundary, and the same Judge says how far the damage goes. A
piece begins at the first item that begins in it; to get there the same reading is done from the
piece's anchor, without making rows.

    file     |-entry-|-entry-|-entry-|-entry-|-entry-|-entry-|##
    rows     ===============>|                                        what is handed on
    walked   --------------------------------------------------->|    what was found good

Without a checksum an entry may turn out to be damage when a fault follows within HELD_BYTES
(journeyman.logs.damage). So entries are walked over until so much follows them, and only then made
rows of.

A file is read through a window, which begins where reading has come to; so an entry cut by the end
of one window is read whole in the next. The bytes in a window are a copy: a file that is written to
in place holds still while it is decoded. What was appended since planning is not read.

The end of a log is not damage: zeros up to the end of a file, and an entry cut short at the end of
the last one.

Sealed stretches are read block by block, by the rule of journeyman.logs.sealing:

    [o][b][block][b][## bad block ##][b][block][c]

What is an item elsewhere is a block there. A run of blocks is checked by a kernel, and then decoded
at one go; a block that does not fit its seal is judged as the server judges it.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import google_crc32c

from journeyman.columnar.chunks import MAX_RECORDS, Chunk
from journeyman.errors import FormatError, IncompleteEntry, LogError
from journeyman.formats import seals
from journeyman.formats.framing import Entry
from journeyman.logs import sealing
from journeyman.logs.damage import HELD_BYTES, Damage, Judge
from journeyman.spark.files import Window, filesystem_of, identity_of
from journeyman.spark.source.chunks import before, bulk_decoder, seals_of, shifted, walk_of
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.splits import Piece

WINDOW_BYTES = 4 * 1024 * 1024  # stays in the processor's cache while it is decoded
_HEADER_BYTES = 64
_MARK_BYTES = 64 * 1024  # from one boundary that is remembered to the next
FEW = 512  # records


def read_piece(piece: Piece, options: SourceOptions) -> Iterator[Chunk | Damage]:
    """The items of a piece but for the end of the log; offsets are those in the file."""
    return _read(piece, options, rows=True)


def read_damages(piece: Piece, options: SourceOptions) -> Iterator[Chunk | Damage]:
    """The damages of a piece alone: no row is made, so this is as fast as walking is."""
    return _read(piece, options, rows=False)


def _read(piece: Piece, options: SourceOptions, *, rows: bool) -> Iterator[Chunk | Damage]:
    with _opened(piece, options) as window:
        if window is None:
            return
        reading = _Reading(window, piece, options)
        begin = reading.start(piece)
        end = piece.end if piece.file.reader is None else window.size
        reading.makes_rows = rows
        for item in reading.items(begin, end):
            if not isinstance(item, Damage) or not _is_end(item, piece, window.size):
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
    if damage.length == 0 or (sealing.is_in_flight(damage) and piece.file.reader is None):
        return True
    may_end = damage.kind == "padding" or (damage.kind == "torn" and piece.file.is_last)
    return may_end and damage.end == size


class _Walked(NamedTuple):
    """Why a walk over good entries ended: at a fault, at a seal, or with the window."""

    is_fault: bool = False
    is_seal: bool = False
    needed: int = 0  # bytes from there on that the window has to hold; 0: enough was walked over


# Items; in the end where reading goes on, and the stamp if what is there is sealed.
Items: TypeAlias = Generator[Chunk | Damage, None, tuple[int, int | None]]


class _Reading:
    """One file being read; all offsets are those in the file."""

    def __init__(self, window: Window, piece: Piece, options: SourceOptions) -> None:
        self.window = window
        self.makes_rows = False
        self.judge = Judge(piece.file.codec, file=piece.file.path, salvage=options.salvage)
        self._path = piece.file.path
        self._cut = piece.cut
        self._codec = piece.file.codec
        self._format = self._codec.seals
        self._seals = seals_of(options.dialect)
        self._bulk = bulk_decoder(options.dialect, self._codec, payloads=options.payloads)
        self._walk = walk_of(options.dialect)
        self._salvages = options.salvage
        self._held_bytes = HELD_BYTES if self.judge.holds_back else -1
        self._reached = 0  # a place, and the stamp if what follows there is sealed
        self._stamp: int | None = None

    def start(self, piece: Piece) -> int:
        """The first boundary at or behind the begin of the piece, reached from its anchor.

        From the start of the file, if the anchor is not what an index says.
        """
        anchor, proof = piece.anchor, piece.proof
        if proof is not None:
            indexed = self.window.peek(proof.since, proof.offset)
            is_proven = google_crc32c.value(indexed) == proof.crc
            anchor = anchor if is_proven and self.is_known_at(anchor) else 0
        if anchor >= piece.begin:
            return anchor
        for _ in self.items(anchor, piece.begin):
            pass
        return self._reached

    def items(self, offset: int, end: int) -> Iterator[Chunk | Damage]:
        """Items from the boundary ``offset`` on that begin before ``end``; rows if it makes any."""
        if offset == 0 and end > 0:
            offset, damage = self._behind_header()
            if damage is not None:
                yield damage
        # What led here knows more than the bytes before: these may be damaged.
        stamp = self._stamp if self._reached == offset > 0 else None
        while offset < end:
            if stamp is None and not self.is_seal_here(offset):
                offset = yield from self._unsealed_items(offset, end)
            else:
                offset, stamp = yield from self._sealed_items(offset, end, stamp)
        self._reached, self._stamp = offset, stamp

    def _behind_header(self) -> tuple[int, Damage | None]:
        self.window.move(0, 0, at_least=_HEADER_BYTES)
        try:
            return self._codec.check_header(self.window.data), None
        except FormatError:
            whole = self.window.rest(0)
        if self._format is None:
            return self.judge.header(whole)
        end = sealing.unsealed_end(self._format, whole, len(self._codec.header))
        offset, damage = self.judge.header(whole[:end])
        seal = None if damage is None else sealing.seal_inside(self._format, whole, damage)
        if damage is None or seal is None:
            return offset, damage
        return seal, replace(damage, length=seal, kind="corrupt")

    def _unsealed_items(self, offset: int, end: int) -> Generator[Chunk | Damage, None, int]:
        """Up to the first boundary at or behind ``end``, up to a seal, or over one damage."""
        marks, at_least = [offset], 0  # boundaries, the last of them where the walk has come to
        while offset < end:
            self.window.move(offset, end + 2 * HELD_BYTES, at_least)
            walked = self._walk_ahead(marks, end)
            reached = marks[-1]
            settled = [mark for mark in marks if reached - mark > self._held_bytes]
            sure = settled[-1] if settled else offset
            damage = None
            if walked.is_fault:
                damage = self._damage_at(reached, settled[-1] if settled else marks[0])
                sure = damage.offset
            elif walked.is_seal or reached == self.window.size:
                sure = reached
            stop = min([sure, *(mark for mark in marks if mark >= end)])
            yield from self._rows(offset, stop, stop)
            if stop < end and damage is not None:
                yield damage
                return damage.end
            if stop == reached and walked.is_seal:
                return stop
            offset, at_least = stop, reached - stop + walked.needed
            marks = [mark for mark in marks if mark >= max(stop, sure)] or [stop]
        return offset

    def _walk_ahead(self, marks: list[int], end: int) -> _Walked:
        """Walk on from the last mark over good entries, until all that begins before ``end`` is
        sure, or to a fault, a seal or the end of the window. ``marks`` gets what was passed."""
        window, limit = self.window, self._limit(marks[-1])
        while True:
            reached = marks[-1]
            past = next((mark for mark in marks if mark >= end), None)
            is_enough = past is not None and reached - past > self._held_bytes
            if is_enough or reached == window.size:
                return _Walked()
            if reached == limit < window.end:
                return _Walked(is_seal=True)
            if reached == window.end:
                return _Walked(needed=1)
            target = min(reached + _MARK_BYTES, limit, end if past is None else limit)
            boundary = reached
            if self._walk is not None:
                at = reached - window.begin
                boundary = window.begin + self._walk(window.data, at, target - window.begin)
            if boundary == reached:  # the codec may still take what the walk leaves to it
                chunk = self._decoded(reached, limit, FEW)
                boundary = before(chunk, target).next_offset
                if boundary == reached and chunk.ending is not None:
                    error = chunk.ending.error
                    if isinstance(error, IncompleteEntry) and window.end < window.size:
                        return _Walked(needed=max(error.needed, 2 * len(window.data)))
                    return _Walked(is_fault=True)
            marks.append(boundary)

    def _limit(self, offset: int) -> int:
        """Where the next seal stands in the window, or its end."""
        window = self.window
        if self._seals is None:
            return window.end
        is_end = window.end == window.size
        at = self._seals.next_seal(window.data, offset - window.begin, window.begin, is_end)
        return window.begin + at if self.is_seal_here(window.begin + at) else window.end

    def _damage_at(self, offset: int, boundary: int) -> Damage:
        """How far the damage at ``offset`` goes; entries from ``boundary`` on led there."""
        rest = whole = self.window.rest(boundary)
        if self._format is not None:
            rest = whole[: sealing.unsealed_end(self._format, whole, 0, boundary)]
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
        seal = sealing.seal_inside(self._format, whole, damage, boundary)
        if seal is None:
            return damage
        return replace(damage, length=seal - damage.offset, kind="corrupt")

    def _sealed_items(self, offset: int, end: int, stamp: int | None) -> Items:
        """Blocks that begin before ``end``, up to what is not sealed.

        Where that was, and the stamp of the stretch that is open there.
        """
        window, format_, kernels = self.window, self._format, self._seals
        assert format_ is not None
        assert kernels is not None
        at_least = 0
        while offset < end:
            window.move(offset, end + 2 * seals.BLOCK_BYTES, max(at_least, format_.size))
            proven, last = kernels.run(window.data, 0, end - offset, offset)
            if proven:
                yield from self._rows(offset, offset + proven, self._cut)
                offset, at_least, stamp = offset + proven, 0, None if last < 0 else last
                if stamp is None:
                    break
                continue
            seal = seals.seal_at(format_, window.data, 0, offset)
            needed = 0 if seal is None else format_.size + seal.length
            if needed > len(window.data) and window.end < window.size:
                at_least = needed
                continue
            if not self.is_seal_here(offset) and self._begins_with_entry(offset):
                return offset, None  # another program's
            verdict = sealing.judge(
                *(self._codec, window.rest(offset), 0, stamp),
                file=self._path,
                base=offset,
                salvage=self._salvages,
            )
            window.move(offset, verdict.end, verdict.end - offset)
            for damage in verdict.damages:
                yield from self._rows(offset, damage.offset, self._cut)
                yield damage
                offset = damage.end
            yield from self._rows(offset, verdict.end, self._cut)
            offset, at_least, stamp = verdict.end, 0, verdict.stamp
            if stamp is None:
                break
        return offset, stamp

    def _rows(self, offset: int, end: int, cut: int | None) -> Iterator[Chunk | Damage]:
        """The entries up to the boundary ``end`` that begin before ``cut``; the window has them."""
        stop = end if cut is None else min(end, cut)
        while self.makes_rows and offset < stop:
            chunk = before(self._decoded(offset, end, MAX_RECORDS), stop)
            if chunk.next_offset > offset:
                yield chunk
                offset = chunk.next_offset
                continue
            damage = self._undecodable(offset)
            yield damage
            offset = damage.end

    def _decoded(self, offset: int, limit: int, max_records: int) -> Chunk:
        begin = self.window.begin
        data = self.window.data[: limit - begin]
        return shifted(self._bulk(data, offset - begin, max_records=max_records), begin)

    def _undecodable(self, offset: int) -> Damage:
        """An entry of a proven block: it was written as it stands here, but nobody can read it."""
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
        return seals.is_seal_here(self._format, self.window.peek(offset, end), 0, offset)

    def is_known_at(self, offset: int) -> bool:
        """True if what stands at ``offset`` says by itself how to read on from there."""
        if self._format is None or offset >= self.window.size:
            return True
        self.window.move(offset, offset + seals.BLOCK_BYTES)
        if seals.seal_at(self._format, self.window.data, 0, offset) is not None:
            return seals.is_marked(self._format, self.window.data, 0)
        return not self.is_seal_here(offset) and self._begins_with_entry(offset)

    def _begins_with_entry(self, offset: int) -> bool:
        return sealing.begins_with_entry(self._codec, self.window.rest(offset), 0, offset)
