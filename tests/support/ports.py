"""Ports for those who must know theirs before they listen.

They are below the ports that the system gives away by itself, so no connection and no server of
another test gets one of them meanwhile.
"""

from __future__ import annotations

import random
import socket

_PORTS = range(12_000, 32_000)  # Linux gives away 32,768 to 60,999


def free_ports(count: int) -> list[int]:
    chance = random.SystemRandom()
    taken: list[socket.socket] = []
    try:
        while len(taken) < count:
            try:
                taken.append(socket.create_server(("127.0.0.1", chance.choice(_PORTS))))
            except OSError:
                continue  # someone has this one
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


def free_port() -> int:
    return free_ports(1)[0]
