"""How the work of an ingest is spread: in this process if there is little of it, else over tasks.

    units --take--> packets of rows --by group--> fold --> packets

A packet is a table of Arrow with a word for what it holds. Through Spark it travels as one row with
the bytes of the table, so that no row of a table is a row of Java. What is taken and folded is the
same code in both cases.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain, groupby
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from journeyman.spark.slots import slots_of

_THREADS: Final = min(4, os.cpu_count() or 1)  # of this process
HANDS: Final = 4 * _THREADS  # units for them: some take longer than others
_REQUESTS: Final = 16
_SCHEMA = "group int, what string, rows binary"
_COMPRESSED: Any = pa.ipc.IpcWriteOptions(compression="lz4")


class Packet(NamedTuple):
    group: int
    what: str
    rows: pa.Table


Unit = TypeVar("Unit")
Made = TypeVar("Made")
Take = Callable[[Unit], Iterable[Packet]]
# What the packets of each group say, by ``what``.
Groups = Iterator[dict[str, pa.Table]]
Fold = Callable[[Groups], Iterable[Packet]]


def spread(
    spark: SparkSession | None, units: Sequence[Unit], take: Take[Unit], fold: Fold | None = None
) -> list[Packet]:
    """All packets that come of the units; without ``spark``, in this process."""
    if spark is None or not units:
        with ThreadPoolExecutor(_THREADS) as pool:  # Arrow works without Python's lock
            found = list(chain.from_iterable(pool.map(lambda unit: list(take(unit)), units)))
        return found if fold is None else list(fold(_grouped(found)))
    numbers = spark.range(0, len(units), 1, len(units))
    packets = numbers.mapInArrow(partial(_take_numbered, take, units), _SCHEMA)
    if fold is not None:
        packets = _routed(packets, slots_of(spark)).mapInArrow(partial(_fold_sorted, fold), _SCHEMA)
    return [Packet(row.group, row.what, _unpacked(row.rows)) for row in packets.collect()]


def at_once(do: Callable[[Unit], Made], units: Iterable[Unit]) -> list[Made]:
    """What comes of each, many at a time: a store or a disk answers these as quickly as one."""
    with ThreadPoolExecutor(_REQUESTS) as pool:
        return list(pool.map(do, units))


def _routed(packets: DataFrame, tasks: int) -> DataFrame:
    """Each task gets as many groups as the others, which hashes of so few would not see to."""
    return packets.repartitionById(tasks, "group").sortWithinPartitions("group")


def _grouped(packets: Iterable[Packet]) -> Groups:
    """The packets of each group together."""
    ordered = sorted(packets, key=lambda packet: packet.group)
    return (_joined(list(each)) for _, each in groupby(ordered, key=lambda packet: packet.group))


def _joined(packets: Sequence[Packet]) -> dict[str, pa.Table]:
    parts: dict[str, list[pa.Table]] = {}
    for packet in packets:
        parts.setdefault(packet.what, []).append(packet.rows)
    return {what: pa.concat_tables(each) for what, each in parts.items()}


def _take_numbered(
    take: Take[Unit], units: Sequence[Unit], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column("id").to_numpy():
            yield from map(_packed, take(units[number]))


def _fold_sorted(fold: Fold, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (row for batch in batches for row in batch.to_pylist())
    groups = (
        _joined([Packet(row["group"], row["what"], _unpacked(row["rows"])) for row in each])
        for _, each in groupby(rows, key=lambda row: row["group"])
    )
    yield from map(_packed, fold(groups))


def _packed(packet: Packet) -> pa.RecordBatch:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, packet.rows.schema, options=_COMPRESSED) as stream:
        stream.write_table(packet.rows)
    data = sink.getvalue().to_pybytes()
    return pa.RecordBatch.from_pydict(
        {
            "group": pa.array([packet.group], pa.int32()),
            "what": pa.array([packet.what]),
            "rows": pa.array([data], pa.binary()),
        }
    )


def _unpacked(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data).read_all()
