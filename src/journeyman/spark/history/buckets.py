"""Stretches of time of one length, and rows of attempts told by the stretch they fall into.

    1m        1 ms, 1 s, 1 m, 1 h, 1 d and multiples        12:00:00  12:01:00  12:02:00 ...

A bucket is named by its beginning. Buckets in which nothing happened have no row.
"""

from __future__ import annotations

import re

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.errors import UsageError

_UNITS_NS = {"ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9, "d": 86_400 * 10**9}
_BUCKET = re.compile(r"([1-9][0-9]{0,8})\s*(ms|s|m|h|d)")
# What people like to read along an axis.
_ROUND_NS = (
    *(number * 10**6 for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(number * 10**9 for number in (1, 2, 5, 10, 15, 30)),
    *(number * 60 * 10**9 for number in (1, 2, 5, 10, 15, 30)),
    *(number * 3600 * 10**9 for number in (1, 2, 3, 6, 12)),
    *(number * 86_400 * 10**9 for number in (1, 2, 7, 14, 28, 91, 182, 364)),
)


def parse_bucket(text: str) -> int:
    """Nanoseconds. Raises UsageError."""
    match = _BUCKET.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"a bucket is a length of time such as 10s, 1m or 1h, not {text!r}")
    return int(match[1]) * _UNITS_NS[match[2]]


def bucket_for(span_ns: int, most: int) -> int:
    """The shortest round length with which ``span_ns`` makes at most ``most`` buckets."""
    for length_ns in _ROUND_NS:
        if span_ns // length_ns + 2 <= most:
            return length_ns
    return _ROUND_NS[-1] * (span_ns // (_ROUND_NS[-1] * max(most - 2, 1)) + 1)


def bucket_words(bucket_ns: int) -> str:
    """The length as ``parse_bucket`` reads it, in the largest unit that fits."""
    for unit, length_ns in reversed(_UNITS_NS.items()):
        if bucket_ns % length_ns == 0:
            return f"{bucket_ns // length_ns}{unit}"
    return f"{bucket_ns}ns"


def bucket_of(ns: Column, bucket_ns: int) -> Column:
    """Where the bucket of a moment begins, in nanoseconds; rounds down before 1970 too."""
    return ns - F.pmod(ns, F.lit(bucket_ns))
