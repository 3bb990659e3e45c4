"""A listening socket: a session for each connection, behind TLS if asked.

A port that is taken, a host that does not resolve and a port that needs more rights are errors of
one line that name the address. The address of a server that stopped a moment ago can be taken over
at once (SO_REUSEADDR); one that is in use cannot.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sized
from typing import Protocol

from journeyman.config import Address
from journeyman.servers.core.server_log import ServerLog
from journeyman.servers.core.tls import TlsAdapter

BACKLOG = 1024  # connections the system keeps for us while we are busy


class Port(Protocol):
    """What a listener must know of the connections behind it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    def messages(self) -> ServerLog: ...

    @property
    def max_connections(self) -> int: ...

    @property
    def sessions(self) -> Sized: ...


class Listener:
    """An open port. ``address`` holds the port that the system chose, where it was 0."""

    def __init__(self, server: asyncio.Server, address: Address) -> None:
        self._server = server
        self.address = address

    def close(self) -> None:
        """Accept no more; connections that are open stay."""
        self._server.close()


async def listen(
    around: Port,
    address: Address,
    *,
    make_session: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | None = None,
    handshake_timeout_s: float = 10.0,
) -> Listener:
    """Open the port; OSError, worded for people, when that cannot be."""

    shaking: set[TlsAdapter] = set()

    def is_full() -> bool:
        return len(shaking) + len(around.sessions) >= around.max_connections

    def make_tls() -> asyncio.Protocol:
        assert tls is not None
        return TlsAdapter(
            tls,
            make_session,
            handshake_timeout_s=handshake_timeout_s,
            shaking=shaking,
            is_full=is_full,
            refused=lambda reason, client: around.messages.info(reason, client=client),
        )

    try:
        server = await around.loop.create_server(
            make_session if tls is None else make_tls,
            address.host,
            address.port,
            backlog=BACKLOG,
            reuse_address=True,
        )
    except OSError as error:
        raise cannot_listen(address, error) from error
    return Listener(server, where_it_listens(server.sockets, address))


def where_it_listens(sockets: tuple[socket.socket, ...], address: Address) -> Address:
    port = sockets[0].getsockname()[1] if sockets else address.port
    return Address(address.host, int(port))


def cannot_listen(address: Address, error: OSError) -> OSError:
    """The error with the address where others have a file name."""
    reason = f"cannot listen: {error.strerror or error}"
    if isinstance(error, socket.gaierror):
        reason = "cannot listen: the host is not known"
    elif error.errno == errno.EADDRINUSE:
        reason = "cannot listen: another process has this address"
    return OSError(error.errno or errno.EIO, reason, str(address))
