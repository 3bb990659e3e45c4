"""The address of a client behind a load balancer: PROXY headers and X-Forwarded-For."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journeyman.protocols.proxy import (
    LONGEST_BLOCK,
    LONGEST_LINE,
    NoProxyHeader,
    ProxyHeader,
    read_proxy_header,
)
from journeyman.servers.core.proxies import TrustedProxies

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"


def block(command: int, family: int, fields: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + struct.pack(">H", len(fields)) + fields


def tcp(client: str, port: int, more: bytes = b"") -> bytes:
    address = ip_address(client)
    family = 0x11 if address.version == 4 else 0x21
    return block(0x21, family, address.packed * 2 + struct.pack(">HH", port, 5678) + more)


@pytest.mark.parametrize(
    ("data", "host", "port"),
    [
        (b"PROXY TCP4 192.0.2.7 192.0.2.1 40000 5678\r\n", "192.0.2.7", 40000),
        (b"PROXY TCP6 2001:db8::7 2001:db8::1 40000 5678\r\n", "2001:db8::7", 40000),
        (b"PROXY UNKNOWN\r\n", "", 0),
        (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "", 0),
        (tcp("192.0.2.7", 40000), "192.0.2.7", 40000),
        (tcp("2001:db8::7", 40000), "2001:db8::7", 40000),
        (tcp("192.0.2.7", 1, b"\x03\x00\x04abcd"), "192.0.2.7", 1),
        (block(0x20, 0x00, b""), "", 0),
        (block(0x21, 0x31, b"/a".ljust(216, b"\0")), "", 0),
        (block(0x21, 0x11, b"short"), "", 0),
    ],
)
def test_a_header_gives_the_client_wherever_it_is_cut(data, host, port):
    assert read_proxy_header(data + b"AUTH s\n") == ProxyHeader(host, port, len(data))
    for end in range(len(data)):
        assert read_proxy_header(data[:end]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"AUTH secret\n",
        b"proxy TCP4 192.0.2.7 192.0.2.1 1 2\r\n",
        b"PROXY TCP4 192.0.2.7 192.0.2.1 1 2\n",
        b"PROXY TCP4 1.2.3 192.0.2.1 1 2\r\n",
        b"PROXY UDP4 192.0.2.7 192.0.2.1 1 2\r\n",
        b"PROXY " + b"x" * LONGEST_LINE,
        block(0x31, 0x11, b"\0" * 12),
        block(0x22, 0x11, b"\0" * 12),
        block(0x21, 0x11, b"\0" * (LONGEST_BLOCK + 1))[:16],
        b"\r\n\r\n\x01",
    ],
)
def test_anything_else_is_refused(data):
    with pytest.raises(NoProxyHeader):
        read_proxy_header(data)


@given(st.one_of(st.binary(max_size=300), st.binary(max_size=300).map(SIGNATURE.__add__)))
def test_no_bytes_are_a_surprise(data):
    try:
        header = read_proxy_header(data)
    except NoProxyHeader:
        return
    assert header is None or header.size <= len(data)


PROXIES = TrustedProxies(["10.0.0.0/8", "2001:db8:1::/48", "127.0.0.1"])


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        ("192.0.2.9", ["198.51.100.1"], "192.0.2.9"),  # not trusted: its word is not taken
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.5, 198.51.100.1"], "198.51.100.1"),  # the first is made up
        ("10.0.0.1", ["203.0.113.5", "198.51.100.1,10.0.0.2"], "198.51.100.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", ["198.51.100.1, unknown"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1:4000"], "198.51.100.1"),
        ("2001:db8:1::1", ["[2001:db8:2::7]:4000"], "2001:db8:2::7"),
        ("", ["198.51.100.1"], ""),
    ],
)
def test_the_last_address_that_is_not_a_proxy_is_the_client(peer, forwarded, client):
    assert PROXIES.client_of(peer, forwarded) == client


def test_without_proxies_no_word_is_taken():
    assert TrustedProxies().client_of("10.0.0.1", ["198.51.100.1"]) == "10.0.0.1"
    assert not TrustedProxies()
