"""What went wrong between here and a server, in words.

The libraries below the network runners wrap the same few failures of the operating system in
classes and sentences of their own, sometimes several deep. ``why`` finds the failure at the
bottom and says it in one way, whichever library met it:

    ConnectionRefusedError                    connection refused
    gaierror                                  the host name cannot be resolved
    SSLCertVerificationError                  the certificate is not trusted: self-signed ...
    IncompleteReadError, ConnectionReset      the server closed the connection
    several addresses, several errors         the one they agree on, or the last
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Iterator

MAX_CHAIN = 10

_ERRNO_IN_TEXT = re.compile(r"\[Errno (\d+)\]")
_CLOSED = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, EOFError)


def why(error: BaseException) -> str:
    """The cause of a failed connection, as a phrase."""
    # From the bottom up: the deepest error is the one that happened, the others are wrapping.
    for cause in reversed(list(_chain(error))):
        phrase = _phrase(cause)
        if phrase:
            return phrase
    return str(error).rstrip(".") or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    for _ in range(MAX_CHAIN):
        if link is None:
            return
        yield link
        inner = getattr(link, "os_error", None)  # aiohttp keeps the bottom error here
        link = inner if isinstance(inner, BaseException) else link.__cause__ or link.__context__


def _phrase(error: BaseException) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(error, UnicodeError):
        return "the host name is not valid"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return "the TLS handshake failed"
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "connection timed out"
    if isinstance(error, _CLOSED):
        return "the server closed the connection"
    if isinstance(error, OSError):
        return _os_phrase(error)
    return ""


def _os_phrase(error: OSError) -> str:
    # asyncio joins the errors of several addresses (localhost is two) into one text.
    numbers = [error.errno] if error.errno else [int(n) for n in _ERRNO_IN_TEXT.findall(str(error))]
    return os.strerror(numbers[-1]).lower() if numbers else ""
