"""Where the runs of a rule may connect to: http, amqp and redis.

    Reach(settings, tenants).gate(rule, host) --> Gate, or None: nothing is denied
    Gate.check(address)                       --> NotAllowed, before a socket connects to it

The first line that fits decides:

    no token of the server names its runners       allowed: an auth file of ztick denies nothing
    host or address is in runners.deny             denied
    host or address is in runners.allow            allowed
    the rule is in the namespace of a token, and   denied
    the address is not one of the public internet
    anything else                                  allowed

Addresses are judged where a socket is made for them, after names were resolved. So a name that
resolves to something else the next time changes nothing. An IPv6 address that stands for an IPv4
address (mapped, 6to4, Teredo, NAT64) is judged as both.

A rule belongs to a namespace by its identifier, and to the namespaces of now: that is all that a
rule of a log says about its origin.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextvars import ContextVar
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)
from typing import Any, Protocol, TypeAlias

from journeyman.config import RunnerSettings

IpAddress: TypeAlias = IPv4Address | IPv6Address
IpNetwork: TypeAlias = IPv4Network | IPv6Network

# 6to4, Teredo and mapped addresses are known to ipaddress. These hold an IPv4 address at their end.
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE = IPv6Network("::/96")
# Clouds answer their virtual machines at these addresses, which look like those of the internet.
_METADATA = (IPv4Network("168.63.129.16/32"), IPv4Network("192.0.0.0/24"))


class NotAllowed(OSError):
    """A run may not connect there. The text names no address: a name may resolve to a secret."""


class Tenants(Protocol):
    """The tokens, as far as they bind the runs of rules."""

    @property
    def names_runners(self) -> bool:
        """True if any token names the runners that it may use."""
        ...

    def namespace_of(self, *identifiers: str) -> str:
        """The narrowest namespace that covers a rule, and the queue it is about; or nothing."""
        ...

    def salt_of(self, namespace: str) -> bytes:
        """Return the salt of ids that are derived in this namespace."""
        ...


class _NamesAndNetworks:
    """A list of settings: networks, host names, and ``*.`` with the end of host names."""

    def __init__(self, entries: tuple[str, ...]) -> None:
        self._networks: list[IpNetwork] = []
        self._names: set[str] = set()
        self._endings: list[str] = []
        for entry in entries:
            try:
                self._networks.append(ip_network(entry))
            except ValueError:
                if entry.startswith("*."):
                    self._endings.append(entry[1:].lower())
                else:
                    self._names.add(entry.lower())

    def has_host(self, host: str) -> bool:
        name = host.lower().removesuffix(".")
        return name in self._names or any(name.endswith(ending) for ending in self._endings)

    def has_address(self, address: IpAddress) -> bool:
        return any(address in network for network in self._networks)


class Gate:
    """The addresses that one run may connect to."""

    def __init__(self, reach: Reach, host: str, *, is_tenants: bool) -> None:
        self._allow, self._deny = reach.allow, reach.deny
        self._is_host_denied = reach.deny.has_host(host)
        self._is_host_allowed = reach.allow.has_host(host)
        self._is_tenants = is_tenants

    def check(self, text: str) -> None:
        """Raises NotAllowed for an address, as a socket gives it."""
        try:
            address = ip_address(text.partition("%")[0])
        except ValueError:
            raise NotAllowed("the address is of no known family") from None
        meanings = [address, *_embedded(address)]
        if self._is_host_denied or any(map(self._deny.has_address, meanings)):
            raise NotAllowed("the address is in runners.deny")
        mapped = getattr(address, "ipv4_mapped", None) or address
        if self._is_host_allowed or self._allow.has_address(mapped):
            return
        if self._is_tenants and not all(map(_is_public, meanings)):
            raise NotAllowed("the address is not public, and not in runners.allow")


class Reach:
    """See the module."""

    def __init__(self, settings: RunnerSettings, tenants: Tenants | None = None) -> None:
        """``tenants`` None: there are no tokens."""
        self.allow = _NamesAndNetworks(settings.allow)
        self.deny = _NamesAndNetworks(settings.deny)
        self._tenants = tenants

    def gate(self, rule: str, host: str) -> Gate | None:
        """Return the gate for a run of this rule to this host. None: it may connect anywhere."""
        tenants = self._tenants
        if tenants is None or not tenants.names_runners:
            return None
        return Gate(self, host, is_tenants=bool(tenants.namespace_of(rule)))


def _embedded(address: IpAddress) -> Iterator[IPv4Address]:
    if isinstance(address, IPv4Address):
        return
    for inner in (address.ipv4_mapped, address.sixtofour, *(address.teredo or ())):
        if inner is not None:
            yield inner
    if any(address in network for network in (_NAT64, _NAT64_LOCAL, _COMPATIBLE)):
        yield IPv4Address(int(address) & 0xFFFF_FFFF)


def _is_public(address: IpAddress) -> bool:
    """Return whether it is an address of the internet; ``is_global`` alone includes more."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None or address in _NAT64:
            return True  # the IPv4 address in it is judged
        if address.is_site_local or address in _NAT64_LOCAL:
            return False
    is_special = address.is_multicast or address.is_reserved or address.is_unspecified
    is_metadata = any(address in network for network in _METADATA)
    return address.is_global and not is_special and not is_metadata


# The gate of the run that is under way in this context, for libraries that make sockets themselves.
current_gate: ContextVar[Gate | None] = ContextVar("journeyman_gate", default=None)


# As ``getaddrinfo`` has it: family, kind, protocol, canonical name, address.
AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]


def make_socket(place: AddressInfo) -> socket.socket:
    """A socket for an address of ``getaddrinfo``, if the run in this context may connect to it."""
    family, kind, protocol, _, address = place
    gate = current_gate.get()
    if gate is not None:
        gate.check(address[0])
    return socket.socket(family, kind, protocol)


async def open_socket(gate: Gate, host: str, port: int) -> socket.socket:
    """Connect to the first address of the host that is allowed and answers."""
    loop = asyncio.get_running_loop()
    places = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    error: OSError = NotAllowed("the host has no address")
    for family, kind, protocol, _, address in places:
        opened = None
        try:
            gate.check(str(address[0]))
            opened = socket.socket(family, kind, protocol)
            opened.setblocking(False)
            await loop.sock_connect(opened, address)
        except BaseException as failure:
            if opened is not None:
                opened.close()
            if not isinstance(failure, OSError):
                raise
            error = failure
        else:
            return opened
    raise error
