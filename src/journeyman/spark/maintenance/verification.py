"""Whether two state tables say the same, row for row.

    before: +1 a row --+
                       +--> group by all columns --> any group whose sum is not 0
    after:  -1 a row --+

Exact, as a multiset, and one shuffle. Places are left out: they are what changes. Bytes are
compared by their SHA-256, so that a payload is shuffled as 32 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it
from pyspark.sql.types import BinaryType

from journeyman.errors import LogError

# What a state is, by dialect and table: all but the places of records.
COMPARED: Final[Mapping[tuple[str, str], Sequence[str]]] = {
    ("ztick", "jobs"): ("identifier", "execution_ns", "status"),
    ("ztick", "rules"): ("identifier", "pattern", "runner", "runner_args"),
    ("workq", "jobs"): (
        "key",
        "kind",
        "logged_ns",
        "name",
        "ttr_ms",
        "ttl_ms",
        "priority",
        "max_attempts",
        "max_fails",
        "payload",
        "time_ns",
        "created_ns",
        "state",
        "attempts",
        "fails",
        "result",
        "started_ns",
        "finished_ns",
        "exhausted",
        "owed_timeouts",
        "expires_ns",
    ),
    ("kestrel", "items"): (
        "queue",
        "item_id",
        "add_time_ms",
        "expire_time_ms",
        "error_count",
        "data",
        "ordinal",
        "contested",
    ),
    ("kestrel", "readers"): ("queue", "reader", "head", "done", "damaged", "opened_head"),
}


def check_same(
    log: str, table: str, before: DataFrame, after: DataFrame, columns: Sequence[str]
) -> None:
    """Raises LogError, naming one row, when the tables differ."""
    for row in differences(before, after, columns).limit(1).collect():
        where = "is missing from" if row["_sum"] > 0 else "has come up in"
        shown = {name: row[name] for name in columns[:2]}
        raise LogError(
            log, f"the new files hold another state: {table} {shown} {where} them; nothing changed"
        )


def differences(before: DataFrame, after: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows that one of the tables has more often than the other; ``_sum`` says by how much."""
    signed = _signed(before, columns, 1).unionByName(_signed(after, columns, -1))
    return signed.groupBy(*columns).agg(F.sum("_sign").alias("_sum")).filter("_sum != 0")


def _signed(frame: DataFrame, columns: Sequence[str], sign: int) -> DataFrame:
    return frame.select(*(_compared(frame, name) for name in columns), F.lit(sign).alias("_sign"))


def _compared(frame: DataFrame, name: str) -> Column:
    if isinstance(frame.schema[name].dataType, BinaryType):
        return F.sha2(F.col(name), 256).alias(name)
    return F.col(name)
