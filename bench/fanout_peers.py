"""The queues with several readers that are measured, each on a free port of the loopback.

    policy       journeyman                  redis
    always       sync always                 appendfsync always      answered when durable
    interval     sync interval, 1 s          appendfsync everysec    answered when written

All data lies in one directory, so all pay for the same disk.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench.peers import Peer, free_port
from bench.peers import redis as redis_server

__all__ = ["POLICIES", "journeyman", "redis"]

POLICIES = {"always": "always", "interval": "everysec"}


def journeyman(directory: Path, policy: str) -> Peer:
    port = free_port()
    command = [sys.executable, "-m", "journeyman", "serve", "--listen", f"127.0.0.1:{free_port()}"]
    command += ["--workq-listen", "off", "--kestrel-listen", f"127.0.0.1:{port}"]
    for setting in (
        "database.persistence=memory",
        f"kestrel.sync={policy}",
        "kestrel.default={max_open = 1000}",
    ):
        command += ["--set", setting]
    return Peer("journeyman", command, port, directory)


def redis(directory: Path, policy: str) -> Peer | None:
    """None, and a line that says so, if it is not installed."""
    return redis_server(directory, POLICIES[policy])
