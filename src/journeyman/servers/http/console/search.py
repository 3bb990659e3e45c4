"""The words of the search field, some with a name in front of them.

    queue:mail state:dead error:timeout task:shop.charge after:-1h in:work anything else
    shop.charge(81422, amount=4990       a call as the console shows it, as far as it is given

A word without a known name is looked for in ids and payloads. ``after:`` is a moment, or words for
one: -30s, -15m, -1h, -7d, today, 'yesterday 14:00'.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Any, Final

from journeyman.protocols.workq.replies import STATES, WAITING
from journeyman.servers.http.console.moments import ChosenZone, resolve_moment
from journeyman.servers.http.v1 import values

NAMES: Final = ("queue", "state", "error", "after", "in", "task", "worker")
SERVICES: Final = ("schedule", "work", "fan-out")
STATES_KNOWN: Final = (
    *("ready", "scheduled", "waiting", "running", "done", "dead", "cancelled"),
    *("planned", "failed"),
)
SCHEDULE_STATES: Final = ("planned", "triggered", "executed", "failed")
_MEANT: Final = {
    "dead": "failed",
    "completed": "executed",
    "leased": "triggered",
}  # in the schedule
_CALL: Final = re.compile(r"(?:^|\s)([A-Za-z_][\w.]*)\(([^)]*)\)?")
_NAME: Final = re.compile(r"[a-z]{2,}:(?!//)")  # the colon of an address is none of ours


@dataclass(frozen=True, slots=True)
class Search:
    queue: str = ""
    state: str = ""
    error: str = ""
    after: str = ""
    service: str = ""
    task: str = ""
    worker: str = ""
    text: str = ""
    call: str = ""  # as it was typed
    unknown: tuple[str, ...] = ()  # words with a name that there is not

    @property
    def looked_for(self) -> str:
        """The text that the API looks for in ids, payloads and calls."""
        return self.call or self.text

    @property
    def narrows(self) -> bool:
        """Return whether it asks for more than a queue and a state, of which there are counts."""
        return bool(self.looked_for or self.error or self.after or self.task or self.worker)

    @property
    def work_state(self) -> str | None:
        if self.state in (*STATES, WAITING):
            return self.state
        meant = {word: state for state, word in _MEANT.items()}
        return meant.get(self.state)

    @property
    def schedule_state(self) -> str | None:
        return self.state if self.state in SCHEDULE_STATES else _MEANT.get(self.state)

    def wants(self, service: str) -> bool:
        if self.unknown:
            return False
        if self.service:
            return service == self.service
        if service != "work" and (self.task or self.worker or self.call):
            return False
        if service == "schedule":
            asks_for_work = self.queue or (self.state and self.schedule_state is None)
            return not asks_for_work
        if service == "fan-out":
            return not (self.state or self.error or self.after)
        return not (self.state and self.work_state is None)

    def since(self, now_ns: int, zone: ChosenZone) -> str:
        """``after`` as a moment."""
        return resolve_moment(self.after, now_ns, zone)

    @property
    def problems(self) -> list[str]:
        """Return what is not understood, with the words that are."""
        known = ", ".join(f"{name}:" for name in NAMES)
        found = [
            f"{word} is not known; known are {known}. In quotes it is looked for as it is"
            for word in self.unknown
        ]
        if self.call and self.text:
            found.append(f"{self.text} is left out: a call is looked for alone")
        if self.state and self.work_state is None and self.schedule_state is None:
            found.append(f"state:{self.state} is not known; known are {', '.join(STATES_KNOWN)}")
        if self.service and self.service not in SERVICES:
            found.append(f"in:{self.service} is not known; known are {', '.join(SERVICES)}")
        return found

    def with_word(self, name: str, value: str) -> str:
        """The search with this word; without it if it is there already."""
        field = "service" if name == "in" else name
        known = {value, values.STATE_WORDS.get(value, value)}
        changed: dict[str, Any] = {field: "" if getattr(self, field) in known else value}
        return str(replace(self, **changed))

    def __str__(self) -> str:
        words = {"in": self.service, "queue": self.queue, "state": self.shown_state,
                 "task": self.task, "error": self.error, "worker": self.worker,
                 "after": self.after}  # fmt: skip
        named = [shlex.quote(f"{name}:{word}") for name, word in words.items() if word]
        return " ".join([*named, *([self.call] if self.call else []), self.text]).strip()

    @property
    def shown_state(self) -> str:
        shown = {state: word for word, state in values.STATE_WORDS.items()}
        return shown.get(self.state, self.state)


def read_search(text: str) -> Search:
    call = ""
    if (found_call := _CALL.search(text)) is not None:
        call = found_call[0].strip()
        text = text[: found_call.start()] + text[found_call.end() :]
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that is never closed
        words = text.split()
    found: dict[str, str] = {}
    rest, unknown = [], []
    for word in words:
        name, colon, value = word.partition(":")
        if colon and value and name in NAMES:
            found["service" if name == "in" else name] = value
        elif _NAME.match(word) and value and not re.search(rf"['\"]{re.escape(word)}", text):
            unknown.append(f"{name}:")
        else:
            rest.append(word)
    state = found.pop("state", "")
    return Search(
        **found,
        state=values.STATE_WORDS.get(state, state),
        text=" ".join(rest),
        call=call,
        unknown=tuple(dict.fromkeys(unknown)),
    )
