"""Full disks, and syncs that fail or do not return, for a real server."""

from __future__ import annotations

import resource
from pathlib import Path

from tests.support.servers.schedule_process import ScheduleProcess

FAILING_SYNC = """
import errno, os
from journeyman import cli, disk
real = disk.os.fdatasync
def sync(fd):
    if os.path.exists("fail"):
        raise OSError(errno.EIO, "Input/output error")
    real(fd)
disk.os.fdatasync = sync
cli.main()
"""


def limit(server: ScheduleProcess, size: int | None) -> None:
    value = resource.RLIM_INFINITY if size is None else size
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (value, resource.RLIM_INFINITY))


READ_ONLY = "-SERVER-ERROR Read-only mode triggered by cmdlog circuit breaker"

# A sync of a file whose path holds the text in the file "stall" does not return while it is there.
STALLING_SYNC = """
import os, time
from journeyman import cli, disk
real = disk.os.fdatasync
def sync(fd):
    while True:
        try:
            with open("stall") as file:
                part = file.read()
        except FileNotFoundError:
            break
        if part not in os.readlink(f"/proc/self/fd/{fd}"):
            break
        time.sleep(0.01)
    real(fd)
disk.os.fdatasync = sync
cli.main()
"""


def stall(directory: Path, part: str) -> None:
    """From now on, syncs of files whose paths hold ``part`` do not return."""
    (directory / "stall.new").write_text(part)
    (directory / "stall.new").rename(directory / "stall")


def end_stall(directory: Path) -> None:
    (directory / "stall").unlink()
