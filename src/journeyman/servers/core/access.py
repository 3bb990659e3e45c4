"""Who may connect, the same for all ports: tokens, certificate, and delays for guessers.

    load      before anything listens; UsageError says what is wrong with a file
    reload    on SIGHUP: connections whose token was removed are closed, new handshakes show the new
              certificate. If a file cannot be used, everything stays as it was.

Guessing secrets takes time: attempts of one address are checked one after another, slowly.

    failed so far, in a row         0    1    2    3    4    5 ...
    time before the next check, s   0    0.1  0.2  0.4  0.8  up to MAX_DELAY_S

An attempt waits until its address may try again. Only then is the secret checked, and the answer
follows at once, whether it is right or wrong. Attempts of all ports and connections share one line
per address, so that many connections guess no faster than one: at most ten secrets per second, and
fewer as failures continue. A correct secret ends the delays.

Wrong secrets must not lock out right ones of the same address:

    known     a secret that was right from this address since the last reload passes at once
    newest    of those that wait, the last that came is checked first: however many connections
              hold a place, the next login is checked at the next turn
    verdict   only a check says that a secret is wrong. One that was not checked in time
              (limits.auth_timeout_ms) is asked to try again, or closed without a reply

A reload forgets what is known. An attempt that is given up leaves its line at once, so the lines
are as long as there are connections, and hold digests only. The tables are bounded: when they are
full, the address that was seen longest ago is forgotten first. An IPv6 client owns a whole /64,
which counts as one address. The address of a client behind a load balancer is found in proxies.py.

journeyman.config.Tokens checks secrets, by comparing keyed digests.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import OrderedDict
from collections.abc import Callable, Iterable
from ipaddress import IPv6Address, ip_address
from typing import Protocol, TypeVar

from journeyman import config
from journeyman.local_access import AUTO, new_token, token_path
from journeyman.protocols.workq.salts import namespace_salt
from journeyman.servers.core.listener import load_certificate, server_context
from journeyman.servers.core.namespace_secret import KnownNamespaces
from journeyman.servers.core.proxies import TrustedProxies

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 1.0
MAX_ADDRESSES = 10_000
FORGET_AFTER_S = 600.0

_MAX_DOUBLINGS = 16  # far beyond MAX_DELAY_S; keeps the arithmetic small
_IPV6_NETWORK_BITS = 64


class Admitted(Protocol):
    """A connection, as far as its right to be here goes."""

    @property
    def token(self) -> config.Token | None: ...

    def drop(self) -> None: ...


class Access:
    """``tokens`` None: no token is needed. ``tls`` None: no encryption."""

    def __init__(
        self,
        tokens: config.Tokens | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        auth_timeout_s: float = 5.0,
        proxies: TrustedProxies | None = None,
    ) -> None:
        self.tokens = tokens
        self.tls = tls
        # Those of tokens, now or ever: see namespace_secret.
        self.namespaces: set[str] = set() if tokens is None else tokens.namespaces
        self._known = KnownNamespaces(b"", frozenset())
        self.auth_timeout_s = auth_timeout_s
        self.proxies = proxies or TrustedProxies()
        self.attempts = Attempts()
        self.visitors: set[Admitted] = set()  # requests over HTTP that are being answered

    @classmethod
    def load(cls, settings: config.Settings) -> Access:
        controller, limits = settings.controller, settings.limits
        tls = None
        if controller.tls_cert is not None and controller.tls_key is not None:
            tls = server_context(controller.tls_cert, controller.tls_key)
        tokens = None if controller.auth_file is None else _tokens_of(controller.auth_file)
        return cls(
            tokens,
            tls,
            auth_timeout_s=limits.auth_timeout_ms / 1000,
            proxies=TrustedProxies(settings.access.trusted_proxies),
        )

    def log_in(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        secret: bytes,
        tell: Callable[[config.Token | None], None],
        *,
        to_write: bool,
    ) -> Attempt:
        """Have this secret checked when ``host`` may try; ``tell`` gets its token, or None.

        That may be before this returns. ``to_write``: tokens that may only look, which is done
        over HTTP, are refused. The tokens are those at the time of the check.
        """
        digest = config.digest_of(secret)

        def check() -> config.Token | None:
            token = None if self.tokens is None else self.tokens.of_digest(digest)
            return token if token is not None and (token.may_write or not to_write) else None

        return self.attempts.ask(loop, host, digest, check, tell)

    @property
    def names_runners(self) -> bool:
        """True if tokens are bound to the runners that they name: not in a file of ztick."""
        return self.tokens is not None and self.tokens.names_runners

    @property
    def has_new_namespaces(self) -> bool:
        """True if there are namespaces that are not kept yet."""
        return not self.namespaces <= self._known.names

    def know(self, namespaces: KnownNamespaces) -> None:
        self._known = namespaces
        self.namespaces |= namespaces.names

    def namespace_of(self, *identifiers: str) -> str:
        """The narrowest namespace that covers a rule, and the queue it is about; or nothing.

        A token that was removed has left its rules: its namespace still counts.
        """
        covering = (
            namespace
            for namespace in self.namespaces
            if all(identifier.startswith(namespace) for identifier in identifiers)
        )
        return max(covering, key=len, default="")

    def salt_of(self, namespace: str) -> bytes:
        """Return the salt of ids that are derived in this namespace; empty for the namespace of
        everything."""
        if namespace in ("", config.ALL_NAMESPACES) or not self._known.secret:
            return b""
        return namespace_salt(self._known.secret, namespace)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return what is odd about the tokens."""
        if self.tokens is None:
            return ()
        if not len(self.tokens):
            return (*self.tokens.notes, "the auth file holds no token: no client can log in")
        warning = self.tokens.warning
        return (*self.tokens.notes, warning) if warning else self.tokens.notes

    def reload(self, settings: config.Settings, connections: Iterable[Admitted]) -> list[str]:
        """Read the files again; what was done. Whether they are asked for at all stays."""
        controller, done = settings.controller, []
        tokens = self.tokens
        if tokens is not None and controller.auth_file is not None:
            tokens = config.load_tokens(controller.auth_file)
        if self.tls is not None and controller.tls_cert and controller.tls_key:
            load_certificate(self.tls, controller.tls_cert, controller.tls_key)
            done.append("the certificate")
        if tokens is not None:
            self.tokens = tokens
            self.namespaces |= tokens.namespaces
            self.attempts.forget_known()
            everyone = [*connections, *self.visitors]
            removed = [one for one in everyone if one.token and one.token not in tokens]
            for connection in removed:
                connection.drop()
            closed = (
                f", {len(removed)} connections closed whose token was removed" if removed else ""
            )
            done.append(f"{len(tokens)} tokens{closed}")
        return done


