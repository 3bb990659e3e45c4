"""What became of one log."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everyone writes it

from journeyman.errors import LogError
from journeyman.spark.source.schemas import DAMAGE_KIND

# ----------------------------------------
# Damage is no reason to guess: what could not be read would not be in the new files.
#
# The server puts damage aside when it opens a log, and so does ``journeyman repair``; both keep
# every byte. So here it is only counted.


def refuse_damage(packets: DataFrame, log: str) -> int:
    """How many records these packets stand for. Raises LogError when some were damaged."""
    is_damage = F.col("kind") == DAMAGE_KIND
    counts = packets.agg(
        F.count_if(is_damage).alias("damages"), F.sum("records").alias("records")
    ).collect()[0]
    if counts["damages"]:
        raise LogError(
            log,
            f"is damaged in {counts['damages']} places, and what cannot be read would be lost: "
            "run `journeyman repair` first, which puts it aside",
        )
    return counts["records"] or 0


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """``changed`` is False when there was nothing to gain; ``error`` says why it was left alone."""

    dialect: str
    log: str
    changed: bool = False
    records_before: int = 0
    records_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    error: str | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
