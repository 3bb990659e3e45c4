"""The counts of one run, from what sender and jobs wrote down. It knows nothing of any peer."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

# A job that was acknowledged has this long after the last sign of life: heartbeats of peers are
# looked at each minute at the most.
PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the jobs of one run."""

    acknowledged: int
    lost: int  # acknowledged, and not done in time
    done_twice: int
    invented: int  # ran with a number that was never sent
    refused: int  # sends that failed: the sender knows


def read(sent: Path, runs: Path) -> Counts:
    """Count what the files say so far."""
    sends = _lines(sent)
    ends = Counter(number for word, number in _lines(runs) if word == "done")
    starts = {number for word, number in _lines(runs) if word == "start"}
    acknowledged = {number for word, number in sends if word == "ack"}
    tried = {number for word, number in sends if word == "send"}
    return Counts(
        acknowledged=len(acknowledged),
        lost=len(acknowledged - ends.keys()),
        done_twice=sum(count > 1 for count in ends.values()),
        invented=len((starts | ends.keys()) - tried),
        refused=sum(word == "fail" for word, _ in sends),
    )


def wait_until_done(sent: Path, runs: Path, patience_s: float = PATIENCE_S) -> Counts:
    """Wait until every acknowledged job is done, or nothing has happened for too long."""
    size, since_s = -1, time.monotonic()
    while True:
        counts = read(sent, runs)
        now_size = runs.stat().st_size if runs.exists() else 0
        if now_size != size:
            size, since_s = now_size, time.monotonic()
        elif not counts.lost:
            return counts
        if time.monotonic() - since_s > patience_s:
            return counts
        time.sleep(0.5)


def _lines(path: Path) -> list[tuple[str, int]]:
    if not path.exists():
        return []
    pairs = (line.split() for line in path.read_text().splitlines())
    return [(word, int(number)) for word, number in pairs]
