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

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from journeyman.config import kinds
from journeyman.data_directory import default_place
from journeyman.protocols.kestrel.parser import is_queue_name, is_reader_name
from journeyman.units import DAY_MS, MIB

_Path = tuple[str, ...]
_Many = Annotated[int, kinds.between(0, 10**15)]
_Age = Annotated[int, kinds.between(0, 3650 * DAY_MS)]  # up to ten years
_CacheSize = Annotated[int, kinds.between(MIB, MIB * MIB)]


class WrongKey(ValueError):
    """A nested value is invalid; ``path`` leads to it."""

    def __init__(self, path: _Path, value: object, problem: str) -> None:
        super().__init__(problem)
        self.path = path
        self.value = value
        self.problem = problem


def _read_queue_name(value: object) -> str:
    if not isinstance(value, str) or (value and not is_queue_name(value)):
        raise ValueError
    return value


QueueName = Annotated[
    str,
    _read_queue_name,
    Meta(description="the name of a queue, made of A-Z a-z 0-9 : _ -, or an empty string"),
]
READER_KEYS: Mapping[str, Any] = {
    "max_items": _Many,
    "max_bytes": _Many,
    "drops_oldest": bool,
    "max_age_ms": _Age,
    "expire_to": QueueName,
    "max_errors": Annotated[int, kinds.between(0, 1_000_000)],
    "errors_to": QueueName,
    "max_open": Annotated[int, kinds.between(1, 1_000_000)],
    "max_expire_sweep": _Many,
}
QUEUE_KEYS: Mapping[str, Any] = {
    "max_item_bytes": Annotated[int, kinds.between(0, 16 * MIB)],
    "max_queue_age_ms": _Age,
    **READER_KEYS,
}
READER = "reader"


def _read_limits(value: object, readers: Mapping[str, Any], path: _Path = ()) -> Mapping[str, Any]:
    table = _table(value, path)
    for key, given in table.items():
        if key not in readers:
            raise WrongKey((*path, key), given, f"unknown key; allowed are {', '.join(readers)}")
        try:
            kinds.read_setting(readers[key], given)
        except ValueError:
            problem = f"expected {kinds.allowed(readers[key], key)}"
            raise WrongKey((*path, key), given, problem) from None
    return table


def _read_queues(value: object) -> Mapping[str, Mapping[str, Any]]:
    for name, limits in _named(value, is_queue_name, ()):
        own = dict(_table(limits, (name,)))
        for reader, table in _named(own.pop(READER, {}), is_reader_name, (name, READER)):
            _read_limits(table, READER_KEYS, (name, READER, reader))
        _read_limits(own, QUEUE_KEYS, (name,))
    return _table(value, ())


def _named(
    value: object, is_name: Callable[[str], bool], path: _Path
) -> Iterator[tuple[str, object]]:
    """A table of tables, by names of queues or readers."""
    for name, table in _table(value, path).items():
        if not is_name(name):
            raise WrongKey((*path, name), table, "invalid name")
        yield name, table


def _table(value: object, path: _Path) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WrongKey(path, value, "expected a table")
    return value


QueueLimits = Annotated[
    Mapping[str, Any],
    partial(_read_limits, readers=QUEUE_KEYS),
    Meta(description="a table of limits, such as {max_items = 1000}"),
]
LimitsByQueue = Annotated[
    Mapping[str, Mapping[str, Any]],
    _read_queues,
    Meta(description="tables of limits by queue, such as {orders = {max_items = 1000}}"),
]


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
    """The choice of an engine between disk space and speed."""

    LOW_SPACE = "low_space"
    HIGH_THROUGHPUT = "high_throughput"


