"""The partners of a writer: the engine that decides, the log, and those who submit commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from journeyman.formats.ledger import Record as LedgerRecord


class Engine(Protocol):
    """An engine that decides; a batch of decisions can be taken back."""

    def begin_batch(self) -> None: ...

    def commit_batch(self) -> None: ...

    def undo_batch(self) -> None: ...

    def take_ledger(self) -> list[LedgerRecord]:
        """The part of the decisions since the last call that belongs in the ledger."""
        ...


class Recorder(Protocol):
    """The log, as far as a writer needs it. Called from the writer's thread."""

    def write(self, records: Sequence[Any]) -> None:
        """Returns when they are durable. JourneymanError: none was written, or LogPoisoned."""
        ...


class Submitter(Protocol):
    """A source of commands: a session, or a call from inside the process."""

    def answered(self, answers: list[Any]) -> None:
        """To the oldest requests that are in flight, in order."""
        ...

    def room(self) -> None:
        """Commands are taken again; see ``tell_when_room``."""
        ...

    def drop(self) -> None:
        """Commands in flight are never answered."""
        ...
