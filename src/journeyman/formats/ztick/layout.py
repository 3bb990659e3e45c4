r"""The ztick entry in numbers: limits, type and runner bytes, and the fixed parts as structs.

    u32be length | type | ...                      length counts what follows it
    \___ LENGTH __/
    \____________ HEAD: length, type, length of the id ___/ the same in all four types

and what a rule says is to be done, one class a runner, the fields as in the log. The last two
runners are extensions: the original does not know them.

    byte  0 Shell   1 Amqp   2 Direct   3 Awf   4 Http   5 Redis   6 queue   7 journal
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

MAX_STRING_BYTES: Final = 65_535
MAX_LIST_ITEMS: Final = 65_535  # args of direct, inputs of awf, flags of queue
# These two count the bytes after the length field. The upper one is an extension: the original
# takes lines of 4 KiB and HTTP bodies of 1 MiB, so no real log comes near it.
MAX_ENTRY_BYTES: Final = 16 * 1024 * 1024
MIN_ENTRY_BYTES: Final = 3  # the removal of an empty id

JOB, RULE, JOB_REMOVAL, RULE_REMOVAL = range(4)

# By runner byte: the strings of shell, amqp, direct, awf, http, redis, and of queue and journal,
# which are extensions.
RUNNER_STRINGS: Final = (
    ("command",),
    ("dsn", "exchange", "routing_key"),
    ("executable",),
    ("workflow",),
    ("method", "url"),
    ("url", "command", "key"),
    ("name",),
    ("queue",),
)
# These end with u16be count, then so many strings.
LIST_RUNNERS: Final = {2: "args", 3: "inputs", 6: "flags"}

LENGTH: Final = Struct(">I")
HEAD: Final = Struct(">IBH")  # length, type, length of the id
U16: Final = Struct(">H")
JOB_TAIL: Final = Struct(">qB")  # execution, status

REMOVAL_EXTRA: Final = HEAD.size - LENGTH.size  # bytes of a removal besides its id
JOB_EXTRA: Final = REMOVAL_EXTRA + JOB_TAIL.size  # bytes of a job besides its id
RULE_EXTRA: Final = REMOVAL_EXTRA + 5  # likewise, at the least: pattern, runner, one string


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