class WorkqSettings(Struct, frozen=True):
    enabled: Annotated[bool, "whether the work queue is served; false with a file of ztick"] = True
    listen: Annotated[kinds.Listen, "address of the workq protocol"] = kinds.Address(
        "127.0.0.1", 9922
    )
    persistence: Annotated[WorkqPersistence, "where jobs are kept: command log, or memory only"] = (
        WorkqPersistence.LOG
    )
    cmdlog_path: Annotated[kinds.Text, "directory of the command log"] = default_place(
        "workq.cmdlog_path"
    )
    cmdlog_sync: Annotated[WorkqSync, "when the command log is synced"] = WorkqSync.ALWAYS
    cmdlog_sync_int_ms: Annotated[
        kinds.SyncInterval, "time between syncs, with cmdlog_sync interval"
    ] = field(default=1000, name="cmdlog_sync_int")
    cmdlog_clean_int_ms: Annotated[
        int,
        kinds.between(0, 30 * DAY_MS),
        "time between cleanings of the command log; 0 turns them off",
    ] = field(default=300_000, name="cmdlog_clean_int")
    cmdlog_seg_size_bytes: Annotated[
        int, kinds.between(0, 1024 * MIB), "size at which a new segment is started; 0: the default"
    ] = field(default=64 * MIB, name="cmdlog_seg_size")
    idle_timeout_ms: Annotated[
        kinds.IdleTime,
        "time after which an idle connection that is not waiting is closed; 0: never",
    ] = 0
    events_to: Annotated[
        QueueName, "fan-out queue that gets an item for every job that ends; empty: none"
    ] = ""


class KestrelSettings(Struct, frozen=True):
    enabled: Annotated[
        bool, "whether the fan-out queues are served; false with a file of ztick"
    ] = True
    listen: Annotated[kinds.Listen, "address of the kestrel protocol"] = kinds.Address(
        "127.0.0.1", 22133
    )
    queue_path: Annotated[kinds.Text, "directory of the journals"] = default_place(
        "kestrel.queue_path"
    )
    sync: Annotated[WorkqSync, "when journals are synced"] = WorkqSync.ALWAYS
    sync_interval_ms: Annotated[kinds.SyncInterval, "time between syncs, with sync interval"] = 1000
    seals: Annotated[
        bool, "whether journals are sealed; false writes the same bytes as the original"
    ] = True
    checkpoint_interval_ms: Annotated[
        kinds.SyncInterval,
        "time between checkpoints; items confirmed since the last one are repeated after a crash",
    ] = 1000
    segment_bytes: Annotated[
        int, kinds.between(1024, 1024 * MIB), "size at which a new segment is started"
    ] = 16 * MIB
    archive_path: Annotated[
        kinds.Text | None,
        "directory for segments that every reader has passed; if not set, they are removed",
    ] = None
    max_queues: Annotated[int, kinds.between(1, 1_000_000), "maximum number of queues"] = 4096
    max_readers: Annotated[
        int, kinds.between(1, 1_000_000), "maximum number of readers per queue"
    ] = 1000
    window_items: Annotated[
        int,
        kinds.between(1, 10_000_000),
        "items of each queue kept in memory; the rest is only on disk",
    ] = 8192
    window_bytes: Annotated[
        int, kinds.between(1, 1024 * MIB), "total size of these items per queue"
    ] = 2 * MIB
    sweep_interval_ms: Annotated[kinds.TimeLimit, "time between sweeps for expired items"] = 1000
    idle_timeout_ms: Annotated[
        kinds.IdleTime,
        "time after which an idle connection that is not waiting is closed; 0: never",
    ] = 0
    allow_shutdown: Annotated[bool, "whether clients may stop the server"] = False
    default: Annotated[QueueLimits, "limits of every queue and reader"] = {}
    queue: Annotated[LimitsByQueue, "limits by queue, and by reader"] = {}


class StorageSettings(Struct, frozen=True):
    engine: Annotated[
        StorageEngine | None,
        "engine of the store, an index of the work queue's log; if not set, there is none",
    ] = None
    path: Annotated[
        kinds.Text, "its directory (~/ and $HOME are expanded); for postgres, the database address"
    ] = "~/.journeyman/data"
    cache_capacity_bytes: Annotated[
        _CacheSize | None, "cache size; only for rocksdb and sqlite"
    ] = field(default=None, name="cache_capacity")
    mode: Annotated[
        StorageMode | None, "optimise for disk space or for speed; only for rocksdb and sqlite"
    ] = None
    retention_ms: Annotated[
        int,
        kinds.between(0, 36_500 * DAY_MS),
        "how long the store keeps a job after its TTL has ended",
    ] = 7 * DAY_MS
