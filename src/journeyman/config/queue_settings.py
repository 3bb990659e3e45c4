"""The sections of the table that are about queues: [workq], [kestrel] and [storage]."""
# ruff: noqa: RUF009 - setting() is dataclasses.field() with the rest of the table's row

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from journeyman.config.addresses import Address
from journeyman.config.data_directory import default_place
from journeyman.config.kinds import (
    Choice,
    Flag,
    Integer,
    ListenAddress,
    Optional,
    SecretText,
    Text,
)
from journeyman.config.queue_limits import QueueLimits, QueueTable, QueueTables
from journeyman.config.rows import setting

_DAY_MS = 24 * 60 * 60 * 1000
_MIB = 1024 * 1024


class WorkqSync(StrEnum):
    """When what was written to the command log, or to a journal, is safe from a power cut."""

    INTERVAL = "interval"
    OS = "os"
    ALWAYS = "always"


class WorkqPersistence(StrEnum):
    """Where the work queue keeps its jobs."""

    LOG = "log"
    STORAGE = "storage"
    MEMORY = "memory"


class StorageEngine(StrEnum):
    """What keeps the keys of the store."""

    ROCKSDB = "rocksdb"
    SQLITE = "sqlite"
    POSTGRES = "postgres"
    MEMORY = "memory"


class StorageMode(StrEnum):
    """What an engine is to spare: room on the disk, or time."""

    LOW_SPACE = "low_space"
    HIGH_THROUGHPUT = "high_throughput"


@dataclass(frozen=True, slots=True)
class WorkqSettings:
    enabled: bool = setting(
        Flag(),
        True,
        "whether the work queue is served; not with a file without [workq]",
    )
    listen: Address = setting(
        ListenAddress(), Address("127.0.0.1", 9922), "address of the workq protocol"
    )
    persistence: WorkqPersistence = setting(
        Choice(WorkqPersistence),
        WorkqPersistence.LOG,
        "where jobs are kept: command log, store of [storage], or only in memory",
    )
    retention_ms: int = setting(
        Integer(0, 36_500 * _DAY_MS, "milliseconds"),
        7 * _DAY_MS,
        "how long the store keeps a job after it was finished, once its TTL is over",
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
        "time between two syncs, with cmdlog_sync interval",
        key="cmdlog_sync_int",
    )
    cmdlog_clean_int_ms: int = setting(
        Integer(0, 30 * _DAY_MS, "milliseconds"),
        300_000,
        "time between two cleanings of the command log; 0 turns them off",
        key="cmdlog_clean_int",
    )
    cmdlog_seg_size_bytes: int = setting(
        Integer(0, 1024 * _MIB, "bytes"),
        64 * _MIB,
        "size from which a new segment is begun; 0 is the default",
        key="cmdlog_seg_size",
    )
    idle_timeout_ms: int = setting(
        Integer(0, 365 * _DAY_MS, "milliseconds"),
        0,
        "time after which a connection that neither speaks nor waits is closed; 0 is never",
    )


@dataclass(frozen=True, slots=True)
class KestrelSettings:
    enabled: bool = setting(
        Flag(), True, "whether the fan-out queues are served; not with a file without [kestrel]"
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
        "time between two syncs, with sync interval",
    )
    seals: bool = setting(
        Flag(), True, "whether journals are sealed; off writes the same bytes as the original"
    )
    checkpoint_interval_ms: int = setting(
        Integer(1, 60 * 60 * 1000, "milliseconds"),
        1000,
        "time between two checkpoints: what was confirmed since may come again after a crash",
    )
    segment_bytes: int = setting(
        Integer(1024, 1024 * _MIB, "bytes"), 16 * _MIB, "size at which the next segment is begun"
    )
    archive_path: str | None = setting(
        Optional(Text()), None, "directory for segments that are read by all; else they are removed"
    )
    max_queues: int = setting(Integer(1, 1_000_000), 4096, "queues that may exist")
    max_readers: int = setting(Integer(1, 1_000_000), 1000, "readers that a queue may have")
    window_items: int = setting(
        Integer(1, 10_000_000), 8192, "items of each queue kept in memory; the rest is on disk only"
    )
    window_bytes: int = setting(
        Integer(1, 1024 * _MIB, "bytes"), 2 * _MIB, "and how large they may be together"
    )
    sweep_interval_ms: int = setting(
        Integer(1, _DAY_MS, "milliseconds"), 1000, "time between two looks for what is too old"
    )
    idle_timeout_ms: int = setting(
        Integer(0, 365 * _DAY_MS, "milliseconds"),
        0,
        "time after which a connection that neither speaks nor waits is closed; 0 is never",
    )
    allow_shutdown: bool = setting(Flag(), False, "whether clients may stop the server")
    default: QueueLimits = setting(QueueTable(), QueueLimits(), "limits of every queue and reader")
    queue: tuple[QueueLimits, ...] = setting(QueueTables(), (), "limits by queue, and by reader")


@dataclass(frozen=True, slots=True)
class StorageSettings:
    engine: StorageEngine = setting(
        Choice(StorageEngine), StorageEngine.ROCKSDB, "what keeps the store of job records"
    )
    path: str = setting(
        SecretText(),
        "~/.journeyman/data",
        "its directory, in which ~/ and $HOME are understood; for postgres its address",
    )
    cache_capacity_bytes: int | None = setting(
        Optional(Integer(_MIB, _MIB * _MIB, "bytes")),
        None,
        "cache of the engine; rocksdb and sqlite have one",
        key="cache_capacity",
    )
    mode: StorageMode | None = setting(
        Optional(Choice(StorageMode)),
        None,
        "what to spare, room or time; rocksdb and sqlite have a choice",
    )
