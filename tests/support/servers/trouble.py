"""Full disks and failing syncs for a real server."""

from __future__ import annotations

import resource

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
