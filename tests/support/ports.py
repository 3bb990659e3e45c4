"""Ports for those who must know theirs before they listen.

They are below the ports that the system gives away by itself, so no connection and no server of
another test gets one of them meanwhile. And a process that asks here keeps, as long as it lives, a
socket named after each port that it was given: no other process is given the same one.
"""

from __future__ import annotations

import random
import socket
import sys

# Linux gives away 32,768 to 60,999; Spark Connect has 15,002, kestrel 22,133.
_PORTS = range(16_000, 22_000)
_NAMES: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    chance = random.SystemRandom()
    taken: list[socket.socket] = []
    try:
        while len(taken) < count:
            port = chance.choice(_PORTS)
            name = socket.socket(socket.AF_UNIX)
            try:
                if sys.platform == "linux":  # others have no names without a file
                    name.bind(f"\0journeyman-tests-port-{port}")
                taken.append(socket.create_server(("127.0.0.1", port)))
            except OSError:
                name.close()  # another process has this one
                continue
            _NAMES.append(name)
        return [each.getsockname()[1] for each in taken]
    finally:
        for each in taken:
            each.close()


def free_port() -> int:
    return free_ports(1)[0]
