"""What became of one log."""

from __future__ import annotations

from dataclasses import asdict, dataclass


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
