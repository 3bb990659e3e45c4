"""Telling whether a file still is the file that was read, by a little of what was read.

    [0 .......... 256)  ...  [end - 256 .......... end)      a hash of these, and of ``end``

A log only grows, so what was read never changes. A file that is shorter, or whose bytes in front
of ``end`` differ, was cut or replaced: a writer took back what it could not make durable, or
somebody put another file there. Inodes alone do not tell: a removed file's number is soon given
to the next one.
"""

from __future__ import annotations

import hashlib
from typing import BinaryIO

_EDGE_BYTES = 256
_MARK_BYTES = 8


def fingerprint(file: BinaryIO, end: int) -> str:
    """Of the first ``end`` bytes; empty when the file does not have as many."""
    head = read_at(file, 0, min(end, _EDGE_BYTES))
    tail = read_at(file, max(0, end - _EDGE_BYTES), min(end, _EDGE_BYTES))
    if len(tail) < min(end, _EDGE_BYTES):
        return ""
    digest = hashlib.blake2b(digest_size=_MARK_BYTES)
    digest.update(end.to_bytes(8, "big") + head + tail)
    return digest.hexdigest()


def read_at(file: BinaryIO, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes; fewer only at the end of the file."""
    file.seek(offset)
    pieces = []
    while length > 0 and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)
