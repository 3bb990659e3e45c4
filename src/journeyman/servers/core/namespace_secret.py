"""The secret from which the salts of namespaces are made: a file of the data directory.

    namespaces.secret      64 hexadecimal digits; 0600; written, synced and put in place at once

It is made when the first token with a namespace is loaded. Without the file of before, ids that
clients derive are other ids: a job sent again is another job. So a secret that is missing beside
logs is reported, and a backup has the file like everything else in the directory.
"""

from __future__ import annotations

import os
import re
import secrets

from journeyman.data_directory import NAMESPACE_SECRET
from journeyman.disk import Disk
from journeyman.servers.core.server_log import ServerLog

SECRET_BYTES = 32
_CONTENT = re.compile(rb"[0-9a-f]{64}\n?")
_NEW_IDS = "unique tasks and idempotency keys of namespaces get new ids"


def load_secret(
    disk: Disk, directory: str | None, messages: ServerLog, *, has_records: bool
) -> bytes:
    """The secret; a new one if there is none. ``directory`` None: nothing is kept anyway."""
    fresh = secrets.token_bytes(SECRET_BYTES)
    if directory is None:
        return fresh
    path = os.path.join(directory, NAMESPACE_SECRET)
    try:
        if disk.exists(path):
            content = disk.read_bytes(path)
            if _CONTENT.fullmatch(content):
                return bytes.fromhex(content.decode())
            disk.rename(path, f"{path}.damaged")
            messages.warn(f"the secret of namespaces is damaged: {_NEW_IDS}", path=path)
        elif has_records:
            messages.warn(f"logs without the secret of namespaces: {_NEW_IDS}", path=path)
        _write(disk, path, fresh)
    except OSError as error:
        reason = error.strerror or str(error)
        messages.warn(
            f"the secret of namespaces cannot be kept: after a restart {_NEW_IDS}",
            path=path,
            reason=reason,
        )
    return fresh


def _write(disk: Disk, path: str, secret: bytes) -> None:
    """Whole or not at all, whenever the power fails."""
    directory = os.path.dirname(path)
    disk.make_dirs(directory)
    unfinished = f"{path}.new"
    if disk.exists(unfinished):  # a crash left it
        disk.remove(unfinished)
    file = disk.open_append(unfinished)
    try:
        file.write(secret.hex().encode() + b"\n")
        file.sync()
    finally:
        file.close()
    disk.rename(unfinished, path)
    disk.sync_dir(directory)
