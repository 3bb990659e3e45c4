"""How much of what is there goes into one micro-batch.

    maxBytesPerTrigger    bytes of log; more only if a single entry is larger

Logs take their turns: the first one takes what it can, the next what is left. Who is first moves
on with every batch (``turn``), so a log that grows without end starves no other; and the first one
gets at least one entry, so no limit stops a stream. Inside a log the order is that of the chain: no
file is begun before the one in front of it has been read to its end.

    [header][entry][entry][#### damage ####][entry][torn
                                                   ^ a batch of an open file ends here
                                                         ^ of a closed one, here

A batch ends between two entries, in a sealed stretch behind a block. What follows in an *open* file
may be on its way: a torn entry, zeros that a file system or a mapping has put there, an announced
block that is not whole. It waits. In a *closed* file nothing is on its way, so the rest is read
with it, and is damage there, as for the batch source. Damage is part of the batch in which it is
met. All of that is found by the reader of the batch source (source/piece_reader.py).

What a batch reads is cut into pieces for parallel tasks as the files of a batch read are
(source/splits.py). The path that is opened may be that of a link; rows show the name that the file
had in its log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from journeyman.errors import LogError
from journeyman.logs.catalog import LogFile
from journeyman.spark.files import filesystem_of
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.pieces import LogPartition, Piece, SplitContext
from journeyman.spark.source.splits import cut
from journeyman.spark.streams import offsets
from journeyman.spark.streams.chains import opened_path


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
    options: SourceOptions,
    offset: offsets.StreamOffset,
    allowance: Allowance,
    ceiling: offsets.StreamOffset | None = None,
) -> offsets.StreamOffset:
    """``offset`` moved on over whole entries; the same if there are none.

    ``ceiling``: no file is read further than it is there, which is an end of entries.
    """
    logs = dict(offset.logs)
    for name in _in_turn(sorted(logs), offset.turn):
        caps = None if ceiling is None else {f.segment: f.end for f in ceiling.logs[name].files}
        logs[name] = _log_advanced(options, name, logs[name], allowance, caps)
    turn = offset.turn if allowance.is_untouched else offset.turn + 1
    return replace(offset, logs=logs, turn=turn)


def _in_turn(names: list[str], turn: int) -> Iterator[str]:
    first = turn % len(names) if names else 0
    yield from names[first:]
    yield from names[:first]


def _log_advanced(
    options: SourceOptions,
    name: str,
    place: offsets.LogPlace,
    allowance: Allowance,
    caps: dict[int, int] | None,
) -> offsets.LogPlace:
    for file in place.files:
        if file.finished:
            continue
        if allowance.max_bytes == 0:
            break
        stretch = offsets.BatchStretch(name, place, file, file.end)
        cap = None if caps is None else caps[file.segment]
        moved = _file_advanced(options, stretch, allowance, cap)
        if moved.end > file.end:
            allowance.take(moved.end - file.end)
            place = offsets.with_file(place, moved)
        if not moved.finished:
            break
    return place


def _file_advanced(
    options: SourceOptions, stretch: offsets.BatchStretch, allowance: Allowance, cap: int | None
) -> offsets.FilePlace:
    file, room = stretch.file, allowance.max_bytes
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
        limit = size if room is None else min(size, file.end + room)
        # A cap was found to be a boundary before, and nothing more comes in a closed file.
        if limit == file.end or (limit == size and size in (cap, file.final)):
            end = limit
        else:
            end = _boundary(options, stretch, path, limit, size, is_first=allowance.is_untouched)
        return (
            file
            if end == file.end
            else replace(file, end=end, mark=offsets.fingerprint(opened, end))
        )


def _boundary(
    options: SourceOptions,
    stretch: offsets.BatchStretch,
    path: str,
    limit: int,
    size: int,
    *,
    is_first: bool,
) -> int:
    """The last boundary of items up to ``limit``; that of one item in any case if it is first."""
    from journeyman.spark.source.piece_reader import last_boundary  # it brings numba

    end = last_boundary(_piece(options, stretch, path, limit), options, goes_on=limit < size)
    if end == stretch.begin and limit < size and is_first:
        one = replace(_piece(options, stretch, path, size), end=stretch.begin + 1)
        end = last_boundary(one, options, goes_on=False)
    return end


def partitions_of(
    batch_stretches: Iterable[offsets.BatchStretch], options: SourceOptions
) -> list[LogPartition]:
    """Partitions of about the same size, in order."""
    pieces = []
    for stretch in batch_stretches:
        path = opened_path(stretch.file)
        if path is None:
            raise LogError(
                stretch.file.path,
                f"bytes {stretch.begin} to {stretch.file.end} belong to a batch that is not "
                "finished, but the file was removed or replaced, and no link was made on it; begin "
                "a new checkpoint, and set holdFiles=true",
            )
        pieces.append(_piece(options, stretch, path, stretch.file.end))
    return cut(pieces, options)


def _piece(options: SourceOptions, stretch: offsets.BatchStretch, path: str, end: int) -> Piece:
    """A stretch up to ``end`` of its file, as if that ended there."""
    place, known = stretch.place, stretch.file
    file = LogFile(
        options.dialect,
        path,
        queue=place.queue,
        size=end,
        identity=known.inode,
        segment=known.segment,
    )
    partitions = tuple(place.partitions.items())
    context = SplitContext(
        stretch.log, known.path, known.segment, queue=place.queue, partitions=partitions
    )
    return Piece(context, file, stretch.begin, end, anchor=stretch.begin)
