"""What the protocols have in common about tokens: a secret, or that one is missing."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Auth:
    """The first command where authentication is on. The secret stays out of ``repr``."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AuthRequired:
    """A command came before the secret: say so and close."""
