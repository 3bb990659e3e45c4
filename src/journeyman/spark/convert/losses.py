"""What is not carried over: one row a job or field, with its value and the reason.

    _log     key        field     value    reason
    /a/log   job.17     (all)     null     it has run: executed
    /a/log   mail       runner    shell …  a work queue runs nothing by itself: workers do

All losses of a row are found in one pass over it, however many fields there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

WHOLE: Final = "(all)"  # not a field: nothing of it is carried over


@dataclass(frozen=True, slots=True)
class Loss:
    """A field whose value is lost in the rows where ``when`` holds; in all if it is None."""

    field: str
    value: Column
    reason: Column | str
    when: Column | None = None

    def entry(self) -> Column:
        reason = F.lit(self.reason) if isinstance(self.reason, str) else self.reason
        found = F.struct(
            F.lit(self.field).alias("field"),
            self.value.cast("string").alias("value"),
            reason.alias("reason"),
        )
        return found if self.when is None else F.when(self.when, found)


def whole(reason: Column) -> Loss:
    """Nothing of a row is carried over, where there is a reason."""
    return Loss(WHOLE, F.lit(None), reason, reason.isNotNull())


def losses_of(frame: DataFrame, key: Column, losses: Sequence[Loss]) -> DataFrame:
    """One row for every loss that a row of the frame has."""
    entries = F.array_compact(F.array(*(loss.entry() for loss in losses)))
    rows = frame.select("_log", key.alias("key"), F.explode(entries).alias("loss"))
    return rows.select("_log", "key", "loss.field", "loss.value", "loss.reason")


def all_losses(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, frames)
