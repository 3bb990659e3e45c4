"""What a rule of the schedule says is to be done, one class a runner; the fields as in the log.

    byte  0 Shell   1 Amqp   2 Direct   3 Awf   4 Http   5 Redis   6 Queue   7 Journal

The last two are ours: the original does not know them.

Part of journeyman.formats.ztick, which reads and writes them and is where to import them from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


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


@dataclass(frozen=True, slots=True)
class WorkQueueRunner:
    """Adds a job to the work queue."""

    name: str
    flags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FanOutRunner:
    """Puts the id of the job on a fan-out queue."""

    queue: str


Runner: TypeAlias = Shell | Amqp | Direct | Awf | Http | Redis | WorkQueueRunner | FanOutRunner

_WORDS: dict[type[Runner], str] = {
    Shell: "shell",
    Amqp: "amqp",
    Direct: "direct",
    Awf: "awf",
    Http: "http",
    Redis: "redis",
    WorkQueueRunner: "queue",
    FanOutRunner: "journal",
}  # in the order of their bytes

RUNNER_CLASSES = tuple(_WORDS)
RUNNER_WORDS = tuple(_WORDS.values())


def runner_word(runner: Runner) -> str:
    """What commands, settings, metrics and tables call this runner."""
    return _WORDS[type(runner)]
