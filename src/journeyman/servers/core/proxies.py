"""Load balancers that say whose connections they hand on: access.trusted_proxies.

Without this, all clients of a balancer have one address, and share the delays of its guessers.

    HTTP              X-Forwarded-For of a trusted peer: the last address in it that is not trusted
                      itself. Anyone can send the addresses before that one
    the three ports   with access.proxy_protocol: every connection of a trusted peer begins with a
                      PROXY header (protocols/proxy.py), before TLS; without one it is closed.
                      Connections of other peers have none

    socket --bytes--> ProxyAdapter --header read--> set_protocol --> session, or TlsAdapter
                                                    the transport shows the client's address
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network
from typing import Any, cast

from journeyman.protocols.proxy import NoProxyHeader, read_proxy_header
from journeyman.servers.core.server_log import address_of

_MOST_HOPS = 32  # that are read of X-Forwarded-For


class TrustedProxies:
    """The networks of access.trusted_proxies."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [ip_network(each) for each in networks]

    def __bool__(self) -> bool:
        return bool(self._networks)

    def trusts(self, host: str) -> bool:
        address = _address(host)
        return address is not None and any(address in each for each in self._networks)

    def client_of(self, peer: str, forwarded: Iterable[str]) -> str:
        """The client's address; ``forwarded`` are the values of X-Forwarded-For, in order."""
        client = peer
        hops = ",".join(forwarded).split(",") if self._networks else []
        for hop in reversed(hops[-_MOST_HOPS:]):
            if not self.trusts(client):
                break
            address = _address(_without_port(hop.strip()))
            if address is None:
                break
            client = str(address)
        return client


def _address(host: str) -> Any:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _without_port(hop: str) -> str:
    """Some balancers write ``192.0.2.7:40000`` and ``[2001:db8::7]:40000``."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


class WrappedTransport(asyncio.Transport):
    """A transport that does as the one inside it."""

    def __init__(self, raw: asyncio.Transport) -> None:
        super().__init__()
        self._raw = raw

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._raw.write(data)

    def close(self) -> None:
        self._raw.close()

    def abort(self) -> None:
        self._raw.abort()

    def is_closing(self) -> bool:
        return self._raw.is_closing()

    def pause_reading(self) -> None:
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._raw.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._raw.get_write_buffer_size()


class _ForwardedTransport(WrappedTransport):
    def __init__(self, raw: asyncio.Transport, client: tuple[str, int]) -> None:
        super().__init__(raw)
        self._client = client

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._client if name == "peername" else super().get_extra_info(name, default)


class ProxyAdapter(asyncio.Protocol):
    """One connection, until its header has come. ``make_session`` makes what follows."""

    def __init__(
        self,
        proxies: TrustedProxies,
        make_session: Callable[[], asyncio.Protocol],
        *,
        timeout_s: float,
        beginning: set[Any],
        is_full: Callable[[], bool],
        refused: Callable[[str, str], object],
    ) -> None:
        """``beginning`` holds those that have no session yet; ``is_full``: take no more of them.

        ``refused`` is called with the reason and the proxy when a connection ends without one.
        """
        self._proxies = proxies
        self._make_session = make_session
        self._timeout_s = timeout_s
        self._beginning = beginning
        self._is_full = is_full
        self._refused = refused
        self._raw: asyncio.Transport
        self._header = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)  # uvloop's is of another family
        peer = transport.get_extra_info("peername")
        if not (isinstance(peer, tuple) and self._proxies.trusts(str(peer[0]))):
            self._go_on(self._raw)
        elif self._is_full():
            self._refuse("connection refused: too many are open")
        else:
            self._beginning.add(self)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(
                self._timeout_s, self._refuse, "a PROXY header took too long"
            )

    def data_received(self, data: bytes) -> None:
        if self._raw.is_closing():
            return
        data = self._header + data
        try:
            header = read_proxy_header(data)
        except NoProxyHeader as error:
            self._refuse(f"a trusted proxy sent {error}: closing")
            return
        if header is None:
            self._header = data
            return
        self._end_wait()
        raw = self._raw
        session = self._go_on(
            _ForwardedTransport(raw, (header.host, header.port)) if header.host else raw
        )
        if len(data) > header.size and not raw.is_closing():
            session.data_received(data[header.size :])

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio asks so
        self._end_wait()

    def _go_on(self, transport: asyncio.Transport) -> asyncio.Protocol:
        session = self._make_session()
        self._raw.set_protocol(session)
        session.connection_made(transport)
        return session

    def _refuse(self, reason: str) -> None:
        self._end_wait()
        self._refused(reason, address_of(self._raw.get_extra_info("peername")))
        self._raw.abort()

    def _end_wait(self) -> None:
        self._beginning.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
