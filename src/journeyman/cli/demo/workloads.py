"""The tasks of the demo's shop: how often each is called, how long it runs, and how it fails.

The same table makes the past of the demo (history.py) and the jobs that run now (shop.py), so that
the charts go on where the history ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

CUSTOMERS: Final = ("ann", "ben", "ida", "jon", "kim", "lea", "max", "noa", "tim", "zoe")
PICTURES: Final = ("lamp", "sofa", "chair", "desk", "rug", "vase")

Call = tuple[tuple[Any, ...], dict[str, Any]]  # arguments by position and by name


@dataclass(frozen=True, slots=True)
class Workload:
    """``failure`` is the share of jobs that fail in every attempt, ``hiccup`` that of attempts."""

    task: str
    queue: str
    per_minute: float
    wait_s: float  # the median, as the two below
    run_s: float
    spread: float  # sigma of the logarithm of both
    hiccup: float
    failure: float
    errors: tuple[tuple[str, str], ...]  # class and message
    max_fails: int
    make_call: Callable[[Random], Call]

    def run_time_s(self, random: Random) -> float:
        return self.run_s * math.exp(random.gauss(0, self.spread))

    def wait_time_s(self, random: Random) -> float:
        return self.wait_s * math.exp(random.gauss(0, self.spread))


def _mail(random: Random) -> Call:
    to = f"{random.choice(CUSTOMERS)}@example.com"
    return (to, random.choice(("order", "welcome", "invoice"))), {}


def _charge(random: Random) -> Call:
    return (random.randint(80_000, 89_999),), {"amount": random.choice((799, 1290, 3450, 4990))}


def _resize(random: Random) -> Call:
    picture = f"{random.choice(PICTURES)}-{random.randint(1, 60)}.jpg"
    return (picture, random.choice((400, 800, 1600))), {}


def _index(random: Random) -> Call:
    return (random.randint(100, 9999),), {}


def _report(random: Random) -> Call:
    return (f"week {random.randint(1, 46)}",), {}


_SMTP = (("TimeoutError", "smtp.example.com did not answer within 10 s"),)
_CARDS = (
    ("CardGatewayTimeout", "no answer within 5 s"),
    ("CardGatewayTimeout", "no answer within 5 s"),
    ("CardGatewayTimeout", "no answer within 5 s"),
    ("CardDeclined", "insufficient funds"),
)
_PICTURE = (("OSError", "cannot identify image file"),)
_SEARCH = (("ConnectionError", "the index is read-only"),)
_DISK = (("MemoryError", "the result set has 9 120 442 rows"),)

WORKLOADS: Final = (
    Workload("shop.send_mail", "mail", 4.0, 0.2, 0.3, 0.6, 0.004, 0.001, _SMTP, 5, _mail),
    Workload("shop.charge", "billing", 1.5, 0.4, 0.8, 0.5, 0.004, 0.003, _CARDS, 5, _charge),
    Workload("images.resize", "images", 1.2, 0.3, 1.1, 0.7, 0.002, 0.002, _PICTURE, 2, _resize),
    Workload("search.index", "search", 2.0, 0.1, 0.06, 0.5, 0.001, 0.0, _SEARCH, 3, _index),
    Workload("reports.build", "reports", 0.2, 1.0, 12.0, 0.8, 0.02, 0.01, _DISK, 2, _report),
)
