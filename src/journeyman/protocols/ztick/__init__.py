"""The ztick protocol, server side: a connection as a machine that is fed bytes and gives events."""

from journeyman.protocols.ztick.parser import LINE_LIMIT_BYTES, ZtickParser

__all__ = ["LINE_LIMIT_BYTES", "ZtickParser"]
