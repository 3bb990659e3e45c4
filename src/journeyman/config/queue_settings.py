"""The sections of the table that are about queues: [workq], [kestrel] and [storage].

Limits of fan-out queues and their readers: tables inside the section [kestrel].

    [kestrel.default]                        for every queue and reader
    [kestrel.queue.orders]                   for one queue, and all its readers
    [kestrel.queue.orders.reader.billing]    for one of its readers

What the nearest table does not say is taken from the one above it, key by key. So that a limit
can be lifted again, 0 says that there is none, and an empty name that there is no such queue.

Each table is the value of a setting, so the environment, the command line and `config --show`
have it too, in one line: ``{orders = {max_items = 5, reader = {billing = {max_open = 10}}}}``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from journeyman.config.kinds import (
    Address,
    Choice,
    Flag,
    Integer,
    ListenAddress,
    Optional,
    SecretText,
    Text,
    ValueKind,
    quoted,
    setting,
)
from journeyman.data_directory import default_place
from journeyman.protocols.kestrel.parser import is_queue_name, is_reader_name
from journeyman.units import DAY_MS, MIB

T = TypeVar("T")

_MANY = 10**15
_LONG_MS = 3650 * 24 * 60 * 60 * 1000  # ten years


class WrongKey(ValueError):
    """A nested value is invalid; ``path`` leads to it."""

    def __init__(self, path: tuple[str, ...], value: object, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.value = value
        self.problem = problem

    def under(self, name: str) -> WrongKey:
        return WrongKey((name, *self.path), self.value, self.problem)


class _QueueName(ValueKind[str]):
    allowed = "the name of a queue, made of A-Z a-z 0-9 : _ -, or an empty string"

    def read(self, value: object) -> str:
        if not isinstance(value, str) or (value and not is_queue_name(value)):
            raise ValueError
        return value

    def write(self, value: str) -> str:
        return quoted(value)


READER_KEYS: Mapping[str, ValueKind[Any]] = {
    "max_items": Integer(0, _MANY),
    "max_bytes": Integer(0, _MANY, "bytes"),
    "drops_oldest": Flag(),
    "max_age_ms": Integer(0, _LONG_MS, "milliseconds"),
    "expire_to": _QueueName(),
    "max_errors": Integer(0, 1_000_000),
    "errors_to": _QueueName(),
    "max_open": Integer(1, 1_000_000),
    "max_expire_sweep": Integer(0, _MANY),
}
QUEUE_KEYS: Mapping[str, ValueKind[Any]] = {
    "max_item_bytes": Integer(0, 16 * 1024 * 1024, "bytes"),
    "max_queue_age_ms": Integer(0, _LONG_MS, "milliseconds"),
    **READER_KEYS,
}
_READER = "reader"


@dataclass(frozen=True, slots=True)
class KestrelQueueSettings:
    """The table of a queue and those of its readers, with only the given keys."""

    queue: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)
    readers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class QueueTable(ValueKind[KestrelQueueSettings]):
    """[kestrel.default]: no reader has a table of its own."""

    allowed = "a table of limits, such as {max_items = 1000}"

    def read(self, value: object) -> KestrelQueueSettings:
        return KestrelQueueSettings(given=_read_keys(value, QUEUE_KEYS))

    def read_text(self, text: str) -> KestrelQueueSettings:
        return self.read(_parsed(text))

    def write(self, value: KestrelQueueSettings) -> str:
        return _write_table(_written(value.given))


class QueueTables(ValueKind[tuple[KestrelQueueSettings, ...]]):
    """[kestrel.queue.*]: by the names of the queues."""

    allowed = "tables of limits by queue, such as {orders = {max_items = 1000}}"

    def read(self, value: object) -> tuple[KestrelQueueSettings, ...]:
        return tuple(_each(value, is_queue_name, _read_queue).values())

    def read_text(self, text: str) -> tuple[KestrelQueueSettings, ...]:
        return self.read(_parsed(text))

    def write(self, value: tuple[KestrelQueueSettings, ...]) -> str:
        queues = {}
        for limits in value:
            table = _written(limits.given)
            readers = {name: _write_table(_written(keys)) for name, keys in limits.readers.items()}
            if readers:
                table[_READER] = _write_table(readers)
            queues[limits.queue] = _write_table(table)
        return _write_table(queues)


# -- reading -------------------------------------------------------------------------------------


def _read_queue(name: str, value: object) -> KestrelQueueSettings:
    table = dict(_items(value))
    try:
        readers = _each(table.pop(_READER, {}), is_reader_name, _read_reader)
    except WrongKey as error:
        raise error.under(_READER) from None
    return KestrelQueueSettings(name, _read_keys(table, QUEUE_KEYS), readers)


def _read_reader(_: str, value: object) -> Mapping[str, Any]:
    return _read_keys(value, READER_KEYS)


def _each(
    value: object, is_name: Callable[[str], bool], read: Callable[[str, object], T]
) -> dict[str, T]:
    """A table of tables, by names of queues or readers."""
    found: dict[str, T] = {}
    for name, table in _items(value):
        if not is_name(name):
            raise WrongKey((name,), table, "invalid name")
        try:
            found[name] = read(name, table)
        except WrongKey as error:
            raise error.under(name) from None
    return found


def _read_keys(value: object, known: Mapping[str, ValueKind[Any]]) -> Mapping[str, Any]:
    given: dict[str, Any] = {}
    for key, found in _items(value):
        kind = known.get(key)
        if kind is None:
            raise WrongKey((key,), found, f"unknown key; allowed are {', '.join(known)}")
        try:
            given[key] = kind.read(found)
        except ValueError:
            raise WrongKey((key,), found, f"expected {kind.allowed}") from None
    return given


def _items(value: object) -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        raise WrongKey((), value, "expected a table")
    return list(value.items())


def _parsed(text: str) -> object:
    try:
        document = tomllib.loads(f"value = {text}")
    except ValueError:
        raise ValueError from None  # its text would speak of a line and column
    return document["value"]


# -- writing -------------------------------------------------------------------------------------


def _written(given: Mapping[str, Any]) -> dict[str, str]:
    return {key: QUEUE_KEYS[key].write(value) for key, value in given.items()}


def _write_table(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{_key(key)} = {text}" for key, text in values.items()) + "}"


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if bare else quoted(key)


# ruff: noqa: RUF009 - setting() is dataclasses.field() with the rest of the table's row


class WorkqSync(StrEnum):
    """When what was written to the command log, or to a journal, is safe from a power cut."""

    INTERVAL = "interval"
    OS = "os"
    ALWAYS = "always"


class WorkqPersistence(StrEnum):
    """Where the work queue keeps its jobs."""

    LOG = "log"
    MEMORY = "memory"


class StorageEngine(StrEnum):
    """The database that holds the keys of the store."""

    ROCKSDB = "rocksdb"
    SQLITE = "sqlite"
    POSTGRES = "postgres"
    MEMORY = "memory"


class StorageMode(StrEnum):
    """Whether an engine optimises for disk space or for speed."""

    LOW_SPACE = "low_space"
    HIGH_THROUGHPUT = "high_throughput"


@dataclass(frozen=True, slots=True)
class WorkqSettings:
    enabled: bool = setting(
        Flag(),
        True,
        "whether the work queue is served; false with a file that has no [workq]",
    )
    listen: Address = setting(
        ListenAddress(), Address("127.0.0.1", 9922), "address of the workq protocol"
    )
    persistence: WorkqPersistence = setting(
        Choice(WorkqPersistence),
        WorkqPersistence.LOG,
        "where jobs are kept: command log, or memory only",
    )
    cmdlog_path: str = setting(
        Text(), default_place("workq.cmdlog_path"), "directory of the command log"
    )
    cmdlog_sync: WorkqSync = setting(
        Choice(WorkqSync), WorkqSync.ALWAYS, "when the command log is synced"
    )
    cmdlog_sync_int_ms: int = setting(
        Integer(1, 60 * 60 * 1000, "milliseconds"),
        1000,
        "time between syncs, with cmdlog_sync interval",
        key="cmdlog_sync_int",
    )
    cmdlog_clean_int_ms: int = setting(
        Integer(0, 30 * DAY_MS, "milliseconds"),
        300_000,
        "time between cleanings of the command log; 0 turns them off",
        key="cmdlog_clean_int",
    )
    cmdlog_seg_size_bytes: int = setting(
        Integer(0, 1024 * MIB, "bytes"),
        64 * MIB,
        "size at which a new segment is started; 0: the default",
        key="cmdlog_seg_size",
    )
    idle_timeout_ms: int = setting(
        Integer(0, 365 * DAY_MS, "milliseconds"),
        0,
        "time after which an idle connection that is not waiting is closed; 0: never",
    )
    events_to: str = setting(
        _QueueName(), "", "fan-out queue that gets an item for every job that ends; empty: none"
    )


@dataclass(frozen=True, slots=True)
class KestrelSettings:
    enabled: bool = setting(
        Flag(),
        True,
        "whether the fan-out queues are served; false with a file that has no [kestrel]",
    )
    listen: Address = setting(
        ListenAddress(), Address("127.0.0.1", 22133), "address of the kestrel protocol"
    )
    queue_path: str = setting(
        Text(), default_place("kestrel.queue_path"), "directory of the journals"
    )
    sync: WorkqSync = setting(Choice(WorkqSync), WorkqSync.ALWAYS, "when journals are synced")
    sync_interval_ms: int = setting(
        Integer(1, 60 * 60 * 1000, "milliseconds"),
        1000,
        "time between syncs, with sync interval",
    )
    seals: bool = setting(
        Flag(), True, "whether journals are sealed; false writes the same bytes as the original"
    )
    checkpoint_interval_ms: int = setting(
        Integer(1, 60 * 60 * 1000, "milliseconds"),
        1000,
        "time between checkpoints; items confirmed since the last one are repeated after a crash",
    )
    segment_bytes: int = setting(
        Integer(1024, 1024 * MIB, "bytes"), 16 * MIB, "size at which a new segment is started"
    )
    archive_path: str | None = setting(
        Optional(Text()),
        None,
        "directory for segments that every reader has passed; if not set, they are removed",
    )
    max_queues: int = setting(Integer(1, 1_000_000), 4096, "maximum number of queues")
    max_readers: int = setting(Integer(1, 1_000_000), 1000, "maximum number of readers per queue")
    window_items: int = setting(
        Integer(1, 10_000_000), 8192, "items of each queue kept in memory; the rest is only on disk"
    )
    window_bytes: int = setting(
        Integer(1, 1024 * MIB, "bytes"), 2 * MIB, "total size of these items per queue"
    )
    sweep_interval_ms: int = setting(
        Integer(1, DAY_MS, "milliseconds"), 1000, "time between sweeps for expired items"
    )
    idle_timeout_ms: int = setting(
        Integer(0, 365 * DAY_MS, "milliseconds"),
        0,
        "time after which an idle connection that is not waiting is closed; 0: never",
    )
    allow_shutdown: bool = setting(Flag(), False, "whether clients may stop the server")
    default: KestrelQueueSettings = setting(
        QueueTable(), KestrelQueueSettings(), "limits of every queue and reader"
    )
    queue: tuple[KestrelQueueSettings, ...] = setting(
        QueueTables(), (), "limits by queue, and by reader"
    )


@dataclass(frozen=True, slots=True)
class StorageSettings:
    engine: StorageEngine | None = setting(
        Optional(Choice(StorageEngine)),
        None,
        "engine of the store, an index of the work queue's log; if not set, there is none",
    )
    path: str = setting(
        SecretText(),
        "~/.journeyman/data",
        "its directory (~/ and $HOME are expanded); for postgres, the database address",
    )
    cache_capacity_bytes: int | None = setting(
        Optional(Integer(MIB, MIB * MIB, "bytes")),
        None,
        "cache size; only for rocksdb and sqlite",
        key="cache_capacity",
    )
    mode: StorageMode | None = setting(
        Optional(Choice(StorageMode)),
        None,
        "optimise for disk space or for speed; only for rocksdb and sqlite",
    )
    retention_ms: int = setting(
        Integer(0, 36_500 * DAY_MS, "milliseconds"),
        7 * DAY_MS,
        "how long the store keeps a job after its TTL has ended",
    )
