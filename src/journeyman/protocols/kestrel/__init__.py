"""The kestrel protocol (memcache text), server side: bytes in, events out."""

from journeyman.protocols.kestrel.parser import (
    LINE_LIMIT_BYTES,
    KestrelParser,
)

__all__ = [
    "LINE_LIMIT_BYTES",
    "KestrelParser",
]
