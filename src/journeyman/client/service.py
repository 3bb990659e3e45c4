"""The settings that every client has: service, address, token and time limits; and its URL.

    journeyman://TOKEN@HOST:PORT?tls=true&timeout_s=5&connections=8&schedule=5678&fan_out=22133
    journeyman+tls://TOKEN@HOST?ca=/etc/journeyman/ca.pem
    journeyman+unix://TOKEN@/DIRECTORY      the sockets of `journeyman serve --socket DIRECTORY`

One URL leads to all three services, so that an application has one setting. PORT, if given, is that
of the work queue; ``schedule``, ``work_queue`` and ``fan_out`` give each its own.

A client without a token shows that of the user (local_access.py) to a server on this machine that
asks for one.
"""

from __future__ import annotations

import functools
import inspect
import os
import select
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from journeyman import local_access
from journeyman.client import checks
from journeyman.client.conversation import Greeting, Link, Probe, greeting_if_asked
from journeyman.client.errors import InvalidRequest

if TYPE_CHECKING:
    import ssl  # only connections with TLS pay for it

URL_VARIABLE = "JOURNEYMAN_URL"
DEFAULT_URL = "journeyman://127.0.0.1"
MAX_CONNECTIONS = 10_000

Tls: TypeAlias = "bool | ssl.SSLContext"
F = TypeVar("F", bound=Callable[..., Any])

