"""Who guesses secrets waits: delays that grow with each failed AUTH from one address.

    failures of an address   1    2    3    4    5 ...
    delay of the answer, s   0.1  0.2  0.4  0.8  1.6   up to MAX_DELAY_S

The delay comes before the answer, so that a guesser on many connections learns nothing sooner:
while an address is being delayed, further attempts from it queue up behind. A right secret is
answered at once and forgets the failures. The table is bounded: when it is full, the address that
failed longest ago is forgotten first. An IPv6 client owns a whole /64, so that counts as one.

Whether a secret is right is journeyman.config.Tokens' to say, which compares keyed digests.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

__all__ = ["FORGET_AFTER_S", "MAX_ADDRESSES", "MAX_DELAY_S", "Attempts"]

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 5.0
MAX_ADDRESSES = 10_000
FORGET_AFTER_S = 600.0

_MAX_DOUBLINGS = 16  # far beyond MAX_DELAY_S; keeps the arithmetic small
_IPV6_NETWORK_BITS = 64


@dataclass(slots=True)
class _Failures:
    count: int
    last_s: float
    answer_due_s: float


class Attempts:
    """Failed attempts by address. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, host: str, now_s: float) -> float:
        """Note a failure; how many seconds its answer must wait."""
        key = _network(host)
        known = self._failures.pop(key, None)
        if known is None or now_s - known.last_s > FORGET_AFTER_S:
            known = _Failures(0, now_s, now_s)
        known.count += 1
        known.last_s = now_s
        delay_s = min(FIRST_DELAY_S * 2 ** min(known.count - 1, _MAX_DOUBLINGS), MAX_DELAY_S)
        known.answer_due_s = min(max(known.answer_due_s, now_s) + delay_s, now_s + FORGET_AFTER_S)
        self._failures[key] = known
        while len(self._failures) > MAX_ADDRESSES:
            self._failures.popitem(last=False)
        return known.answer_due_s - now_s

    def succeeded(self, host: str) -> None:
        self._failures.pop(_network(host), None)


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
