"""The outcomes of an attempt: what a worker reports, and what it adds before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from journeyman.tasks.broker import Order
from journeyman.tasks.current import FailedJob
from journeyman.tasks.envelope import Failure


@dataclass(frozen=True, slots=True)
class TaskDone:
    result: bytes
    following: Order | None = None  # a job to add before this one is completed
    value: Any = None  # that the function returned


@dataclass(frozen=True, slots=True)
class Again:
    failure: Failure
    delay_ms: int
    exception: BaseException | None = None


@dataclass(frozen=True, slots=True)
class GivenBack:
    failure: Failure
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Dead:
    failure: Failure
    failed: FailedJob
    report: Order | None = None  # a job to add before the failure is reported


@dataclass(frozen=True, slots=True)
class AttemptParked:
    """The job is parked: the server has it back, and there is nothing to report."""


Outcome: TypeAlias = TaskDone | Again | GivenBack | Dead | AttemptParked


@dataclass(frozen=True, slots=True)
class BatchEnded:
    """How the jobs of a batch ended, in its order."""

    outcomes: tuple[Outcome, ...]
