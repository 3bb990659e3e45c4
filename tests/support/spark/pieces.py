"""Reading by pieces, and what it must give: shared by the lanes that prove splitting.

The law: however a file is cut, its pieces together give the items of ``read_file``, by which the
server reads too, every one once and in order, but for what is the end of the log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from journeyman.logs.catalog import LogFile
from journeyman.logs.damage import Damage
from journeyman.logs.sealing import is_in_flight, read_file
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.piece_reader import read_piece
from journeyman.spark.source.pieces import Piece, SplitContext
from tests.support.columnar_twins import CHECKPOINT, JOURNAL, Twins

Item = Any  # a row as a dict, or a Damage


def log_file(path: Path, twins: Twins, *, is_last: bool = True) -> LogFile:
    status = os.stat(path)
    return LogFile(
        "kestrel" if twins in (JOURNAL, CHECKPOINT) else twins.codec.name,
        str(path),
        size=status.st_size,
        modified_ns=status.st_mtime_ns,
        identity=status.st_ino,
        segment=0,
        is_last=is_last and twins is not CHECKPOINT,
        reader="r" if twins is CHECKPOINT else None,
    )


def pieces_of(file: LogFile, cuts: Iterable[int]) -> Iterator[Piece]:
    """The file cut at these offsets."""
    context = SplitContext("log", file.path, 0)
    edges = sorted({0, file.size, *(cut for cut in cuts if cut < file.size)})
    for begin, end in pairwise(edges):
        yield Piece(context, file, begin, end)


def options_of(twins: Twins, **changes: str) -> SourceOptions:
    dialect = "kestrel" if twins in (JOURNAL, CHECKPOINT) else twins.codec.name
    return SourceOptions.parse(dialect, {"path": "/", "payloads": "true", **changes})


def items_of(pieces: Iterable[Piece], options: SourceOptions) -> list[Item]:
    found: list[Item] = []
    for piece in pieces:
        for item in read_piece(piece, options):
            found += [item] if isinstance(item, Damage) else item.batch.to_pylist()
    return found


def expected_items(
    twins: Twins, data: bytes, file: LogFile, *, salvage: bool = False
) -> list[Item]:
    items = read_file(twins.codec, data, file=file.path, salvage=salvage)
    return [
        item if isinstance(item, Damage) else twins.row(item)
        for item in items
        if not isinstance(item, Damage) or not is_end(item, file)
    ]


def is_end(damage: Damage, file: LogFile) -> bool:
    """Zeros at the end of a file, a torn end of the last one, and a batch on its way, are none."""
    if is_in_flight(damage) and file.reader is None:
        return True
    kinds = ("torn", "padding") if file.is_last else ("padding",)
    return damage.length == 0 or (damage.kind in kinds and damage.end == file.size)
