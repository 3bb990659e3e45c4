"""What a micro-batch reads, cut into pieces for parallel tasks.

    stretches    |------------- file 3 -------------|--- file 4 ---|-- another log --|
    pieces       |-----------|-----------|----------|---|----------|-----|-----------|
    partitions   |     0     |     1     |       2      |       3        |     4     |

Pieces begin and end between entries, found by hopping over lengths. A small batch is one piece: a
task costs more than it saves below a few MiB. The path that is opened may be that of a link; rows
show the name that the file had in its log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing

from journeyman.errors import LogError
from journeyman.spark.source.filesystem import filesystem_of
from journeyman.spark.source.layout import LogFile
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.splits import LogPartition, Piece, SplitContext
from journeyman.spark.streams.boundaries import walk
from journeyman.spark.streams.offsets import BatchStretch
from journeyman.spark.streams.survey import opened_path

MIN_PIECE_BYTES = 4 * 1024 * 1024
MAX_PIECE_BYTES = 256 * 1024 * 1024


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
        path=path,
        size=stretch.file.end,
        modified_ns=None,
        identity=stretch.file.inode,
        segment=stretch.file.segment,
        is_last=False,
        queue=stretch.place.queue,
    )
    context = SplitContext(
        log=stretch.log,
        file=stretch.file.path,
        segment=stretch.file.segment,
        queue=stretch.place.queue,
        partitions=stretch.place.partitions,
    )
    with closing(filesystem_of(path).open(path)) as opened:
        steps = walk(dialect, opened, stretch.file.end, closed=False)
        for begin, end in steps.pieces(stretch.begin, stretch.file.end, piece_bytes):
            yield Piece(context, file, begin, end, anchor=begin)
