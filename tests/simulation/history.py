"""What was asked of a server and what it answered, and whether that can be explained.

    begin(...) --> Operation --end(answer)--> it took effect at some moment in between
                        |------server_died--> it took effect before that, or never
                        +------(neither)----> it takes effect at some time, or never

An order is a number that only grows: of two operations, the one that ended before the other began
came first. Times are for what may end after some time, as leases do. Safe from any thread, so that
a real server can be recorded as well.

``check`` looks for an explanation: each operation at one moment between its call and its answer.

    model(state, operation) -> the states that may follow; none: it cannot have been answered so

    scheduled_job   a register: set, remove, get
    work_job        add, replace, move, lease, touch, park, complete, fail, cancel, requeue, delete,
                    look; leases are exclusive until they end, a delayed retry waits, a parked job
                    too, attempts and fails are counted; a move takes the place of a job that no
                    worker has begun, and what is leased is what was sent last

The history of one key is walked in order, with all explanations that are still possible: a state,
and which of the operations that are under way have taken effect in it. An operation that is
answered must have taken effect: explanations in which it cannot have are given up. When none is
left, that answer is the one that nothing explains. (Wing and Gong 1993, Lowe 2017; porcupine and
Knossos check in the same way.)

States must be hashable. An operation with an unknown answer may have any effect that its model
allows, among them none. REFUSED says that nothing was changed: the disk is full.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

NEVER: Final = 1 << 62
UNKNOWN: Final = object()  # the answer of an operation that may or may not have taken effect


@dataclass(slots=True, eq=False)
class Operation:
    """``answer`` UNKNOWN: it may have taken effect, and need not."""

    key: str  # what it is about; operations of different keys do not concern each other
    ask: tuple[Any, ...]  # a verb and its arguments
    invoked: int
    invoked_ns: int
    answer: Any = UNKNOWN
    returned: int = NEVER
    returned_ns: int = NEVER
    deaths: int = 0  # of the server before it
    server: object = None  # that was asked, where there are several

    def __str__(self) -> str:
        answer = "?" if self.answer is UNKNOWN else self.answer
        end = "" if self.returned == NEVER else self.returned
        return f"[{self.invoked}, {end}] {self.key}: {self.ask} -> {answer}"


class History:
    """See the module. ``now_ns`` is a clock that does not go back."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.operations: list[Operation] = []
        self.asked = 0  # commands; one may show several operations
        self._by_key: dict[str, list[Operation]] = {}
        self._now_ns = now_ns
        self.order = 0
        self._deaths = 0
        self._open: dict[Operation, None] = {}
        self._lock = threading.Lock()

    def begin(self, key: str, *ask: Any, server: object = None) -> Operation:
        with self._lock:
            self.order += 1
            self.asked += 1
            operation = Operation(
                key, ask, self.order, self._now_ns(), deaths=self._deaths, server=server
            )
            self._note(operation)
            self._open[operation] = None
            return operation

    def end(self, operation: Operation, answer: Any) -> None:
        with self._lock:
            if operation in self._open:
                operation.answer = answer
                self._close(operation)

    def put(self, key: str, *ask: Any, like: Operation, answer: Any = "OK") -> None:
        """An operation with the times of another one that showed it: a lease names its job."""
        with self._lock:
            times = (like.invoked, like.invoked_ns, answer, like.returned, like.returned_ns)
            self._note(Operation(key, ask, *times, like.deaths))

    def server_died(self, server: object = None) -> None:
        """What this server was asked was carried out before this moment, or never will be."""
        with self._lock:
            for operation in list(self._open):
                if server is None or operation.server is server:
                    self._close(operation)
            self._deaths += 1

    def server_took_over(self) -> None:
        """Another server has loaded what the last one left."""
        self._deaths += 1

    def asked_of(self, server: object) -> ServerHistory:
        """The same history, for what this server is asked."""
        return ServerHistory(self, server)

    def of_key(self, key: str) -> list[Operation]:
        return self._by_key.get(key, [])

    def of_keys(self, prefix: str) -> dict[str, list[Operation]]:
        return {key: its for key, its in self._by_key.items() if key.startswith(prefix)}

    def _note(self, operation: Operation) -> None:
        self.operations.append(operation)
        self._by_key.setdefault(operation.key, []).append(operation)

    def _close(self, operation: Operation) -> None:
        self.order += 1
        operation.returned = self.order
        operation.returned_ns = self._now_ns()
        del self._open[operation]


class ServerHistory:
    """A history, as the client of one of several servers notes it."""

    def __init__(self, whole: History, server: object) -> None:
        self.begin = partial(whole.begin, server=server)
        self.end = whole.end
        self.put = whole.put
        self.of_key = whole.of_key


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


OK: Final = "OK"
REFUSED: Final = "refused"
NOT_FOUND: Final = "not found"
DUPLICATE: Final = "duplicate"
LEASED_AGAIN: Final = "leased again"  # so what ended is a former attempt
NOT_LEASED: Final = "not leased"
NOT_DEAD: Final = "not dead"
OVER: Final = "over"  # what a job would wait for has come already
DIFFERS: Final = "differs"  # an event has another value
CANCELLATION: Final = b'{"error":"Cancelled","message":"a client cancelled the job"}'


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
    own_ns: int = 0  # the same by the job's own TTR, from its lease or its last touch on
    deaths: int = 0  # of the server before its lease or its last touch
    free_ns: int = 0  # its delay ends then, or a little later
    ended: tuple[bool, bytes] | None = None  # whether it was completed, and its result
    payload: bytes = b""  # of a job that can be moved

    def lease_ends_ns(self, operation: Operation) -> int | None:
        """As this operation may find it: a restart knows that a lease was touched, not until when,
        and gives it the job's own TTR from the restart on."""
        if self.leased_ns is None or operation.deaths == self.deaths:
            return self.leased_ns
        return min(self.leased_ns, self.own_ns)


