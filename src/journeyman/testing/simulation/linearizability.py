"""Whether a history can be explained: each operation at one moment between its call and its answer.

    model(state, operation) -> the states that may follow; none: it cannot have been answered so

The history of one key is walked in order, with all explanations that are still possible: a state,
and which of the operations that are under way have taken effect in it. An operation that is
answered must have taken effect: explanations in which it cannot have are given up. When none is
left, that answer is the one that nothing explains. (Wing and Gong 1993, Lowe 2017; porcupine and
Knossos check in the same way.)

States must be hashable. An operation with an unknown answer may have any effect that its model
allows, among them none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import TypeAlias

from journeyman.testing.simulation.history import NEVER, Operation

Model: TypeAlias = Callable[[Hashable, Operation], Iterable[Hashable]]
_Explanation: TypeAlias = tuple[Hashable, frozenset[Operation]]  # a state, and what it includes

MAX_EXPLANATIONS = 100_000
_ORDER = itemgetter(0)
_NONE: frozenset[Operation] = frozenset()


class NotLinearizable(AssertionError):
    """Nothing explains an answer; the operations of its key up to it are shown."""


def check(model: Model, initial: Hashable, operations: Sequence[Operation]) -> None:
    """NotLinearizable, if the operations of one key contradict the model."""
    moments: list[tuple[int, Operation]] = []  # an order is of one call or of one answer
    for each in operations:
        moments.append((each.invoked, each))
        if each.returned != NEVER:
            moments.append((each.returned, each))
    moments.sort(key=_ORDER)
    possible: set[_Explanation] = {(initial, _NONE)}
    under_way: dict[Operation, None] = {}
    for order, operation in moments:
        if order == operation.invoked:
            under_way[operation] = None
            continue
        if len(under_way) == 1:  # alone: it alone has taken effect, on any of the states
            possible = {
                (after, _NONE)
                for state, done in possible
                for after in ((state,) if done else model(state, operation))
            }
        else:
            possible = _including(model, possible, under_way, operation)
        if not possible:
            raise NotLinearizable(_told(operations, operation))
        del under_way[operation]


def _including(
    model: Model,
    possible: set[_Explanation],
    under_way: Iterable[Operation],
    wanted: Operation,
) -> set[_Explanation]:
    """The explanations that include an operation, which is then no longer named in them."""
    seen, found, left = set(possible), set(), list(possible)
    while left:
        state, done = left.pop()
        if wanted in done:
            found.add((state, done - {wanted}))
            continue
        for operation in under_way:
            if operation in done:
                continue
            for after in model(state, operation):
                explanation = after, done | {operation}
                if explanation not in seen:
                    seen.add(explanation)
                    left.append(explanation)
        if len(seen) > MAX_EXPLANATIONS:
            raise AssertionError(f"too many explanations: {wanted}")
    return found


def _told(operations: Sequence[Operation], wrong: Operation) -> str:
    before = [each for each in operations if each.invoked <= wrong.returned]
    lines = "\n".join(f"  {each}" for each in before[-30:])
    return f"nothing explains {wrong}\n{lines}"
