r"""The PROXY protocol, versions 1 and 2: whose connection a load balancer hands on.

    PROXY TCP4 192.0.2.7 192.0.2.1 40000 5678\r\n          version 1: a line
    PROXY UNKNOWN\r\n                                      a check of the balancer itself
    \r\n\r\n\0\r\nQUIT\n 2 1 1 1 <length> <addresses>      version 2: in binary

It stands before everything else, TLS included. The addresses of a balancer's own checks, and of
connections that are not TCP, are not there: then the client is the balancer.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

LONGEST_LINE = 107
LONGEST_BLOCK = 4096  # a header of version 2; its further fields are not read
_LINE = re.compile(
    rb"PROXY (?:(?:TCP4|TCP6) ([0-9A-Fa-f:.]{2,45}) [0-9A-Fa-f:.]{2,45} ([0-9]{1,5}) [0-9]{1,5}"
    rb"|UNKNOWN[^\r\n]*)\r\n"
)
_LINE_BEGINS = b"PROXY "
_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
_HEAD_BYTES = 16
_LOCAL, _PROXIED = 0x20, 0x21
_TCP4, _TCP6 = 0x11, 0x21


class NoProxyHeader(ValueError):
    """Something else stands where the header must stand."""


class ProxyHeader(NamedTuple):
    """``host`` and ``port`` of the client, or an empty host; ``size``: bytes of the header."""

    host: str
    port: int
    size: int


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header that ``data`` begins with; None if it is not whole. Raises NoProxyHeader."""
    if data.startswith(_SIGNATURE):
        return _read_block(data)
    if data.startswith(_LINE_BEGINS):
        return _read_line(data)
    if _SIGNATURE.startswith(data) or _LINE_BEGINS.startswith(data):
        return None
    raise NoProxyHeader("no PROXY header")


def _read_line(data: bytes) -> ProxyHeader | None:
    end = data.find(b"\n", 0, LONGEST_LINE)
    if end < 0:
        if len(data) >= LONGEST_LINE:
            raise NoProxyHeader("a PROXY header without an end")
        return None
    line = _LINE.fullmatch(data[: end + 1])
    if line is None:
        raise NoProxyHeader("a PROXY header that cannot be read")
    if line[1] is None:
        return ProxyHeader("", 0, end + 1)
    try:
        host = ip_address(line[1].decode())
    except ValueError:
        raise NoProxyHeader("a PROXY header without an address") from None
    return ProxyHeader(str(host), int(line[2]), end + 1)


def _read_block(data: bytes) -> ProxyHeader | None:
    if len(data) < _HEAD_BYTES:
        return None
    command, family, length = data[12], data[13], int.from_bytes(data[14:16])
    if command not in (_LOCAL, _PROXIED) or length > LONGEST_BLOCK:
        raise NoProxyHeader("a PROXY header that cannot be read")
    size = _HEAD_BYTES + length
    if len(data) < size:
        return None
    fields = data[_HEAD_BYTES:size]
    if command == _PROXIED and family == _TCP4 and length >= 12:
        host: IPv4Address | IPv6Address = IPv4Address(fields[:4])
        return ProxyHeader(str(host), int.from_bytes(fields[8:10]), size)
    if command == _PROXIED and family == _TCP6 and length >= 36:
        host = IPv6Address(fields[:16])
        return ProxyHeader(str(host), int.from_bytes(fields[32:34]), size)
    return ProxyHeader("", 0, size)
