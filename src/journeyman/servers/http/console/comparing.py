"""Totals of what changed between two moments: by state, then by queue and state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from journeyman.servers.http.console import shown
from journeyman.servers.http.v1.past import PastChanges, PastQueue

STATES: Final = ("ready", "scheduled", "running", "done", "dead", "cancelled")
_FIELDS: Final = ("ready", "scheduled", "leased", "completed", "dead", "cancelled")
_NOTHING: Final = PastQueue("", 0, 0, 0, 0, 0, 0)


class StateChange(NamedTuple):
    before: int
    after: int

    @property
    def change(self) -> int:
        return self.after - self.before


class QueueChanges(NamedTuple):
    """``cells`` are those of STATES."""

    queue: str
    cells: list[StateChange]


class Total(NamedTuple):
    name: str
    text: str
    note: str
    is_wrong: bool


def rows_of(changes: PastChanges, queue: str = "") -> list[QueueChanges]:
    """Queues in which something changed, those with most changes first."""
    before = {each.queue: each for each in changes.before}
    after = {each.queue: each for each in changes.after}
    rows = [
        QueueChanges(
            name,
            [
                StateChange(*(getattr(side.get(name, _NOTHING), field) for side in (before, after)))
                for field in _FIELDS
            ],
        )
        for name in sorted(before.keys() | after.keys())
        if queue in ("", name)
    ]
    changed = [row for row in rows if any(cell.change for cell in row.cells)]
    return sorted(changed, key=lambda row: -sum(abs(cell.change) for cell in row.cells))


def totals_of(rows: Sequence[QueueChanges]) -> list[Total]:
    """Say by how much each state grew in all queues, and how many jobs it has now."""
    totals = []
    for place, state in enumerate(STATES):
        cells = [row.cells[place] for row in rows]
        change = sum(cell.change for cell in cells)
        before, after = sum(cell.before for cell in cells), sum(cell.after for cell in cells)
        note = f"{shown.number(before)} → {shown.number(after)}"
        sign = "+" if change > 0 else "\u2212" if change < 0 else ""
        text = f"{sign}{shown.number(abs(change))}"
        totals.append(Total(state.capitalize(), text, note, state == "dead" and change > 0))
    return totals
