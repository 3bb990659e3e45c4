"""Which records of a chunk are wanted: the options kinds, startTime, endTime and asOf.

    startTime   at or after it        endTime   before it        asOf   at or before it

A record that says no time (a kestrel reader's) is never between two times; but it is kept as of any
time, since a state without its readers would be no state. Damage is not a record and always stays.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from journeyman.columnar.chunks import Chunk
from journeyman.spark.source.columns import mask, raw_numbers, valid_rows
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.rows import kind_codes, kinds_in
from journeyman.spark.source.schemas import KESTREL, WORKQ

# Where a record says when it was written, and how many nanoseconds its unit has.
_TIMES: Final = {WORKQ: ("logged_ns", 1), KESTREL: ("add_time_ms", 1_000_000)}


class Selection:
    """The options as a test on the rows of a chunk."""

    def __init__(self, options: SourceOptions) -> None:
        self._codes: npt.NDArray[np.int8] | None = None
        if options.kinds is not None:
            self._codes = np.array(kind_codes(options.dialect, options.kinds), np.int8)
        self._time, self._unit_ns = _TIMES.get(options.dialect, ("", 1))
        # In units of the column: x * unit >= start is x >= ceil(start / unit), and so on.
        self._first = self._ceiling(options.start_ns)
        self._behind = self._ceiling(options.end_ns)
        self._as_of = None if options.as_of_ns is None else options.as_of_ns // self._unit_ns
        limits = (options.kinds, options.start_ns, options.end_ns, options.as_of_ns)
        self.takes_all = all(limit is None for limit in limits)

    def of(self, chunk: Chunk) -> Chunk:
        """The chunk with only the rows that are wanted."""
        if self.takes_all:
            return chunk
        wanted = np.ones(chunk.batch.num_rows, np.bool_)
        if self._codes is not None:
            wanted &= np.isin(raw_numbers(kinds_in(chunk.batch)), self._codes)
        if self._time:
            wanted &= self._in_time(chunk.batch.column(self._time))
        if wanted.all():
            return chunk
        return Chunk(chunk.batch.filter(mask(wanted)), chunk.next_offset, chunk.ending)

    def _in_time(self, column: Any) -> Any:
        times = raw_numbers(column)
        said = valid_rows(column)
        wanted = np.ones(len(times), np.bool_)
        if self._first is not None:
            wanted &= said & (times >= self._first)
        if self._behind is not None:
            wanted &= said & (times < self._behind)
        if self._as_of is not None:
            wanted &= ~said | (times <= self._as_of)
        return wanted

    def _ceiling(self, moment_ns: int | None) -> int | None:
        return None if moment_ns is None else -(-moment_ns // self._unit_ns)
