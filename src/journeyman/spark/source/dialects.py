"""What reading needs to know of each dialect: the codec that judges a file, the bulk decoder.

The decoders bring numba with them, which takes a while to import; that happens when the first byte
is decoded, in the tasks, and never for the planning of small logs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from journeyman.columnar.chunks import Chunk
from journeyman.formats.framing import Buffer, Codec
from journeyman.logs.catalog import LogFile
from journeyman.spark.source.schemas import KESTREL, KEYSPACE, WORKQ, ZTICK

if TYPE_CHECKING:
    from journeyman.columnar.seals import SealKernels

SELF_EVIDENT: Final = frozenset({ZTICK, WORKQ})  # those that have a Seek

BulkDecoder: TypeAlias = Callable[..., Chunk]  # data and offset -> chunk
Walk: TypeAlias = Callable[[Buffer, int, int], int]
Seek: TypeAlias = Callable[[Buffer, int, int, bool], int]


def codec_of(dialect: str, file: LogFile) -> Codec[Any]:
    """The codec that judges this file."""
    if dialect == KESTREL:
        from journeyman.formats import kestrel

        return kestrel.WRITER if file.reader is None else kestrel.READER
    codec: Codec[Any] = import_module(f"journeyman.formats.{_codec_module(dialect)}").CODEC
    return codec


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


def seek_of(dialect: str) -> Seek | None:
    """How to find what seems to be a boundary, where records are hard to mistake."""
    from journeyman.columnar.kernels.boundaries import SEEKS

    return SEEKS.get(dialect)


def seals_of(dialect: str) -> SealKernels | None:
    """How to check seals in bulk, where a dialect has any."""
    if dialect not in (ZTICK, KESTREL):
        return None
    from journeyman.columnar.seals import KERNELS

    return KERNELS[dialect]


def _codec_module(dialect: str) -> str:
    return "keyspace.file" if dialect == KEYSPACE else dialect


def _decoding(dialect: str) -> Any:
    module = "file" if dialect == KEYSPACE else "decode"
    return import_module(f"journeyman.columnar.{dialect}.{module}")
