"""Timetables and queues at a moment, as the ledger has them: the last record of each key by then.

A compaction of the ledger keeps the last record of what still exists, with its own time. What was
replaced or removed before is not known after it.
"""

from __future__ import annotations

import glob
import os
from collections import OrderedDict
from typing import Any

from journeyman.disk import RealDisk
from journeyman.formats.ledger import is_state, kind_of
from journeyman.logs.ledger.log import peek_records

KEPT_MOMENTS = 4
FAMILIES = ("timetable", "timetable-pause", "timetable-plan", "queue-pause", "queue-limits")

State = dict[str, dict[str, Any]]  # the record of each key, by family


class PastLedger:
    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._seen: list[tuple[str, int, int]] = []
        self._records: list[Any] = []
        self._moments: OrderedDict[int, State] = OrderedDict()

    def ledger_timetables(
        self, moment_ns: int, prefix: str, after: str, limit: int
    ) -> list[tuple[str, dict[str, Any], bool, str, str]]:
        """By name: fields, whether paused, the last occurrence and the one planned."""
        state = self._at(moment_ns)
        known, paused, plans = (state[family] for family in FAMILIES[:3])
        names = sorted(name for name in known if name.startswith(prefix) and name > after)
        return [
            (
                name, known[name].body, name in paused,
                plans[name].done if name in plans else "",
                plans[name].planned if name in plans else "",
            )
            for name in names[:limit]
        ]  # fmt: skip

    def ledger_queues(
        self, moment_ns: int, names: list[str]
    ) -> dict[str, tuple[bool, dict[str, Any]]]:
        """Whether each was paused, and its limits."""
        state = self._at(moment_ns)
        limits = state["queue-limits"]
        return {
            name: (name in state["queue-pause"], limits[name].body if name in limits else {})
            for name in names
        }

    def _at(self, moment_ns: int) -> State:
        self._look()
        found = self._moments.get(moment_ns)
        if found is None:
            found = self._moments[moment_ns] = {family: {} for family in FAMILIES}
            for record in self._records:
                if record.logged.unix_ns <= moment_ns:
                    _apply(found, record)
            if len(self._moments) > KEPT_MOMENTS:
                self._moments.popitem(last=False)
        return found

    def _look(self) -> None:
        places = sorted(glob.glob(os.path.join(glob.escape(self._directory), "*.ledger")))
        seen = [(path, facts.st_ino, facts.st_size) for path in places for facts in [os.stat(path)]]
        if seen != self._seen:
            found = peek_records(RealDisk(), self._directory)
            wanted = (each for each in found if is_state(each))
            self._records = [each for each in wanted if kind_of(each).family in FAMILIES]
            self._seen = seen
            self._moments.clear()


def _apply(state: State, record: Any) -> None:
    kind = kind_of(record)
    assert kind.key is not None
    key = getattr(record, kind.key)
    if kind.removes:
        state[kind.family].pop(key, None)
    else:
        state[kind.family][key] = record
