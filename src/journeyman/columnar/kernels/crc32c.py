"""CRC-32C (Castagnoli) for kernels, eight bytes a step.

``TABLES[k][b]`` is what byte ``b`` does to the CRC when ``k`` more bytes follow it within the same
step (slicing-by-8). The tables are made at import, from the polynomial, and are built into the
compiled code. The processor's own CRC instruction would be faster, but it is another one on every
architecture; the tables are the same everywhere.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.read_bytes import Bytes

POLYNOMIAL = 0x82F63B78  # reflected
_STEP = 8


def _make_tables() -> npt.NDArray[np.uint32]:
    tables = np.zeros((_STEP, 256), np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
        tables[0, byte] = crc
    for k in range(1, _STEP):
        before = tables[k - 1]
        tables[k] = before >> 8 ^ tables[0][before & 0xFF]
    return tables


TABLES = _make_tables()


@kernel
def crc32c(data: Bytes, at: int, end: int) -> int:
    """The CRC of ``data[at:end]``, which must lie inside the data."""
    crc = np.uint32(0xFFFFFFFF)
    while end - at >= _STEP:
        crc = (
            TABLES[7, data[at] ^ (crc & 0xFF)]
            ^ TABLES[6, data[at + 1] ^ (crc >> 8 & 0xFF)]
            ^ TABLES[5, data[at + 2] ^ (crc >> 16 & 0xFF)]
            ^ TABLES[4, data[at + 3] ^ (crc >> 24)]
            ^ TABLES[3, data[at + 4]]
            ^ TABLES[2, data[at + 5]]
            ^ TABLES[1, data[at + 6]]
            ^ TABLES[0, data[at + 7]]
        )
        at += _STEP
    for i in range(at, end):
        crc = TABLES[0, (data[i] ^ crc) & 0xFF] ^ np.uint32(crc >> 8)
    return int(np.int64(crc ^ np.uint32(0xFFFFFFFF)))
