"""The time axis that the charts of a report share: buckets of one length, long gaps cut out.

    busy buckets    ##.#..............................####.##
    axis            ##.# | ####.##                              | marks a gap that was cut

A gap is cut if it is longer than a third of what else is shown, the longest first: one old record
does not squeeze a week into a pixel, and quiet nights stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from journeyman.spark.history.summaries import bucket_for
from journeyman.spark.report.units import DAY_NS, MINUTE_NS, format_moment, moment_at

MOST_POINTS: Final = 180
_MOST_COARSE: Final = 2_000  # buckets among which gaps are looked for
_CUT_SHARE: Final = 3
_MOST_TICKS: Final = 8
_STEPS_NS: Final = (
    *(step * 10**6 for step in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(step * 10**9 for step in (1, 2, 5, 10, 15, 30)),
    *(step * MINUTE_NS for step in (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720)),
    *(step * DAY_NS for step in (1, 2, 7, 14, 28, 61, 91, 182, 365, 730, 3650)),
)
BusyBuckets = Callable[[int], Iterable[int]]  # length of a bucket -> where busy ones begin
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Axis:
    """``breaks`` are the buckets before which a gap was cut; of ``partial`` ones the logs cover
    less than a whole bucket."""

    times_ns: tuple[int, ...] = ()
    bucket_ns: int = 1
    breaks: frozenset[int] = frozenset()
    partial: frozenset[int] = frozenset()

    def name(self, at: int) -> str:
        """When a bucket begins, and whether it is not a whole one."""
        return format_moment(self.times_ns[at]) + (" (partial)" if at in self.partial else "")

    def with_gaps(self, values: Sequence[Value]) -> Iterator[Value | None]:
        """The values with a None for each gap, so that no line leads across it."""
        for at, value in enumerate(values):
            if at in self.breaks:
                yield None
            yield value

    def ticks(self) -> list[tuple[int, str]]:
        """Round times on the axis: places in ``with_gaps(times_ns)``, and their texts."""
        if not self.times_ns:
            return []
        slots = list(self.with_gaps(self.times_ns))
        shown_ns = len(self.times_ns) * self.bucket_ns
        step = next((each for each in _STEPS_NS if shown_ns // each < _MOST_TICKS), shown_ns)
        step = max(step, self.bucket_ns)
        found = []
        for place, begin in enumerate(slots):
            first = place == 0 or slots[place - 1] is None  # every stretch says where it begins
            if begin is None:
                continue
            if (first and self.breaks) or -(-begin // step) * step < begin + self.bucket_ns:
                found.append((place, _tick(begin, step, with_date=first and bool(self.breaks))))
        return found


def axis_between(first_ns: int | None, last_ns: int | None, busy_buckets: BusyBuckets) -> Axis:
    """Buckets from the first moment to the last, without long gaps."""
    if first_ns is None or last_ns is None:
        return Axis()
    stretches = [(first_ns, last_ns)]
    while True:
        length_ns = _length(stretches)
        coarse_ns = bucket_for(length_ns, _MOST_COARSE)
        begin_ns, end_ns = (ns // coarse_ns * coarse_ns for ns in (first_ns, last_ns))
        # A plan may be due long before or after all that the axis is about.
        between = (ns for ns in busy_buckets(coarse_ns) if begin_ns <= ns <= end_ns)
        busy = sorted({begin_ns, end_ns, *between})
        stretches = cut_gaps(busy, coarse_ns, first_ns, last_ns)
        # The remaining stretches may be so short that the buckets were too coarse to see gaps.
        if _length(stretches) * 10 > length_ns or coarse_ns == 10**6:
            break
    bucket_ns = bucket_for(_length(stretches), MOST_POINTS - len(stretches))
    times: list[int] = []
    breaks = set()
    for begin, end in stretches:
        first = begin // bucket_ns * bucket_ns
        if times and first > times[-1] + bucket_ns:
            breaks.add(len(times))
        times += (at for at in range(first, end + 1, bucket_ns) if not times or at > times[-1])
    partial = set()
    if first_ns > times[0]:
        partial.add(0)
    if last_ns < times[-1] + bucket_ns - 1:
        partial.add(len(times) - 1)
    return Axis(tuple(times), bucket_ns, frozenset(breaks), frozenset(partial))


def cut_gaps(
    busy: Sequence[int], bucket_ns: int, first_ns: int, last_ns: int
) -> list[tuple[int, int]]:
    """The stretches of time between long gaps: first and last moment of each."""
    gaps = sorted(
        ((after - before - bucket_ns, at) for at, (before, after) in enumerate(pairwise(busy), 1)),
        reverse=True,
    )
    shown_ns = busy[-1] + bucket_ns - busy[0]
    cuts = []
    for gap_ns, at in gaps:
        if gap_ns * _CUT_SHARE <= shown_ns or gap_ns <= bucket_ns:
            break
        shown_ns -= gap_ns
        cuts.append(at)
    edges = [0, *sorted(cuts), len(busy)]
    return [
        (max(busy[begin], first_ns), min(busy[end - 1] + bucket_ns - 1, last_ns))
        for begin, end in pairwise(edges)
    ]


def _length(stretches: Sequence[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in stretches)


def _tick(ns: int, step_ns: int, *, with_date: bool) -> str:
    when = moment_at(ns)
    if when is None:
        return ""
    date = f"{when.day} {when:%b}"
    if with_date or step_ns >= 365 * DAY_NS:
        return f"{date} {when:%Y}"
    if step_ns >= 28 * DAY_NS:
        return f"{when:%b %Y}"
    if step_ns >= DAY_NS:
        return date
    if step_ns >= MINUTE_NS:
        return f"{when:%H:%M}" if when.hour or when.minute else date
    if step_ns >= 10**9:
        return f"{when:%H:%M:%S}"
    return f"{when:%S}.{ns % 10**9 // 10**6:03d}"
