"""What one key of a server may do: models for linearizability.check.

    scheduled_job   a register: set, remove, get
    work_job        add, lease, complete, fail, delete, look; leases are exclusive until they end

REFUSED says that nothing was changed: the disk is full.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final, NamedTuple

from journeyman.testing.simulation.history import UNKNOWN, Operation

OK: Final = "OK"
REFUSED: Final = "refused"
NOT_FOUND: Final = "not found"
DUPLICATE: Final = "duplicate"


def scheduled_job(state: Hashable, operation: Operation) -> Iterator[Hashable]:
    """The state is when the job is due, or None. It is never due while it is watched."""
    verb, answer = operation.ask[0], operation.answer
    if answer is UNKNOWN or answer == REFUSED:
        yield state
        if answer is UNKNOWN and verb != "get":
            yield operation.ask[1] if verb == "set" else None
    elif verb == "get":
        if answer == (NOT_FOUND if state is None else state):
            yield state
    elif verb == "set":
        if answer == OK:
            yield operation.ask[1]
    elif answer == (NOT_FOUND if state is None else OK):  # remove
        yield None


class WorkState(NamedTuple):
    """A job of the work queue that exists."""

    max_fails: int
    fails: int = 0
    leased_ns: int | None = None  # its lease began then, or a little later
    ttr_ns: int = 0
    ended: tuple[bool, bytes] | None = None  # whether it was completed, and its result


def work_job(state: Hashable, operation: Operation) -> Iterator[Hashable]:
    """The state is a WorkState, or None."""
    assert state is None or isinstance(state, WorkState)
    answer = operation.answer
    if answer == REFUSED:
        yield state
    elif answer is UNKNOWN:
        yield state
        for possible in (OK, NOT_FOUND, DUPLICATE):
            yield from _answered(state, operation, possible)
    else:
        yield from _answered(state, operation, answer)


def _answered(
    state: WorkState | None, operation: Operation, answer: object
) -> Iterator[WorkState | None]:
    verb, *arguments = operation.ask
    if verb == "add":
        if answer == (OK if state is None else DUPLICATE):
            yield WorkState(arguments[0], ttr_ns=arguments[1]) if state is None else state
    elif state is None:
        if answer == NOT_FOUND:
            yield None
    elif verb == "delete":
        if answer == OK:
            yield None
    elif verb == "look":
        if _shows(state, answer):
            yield state
    elif state.ended is not None:
        if verb in ("complete", "fail") and answer == DUPLICATE:
            yield state
    elif answer == OK:
        yield from _changed(state, operation)


def _changed(state: WorkState, operation: Operation) -> Iterator[WorkState]:
    """A job that has not ended, and something that was done to it."""
    verb, *arguments = operation.ask
    if verb == "lease":
        if _is_free(state, operation.returned_ns):
            yield state._replace(leased_ns=operation.invoked_ns)
    elif verb == "complete":
        yield state._replace(leased_ns=None, ended=(True, arguments[0]))
    elif verb == "fail":
        fails = state.fails + 1
        is_last = fails >= max(1, state.max_fails)
        ended = (False, arguments[0]) if is_last else None
        yield state._replace(fails=fails, leased_ns=None, ended=ended)


def _is_free(state: WorkState, now_ns: int) -> bool:
    return state.leased_ns is None or now_ns >= state.leased_ns + state.ttr_ns


def _shows(state: WorkState, answer: object) -> bool:
    """``answer``: the result, or None for a job that has not ended."""
    return answer == state.ended
