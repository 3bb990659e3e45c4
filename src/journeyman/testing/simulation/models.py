"""What one key of a server may do: models for linearizability.check.

    scheduled_job   a register: set, remove, get
    work_job        add, replace, lease, touch, complete, fail, requeue, delete, look; leases are
                    exclusive until they end, a delayed retry waits, attempts and fails are counted

REFUSED says that nothing was changed: the disk is full.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Final, NamedTuple

from journeyman.testing.simulation.history import UNKNOWN, Operation

OK: Final = "OK"
REFUSED: Final = "refused"
NOT_FOUND: Final = "not found"
DUPLICATE: Final = "duplicate"
LEASED_AGAIN: Final = "leased again"  # so what ended is a former attempt
NOT_LEASED: Final = "not leased"
NOT_DEAD: Final = "not dead"


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


_NO_OPTIONS: Final = (0, 0, False)  # attempt, delay, is final


class WorkState(NamedTuple):
    """A job of the work queue that exists."""

    max_fails: int
    ttr_ns: int = 0
    after: tuple[str, ...] = ()  # its parents, as long as it may wait for them
    even_failed: bool = False  # it waits for their end, not for their success
    fails: int = 0
    attempts: int = 0  # at least: those that were seen
    leased_ns: int | None = None  # its lease ends then, or a little later
    free_ns: int = 0  # its delay ends then, or a little later
    ended: tuple[bool, bytes] | None = None  # whether it was completed, and its result


def work_job(state: Hashable, operation: Operation) -> Iterator[Hashable]:
    """The state is a WorkState, or None."""
    assert state is None or isinstance(state, WorkState)
    answer = operation.answer
    if answer == REFUSED:
        yield state
        return
    if answer is UNKNOWN:
        yield state
        if operation.ask[0] == "replace" and state is not None and state.ended is not None:
            yield None  # the old job is gone, and the new one is not there yet
    for possible in _meanwhile(state):
        yield from _answered(possible, operation, OK if answer is UNKNOWN else answer)


def _meanwhile(state: WorkState | None) -> Iterator[WorkState | None]:
    """What it may have become by itself: a job that waits for others fails with one of them."""
    yield state
    if state is not None and state.ended is None and not state.even_failed:
        for parent in state.after:
            yield state._replace(after=(), ended=(False, failed_parent(parent)))


def failed_parent(parent: str) -> bytes:
    """The result of a job whose parent has failed."""
    return f"parent {parent} failed or is gone".encode()


def _answered(
    state: WorkState | None, operation: Operation, answer: object
) -> Iterator[WorkState | None]:
    verb, *arguments = operation.ask
    if verb in ("add", "replace"):
        has_room = state is None or (verb == "replace" and state.ended is not None)
        if answer == (OK if has_room else DUPLICATE):
            yield WorkState(*arguments) if has_room else state
    elif state is None:
        if answer == NOT_FOUND:
            yield None
    elif verb == "delete":
        if answer == OK:
            yield None
    elif verb == "look":
        if answer == state.ended:
            yield state
    elif verb == "requeue":
        is_dead = state.ended is not None and not state.ended[0]
        if answer == (OK if is_dead else NOT_DEAD):
            yield WorkState(state.max_fails, state.ttr_ns) if is_dead else state
        elif state.after and answer == NOT_FOUND:
            yield state  # it has no place in a queue yet
    elif verb == "touch":
        yield from _touched(state, operation, answer)
    elif state.ended is not None:
        if verb in ("complete", "fail") and answer == DUPLICATE:
            yield state
    elif answer == LEASED_AGAIN:  # maybe by a client that never read the answer
        if arguments[1]:
            yield state
    elif answer == OK:
        yield from _changed(state, operation)


def _touched(state: WorkState, operation: Operation, answer: object) -> Iterator[WorkState]:
    ends_ns = state.leased_ns
    if answer == OK:
        if ends_ns is not None:
            ttr_ns = operation.ask[1] or state.ttr_ns
            yield state._replace(leased_ns=operation.invoked_ns + ttr_ns)
    elif answer == NOT_LEASED and (ends_ns is None or operation.returned_ns >= ends_ns):
        yield state


def _changed(state: WorkState, operation: Operation) -> Iterator[WorkState]:
    """A job that has not ended, and something that was done to it."""
    verb, *arguments = operation.ask
    if verb == "lease":
        attempt, fails = arguments or (0, 0)
        attempts = attempt or state.attempts + 1
        is_right = attempts > state.attempts and (not attempt or fails == state.fails)
        free_ns = max(state.leased_ns or 0, state.free_ns)
        if is_right and operation.returned_ns >= free_ns:
            ends_ns = operation.invoked_ns + state.ttr_ns
            yield state._replace(after=(), attempts=attempts, leased_ns=ends_ns, free_ns=0)
        return
    options: tuple[Any, ...] = (*arguments, *_NO_OPTIONS[len(arguments) - 1 :])
    result, attempt, delay_ns, is_final = options
    if attempt and state.attempts > attempt:
        return  # it was leased again, and this is another attempt than the one that ended
    if verb == "complete":
        yield state._replace(leased_ns=None, ended=(True, result))
    elif verb == "fail":
        fails = state.fails + 1
        is_last = is_final or fails >= max(1, state.max_fails)
        yield state._replace(
            fails=fails,
            leased_ns=None,
            free_ns=operation.invoked_ns + delay_ns,
            ended=(False, result) if is_last else None,
        )
