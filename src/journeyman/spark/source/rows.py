"""Words and numbers that rows have in common, wherever they are made or read again.

    kind        a word in rows, a number in the columns of journeyman.columnar
    _position   segment << 44 | offset
    damage      the kind of rows that are no records

Free of numba: the driver imports it too. Rows are made in row_maker.py.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from journeyman.spark.source.options import KINDS
from journeyman.spark.source.schemas import KESTREL, KEYSPACE, WORKQ, ZTICK

DAMAGE_KIND: Final = "damage"
MAX_CORRUPT_BYTES: Final = 64 * 1024
SEGMENT_SHIFT: Final = 44  # position = segment << 44 | offset
KESTREL_PUT: Final = 8

_KESTREL_WORDS: Final = {KESTREL_PUT: "PUT", 0: "READ_HEAD", 9: "READ_DONE"}
# The words of kind by the number that columnar has for it.
KIND_WORDS: Final[dict[str, tuple[str | None, ...]]] = {
    ZTICK: KINDS[ZTICK],
    WORKQ: (None, *KINDS[WORKQ]),
    KESTREL: tuple(_KESTREL_WORDS.get(code, "UNKNOWN") for code in range(32)),
    KEYSPACE: KINDS[KEYSPACE],
}
_KEYSPACE_UNKNOWN: Final = KINDS[KEYSPACE].index("unknown")

_HEX_DIGITS = np.array([list(b"%02x" % byte) for byte in range(256)], np.uint8)
_DIGIT_PLACES = np.array([at for at in range(36) if at not in (8, 13, 18, 23)])


def kind_codes(dialect: str, words: frozenset[str]) -> list[int]:
    """The numbers that columnar has for these kinds."""
    return [code for code, word in enumerate(KIND_WORDS[dialect]) if word in words]


def kinds_in(chunk: pa.RecordBatch) -> Any:
    """The numbers of the kinds. What columnar knows no number for is a key it does not know."""
    kinds = chunk.column("kind")
    return kinds.fill_null(_KEYSPACE_UNKNOWN) if kinds.null_count else kinds


def uuid_texts(raw: Any) -> Any:
    """Rows of 16 bytes -> a column of ids as people write them, 36 characters each."""
    text = np.full((len(raw), 36), ord("-"), np.uint8)
    text[:, _DIGIT_PLACES] = _HEX_DIGITS[raw].reshape(-1, 32)
    offsets = np.arange(0, 36 * len(raw) + 1, 36, dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(text.data)]
    return pa.Array.from_buffers(pa.string(), len(raw), buffers)
