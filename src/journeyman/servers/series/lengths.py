"""Lengths of time in buckets: a histogram is how many lengths each bucket has.

Buckets are counted in microseconds. The first 32 hold one each, and from there on 16 buckets cover
each doubling, so a length is known to a sixteenth of it. Histograms are added bucket by bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

from journeyman.units import NS_PER_US, US_PER_S

Histogram: TypeAlias = dict[int, int]

_BITS: Final = 4
_EXACT: Final = 2 << _BITS


def bucket_of(length_ns: int) -> int:
    """The bucket of a length; a negative one is none at all."""
    length_us = length_ns // NS_PER_US
    if length_us < _EXACT:
        return max(length_us, 0)
    shift = length_us.bit_length() - _BITS - 1
    return (shift << _BITS) + (length_us >> shift)


def middle_of(bucket: int) -> float:
    """The length in seconds that stands for a bucket: its middle."""
    if bucket < _EXACT:
        return bucket / US_PER_S
    shift = (bucket >> _BITS) - 1
    lowest = (bucket - (shift << _BITS)) << shift
    return (lowest + (1 << shift) / 2) / US_PER_S


def add_lengths(to: Histogram, more: Mapping[int, int]) -> None:
    for bucket, count in more.items():
        to[bucket] = to.get(bucket, 0) + count


def percentile(lengths: Mapping[int, int], thousandths: int) -> float | None:
    """The least length in seconds that so many of a thousand lengths do not exceed; None: there
    are no lengths."""
    total, so_far = sum(lengths.values()), 0
    for bucket in sorted(lengths):
        so_far += lengths[bucket]
        if so_far * 1000 >= total * thousandths:
            return middle_of(bucket)
    return None
