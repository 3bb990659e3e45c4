"""Bytes -> chunks, by the decoders of each dialect; and the index of a file, noted from its chunks.

The decoders bring numba with them, which takes a while to import; that happens when the first byte
is decoded, in the tasks, and never for the planning of small logs.

The index of a file (journeyman.logs.indexes) is made by the task that reads all of it anyway:

    chunks of a whole file --noted on the way--> written beside it, if that directory is ours

Logs of the originals, and closed files that their server has not indexed yet, get an index by the
first query or ingest that makes rows of them. A file with damage gets none. In chunks the only gaps
between entries are seals; so once a file has one, marks are set only in gaps, at the seal of the
block that follows.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from journeyman.columnar.chunks import Chunk
from journeyman.disk import RealDisk, disk_of, is_database
from journeyman.formats.framing import Buffer, Codec
from journeyman.formats.seals import seal_at
from journeyman.logs.catalog import LogFile
from journeyman.logs.damage import Damage
from journeyman.logs.indexes import IndexDraft, is_worth_an_index, remove_index, try_to_save
from journeyman.spark.source.options import KESTREL, LEDGER, WORKQ, ZTICK
from journeyman.spark.source.splits import Piece, index_of

if TYPE_CHECKING:
    from journeyman.columnar.arrays import Column
    from journeyman.columnar.seals import SealKernels

_TEMPORARY: Final = "~spark"  # a server may write the same index
# Where a record says its time, the unit of that, and its key.
_COLUMNS: Final = {
    ZTICK: (None, 1, "identifier"),
    WORKQ: ("logged_ns", 1, "job_id"),
    KESTREL: ("add_time_ms", 1_000_000, "item_id"),
    LEDGER: ("logged_ns", 1, None),
}
BulkDecoder: TypeAlias = Callable[..., Chunk]  # data and offset -> chunk
Walk: TypeAlias = Callable[[Buffer, int, int], int]


def bulk_decoder(dialect: str, codec: Codec[Any], *, payloads: bool) -> BulkDecoder:
    """``decode`` of the dialect in journeyman.columnar, with its settings."""
    decode = _decoding(dialect).decode
    if dialect == KESTREL:
        return partial(decode, payloads=payloads, codec=codec)
    return partial(decode, payloads=payloads)


def no_records(dialect: str) -> Chunk:
    """A chunk of this dialect without rows."""
    schema = _decoding(dialect).SCHEMA
    return Chunk(pa.RecordBatch.from_pylist([], schema=schema), 0, None)


def walk_of(dialect: str) -> Walk | None:
    """How to get from boundary to boundary without making rows, where there is a way."""
    from journeyman.columnar.kernels.boundaries import WALKS

    return WALKS.get(dialect)


def seals_of(dialect: str) -> SealKernels | None:
    """How to check seals in bulk, where a dialect has any."""
    if dialect not in (ZTICK, KESTREL):
        return None
    from journeyman.columnar.seals import KERNELS

    return KERNELS[dialect]


def _decoding(dialect: str) -> Any:
    return import_module(f"journeyman.columnar.{dialect}.decode")


def shifted(chunk: Chunk, by: int) -> Chunk:
    """The chunk with offsets counted from ``by`` bytes earlier."""
    if by == 0:
        return chunk
    from journeyman.columnar.arrays import numbers

    batch = chunk.batch
    at = batch.schema.get_field_index("offset")
    batch = batch.set_column(at, "offset", numbers(raw_numbers(batch.column(at)) + by))
    return Chunk(batch, chunk.next_offset + by, chunk.ending)


def before(chunk: Chunk, end: int) -> Chunk:
    """Only the rows that begin before ``end``."""
    offsets = raw_numbers(chunk.batch.column("offset"))
    rows = int(np.searchsorted(offsets, end))
    if rows == len(offsets):
        return chunk
    return Chunk(chunk.batch.slice(0, rows), int(offsets[rows]), chunk.ending)


def raw_numbers(column: Column) -> npt.NDArray[Any]:
    """The numbers of a column, without importing pandas; where it is null, what columnar put: 0."""
    values = column.buffers()[1]
    kind = np.dtype(column.type.to_pandas_dtype())  # in spite of its name, a type of numpy
    raw = np.frombuffer(b"" if values is None else memoryview(values), kind)
    return raw[column.offset : column.offset + len(column)]


def indexed(piece: Piece, items: Iterable[Chunk | Damage]) -> Iterator[Chunk | Damage]:
    """The same items; when all of a file has passed, its index is written if it has none."""
    draft = _ChunkDraft(piece) if _is_worth_it(piece) else None
    for item in items:
        if draft is not None:
            if isinstance(item, Damage):
                draft = None
            else:
                draft.note_chunk(item.batch)
        yield item
    if draft is not None and draft.reaches(piece.file) and _is_in_place(piece):
        try_to_save(RealDisk(), piece.context.file, draft, temporary=_TEMPORARY)
        if not _is_in_place(piece):
            remove_index(RealDisk(), piece.context.file)


def _is_worth_it(piece: Piece) -> bool:
    """Whether all of a closed local file is read that has no index, and may get one."""
    file, path = piece.file, piece.context.file
    is_whole = piece.begin == 0 and piece.end == file.size and piece.cut is None
    if not is_whole or file.is_last or file.identity is None or file.dialect not in _COLUMNS:
        return False
    if not is_worth_an_index(file.size) or file.reader is not None:
        return False
    if is_database(path):
        return False  # there only the server writes
    try:  # its server must not be kept from writing there
        is_ours = os.stat(posixpath.dirname(path)).st_uid == os.geteuid()
    except OSError:
        return False
    if not is_ours or not _is_in_place(piece):
        return False
    known = index_of(piece)
    return known is None or known.size < file.size


def _is_in_place(piece: Piece) -> bool:
    """Whether the file that is read still has its name: what is read may be a link on one that is
    gone, and a log may be cleaned meanwhile. Marks of another file would be inside of records."""
    try:
        found = os.stat(piece.context.file)
    except OSError:
        return False
    return (found.st_ino, found.st_size) == (piece.file.identity, piece.file.size)


class _ChunkDraft(IndexDraft):
    """Notes many records at once. ``end`` is where the last of them ends."""

    def __init__(self, piece: Piece) -> None:
        super().__init__()
        self._time, self._unit_ns, self._key = _COLUMNS[piece.file.dialect]
        self._codec = piece.file.codec
        self.timeless = self._time is None
        self._seal_bytes = 0 if self._codec.seals is None else self._codec.seals.size
        self._has_gaps = False
        self.end = len(self._codec.header)

    def reaches(self, file: LogFile) -> bool:
        """Whether nothing but seals follows what was noted: no torn entry, no zeros."""
        format_, at = self._codec.seals, self.end
        while at < file.size:
            size = 0 if format_ is None else format_.size
            seal = disk_of(file.path).read_at(file.path, at, size)
            if format_ is None or seal_at(format_, seal, 0, at) is None:
                return False
            at += size
        return at == file.size

    def note_chunk(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        offsets = raw_numbers(batch.column("offset"))
        ends = offsets + raw_numbers(batch.column("length"))
        behind_gap = offsets != np.concatenate(([self.end], ends[:-1]))
        first_gap = len(offsets) if not behind_gap.any() else int(behind_gap.argmax())
        may_mark = behind_gap.copy()
        if not self._has_gaps:
            may_mark[:first_gap] = True
            self._has_gaps = first_gap < len(offsets)
        self._mark(offsets - np.where(behind_gap, self._seal_bytes, 0), np.flatnonzero(may_mark))
        self.records += len(offsets)
        self.end = int(ends[-1])
        if self._time is not None:
            self._note_column(batch.column(self._time), is_time=True)
        if self._key is not None:
            self._note_column(batch.column(self._key), is_time=False)

    def _mark(self, offsets: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> None:
        places = offsets[rows]
        at = int(np.searchsorted(places, self.next_mark))
        while at < len(rows):
            self.mark(int(places[at]), int(rows[at]))
            at = int(np.searchsorted(places, self.next_mark))

    def _note_column(self, column: Column, *, is_time: bool) -> None:
        ends: Any = pc.min_max(column).as_py()
        if is_time:
            self.timeless |= column.null_count > 0
        if ends["min"] is not None and is_time:
            self.note_times(ends["min"] * self._unit_ns, ends["max"] * self._unit_ns)
        elif ends["min"] is not None:
            self.note_keys(ends["min"], ends["max"])
