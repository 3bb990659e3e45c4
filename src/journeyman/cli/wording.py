"""Small things said the same way everywhere: counts, and bytes for the eye."""

from __future__ import annotations

SHOWN_BYTES = 60


def counted(number: int, noun: str) -> str:
    """``1 record``, ``2 records``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def snippet(data: bytes) -> str:
    """``"ping"``, or the beginning and the size of something long. JSON holds bytes whole."""
    shown = repr(data[:SHOWN_BYTES])[2:-1].replace('"', '\\"')
    rest = len(data) - SHOWN_BYTES
    return f'"{shown}"' if rest <= 0 else f'"{shown}"... ({len(data)} bytes)'