def work_job(state: Hashable, operation: Operation) -> Iterator[Hashable]:
    """The state is a WorkState, or None."""
    assert state is None or isinstance(state, WorkState)
    answer = operation.answer
    if answer == REFUSED:
        yield state
        return
    if answer is UNKNOWN:
        yield state
        has_ended = state is not None and state.ended is not None
        if operation.ask[0] in ("replace", "move") and has_ended:
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
    elif verb == "move":
        yield from _moved(state, arguments, answer)
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
            begun_again = WorkState(state.max_fails, state.ttr_ns, payload=state.payload)
            yield begun_again if is_dead else state
        elif state.after and answer == NOT_FOUND:
            yield state  # it has no place in a queue yet
    elif verb == "touch":
        yield from _touched(state, operation, answer)
    elif verb == "park":
        yield from _parked(state, operation, answer)
    elif state.ended is not None:
        if verb in ("complete", "fail", "release", "cancel") and answer == DUPLICATE:
            yield state
    elif verb in ("release", "fail") and answer == NOT_LEASED:
        if _may_have_no_lease(state, operation) and _needs_lease(verb, arguments):
            yield state
    elif answer == LEASED_AGAIN:  # maybe by a client that never read the answer
        if arguments[1]:
            yield state
    elif answer == OK:
        yield from _changed(state, operation)


def _moved(
    state: WorkState | None, arguments: Sequence[Any], answer: object
) -> Iterator[WorkState | None]:
    """A job comes, in the place of one that has ended or that no worker has begun."""
    max_fails, ttr_ns, payload = arguments
    is_unfinished = state is not None and state.ended is None
    if answer == OK and not (is_unfinished and state is not None and state.attempts):
        yield WorkState(max_fails, ttr_ns, payload=payload)
    elif answer == DUPLICATE and is_unfinished:
        yield state  # begun, maybe by a client that never read the answer


def _touched(state: WorkState, operation: Operation, answer: object) -> Iterator[WorkState]:
    if answer == OK:
        if state.lease_ends_ns(operation) is not None:
            yield _leased(state, operation, operation.ask[1] or state.ttr_ns)
    elif answer == NOT_LEASED and _may_have_no_lease(state, operation):
        yield state


def _parked(state: WorkState, operation: Operation, answer: object) -> Iterator[WorkState]:
    _, wait, attempt = operation.ask
    if answer == NOT_LEASED:
        if state.ended is not None or _may_have_no_lease(state, operation):
            yield state
    elif answer == LEASED_AGAIN:
        yield state
    elif answer in (OK, OVER) and state.ended is None and state.attempts <= attempt:
        if state.lease_ends_ns(operation) is not None and answer == OVER:
            yield state
        elif state.lease_ends_ns(operation) is not None:
            yield state._replace(leased_ns=None, free_ns=operation.invoked_ns + wait.free_ns)


def _may_have_no_lease(state: WorkState, operation: Operation) -> bool:
    ends_ns = state.lease_ends_ns(operation)
    return ends_ns is None or operation.returned_ns >= ends_ns


def _needs_lease(verb: str, arguments: Sequence[Any]) -> bool:
    """Return whether the end of an attempt is taken once: a failure with its number, not final."""
    options: tuple[Any, ...] = (*arguments, *_NO_OPTIONS[len(arguments) - 1 :])
    _, attempt, _, is_final = options
    return verb == "release" or (verb == "fail" and attempt > 0 and not is_final)


def _leased(state: WorkState, operation: Operation, ttr_ns: int) -> WorkState:
    begun_ns = operation.invoked_ns
    return state._replace(
        leased_ns=begun_ns + ttr_ns, own_ns=begun_ns + state.ttr_ns, deaths=operation.deaths
    )


def _changed(state: WorkState, operation: Operation) -> Iterator[WorkState]:
    """A job that has not ended, and something that was done to it."""
    verb, *arguments = operation.ask
    if verb == "lease":
        attempt, fails, *payload = arguments or (0, 0)
        attempts = attempt or state.attempts + 1
        is_right = attempts > state.attempts and (not attempt or fails == state.fails)
        free_ns = max(state.lease_ends_ns(operation) or 0, state.free_ns)
        is_right &= payload in ([], [state.payload])
        if is_right and operation.returned_ns >= free_ns:
            started = state._replace(after=(), attempts=attempts, free_ns=0)
            yield _leased(started, operation, state.ttr_ns)
        return
    if verb == "cancel":
        yield state._replace(after=(), leased_ns=None, ended=(False, CANCELLATION))
        return
    options: tuple[Any, ...] = (*arguments, *_NO_OPTIONS[len(arguments) - 1 :])
    result, attempt, delay_ns, is_final = options
    if attempt and state.attempts > attempt:
        return  # it was leased again, and this is another attempt than the one that ended
    if _needs_lease(verb, arguments) and state.lease_ends_ns(operation) is None:
        return
    if verb == "complete":
        yield state._replace(leased_ns=None, ended=(True, result))
    elif verb == "release":  # given back: no failure counts
        yield state._replace(leased_ns=None, free_ns=operation.invoked_ns + delay_ns)
    elif verb == "fail":
        fails = state.fails + 1
        is_last = is_final or fails >= max(1, state.max_fails)
        yield state._replace(
            fails=fails,
            leased_ns=None,
            free_ns=operation.invoked_ns + delay_ns,
            ended=(False, result) if is_last else None,
        )
