"""How many random cases a sweep tries.

The usual number catches what a change breaks. ``HYPOTHESIS_PROFILE=deep`` tries ten times as many,
for those who change a format, a fold or an engine and have a few minutes.
"""

from __future__ import annotations

import os

DEEP = os.environ.get("HYPOTHESIS_PROFILE") == "deep"
DEEP_FACTOR = 10


def cases(usual: int) -> int:
    """How many to try now, where ``usual`` are tried in ``make test``."""
    return usual * DEEP_FACTOR if DEEP else usual
