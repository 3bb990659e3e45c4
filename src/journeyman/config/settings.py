"""Every setting of the server: section, key, kind, unit, default, limit and meaning, in one table.

A section of the file is a class here, a key is a field; `Settings` holds one of each. The classes
are the table: files, environment, command line, `config --show` and the check of
docs/configuration.md all walk over ``all_settings()``, so nothing is listed twice.

    [database]                          settings.database.framerate
    framerate = 512                     JOURNEYMAN_DATABASE_FRAMERATE=512

The sections down to [telemetry] are ztick's, key for key with its defaults, so a ztick
configuration file works as it is. The ones behind it are new. Paths are taken as given: relative
ones are relative to the current directory.
"""
# ruff: noqa: RUF009 - _setting() is dataclasses.field() with the rest of the table's row

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, TypeVar, cast

from journeyman.config.addresses import Address
from journeyman.config.kinds import (
    Choice,
    Flag,
    Integer,
    Kind,
    ListenAddress,
    Optional,
    Text,
    TextList,
)
from journeyman.config.queue_limits import QueueLimits, QueueTable, QueueTables

__all__ = [
    "ControllerSettings",
    "DatabaseSettings",
    "HistorySettings",
    "HttpSettings",
    "Interrupted",
    "KestrelSettings",
    "LimitSettings",
    "LogLevel",
    "LogSettings",
    "MessageFormat",
    "MessageSettings",
    "Persistence",
    "RunnerSettings",
    "ScheduleSettings",
    "Setting",
    "Settings",
    "ShellSettings",
    "StorageEngine",
    "StorageMode",
    "StorageSettings",
    "TelemetrySettings",
    "WorkqPersistence",
    "WorkqSettings",
    "WorkqSync",
    "all_settings",
]

T = TypeVar("T")

_MAX_U32 = 2**32 - 1  # the largest value of ztick's own intervals
_DAY_MS = 24 * 60 * 60 * 1000
_MIB = 1024 * 1024


class LogLevel(StrEnum):
    """How much the server says; each level includes those above it. Trace equals debug."""

    OFF = "off"
    ERROR = "error"
    WARN = "warn"
    INFO = "info"
    DEBUG = "debug"
    TRACE = "trace"


class Persistence(StrEnum):
    LOGFILE = "logfile"
    MEMORY = "memory"


class Interrupted(StrEnum):
    """What becomes of a job whose run was cut off because the server stopped."""

    RUN = "run"
    FAIL = "fail"


class MessageFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class WorkqSync(StrEnum):
    """When what was written to the command log, or to a journal, is safe from a power cut."""

    INTERVAL = "interval"
    OS = "os"
    ALWAYS = "always"


class WorkqPersistence(StrEnum):
    """Where the work queue keeps its jobs."""

    LOG = "log"
    STORAGE = "storage"


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


def _setting(kind: Kind[T], default: T, meaning: str, *, key: str = "") -> T:
    """A field that is a setting. ``key`` where ztick's name lacks the unit that ours carries."""
    metadata = {"kind": kind, "meaning": meaning, "key": key}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: LogLevel = _setting(Choice(LogLevel), LogLevel.INFO, "how much is said on stderr")


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    listen: Address = _setting(
        ListenAddress(), Address("127.0.0.1", 5678), "address of the ztick protocol"
    )
    auth_file: str | None = _setting(
        Optional(Text()), None, "file of tokens; when set, clients must send AUTH first"
    )
    tls_cert: str | None = _setting(
        Optional(Text()), None, "PEM file of the certificate; turns TLS on, with tls_key"
    )
    tls_key: str | None = _setting(Optional(Text()), None, "PEM file of the certificate's key")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    listen: Address | None = _setting(
        Optional(ListenAddress()), None, "address of the HTTP API; off when not set"
    )


@dataclass(frozen=True, slots=True)
class ShellSettings:
    path: str = _setting(Text(), "/bin/sh", "program that runs the commands of shell rules")
    args: tuple[str, ...] = _setting(
        TextList(), ("-c",), "its arguments; the command comes behind them"
    )


