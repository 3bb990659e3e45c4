"""A lock on a store's directory: one work queue, import or rebuild at a time."""

from __future__ import annotations

from typing import Final

from journeyman.disk import Lock, RealDisk
from journeyman.errors import LogLocked, StorageError, StorageLocked

LOCK_NAME: Final = "workq.lock"


def lock_directory(directory: str) -> Lock:
    """Held until it is released or the process ends. StorageLocked: another process has it."""
    try:
        return RealDisk().lock(f"{directory}/{LOCK_NAME}")
    except LogLocked as error:
        raise StorageLocked(directory, "a work queue has its jobs here") from error
    except OSError as error:
        raise StorageError(directory, f"{LOCK_NAME}: {error.strerror or error}") from error
