"""The file of the data directory that keeps the namespaces of tokens, and their secret.

    namespaces.secret      64 hexadecimal digits: the secret of the salts
                           then a line for each namespace that a token has ever had

It is made when the first token with a namespace is loaded; 0600, and put in place whole. Without
the secret of before, ids that clients derive are other ids: a job sent again is another job. So a
file that is missing beside logs is reported, and a backup has it like everything else in the
directory. A namespace stays after its token: rules and jobs of the tenant may still be there, and
are still not to be trusted with more than the token was.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from journeyman.data_directory import NAMESPACE_SECRET
from journeyman.disk import Disk
from journeyman.errors import LogFull
from journeyman.logs.publication import put_in_place, write_whole
from journeyman.servers.core.server_log import ServerLog

SECRET_BYTES = 32
_SECRET = re.compile(r"[0-9a-f]{64}")
_NEW_IDS = "unique tasks and idempotency keys of namespaces get new ids"


class KnownNamespaces(NamedTuple):
    secret: bytes
    names: frozenset[str]


def load_namespaces(
    disk: Disk,
    directory: str | None,
    messages: ServerLog,
    names: AbstractSet[str],
    *,
    has_records: bool,
) -> KnownNamespaces:
    """The content of the file, with these names added. ``directory`` None: nothing is kept."""
    known = KnownNamespaces(secrets.token_bytes(SECRET_BYTES), frozenset(names))
    if directory is None:
        return known
    path = os.path.join(directory, NAMESPACE_SECRET)
    try:
        stored = _read(disk.read_bytes(path)) if disk.exists(path) else None
        if stored is not None:
            known = stored._replace(names=stored.names | names)
        elif disk.exists(path):
            disk.rename(path, f"{path}.damaged")
            messages.warn(f"the secret of namespaces is damaged: {_NEW_IDS}", path=path)
        elif has_records:
            messages.warn(f"logs without the secret of namespaces: {_NEW_IDS}", path=path)
        if known != stored:
            disk.make_dirs(directory)
            write_whole(disk, f"{path}.new", [_content(known)])
            put_in_place(disk, f"{path}.new", path)
    except (OSError, LogFull) as error:
        messages.warn(
            "the file of namespaces cannot be written: what is new in it is lost at a restart",
            path=path,
            reason=error,
        )
    return known


def _read(content: bytes) -> KnownNamespaces | None:
    """Read the file of the secret. None: it is not such a file."""
    secret, *names = content.decode("utf-8", "surrogateescape").split("\n")
    if not _SECRET.fullmatch(secret):
        return None
    return KnownNamespaces(bytes.fromhex(secret), frozenset(filter(None, names)))


def _content(namespaces: KnownNamespaces) -> bytes:
    lines = (namespaces.secret.hex(), *sorted(namespaces.names), "")
    return "\n".join(lines).encode("utf-8", "surrogateescape")
