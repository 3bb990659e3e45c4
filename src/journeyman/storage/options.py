"""What can be asked of an engine besides its name and place."""

from __future__ import annotations

from dataclasses import dataclass

from journeyman.config import StorageMode


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """None leaves it to the engine."""

    cache_capacity_bytes: int | None = None
    mode: StorageMode | None = None
