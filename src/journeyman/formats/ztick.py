"""The ztick logfile: jobs and rules of the schedule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

MAX_STRING_BYTES = 65535
# No real log comes near it: the original takes lines of 4 KiB and HTTP bodies of 1 MiB.
MAX_ENTRY_BYTES = 16 * 1024 * 1024


class Status(IntEnum):
    """Where a job stands; the values are the bytes in the log."""

    PLANNED = 0
    TRIGGERED = 1
    EXECUTED = 2
    FAILED = 3

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Shell:
    command: str


@dataclass(frozen=True, slots=True)
class Amqp:
    dsn: str
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True)
class Direct:
    executable: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Awf:
    workflow: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Http:
    method: str
    url: str


@dataclass(frozen=True, slots=True)
class Redis:
    url: str
    command: str
    key: str


Runner: TypeAlias = Shell | Amqp | Direct | Awf | Http | Redis


@dataclass(frozen=True, slots=True)
class JobSet:
    """A job was created, replanned, or changed its status."""

    identifier: str
    execution_ns: int
    status: Status


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A rule was created or replaced."""

    identifier: str
    pattern: str
    runner: Runner


@dataclass(frozen=True, slots=True)
class JobRemoved:
    identifier: str


@dataclass(frozen=True, slots=True)
class RuleRemoved:
    identifier: str


Record: TypeAlias = JobSet | RuleSet | JobRemoved | RuleRemoved
