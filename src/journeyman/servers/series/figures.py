"""The figures that a cell stands for: counts, depths, percentiles of lengths, shares."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from journeyman.servers.series.cells import COUNTS, DEPTHS, Cell
from journeyman.servers.series.lengths import percentile
from journeyman.units import MS_PER_S

PERCENTS: Final = {"p50": 500, "p90": 900, "p95": 950, "p99": 990}
LENGTHS: Final = tuple(f"{what}_{p}" for what in ("wait", "run") for p in PERCENTS)
FIGURES: Final = (*COUNTS, "failures", "failure_rate", *DEPTHS, *LENGTHS)
_LENGTH: Final = re.compile(r"(wait|run)_(p\d+)")

Value: TypeAlias = float | None


def figure(cell: Cell, name: str) -> Value:
    """The figure of this name; None: nothing happened of which there could be one."""
    failures = cell.failed + cell.timed_out + cell.cut_off
    if name == "failures":
        return failures
    if name == "failure_rate":
        ended = cell.completed + failures
        return failures / ended if ended else None
    if (match := _LENGTH.fullmatch(name)) is not None:
        lengths = cell.wait if match[1] == "wait" else cell.run
        seconds = percentile(lengths, PERCENTS[match[2]])
        return None if seconds is None else round(seconds * MS_PER_S, 3)
    value: int = getattr(cell, name)
    return value
