"""A piece of a file -> its items in order: chunks of rows, and damages.

    bytes --window--> columnar.decode --> Chunk, Chunk, ...      as long as entries are good
                      logs.damage     --> Damage                 where they are not, then on

The items of a file, read from its start, are those of ``read_file`` (journeyman.logs.sealing),
found faster: good stretches are decoded in bulk; at a fault the reference codec reads again from
the last sure boundary, and the same Judge says how far the damage goes. A piece begins at the first
item that begins in it; to get there the same reading is done from the piece's anchor.

    file       |-entry-|-entry-|-entry-|-entry-|-entry-|-entry-|##
    handed on  ===============>|
    decoded    ------------------------------------------------>|

Without a checksum an entry may turn out to be damage when a fault follows within HELD_BYTES
(journeyman.logs.damage). So chunks are held back until so much was decoded behind them.

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
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, BinaryIO, TypeAlias

import google_crc32c
import numpy as np

from journeyman.columnar.arrays import stored_in
from journeyman.columnar.chunks import MAX_RECORDS, Chunk
from journeyman.errors import FormatError, IncompleteEntry, LogError
from journeyman.formats import seals
from journeyman.formats.framing import Entry
from journeyman.logs import sealing
from journeyman.logs.damage import HELD_BYTES, Damage, Judge
from journeyman.spark.files import Window, filesystem_of, identity_of
from journeyman.spark.source.chunks import before, bulk_decoder, seals_of, shifted
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.pieces import Piece

_MAY_COME = ("torn", "padding", sealing.UNSEALED, sealing.UNANNOUNCED)
WINDOW_BYTES = 4 * 1024 * 1024  # stays in the processor's cache while it is decoded
_HEADER_BYTES = 64


def read_piece(piece: Piece, options: SourceOptions) -> Iterator[Chunk | Damage]:
    """The items of a piece but for the end of the log; offsets are those in the file."""
    return _read(piece, options, rows=True)


def read_damages(piece: Piece, options: SourceOptions) -> Iterator[Chunk | Damage]:
    """The damages of a piece alone."""
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


def last_boundary(piece: Piece, options: SourceOptions, *, goes_on: bool) -> int:
    """Where the last item ends that is whole in a piece.

    What stands behind it may still be on its way: an entry that is cut short, zeros, a batch that
    is announced. ``goes_on``: the file has more, so anything that runs up to the end is cut short.
    """
    with _opened(piece, options) as window:
        if window is None:
            return piece.begin
        reading = _Reading(window, piece, options)
        for last in deque(reading.items(piece.begin, piece.end), maxlen=1):
            is_tail = isinstance(last, Damage) and last.end == window.size
            if isinstance(last, Damage) and is_tail and (goes_on or last.kind in _MAY_COME):
                return last.offset
        return reading.reached


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


def _first_boundary(chunk: Chunk, end: int) -> int:
    """Where the first row begins that is at or behind ``end``, or where the chunk ends."""
    offsets = stored_in(chunk.batch.column("offset"))
    row = int(np.searchsorted(offsets, end))
    return int(offsets[row]) if row < len(offsets) else chunk.next_offset


def _is_end(damage: Damage, piece: Piece, size: int) -> bool:
    if damage.length == 0 or (sealing.is_in_flight(damage) and piece.file.reader is None):
        return True
    may_end = damage.kind == "padding" or (damage.kind == "torn" and piece.file.is_last)
    return may_end and damage.end == size


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
        self._decoders = [
            bulk_decoder(options.dialect, self._codec, payloads=payloads)
            for payloads in (False, options.payloads)
        ]
        self._salvages = options.salvage
        self._held_bytes = HELD_BYTES if self.judge.holds_back else -1
        self.reached = 0  # a place, and the stamp if what follows there is sealed
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
        return self.reached

    def items(self, offset: int, end: int) -> Iterator[Chunk | Damage]:
        """Items from the boundary ``offset`` on that begin before ``end``; rows if it makes any."""
        if offset == 0 and end > 0:
            offset, damage = self._behind_header()
            if damage is not None:
                yield damage
        # The walk that led here knows more than the bytes before, which may be damaged.
        stamp = self._stamp if self.reached == offset > 0 else None
        while offset < end:
            if stamp is None and not self.is_seal_here(offset):
                offset = yield from self._unsealed_items(offset, end)
            else:
                offset, stamp = yield from self._sealed_items(offset, end, stamp)
        self.reached, self._stamp = offset, stamp

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
        window = self.window
        held: list[Chunk] = []  # decoded, but a fault may still show that they are astray
        sure = reached = offset  # where these begin and end
        past: int | None = None  # the first boundary at or behind the end
        is_stale, at_least, limit = True, 0, 0  # how far the window has to move, if at all
        while reached < window.size and (past is None or reached - past <= self._held_bytes):
            if is_stale:
                window.move(reached, end + 2 * HELD_BYTES, at_least)
                is_stale, limit = False, self._limit(reached)
                if reached == limit:
                    break  # a seal
            chunk = self._decoded(reached, limit)
            error = None if chunk.ending is None else chunk.ending.error
            if chunk.next_offset > reached:
                held.append(chunk)
                reached, is_stale, at_least = chunk.next_offset, chunk.ending is not None, 0
                if past is None and reached >= end:
                    past = _first_boundary(chunk, end)
                while past is None and reached - held[0].next_offset > self._held_bytes:
                    sure = held[0].next_offset
                    yield from self._rows_before([held.pop(0)], end)
                    if not held:
                        break
            elif isinstance(error, IncompleteEntry) and window.end < window.size:
                is_stale, at_least = True, max(error.needed, 2 * len(window.data))
            elif window.begin < reached:
                is_stale = True  # a fault is one only in a window that begins with it
            else:
                damage = self._damage_at(reached, self._settled(held, sure, reached))
                if past is not None and past <= damage.offset:
                    break
                yield from self._rows_before(held, damage.offset)
                yield damage
                return damage.end
        yield from self._rows_before(held, end)
        return reached if past is None else past

    def _rows_before(self, chunks: list[Chunk], end: int) -> Iterator[Chunk]:
        for chunk in chunks if self.makes_rows else ():
            rows = before(chunk, end)
            if rows.batch.num_rows:
                yield rows

    def _settled(self, chunks_held: list[Chunk], sure: int, fault: int) -> int:
        """The last boundary in front of everything that a fault here may be about."""
        if self._held_bytes < 0:
            return fault
        for chunk in reversed(chunks_held):
            offsets = stored_in(chunk.batch.column("offset"))
            if rows := int(np.searchsorted(offsets, fault - self._held_bytes)):
                return int(offsets[rows - 1])
        return sure

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
            chunk = before(self._decoded(offset, end), stop)
            if chunk.next_offset > offset:
                yield chunk
                offset = chunk.next_offset
                continue
            damage = self._undecodable(offset)
            yield damage
            offset = damage.end

    def _decoded(self, offset: int, limit: int) -> Chunk:
        begin, decode = self.window.begin, self._decoders[self.makes_rows]
        data = self.window.data[: limit - begin]
        return shifted(decode(data, offset - begin, max_records=MAX_RECORDS), begin)

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
