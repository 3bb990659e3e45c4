"""How much of a memory that is bounded for all each namespace has.

A namespace may have as much of it as it leaves free. So one alone can fill a half, the next one a
half of what is left, and none can take all of it from the others. Without tokens there are no
namespaces, and a token of all of them may fill the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable


class NamespaceBytes:
    """Counts the bytes of those namespaces that were asked for. ``all_sizes`` gives everything that
    there is: names, which begin with their namespace, and bytes."""

    def __init__(self, all_sizes: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self._all_sizes = all_sizes
        self._bytes: dict[str, int] = {}

    def count(self, name: str, change: int) -> None:
        if self._bytes:
            for end in range(1, len(name) + 1):
                prefix = name[:end]
                if prefix in self._bytes:
                    self._bytes[prefix] += change

    def may_have(self, namespace: str, more: int, free: int) -> bool:
        """Return whether a namespace may have so many bytes more, which leave so many free."""
        if not namespace:
            return free >= 0
        if namespace not in self._bytes:
            own = (size for name, size in self._all_sizes() if name.startswith(namespace))
            self._bytes[namespace] = sum(own)
        return self._bytes[namespace] + more <= free
