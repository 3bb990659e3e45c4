"""Failures of the network are said in one way, whichever library wrapped them."""

from __future__ import annotations

import errno
import socket
import ssl

import aiohttp
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from journeyman.runners.network import why

REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")


def wrapped(outer: Exception, inner: Exception, *, explicit: bool) -> Exception:
    """The outer error, as if raised while the inner one was handled, or raised from it."""
    if explicit:
        outer.__cause__ = inner
    else:
        outer.__context__ = inner
    return outer


def not_trusted() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "long text of OpenSSL")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("error", "phrase"),
    [
        (REFUSED, "connection refused"),
        (OSError(errno.EHOSTUNREACH, "x"), "no route to host"),
        (socket.gaierror(-2, "Name or service not known"), "the host name cannot be resolved"),
        (UnicodeError("label too long"), "the host name is not valid"),
        (ConnectionResetError(errno.ECONNRESET, "x"), "the server closed the connection"),
        (BrokenPipeError(), "the server closed the connection"),
        (TimeoutError(errno.ETIMEDOUT, "x"), "connection timed out"),
        (not_trusted(), "the certificate is not trusted: self-signed certificate"),
        (ssl.SSLError(1, "WRONG_VERSION_NUMBER"), "the TLS handshake failed"),
        (OSError("Multiple exceptions: [Errno 111] a, [Errno 113] b"), "no route to host"),
        (wrapped(RedisConnectionError("Error 111"), REFUSED, explicit=False), "connection refused"),
        (wrapped(RedisConnectionError("Error 111"), REFUSED, explicit=True), "connection refused"),
        (RedisConnectionError("max number of clients reached."), "max number of clients reached"),
        (aiohttp.ClientError(), "ClientError"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_error_at_the_bottom_is_the_cause(error, phrase):
    assert why(error) == phrase


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first
    assert why(first) == "first"
