r"""The tasks of a replay of kestrel queues: puts without their data, and checkpoints.

    writer files    --block of ids--> packets of PUTS, one a bucket --> rows of items
                    --> a row with the least and the greatest id    --\
    reader files    --> one packet a file                           ----> rows of readers

The packets are the option ``reduce=items``. Ids ascend, so the puts of a bucket lie together: it
gets blocks of neighbouring ids in turn. What crosses the shuffle is 44 bytes an item.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from journeyman.columnar.arrays import column_of, joined, numbers_in, rows_at
from journeyman.columnar.kestrel.decode import PUTS, fold_items, puts_in
from journeyman.folds.kestrel import Reader, fold_reader, open_queue
from journeyman.formats.kestrel import WRITER, ReadDone, ReadHead, Record
from journeyman.logs.segments import kestrel_reader
from journeyman.spark.files import Span, read_records
from journeyman.spark.replay import STATE_TABLES, PacketGroup, ReplayPacket, place_columns
from journeyman.spark.source import options
from journeyman.spark.source import packets as source_packets
from journeyman.spark.source.pieces import SplitContext

_TABLES: Final = STATE_TABLES["kestrel"]
ITEMS_TABLE: Final = "items"
READERS_TABLE: Final = "readers"

CHECKPOINTS: Final = pa.schema(
    [
        ("position", pa.int64()),
        ("length", pa.int32()),
        ("kind", pa.int8()),
        ("item_id", pa.int64()),
        ("done_ids", pa.list_(pa.int64())),
    ]
)
_BLOCK_BITS: Final = 12  # 4,096 ids


class KestrelCombiner(source_packets.Combiner):
    """Makes packets of one queue."""

    def __init__(self, context: SplitContext) -> None:
        super().__init__(context)
        self._puts: list[pa.RecordBatch] = []

    def take(self, context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        taken = super().take if context.reader is None else _checkpoint
        yield from taken(context, batch)

    def _keep(self, batch: pa.RecordBatch, first_position: int) -> None:
        self._puts.append(puts_in(batch, first_position))

    def finish(self) -> Iterator[pa.RecordBatch]:
        if not self._puts:
            return
        puts = joined(self._puts)
        self._puts = []
        ids = numbers_in(puts.column("item_id"))
        buckets = ids >> _BLOCK_BITS & self._buckets - 1
        yield from source_packets.pack(
            self._source, ITEMS_TABLE, source_packets.by_bucket(puts, buckets)
        )
        span = (int(ids.min()), int(ids.max())) if len(ids) else None
        yield source_packets.presence(self._source, READERS_TABLE, span)


def _checkpoint(context: SplitContext, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    first_position = context.segment << options.SEGMENT_SHIFT
    positions = column_of(numbers_in(batch.column("offset")) + first_position)
    rows = batch.append_column("position", positions).select(CHECKPOINTS.names)
    source = source_packets.PacketSource(
        context.log,
        context.queue,
        context.reader,
        {context.segment: context.file},
        batch.num_rows,
    )
    if batch.num_rows == 0:
        yield source_packets.presence(source, READERS_TABLE)
    else:
        yield from source_packets.pack(source, READERS_TABLE, [(0, rows)])


_READ_HEAD, _READ_DONE = 0, 9  # commands
_NO_PLACE: Final = dict.fromkeys(("_file", "_segment", "_offset", "_length", "_position"))


def item_rows(group: PacketGroup) -> Iterator[pa.RecordBatch]:
    """Rows of the table of items."""
    packets = [each for each in group.packets if each.packet]
    if not packets:
        return
    puts = joined([source_packets.unpack(each.packet, PUTS) for each in packets])
    rows, ordinals, contested = fold_items(puts, partial(_reread, group, puts))
    puts = rows_at(puts, rows)
    columns = [
        *place_columns(group, puts),
        pa.repeat(pa.scalar(packets[0].row["queue"], pa.string()), len(rows)),
        puts.column("item_id"),
        *puts.columns[3:],
        pa.nulls(len(rows), pa.binary()),
        column_of(ordinals),
        column_of(contested),
    ]
    yield pa.RecordBatch.from_arrays(columns, names=_TABLES["items"].schema.names)


def _reread(group: PacketGroup, puts: pa.RecordBatch, positions: Sequence[int]) -> list[bytes]:
    """The data of the items at these positions of the journal."""
    files = group.files()
    places, lengths = (numbers_in(puts.column(name)) for name in ("position", "length"))
    order = np.argsort(places)
    known = lengths[order[np.searchsorted(places, positions, sorter=order)]].tolist()
    spans = [
        Span(files[place >> options.SEGMENT_SHIFT], place & options.OFFSET_MASK, length)
        for place, length in zip(positions, known, strict=True)
    ]
    return [record.data for record in read_records(WRITER, spans)]


class _Checkpoint:
    """The contents of one reader's file."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.records: list[tuple[int, int, Record | None]] = []  # position, length
        self.is_damaged = False

    def take(self, packet: pa.Buffer) -> None:
        for row in source_packets.unpack(packet, CHECKPOINTS).to_pylist():
            record: Record | None = None
            if row["kind"] == _READ_HEAD:
                record = ReadHead(row["item_id"])
            elif row["kind"] == _READ_DONE:
                record = ReadDone(tuple(row["done_ids"]))
            self.records.append((row["position"], row["length"], record))

    def reader(self) -> Reader | None:
        """Return the reader as folded. None: the file is not to be trusted."""
        if self.is_damaged:
            return None
        self.records.sort(key=lambda each: each[0])
        return fold_reader(record for _, _, record in self.records if record is not None)


