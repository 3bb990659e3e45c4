"""What a run had to say, of any length, in bounded memory.

    fed      |<-- head -->|  ......... left out, counted .........  |<-- tail -->|
    given    |<-- head -->| "\\n[... 123456 bytes left out ...]\\n" |<-- tail -->|

The beginning shows what was tried, the end shows how it went wrong; the middle is the progress bar.
Head and tail together have at most ``limit_bytes``. Credentials in addresses are taken out when
the text is given, not while it is fed: an address may come in pieces.
"""

from __future__ import annotations

from journeyman.runners.redaction import redact_bytes, redact_cut


class BoundedOutput:
    """Feed it everything; it keeps the head and the tail."""

    __slots__ = ("_dropped_bytes", "_head", "_head_limit", "_tail", "_tail_limit")

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = (limit_bytes + 1) // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped_bytes = 0

    @property
    def full(self) -> bool:
        """Whether feeding more can only push something out."""
        return len(self._head) + len(self._tail) >= self._head_limit + self._tail_limit

    def feed(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail += data
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self._dropped_bytes += excess

    def text(self) -> bytes:
        """What is kept, without credentials, and how much is not."""
        head, tail = bytes(self._head), bytes(self._tail)
        if not self._dropped_bytes:
            return redact_bytes(head + tail)
        head, tail = redact_cut(head, tail)
        return head + b"\n[... %d bytes left out ...]\n" % self._dropped_bytes + tail
