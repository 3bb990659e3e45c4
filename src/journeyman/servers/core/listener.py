"""A listening socket: a session for each connection, inside TLS if there is a certificate.

A port that is in use, a host that does not resolve and a port that needs more rights are errors of
one line that name the address. The address of a server that stopped a moment ago can be taken over
at once (SO_REUSEADDR).

TLS stands between a socket and a session as one more machine without I/O: ssl's own, fed from
memory.

    socket --bytes--> TlsAdapter --ssl object on two memory buffers--> Session
    socket <--bytes-- TlsAdapter <------------------------------------ TlsTransport.write

asyncio brings TLS as well, but when the client has said that it will send no more (close_notify,
as `echo ... | socat - OPENSSL:...` does), asyncio closes at once and answers still on their way are
lost. Here the end of one direction is not the end of the other: the session sees ``eof_received``
and closes when it has answered.

- A handshake that takes too long or fails (a plaintext client) ends the connection; the session
  never sees it.
- TLS 1.2 or newer, the server's cipher order, the whole chain of the certificate file.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import stat
from collections.abc import Callable, Sized
from contextlib import suppress
from typing import Any, Protocol, cast

from journeyman.config import Address
from journeyman.errors import UsageError
from journeyman.servers.core.proxies import ProxyAdapter, TrustedProxies, WrappedTransport
from journeyman.servers.core.server_log import ServerLog, address_of

_READ_BYTES = 64 * 1024
BACKLOG = 1024  # connections the system keeps for us while we are busy


def server_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return what a listener needs; UsageError names the file that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_certificate(context, certificate, key)
    return context


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Have new handshakes use these files; nothing changes if they cannot be used: UsageError."""
    for name, path in (("tls_cert", certificate), ("tls_key", key)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(f"controller.{name} = {path!r}: {reason}") from None
    try:
        # Tried elsewhere first: a context with half of a new pair would be useless.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
        context.load_cert_chain(certificate, key, _no_password)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise UsageError(
            f"controller.tls_cert = {certificate!r}, controller.tls_key = {key!r}: not a PEM "
            f"certificate with its key ({reason.lower().replace('_', ' ')})"
        ) from None


def _no_password() -> str:
    """Keys with a password are refused; OpenSSL would ask on the terminal."""
    return ""


class TlsTransport(WrappedTransport):
    """The transport that a session with TLS writes to."""

    def __init__(self, raw: asyncio.Transport, adapter: TlsAdapter) -> None:
        super().__init__(raw)
        self._adapter = adapter

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "sslcontext":
            return self._adapter.context
        return super().get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._adapter.send(data)

    def close(self) -> None:
        self._adapter.close()


class TlsAdapter(asyncio.Protocol):
    """One connection: its handshake, then bytes both ways for ``make_session()``."""

    def __init__(
        self,
        context: ssl.SSLContext,
        make_session: Callable[[], asyncio.Protocol],
        *,
        handshake_timeout_s: float,
        shaking: set[Any],
        is_full: Callable[[], bool],
        refused: Callable[[str, str], object],
    ) -> None:
        """``shaking`` holds those that have no session yet; ``is_full``: take no more of them.

        ``refused`` is called with the client when a connection ends without a session, and why.
        """
        self.context = context
        self._shaking = shaking
        self._is_full = is_full
        self._make_session = make_session
        self._timeout_s = handshake_timeout_s
        self._refused = refused
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._raw: asyncio.Transport
        self._session: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._input_over = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's is of another family
        if self._is_full():
            self._refuse("connection refused: too many are open")
            self._raw.abort()
            return
        self._shaking.add(self)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._timeout_s, self._too_slow)

    def data_received(self, data: bytes) -> None:
        if self._raw.is_closing() or self._input_over:
            return
        self._incoming.write(data)
        if self._session is None and not self._shake_hands():
            return
        self._receive()

    def eof_received(self) -> bool:
        if self._session is None:
            return False
        return self._end_of_input()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        self._shaking.discard(self)
        if self._session is not None:
            self._session.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._session is not None:
            self._session.pause_writing()

    def resume_writing(self) -> None:
        if self._session is not None:
            self._session.resume_writing()

    # -- from the session --

    def send(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._raw.is_closing():
            return
        try:
            # A memory buffer takes everything, so one call writes all of it.
            self._tls.write(data)
        except ssl.SSLError:
            self._raw.abort()
            return
        self._flush()

    def close(self) -> None:
        if self._raw.is_closing():
            return
        with suppress(ssl.SSLError):  # the other side need not have said goodbye as well
            self._tls.unwrap()
        self._flush()
        self._raw.close()

    # -- inside --

    def _shake_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._flush()  # the alert that says why
            self._cancel_timer()
            self._refuse(f"TLS handshake failed: {getattr(error, 'reason', None) or error}")
            self._raw.close()
            return False
        self._flush()
        self._cancel_timer()
        self._shaking.discard(self)
        self._session = self._make_session()
        self._session.connection_made(TlsTransport(self._raw, self))
        return True

    def _receive(self) -> None:
        assert self._session is not None
        pieces: list[bytes] = []
        ended = False
        try:
            while piece := self._tls.read(_READ_BYTES):
                pieces.append(piece)
            ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            ended = True
        except ssl.SSLError:
            self._raw.abort()
            return
        self._flush()  # answers to key updates
        if pieces:
            self._session.data_received(b"".join(pieces))
        if ended and not self._end_of_input():
            self.close()

    def _end_of_input(self) -> bool:
        """Return whether the session wants to go on sending."""
        if self._input_over or self._session is None:
            return True
        self._input_over = True
        return bool(self._session.eof_received())

    def _flush(self) -> None:
        if data := self._outgoing.read():
            self._raw.write(data)

    def _refuse(self, reason: str) -> None:
        self._refused(reason, address_of(self._raw.get_extra_info("peername")))

    def _too_slow(self) -> None:
        self._timer = None
        self._refuse("TLS handshake took too long")
        self._raw.abort()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Port(Protocol):
    """The connections of a port, as far as a listener must know them."""

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
        self._file = os.stat(address.path) if address.path else None
        self._watched: list[socket.socket] = []  # for the first client

    def close(self) -> None:
        """Accept no more; connections that are open stay."""
        self._end_watch()
        self._server.close()
        if self._file is not None:
            with suppress(OSError):  # another server may have put its own there
                if os.path.samestat(os.stat(self.address.path), self._file):
                    os.unlink(self.address.path)
            self._file = None

    def at_first_client(self, begin: Callable[[], object]) -> None:
        """Call this once, when a client has come: the system keeps it, and those after it, until
        ``serve``. Copies of the sockets are watched, because the loop has its own for accepting."""
        try:
            for each in self._server.sockets:
                copy = socket.socket(fileno=os.dup(each.fileno()))
                self._watched.append(copy)
                copy.listen(BACKLOG)
        except OSError:  # no file descriptor is left, say
            self.close()
            raise

        def came() -> None:
            self._end_watch()
            begin()

        for copy in self._watched:
            self._server.get_loop().add_reader(copy, came)
        if not self._watched:  # a simulated network has no sockets
            begin()

    def copies(self) -> list[socket.socket]:
        """Copies of the listening sockets, for another thread. The port stays open with them."""
        return [socket.socket(fileno=os.dup(each.fileno())) for each in self._server.sockets]

    async def serve(self) -> None:
        await self._server.start_serving()

    def _end_watch(self) -> None:
        for copy in self._watched:
            self._server.get_loop().remove_reader(copy)
            copy.close()
        self._watched.clear()


async def listen(
    port: Port,
    address: Address,
    *,
    make_session: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | None = None,
    handshake_timeout_s: float = 10.0,
    at_first_client: Callable[[], object] | None = None,
    proxies: TrustedProxies | None = None,
    socket_mode: int = 0o600,
) -> Listener:
    """Open the port; OSError, worded for people, when that cannot be.

    With ``at_first_client`` nothing is accepted before ``Listener.serve``. Connections of
    ``proxies`` begin with a PROXY header.
    """

    shaking: set[Any] = set()  # those that have no session yet

    def is_full() -> bool:
        return len(shaking) + len(port.sessions) >= port.max_connections

    def refused(reason: str, client: str) -> None:
        port.messages.info(reason, client=client)

    def make_tls() -> asyncio.Protocol:
        assert tls is not None
        return TlsAdapter(
            tls,
            make_session,
            handshake_timeout_s=handshake_timeout_s,
            shaking=shaking,
            is_full=is_full,
            refused=refused,
        )

    make = make_session if tls is None else make_tls

    def make_behind_proxy() -> asyncio.Protocol:
        assert proxies is not None
        return ProxyAdapter(
            proxies,
            make,
            timeout_s=handshake_timeout_s,
            beginning=shaking,
            is_full=is_full,
            refused=refused,
        )

    try:
        factory, starts = make_behind_proxy if proxies else make, at_first_client is None
        if address.path:
            bound = bind_unix(address.path, socket_mode)
            server = await port.loop.create_unix_server(
                factory, sock=bound, backlog=BACKLOG, start_serving=starts
            )
        else:
            server = await port.loop.create_server(
                factory,
                address.host,
                address.port,
                backlog=BACKLOG,
                reuse_address=True,
                start_serving=starts,
            )
        listener = Listener(server, where_it_listens(server.sockets, address))
        if at_first_client is not None:
            listener.at_first_client(at_first_client)
    except OSError as error:
        raise cannot_listen(address, error) from error
    return listener


def bind_unix(path: str, mode: int) -> socket.socket:
    """A socket at this path, in place of one that a server has left. Raises OSError.

    Until it listens, which is later, none can connect: its mode is right by then.
    """
    made_for = 0o700 if mode & 0o077 == 0 else 0o750
    os.makedirs(os.path.dirname(os.path.abspath(path)), made_for, exist_ok=True)
    _remove_stale(path)
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
        os.chmod(path, mode)
    except OSError:
        bound.close()
        raise
    return bound


def _remove_stale(path: str) -> None:
    """Raises OSError if it is in use, or no socket."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "there is a file that is not a socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except BlockingIOError:  # its backlog is full
            raise OSError(errno.EADDRINUSE, "in use") from None
        else:
            raise OSError(errno.EADDRINUSE, "in use")


def where_it_listens(sockets: tuple[socket.socket, ...], address: Address) -> Address:
    if address.path:
        return address
    port = sockets[0].getsockname()[1] if sockets else address.port
    return Address(address.host, int(port))


def cannot_listen(address: Address, error: OSError) -> OSError:
    """The error with the address where others have a file name."""
    reason = f"cannot listen: {error.strerror or error}"
    if isinstance(error, socket.gaierror):
        reason = "cannot listen: unknown host"
    elif error.errno == errno.EADDRINUSE:
        reason = "cannot listen: another process has this address; stop it or choose another"
    return OSError(error.errno or errno.EIO, reason, str(address))
