"""A connection that must show a token first, where tokens are asked for: the same on all ports.

    connected --AUTH, in time--> waits for its turn (auth.py) --right--> open
        |                                                     --wrong--> refused, closed
        +--a command, or nothing in time--> refused or closed

While a secret waits to be checked nothing behind it is executed, and the time limit for AUTH does
not run. The answer also comes if the client has closed its sending side meanwhile. What AUTH looks
like, and how it is answered, is each protocol's own.
"""

from __future__ import annotations

from typing import ClassVar

from journeyman.config import ALL_NAMESPACES, Token
from journeyman.servers.core.access import Access
from journeyman.servers.core.connection import Connection
from journeyman.servers.core.sending import Neighbours


class Guarded(Connection):
    """See the module's docstring."""

    __slots__ = ("_access", "_is_asking", "prefix", "token")

    welcome: ClassVar[bytes]
    secret_is_wrong: ClassVar[bytes]
    secret_is_missing: ClassVar[bytes]

    def __init__(self, neighbours: Neighbours, access: Access) -> None:
        super().__init__(neighbours)
        self._access = access
        self._is_asking = False  # the answer comes while it is asked for
        self.token: Token | None = None
        self.prefix = ""  # what the names that it touches must begin with

    def _connected(self) -> None:
        if self._access.tokens is not None:
            loop = self._neighbours.loop
            self._timer = loop.call_later(self._access.auth_timeout_s, self._too_late)

    def _authenticate(self, secret: bytes) -> None:
        """Only as the first command: nothing is in flight."""
        tokens = self._access.tokens
        if tokens is None:
            self._transport.write(self.welcome)
            return
        self._cancel_timer()
        self._in_flight += 1  # keeps the connection until the answer has left
        self._alone = True  # and holds up what follows
        self._is_asking = True
        self._access.attempts.ask(
            self._neighbours.loop,
            self._peer,
            lambda: None if self._access.tokens is None else self._access.tokens.find(secret),
            self._secret_was_checked,
            is_wanted=lambda: not self._closing,
        )
        self._is_asking = False

    def _secret_was_checked(self, token: Token | None) -> None:
        if self._closing:
            return
        self._in_flight -= 1
        self._alone = False
        if token is None:
            self._neighbours.messages.warn("authentication failed", client=self._peer)
            self._refuse(self.secret_is_wrong)
            return
        self.token = token
        self.prefix = "" if token.namespace == ALL_NAMESPACES else token.namespace
        self._transport.write(self.welcome)
        if not self._is_asking:  # else whoever asks goes on by itself
            self._advance()

    def _refuse(self, words: bytes) -> None:
        if not self._closing:
            self._drop_input()
            self._transport.write(words)
            self._close()

    def _too_late(self) -> None:
        self._timer = None
        self._neighbours.messages.info("no authentication in time: closing", client=self._peer)
        self._closing = True
        self._transport.abort()
