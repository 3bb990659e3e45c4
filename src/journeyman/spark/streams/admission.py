"""How much of what is there goes into one micro-batch.

    maxBytesPerTrigger    bytes of log; more only if a single entry is larger
    maxFilesPerTrigger    files read from

Logs take their turns: the first one takes what it can, the next what is left. Who is first moves
on with every batch (``turn``), so a log that grows without end starves no other; and the first one
gets at least one entry, so no limit stops a stream. Inside a log the order is that of the chain: no
file is begun before the one in front of it has been read to its end.

What a batch reads is cut into pieces for parallel tasks:

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
from dataclasses import dataclass, replace

from journeyman.errors import LogError
from journeyman.logs.catalog import LogFile
from journeyman.spark.files import filesystem_of
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.splits import LogPartition, Piece, SplitContext
from journeyman.spark.streams.boundaries import walk
from journeyman.spark.streams.chains import opened_path
from journeyman.spark.streams.holds import fingerprint
from journeyman.spark.streams.offsets import (
    BatchStretch,
    FilePlace,
    LogPlace,
    StreamOffset,
    with_file,
)

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
    with closing(filesystem_of(path).open(path)) as opened:
        steps = walk(dialect, opened, stretch.file.end, closed=False)
        for begin, end in steps.pieces(stretch.begin, stretch.file.end, piece_bytes):
            yield Piece(context, file, begin, end, anchor=begin)


@dataclass(slots=True)
class Allowance:
    """What is left of the limits of one batch; None is no limit."""

    max_bytes: int | None = None
    max_files: int | None = None
    is_untouched: bool = True

    @property
    def is_used_up(self) -> bool:
        return self.max_bytes == 0 or self.max_files == 0

    def take(self, length: int) -> None:
        self.is_untouched = False
        if self.max_bytes is not None:
            self.max_bytes = max(0, self.max_bytes - length)
        if self.max_files is not None:
            self.max_files -= 1


def advanced(
    dialect: str, offset: StreamOffset, allowance: Allowance, ceiling: StreamOffset | None = None
) -> StreamOffset:
    """``offset`` moved on over whole entries; the same if there are none.

    ``ceiling``: no file is read further than it is there.
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
        if allowance.is_used_up:
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
        steps = walk(dialect, opened, size, closed=file.final is not None and size == file.final)
        end = steps.reach(file.end, allowance.max_bytes, must_move=allowance.is_untouched)
        if end == file.end:
            return file
        return replace(file, end=end, mark=fingerprint(opened, end))
