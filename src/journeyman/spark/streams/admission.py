"""How much of what is there goes into one micro-batch.

    maxBytesPerTrigger    bytes of log; more only if a single entry is larger

Logs take their turns: the first one takes what it can, the next what is left. Who is first moves
on with every batch (``turn``), so a log that grows without end starves no other; and the first one
gets at least one entry, so no limit stops a stream. Inside a log the order is that of the chain: no
file is begun before the one in front of it has been read to its end.

What a batch reads is cut into pieces for parallel tasks:

    stretches    |------------- file 3 -------------|--- file 4 ---|-- another log --|
    pieces       |-----------|-----------|----------|---|----------|-----|-----------|
    partitions   |     0     |     1     |       2      |       3        |     4     |

Pieces begin and end between entries: at marks of the file's index, or found by hopping over
lengths. A small batch is one piece: a task costs more than it saves below a few MiB. The path that
is opened may be that of a link; rows show the name that the file had in its log.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from journeyman.errors import FormatError, IncompleteEntry, LogError
from journeyman.formats.framing import Buffer, Codec
from journeyman.formats.seals import is_seal_here, seal_at
from journeyman.logs.catalog import LogFile
from journeyman.logs.indexes import Index
from journeyman.logs.sealing import UNANNOUNCED, UNSEALED, begins_with_entry, judge
from journeyman.spark.files import filesystem_of
from journeyman.spark.source.chunks import seals_of
from journeyman.spark.source.options import KESTREL, LEDGER, WORKQ, SourceOptions
from journeyman.spark.source.pieces import LogPartition, Piece, SplitContext
from journeyman.spark.source.splits import anchor_for, index_of
from journeyman.spark.streams.chains import opened_path
from journeyman.spark.streams.offsets import (
    BatchStretch,
    FilePlace,
    LogPlace,
    StreamOffset,
    fingerprint,
    read_at,
    with_file,
)

if TYPE_CHECKING:
    from journeyman.columnar.seals import SealKernels

_CHUNK_BYTES = 8 * 1024 * 1024
_MAY_COME = (UNSEALED, UNANNOUNCED, "padding")  # the rest of such a tail may be on its way
_FIRST_LOOK_BYTES = 64 * 1024
MIN_PIECE_BYTES = 4 * 1024 * 1024
MAX_PIECE_BYTES = 128 * 1024 * 1024


@dataclass(slots=True)
class Allowance:
    """The bytes that one batch may still take; None is no limit."""

    max_bytes: int | None = None
    is_untouched: bool = True

    def take(self, length: int) -> None:
        self.is_untouched = False
        if self.max_bytes is not None:
            self.max_bytes = max(0, self.max_bytes - length)


def advanced(
    dialect: str, offset: StreamOffset, allowance: Allowance, ceiling: StreamOffset | None = None
) -> StreamOffset:
    """``offset`` moved on over whole entries; the same if there are none.

    ``ceiling``: no file is read further than it is there, which is an end of entries.
    """
    logs = dict(offset.logs)
    for name in _in_turn(sorted(logs), offset.turn):
        caps = None if ceiling is None else {f.segment: f.end for f in ceiling.logs[name].files}
        logs[name] = _log_advanced(dialect, logs[name], allowance, caps)
    turn = offset.turn if allowance.is_untouched else offset.turn + 1
    return replace(offset, logs=logs, turn=turn)


def _in_turn(names: list[str], turn: int) -> Iterator[str]:
    first = turn % len(names) if names else 0
    yield from names[first:]
    yield from names[:first]


def _log_advanced(
    dialect: str, place: LogPlace, allowance: Allowance, caps: dict[int, int] | None
) -> LogPlace:
    for file in place.files:
        if file.finished:
            continue
        if allowance.max_bytes == 0:
            break
        moved = _file_advanced(
            dialect, file, allowance, None if caps is None else caps[file.segment]
        )
        if moved.end > file.end:
            allowance.take(moved.end - file.end)
            place = with_file(place, moved)
        if not moved.finished:
            break
    return place


def _file_advanced(
    dialect: str, file: FilePlace, allowance: Allowance, cap: int | None
) -> FilePlace:
    path = opened_path(file)
    if path is None:
        raise LogError(
            file.path,
            f"is no longer the file that was read up to byte {file.end}: removed or replaced, and "
            "no link was made on it; begin a new checkpoint, or set holdFiles=true",
        )
    filesystem = filesystem_of(path)
    with closing(filesystem.open(path)) as opened:
        found = filesystem.find(path)
        size = file.end if found is None else found.size
        size = size if file.final is None else file.final
        size = size if cap is None else min(size, cap)
        room = allowance.max_bytes
        if cap is not None and size == cap and (room is None or cap - file.end <= room):
            end = cap  # found by a walk before
        else:
            is_closed = file.final is not None and size == file.final
            steps = walk(dialect, opened, size, closed=is_closed)
            end = steps.reach(file.end, room, must_move=allowance.is_untouched)
        if end == file.end:
            return file
        return replace(file, end=end, mark=fingerprint(opened, end))


def partitions_of(found: Iterable[BatchStretch], options: SourceOptions) -> list[LogPartition]:
    """Partitions of about the same size, in order."""
    all_stretches = list(found)
    piece_bytes = _piece_bytes(sum(each.length for each in all_stretches), options)
    partitions: list[list[Piece]] = []
    room = 0
    for stretch in all_stretches:
        for piece in _pieces(stretch, options.dialect, piece_bytes):
            if not partitions or 2 * room < piece.end - piece.begin:
                partitions.append([])
                room = piece_bytes
            partitions[-1].append(piece)
            room -= piece.end - piece.begin
    return [LogPartition(pieces) for pieces in partitions]


def _piece_bytes(total: int, options: SourceOptions) -> int:
    if options.split_bytes is not None:
        return options.split_bytes
    cores = options.min_partitions or os.cpu_count() or 1
    return max(MIN_PIECE_BYTES, min(MAX_PIECE_BYTES, -(-total // cores)))


def _pieces(stretch: BatchStretch, dialect: str, piece_bytes: int) -> Iterator[Piece]:
    path = opened_path(stretch.file)
    if path is None:
        raise LogError(
            stretch.file.path,
            f"bytes {stretch.begin} to {stretch.file.end} belong to a batch that is not finished, "
            "but the file was removed or replaced, and no link was made on it; begin a new "
            "checkpoint, and set holdFiles=true",
        )
    file = LogFile(
        dialect,
        path,
        queue=stretch.place.queue,
        size=stretch.file.end,
        identity=stretch.file.inode,
        segment=stretch.file.segment,
    )
    context = SplitContext(
        log=stretch.log,
        file=stretch.file.path,
        segment=stretch.file.segment,
        queue=stretch.place.queue,
        partitions=stretch.place.partitions,
    )
    whole = Piece(context, file, stretch.begin, stretch.file.end, anchor=stretch.begin)
    index = index_of(whole) if stretch.length > piece_bytes else None
    if index is not None:
        whole = yield from _by_index(whole, index, piece_bytes)
    if whole.end - whole.begin <= piece_bytes:
        yield whole
        return
    with closing(filesystem_of(path).open(path)) as opened:
        steps = walk(dialect, opened, stretch.file.end, closed=False)
        (_, first_end), *others = steps.pieces(whole.begin, whole.end, piece_bytes)
    yield replace(whole, end=first_end)
    for begin, end in others:
        yield replace(whole, begin=begin, end=end, anchor=begin, proof=None)


def _by_index(whole: Piece, index: Index, piece_bytes: int) -> Generator[Piece, None, Piece]:
    """Pieces as far as marks cut them; what is left."""
    while whole.end - whole.begin > piece_bytes:
        mark = index.mark_before(whole.begin + piece_bytes)
        if mark is None or mark.offset <= whole.begin:
            break
        yield replace(whole, end=mark.offset)
        proof = anchor_for(whole.file, index, mark.offset)
        anchor = 0 if proof is None else proof.offset
        whole = replace(whole, begin=mark.offset, anchor=anchor, proof=proof)
    return whole


@dataclass(frozen=True, slots=True)
class Walk:
    """One file, as of now: ``size`` bytes, of which more may come unless it is ``closed``.

        [header][entry][entry][#### damage ####][entry][torn
                                                       ^ reach of an open file
                                                             ^ reach of a closed one

    A batch ends between two entries. What follows in an *open* file may be on its way: a torn
    entry, or zeros that a file system or a mapping has put there. It waits. In a *closed* file
    nothing is on its way, so the rest is read with it, and is damage there, as for the batch
    source.

    Damage is part of the batch in which it is met, and goes as far as the rule for damaged logs
    says (journeyman.logs.damage) of what is there; if nothing follows it, up to the end of that,
    since what is appended later begins with an entry again.

    In a sealed stretch a batch ends behind a block that is whole; one that is announced and not
    whole is on its way. A bad block that a good one follows is damage, and part of the batch.

    Otherwise only lengths are followed. What is inside an entry, and whether its checksum fits, is
    found out by whoever decodes the stretch. Bytes are read, never mapped: a writer may cut a file
    under us.
    """

    codec: Codec[Any]
    hop: Callable[[Buffer, int, int], int]
    file: BinaryIO
    size: int
    closed: bool
    seals: SealKernels | None = None

    def reach(self, begin: int, most: int | None = None, *, must_move: bool = False) -> int:
        """The last end of an entry that is at most ``most`` bytes behind ``begin``.

        ``must_move``: at least one entry, however large, if there is a whole one.
        """
        upto = self.size if most is None else min(self.size, begin + most)
        if self.closed and upto == self.size:
            return self.size
        at = begin
        stamp: int | None = None
        while at < upto:
            if self._is_sealed(at, stamp):
                step, stamp = self._blocks(at, upto, stamp, must_move=must_move and at == begin)
                if step == 0:
                    return at
                at += step
                continue
            stamp = None
            step = self._hops(at, upto)
            if step == 0:
                beyond = self._beyond(at)
                if beyond is None or (beyond > upto and not (must_move and at == begin)):
                    return at
                step = beyond - at
            at += step
        return at

    def pieces(self, begin: int, end: int, piece_bytes: int) -> Iterator[tuple[int, int]]:
        """``begin`` to ``end`` in pieces of about this size; both are ends of entries."""
        while end - begin > piece_bytes:
            cut = self.reach(begin, piece_bytes, must_move=True)
            if not begin < cut < end:
                break
            yield begin, cut
            begin = cut
        yield begin, end

    def _hops(self, at: int, upto: int) -> int:
        """How far lengths lead from ``at`` without passing ``upto`` or a seal; at most a chunk."""
        data = read_at(self.file, at, min(_CHUNK_BYTES, upto - at))
        try:
            begin = 0 if at > 0 else self.codec.check_header(data)
        except FormatError:
            return 0
        target = len(data)
        if self.seals is not None and begin < target:
            is_end = at + len(data) == self.size
            target = max(begin, self.seals.next_seal(data, begin, at, is_end))
        return self.hop(data, begin, target) if target > begin else begin

    # --- sealed stretches ---

    def _is_sealed(self, at: int, stamp: int | None) -> bool:
        """True if a seal stands at ``at``, or should: ``stamp`` is that of the open stretch.

        A whole entry without an announcement is another program's.
        """
        format_ = self.codec.seals
        if format_ is None:
            return False
        head = read_at(self.file, at, min(format_.size, self.size - at))
        if is_seal_here(format_, head, 0, at):
            return True
        if stamp is None:
            return False
        return not begins_with_entry(self.codec, read_at(self.file, at, self.size - at), 0, at)

    def _blocks(
        self, at: int, upto: int, stamp: int | None, *, must_move: bool
    ) -> tuple[int, int | None]:
        """How far blocks lead without passing ``upto``, and the stamp of the stretch open there.

        0: a batch is on its way, or the next block passes it.
        """
        format_ = self.codec.seals
        assert format_ is not None
        assert self.seals is not None
        limit = self.size if must_move else upto
        data = read_at(self.file, at, min(_CHUNK_BYTES, limit - at))
        seal = seal_at(format_, data, 0, at)
        needed = 0 if seal is None else format_.size + seal.length
        if len(data) < needed <= limit - at:
            data = read_at(self.file, at, needed)
        end, last = self.seals.run(data, 0, 1 if must_move else len(data), at)
        if end:
            return end, None if last < 0 else last
        if limit - at < needed <= self.size - at:
            return 0, stamp
        verdict = judge(self.codec, read_at(self.file, at, self.size - at), 0, stamp, base=at)
        may_come = verdict.end == self.size and verdict.damages[-1].kind in _MAY_COME
        if may_come:
            return (self.size - at, None) if self.closed and upto == self.size else (0, stamp)
        step = verdict.end - at
        return (step, verdict.stamp) if step <= upto - at or must_move else (0, stamp)

    def _beyond(self, at: int) -> int | None:
        """Where the entry or the damage at ``at`` ends; None while that cannot be told."""
        look = _FIRST_LOOK_BYTES
        while True:
            data = read_at(self.file, at, min(look, self.size - at))
            is_all = at + len(data) >= self.size
            try:
                begin = self.codec.check_header(data) if at == 0 else 0
                entry = self.codec.decode(data, begin)
            except IncompleteEntry as error:
                look = max(look, error.needed)
            except FormatError:
                behind = self._behind_damage(data, is_header=at == 0, is_all=is_all)
                if behind is not None:
                    return at + behind
                if is_all and not self.codec.is_torn(data, 0):
                    return self.size
            else:
                if entry is not None:
                    return at + entry.end
                is_all = True  # a mark says that the data end here
            if is_all:
                return self.size if self.closed else None
            look *= 2

    def _behind_damage(self, data: bytes, *, is_header: bool, is_all: bool) -> int | None:
        """Where reading goes on. Without a checksum it takes all that is there to tell."""
        if not (is_all or self.codec.has_checksum):
            return None
        if is_all and self.codec.is_torn(data, 0):
            return None
        behind = None if is_header else self.codec.skip(data, 0)
        if behind is None:
            behind = self.codec.resync(data, 0 if is_header else 1)
        return behind


def walk(dialect: str, file: BinaryIO, size: int, *, closed: bool) -> Walk:
    """A walk over a file of this dialect."""
    if dialect in (WORKQ, LEDGER):  # records in the same frame
        from journeyman.columnar.workq.decode import hop as workq_hop
        from journeyman.formats import ledger, workq

        codec: Codec[Any] = workq.CODEC if dialect == WORKQ else ledger.CODEC
        return Walk(codec, workq_hop, file, size, closed)
    if dialect == KESTREL:
        from journeyman.columnar.kestrel.decode import hop as kestrel_hop
        from journeyman.formats.kestrel import WRITER

        return Walk(WRITER, kestrel_hop, file, size, closed, seals_of(dialect))
    from journeyman.columnar.ztick.decode import hop as ztick_hop
    from journeyman.formats.ztick import CODEC as ZTICK_CODEC

    return Walk(ZTICK_CODEC, ztick_hop, file, size, closed, seals_of(dialect))
