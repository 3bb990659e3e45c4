"""The shared part of the network runners: reasons of failures, and the addresses of brokers.

The libraries below the network runners wrap the same few failures of the operating system in
classes and sentences of their own, sometimes several deep. ``why`` finds the failure at the
bottom and says it in one way, whichever library met it:

    ConnectionRefusedError                    connection refused
    gaierror                                  the host name cannot be resolved
    SSLCertVerificationError                  the certificate is not trusted: self-signed ...
    IncompleteReadError, ConnectionReset      the server closed the connection
    several addresses, several errors         the one they agree on, or the last

The addresses of brokers: text of a rule -> where to connect, as whom, to what.

    amqp://[user[:password]@]host[:port][/vhost]      guest:guest  5672  vhost "/"
    redis://[user[:password]@]host[:port][/db]        none         6379  db 0

              user : password        host : port
            |-----------------|   |------------|
    amqp://  bob  :  p%40ss     @  [::1]  : 5672  / orders
            `------------ authority -------------'
                          ends at the first `/`; its last `@` ends the userinfo

- User, password, host and vhost are percent-decoded; an IPv6 address stands in brackets.
- The vhost is what follows the slash. Nothing after it means the default vhost `/`, so `…:5672/`
  and `…:5672` are the same; `/%2f` and `//` name it in full.
- A user of redis without a password counts as none: there is nothing to authenticate with.
- There is no query and no fragment: `?` and `#` are ordinary characters.

What RULE SET accepts (journeyman.protocols.ztick.grammar) is accepted here, unless it hides bytes
that are not text after percent signs; rules of an old log were never checked. A bad
address gives one phrase, which never repeats any of it: it may hold a password.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from journeyman.runners.reach import NotAllowed

AMQP_PORT = 5672
REDIS_PORT = 6379
MAX_PORT = 65_535
MAX_REDIS_DB = 255  # one byte in the original

_DEFAULT_CREDENTIAL = "guest"  # user and password of a fresh broker
_DEFAULT_VHOST = "/"
_HOST_AND_PORT = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+(?:%[^\]]*)?\]|[^:@\[\]]+)(?::(?P<port>.*))?"
)
MAX_CHAIN = 10
_ERRNO_IN_TEXT = re.compile(r"\[Errno (\d+)\]")
_CLOSED = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError, EOFError)


@dataclass(frozen=True, slots=True)
class AmqpDsn:
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    vhost: str


@dataclass(frozen=True, slots=True)
class RedisDsn:
    host: str
    port: int
    user: str | None
    password: str | None = field(repr=False)
    db: int


@dataclass(frozen=True, slots=True)
class _Parts:
    user: str | None
    password: str | None = field(repr=False)
    host: str
    port: int | None
    path: str | None  # after the slash, not decoded; None without a slash


class _BadAddressError(Exception):
    """Ends the parsing of an address; holds the phrase. Never leaves this module."""


def parse_amqp_dsn(dsn: str) -> AmqpDsn | str:
    """The address, or one phrase that says what is wrong with it."""
    try:
        parts = _split(dsn, "amqp")
        return AmqpDsn(
            parts.host,
            parts.port or AMQP_PORT,
            parts.user or _DEFAULT_CREDENTIAL,
            _DEFAULT_CREDENTIAL if parts.password is None else parts.password,
            _decode(parts.path or "", "vhost") or _DEFAULT_VHOST,
        )
    except _BadAddressError as bad:
        return str(bad)


def parse_redis_dsn(url: str) -> RedisDsn | str:
    """The address, or one phrase that says what is wrong with it."""
    try:
        parts = _split(url, "redis")
        db = _number(parts.path or "0", "database", 0, MAX_REDIS_DB)
    except _BadAddressError as bad:
        return str(bad)
    user, password = (parts.user or None, parts.password) if parts.password else (None, None)
    return RedisDsn(parts.host, parts.port or REDIS_PORT, user, password, db)


def address(host: str, port: int) -> str:
    """host:port, for people."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _split(text: str, scheme: str) -> _Parts:
    prefix = f"{scheme}://"
    if not text.startswith(prefix):
        raise _BadAddressError(f"the address does not begin with {prefix}")
    authority, slash, path = text.removeprefix(prefix).partition("/")
    userinfo, _, place = authority.rpartition("@")
    user, colon, password = userinfo.partition(":")
    match = _HOST_AND_PORT.fullmatch(place)
    if match is None:
        raise _BadAddressError("the address has no host")
    port = match["port"]
    return _Parts(
        _decode(user, "user"),
        _decode(password, "password") if colon else None,
        _decode(match["host"].strip("[]"), "host"),
        None if port is None else _number(port, "port", 1, MAX_PORT),
        path if slash else None,
    )


def _decode(text: str, name: str) -> str:
    try:
        decoded = unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise _BadAddressError(
            f"the {name} in the address is not UTF-8 once it is percent-decoded"
        ) from None
    if "\0" in decoded:
        raise _BadAddressError(f"the {name} in the address holds a NUL byte")
    return decoded


def _number(text: str, name: str, low: int, high: int) -> int:
    digits = text.lstrip("0") or "0"
    # The length first: a number of a thousand digits is not worth the arithmetic.
    if not (text.isascii() and text.isdigit() and len(digits) <= 5 and low <= int(digits) <= high):
        raise _BadAddressError(f"the {name} in the address is not a number from {low} to {high}")
    return int(digits)


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
    if isinstance(error, NotAllowed):
        return str(error)
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
    # The errors of several addresses (localhost is two) are joined into one text by asyncio.
    numbers = [error.errno] if error.errno else [int(n) for n in _ERRNO_IN_TEXT.findall(str(error))]
    return os.strerror(numbers[-1]).lower() if numbers else ""