_UNIX_SCHEME = "journeyman+unix"
_SCHEMES = {"journeyman": False, "journeyman+tls": True}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, slots=True)
class ServiceKind:
    """One of the three: its name for people and in URLs, its port, and how a token is shown."""

    title: str  # "the work queue"
    word: str  # "work_queue"
    default_port: int
    greet: Callable[[bytes], Greeting]
    probe: Probe  # a request that shows whether the server asks for a token
    connections: int = 8
    has_open_reads: bool = False  # they belong to one connection, which is kept for them


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a client connects to, and how."""

    address: tuple[str, int]
    title: str
    usual_port: int  # the port the service usually has, for messages
    tls: ssl.SSLContext | None
    timeout_s: float
    greeting: Greeting | None = field(repr=False)  # knows the token

    @property
    def where(self) -> str:
        host, port = self.address
        return host if local_access.socket_path(host) else f"{host}:{port}"

    def link(self) -> Link:
        return Link(
            self.where,
            self.title,
            self.usual_port,
            is_tls=self.tls is not None,
            greeting=self.greeting,
        )

    def all_in_use(self, connections: int) -> str:
        return (
            f"all {connections} connections of this client to {self.where} stayed in use for "
            f"{self.timeout_s:g} s: give it more (connections=)"
        )


class ServiceClient(ABC):
    """See the module. ``host`` is a name or an address; ``from_url`` takes a URL."""

    service: ClassVar[ServiceKind]

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int | None = None,
        *,
        token: str | None = None,
        tls: Tls = False,
        timeout_s: float = 10.0,
        connections: int | None = None,
    ) -> None:
        service = self.service
        port = service.default_port if port is None else port
        count = service.connections if connections is None else connections
        address = checks.address(type(self).__name__, host, port)
        greeting = None if token is None else service.greet(_secret(token))
        if greeting is None and local_access.is_local(host) and local_access.has_token():
            greeting = greeting_if_asked(
                service.probe,
                lambda: local_access.token_for(*address),
                lambda own: service.greet(_secret(own)),
            )
        endpoint = Endpoint(
            address,
            service.title,
            service.default_port,
            tls_context(tls),
            checks.seconds(timeout_s, "timeout_s"),
            greeting,
        )
        self._start(endpoint, checks.whole_number(count, "connections", 1, MAX_CONNECTIONS))

    @abstractmethod
    def _start(self, endpoint: Endpoint, connections: int) -> None:
        """Prepare the pool; nothing connects yet."""

    @classmethod
    def from_url(cls, url: str | None = None) -> Self:
        """A client of the server at this URL, or at $JOURNEYMAN_URL, or on this machine."""
        found = parse_url(url)
        host, port = found.place(cls.service.word)
        return cls(
            host,
            port,
            token=found.token,
            tls=found.tls_setting(),
            timeout_s=found.timeout_s,
            connections=found.connections,
        )


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """A parsed URL. ``ports`` has the ports that it names, by service.

    ``host`` of a server with Unix sockets is ``unix:DIRECTORY``.
    """

    host: str
    token: str | None = field(default=None, repr=False)
    ports: dict[str, int] = field(default_factory=dict)
    is_tls: bool = False
    ca: str | None = None
    timeout_s: float = 10.0
    connections: int | None = None

    def place(self, service: str) -> tuple[str, int | None]:
        """Host and port of a service, for a client; None is the port that it has by default."""
        if directory := local_access.socket_path(self.host):
            return local_access.socket_in(directory, service), None
        return self.host, self.ports.get(service)

    def tls_setting(self) -> Tls:
        """Read the argument ``tls`` of a client. Raises InvalidRequest: ``ca`` is unreadable."""
        if not self.is_tls or self.ca is None:
            return self.is_tls
        return _context_of(self.ca)


_PORTS = ("schedule", "work_queue", "fan_out", "http")


def parse_url(url: str | None = None) -> ServerUrl:
    """The URL, or $JOURNEYMAN_URL, or ``journeyman://127.0.0.1``. Raises InvalidRequest.

    No message shows the URL: it may contain a token.
    """
    text = checks.text(url or os.environ.get(URL_VARIABLE) or DEFAULT_URL, "url")
    try:
        parts = urlsplit(text)
        port = parts.port
        options = dict(parse_qsl(parts.query, strict_parsing=True)) if parts.query else {}
    except ValueError as error:
        raise InvalidRequest(f"the URL of the server cannot be read: {error}") from None
    if parts.scheme == _UNIX_SCHEME and parts.path.strip("/") and not parts.hostname:
        return _unix_url(parts.path, parts.username, options)
    if parts.scheme not in _SCHEMES or not parts.hostname or parts.path.strip("/"):
        problem = "it has no journeyman://"
        if parts.scheme in _SCHEMES:
            problem = "it has a path" if parts.hostname else "it has no host"
        elif parts.scheme == _UNIX_SCHEME:
            problem = "it has a host" if parts.hostname else "it has no directory"
        elif parts.scheme and parts.netloc:
            problem = f"it begins with {parts.scheme[:40]!r}"
        raise InvalidRequest(
            "the URL of the server must be journeyman://[TOKEN@]HOST[:PORT][?options] or"
            f" journeyman+tls://..., or journeyman+unix://[TOKEN@]/DIRECTORY: {problem}"
        )
    ports = {} if port is None else {"work_queue": port}
    ports |= {word: _number(options.pop(word), word) for word in _PORTS if word in options}
    is_tls = _SCHEMES[parts.scheme] or _truth(options.pop("tls", "false"))
    count = options.pop("connections", None)
    found = ServerUrl(
        parts.hostname,
        unquote(parts.username) if parts.username else None,
        ports,
        is_tls,
        options.pop("ca", None),
        _seconds(options.pop("timeout_s", "10")),
        None if count is None else _number(count, "connections"),
    )
    _check_options(options, (*_PORTS, "tls", "ca", "timeout_s", "connections"))
    return found


def _unix_url(path: str, user: str | None, options: dict[str, str]) -> ServerUrl:
    count = options.pop("connections", None)
    found = ServerUrl(
        local_access.UNIX_PREFIX + unquote(path),
        unquote(user) if user else None,
        timeout_s=_seconds(options.pop("timeout_s", "10")),
        connections=None if count is None else _number(count, "connections"),
    )
    _check_options(options, ("timeout_s", "connections"))
    return found


def _check_options(unknown: dict[str, str], allowed: tuple[str, ...]) -> None:
    if unknown:
        names = ", ".join(allowed)
        raise InvalidRequest(f"the URL has an unknown option {min(unknown)!r}: one of {names}")


def tls_context(tls: Tls) -> ssl.SSLContext | None:
    """True: a context that trusts what the system trusts, and checks the name of the server."""
    if tls is False:
        return None
    import ssl

    checks.one_of(tls, (bool, ssl.SSLContext), "tls", "True, False or an ssl.SSLContext")
    return tls if isinstance(tls, ssl.SSLContext) else ssl.create_default_context()


def poll_of(number: int) -> select.poll:
    """``poll_of(number).poll(0)``: whether there is something to read, or the connection ended."""
    poll = select.poll()
    poll.register(number, select.POLLIN)
    return poll


def as_method(method: F, call: Callable[..., Any]) -> F:
    """Give a method of a client the signature of its call: ``self`` first, the value returned."""
    signature = inspect.signature(call)
    returns = str(signature.return_annotation).removeprefix("Call[").removesuffix("]")
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [me, *signature.parameters.values()]
    method.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    return method


@functools.lru_cache(maxsize=16)
def _context_of(ca: str) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise InvalidRequest(f"cannot read the certificates in {ca}: {error}") from None


def _secret(token: str) -> bytes:
    secret = checks.secret(token).encode()
    if not secret or b"\n" in secret or b"\r" in secret:
        raise InvalidRequest("token must be a secret of one line, as in the server's auth file")
    return secret


def _number(text: str, what: str) -> int:
    if not text.isdecimal():
        raise InvalidRequest(f"{what} in the URL must be a whole number, not {text[:40]!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return checks.seconds(float(text), "timeout_s")
    except ValueError:
        raise InvalidRequest(f"timeout_s in the URL must be a number, not {text[:40]!r}") from None


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise InvalidRequest(f"tls in the URL must be true or false, not {text[:40]!r}")
    return _TRUTHS[text.lower()]
