"""System calls that fail: a real server below strace, which has chosen calls on its files fail.

    Fault("fdatasync", "EIO", "8")     the 8th fdatasync of a log fails, and no other
    Fault("write", "ENOSPC", "5+3")    the 5th write, and every third after it

The load sends one command at a time until one is refused or the server has ended. Then the files
must hold what was answered, and of the one under way all or nothing; of a refused one nothing.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.crash.acknowledged import COMMANDS, Recovered, Sender, job_id, states
from tests.support.crash.traces import strace
from tests.support.servers.whole_process import WholeProcess
from tests.support.simulated_disk import SimulatedDisk

SETTINGS = {
    "database.compression_interval": "1",
    "workq.cmdlog_seg_size": "700",
    "kestrel.segment_bytes": "1024",
    "history.enabled": "false",
}
SEGMENTS = range(1, 12)


def _paths(data: Path) -> list[Path]:
    """Files whose calls may fail."""
    paths = [data / "schedule.log", data / "schedule.log.compressed.tmp"]
    for number in SEGMENTS:
        paths += [
            data / "workq" / f"{number:09d}.log",
            data / "ledger" / f"{number:09d}.ledger",
        ]
    return paths


@dataclass(frozen=True)
class Fault:
    call: str
    error: str
    when: str

    def __str__(self) -> str:
        return f"{self.call}-{self.error}-{self.when}"


@dataclass(frozen=True)
class Outcome:
    answered: int
    was_refused: bool
    has_ended: bool
    injected: int


def run(directory: Path, fault: Fault) -> Outcome:
    """AssertionError: not all that must hold does."""
    data, trace = directory / "data", directory / "trace"
    options = [word for path in _paths(data) for word in ("-P", str(path))]
    inject = f"inject={fault.call}:error={fault.error}:when={fault.when}"
    prefix = strace(trace, *options, "-e", f"trace={fault.call}", "-e", inject)
    prefix.remove("--seccomp-bpf")  # it looks at numbers of calls, not at paths
    server = WholeProcess(directory, settings=SETTINGS, prefix=prefix)
    try:
        server.start()
    except AssertionError:
        assert server.wait(), "it has started, and did not say so"
        return Outcome(0, False, True, trace.read_text().count("(INJECTED)"))
    with server:
        sender = Sender(server.ports)
        sender.send(COMMANDS)
        sender.close()
        has_ended = not sender.refused and sender.answered < len(COMMANDS)
        if not has_ended:
            server.kill()
        server.wait()
        now_ns = time.time_ns()
    injected = trace.read_text().count("(INJECTED)")
    disk = SimulatedDisk()
    for path in data.rglob("*"):
        if path.is_file():
            disk.plant(str(path), path.read_bytes())
    expected = states(COMMANDS)
    may_be = expected[sender.answered : sender.answered + (1 if sender.refused else 2)]
    options_again = {"data.directory": str(data), **SETTINGS}
    ids = [job_id(number) for number in range(len(COMMANDS))]
    found = Recovered(disk, options_again, now_ns).state(ids)
    assert found in may_be, (fault, sender.answered, sender.refused, found, may_be)
    assert os.listdir(data)
    return Outcome(sender.answered, bool(sender.refused), has_ended, injected)
