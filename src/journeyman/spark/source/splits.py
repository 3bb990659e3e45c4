"""The inputs of tasks: pieces of files, cut anywhere and yet exact; and how logs are cut.

    file      |-entry-|--entry--|-entry-|####|----entry----|-entry-|   items; #### is damage
    cut at                 x                       x                   any bytes whatever
    pieces    |     piece 0     |         piece 1          |  2    |

Read from its start, a file is a row of items end to end: entries, and stretches of damage. A piece
owns the items that *begin* inside its bytes. So wherever the cuts are, every item belongs to one
piece, and what remains is to find the first item that begins at or behind a cut. No format has
marks to find it by, and a payload may quote whole log entries; so it is not guessed: the reader
of a piece walks there, item by item, from its ``anchor``, a place known to be a boundary: a mark of
the file's index (journeyman.logs.indexes), or without one the start of the file, or a boundary that
the planner has walked to. Walking takes a small part of the time that reading takes: see
journeyman.spark.source.piece_reader. A mark is believed only if the bytes before it are those that
were indexed; else the reader walks from the start.

    logs --> pieces of at most split_bytes --> neighbours packed into partitions

About one partition a core is best: a reducer combines the more the more it sees, and every task
costs its start. So a huge file becomes many partitions and many small files become one. A local
file without an index whose parts lie far from its start gets anchors, so that no reader has to walk
far; only then does planning read any of it. A file in an object store or a database is cut at the
marks of its index alone; without one, a single task reads it.

If records are wanted by time or key, a file is left out whose index says that it has none of them.
For ztick the ledger says it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

from journeyman.errors import UsageError
from journeyman.logs.catalog import Log, LogFile
from journeyman.logs.damage import HELD_BYTES
from journeyman.logs.indexes import MARK_BYTES, Index, Mark, has_key, load_index
from journeyman.logs.ledger import FileTimes, ledger_beside, times_of
from journeyman.spark.files import Addresses, absolute, filesystem_of, is_uri
from journeyman.spark.source.options import ZTICK, AsOfPosition, SourceOptions
from journeyman.spark.source.pieces import LogPartition, Piece, SplitContext

MAX_SPLIT_BYTES = 256 * 1024 * 1024
MAX_REDUCED_SPLIT_BYTES = 1024 * 1024 * 1024  # a reducer hands on little
MIN_SPLIT_BYTES = 16 * 1024 * 1024  # below, another task costs more than it saves
MAX_WALK_BYTES = 1024 * 1024 * 1024  # in a local file
MAX_BUCKETS = 65_536
_BUCKET_BYTES = 8 * 1024 * 1024
_OPEN_COST_BYTES = 128 * 1024  # opening a file takes as long as reading this much
_OVERFULL = 0.1  # partitions too few, at most
_REQUESTS_AT_ONCE = 16


def plan_partitions(
    logs: Iterable[Log], options: SourceOptions, *, times: bool = False
) -> list[LogPartition]:
    """Partitions for all logs; none when there is nothing to read.

    ``times``: when records were written is asked for.
    """
    files = list(_whole_files(logs, options, times=times or options.has_moment))
    if options.as_of_position is not None:
        files = _before(files, options.as_of_position)
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:  # an index at a URI is a request
        files = list(pool.map(lambda piece: _if_wanted(piece, options), files))
    # A reducer is shown files without a record too.
    files = [piece for piece in files if piece.end > 0 or options.reduce is not None]
    return cut(files, options)


def cut(stretches: Sequence[Piece], options: SourceOptions) -> list[LogPartition]:
    """Partitions of about the same size for stretches of files, in their order."""
    total = sum(piece.end - piece.begin for piece in stretches)
    split_bytes = _split_bytes(total, options)
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE) as pool:
        parts = pool.map(lambda piece: list(_parts(piece, split_bytes, options)), stretches)
        pieces = [part for each in parts for part in each]
    least = math.ceil(total / split_bytes)
    return [LogPartition(group) for group in _packed(pieces, split_bytes, least)]


def _whole_files(logs: Iterable[Log], options: SourceOptions, *, times: bool) -> Iterator[Piece]:
    for log in logs:
        known = _times(log, options) if times and log.dialect == ZTICK else {}
        buckets = _buckets(sum(file.size for file in log.files))
        for file in log.files:
            context = SplitContext(
                log=log.name,
                file=file.path,
                segment=file.segment,
                queue=file.queue,
                reader=file.reader,
                partitions=log.partitions,
                buckets=buckets,
                times=known.get(file.path),
            )
            yield Piece(context, file, 0, file.size)


def _times(log: Log, options: SourceOptions) -> Mapping[str, FileTimes]:
    """Return the times of files, from the ledger beside a schedule's log or one that was named."""
    ledger = options.ledger or ledger_beside(log.name)
    known = times_of(Addresses(), absolute(ledger), [file.path for file in log.files])
    if options.has_moment and not known:
        raise UsageError(
            f"records of {log.name} say no time, and there is no ledger with times at {ledger}: "
            "give the option ledger, or a position"
        )
    return known


