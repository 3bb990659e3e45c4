"""The answer of the decoders of this layer, and the rules that they share.

    bytes --decode--> Chunk(batch, next_offset, ending)      ending None: go on at next_offset

A kernel runs over the bytes and stops in front of the first entry that it cannot take. It does
not say why. The codec of the dialect in journeyman.formats is then asked about that one entry and
its answer becomes the Ending. So the reason for stopping has one author, and what remains to be
proved about a kernel is only that it takes exactly what the codec takes.

The bytes must hold still while they are read: of a file that is still written to in place, as
kestrel's mapped journals are, decode a copy.

Bounds on one chunk: ``max_records`` rows, and MAX_CHUNK_BYTES of log plus the one entry that
crosses that line. The second keeps every column far below the 2 GiB that 32-bit Arrow offsets
reach. Arrays are made for no more entries than the bytes at hand can hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from journeyman.errors import FormatError, IncompleteEntry
from journeyman.formats.framing import Buffer, Codec, Ending, Stop

MAX_RECORDS = 65_536  # rows of a chunk, unless asked otherwise
MAX_CHUNK_BYTES = 64 * 1024 * 1024
_CACHE_LINE_BYTES = 64

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows, where they end, and why reading stopped there.

    ``ending`` is None when the chunk is merely full: more may follow at ``next_offset``.
    """

    batch: pa.RecordBatch
    next_offset: int
    ending: Ending | None


def first_offset(codec: Codec[R], data: Buffer, offset: int | None) -> int | Ending:
    """Where to begin: ``offset``, or behind the header when it is None and the header is good."""
    if offset is None:
        try:
            return codec.check_header(data)
        except FormatError as error:
            return Ending(Stop.BAD_HEADER, 0, error)
    return checked_offset(data, offset)


def checked_offset(data: Buffer, offset: int) -> int:
    """``offset`` if it lies in the data; the kernels trust the place where they begin."""
    if not 0 <= offset <= len(data):
        raise ValueError(f"offset {offset} is outside of the {len(data)} bytes given")
    return offset


def make_fields(
    fields: int, max_records: int, bytes_left: int, smallest_entry: int
) -> npt.NDArray[np.int64]:
    """Return what a kernel writes into: one row of numbers for each field, one column for each
    entry.

    There is room for one entry more than the bytes can hold, so a kernel that has filled all of
    it has met ``max_records``. Behind each row is a gap that makes it an odd number of cache
    lines long: the fields of one entry, written together, must not fall on each other's lines.
    """
    if max_records < 1:
        raise ValueError(f"max_records is {max_records}, but a chunk holds at least one record")
    entries = min(max_records, bytes_left // smallest_entry + 1)
    line = _CACHE_LINE_BYTES // 8
    lines = entries // line + 1
    return np.empty((fields, (lines | 1) * line), np.int64)[:, :entries]


def refused_chunk(schema: pa.Schema, ending: Ending) -> Chunk:
    """No rows: the file does not begin as it should."""
    return Chunk(pa.RecordBatch.from_pylist([], schema=schema), ending.offset, ending)


def ending_at(codec: Codec[R], data: Buffer, offset: int) -> Ending:
    """Why the codec stops at ``offset``, where a kernel has stopped."""
    try:
        entry = codec.decode(data, offset)
    except IncompleteEntry as error:
        return Ending(Stop.TORN, offset, error)
    except FormatError as error:
        return Ending(Stop.CORRUPT, offset, error)
    if entry is not None:
        raise AssertionError(f"{codec.name}: kernel and codec disagree at offset {offset}")
    return Ending(Stop.EOF if offset == len(data) else Stop.ZERO_BYTE, offset)


def iter_chunks(
    decode: Callable[..., Chunk], data: Buffer, offset: int | None = None, **options: Any
) -> Iterator[Chunk]:
    """Chunks from ``offset`` on, the last of them with an ending. Options are those of decode."""
    while True:
        chunk = decode(data, offset, **options)
        yield chunk
        if chunk.ending is not None:
            return
        offset = chunk.next_offset
