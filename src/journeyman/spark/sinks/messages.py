"""What a task tells the driver about the part files it wrote. Only what is told counts.

    task  --write-->  part files in the staging directory, synced
          --message-> PartsWritten       collected by Spark, one a partition that succeeded

A task that failed, or ran twice, leaves files that no message names; they go with the staging
directory. So nothing is ever written twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import WriterCommitMessage

from journeyman.errors import UsageError
from journeyman.spark.sinks.order import follows, shown


@dataclass(frozen=True, slots=True)
class Stream:
    """What one file, or run of segments, of the result is made of.

    All dialects but kestrel have one stream. kestrel has one for the items of each queue and one
    for the checkpoint of each reader.
    """

    queue: str | None = None
    reader: str | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part file: in its stream, behind those of the same task with lower numbers."""

    stream: Stream
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class PartsWritten(WriterCommitMessage):
    """Everything one task wrote. ``first`` and ``last`` are its rows' places in the order."""

    partition: int
    parts: tuple[Part, ...] = ()
    records: int = 0
    first: tuple[Any, ...] | None = None
    last: tuple[Any, ...] | None = None
    logs: tuple[tuple[Stream, str], ...] = ()  # which logs the rows of a stream come from
    ids: tuple[tuple[str, int, int], ...] = field(default=())  # kestrel: queue, lowest, highest


def in_order(
    messages: Iterable[WriterCommitMessage | None], order_by: Sequence[str], *, strictly: bool
) -> list[PartsWritten]:
    """The messages in the order of their partitions. Raises UsageError if the rows are not.

    ``strictly``: two rows must not have the same place, as keys of a keyspace must not.
    """
    found = sorted(
        (message for message in messages if isinstance(message, PartsWritten)),
        key=lambda message: message.partition,
    )
    filled = [message for message in found if message.first is not None]
    for before, message in pairwise(filled):
        assert before.last is not None
        assert message.first is not None
        if not follows(message.first, before.last, strictly=strictly):
            raise UsageError(
                f"the rows are not in the order of {', '.join(order_by)}: partition"
                f" {message.partition} begins at {shown(message.first)}, behind"
                f" {shown(before.last)}; journeyman.spark.sinks.write sorts them"
            )
    return found
