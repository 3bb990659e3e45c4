"""One row for every time that history was lost and the stream was told to go on.

A hole in the history is damage of the stream: what was there cannot be shown, but that it is
missing is a row that is counted, never silence. It has the envelope of the file the hole is in
front of, and in ``_damage`` the word ``lost``.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from journeyman.spark.source.rows import DAMAGE_KIND, SEGMENT_SHIFT
from journeyman.spark.source.schemas import DAMAGE, arrow_schema
from journeyman.spark.streams.offsets import StreamOffset

_REASON = "compacted, cleaned or removed before it was read"


class Holes(InputPartition):
    """What one task has to tell of: rows as values by column."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        super().__init__(None)
        self.rows = rows


def holes_between(start: StreamOffset, end: StreamOffset) -> list[Holes]:
    """At most one partition, for all holes that opened between two offsets."""
    before = end.origin or start
    rows: list[dict[str, object]] = []
    for name, place in sorted(end.logs.items()):
        known = before.logs.get(name)
        opened = place.holes - (known.holes if known is not None else 0)
        newest = place.files[-1]
        row: dict[str, object] = {
            **dict(place.partitions),
            "_log": name,
            "_file": newest.path,
            "_segment": newest.segment,
            "_offset": 0,
            "_length": 0,
            "_position": newest.segment << SEGMENT_SHIFT,
            "kind": DAMAGE_KIND,
            "queue": place.queue,
            DAMAGE: f"lost: {place.lost or _REASON}",
        }
        rows += [row] * opened
    return [Holes(rows)] if rows else []


def lost_rows(holes: Holes, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The rows themselves, with the columns that were asked for."""
    arrow = arrow_schema(schema)
    columns = [pa.array([row.get(field.name) for row in holes.rows], field.type) for field in arrow]
    yield pa.RecordBatch.from_arrays(columns, schema=arrow)
