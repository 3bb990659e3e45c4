"""The pieces of a partition -> record batches: what one task does.

    pieces --read_piece----> chunks, damages --selection----------> rows
           --read_reduced--> the same, seams --selection, reducer--> fewer rows
           --read_damages--> damages --> rows about these alone

What is damaged goes by the mode: PERMISSIVE makes a row of it, DROPMALFORMED leaves it out,
FAILFAST raises. A reducer sees good records only; rows about damage and seams are put behind its
own, and to each of its rows the columns are added that the path of its log stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from journeyman.columnar.chunks import Chunk
from journeyman.errors import LogError
from journeyman.logs.damage import Damage
from journeyman.spark.files import filesystem_of
from journeyman.spark.seams import seam_row
from journeyman.spark.source.dialects import no_records
from journeyman.spark.source.options import DROPMALFORMED, FAILFAST, SourceOptions
from journeyman.spark.source.piece_reader import read_damages, read_piece, read_reduced
from journeyman.spark.source.reduction import reducer_of
from journeyman.spark.source.row_maker import RowMaker, Selection
from journeyman.spark.source.rows import MAX_CORRUPT_BYTES
from journeyman.spark.source.schemas import arrow_schema, texts
from journeyman.spark.source.splits import Piece, Seam, SplitContext, Stretch

T = TypeVar("T")


def read_pieces(
    pieces: Sequence[Piece], options: SourceOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """The rows of these pieces, in their order."""
    task = _Task(pieces, options, schema)
    if options.damage_only:
        return task.damage_rows()
    return task.rows() if options.reduce is None else task.reduced_rows()


class _Task:
    def __init__(self, pieces: Sequence[Piece], options: SourceOptions, schema: StructType) -> None:
        self._pieces = pieces
        self._options = options
        self._schema = arrow_schema(schema)
        self._maker = RowMaker(options.dialect, self._schema, options.corrupt_column)
        self._selection = Selection(options)
        self._asides: list[pa.RecordBatch] = []  # what is said beside the rows of a reducer

    def rows(self) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces:
            for item in self._items(piece, read_piece(piece, self._options)):
                batch = self._rows_of(piece.context, item)
                if batch.num_rows:
                    yield batch

    def damage_rows(self) -> Iterator[pa.RecordBatch]:
        for piece in self._pieces:
            for item in self._items(piece, read_damages(piece, self._options)):
                yield self._rows_of(piece.context, item)

    def reduced_rows(self) -> Iterator[pa.RecordBatch]:
        for batch in reducer_of(self._options).reduce(self._records()):
            yield self._completed(batch)
        yield from self._asides

    def _records(self) -> Iterator[tuple[SplitContext, Chunk | Stretch]]:
        """What a reducer sees: of each file a chunk without rows first, so it sees them all."""
        for piece in self._pieces:
            if piece.begin == 0:
                yield piece.context, no_records(self._options.dialect)
            items = read_reduced(piece, self._options, stretches=self._selection.takes_all)
            for item in self._items(piece, items):
                if isinstance(item, pa.RecordBatch):
                    self._asides.append(item)
                elif isinstance(item, Chunk | Stretch):
                    yield piece.context, item
                elif isinstance(item, Seam):
                    self._asides.append(self._completed(seam_row(piece.context, item)))

    def _items(
        self, piece: Piece, items: Iterable[Damage | Chunk | T]
    ) -> Iterator[pa.RecordBatch | Chunk | T]:
        """Wanted chunks, and batches of one row about damage; the others as they are."""
        for item in items:
            if isinstance(item, Chunk):
                yield self._selection.of(item)
            elif not isinstance(item, Damage):
                yield item
            elif self._options.mode == FAILFAST:
                raise LogError(item.file, _complaint(item))
            elif self._options.mode != DROPMALFORMED:
                length = min(item.length, MAX_CORRUPT_BYTES)
                raw = filesystem_of(item.file).read_at(item.file, item.offset, length)
                yield self._maker.damage(piece.context, item, raw)

    def _rows_of(self, context: SplitContext, item: pa.RecordBatch | Chunk) -> pa.RecordBatch:
        return self._maker.rows(context, item.batch) if isinstance(item, Chunk) else item

    def _completed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A reducer's batch with the columns that were asked for."""
        columns = []
        for field in self._schema:
            at = batch.schema.get_field_index(field.name)
            columns.append(batch.column(at) if at >= 0 else self._added(batch, field))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _added(self, batch: pa.RecordBatch, field: pa.Field[Any]) -> Any:
        """What the paths of the logs say; null for columns about damage."""
        said = {p.context.log: dict(p.context.partitions).get(field.name) for p in self._pieces}
        if not any(said.values()):
            return pa.nulls(batch.num_rows, field.type)
        return texts(said.values()).take(pc.index_in(batch.column("_log"), texts(said)))


def _complaint(damage: Damage) -> str:
    where = f"{damage.length} bytes from offset {damage.offset} on are damaged"
    return f"{where} ({damage.kind}: {damage.reason}); mode PERMISSIVE reads on"
