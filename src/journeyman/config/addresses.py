"""Listen addresses: ``host:port`` in the ways people write it.

    127.0.0.1:5678   localhost:5678   0.0.0.0:5678       a name or an IPv4 address
    [::1]:5678       ::1:5678         [::]:5678          IPv6, with or without brackets

The port is behind the last colon; port 0 lets the system choose one. A missing host is refused:
whether ``:5678`` means this machine or the whole world is not for a server to guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address

MAX_PORT = 65_535

_NAME = re.compile(r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens. The host of an IPv6 address is kept without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """The address, or ValueError with one phrase that says what is wrong."""
    host, colon, port = text.rpartition(":")
    if not colon or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > MAX_PORT:
        raise ValueError(f"it must end with a colon and a port from 0 to {MAX_PORT}")
    if not host:
        raise ValueError(
            f"name the host: 127.0.0.1:{port} for this machine alone, "
            f"0.0.0.0:{port} or [::]:{port} for every network"
        )
    in_brackets = host.startswith("[") and host.endswith("]")
    if in_brackets or ":" in host:
        return Address(_ipv6(host[1:-1] if in_brackets else host), int(port))
    if re.fullmatch(r"[0-9.]+", host):
        return Address(_ipv4(host), int(port))
    if not _NAME.fullmatch(host):
        raise ValueError(f"{host!r} is neither a host name nor an IP address")
    return Address(host, int(port))


def _ipv4(host: str) -> str:
    try:
        IPv4Address(host)
    except AddressValueError:
        raise ValueError(f"{host!r} is no IPv4 address") from None
    return host


def _ipv6(host: str) -> str:
    try:
        IPv6Address(host)
    except AddressValueError:
        raise ValueError(f"{host!r} is no IPv6 address") from None
    return host
