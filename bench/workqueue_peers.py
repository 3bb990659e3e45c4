"""The work queues that are measured, each on a free port of the loopback.

    policy       journeyman                       beanstalkd
    always       cmdlog-sync always               -b DIR -f0        answered when durable
    interval     cmdlog-sync interval, 1 s        -b DIR, 50 ms     answered when written

All data lies in one directory, so all pay for the same disk.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bench.peers import SEARCH_PATH, Peer, free_port

__all__ = ["beanstalkd", "journeyman"]

_SYNC_EVERY_PUT = {"always": ["-f", "0"], "interval": []}


def journeyman(directory: Path, policy: str, *more: str) -> Peer:
    """``more``: settings, as name=value."""
    port = free_port()
    command = [sys.executable, "-m", "journeyman", "serve", "--listen", f"127.0.0.1:{free_port()}"]
    command += ["--workq-listen", f"127.0.0.1:{port}", "--cmdlog-path", "cmdlog"]
    command += ["--kestrel-listen", "off"]
    command += ["--cmdlog-sync", policy, "--set", "database.persistence=memory"]
    for setting in more:
        command += ["--set", setting]
    return Peer("journeyman", command, port, directory)


def beanstalkd(directory: Path, policy: str) -> Peer | None:
    """None, and a line that says so, if it is not installed."""
    program = shutil.which("beanstalkd", path=SEARCH_PATH)
    if program is None:
        print("beanstalkd is not installed (apt-get install beanstalkd): not measured beside it")
        return None
    port = free_port()
    command = [program, "-l", "127.0.0.1", "-p", str(port), "-b", ".", *_SYNC_EVERY_PUT[policy]]
    return Peer("beanstalkd", command, port, directory)
