"""What does a server cost that is asked nothing? All ports open, nothing in its logs.

resident     megabytes, some seconds after the start
wake-ups     a second: how often a thread of it went to sleep, which it does after each
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.peers import Peer, free_port

__all__ = ["Idle", "measure_idle", "wake_ups_a_second"]

SETTLE_S = 5.0
LOOK_S = 10.0


@dataclass(frozen=True, slots=True)
class Idle:
    resident_mb: float
    wake_ups_a_second: float


def measure_idle(directory: Path) -> Idle:
    port = free_port()
    command = [sys.executable, "-m", "journeyman", "serve", "--listen", f"127.0.0.1:{port}"]
    command += ["--workq-listen", f"127.0.0.1:{free_port()}"]
    command += ["--kestrel-listen", f"127.0.0.1:{free_port()}"]
    command += ["--http-listen", f"127.0.0.1:{free_port()}"]
    with Peer("journeyman", command, port, directory) as server:
        time.sleep(SETTLE_S)
        wake_ups = wake_ups_a_second(server.process_id, LOOK_S)
        resident, _ = server.memory_bytes()
    return Idle(round(resident / 1e6, 1), round(wake_ups, 1))


def wake_ups_a_second(process_id: int, seconds: float) -> float:
    """How often a thread of the process goes to sleep in the next seconds."""
    before = _sleeps(process_id)
    time.sleep(seconds)
    return (_sleeps(process_id) - before) / seconds


def _sleeps(process_id: int) -> int:
    """Of all threads."""
    words = "voluntary_ctxt_switches:"
    return sum(
        int(line.removeprefix(words))
        for status in Path(f"/proc/{process_id}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith(words)
    )