def _buckets(log_bytes: int) -> int:
    """The power of two that is not below one for each 8 MiB."""
    wanted = max(1, -(-log_bytes // _BUCKET_BYTES))
    return min(MAX_BUCKETS, 1 << (wanted - 1).bit_length())


def _split_bytes(total: int, options: SourceOptions) -> int:
    if options.split_bytes is not None:
        return options.split_bytes
    cores = options.min_partitions or os.cpu_count() or 1
    most = MAX_SPLIT_BYTES if options.reduce is None else MAX_REDUCED_SPLIT_BYTES
    return max(MIN_SPLIT_BYTES, min(most, -(-total // cores)))


def _parts(piece: Piece, split_bytes: int, options: SourceOptions) -> Iterator[Piece]:
    """Cut a piece into equal parts of about ``split_bytes``. A checkpoint is one: it may change.

    None of them is farther from its anchor than a reader should walk.
    An anchor is the first boundary at or behind some part's begin; a part that begins before it
    but behind that begin has nothing in front of it.
    """
    size = piece.end - piece.begin
    count = 1 if piece.file.reader is not None else max(1, -(-size // split_bytes))
    index = index_of(piece) if count > 1 else None
    anchor, proof = piece.anchor, piece.proof
    for begin, end in pairwise(_cuts(piece, count, index)):
        known = None if index is None else anchor_for(piece.file, index, begin)
        if known is not None and known.offset > anchor:
            anchor, proof = known.offset, known
        if begin - anchor > MAX_WALK_BYTES:
            from journeyman.spark.source.piece_reader import first_boundary  # it brings numba

            whence = replace(piece, begin=begin, anchor=anchor, proof=proof)
            anchor, proof = first_boundary(whence, options), None
        if anchor < end or anchor == piece.anchor:
            part = replace(piece, begin=max(begin, anchor), end=end, anchor=anchor, proof=proof)
            if (times := piece.context.times) is not None and count > 1:
                context = replace(piece.context, times=times.between(anchor, end))
                part = replace(part, context=context)
            yield part


def _cuts(piece: Piece, count: int, index: Index | None) -> list[int]:
    """Where a file is cut. One that is not local only where marks of its index are near: to walk
    through it takes as long as to read it."""
    size = piece.end - piece.begin
    evenly = [piece.begin + size * number // count for number in range(count + 1)]
    if not is_uri(piece.file.path):
        return evenly
    near = HELD_BYTES + 2 * MARK_BYTES
    marks = {at: None if index is None else anchor_for(piece.file, index, at) for at in evenly}
    inner = [at for at in evenly[1:-1] if (mark := marks[at]) and at - mark.offset <= near]
    return [piece.begin, *inner, piece.end]


def index_of(piece: Piece) -> Index | None:
    """The index of the file of a piece, if it has one that matches."""
    file = piece.file
    if file.reader is not None:
        return None
    return load_index(filesystem_of(file.path), file.path, file.size, indexed=piece.context.file)


def anchor_for(file: LogFile, index: Index, begin: int) -> Mark | None:
    """Where to begin to walk to ``begin``: so far before it that damage is judged as from the
    start of the file."""
    return index.mark_before(begin - (0 if file.codec.has_checksum else HELD_BYTES))


def _if_wanted(piece: Piece, options: SourceOptions) -> Piece:
    """The piece; nothing of it if no record in it can be one of those that are wanted."""
    if piece.end == 0 or options.damage_only or not (options.has_moment or options.key):
        return piece
    index = index_of(piece)
    if index is not None and index.size < piece.file.size:
        index = None
    may_match = index is None or options.key is None or has_key(index, options.key)
    if piece.file.dialect == ZTICK and options.has_moment:
        times = piece.context.times
        moments = () if times is None else (*times.times_ns, times.whole_ns)
        may_match &= any(each is not None and options.includes(each, each) for each in moments)
    elif index is not None and index.times_ns is not None:
        may_match &= options.includes(*index.times_ns)
    return piece if may_match else replace(piece, end=0)


def _packed(pieces: list[Piece], split_bytes: int, least: int) -> Iterator[list[Piece]]:
    """Neighbours together, as evenly as the order allows."""
    open_cost = min(_OPEN_COST_BYTES, split_bytes // 16 + 1)
    weights = [piece.end - piece.begin + open_cost for piece in pieces]
    total = sum(weights)
    # A little more for each is better than a task that has to wait until a core is free again.
    count = max(1, least, math.ceil(total / (split_bytes + open_cost) - _OVERFULL))
    groups: dict[int, list[Piece]] = {}
    before = 0
    for piece, weight in zip(pieces, weights, strict=True):
        middle = 2 * before + weight
        groups.setdefault(middle * count // (2 * total), []).append(piece)
        before += weight
    yield from groups.values()


def _before(pieces: list[Piece], position: AsOfPosition) -> list[Piece]:
    """Return the pieces that begin before the position. Checkpoints have no place in that order."""
    at = _named(pieces, position.file)
    kept = []
    for piece in pieces:
        if piece is at:
            end = min(piece.end, position.offset)
            kept.append(replace(piece, end=end, cut=position.offset))
        elif piece.file.reader is not None or piece.file.segment < at.file.segment:
            kept.append(piece)
    return kept


def _named(pieces: list[Piece], file: str) -> Piece:
    if len({piece.context.log for piece in pieces}) > 1:
        raise UsageError("asOf: a position is a place in one log, and several are read")
    segments = [piece for piece in pieces if piece.file.reader is None]
    wanted = [p for p in segments if p.file.path == file or p.file.path.endswith("/" + file)]
    if len(wanted) != 1:
        names = ", ".join(piece.file.path for piece in segments)
        raise UsageError(f"asOf: {file} is not one of the files of the log: {names}")
    return wanted[0]