@dataclass(frozen=True, slots=True)
class DatabaseSettings:
    persistence: Persistence = _setting(
        Choice(Persistence), Persistence.LOGFILE, "whether jobs and rules outlive the process"
    )
    logfile_path: str = _setting(Text(), "logfile", "the log of jobs and rules")
    fsync_on_persist: bool = _setting(
        Flag(), True, "whether an answer waits until its record is safe from a power cut"
    )
    framerate: int = _setting(
        Integer(1, 65_535), 512, "how often a second, at most, due jobs are looked for"
    )
    compression_interval_s: int = _setting(
        Integer(0, _MAX_U32, "seconds"),
        3600,
        "time between two compactions of the log; 0 turns them off",
        key="compression_interval",
    )


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    enabled: bool = _setting(Flag(), False, "whether telemetry is sent; needs an endpoint")
    endpoint: str | None = _setting(Optional(Text()), None, "base URL of an OTLP/HTTP collector")
    service_name: str = _setting(Text(), "ztick", "the service.name that the collector sees")
    flush_interval_ms: int = _setting(
        Integer(0, _MAX_U32, "milliseconds"), 5000, "time between two exports; 0 exports at once"
    )


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    max_runs: int = _setting(
        Integer(1, 10_000), 64, "how many jobs run at the same time; further ones wait in order"
    )
    interrupted: Interrupted = _setting(
        Choice(Interrupted), Interrupted.RUN, "jobs cut off by a stop: run them again or fail them"
    )


@dataclass(frozen=True, slots=True)
class HistorySettings:
    enabled: bool = _setting(
        Flag(), True, "whether each run is noted in files; only with a logfile"
    )
    path: str | None = _setting(
        Optional(Text()),
        None,
        "directory of these files; the logfile's path and .runs when not set",
    )
    file_bytes: int = _setting(
        Integer(65_536, 1024 * _MIB, "bytes"), 16 * _MIB, "size at which the next file is begun"
    )
    files: int = _setting(Integer(1, 100_000), 64, "how many are kept; the oldest go first")
    days: int = _setting(
        Integer(0, 36_500),
        30,
        "how long runs are kept; 0 is no limit; else a file holds a day at most",
    )


@dataclass(frozen=True, slots=True)
class WorkqSettings:
    enabled: bool = _setting(Flag(), True, "whether the work queue is served as well")
    listen: Address = _setting(
        ListenAddress(), Address("127.0.0.1", 9922), "address of the workq protocol"
    )
    persistence: WorkqPersistence = _setting(
        Choice(WorkqPersistence),
        WorkqPersistence.LOG,
        "where jobs are kept: in the command log, or in the store of [storage]",
    )
    retention_ms: int = _setting(
        Integer(0, 36_500 * _DAY_MS, "milliseconds"),
        7 * _DAY_MS,
        "how long the store keeps a job after it was finished, once its TTL is over",
    )
    cmdlog_path: str | None = _setting(
        Optional(Text()), None, "directory of the command log; memory only when not set"
    )
    cmdlog_sync: WorkqSync = _setting(
        Choice(WorkqSync), WorkqSync.INTERVAL, "when the command log is synced"
    )
    cmdlog_sync_int_ms: int = _setting(
        Integer(1, 60 * 60 * 1000, "milliseconds"),
        1000,
        "time between two syncs, with cmdlog_sync interval",
        key="cmdlog_sync_int",
    )
    cmdlog_clean_int_ms: int = _setting(
        Integer(0, 30 * _DAY_MS, "milliseconds"),
        300_000,
        "time between two cleanings of the command log; 0 turns them off",
        key="cmdlog_clean_int",
    )
    cmdlog_seg_size_bytes: int = _setting(
        Integer(0, 1024 * _MIB, "bytes"),
        64 * _MIB,
        "size from which a new segment is begun; 0 is the default",
        key="cmdlog_seg_size",
    )


@dataclass(frozen=True, slots=True)
class KestrelSettings:
    enabled: bool = _setting(Flag(), True, "whether the fan-out queues are served as well")
    listen: Address = _setting(
        ListenAddress(), Address("127.0.0.1", 22133), "address of the kestrel protocol"
    )
    queue_path: str = _setting(Text(), "queues", "directory of the journals")
    sync: WorkqSync = _setting(Choice(WorkqSync), WorkqSync.ALWAYS, "when journals are synced")
    sync_interval_ms: int = _setting(
        Integer(1, 60 * 60 * 1000, "milliseconds"),
        1000,
        "time between two syncs, with sync interval",
    )
    checkpoint_interval_ms: int = _setting(
        Integer(1, 60 * 60 * 1000, "milliseconds"),
        1000,
        "time between two checkpoints: what was confirmed since may come again after a crash",
    )
    segment_bytes: int = _setting(
        Integer(1024, 1024 * _MIB, "bytes"), 16 * _MIB, "size at which the next segment is begun"
    )
    archive_path: str | None = _setting(
        Optional(Text()), None, "directory for segments that are read by all; else they are removed"
    )
    max_queues: int = _setting(Integer(1, 1_000_000), 4096, "queues that may exist")
    max_readers: int = _setting(Integer(1, 1_000_000), 1000, "readers that a queue may have")
    window_items: int = _setting(
        Integer(1, 10_000_000), 8192, "items of each queue kept in memory; the rest is on disk only"
    )
    window_bytes: int = _setting(
        Integer(1, 1024 * _MIB, "bytes"), 2 * _MIB, "and how large they may be together"
    )
    sweep_interval_ms: int = _setting(
        Integer(1, _DAY_MS, "milliseconds"), 1000, "time between two looks for what is too old"
    )
    allow_shutdown: bool = _setting(Flag(), False, "whether clients may stop the server")
    default: QueueLimits = _setting(QueueTable(), QueueLimits(), "limits of every queue and reader")
    queue: tuple[QueueLimits, ...] = _setting(QueueTables(), (), "limits by queue, and by reader")


