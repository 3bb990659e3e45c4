"""Packets -> state tables: the part of a replay that comes behind the shuffle.

    packets --repartition by log and bucket, sort by position--> groups --merge--> rows of a table

All packets of one log, table and bucket form a group, and hold every record of the keys in it; a
group is merged in memory by a function of its dialect, which answers with columns. What is the same
for a whole log, and the place of each deciding record, is added here.

Sorting is of packets, not of records: a few rows a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it
from pyspark.sql.types import StructField, StructType

from journeyman.spark.source.options import (
    DAMAGE,
    OFFSET_MASK,
    PACKET_KIND,
    PACKET_SCHEMA,
    PACKET_SOURCE,
    SEGMENT_SHIFT,
    arrow_schema,
    struct,
)

# What every table begins with.
PLACE: Final = struct(
    "_log string, _file string, _segment int, _offset bigint, _length int, _position bigint"
)
_NO_SOURCE: Final = dict.fromkeys(PACKET_SOURCE.names)
_MAX_ROWS: Final = 65_536  # of a batch that goes to Spark
_ALIGNED: Final = 8  # bytes

Ints = npt.NDArray[np.signedinteger[Any]]


class Packet(NamedTuple):
    """One row of a group; see PACKET_SCHEMA. The fields of ``source`` stand beside the others."""

    packet: pa.Buffer  # empty where there is none
    details: pa.Buffer
    row: dict[str, Any]  # the other columns


@dataclass(slots=True)
class PacketGroup:
    """All packets of one log, table and bucket, in log order; some rows have none (see presence).

    ``kept`` is for a merge that makes several tables of one group.
    """

    log: str
    table: str | None
    extras: tuple[Any, ...]  # the values of the partition columns
    packets: list[Packet] = field(default_factory=list)
    kept: Any = None

    def files(self) -> dict[int, str]:
        """The files of the log that records of this group may come from, by segment."""
        found: dict[int, str] = {}
        for packet in self.packets:
            row = packet.row
            found.update(zip(row["segments"] or (), row["files"] or (), strict=True))
        return found


@dataclass(frozen=True, slots=True)
class StateTable:
    """A state table, and how the groups of a packet's table become its rows.

    What makes the rows is named, as ``module:function``, and imported by the task: it brings numba,
    which whoever only plans a query does without.
    """

    name: str
    packets: str  # what these call their table
    rows: str
    schema: StructType  # without partition columns

    def merge(self, group: PacketGroup) -> Iterator[pa.RecordBatch]:
        """The rows of one group."""
        module, _, function = self.rows.partition(":")
        made: Iterator[pa.RecordBatch] = getattr(import_module(module), function)(group)
        return made


def extra_columns(frame: DataFrame, known: Iterable[str]) -> list[StructField]:
    """The partition columns: what stands behind the known columns, without those of damage."""
    names = set(known)
    extras = [each for each in frame.schema.fields if each.name not in names]
    if extras and extras[-1].name == DAMAGE:
        extras = extras[:-2]  # the damaged bytes, under whatever name, and the reason
    return extras


def merge_packets(packets: DataFrame, table: StateTable) -> DataFrame:
    """The rows of a state table, made of the packets for it; nothing is said about damage."""
    wanted = (F.col("kind") == PACKET_KIND) & (F.col("table") == table.packets)
    return merge_rows(packets.filter(wanted), table)


def merge_rows(packets: DataFrame, table: StateTable) -> DataFrame:
    """The same of all these rows."""
    extras = extra_columns(packets, PACKET_SCHEMA.names)
    whole = StructType([*table.schema.fields, *extras])
    return (
        packets.select(*PACKET_SCHEMA.names, *(each.name for each in extras))
        .repartition("_log", "bucket")
        .sortWithinPartitions("_log", "table", "bucket", "_position")
        .mapInArrow(partial(_merge_all, table, tuple(each.name for each in extras)), whole)
    )


def _merge_all(
    table: StateTable, extras: tuple[str, ...], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """What a task does: its groups, one after the other."""
    shape = arrow_schema(table.schema)
    for group in groups_of(batches, extras):
        for batch in table.merge(group):
            if batch.num_rows:
                yield from _completed(batch.cast(shape), extras, group.extras)


def groups_of(batches: Iterator[pa.RecordBatch], extras: tuple[str, ...]) -> Iterator[PacketGroup]:
    """The groups of rows that come one group after the other."""
    group: PacketGroup | None = None
    named = None
    for batch in batches:
        blobs = [batch.column("packet"), batch.column("details")]
        for at, row in enumerate(batch.drop_columns(["packet", "details"]).to_pylist()):
            row.update(row.pop("source") or _NO_SOURCE)
            name = row["_log"], row["table"], row["bucket"]
            if group is None or name != named:
                if group is not None:
                    yield group
                group = PacketGroup(row["_log"], row["table"], tuple(row[name] for name in extras))
                named = name
            packet, details = (aligned(blob[at]) for blob in blobs)
            group.packets.append(Packet(packet, details, row))
    if group is not None:
        yield group


def aligned(blob: Any) -> pa.Buffer:
    """Its bytes where they are, if the kernels can read them there, as they mostly can."""
    if not blob.is_valid:
        return pa.py_buffer(b"")
    bytes_: pa.Buffer = blob.as_buffer()
    return pa.py_buffer(bytes_.to_pybytes()) if bytes_.address % _ALIGNED else bytes_


def _completed(
    batch: pa.RecordBatch, names: tuple[str, ...], values: tuple[Any, ...]
) -> Iterator[pa.RecordBatch]:
    batch = with_constants(batch, dict(zip(names, values, strict=True)))
    for start in range(0, batch.num_rows, _MAX_ROWS):
        yield batch.slice(start, _MAX_ROWS)


def with_constants(batch: pa.RecordBatch, values: dict[str, str | None]) -> pa.RecordBatch:
    """The batch with a column for each of these values, the same in all rows."""
    for name, value in values.items():
        column = pa.repeat(pa.scalar(value, pa.string()), batch.num_rows)
        batch = batch.append_column(name, column)
    return batch


def place_columns(group: PacketGroup, positions: Ints, lengths: Ints) -> list[pa.Array[Any]]:
    """The columns of PLACE for records at these positions."""
    segments = positions >> SEGMENT_SHIFT
    return [
        pa.repeat(pa.scalar(group.log), len(positions)),
        files_at(group, positions),
        pa.array(segments.astype(np.int32)),
        pa.array(positions & OFFSET_MASK),
        pa.array(lengths.astype(np.int32)),
        pa.array(positions),
    ]


def files_at(group: PacketGroup, positions: Ints) -> Any:
    """The file of each position; null for one that is negative."""
    files = group.files()
    known = np.array(sorted(files), np.int64)
    places = np.searchsorted(known, positions >> SEGMENT_SHIFT)
    names: Any = pa.array([files[segment] for segment in known.tolist()], pa.string())
    return names.take(pa.array(places, mask=positions < 0))
