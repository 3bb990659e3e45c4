"""How many of one unit are in another: each is defined here and nowhere else."""

from __future__ import annotations

from typing import Final

NS_PER_US: Final = 1_000
NS_PER_MS: Final = 1_000_000
NS_PER_S: Final = 1_000_000_000
US_PER_S: Final = 1_000_000
MS_PER_S: Final = 1_000
MINUTE_S: Final = 60
HOUR_S: Final = 3600
DAY_S: Final = 86_400
DAY_MS: Final = 86_400_000
MIB: Final = 1024 * 1024
