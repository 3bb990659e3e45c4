"""Who may come in, the same for all ports: tokens, certificate, and the delays of those who guess.

load      before anything listens; UsageError says what is wrong with a file
reload    on SIGHUP: connections whose token is gone are closed, new handshakes show the new
          certificate. If a file cannot be used, everything stays as it was.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Protocol

from journeyman.config import Settings, Token, Tokens, load_tokens
from journeyman.servers.core.auth import Attempts
from journeyman.servers.core.tls import load_certificate, server_context


class Admitted(Protocol):
    """A connection, as far as its right to be here goes."""

    @property
    def token(self) -> Token | None: ...

    def drop(self) -> None: ...


class Access:
    """``tokens`` None: nobody is asked for one. ``tls`` None: no encryption."""

    def __init__(
        self,
        tokens: Tokens | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        auth_timeout_s: float = 5.0,
    ) -> None:
        self.tokens = tokens
        self.tls = tls
        self.auth_timeout_s = auth_timeout_s
        self.attempts = Attempts()

    @classmethod
    def load(cls, settings: Settings) -> Access:
        controller, limits = settings.controller, settings.limits
        tls = None
        if controller.tls_cert is not None and controller.tls_key is not None:
            tls = server_context(controller.tls_cert, controller.tls_key)
        tokens = None if controller.auth_file is None else load_tokens(controller.auth_file)
        return cls(tokens, tls, auth_timeout_s=limits.auth_timeout_ms / 1000)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is odd about the tokens."""
        if self.tokens is None:
            return ()
        if not len(self.tokens):
            return (*self.tokens.notes, "the auth file holds no token: nobody can log in")
        return self.tokens.notes

    def reload(self, settings: Settings, connections: Iterable[Admitted]) -> list[str]:
        """Read the files again; what was done. Whether they are asked for at all stays."""
        controller, done = settings.controller, []
        tokens = self.tokens
        if tokens is not None and controller.auth_file is not None:
            tokens = load_tokens(controller.auth_file)
        if self.tls is not None and controller.tls_cert and controller.tls_key:
            load_certificate(self.tls, controller.tls_cert, controller.tls_key)
            done.append("the certificate")
        if tokens is not None:
            self.tokens = tokens
            gone = [each for each in connections if each.token and each.token not in tokens]
            for connection in gone:
                connection.drop()
            closed = f", {len(gone)} connections closed whose token is gone" if gone else ""
            done.append(f"{len(tokens)} tokens{closed}")
        return done
