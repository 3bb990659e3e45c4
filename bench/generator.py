"""Load generators run in a process of their own: starting one, and what it needed.

measured_apart("bench.workqueue_load", words)   python -m ..., its last line is a Rate as JSON
drive(connections, seconds)                     inside it: let them send and receive so long
"""

from __future__ import annotations

import json
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["WARM_UP_S", "Rate", "cpu_seconds", "drive", "measured_apart"]

WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class Rate:
    per_second: float
    cpu: float  # part of a core that the generator needed


def measured_apart(module: str, subject: str, words: Iterable[object]) -> Rate:
    command = [sys.executable, "-m", module, subject, *map(str, words)]
    root = Path(__file__).parent.parent
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"the load on {subject} broke off: {found.stderr[-1000:]}")
    return Rate(**json.loads(found.stdout))


class Sender(Protocol):
    """A connection that answers each answer with the next request."""

    socket: socket.socket
    cycles: int  # what it has done so far

    def begin(self) -> None: ...

    def receive(self) -> None: ...


def drive(senders: Sequence[Sender], seconds: float) -> Rate:
    """Cycles a second, after a short warm-up."""
    poll = select.epoll()
    by_number = {each.socket.fileno(): each for each in senders}
    for each in senders:
        poll.register(each.socket, select.EPOLLIN)
        each.begin()

    def go_on(until: float) -> None:
        while time.perf_counter() < until:
            for number, _ in poll.poll(1.0):
                by_number[number].receive()

    go_on(time.perf_counter() + WARM_UP_S)
    before = sum(each.cycles for each in senders)
    cpu_before, begin = cpu_seconds(), time.perf_counter()
    go_on(begin + seconds)
    took_s = time.perf_counter() - begin
    cycles = sum(each.cycles for each in senders) - before
    return Rate(cycles / took_s, (cpu_seconds() - cpu_before) / took_s)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
