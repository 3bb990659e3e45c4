"""What a task makes of the records it read, before a row leaves it: the option ``reduce``.

    ztick    latest   the last record of each job and each rule, removals among them
    workq    events   what the fold needs of every record: no payloads, no results
    kestrel  items    the same of every put; and the records of checkpoints

One module a dialect. All of them answer with packets (journeyman.spark.source.packets), which
journeyman.spark.replay merges. Planning imports this package, so the modules, which bring numba,
are imported by the first task that reduces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructType

from journeyman.spark.source.schemas import PACKET_SCHEMA

if TYPE_CHECKING:
    import pyarrow as pa

    from journeyman.columnar.chunks import Chunk
    from journeyman.spark.source.splits import SplitContext, Stretch

__all__ = ["REDUCERS", "PacketReducer"]


@dataclass(frozen=True, slots=True)
class PacketReducer:
    """The reducer in the module of one dialect."""

    dialect: str

    @property
    def schema(self) -> StructType:
        return PACKET_SCHEMA

    def reduce(
        self, pieces: Iterator[tuple[SplitContext, Chunk | Stretch]]
    ) -> Iterator[pa.RecordBatch]:
        """The packets of one partition."""
        from journeyman.spark.source.reducers.combining import combined

        module = import_module(f"{__name__}.{self.dialect}")
        combiner = getattr(module, f"{self.dialect.capitalize()}Combiner")
        return combined(pieces, combiner)


REDUCERS: Final = {
    ("ztick", "latest"): PacketReducer("ztick"),
    ("workq", "events"): PacketReducer("workq"),
    ("kestrel", "items"): PacketReducer("kestrel"),
}
