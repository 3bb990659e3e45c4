"""The outside ledger: what a server was told, and therefore what it may hold after a kill.

    one page a connection     commands in the order sent, answers counted as they come
    one connection a page     no other connection touches its jobs and rules

        sent      c1 c2 c3 c4 c5 c6 c7
        proven           ^                answered, or seen by somebody else: must be there
        possible         ^--^--^--^--^    what is there ends at one of these cuts

A server that loses nothing and invents nothing holds the state after one of the possible cuts, for
each page by itself. That is all there is to check, and it is checked after every kill, and while
the server runs: a list it gives is the state at one cut, and none before what was answered when
the list was asked for.

Every SET has a time of its own, so a time names the SET it came from. No sockets and no clock here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Change", "Key", "Page", "RunBook", "Value", "page_number"]

Key: TypeAlias = tuple[str, str]  # "job" or "rule", identifier
Value: TypeAlias = int | str  # a job's execution_ns; a rule as LISTRULES shows it
Plan: TypeAlias = tuple[str, int]  # identifier, execution_ns: one SET of a job that runs

MAX_TOLD = 20  # of many things that are wrong, this many are told


@dataclass(frozen=True, slots=True)
class Change:
    key: Key
    value: Value | None  # None: removed
    line: str  # the command, without its request id
    succeeds: bool  # False: there is nothing to remove


class Page:
    """The commands of one connection in one life of the server, on top of what was there before."""

    def __init__(self) -> None:
        self.known: dict[Key, Value] = {}
        self.sent: list[Change] = []
        self.answered = 0
        self._seen = 0
        self._latest: dict[Key, Value] = {}  # as if everything sent were there
        self._place: dict[tuple[Key, Value], int] = {}  # in sent, counted from 1

    @property
    def proven(self) -> int:
        """How many of the commands must have come to stay."""
        return max(self.answered, self._seen)

    def put(self, key: Key, value: Value, line: str) -> Change:
        return self._send(Change(key, value, line, True))

    def remove(self, key: Key, line: str) -> Change:
        return self._send(Change(key, None, line, key in self._latest))

    def saw(self, key: Key, value: Value) -> None:
        """Another connection was shown this: it was sent, maybe not answered yet."""
        self._seen = max(self._seen, self._place.get((key, value), 0))

    def cut(self, found: Mapping[Key, Value], at_least: int) -> int | None:
        """How many commands make exactly this state; None: no number of them does."""
        state = dict(self.known)
        sent = self.sent[:]  # another thread may go on sending
        differing = {key for key in {*state, *found} if state.get(key) != found.get(key)}
        for number in range(len(sent) + 1):
            if number >= at_least and not differing:
                return number
            if number < len(sent):
                change = sent[number]
                if change.value == found.get(change.key):
                    differing.discard(change.key)
                else:
                    differing.add(change.key)
        return None

    def possible(self) -> Iterator[tuple[Key, Value]]:
        """All that a server may hold that starts now."""
        state = dict(self.known)
        for number, change in enumerate(self.sent):
            if change.value is not None and number >= self.proven:
                yield change.key, change.value
            elif change.value is not None:
                state[change.key] = change.value
            elif number < self.proven:
                state.pop(change.key, None)
        yield from state.items()

    def settle(self, found: Mapping[Key, Value]) -> int:
        """A new life begins with this state; how many unproven commands are in it."""
        cut = self.cut(found, self.proven)
        assert cut is not None, "\n".join(self.explain(found, self.proven))
        survived = cut - self.proven
        self.known = dict(found)
        self._latest = dict(found)
        self.sent.clear()
        self._place.clear()
        self.answered = self._seen = 0
        return survived

    def explain(self, found: Mapping[Key, Value], at_least: int) -> list[str]:
        """Why this state cannot be, in words."""
        history: dict[Key, list[tuple[int, Value | None]]] = {}
        for number, change in enumerate(self.sent, start=1):
            history.setdefault(change.key, []).append((number, change.value))
        told = []
        for key in sorted({*self.known, *history, *found}):
            steps = [(0, self.known.get(key)), *history.get(key, ())]
            begin = max(i for i, (number, _) in enumerate(steps) if number <= at_least)
            value = found.get(key)
            if value not in [step[1] for step in steps[begin:]]:
                fate = "lost" if value in [step[1] for step in steps] else "invented"
                told.append(f"{fate}: {key} is {value}; must be one of {steps[begin:]}")
        if not told:
            told.append("each job by itself may be so, but there was no moment at which all were")
        more = [f"and {len(told) - MAX_TOLD} more"] if len(told) > MAX_TOLD else []
        return [f"{at_least} of {len(self.sent)} are proven", *told[:MAX_TOLD], *more]

    def _send(self, change: Change) -> Change:
        self.sent.append(change)
        if change.value is None:
            self._latest.pop(change.key, None)
        else:
            self._latest[change.key] = change.value
            self._place[change.key, change.value] = len(self.sent)
        return change


class RunBook:
    """Which SETs may lead to a run in which life of the server, and which have.

    A job is run in a life if it was found when that life began and nobody had been told before
    that it was executed, or if it was SET in that life. At most once in each life.
    """

    def __init__(self) -> None:
        self.executed: set[Plan] = set()  # some client was told so
        self._may_run: set[tuple[int, Plan]] = set()

    def begin(self, life: int, found: Iterable[Plan]) -> None:
        """Call it before ``told_executed`` of the same life."""
        self._may_run |= {(life, plan) for plan in found if plan not in self.executed}

    def sent(self, life: int, plan: Plan) -> None:
        self._may_run.add((life, plan))

    def told_executed(self, plan: Plan) -> None:
        self.executed.add(plan)

    def wrong(self, runs: Iterable[tuple[int, Plan]]) -> Iterator[str]:
        """What is not right about the runs that happened: (life, SET), as the runs noted it."""
        seen: set[tuple[int, Plan]] = set()
        for run in runs:
            life, plan = run
            if run not in self._may_run:
                why = "after it was executed" if plan in self.executed else "without being there"
                yield f"{plan} ran in life {life} {why}"
            if run in seen:
                yield f"{plan} ran twice in life {life}"
            seen.add(run)
        ran = {plan for _, plan in seen}
        for plan in sorted(self.executed - ran):
            yield f"{plan} is said to be executed but never ran"


def page_number(identifier: str) -> int | None:
    """The page of ``keep.3.17``, ``run.3.17`` or ``rule.3.17``; None: nobody sent that."""
    words = identifier.split(".")
    if len(words) == 3 and words[0] in ("keep", "run", "rule") and words[1].isdigit():
        return int(words[1])
    return None
