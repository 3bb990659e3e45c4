"""Live logs as streams: ``spark.readStream.format("ztick").load(path)``, and so on.

    __init__     the class that Spark calls
    chains       which files are there now, proved to be one moment, with hard links on what is
                 still to be read; which come next; lost history, replaced files
    admission    how much of that goes into one micro-batch, ending at a whole entry
    offsets      the answer: every log, every file, every byte; JSON in Spark's checkpoint

    planner, one process a query   initialOffset --> latestOffset --> partitions --> ... --> commit
    tasks                          read(partition)

Spark writes what ``latestOffset`` answers into the checkpoint before it reads anything, and hands
it back after a crash; ``partitions`` of the same two offsets are always the same bytes. Everything
a stream has to remember is in the offset. The planner keeps no more than which links it has made,
and, for ``availableNow``, where the run is to end.

Rows are those of the batch source. See docs/spark.md for what happens on rotation, compaction,
damage and kill -9.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from journeyman.errors import UsageError
from journeyman.spark.source.options import SourceOptions
from journeyman.spark.source.pieces import LogPartition
from journeyman.spark.streams import offsets
from journeyman.spark.streams.admission import Allowance, advanced, partitions_of
from journeyman.spark.streams.chains import Watch

if TYPE_CHECKING:
    import pyarrow as pa


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over the logs that the options stand for. Opens nothing when it is made."""

    def __init__(self, dialect: str, options: Mapping[str, str], schema: StructType) -> None:
        self._options = SourceOptions.parse(dialect, options)
        _check(self._options)
        self._schema = schema
        self._watch = Watch(
            self._options,
            forgiving=self._options.on_lost_history == "continue",
            hold_files=self._options.hold_files,
        )
        self._initial: dict[str, Any] | None = None
        self._ends_now = False
        self._target: offsets.StreamOffset | None = None

    # --- the planner's process ---

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Asked for again and again until there is a first batch: "latest" must not move on."""
        if self._initial is None:
            self._initial = self._beginning().to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._ends_now = True
        self._target = None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begin = offsets.StreamOffset.from_json(start)
        if self._ends_now and self._target is None:
            self._target = advanced(self._options, self._watch.extended(begin), Allowance())
        if self._target is None:
            known = self._watch.extended(begin)
        else:
            known = _towards(begin, self._target)
        end = advanced(self._options, known, self._allowance(limit), self._target)
        if not end.has_news_since(begin):
            return start
        return replace(end, origin=begin if begin.is_origin else None).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, until = offsets.StreamOffset.from_json(start), offsets.StreamOffset.from_json(end)
        self._watch.needs(until)
        pieces = partitions_of(offsets.stretches(begin, until), self._options)
        return [*pieces, *offsets.holes_between(begin, until)]

    def commit(self, end: dict[str, Any]) -> None:
        self._watch.release(offsets.StreamOffset.from_json(end))

    # --- the tasks' processes ---

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from journeyman.spark.source.task import read_partition

        if isinstance(partition, offsets.Holes):
            return offsets.lost_rows(partition, self._schema)
        pieces = partition.pieces if isinstance(partition, LogPartition) else ()
        return read_partition(pieces, self._options, self._schema)

    def _beginning(self) -> offsets.StreamOffset:
        nothing = offsets.StreamOffset(uuid.uuid4().hex[:12])
        if self._options.starting_offsets == "earliest":
            return nothing
        latest = advanced(self._options, self._watch.extended(nothing), Allowance())
        latest = latest.without_finished()
        self._watch.needs_only(latest)
        return replace(latest, is_origin=True)

    def _allowance(self, limit: ReadLimit) -> Allowance:
        """Spark asks for all when a trigger says so, whatever the options are."""
        if isinstance(limit, ReadMaxBytes):
            return Allowance(limit.max_bytes)
        return Allowance()


def _towards(begin: offsets.StreamOffset, target: offsets.StreamOffset) -> offsets.StreamOffset:
    """The chains of ``target``, read as far as ``begin`` says."""
    logs = {}
    for name, place in target.logs.items():
        known = {file.segment: file for file in begin.logs.get(name, offsets.LogPlace()).files}
        oldest = min(known, default=0)
        files = [
            replace(file, end=known[file.segment].end, mark=known[file.segment].mark)
            if file.segment in known
            else replace(file, end=file.begin, mark=file.begin_mark)
            for file in place.files
            if file.segment >= oldest
        ]
        logs[name] = replace(place, files=tuple(files))
    return replace(target, logs=logs, turn=begin.turn, origin=None).without_finished()


def _check(options: SourceOptions) -> None:
    refused = {
        "asOf": options.as_of_ns or options.as_of_position,
        "reduce": options.reduce,
    }
    for name, value in refused.items():
        if value is not None:
            raise UsageError(f"option {name} is for reading, a stream goes on: leave it out")
