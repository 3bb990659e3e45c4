"""Combining in the task, before a row leaves it: the option ``reduce``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from journeyman.errors import UsageError
from journeyman.spark.source.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from journeyman.columnar.chunks import Chunk
    from journeyman.spark.source.splits import SplitContext, Stretch


class Reducer(Protocol):
    """Combines the records of a partition into fewer rows."""

    @property
    def schema(self) -> StructType:
        """All columns of its rows; ``_log`` is one of them."""
        ...

    def reduce(
        self, pieces: Iterator[tuple[SplitContext, Chunk | Stretch]]
    ) -> Iterator[pa.RecordBatch]:
        """Called once a partition, with the chunks of all of its pieces in order.

        In front of the chunks of each file comes one without rows, also of a file without records.
        Instead of a chunk it may be offered the bytes: see Stretch.
        """
        ...


def reducer_of(options: SourceOptions) -> Reducer:
    """The reducer that the options name."""
    from journeyman.spark.source.reducers import REDUCERS

    known: Mapping[tuple[str, str], Reducer] = REDUCERS
    reducer = known.get((options.dialect, options.reduce or ""))
    if reducer is None:
        names = ", ".join(sorted(name for dialect, name in known if dialect == options.dialect))
        raise UsageError(f"{options.dialect} has no reducer {options.reduce}; it has {names}")
    return reducer
