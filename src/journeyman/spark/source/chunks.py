"""Bytes -> chunks, by the decoders of each dialect.

The decoders bring numba with them, which takes a while to import; that happens when the first byte
is decoded, in the tasks, and never for the planning of small logs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from journeyman.columnar.chunks import Chunk
from journeyman.formats.framing import Codec
from journeyman.spark.source.options import KESTREL, ZTICK

if TYPE_CHECKING:
    from journeyman.columnar.seals import SealKernels

BulkDecoder: TypeAlias = Callable[..., Chunk]  # data and offset -> chunk


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
    from journeyman.columnar.arrays import numbers, stored_in

    batch = chunk.batch
    at = batch.schema.get_field_index("offset")
    batch = batch.set_column(at, "offset", numbers(stored_in(batch.column(at)) + by))
    return Chunk(batch, chunk.next_offset + by, chunk.ending)


def before(chunk: Chunk, end: int) -> Chunk:
    """Return only the rows that begin before ``end``."""
    from journeyman.columnar.arrays import stored_in

    offsets = stored_in(chunk.batch.column("offset"))
    rows = int(np.searchsorted(offsets, end))
    if rows == len(offsets):
        return chunk
    return Chunk(chunk.batch.slice(0, rows), int(offsets[rows]), chunk.ending)
