"""Which entries of a log are seals, for kernels. See journeyman.formats.seals."""

from __future__ import annotations

import numpy as np

from journeyman.columnar._jit import kernel
from journeyman.columnar.loads import Bytes
from journeyman.formats import kestrel_seals, ztick_seals

ZTICK_SEAL_BYTES = ztick_seals.SEAL_BYTES
KESTREL_SEAL_BYTES = kestrel_seals.SEAL_BYTES
_ZTICK_MARK = np.frombuffer(ztick_seals.SEAL_MARK, np.uint8)
_KESTREL_MARK = np.frombuffer(kestrel_seals.SEAL_MARK, np.uint8)


@kernel
def is_ztick_seal(data: Bytes, at: int) -> bool:
    """Whether a seal, or what is marked as one, stands at ``at`` as a whole."""
    if data.size - at < ZTICK_SEAL_BYTES:
        return False
    for i in range(_ZTICK_MARK.size - 1, -1, -1):  # noqa: SIM110 - a kernel; others differ here
        if data[at + i] != _ZTICK_MARK[i]:
            return False
    return True


@kernel
def is_kestrel_seal(data: Bytes, at: int) -> bool:
    """The same for a kestrel file."""
    if data.size - at < KESTREL_SEAL_BYTES:
        return False
    for i in range(_KESTREL_MARK.size):  # noqa: SIM110 - a kernel
        if data[at + i] != _KESTREL_MARK[i]:
            return False
    return True
