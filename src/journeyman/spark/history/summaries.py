"""The views of ``pipeline history`` over rows of attempts, and the lengths of their buckets."""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

from journeyman.errors import UsageError
from journeyman.spark import views

GROUPINGS: Final = (*views.GROUPINGS, "log")  # the words of --by
_UNITS_NS: Final = {
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": views.HOUR_NS,
    "d": views.DAY_NS,
}
_BUCKET: Final = re.compile(r"([1-9][0-9]{0,8})\s*(ms|s|m|h|d)")
_LONGEST_NS: Final = 36_500 * views.DAY_NS  # moments of 64 bits reach 292 years
# Lengths that people like to read along an axis.
_ROUND_NS: Final = (
    *(number * 10**6 for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(number * 10**9 for number in (1, 2, 5, 10, 15, 30)),
    *(number * 60 * 10**9 for number in (1, 2, 5, 10, 15, 30)),
    *(number * views.HOUR_NS for number in (1, 2, 3, 6, 12)),
    *(number * views.DAY_NS for number in (1, 2, 7, 14, 28, 91, 182, 364)),
)


def summary(
    attempts: DataFrame,
    view: str,
    by: str = "queue",
    bucket_ns: int | None = None,
    until_ns: int | None = None,
) -> DataFrame:
    """The rows of a view for each log, group and bucket: _log, the group under the name of ``by``,
    time and bucket_ns if there are buckets, and the columns of the view.

    Buckets in which nothing happened have no row. Jobs that are due later are ready later: without
    ``until_ns`` the depth goes on into the future.
    """
    if by not in GROUPINGS:
        raise UsageError(f"rows are grouped by {', '.join(GROUPINGS)}, not by {by!r}")
    keys = {"_log": "_log"} if by == "log" else {"_log": "_log", by: views.GROUPINGS[by]}
    statement = views.statement(view, keys, bucket_ns=bucket_ns, until_ns=until_ns)
    counted = views.run_in_spark(attempts.sparkSession, statement, attempts=attempts)
    time: list[Column | str] = []
    if bucket_ns is not None:
        time = [F.timestamp_micros(F.expr("bucket_ns div 1000")).alias("time"), "bucket_ns"]
    figures = [name for name in counted.columns if name not in (*keys, "bucket_ns")]
    return counted.select(*keys, *time, *figures)


def parse_bucket(text: str) -> int:
    """Nanoseconds. Raises UsageError."""
    match = _BUCKET.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"a bucket is a duration such as 10s, 1m or 1h, not {text!r}")
    length_ns = int(match[1]) * _UNITS_NS[match[2]]
    if length_ns > _LONGEST_NS:
        raise UsageError(f"a bucket has at most 36500d, not {text.strip()}")
    return length_ns


def bucket_for(span_ns: int, most: int) -> int:
    """The shortest round length with which ``span_ns`` makes at most ``most`` buckets."""
    for length_ns in _ROUND_NS:
        if span_ns // length_ns + 2 <= most:
            return length_ns
    return _ROUND_NS[-1] * (span_ns // (_ROUND_NS[-1] * max(most - 2, 1)) + 1)
