"""The only place that opens, appends, syncs and renames data files.

    contract.py    what a disk promises
    files.py       the machine's file system
    postgres.py    the same bytes in the tables of a PostgreSQL database, schema.sql; their names
                   in names.py, the connections in database.py
    guard.py       who may write there: the lock, the epoch and the lease of a server

A path says which disk it is on: ``disk_of`` makes a disk for it. Other processes that are given
the path find the same file.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from journeyman.disk.contract import (
    AppendFile,
    Disk,
    FileStatus,
    Lock,
    NotWritten,
    OpenFile,
    ReadingDisk,
    is_full,
    is_out_of_files,
)
from journeyman.disk.files import (
    DIRECTORY_MODE,
    FILE_MODE,
    ReadFile,
    RealAppendFile,
    RealDisk,
    open_regular,
)
from journeyman.errors import UsageError

if TYPE_CHECKING:
    from journeyman.disk.postgres import PostgresDisk

__all__ = [
    "DIRECTORY_MODE",
    "FILE_MODE",
    "AppendFile",
    "Disk",
    "FileStatus",
    "Lock",
    "NotWritten",
    "OpenFile",
    "ReadFile",
    "ReadingDisk",
    "RealAppendFile",
    "RealDisk",
    "absolute",
    "checked_address",
    "disk_of",
    "is_database",
    "is_full",
    "is_out_of_files",
    "open_regular",
    "own_disk_of",
    "postgres_disk_of",
]

_DATABASE = re.compile(r"postgres(?:ql)?://")

# One for each database and process: a process that was forked cannot use its parent's connections.
_disks: dict[tuple[int, str], PostgresDisk] = {}


def is_database(path: str) -> bool:
    """True if a path is the address of a PostgreSQL database, or of a file in one."""
    return _DATABASE.match(path) is not None


def disk_of(path: str, *others: str) -> Disk:
    """The disk that these paths are on. UsageError: an address that cannot be used, or paths on
    several disks."""
    if not is_database(path):
        if any(map(is_database, others)):
            raise UsageError("files and databases cannot be read together: name one of them")
        return RealDisk()
    disk = postgres_disk_of(path)
    if any(not is_database(other) or postgres_disk_of(other) is not disk for other in others):
        raise UsageError("several databases cannot be read together: name one of them")
    return disk


def own_disk_of(path: str) -> Disk:
    """Return the disk of a path for a command that changes what is there: it follows no link below
    the path."""
    disk = disk_of(path)
    if isinstance(disk, RealDisk):
        disk.refuse_links_below(path)
    return disk


def postgres_disk_of(path: str) -> PostgresDisk:
    """The disk of this process in the database of a path. UsageError as above."""
    checked_address(path)
    from journeyman.disk.database import split_address
    from journeyman.disk.postgres import PostgresDisk

    address = split_address(path).address
    key = os.getpid(), address
    disk = _disks.get(key)
    # Two threads may come here at once, and the process must have one disk of a database.
    return _disks.setdefault(key, PostgresDisk(address)) if disk is None else disk


def checked_address(address: str) -> str:
    """The address of a data directory, so that paths can be appended. UsageError."""
    try:
        from journeyman.disk.database import connection_parameters, normalized, split_address
    except ImportError:
        raise UsageError("logs in PostgreSQL need: pip install 'journeyman[postgres]'") from None
    found = normalized(address)
    connection_parameters(split_address(found).address)
    return found


def absolute(path: str) -> str:
    """The path for another process, whatever its working directory is."""
    return path if is_database(path) else os.path.abspath(path)
