"""What a report says, as plain values: no Spark, no HTML.

    Report
      Section "Work queue"        one per dialect, then the audit, then the files
        Tile     a number that matters
        Chart    lines or bars over time, at most a few hundred points
        Bars     one bar per row: shares, lag
        Table    rows of text

Texts may come from a log and cannot be trusted: the page escapes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart: a value for each bucket, None where there is none."""

    name: str
    values: Sequence[float | None]
    tone: str  # blue teal amber red violet grey


@dataclass(frozen=True, slots=True)
class Chart:
    """Values over time. ``unit``: count, ns or bytes."""

    title: str
    note: str  # one sentence: what is shown
    times_ns: Sequence[int]  # where each bucket begins, evenly spaced
    bucket_ns: int
    series: Sequence[Series]
    unit: str = "count"
    kind: str = "lines"  # or "bars": stacked
    logarithmic: bool = False
    partial: frozenset[int] = frozenset()  # buckets that the logs cover only in part

    @property
    def is_empty(self) -> bool:
        return not any(value is not None for series in self.series for value in series.values)


@dataclass(frozen=True, slots=True)
class Bars:
    """Rows of (label, value of each part)."""

    title: str
    note: str
    parts: Sequence[tuple[str, str]]  # name and tone
    rows: Sequence[tuple[str, Sequence[float]]]
    unit: str = "count"


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numeric: frozenset[int] = frozenset()  # columns to set flush right
    marks: Sequence[str] = ()  # a word for each row: serious, warning, info


@dataclass(frozen=True, slots=True)
class Tile:
    name: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    intro: str
    tiles: Sequence[Tile] = ()
    parts: Sequence[Chart | Bars | Table] = ()


@dataclass(frozen=True, slots=True)
class Report:
    title: str
    made_ns: int
    logs: Sequence[str]
    verdict: str  # one or two sentences
    severity: str  # good, warning or serious
    sections: Sequence[Section] = field(default_factory=tuple)
