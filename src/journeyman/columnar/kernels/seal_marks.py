"""Which entries of a log are seals, for kernels. See journeyman.formats.seals."""

from __future__ import annotations

import numpy as np

from journeyman.columnar.kernels.jit import kernel
from journeyman.columnar.kernels.read_bytes import Bytes
from journeyman.formats.kestrel import codec as kestrel_codec
from journeyman.formats.ztick import codec as ztick_codec
from journeyman.formats.ztick.layout import HEAD

ZTICK_SEAL_BYTES = ztick_codec.SEAL_BYTES
KESTREL_SEAL_BYTES = kestrel_codec.SEAL_BYTES
_ZTICK_MARK = np.frombuffer(ztick_codec.SEAL_MARK, np.uint8)
_KESTREL_MARK = np.frombuffer(kestrel_codec.SEAL_MARK, np.uint8)
_HEAD_BYTES = HEAD.size


@kernel
def is_ztick_seal(data: Bytes, at: int) -> bool:
    """Whether a whole seal, or what is marked as one, stands at ``at``."""
    if data.size - at < ZTICK_SEAL_BYTES or data[at + 3] != _ZTICK_MARK[3]:
        return False
    same = 0
    while same < _ZTICK_MARK.size and data[at + same] == _ZTICK_MARK[same]:
        same += 1
    if same <= _HEAD_BYTES:
        return False
    if same < _ZTICK_MARK.size:
        return _is_zero(data, at + same, at + ZTICK_SEAL_BYTES)
    for i in range(same, ZTICK_SEAL_BYTES):  # noqa: SIM110 - a kernel
        if data[at + i] >= 0x80:
            return False
    return True


@kernel
def is_kestrel_seal(data: Bytes, at: int) -> bool:
    """The same for a kestrel file."""
    if data.size - at < KESTREL_SEAL_BYTES or data[at] != _KESTREL_MARK[0]:
        return False
    same = 1
    while same < _KESTREL_MARK.size and data[at + same] == _KESTREL_MARK[same]:
        same += 1
    return same == _KESTREL_MARK.size or _is_zero(data, at + same, at + KESTREL_SEAL_BYTES)


@kernel
def _is_zero(data: Bytes, at: int, end: int) -> bool:
    for i in range(at, end):  # noqa: SIM110 - a kernel
        if data[i] != 0:
            return False
    return True