@dataclass(frozen=True, slots=True)
class StorageSettings:
    engine: StorageEngine = _setting(
        Choice(StorageEngine), StorageEngine.ROCKSDB, "what keeps the store of job records"
    )
    path: str = _setting(
        Text(),
        "~/.journeyman/data",
        "its directory, in which ~/ and $HOME are understood; for postgres its address",
    )
    cache_capacity_bytes: int | None = _setting(
        Optional(Integer(_MIB, _MIB * _MIB, "bytes")),
        None,
        "cache of the engine; rocksdb and sqlite have one",
        key="cache_capacity",
    )
    mode: StorageMode | None = _setting(
        Optional(Choice(StorageMode)),
        None,
        "what to spare, room or time; rocksdb and sqlite have a choice",
    )


@dataclass(frozen=True, slots=True)
class RunnerSettings:
    process_timeout_ms: int = _setting(
        Integer(0, 30 * _DAY_MS, "milliseconds"),
        0,
        "longest run of shell, direct and awf; 0 is no limit",
    )
    network_timeout_ms: int = _setting(
        Integer(1, _DAY_MS, "milliseconds"), 30_000, "longest run of http, amqp and redis"
    )
    kill_grace_ms: int = _setting(
        Integer(0, 60 * 60 * 1000, "milliseconds"),
        5000,
        "time a process has to end after SIGTERM, before SIGKILL",
    )
    output_bytes: int = _setting(
        Integer(0, _MIB, "bytes"), 4096, "how much of what a run says is kept"
    )


@dataclass(frozen=True, slots=True)
class LimitSettings:
    connections: int = _setting(Integer(1, 100_000), 16_000, "open connections of each listener")
    auth_timeout_ms: int = _setting(
        Integer(1, _DAY_MS, "milliseconds"), 5000, "time from connecting to a successful AUTH"
    )
    handshake_timeout_ms: int = _setting(
        Integer(1, _DAY_MS, "milliseconds"), 10_000, "time for a TLS handshake"
    )
    http_timeout_ms: int = _setting(
        Integer(1, _DAY_MS, "milliseconds"), 30_000, "time for an HTTP request to arrive"
    )
    http_body_bytes: int = _setting(
        Integer(1, 64 * _MIB, "bytes"), _MIB, "largest body of an HTTP request"
    )
    stop_timeout_ms: int = _setting(
        Integer(0, _DAY_MS, "milliseconds"), 10_000, "time for runs to end when the server stops"
    )
    waiting_commands: int = _setting(
        Integer(1, 1_000_000), 10_000, "commands that wait for the log before reading pauses"
    )
    unsent_bytes: int = _setting(
        Integer(4096, 1024 * _MIB, "bytes"),
        _MIB,
        "answers a client has not fetched before its commands wait",
    )


@dataclass(frozen=True, slots=True)
class MessageSettings:
    format: MessageFormat = _setting(
        Choice(MessageFormat), MessageFormat.TEXT, "lines for people, or one JSON object a line"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    log: LogSettings = LogSettings()
    controller: ControllerSettings = ControllerSettings()
    http: HttpSettings = HttpSettings()
    shell: ShellSettings = ShellSettings()
    database: DatabaseSettings = DatabaseSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    schedule: ScheduleSettings = ScheduleSettings()
    history: HistorySettings = HistorySettings()
    workq: WorkqSettings = WorkqSettings()
    kestrel: KestrelSettings = KestrelSettings()
    storage: StorageSettings = StorageSettings()
    runners: RunnerSettings = RunnerSettings()
    limits: LimitSettings = LimitSettings()
    messages: MessageSettings = MessageSettings()


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table."""

    section: str
    key: str
    attribute: str
    kind: Kind[Any]
    default: Any
    meaning: str

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"JOURNEYMAN_{self.section}_{self.key}".upper()

    def value_in(self, settings: Settings) -> Any:
        return getattr(getattr(settings, self.section), self.attribute)


def all_settings() -> Iterator[Setting]:
    """The table, in the order of the sections and keys above."""
    for section in fields(Settings):
        for each in fields(cast(Any, section.default)):
            kind, meaning, key = (each.metadata[name] for name in ("kind", "meaning", "key"))
            yield Setting(section.name, key or each.name, each.name, kind, each.default, meaning)