def _tokens_of(auth_file: str) -> config.Tokens:
    """The user's own token need not be there when settings are only checked."""
    if auth_file == AUTO and not os.path.lexists(token_path()):
        return config.parse_tokens(new_token(), token_path())
    return config.load_tokens(auth_file)


class Attempt:
    """A secret that is checked, or waits for that."""

    __slots__ = ("_address", "check", "digest", "tell")

    def __init__(
        self,
        address: _Address,
        digest: bytes,
        check: Callable[[], config.Token | None],
        tell: Callable[[config.Token | None], None],
    ) -> None:
        self._address = address
        self.digest = digest
        self.check = check
        self.tell = tell

    @property
    def is_waiting(self) -> bool:
        return self in self._address.line

    def give_up(self) -> None:
        """Neither check it nor tell anything any more."""
        self._address.line.pop(self, None)


class _Address:
    """One that has failed lately, or waits."""

    __slots__ = ("failures", "last_s", "line", "next_check_s", "timer")

    def __init__(self, now_s: float) -> None:
        self.failures = 0
        self.last_s = now_s
        self.next_check_s = now_s
        self.line: dict[Attempt, None] = {}  # the newest last
        self.timer: asyncio.TimerHandle | None = None

    def failed(self, now_s: float) -> None:
        doublings = min(self.failures, _MAX_DOUBLINGS)
        self.failures += 1
        self.last_s = now_s
        self.next_check_s = now_s + min(FIRST_DELAY_S * 2**doublings, MAX_DELAY_S)


class Attempts:
    """The addresses that failed lately, which attempts of them wait, and what was right before."""

    def __init__(self) -> None:
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._known: OrderedDict[str, set[bytes]] = OrderedDict()  # digests, by address

    def __len__(self) -> int:
        return len(self._addresses)

    def ask(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        digest: bytes,
        check: Callable[[], config.Token | None],
        tell: Callable[[config.Token | None], None],
    ) -> Attempt:
        """Have ``check`` called when ``host`` may try, and ``tell`` with the token it gave.

        That may be before this returns.
        """
        key, now_s = _network(host), loop.time()
        address = self._addresses.get(key)
        if address is not None and not address.line and self._is_over(address, now_s):
            del self._addresses[key]
            address = None
        if address is None:
            address = _Address(now_s)
        attempt = Attempt(address, digest, check, tell)
        # A lookup by digest says nothing about the secret: the digest's key is known here only.
        if digest in self._known.get(key, ()) and (token := check()) is not None:
            # The time of the next check stays: who has a token must not guess faster with it.
            address.failures = 0
            self._known.move_to_end(key)
            tell(token)
            return attempt
        address.line[attempt] = None
        if address.timer is None:
            self._serve(loop, key, address)
        return attempt

    def forget_known(self) -> None:
        """Every secret is checked in its turn again: the tokens have changed."""
        self._known.clear()

    def _is_over(self, address: _Address, now_s: float) -> bool:
        return now_s - address.last_s > FORGET_AFTER_S

    def _serve(self, loop: asyncio.AbstractEventLoop, key: str, address: _Address) -> None:
        """Check those whose turn it is; come back for the rest."""
        address.timer = None
        while address.line:
            now_s = loop.time()
            if now_s < address.next_check_s:
                delay_s = address.next_check_s - now_s
                address.timer = loop.call_later(delay_s, self._serve, loop, key, address)
                return
            attempt, _ = address.line.popitem()
            token = attempt.check()
            if token is None:
                address.failed(now_s)
                _keep(self._addresses, key, address)
            else:
                address.failures = 0
                known = self._known.get(key, set())
                known.add(attempt.digest)
                _keep(self._known, key, known)
            attempt.tell(token)
        if address.failures == 0 and self._addresses.get(key) is address:
            del self._addresses[key]


T = TypeVar("T")


def _keep(table: OrderedDict[str, T], key: str, value: T) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > MAX_ADDRESSES:
        table.popitem(last=False)


def _network(host: str) -> str:
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return f"{int(address) >> (128 - _IPV6_NETWORK_BITS):x}/{_IPV6_NETWORK_BITS}"
    return host