def reader_rows(group: PacketGroup) -> Iterator[pa.RecordBatch]:
    """Rows of the table of readers."""
    queue = _queue_of(group)
    found = _checkpoints(group, queue)
    spans = [each.row for each in group.packets if each.row["least_id"] is not None]
    ids = [row[name] for row in spans for name in ("least_id", "greatest_id")]
    folded = {name: checkpoint.reader() for name, checkpoint in found.items()}
    view = open_queue(ids, folded)
    span = {"first_id": min(ids) if ids else view.next_id, "tail_id": view.tail}
    rows = []
    for name in sorted({*found, *view.readers}):
        reader, opened = folded.get(name), view.readers.get(name)
        checkpoint = found.get(name)
        row = {"_log": group.log, "queue": queue, "reader": name, **_place(checkpoint), **span}
        row["damaged"] = checkpoint is not None and checkpoint.is_damaged
        row |= {"head": reader and reader.head, "done": reader and sorted(reader.done)}
        row |= {"opened_head": opened and opened.head}
        row |= {"opened_done": opened and sorted(opened.done)}
        rows.append(row)
    yield pa.RecordBatch.from_pylist(rows, schema=options.arrow_schema(_TABLES["readers"].schema))


def _queue_of(group: PacketGroup) -> str:
    named = (each.row["queue"] for each in group.packets)
    return next((queue for queue in named if queue is not None), group.log.rpartition("/")[2])


def _checkpoints(group: PacketGroup, queue: str) -> dict[str, _Checkpoint]:
    found: dict[str, _Checkpoint] = {}
    for each in group.packets:
        file = _checkpoint_file(each)
        if file is None:
            continue
        name = each.row["reader"]
        if name is None:
            name = kestrel_reader(queue, file.rpartition("/")[2])
        if name is None:
            continue  # damage of a segment
        checkpoint = found.setdefault(name, _Checkpoint(file))
        if each.packet:
            checkpoint.take(each.packet)
        checkpoint.is_damaged |= each.row["kind"] == options.DAMAGE_KIND
    return found


def _checkpoint_file(packet: ReplayPacket) -> str | None:
    """The file that a packet of a checkpoint, or a damage, is about; None: it is about puts."""
    file: str | None = packet.row["_file"]
    if packet.row["kind"] == options.PACKET_KIND:
        file = packet.row["files"][0] if packet.row["reader"] is not None else None
    return file


def _place(checkpoint: _Checkpoint | None) -> dict[str, Any]:
    if checkpoint is None:
        return _NO_PLACE
    if not checkpoint.records:
        return {**_NO_PLACE, "_file": checkpoint.file}
    position, length, _ = max(checkpoint.records, key=lambda each: each[0])
    return {
        "_file": checkpoint.file,
        "_segment": position >> options.SEGMENT_SHIFT,
        "_offset": position & options.OFFSET_MASK,
        "_length": length,
        "_position": position,
    }
