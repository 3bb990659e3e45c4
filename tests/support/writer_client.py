"""What clients of a writer have in common in tests: they keep what they are told."""

from __future__ import annotations

from typing import Any


class WriterClient:
    def __init__(self) -> None:
        self.told: list[Any] = []
        self.calls = 0
        self.dropped = False
        self.rooms = 0

    def answered(self, answers: list[Any]) -> None:
        self.calls += 1
        self.told += answers

    def room(self) -> None:
        self.rooms += 1

    def drop(self) -> None:
        self.dropped = True
