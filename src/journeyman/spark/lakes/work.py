"""How the work of an ingest is spread over tasks of Spark.

    units --take--> packets of rows --by group--> fold --> packets

A packet is a table of Arrow with a word for what it holds. Through Spark it travels as one row with
the bytes of the table, so that no row of a table is a row of Java.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from journeyman.spark.lakes.delta import DataFile
from journeyman.spark.slots import read_units, slots_of

FILES: Final = "files"
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
# Each group with its number and the contents of its packets, by ``what``.
Groups = Iterator[tuple[int, dict[str, pa.Table]]]
Fold = Callable[[Groups], Iterable[Packet]]


def spread(
    spark: SparkSession, units: Sequence[Unit], take: Take[Unit], fold: Fold | None = None
) -> list[Packet]:
    """All packets that come of the units."""
    if not units:
        return []
    packets = read_units(spark, units, partial(_take_packed, take), _SCHEMA, len(units))
    if fold is not None:
        packets = _routed(packets, slots_of(spark)).mapInArrow(partial(_fold_sorted, fold), _SCHEMA)
    return [Packet(row.group, row.what, _unpacked(row.rows)) for row in packets.collect()]


def at_once(do: Callable[[Unit], Made], units: Iterable[Unit]) -> list[Made]:
    """Return the results, made many at a time: a store or disk answers many as quickly as one."""
    with ThreadPoolExecutor(_REQUESTS) as pool:
        return list(pool.map(do, units))


def _routed(packets: DataFrame, tasks: int) -> DataFrame:
    """Each task gets as many groups as the others, which hashes of so few would not see to."""
    return packets.repartitionById(tasks, "group").sortWithinPartitions("group")


def _joined(packets: Sequence[Packet]) -> dict[str, pa.Table]:
    parts: dict[str, list[pa.Table]] = {}
    for packet in packets:
        parts.setdefault(packet.what, []).append(packet.rows)
    return {what: pa.concat_tables(each) for what, each in parts.items()}


def _take_packed(take: Take[Unit], unit: Unit) -> Iterator[pa.RecordBatch]:
    return map(_packed, take(unit))


def _fold_sorted(fold: Fold, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = (row for batch in batches for row in batch.to_pylist())
    groups = (
        (group, _joined([Packet(group, row["what"], _unpacked(row["rows"])) for row in each]))
        for group, each in groupby(rows, key=lambda row: row["group"])
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


def files_packet(files: Sequence[DataFile], group: int = 0) -> Packet:
    """Return the packet that tells the driver of files that a task has written."""
    return Packet(group, FILES, pa.table({"file": [json.dumps(file._asdict()) for file in files]}))


def files_in(rows: pa.Table) -> list[DataFile]:
    """The files of such packets."""
    found = [json.loads(str(text)) for text in rows["file"].to_pylist()]
    return [
        DataFile(**{**each, "ranges": {name: tuple(r) for name, r in each["ranges"].items()}})
        for each in found
    ]
