"""Logs -> partitions: coarse, balanced by bytes, in the order of the logs.

    logs --> pieces of at most split_bytes --> neighbours packed into partitions

About one partition a core is best: a reducer combines the more the more it sees, and every task
costs its start. So a huge file becomes many partitions and many small files become one. A file
whose parts lie far from its start gets anchors, so that no reader has to walk far; only then does
planning read any of it. Where readers may guess nobody walks, so there are none.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, pairwise

from journeyman.errors import UsageError
from journeyman.logs.catalog import Log
from journeyman.spark.source.dialects import SELF_EVIDENT
from journeyman.spark.source.options import AsOfPosition, SourceOptions
from journeyman.spark.source.piece_reader import first_boundary
from journeyman.spark.source.splits import LogPartition, Piece, SplitContext

MAX_SPLIT_BYTES = 256 * 1024 * 1024
MAX_REDUCED_SPLIT_BYTES = 1024 * 1024 * 1024  # what a reducer hands on is small
MIN_SPLIT_BYTES = 16 * 1024 * 1024  # below, another task costs more than it saves
MAX_WALK_BYTES = 1024 * 1024 * 1024  # of a local file; others are not read twice
MAX_BUCKETS = 65_536
_BUCKET_BYTES = 8 * 1024 * 1024
_OPEN_COST_BYTES = 128 * 1024  # opening a file takes as long as reading this much
_OVERFULL = 0.1  # partitions too few, at most
_WALKING = 0.15  # of the time that reducing takes: from the start to where a part begins
_LEAST_PART = 0.5  # of the first one: smaller ones are not worth a task


def plan_partitions(logs: Iterable[Log], options: SourceOptions) -> list[LogPartition]:
    """Partitions for all logs; none when there is nothing to read."""
    files = list(_whole_files(logs))
    if options.as_of_position is not None:
        files = _before(files, options.as_of_position)
    # A reducer is shown files without a record too.
    files = [piece for piece in files if piece.end > 0 or options.reduce is not None]
    total = sum(piece.end for piece in files)
    split_bytes = _split_bytes(total, options)
    pieces = [part for piece in files for part in _parts(piece, split_bytes, options)]
    least = math.ceil(total / split_bytes)
    return [LogPartition(group) for group in _packed(pieces, split_bytes, least)]


def _whole_files(logs: Iterable[Log]) -> Iterator[Piece]:
    for log in logs:
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
            )
            yield Piece(context, file, 0, file.size)


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
    """Of about ``split_bytes`` each; a checkpoint is one part: it may be replaced any time."""
    count = 1 if piece.file.reader is not None else max(1, -(-piece.end // split_bytes))
    parts = (
        replace(piece, begin=begin, end=end)
        for begin, end in pairwise(_cuts(piece, count, options))
    )
    return parts if _is_guessed(options) else _anchored(parts, options)


def _is_guessed(options: SourceOptions) -> bool:
    return options.may_guess and options.dialect in SELF_EVIDENT


def _cuts(piece: Piece, count: int, options: SourceOptions) -> list[int]:
    """Where so many parts begin and end that take equally long.

    Those of equal size do, unless each is reached from the start of the file and what is done with
    it takes little more than the way there: then the farther from the start, the smaller.
    """
    is_walked = piece.file.identity is not None and piece.end <= MAX_WALK_BYTES
    is_walked = is_walked and not _is_guessed(options)
    is_quick = options.reduce is not None
    # A size that was asked for is kept to.
    shrinks = 1 - _WALKING if is_walked and is_quick and options.split_bytes is None else 1
    ends = list(accumulate(max(_LEAST_PART, shrinks**number) for number in range(count)))
    return [0, *(int(piece.end * end / ends[-1]) for end in ends[:-1]), piece.end]


def _anchored(parts: Iterator[Piece], options: SourceOptions) -> Iterator[Piece]:
    """The parts of one file, none of them farther from its anchor than a reader should walk.

    An anchor is the first boundary at or behind some part's begin; a part that begins before it
    but behind that begin has nothing in front of it.
    """
    anchor = 0
    for part in parts:
        walk_bytes = 0 if part.file.identity is None else MAX_WALK_BYTES
        if part.begin - anchor > walk_bytes:
            anchor = first_boundary(replace(part, anchor=anchor), options)
        if anchor < part.end or anchor == 0:
            yield replace(part, begin=max(part.begin, anchor), anchor=anchor)


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


# -- as of a position ----------------------------------------------------------------------------


def _before(pieces: list[Piece], position: AsOfPosition) -> list[Piece]:
    """What of these files begins before the position. Checkpoints have no place in that order."""
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
