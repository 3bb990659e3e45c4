"""What a connected socket needs, and how its other end is called in messages."""

from __future__ import annotations

import socket
from typing import Any

_KEEPALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))  # seconds, probes


def address_of(peer: Any) -> str:
    """What ``getpeername`` gave, as people write it."""
    if not isinstance(peer, tuple):
        return str(peer)
    host, port = peer[0], peer[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def keep_alive(sock: Any) -> None:
    """Find out about clients that vanished without a word; and answer at once."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
