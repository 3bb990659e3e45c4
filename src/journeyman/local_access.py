"""Access between programs of one machine: the names of Unix sockets, and a token for each user.

    journeyman serve --socket DIR       schedule.sock, work_queue.sock, fan_out.sock and http.sock
    journeyman+unix://[TOKEN@]/DIR      the URL of such a server

    journeyman serve --token-file auto     makes the user's token at the first start; an auth file:

        ${XDG_CONFIG_HOME:-~/.config}/journeyman/token      mode 0600

Clients and commands of the same user that were given no token find it there. They show it only

- if the server asks for a token, on this machine
- if the file belongs to the user, is not a link, and no other user can read it
- if the server's port or socket belongs to the user, or to root: another user of the machine could
  listen on the port of a server that does not run, and would learn the token.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from ipaddress import ip_address
from typing import Final
from uuid import uuid4

from journeyman.errors import UsageError

AUTO: Final = "auto"  # in place of an auth file
UNIX_PREFIX: Final = "unix:"  # begins an address that is the path of a socket
MAX_PATH_BYTES: Final = 107  # the limit of Linux for Unix sockets
SERVICES: Final = ("schedule", "work_queue", "fan_out", "http")

_SECRET = re.compile(rb'^\[token\.auto\]\s*\nsecret = "([^"\n]+)"$', re.MULTILINE)
_CREDENTIALS = struct.Struct("iII")
_MAX_FILE_BYTES = 64 * 1024
_LISTENERS = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = "0A"  # the state of a socket, in these tables
_STATE_AT, _LOCAL_AT, _UID_AT = 3, 1, 7  # their columns


def socket_path(host: str) -> str:
    """The path in ``unix:PATH``; nothing for another host."""
    return host.removeprefix(UNIX_PREFIX) if host.startswith(UNIX_PREFIX) else ""


def socket_in(directory: str, service: str) -> str:
    """The address of a service's socket."""
    return f"{UNIX_PREFIX}{os.path.join(directory, service)}.sock"


def is_local(host: str) -> bool:
    """Return whether this is an address of this machine that no other machine has."""
    if host == "localhost" or socket_path(host):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def user_of(peer: socket.socket) -> str:
    """Who is at the other end of a Unix socket, as an address: ``uid 1000``."""
    if not hasattr(socket, "SO_PEERCRED"):
        return ""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _process, user, _group = _CREDENTIALS.unpack(credentials)
    return f"uid {user}"


# -- the token of a user --


def token_path() -> str:
    """Where the user's token is, if there is one."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(home):  # the XDG standard ignores relative paths
        home = os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "journeyman", "token")


def new_token() -> str:
    """An auth file with a new token of all rights."""
    import secrets  # only a server that makes a token pays for it

    secret = secrets.token_hex(24)
    return (
        "# The token of this user: journeyman serve --token-file auto\n"
        f'[token.auto]\nsecret = "sk_auto_{secret}"\nnamespace = "*"\nrunners = "*"\n'
    )


def make_token() -> None:
    """Make the file unless it is there. Raises UsageError."""
    path = token_path()
    if os.path.lexists(path):
        return
    directory = os.path.dirname(path)
    draft = f"{path}.{uuid4().hex}"
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(new_token())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # whole or not at all; another server may have been faster
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot make the token file {path}: {reason}; name another with --token-file FILE"
        ) from None


def token_text() -> str:
    """The user's token file. Raises UsageError if another user may know it."""
    path = token_path()
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            problem = _problem(os.fstat(file.fileno()))
            if problem:
                raise UsageError(f"the token file {path} {problem}; remove it for a new one")
            return file.read(_MAX_FILE_BYTES).decode(errors="replace")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(f"cannot read the token file {path}: {reason}") from None


def _problem(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "is not a file"
    if status.st_uid != os.geteuid():
        return "belongs to another user"
    if stat.S_IMODE(status.st_mode) & 0o077:
        return "can be read by other users"
    return ""


def has_token() -> bool:
    """Return whether the user has a token."""
    return os.path.isfile(token_path())


def token_for(host: str, port: int) -> str | None:
    """The user's token, for a server of this user that asked for one at this address."""
    if not is_local(host) or not _is_ours(host, port):
        return None
    try:
        secret = _SECRET.search(token_text().encode())
    except UsageError:
        return None
    return None if secret is None else secret[1].decode()


def _is_ours(host: str, port: int) -> bool:
    """Return whether the socket at this address belongs to this user or to root."""
    if path := socket_path(host):
        try:
            status = os.stat(path)
        except OSError:
            return False
        return stat.S_ISSOCK(status.st_mode) and status.st_uid in (os.geteuid(), 0)
    users = set[int]()
    for table in _LISTENERS:
        with suppress(OSError), open(table) as rows:
            users |= listening_users(rows, port)
    return bool(users) and users <= {os.geteuid(), 0}


def listening_users(rows: Iterable[str], port: int) -> set[int]:
    """The owners of the sockets that listen on this port, by a table of /proc/net."""
    ending = f":{port:04X}"
    fields = (row.split() for row in rows)
    return {
        int(row[_UID_AT])
        for row in fields
        if len(row) > _UID_AT and row[_STATE_AT] == _LISTENS and row[_LOCAL_AT].endswith(ending)
    }
