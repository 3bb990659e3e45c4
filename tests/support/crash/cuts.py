"""Cutting the power at every operation of a program, and looking at every disk that may be left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from journeyman.disk import Disk
from tests.support.simulated_disk import PowerCut, SimulatedDisk
from tests.support.simulated_files import Survival

T = TypeVar("T")

EXTREMES: tuple[Survival, ...] = ("lose_all_unsynced", "keep_all_unsynced")


class Crash(Generic[T]):
    """One crash: at which operation, what was left, and what the program had got to by then."""

    def __init__(self, operation: int, survival: Survival, disk: SimulatedDisk, run: T) -> None:
        self.operation = operation
        self.survival = survival
        self.disk = disk
        self.run = run

    def __repr__(self) -> str:
        return f"power cut at operation {self.operation}, then {self.survival}"


def survivals_of(disk: Disk, *kinds: Survival) -> tuple[Survival, ...]:
    """In a database what was committed survives, and nothing else: all kinds are the same."""
    return kinds if isinstance(disk, SimulatedDisk) else kinds[:1]


def crashes(
    begin: Callable[[], T],
    disk_of: Callable[[T], SimulatedDisk],
    program: Callable[[T], object],
    *,
    seeds: int = 6,
    torn: float = 0.5,
) -> Iterator[Crash[T]]:
    """Run ``program`` on a fresh ``begin()`` for every operation it does, cutting it off there."""
    whole = begin()
    before = disk_of(whole).operations
    program(whole)
    operations = disk_of(whole).operations - before
    assert operations > 0, "a program without operations cannot be cut off"
    for operation in range(1, operations + 1):
        run = begin()
        disk_of(run).cut_power_at(operation, torn=torn)
        try:
            program(run)
        except PowerCut:
            pass
        else:
            raise AssertionError(f"operation {operation} of {operations} did not happen again")
        kinds = *EXTREMES, *range(operation, operation + seeds)
        for survival in survivals_of(disk_of(run), *kinds):
            yield Crash(operation, survival, disk_of(run).after_crash(survival), run)
