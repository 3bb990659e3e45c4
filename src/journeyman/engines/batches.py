"""The engines share this: a batch of decisions can be taken back until it is durable."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from journeyman.formats.ledger import Record as LedgerRecord


class UndoableState(Protocol):
    """The state of an engine. It remembers, from ``begin_batch`` on, how it was then."""

    ledger: list[LedgerRecord]

    def begin_batch(self) -> None: ...
    def commit_batch(self) -> None: ...
    def undo_batch(self) -> None: ...


State = TypeVar("State", bound=UndoableState)


class UndoableEngine(Generic[State]):
    """An engine that decides; its dialect adds ``decide``, and what others ask of it."""

    __slots__ = ("_in_batch", "_state")

    def __init__(self, state: State) -> None:
        self._state = state
        self._in_batch = False

    def take_ledger(self) -> list[LedgerRecord]:
        """The ledger records decided since the last call, for the same batch."""
        ledger = self._state.ledger
        if ledger:
            self._state.ledger = []
        return ledger

    def begin_batch(self) -> None:
        """From here on everything can be taken back."""
        assert not self._in_batch
        self._in_batch = True
        self._state.begin_batch()

    def commit_batch(self) -> None:
        """The records of the batch are durable."""
        assert self._in_batch
        self._in_batch = False
        self._state.commit_batch()

    def undo_batch(self) -> None:
        """The records could not be written: be as if the batch had never been. Nothing that it
        gave out may be used: no reply, no effect, no listing. Clients that waited before it wait
        again."""
        assert self._in_batch
        self._in_batch = False
        self._state.undo_batch()
