"""The workq protocol, server side: a connection as a machine that is fed bytes and gives events."""

from journeyman.protocols.workq.parser import (
    LINE_LIMIT_BYTES,
    WorkqParser,
)

__all__ = [
    "LINE_LIMIT_BYTES",
    "WorkqParser",
]
