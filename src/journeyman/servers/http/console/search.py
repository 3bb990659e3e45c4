"""What is typed into the search field: words, some with a name in front of them.

    queue:mail state:dead error:timeout after:-1h in:work anything else

A word without a known name is looked for in ids and payloads. ``after:`` is a moment, or a time
back from now: -30s, -15m, -1h, -7d.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from journeyman.units import DAY_S, NS_PER_S

_BACK = re.compile(r"-(\d{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": DAY_S}
NAMES = ("queue", "state", "error", "after", "in")
SERVICES = ("schedule", "work", "fan-out")
WORK_STATES = ("ready", "scheduled", "leased", "completed", "dead")
SCHEDULE_STATES = ("planned", "triggered", "executed", "failed")
_MEANT = {"dead": "failed", "completed": "executed", "leased": "triggered"}  # in the schedule


@dataclass(frozen=True, slots=True)
class Search:
    queue: str = ""
    state: str = ""
    error: str = ""
    after: str = ""
    service: str = ""
    text: str = ""

    @property
    def work_state(self) -> str | None:
        if self.state in WORK_STATES:
            return self.state
        meant = {word: state for state, word in _MEANT.items()}
        return meant.get(self.state)

    @property
    def schedule_state(self) -> str | None:
        return self.state if self.state in SCHEDULE_STATES else _MEANT.get(self.state)

    def wants(self, service: str) -> bool:
        if self.service:
            return service == self.service
        if service == "schedule":
            asks_for_work = self.queue or (self.state and self.schedule_state is None)
            return not asks_for_work
        if service == "fan-out":
            return not (self.state or self.error or self.after)
        return not (self.state and self.work_state is None)

    def since(self, now_ns: int) -> str:
        """``after`` as a moment."""
        back = _BACK.fullmatch(self.after)
        if back is None:
            return self.after
        return str(now_ns - int(back[1]) * _SECONDS[back[2]] * NS_PER_S)


def read_search(text: str) -> Search:
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is never closed
        words = text.split()
    found: dict[str, str] = {}
    rest = []
    for word in words:
        name, colon, value = word.partition(":")
        if colon and value and name in NAMES:
            found["service" if name == "in" else name] = value
        else:
            rest.append(word)
    return Search(**found, text=" ".join(rest))
