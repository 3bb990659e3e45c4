"""What can be asked of an engine besides its name and place."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["EngineOptions", "Mode"]


class Mode(StrEnum):
    """What an engine is to spare: room on the disk, or time."""

    LOW_SPACE = "low_space"
    HIGH_THROUGHPUT = "high_throughput"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None leaves it to the engine."""

    cache_capacity: int | None = None  # bytes
    mode: Mode | None = None
