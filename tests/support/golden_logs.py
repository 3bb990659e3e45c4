"""Where the files of the original programs are, and what they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "golden" / "data"
VECTORS: dict[str, Any] = json.loads((DATA / "overhop-vectors.json").read_text())
STEPS: list[dict[str, Any]] = VECTORS["steps"]
ZTICK_LOGS = sorted(DATA.glob("ztick/*.log"))
WORKQ_SEGMENTS = sorted(DATA.glob("workq/*/cmdlog/*.log"))
KESTREL_FILES = sorted(p for p in DATA.glob("kestrel/*/*") if p.name != "case.json")


def relative(path: Path) -> str:
    return str(path.relative_to(DATA))
